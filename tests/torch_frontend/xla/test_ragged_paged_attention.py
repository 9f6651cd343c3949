"""torch_xla's own ragged paged attention: without its kernel an outside reference, with it served by ours."""

from typing import Any

import pytest
import torch
import torch_xla
import vllm_names

D, PAGE, KV_HEADS = 64, 8, 2


def batch(heads: int) -> list[torch.Tensor]:
    """Three sequences: a chunk of a prompt, a decode step, a whole prompt; one row of the batch is empty."""
    generator = torch.Generator().manual_seed(heads)
    q_lens, kv_lens = [3, 1, 6], [13, 20, 6]
    starts = torch.tensor([0, 3, 4, 10, 10], dtype=torch.int32)
    q = torch.randn(sum(q_lens), heads, D, generator=generator)
    pages = torch.randn(12, PAGE, 2 * KV_HEADS, D, generator=generator)
    table = torch.randperm(12, generator=generator).reshape(4, 3).to(torch.int32)
    lens = torch.tensor([*kv_lens, 0], dtype=torch.int32)
    return [
        x.to("xla") for x in (q, pages, lens, table, starts, torch.tensor([3], dtype=torch.int32))
    ]


OPTIONS = [
    {},
    {"sm_scale": D**-0.5, "soft_cap": 20.0},
    {"sliding_window": 5},
    {"k_scale": 0.5, "v_scale": 2.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "_".join(o) or "plain")
def test_kernel_path_is_ours_and_agrees(options: dict[str, Any]) -> None:
    operands = batch(heads=6)
    attend = torch.ops.xla.ragged_paged_attention
    want = attend(*operands, use_kernel=False, **options).cpu()
    got = attend(*operands, use_kernel=True, **options)
    assert "intarsia.paged_attention" in torch_xla._XLAC._get_xla_tensors_hlo([got])
    tolerance = 2e-2 if vllm_names.on_gpu() else 1e-5  # their products are in TF32 there
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance)


def test_kernel_path_compiles_into_one_graph() -> None:
    operands = batch(heads=4)

    @torch.compile(backend="openxla", fullgraph=True)
    def attend(*operands: torch.Tensor) -> torch.Tensor:
        return torch.ops.xla.ragged_paged_attention(*operands, sm_scale=0.1) * 2

    eager = torch.ops.xla.ragged_paged_attention(*operands, sm_scale=0.1) * 2
    torch.testing.assert_close(attend(*operands).cpu(), eager.cpu(), rtol=0, atol=0)
