"""Heads of more than 256 numbers, as Gemma 4's: on CPUs, forward alone. CUDA's kernels and the gradient refuse them."""

import numpy as np
import pytest
import running
import support

_CASES = [
    (
        "paged_attention",
        dict(lens=((1, 90), (9, 30), (40, 700)), h=4, hk=2, d=512, page=16, return_lse=True),
    ),
    ("paged_attention", dict(lens=((1, 5000),), h=8, hk=1, d=512, page=16, sliding_window=1024)),
    ("paged_attention", dict(lens=((1, 33), (3, 17)), h=4, hk=2, d=320, page=8, softcap=30.0)),
    ("flash_attn_varlen", dict(lens=((9, 30), (100, 100)), h=4, hk=1, d=512)),
    ("flash_attn_varlen", dict(lens=((9, 30), (1, 70)), h=4, hk=2, d=512, page=16)),
]


@pytest.mark.parametrize(("op", "sizes"), _CASES, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_against_f64(op: str, sizes: dict, dtype: str) -> None:
    rng = np.random.default_rng(3)
    operands, attributes = support.op_module(op).arguments(rng, support.DTYPES[dtype], **sizes)
    got = running.run_native(op, operands, attributes)
    running.check_against_reference(op, operands, attributes, got, "cpu")


def test_the_gradient_refuses_them() -> None:
    import jax
    from intarsia.jax import flash_attn_varlen

    q = np.ones((4, 2, 512), np.float32)
    starts = np.array([0, 4], np.int32)
    with pytest.raises(
        NotImplementedError, match="q has d=512; built for the gradient are up to 256"
    ):
        jax.grad(lambda q: flash_attn_varlen(q, q, q, starts, cu_seqlens_k=starts).sum())(q)
