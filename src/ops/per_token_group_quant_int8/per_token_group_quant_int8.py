"""per_token_group_quant_int8: what it computes, in NumPy; its cases; plain XLA's way."""

from intarsia_src.quant import reference as quant

CASES = {
    "example": dict(tags="ci wire", t=2, n=64, group_size=16),
    "qwen3_8b_decode": dict(tags="ci bench bench_cpu", t=16, n=4096),
    "qwen3_8b_prefill": dict(tags="bench", t=4096, n=4096),
    "groups_of_32": dict(tags="ci", t=5, n=576, group_size=32),
    "a_group_is_a_row": dict(tags="ci", t=5, n=640, group_size=640),
    "odd": dict(tags="ci", t=3, n=77, group_size=11),
    "with_zeros": dict(tags="ci", t=6, n=128, zeros=True),
    "tiny": dict(tags="ci", t=4, n=256, spread=1e-12),
    "large_eps": dict(tags="ci", t=4, n=256, eps=0.7),
    "empty": dict(tags="ci", t=0, n=128),
    "no_columns": dict(tags="ci", t=3, n=0),
}


def arguments(rng, dtype, *, t, n, group_size=128, eps=1e-10, zeros=False, spread=1.0):
    """Random operands in spec order, and attributes."""
    x = quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)
    return [x], dict(group_size=group_size, eps=eps)


def _rule(eps):
    return quant.RowRule("i8", least_absmax=eps, truncate=True)


def reference(x, *, group_size=128, eps=1e-10):
    """The results in spec order. x is f64."""
    return quant.of_groups(x, *_rule(eps)(quant.groups(x, group_size)))


def exact(x, *, group_size=128, eps=1e-10):
    """The results, to the bit."""
    return quant.of_groups(x, *_rule(eps).exact(quant.groups(x, group_size)))


floor = quant.floor


def plain_xla(x, *, group_size=128, eps=1e-10):
    """The same in jax.numpy, as a user without this library would write it."""
    return quant.of_groups(x, *quant.xla_rows(quant.groups(x, group_size), _rule(eps)))
