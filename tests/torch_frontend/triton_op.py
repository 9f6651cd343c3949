"""An op written in Triton, registered with torch."""

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def _kernel(x, y, out, by, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + by * tl.load(y + i, mask=mask), mask=mask)


@torch.library.triton_op("intarsia_tests::scaled_add", mutates_args=())
def _scaled_add(x: torch.Tensor, y: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    torch.library.wrap_triton(_kernel)[grid](x, y, out, by, x.numel(), block=BLOCK)
    return out


scaled_add = torch.ops.intarsia_tests.scaled_add
