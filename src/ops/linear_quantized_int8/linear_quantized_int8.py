"""linear_quantized_int8: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.ops.linear_quantized import linear_quantized as plain

# Codes are those of x in f32; an x near the middle between two may get the other one where f16 or bf16 round.
CASES = {
    name: case
    for name, case in plain.CASES.items()
    if name in ("example", "q4_1_bias", "q5_1", "q8_0", "q4_k", "q6_k", "awq", "mxfp4", "nvfp4", "int8_channels",
                "fp8_blocks", "gptq_symmetric_k_of_100", "smollm2_gate_up_1", "smollm2_logits_1")
}  # fmt: skip
arguments, floor = plain.arguments, plain.floor


def rounded_x(x):
    """Numbers that codes of x stand for: of each 32 neighbors, by a scale of f32."""
    k = x.shape[-1]
    whole = np.zeros((*x.shape[:-1], -(-k // 32) * 32))
    whole[..., :k] = x
    blocks = whole.reshape(*x.shape[:-1], -1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True).astype(np.float32) / np.float32(127)).astype(
        float
    )
    codes = np.rint(blocks / np.where(scale == 0, 1, scale))
    return (codes * scale).reshape(whole.shape)[..., :k]


def reference(x, *operands, **attributes):
    """The results in spec order. Operands are f64, but for integers."""
    return plain.reference(rounded_x(x), *operands, **attributes)


def magnitudes(x, *operands, **attributes):
    """The sums of absolute values."""
    return plain.magnitudes(rounded_x(x), *operands, **attributes)


def plain_xla(x, *operands, **attributes):
    """The same in jax.numpy: a product with decoded weights."""
    import jax.numpy as jnp
    from intarsia.jax._quantized import by_xla

    k = x.shape[-1]
    whole = jnp.pad(x.astype(jnp.float32), [(0, 0)] * (x.ndim - 1) + [(0, -k % 32)])
    blocks = whole.reshape(*x.shape[:-1], -1, 32)
    scale = jnp.abs(blocks).max(-1, keepdims=True) / 127
    codes = jnp.rint(blocks / jnp.where(scale == 0, 1, scale))
    near = (codes * scale).reshape(whole.shape)[..., :k]
    attributes = {"out_dtype": "f32"} | attributes
    return [by_xla(near, *operands, **attributes).astype(x.dtype)]
