"""Sums of rows in an order that no schedule changes: on GPUs, torch's index_add adds floats by atomics, in any order."""

from collections.abc import Callable

import torch

Sums = Callable[[torch.Tensor], torch.Tensor]  # of rows [m, n], their sums [count, n]


class _Added(torch.autograd.Function):
    """Sums of rows, however they are computed; the gradient, which gathers, can be differentiated again."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, owners: torch.Tensor, add: Sums) -> torch.Tensor:
        ctx.save_for_backward(owners)
        return add(rows)

    @staticmethod
    def backward(ctx, d_sums: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (owners,) = ctx.saved_tensors
        return torch.cat([d_sums, d_sums.new_zeros(1, d_sums.shape[1])])[owners], None, None


def sums_of_rows(rows: torch.Tensor, owners: torch.Tensor, count: int) -> torch.Tensor:
    """[count, n] from rows [m, n]: row o is the sum of the rows whose owner is o, one after the other.

    Args:
      owners: int64 [m], 0 ... count; a row of `count` counts nowhere.
    """

    def add(rows: torch.Tensor) -> torch.Tensor:
        # torch_xla lacks such a reduction. XLA's scatter takes its place, in any order on a GPU, as docs/torch.md says.
        if rows.device.type not in ("cpu", "cuda"):
            return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, owners, rows)[:-1]
        order = owners.sort(stable=True).indices
        lengths = numbers_of_rows(owners, count)
        return torch.segment_reduce(rows[order], "sum", lengths=lengths, initial=0, unsafe=True)

    return _Added.apply(rows, owners, add)


def sums_of_groups(
    rows: torch.Tensor,
    owners: torch.Tensor,
    sizes: torch.Tensor,
    offset: torch.Tensor | None,
    count: int,
) -> torch.Tensor:
    """The same of rows that lie group after group, as `grouped_matmul` has them; of the rows' dtype, added in f32."""

    def add(rows: torch.Tensor) -> torch.Tensor:
        if count == 0:
            return rows.new_zeros(0, rows.shape[1])
        # The product with ones. Eight columns of them are 16 bytes and more, which kernels load at once.
        ones = rows.new_ones(rows.shape[0], 8)
        product = torch.ops.xla_gpu.grouped_matmul_weight_gradient
        return product(ones, rows, sizes, offset, num_groups=count)[:, 0]

    return _Added.apply(rows, owners, add)


def numbers_of_rows(owners: torch.Tensor, count: int) -> torch.Tensor:
    """int32 [count]: how many rows each owner has; owners as `sums_of_rows` takes them."""
    # Not by index_add, at which torch_xla ends the process where owners come from a sort.
    numbers = torch.zeros(count + 1, dtype=torch.int32, device=owners.device)
    return numbers.scatter_add(0, owners, torch.ones_like(owners, dtype=torch.int32))[:-1]
