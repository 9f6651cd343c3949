"""What JAX's and torch's calls on a KV cache have in common: its form (one array or a pair, and the layout that it tells), and
how many sequences are real.
"""

from typing import Any


def split(op: str, kv_cache: Any) -> tuple[Any, Any]:
    """(key_cache, value_cache), where value_cache is None if one array holds both. `op` is for errors."""
    if not isinstance(kv_cache, (tuple, list)):  # torch 2.9's compiler cannot read `tuple | list`
        return kv_cache, None
    if len(kv_cache) != 2:
        raise ValueError(f"{op}: kv_cache has {len(kv_cache)} arrays, expected one or a pair")
    if kv_cache[1] is None:
        raise ValueError(f"{op}: value_cache is missing from the pair")
    return tuple(kv_cache)


def dense_layout(op: str, layout: str | None) -> str:
    """The layout of keys and values that are no paged cache."""
    if layout not in (None, "NHD"):
        raise ValueError(f"{op}: layout is {layout!r}, expected NHD or none without a block_table")
    return "NHD"


def infer_layout(op: str, kv_cache: Any, head_dim: int, layout: str | None, layer: Any) -> str:
    """The layout as given, or by the cache's form, rank and last axis.

    A pair is "NHD". One array is "stacked" if it has one more axis, of size 2, in front of the pages. It is
    "packed" if its rows are two heads long, and otherwise "combined".
    """
    if layout is not None:
        return layout
    key_cache, value_cache = split(op, kv_cache)
    if value_cache is not None:
        return "NHD"
    shape = key_cache.shape
    lead = 0 if layer is None else 1

    def refuse(why: str) -> ValueError:
        with_layer = "" if layer is None else " with layer"
        return ValueError(
            f"{op}: kv_cache has shape {tuple(shape)}{with_layer}, {why}; pass layout="
        )

    if len(shape) == lead + 5:
        if shape[lead] != 2:
            raise refuse(f"where a stacked cache has 2 in axis {lead}")
        if shape[lead + 1] == 2:
            raise refuse(f"whose axis {lead + 1} could tell K from V, too")
        return "stacked"
    if len(shape) == lead + 4 and shape[-1] == 2 * head_dim:
        return "packed"
    if len(shape) == lead + 4 and shape[-1] == head_dim:
        # The form of a pair's key cache, too, and where its heads are even nothing tells which it is.
        if shape[-2] % 2:
            raise ValueError(
                f"{op}: kv_cache has shape {tuple(shape)}, whose {shape[-2]} heads are not K and V in turn; "
                "a key cache and its value cache are a pair, (key_cache, value_cache)"
            )
        return "combined"
    raise refuse(f"which no layout with heads of {head_dim} has")


def check_num_seqs(op: str, num_seqs: int, cu_seqlens_q: Any) -> None:
    """Raises if a number of sequences is none of a batch. One in an array is not looked at: the kernels clamp it."""
    if cu_seqlens_q.ndim == 1 and not 0 <= num_seqs < cu_seqlens_q.shape[0]:
        b = cu_seqlens_q.shape[0] - 1
        raise ValueError(
            f"{op}: num_seqs is {num_seqs}, expected 0 to b={b}, as cu_seqlens_q has b+1={b + 1}"
        )
