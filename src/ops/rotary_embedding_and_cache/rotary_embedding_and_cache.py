"""rotary_embedding_and_cache: the ops that it is, one after the other; its cases; plain XLA's way."""

import ml_dtypes
import numpy as np
from intarsia_src.cache import reference as cache_write
from intarsia_src.norm import reference as norm
from intarsia_src.ops.fused_qk_norm_rope import fused_qk_norm_rope
from intarsia_src.rotary import reference as rotary

_LLAMA = dict(h=32, hk=8, d=128, page=16)
_SMOLLM2 = dict(h=9, hk=3, d=64, page=16)
_E4M3, _E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2

# Named after the models whose heads they are.
CASES = {
    "example": dict(tags="ci wire", t=3, h=4, hk=2, d=64, page=4, max_position=16),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, **_LLAMA),
    "llama3_8b_prefill": dict(tags="bench", t=4096, **_LLAMA),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=256, **_LLAMA),
    "llama3_8b_decode_fp8": dict(tags="ci bench", t=16, **_LLAMA, kv=_E4M3, scales="head"),
    "smollm2_decode": dict(tags="ci bench_cpu", t=1, **_SMOLLM2),
    "smollm2_layers": dict(tags="ci", t=5, **_SMOLLM2, layers=3),
    "no_such_layer": dict(tags="ci", t=4, h=2, hk=2, d=64, page=8, layers=2, layer=2),
    "gpt_j_partial": dict(tags="ci", t=5, h=4, hk=4, d=256, page=16, r=64, is_neox=False),
    "glm4_partial": dict(tags="ci", t=7, h=6, hk=2, d=128, page=16, r=64, kv=_E5M2),
    "deepseek_tail": dict(
        tags="ci", t=3, h=2, hk=1, d=192, page=16, r=64, rope_dim_offset=128, is_neox=False
    ),
    "odd_pairs": dict(tags="ci", t=3, h=3, hk=1, d=34, page=3, r=22, index=np.int64),
    "odd_pairs_fp8": dict(tags="ci", t=3, h=3, hk=1, d=34, page=3, r=22, kv=_E4M3),
    "combined": dict(tags="ci", t=9, **_SMOLLM2, layout="combined"),
    "packed_fp8": dict(tags="ci", t=9, **_SMOLLM2, layout="packed", kv=_E4M3, scales="tensor"),
    "hnd_uint8": dict(tags="ci", t=9, **_SMOLLM2, layout="HND", kv_cache_dtype="fp8_e5m2"),
    "layers_behind_pages": dict(tags="ci", t=9, **_SMOLLM2, layers=3, layout="p l s hk d"),
    "f32_table": dict(tags="ci", t=4, h=2, hk=1, d=64, page=16, table_dtype=np.float32),
    "outside_the_table": dict(tags="ci beyond_plain", t=6, h=2, hk=1, d=64, page=16, outside=True),
    "padded_graph": dict(tags="ci", t=8, h=2, hk=2, d=64, page=16, slots=5),
    "skipped_slots": dict(tags="ci", t=8, h=2, hk=2, d=64, page=16, skip=True),
    "qwen3_decode": dict(tags="ci bench bench_cpu", t=16, h=32, hk=4, d=128, page=16, norms="T"),
    "qwen3_prefill": dict(tags="bench", t=4096, h=32, hk=4, d=128, page=16, norms="T"),
    "qwen3_decode_fp8": dict(
        tags="ci", t=7, h=8, hk=2, d=128, page=16, norms="T", kv=_E4M3, scales="head"
    ),
    "normed_in_f32": dict(tags="ci", t=5, h=4, hk=2, d=64, page=16, r=32, norms="f32"),
    "normed_odd_pairs": dict(
        tags="ci", t=3, h=3, hk=1, d=34, page=3, r=22, is_neox=False, norms="T"
    ),
    "gemma3_decode": dict(
        tags="ci", t=7, h=4, hk=1, d=256, page=16, norms="f32", table_dtype=np.float32
    ),
    "gemma3_decode_fp8": dict(
        tags="ci", t=7, h=4, hk=1, d=256, page=16, norms="T", kv=_E5M2, scales="tensor"
    ),
    "normed_layers": dict(tags="ci", t=9, **_SMOLLM2, layers=3, layout="combined", norms="T"),
    "empty": dict(tags="ci", t=0, h=4, hk=2, d=64, page=16),
}


def arguments(
    rng, dtype, *, t, h, hk, d, page, r=None, table_dtype=None, max_position=rotary.MAX_POSITION,
    outside=False,
    index=np.int32, is_neox=True, rope_dim_offset=0, norms=None, **cache,
):  # fmt: skip
    """Random operands in spec order, and attributes; `cache` is what reshape_and_cache_flash's cases say.

    norms: whether heads are normed, and the weights' dtype: "T" or "f32".
    """
    (positions, query, table, *_), _ = rotary.arguments(
        rng, dtype, tokens=(t,), h=h, hk=None, d=d, r=r, table_dtype=table_dtype,
        max_position=max_position, outside=outside, index=index,
    )  # fmt: skip
    (key, value, *rest), attributes = cache_write.arguments(
        rng, dtype, t=t, hk=hk, d=d, page=page, index=index, **cache
    )
    qkv = np.concatenate([query, key, value], axis=1)
    attributes |= dict(num_heads=h, is_neox=is_neox, rope_dim_offset=rope_dim_offset)
    weights = [None, None]
    if norms:
        weights = [
            norm.random_weight(rng, d, np.float32 if norms == "f32" else dtype) for _ in weights
        ]
        attributes["eps"] = 1e-5
    return [positions, qkv, table, *rest, *weights], attributes


_REST = 6  # operands behind the table that the cache write takes


def one_after_the_other(
    norm_and_rotate, rotate, write, operands,
    *, num_heads, is_neox, rope_dim_offset, eps=1e-6, **of_cache,
):  # fmt: skip
    """The results of `rotate`, or of `norm_and_rotate`, and of `write`, functions of the ops' modules."""
    positions, qkv, cos_sin_cache, *rest = operands
    h, hk = num_heads, (qkv.shape[1] - num_heads) // 2
    if weights := [x for x in rest[_REST:] if x is not None]:
        sizes = dict(num_heads_q=h, num_heads_k=hk, eps=eps, is_neox=is_neox)
        [qkv] = norm_and_rotate(positions, qkv, cos_sin_cache, *weights, **sizes)
    query, key, value = qkv[:, :h], qkv[:, h : h + hk], qkv[:, h + hk :]
    if not weights:
        of_rotation = dict(is_neox=is_neox, rope_dim_offset=rope_dim_offset)
        query, key = rotate(positions, query, cos_sin_cache, key, **of_rotation)
    return [query, *write(key, value, *rest[:_REST], **of_cache)]


def _by_modules(way, write, operands, attributes):
    """By the function `way` of the ops' modules, with `write` for that of the cache."""
    turn = (getattr(fused_qk_norm_rope, way), getattr(rotary, way))
    return one_after_the_other(*turn, write, operands, **attributes)


def reference(*operands, **attributes):
    """The results in spec order, before they are rounded. Operands are f64, uint8 or indices."""
    return _by_modules("reference", cache_write.reference, operands, attributes)


def rounded(positions, qkv, cos_sin_cache, *rest, **attributes):
    """The caches if the turned key is rounded to T before an fp8 cache rounds it again."""

    def write(key, value, *rest, **of_cache):
        return cache_write.exact(key.astype(qkv.dtype), value.astype(qkv.dtype), *rest, **of_cache)

    wide = [x if x is None else x.astype(np.float64) for x in (qkv, cos_sin_cache, *rest[_REST:])]
    operands = positions, *wide[:2], *rest[:_REST], *wide[2:]
    _, *caches = _by_modules("reference", write, operands, attributes)
    return [None, *(x if x.dtype == np.uint8 else x.astype(np.float64) for x in caches)]


def floor(dtype_bytes, *, t, h, hk, d, r=None, kv=None, kv_cache_dtype="auto", **_):
    """The least a call must do: (bytes moved, flops)."""
    stored_bytes = 1 if kv or kv_cache_dtype != "auto" else dtype_bytes
    elements = (2 * h + 2 * hk) * d + (r or d)
    return t * (elements * dtype_bytes + 2 * hk * d * stored_bytes), 0


def plain_xla(*operands, **attributes):
    """The same in jax.numpy, as a user without this library would write it."""
    return _by_modules("plain_xla", cache_write.plain_xla, operands, attributes)
