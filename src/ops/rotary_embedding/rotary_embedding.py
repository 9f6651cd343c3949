"""rotary_embedding: its cases; src/rotary has what it computes."""

import math

import numpy as np
from intarsia_src.rotary.reference import arguments, plain_xla, reference

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]

# Named after the models whose heads they are. `tokens` is the shape of positions.
CASES = {
    "example": dict(tags="ci wire", tokens=(2,), h=4, hk=2, d=64, max_position=16),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", tokens=(16,), h=32, hk=8, d=128),
    "llama3_8b_prefill": dict(tags="bench", tokens=(4096,), h=32, hk=8, d=128),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", tokens=(256,), h=32, hk=8, d=128),
    "smollm2_decode": dict(tags="ci bench_cpu", tokens=(1,), h=9, hk=3, d=64),
    "gpt_j_partial": dict(tags="ci", tokens=(5,), h=4, hk=4, d=256, r=64, is_neox=False),
    "glm4_partial": dict(tags="ci", tokens=(7,), h=6, hk=2, d=128, r=64),
    "deepseek_tail": dict(
        tags="ci", tokens=(3,), h=2, hk=1, d=192, r=64, rope_dim_offset=128, is_neox=False
    ),
    "flat_heads": dict(tags="ci", tokens=(5,), h=4, hk=2, d=64, flat=True),
    "batch_and_sequence": dict(tags="ci", tokens=(2, 3), h=4, hk=2, d=64, index=np.int64),
    "batch_flat_no_key": dict(tags="ci", tokens=(2, 3), h=4, hk=None, d=64, flat=True),
    "f32_table": dict(tags="ci", tokens=(4,), h=2, hk=1, d=64, table_dtype=np.float32),
    "inverse": dict(tags="ci", tokens=(4,), h=2, hk=1, d=96, inverse=True),
    "odd_pairs": dict(tags="ci", tokens=(3,), h=3, hk=1, d=34, r=22),
    "outside_the_table": dict(tags="ci beyond_plain", tokens=(6,), h=2, hk=1, d=64, outside=True),
    "qwen2_vl_mrope": dict(
        tags="ci bench bench_cpu", tokens=(16,), h=28, hk=4, d=128, sections=(16, 24, 24)
    ),
    "qwen3_vl_mrope": dict(
        tags="ci",
        tokens=(2, 3),
        h=4,
        hk=2,
        d=64,
        sections=(12, 10, 10),
        interleaved=True,
        index=np.int64,
    ),
    "mrope_flat_partial": dict(
        tags="ci",
        tokens=(5,),
        h=3,
        hk=None,
        d=40,
        r=22,
        sections=(5, 6),
        flat=True,
        is_neox=False,
        inverse=True,
        table_dtype=np.float32,
    ),
    "mrope_outside": dict(
        tags="ci beyond_plain", tokens=(6,), h=2, hk=1, d=64, sections=(16, 16), outside=True
    ),
    "empty": dict(tags="ci", tokens=(0,), h=2, hk=1, d=64),
}


def floor(dtype_bytes, *, tokens, h, hk, d, r=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    t = math.prod(tokens)
    return t * (2 * (h + (hk or 0)) * d + (r or d)) * dtype_bytes, 0
