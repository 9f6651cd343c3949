"""reshape_and_cache_flash: its cases; src/cache has what it computes."""

import ml_dtypes
import numpy as np
from intarsia_src.cache.reference import arguments, exact, plain_xla, reference
from intarsia_src.core.cache_layout import layout_names

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

_LLAMA = dict(hk=8, d=128, page=16)
_SMOLLM2 = dict(hk=3, d=64, page=16)
_E4M3, _E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2

# fmt: off
# Named after the models whose heads they are.
CASES = {
    "example": dict(tags="ci wire", t=3, hk=2, d=64, page=4),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, **_LLAMA),
    "llama3_8b_prefill": dict(tags="bench", t=4096, **_LLAMA),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, **_LLAMA),
    "llama3_8b_prefill_fp8": dict(tags="bench", t=4096, **_LLAMA, kv=_E4M3, scales="head"),
    "llama3_8b_prefill_short_fp8": dict(
        tags="bench_cpu", t=512, **_LLAMA, kv=_E4M3, scales="head"
    ),
    "combined_decode": dict(tags="ci bench", t=16, **_LLAMA, layout="combined"),
    "combined_prefill": dict(tags="bench", t=4096, **_LLAMA, layout="combined"),
    "packed_prefill": dict(tags="bench", t=4096, **_LLAMA, layout="packed"),
    "packed_prefill_fp8": dict(tags="bench", t=4096, **_LLAMA, layout="packed", kv=_E4M3),
    "hnd_prefill": dict(tags="bench", t=4096, **_LLAMA, layout="HND"),
    "no_such_layer": dict(tags="ci", t=4, hk=2, d=64, page=8, layers=2, layer=2),
    "odd_heads": dict(tags="ci", t=7, hk=3, d=5, page=3, index=np.int64),
    "odd_heads_packed": dict(tags="ci", t=7, hk=3, d=5, page=3, layout="packed"),
    "odd_heads_fp8": dict(tags="ci", t=7, hk=3, d=5, page=3, kv=_E5M2, scales="head"),
    "odd_heads_packed_fp8": dict(
        tags="ci", t=7, hk=3, d=37, page=3, layout="packed", kv=_E4M3, scales="head"
    ),
    "padded_graph": dict(tags="ci", t=8, hk=2, d=64, page=16, slots=5),
    "skipped_slots": dict(tags="ci", t=8, hk=2, d=64, page=16, skip=True),
    "skipped_slots_fp8": dict(tags="ci", t=8, hk=2, d=64, page=16, skip=True, kv=_E4M3),
    "one_slot_pages": dict(tags="ci", t=4, hk=1, d=16, page=1),
    "empty": dict(tags="ci", t=0, hk=2, d=64, page=16),
    "flashinfer_hnd": dict(tags="ci", t=9, **_SMOLLM2, layout="p 2 hk s d"),
    "layers_behind_pages": dict(tags="ci", t=9, **_SMOLLM2, layers=3, layout="p l s hk d"),
    "e4m3_scale_of_tensor": dict(tags="ci", t=9, **_SMOLLM2, kv=_E4M3, scales="tensor"),
    "e4m3_saturates": dict(tags="ci", t=9, **_SMOLLM2, kv=_E4M3, scales="head", spread=300),
    "e5m2_saturates": dict(tags="ci", t=9, **_SMOLLM2, kv=_E5M2, scales="head", spread=4e4),
    "uint8_as_e5m2": dict(tags="ci", t=9, **_SMOLLM2, kv_cache_dtype="fp8_e5m2", scales="tensor"),
    **{
        f"{layout}_{kind}": dict(tags="ci", t=9, **_SMOLLM2, layout=layout, **what)
        for layout in layout_names()
        for kind, what in (
            ("cache", {}),
            ("layers", dict(layers=3)),
            ("e4m3_layers", dict(layers=2, kv=_E4M3, scales="head")),
            ("uint8", dict(kv_cache_dtype="fp8", scales="head")),
        )
    },
}
# fmt: on


def floor(dtype_bytes, *, t, hk, d, kv=None, kv_cache_dtype="auto", **_):
    """The least a call must do: (bytes moved, flops)."""
    stored_bytes = 1 if kv or kv_cache_dtype != "auto" else dtype_bytes
    return 2 * t * hk * d * (dtype_bytes + stored_bytes), 0
