"""What of vLLM's sampler is ours: penalties without its compiled op, and on a CPU a token from two random numbers."""

import torch
import torch.nn.functional as F
from vllm import _custom_ops
from vllm.v1.sample.ops import topk_topp_sampler

from intarsia.vllm.replacing import replace

_BLOCK = 256

# vLLM's takes its compiled op for any tensor on a GPU, which is not loaded (`XlaPlatform.import_kernels`).
replace(_custom_ops, "apply_repetition_penalties", _custom_ops.apply_repetition_penalties_torch)


def use_draw() -> None:
    """Lets vLLM's sampler call `draw` in place of its `random_sample`, which draws a number for each token of the vocabulary.

    For all engines of this process.

    Raises:
      RuntimeError: this vLLM has no such function.
    """
    replace(topk_topp_sampler, "random_sample", draw)


def draw(
    probs: torch.Tensor, generators: dict[int, torch.Generator], use_fp64_gumbel: bool = False
) -> torch.Tensor:
    """Draws one token of each row by inversion of the cumulative distribution: first a block of tokens, then one of it.

    Args:
      probs: f32 [rows, vocabulary], at least 0; a row need not sum to 1.
      generators: by row, where its two uniform numbers come from if not from torch's default generator.
      use_fp64_gumbel: ignored: the uniform numbers and the sums are f64.

    Returns:
      int64 [rows]. No token of probability 0 is drawn from a row that has others; a row of zeros or NaN gives its last.

    Example:
      >>> draw(torch.tensor([[0.0, 1.0, 0.0]]), {})
      tensor([1])
    """
    rows, size = probs.shape
    numbers = torch.rand(rows, 2, dtype=torch.float64)
    for row, generator in generators.items():
        numbers[row] = torch.rand(2, dtype=torch.float64, generator=generator)
    padding = -size % _BLOCK
    padded = F.pad(probs, (0, padding)) if padding else probs
    blocks = padded.view(rows, (size + padding) // _BLOCK, _BLOCK)
    block = _invert(blocks.sum(-1, dtype=torch.float64), numbers[:, :1])
    weights = blocks[torch.arange(rows), block].double()
    return (block * _BLOCK + _invert(weights, numbers[:, 1:])).clamp(max=size - 1)


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """In each row the first column where the sum of weights [rows, n] exceeds that part [rows, 1], in [0, 1), of the whole."""
    ends = weights.cumsum(-1)
    totals = ends[:, -1:]
    below = torch.minimum(numbers * totals, totals.nextafter(torch.zeros_like(totals)))
    return torch.searchsorted(ends, below, right=True)[:, 0].clamp(max=weights.shape[1] - 1)
