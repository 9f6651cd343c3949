"""scaled_matmul: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import ml_dtypes
import numpy as np

# Hopper's tensor cores keep some 14 bits of a sum of fp8; tests/test_scaled_matmul.py asks more of CPUs.
TOLERANCE = {"f32": 3e-4, "f16": 6e-4, "bf16": 4e-3}
_BLOCK = 128
_OUT_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_INT8 = dict(codes=np.int8)
_TENSORS = dict(x_scales="tensor", w_scales="tensor")
_BLOCKS = dict(x_scales="block", w_scales="block")
# m rows, n results of k codes each; scales of x by tensor, token or block, of w by tensor, channel or block.
CASES = {
    "example": dict(tags="ci wire", m=2, n=16, k=64, bias=True, **_INT8),
    "fp8": dict(tags="ci", m=3, n=24, k=96, bias=True),
    "tensors": dict(tags="ci", m=5, n=40, k=80, **_TENSORS),
    "int8_tensors_bias": dict(tags="ci", m=9, n=17, k=130, bias=True, **_TENSORS, **_INT8),
    "blocks": dict(tags="ci", m=7, n=256, k=384, **_BLOCKS),
    "blocks_odd": dict(tags="ci", m=19, n=200, k=333, bias=True, **_BLOCKS),
    "int8_blocks": dict(tags="ci", m=4, n=130, k=257, **_BLOCKS, **_INT8),
    "blocks_of_w": dict(tags="ci", m=3, n=144, k=256, w_scales="block"),
    "blocks_of_x": dict(tags="ci", m=3, n=16, k=256, x_scales="block"),
    "one_column": dict(tags="ci", m=2, n=3, k=1),
    "many_rows": dict(tags="ci", m=140, n=72, k=160, **_BLOCKS),
    "no_rows": dict(tags="ci", m=0, n=16, k=32),
    "one_block": dict(tags="ci", m=4, n=130, k=100, w_scales="block", bias=True),
    "no_columns": dict(tags="ci", m=2, n=16, k=0, bias=True),
    "deepseek_v3_4096": dict(tags="bench", m=4096, n=4096, k=7168, **_BLOCKS),
    "deepseek_v3_16": dict(tags="bench", m=16, n=4096, k=7168, **_BLOCKS),
    "llama3_8b_wo_1": dict(tags="bench bench_cpu", m=1, n=4096, k=4096),
    "llama3_8b_wo_16": dict(tags="bench bench_cpu", m=16, n=4096, k=4096),
    "llama3_8b_wo_512": dict(tags="bench bench_cpu", m=512, n=4096, k=4096),
    "llama3_8b_wo_blocks_1": dict(tags="bench_cpu", m=1, n=4096, k=4096, **_BLOCKS),
    "llama3_8b_wo_int8_1": dict(tags="bench bench_cpu", m=1, n=4096, k=4096, **_INT8),
    "llama3_8b_wo_int8_16": dict(tags="bench bench_cpu", m=16, n=4096, k=4096, **_INT8),
    "llama3_8b_wo_int8_512": dict(tags="bench bench_cpu", m=512, n=4096, k=4096, **_INT8),
    "llama3_8b_gate_up_4096": dict(tags="bench", m=4096, n=28672, k=4096),
    "llama3_8b_gate_up_int8_4096": dict(tags="bench", m=4096, n=28672, k=4096, **_INT8),
}


def _blocks(size: int) -> int:
    return -(-size // _BLOCK)


def arguments(
    rng,
    dtype,
    *,
    m,
    n,
    k,
    codes=ml_dtypes.float8_e4m3fn,
    x_scales="token",
    w_scales="channel",
    bias=False,
):
    """Random operands in spec order, and attributes. `dtype` is the result's."""
    of_x = {"tensor": (1,), "token": (m, 1), "block": (m, _blocks(k))}[x_scales]
    of_w = {"tensor": (1,), "channel": (n,), "block": (_blocks(n), _blocks(k))}[w_scales]

    def draw(*shape):
        if codes is np.int8:
            return rng.integers(-128, 128, shape).astype(np.int8)
        return rng.standard_normal(shape).astype(codes)

    def scales(shape):
        return rng.uniform(0.01, 0.1, shape).astype(np.float32)

    operands = [
        draw(m, k),
        draw(n, k),
        scales(of_x),
        scales(of_w),
        rng.standard_normal(n).astype(dtype) if bias else None,
    ]
    return operands, {"out_dtype": _OUT_DTYPES[np.dtype(dtype).name]}


def _spread(scales, columns):
    """A factor for each column, of the scales of one block or of all."""
    return np.repeat(scales, _BLOCK, -1)[..., :columns] if scales.shape[-1] > 1 else scales


def numbers(x, w, x_scales, w_scales):
    """What the codes stand for, f64."""
    if w_scales.ndim == 2:
        w_scales = np.repeat(_spread(w_scales, w.shape[1]), _BLOCK, 0)[: w.shape[0]]
    else:
        w_scales = w_scales[:, None]
    return x * _spread(x_scales, x.shape[-1]), w * w_scales


def reference(x, w, x_scales, w_scales, bias=None, **_):
    """The results in spec order. Operands are f64, but for integers."""
    x, w = numbers(x.astype(np.float64), w.astype(np.float64), x_scales, w_scales)
    out = x @ w.T
    return [out if bias is None else out + bias]


def magnitudes(*operands, **_):
    """The sums of absolute values."""
    x, w, *others = (None if a is None else np.abs(a.astype(np.float64)) for a in operands)
    return reference(x, w, *others)


def floor(dtype_bytes, *, m, n, k, x_scales="token", w_scales="channel", **_):
    """The least a call must do: (bytes moved, flops)."""
    of_x = {"tensor": 1, "token": m, "block": m * _blocks(k)}[x_scales]
    of_w = {"tensor": 1, "channel": n, "block": _blocks(n) * _blocks(k)}[w_scales]
    return (m + n) * k + 4 * (of_x + of_w) + dtype_bytes * m * n, 2 * m * n * k


def plain_xla(x, w, x_scales, w_scales, bias=None, *, out_dtype="bf16"):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    def spread(scales, columns):
        return jnp.repeat(scales, _BLOCK, -1)[..., :columns] if scales.shape[-1] > 1 else scales

    # A dot of codes where scales can wait for its result, else of numbers.
    blocks = w_scales.ndim == 2 or x_scales.shape[-1] > 1
    integers = x.dtype == jnp.int8 and not blocks
    of_w = w_scales if w_scales.ndim == 2 else w_scales[:, None]
    if blocks:
        by = spread(of_w, w.shape[1])
        if w_scales.ndim == 2:
            by = jnp.repeat(by, _BLOCK, 0)[: w.shape[0]]
        x, w = x.astype(jnp.float32) * spread(x_scales, x.shape[-1]), w.astype(jnp.float32) * by
    kind = jnp.int32 if integers else jnp.float32
    out = jnp.einsum("mk,nk->mn", x, w, preferred_element_type=kind)
    if not blocks:
        out = out.astype(jnp.float32) * x_scales * of_w[:, 0]
    out = out if bias is None else out + bias.astype(jnp.float32)
    return [out.astype({"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}[out_dtype])]
