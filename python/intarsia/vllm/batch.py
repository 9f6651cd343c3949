"""A step's numbers as one vector of int32: padded to a program's shape by torch, taken apart again within the program.

One vector is one DLPack handover and one operand, however many KV cache groups a model has.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger

from intarsia.vllm import settings

logger = init_logger("vllm.intarsia.batch")


class StepShape(NamedTuple):
    """What a step's program is compiled for. Rows beyond a batch's own are padding."""

    tokens: int
    requests: int
    decode: bool
    """Every request has one token: `paged_attention`, else `flash_attn_varlen`."""

    def __str__(self) -> str:
        kind = "decode" if self.decode else "mixed"
        return f"{kind} step of {self.tokens} tokens, {self.requests} requests"


class Group(NamedTuple):
    """What the layers of one KV cache group need to know of a step; JAX arrays within a program."""

    cu_seqlens_q: jax.Array
    """[requests + 1], where each request's tokens begin."""
    seqused_k: jax.Array
    """[requests], keys of each, this step's included; 0 for padding."""
    block_table: jax.Array
    """[requests, width], pages of each."""
    slot_mapping: jax.Array
    """[tokens], where each token's key and value go; -1 for padding."""


class Step(NamedTuple):
    """A step's numbers, taken apart."""

    input_ids: jax.Array
    positions: jax.Array
    token_types: jax.Array
    groups: list[Group]


class BatchLayout:
    """Where each number stands in the vector.

    Args:
      widths: pages of a request at its longest, in each KV cache group.
      typed: whether tokens have types, as in pairs of texts.
    """

    def __init__(self, widths: Sequence[int], typed: bool = False):
        self._widths = list(widths)
        self._typed = typed

    def _sizes(self, shape: StepShape) -> Iterator[int]:
        yield shape.tokens  # input_ids
        yield shape.tokens  # positions
        yield shape.tokens if self._typed else 0  # token_types
        yield shape.requests + 1  # cu_seqlens_q
        yield shape.requests  # seqused_k
        for width in self._widths:
            yield shape.requests * width  # block_table
            yield shape.tokens  # slot_mapping

    def size(self, shape: StepShape) -> int:
        """Length of the vector."""
        return sum(self._sizes(shape))

    def pack(
        self,
        shape: StepShape,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        groups: Sequence[Any],
        token_types: torch.Tensor | None = None,
        *,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vector of a batch, on the batch's device.

        Args:
          shape: a shape that the batch fits into.
          input_ids, positions: [t].
          groups: vLLM's CommonAttentionMetadata of each KV cache group.
          token_types: [t], if tokens have types; 0 by default.
          into: the vector of an earlier batch of that shape, whose memory it takes, whatever is in it; by default new memory.
        """
        if into is None:
            into = torch.empty(self.size(shape), dtype=torch.int32, device=input_ids.device)
        ids, places, types, starts, lengths, *rest = into.split(list(self._sizes(shape)))
        tokens, requests = groups[0].num_actual_tokens, groups[0].num_reqs
        padded = tokens < shape.tokens or requests < shape.requests
        if padded:  # each line launches a kernel, so what a batch fills is not cleared before
            into.zero_()
            starts[requests + 1 :] = tokens
        ids[:tokens] = input_ids[:tokens]
        places[:tokens] = positions[:tokens]
        if token_types is not None:
            types[:tokens] = token_types[:tokens]
        elif self._typed and not padded:
            types.zero_()
        starts[: requests + 1] = groups[0].query_start_loc[: requests + 1]
        lengths[:requests] = groups[0].seq_lens[:requests]
        for i, (group, width) in enumerate(zip(groups, self._widths, strict=True)):
            table, slots = rest[2 * i : 2 * i + 2]
            table.view(shape.requests, width)[:requests] = group.block_table_tensor[:requests]
            slots[:tokens] = group.slot_mapping[:tokens]
            if padded:
                slots[tokens:] = -1
        return into

    def padding(self, shape: StepShape, device: torch.device) -> torch.Tensor:
        """The vector of a step without tokens, which writes nothing."""
        vector = torch.zeros(self.size(shape), dtype=torch.int32, device=device)
        for slots in vector.split(list(self._sizes(shape)))[6::2]:
            slots.fill_(-1)
        return vector

    def unpack(self, shape: StepShape, vector: jax.Array) -> Step:
        """Takes a vector apart, within a program."""
        parts, start = [], 0
        for size in self._sizes(shape):
            parts.append(jax.lax.slice(vector, (start,), (start + size,)))
            start += size
        ids, places, types, starts, lengths, *rest = parts
        groups = [
            Group(starts, lengths, table.reshape(shape.requests, width), slots)
            for table, slots, width in zip(rest[::2], rest[1::2], self._widths, strict=True)
        ]
        return Step(ids, places, types, groups)


def takes_token_types(model: torch.nn.Module) -> bool:
    """Whether a model of vLLM's has a place for types of tokens.

    It names them, or it hands what it does not name to a model of transformers' that has embeddings of several. Others that
    name types there embed them as words (GPT-2): the zeros that a program is given would not be the same as none.
    """
    own = inspect.signature(model.forward).parameters
    if "token_type_ids" in own:
        return True
    inside = getattr(model, "model", None)
    if (getattr(getattr(inside, "config", None), "type_vocab_size", None) or 0) < 2:
        return False
    hands_on = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in own.values())
    return hands_on and "token_type_ids" in inspect.signature(inside.forward).parameters


def buckets(smallest: int, largest: int) -> list[int]:
    """Sizes to compile for: powers of two, and the largest itself."""
    sizes, size = [], smallest
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest]


def bucket(sizes: Sequence[int], n: int) -> int:
    """The smallest of `sizes` (ascending) that n fits into."""
    for size in sizes:
        if n <= size:
            return size
    raise ValueError(f"a batch of {n} rows, expected at most {sizes[-1]}")


def bucket_sizes(config: VllmConfig, option: str, smallest: int, largest: int) -> list[int]:
    """Sizes to compile for: the user's, or powers of two; the largest is always there."""
    given = settings.additional(config).get(option)
    if given is None:
        return buckets(min(smallest, largest), largest)
    if beyond := sorted({n for n in given if n > largest}):
        logger.warning_once(
            "intarsia-vllm: additional_config: %s: %s left out, as no step has more than %d",
            option,
            ", ".join(map(str, beyond)),
            largest,
        )
    return sorted({n for n in given if n < largest} | {largest})
