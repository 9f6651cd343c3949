"""convert_fp8: its cases, and what it computes."""

import math

import ml_dtypes
import numpy as np
from intarsia_src.cache.reference import to_fp8
from intarsia_src.core.cache_layout import FP8_CACHES
from intarsia_src.core.operands import random_array

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

_CODES = {"f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
_LLAMA = (256, 16, 8, 128)

# fmt: off
# `codes`: the dtype of x where it is fp8; then the result is of the case's dtype.
CASES = {
    "example": dict(tags="ci wire", shape=(2, 64)),
    "llama3_8b_cache": dict(tags="bench bench_cpu", shape=_LLAMA, scale=0.5),
    "llama3_8b_cache_back": dict(tags="bench", shape=_LLAMA, scale=0.5, codes="f8e4m3fn"),
    "scaled": dict(tags="ci", shape=(3, 5, 48), scale=0.37),
    "saturates": dict(tags="ci", shape=(3, 700), scale=0.002),
    "e5m2": dict(tags="ci", shape=(2, 3, 33), scale=3.0, out_dtype="f8e5m2"),
    "to_uint8": dict(tags="ci", shape=(77,), scale=0.2, out_dtype="u8", kv_cache_dtype="fp8"),
    "to_uint8_e5m2": dict(tags="ci", shape=(80,), out_dtype="u8", kv_cache_dtype="fp8_e5m2"),
    "from_e4m3": dict(tags="ci", shape=(3, 5, 48), scale=0.37, codes="f8e4m3fn"),
    "from_e5m2": dict(tags="ci", shape=(2, 33), codes="f8e5m2"),
    "from_uint8": dict(tags="ci", shape=(2, 40), scale=0.2, codes="f8e4m3fn", kv_cache_dtype="fp8_e4m3"),
    "one": dict(tags="ci", shape=(1,), scale=0.5),
    "two_tiles_and_one": dict(tags="ci", shape=(2 * 16384 + 1,), scale=0.1),
    "empty": dict(tags="ci", shape=(0, 8)),
}
# fmt: on


def arguments(
    rng, dtype, *, shape, scale=1.0, codes=None, out_dtype="f8e4m3fn", kv_cache_dtype="auto"
):
    """Random operands in spec order, and attributes."""
    x = random_array(rng, shape, _CODES.get(codes, dtype))
    if codes is not None:
        out_dtype = {4: "f32", 2: "f16"}[np.dtype(dtype).itemsize]
        out_dtype = "bf16" if np.dtype(dtype) == ml_dtypes.bfloat16 else out_dtype
        if kv_cache_dtype != "auto":
            x = x.view(np.uint8)
    return [x], dict(scale=scale, out_dtype=out_dtype, kv_cache_dtype=kv_cache_dtype)


def _type_of(name, kv_cache_dtype):
    """What a word of out_dtype means for numbers."""
    if name == "u8":
        return FP8_CACHES[kv_cache_dtype]
    return (
        _CODES.get(name) or {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[name]
    )


def exact(x, *, scale=1.0, out_dtype="f8e4m3fn", kv_cache_dtype="auto"):
    """The results in spec order, to the bit."""
    wanted = np.dtype(_type_of(out_dtype, kv_cache_dtype))
    if wanted.itemsize == 1:
        codes = to_fp8(x.reshape(1, 1, -1), np.array([scale], np.float32), wanted).reshape(x.shape)
        return [codes.view(np.uint8) if out_dtype == "u8" else codes]
    stored = x.view(FP8_CACHES[kv_cache_dtype]) if x.dtype == np.uint8 else x
    return [(stored.astype(np.float32) * np.float32(scale)).astype(wanted)]


def reference(x, *, scale=1.0, out_dtype="f8e4m3fn", kv_cache_dtype="auto"):
    """The results in spec order, before they are rounded. Operands are f64 or uint8."""
    scale = np.float64(np.float32(scale))
    if out_dtype == "u8":
        return exact(x, scale=scale, out_dtype=out_dtype, kv_cache_dtype=kv_cache_dtype)
    if x.dtype == np.uint8:
        x = x.view(FP8_CACHES[kv_cache_dtype]).astype(np.float64)
    if out_dtype not in _CODES:
        return [x * scale]
    largest = float(ml_dtypes.finfo(_CODES[out_dtype]).max)
    return [np.clip(x / scale, -largest, largest)]


def floor(dtype_bytes, *, shape, **_):
    """The least a call must do: (bytes moved, flops)."""
    return math.prod(shape) * (dtype_bytes + 1), 0


def plain_xla(x, *, scale=1.0, out_dtype="f8e4m3fn", kv_cache_dtype="auto"):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp
    from jax import lax

    wanted = jnp.dtype(_type_of(out_dtype, kv_cache_dtype))
    if wanted.itemsize == 1:
        largest = float(jnp.finfo(wanted).max)
        codes = jnp.clip(x.astype(jnp.float32) / scale, -largest, largest).astype(wanted)
        return [lax.bitcast_convert_type(codes, jnp.uint8) if out_dtype == "u8" else codes]
    if x.dtype == jnp.uint8:
        x = lax.bitcast_convert_type(x, FP8_CACHES[kv_cache_dtype])
    return [(x.astype(jnp.float32) * scale).astype(wanted)]
