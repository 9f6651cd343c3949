"""Writing a KV cache by vLLM's arguments, for `intarsia.xla_ops` and behind vLLM's own name."""

import torch

from intarsia.torch._attention import as_scale


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str = "auto",
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
) -> None:
    """Writes new keys and values into their slots of a paged cache, in place.

    Args:
      key, value: [t, hk, d].
      key_cache, value_cache: [p, s, hk, d], of the dtype of `key`, fp8, or uint8.
      slot_mapping: [t'], t' <= t: page * s + offset of each of the first t' tokens; negative: skip.
      kv_cache_dtype: what a uint8 cache holds: "fp8" or "fp8_e4m3", "fp8_e5m2"; "auto": as its dtype says.
      k_scale, v_scale: what fp8 keys and values will have to be multiplied by, None for 1. Caches of another dtype hold
        what they are given, whatever the scales.

    Raises:
      ValueError: shapes or dtypes do not fit; nothing is written then.

    Source: vLLM's `_C_cache_ops::reshape_and_cache_flash`.
    """
    scales = (k_scale, v_scale) if key_cache.dtype.itemsize == 1 else (None, None)
    k_scale, v_scale = (as_scale(x, key_cache) for x in scales)
    torch.ops.xla_gpu.reshape_and_cache_flash(
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        None,
        k_scale,
        v_scale,
        kv_cache_dtype=kv_cache_dtype,
    )
