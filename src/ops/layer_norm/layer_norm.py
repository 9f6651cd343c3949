"""layer_norm: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

from intarsia_src.norm import layer

CASES = layer.CASES | {
    "example": dict(tags="ci wire", t=2, n=8),
    "no_weight": dict(tags="ci", t=3, n=128, weight=None, bias=None),
    "bias_alone": dict(tags="ci", t=3, n=77, weight=None),
}
arguments = layer.arguments


def reference(x, weight=None, bias=None, *, eps=1e-5):
    """The results in spec order. Operands are f64."""
    return [layer.normed(x, weight, bias, eps)]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 2 * t * n * dtype_bytes, 0


def plain_xla(x, weight=None, bias=None, *, eps=1e-5):
    """The same in jax.numpy, as a user without this library would write it."""
    return [layer.xla_normed(x, weight, bias, eps)]
