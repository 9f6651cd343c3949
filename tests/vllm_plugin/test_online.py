"""What vLLM quantizes as it loads: the codes that its compiled ops would give."""

import pytest
import torch

pytest.importorskip("vllm")

from intarsia.vllm.online import _Ops


@pytest.mark.parametrize("rows", [3, 2500])
@pytest.mark.parametrize("by_rows", [False, True])
def test_codes_are_the_nearest(rows: int, by_rows: bool) -> None:
    weight = torch.randn(rows, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    given = None if by_rows else weight.float().abs().max() / 448
    codes, scale = _Ops.scaled_fp8_quant(weight, given, use_per_token_if_dynamic=by_rows)
    largest = weight.float().abs().amax(1, keepdim=True) if by_rows else weight.float().abs().max()
    torch.testing.assert_close(scale, largest / 448)
    assert codes.dtype == torch.float8_e4m3fn and codes.float().abs().max() == 448
    # Half of the distance of neighbors, of three bits; or of the smallest ones.
    bound = torch.maximum(weight.float().abs() / 16, scale / 1024) * 1.001
    assert ((codes.float() * scale - weight.float()).abs() <= bound).all()


def test_a_matrix_of_zeros_stays_one() -> None:
    """As one of merged weights may be. vLLM's scale of it is 0."""
    zeros = torch.zeros(4, 32)
    for scale in (torch.zeros(1), None):
        codes, found = _Ops.scaled_fp8_quant(zeros, scale, use_per_token_if_dynamic=True)
        assert (codes.float() * found == 0).all()
