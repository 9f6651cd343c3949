"""Which tokens of which requests go into the next step: the host's side of batched generation."""

import collections
import dataclasses
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from intarsia.models.config import ModelConfig
from intarsia.models.sampling import SamplingParams, SamplingState
from intarsia.models.transformer import Batch

PAGE_SIZE = 16
NOT_FINITE = "engine: logits are not finite, expected numbers: weights are broken, or leave the dtype's range"


class Output(NamedTuple):
    """One token of one request; `finish_reason` comes with the last: "stop" or "length"."""

    index: int
    token: int
    finish_reason: str | None


class Rows(NamedTuple):
    """What stays fixed while a request occupies a row of the batch; arrays of b rows."""

    block_table: np.ndarray  # Pages, [b, m].
    limit: np.ndarray  # Most tokens to generate, [b].
    stop_ids: np.ndarray  # Tokens that end the completion, [b, e]; -1 where unused.
    # cu_seqlens_q of a step with one token a row: [b + 1]. Made in the step, XLA makes it once a layer.
    row_starts: np.ndarray
    sampling: SamplingState


class Chunk(NamedTuple):
    """One prefill step's share of the prompts."""

    batch: Batch
    last_row: np.ndarray  # Row of each sequence's last token in this step, [b].
    completes: np.ndarray  # Whether the step reaches the end of the prompt, [b].


@dataclasses.dataclass(eq=False)
class Request:
    """One prompt on its way through the engine."""

    index: int
    prompt: np.ndarray
    params: SamplingParams
    limit: int  # Most tokens to generate.
    stop_ids: tuple[int, ...]
    pages: list[int] = dataclasses.field(default_factory=list)
    prefilled: int = 0  # Prompt tokens whose step has been dispatched.
    dispatched: int = 0  # Generated tokens whose step has been dispatched.
    received: int = 0  # Generated tokens that the host has read.
    finished: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Whether its random choices, if any, are fixed."""
        return self.params.temperature == 0 or self.params.seed is not None

    @property
    def num_pages(self) -> int:
        """Pages for the whole request; its last token is never fed, so it needs no slot."""
        return -(-(len(self.prompt) + self.limit - 1) // PAGE_SIZE)


class PageAllocator:
    """The pages of a cache that nobody uses."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(reversed(range(num_pages)))

    @property
    def num_free(self) -> int:
        """How many pages can be allocated now."""
        return len(self._free)

    def check_capacity(self, request: Request) -> None:
        """Raises MemoryError if a request would not fit into the empty cache."""
        self._check(request, self.num_pages)

    def allocate(self, request: Request) -> None:
        """Gives a request its pages; raises MemoryError if they are not free."""
        self._check(request, self.num_free)
        request.pages = [self._free.pop() for _ in range(request.num_pages)]

    def release(self, request: Request) -> None:
        """Takes a request's pages back."""
        self._free.extend(reversed(request.pages))
        request.pages = []

    def _check(self, request: Request, available: int) -> None:
        if request.num_pages > available:
            raise MemoryError(
                f"KV cache: prompt {request.index} with {len(request.prompt)} tokens and up to "
                f"{request.limit} new ones needs {request.num_pages} pages of {PAGE_SIZE} slots, "
                f"got {available} of {self.num_pages}; raise num_pages or lower max_tokens"
            )


class Schedule:
    """Assigns requests to the rows of the batch and decides what each step computes.

    A request gets the pages for its prompt and all its new tokens together with its row. So a running
    request is never preempted, and requests that do not fit wait until others end.

    Args:
        requests: The requests in order of arrival.
        allocator: Where pages come from.
        max_num_seqs: Rows b of the batch.
        pages_per_seq: Columns m of the block table.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        allocator: PageAllocator,
        max_num_seqs: int,
        pages_per_seq: int,
    ) -> None:
        self._waiting = collections.deque(requests)
        self._allocator = allocator
        self._running: list[Request | None] = [None] * max_num_seqs
        num_stop_ids = max((len(request.stop_ids) for request in self._waiting), default=0)
        b = max_num_seqs
        self.rows = Rows(
            block_table=np.zeros((b, pages_per_seq), np.int32),
            limit=np.zeros(b, np.int32),
            stop_ids=np.full((b, max(num_stop_ids, 1)), -1, np.int32),
            row_starts=np.arange(b + 1, dtype=np.int32),
            sampling=SamplingState(
                temperature=np.zeros(b, np.float32),
                top_k=np.zeros(b, np.int32),
                top_p=np.ones(b, np.float32),
                seed=np.zeros(b, np.uint32),
            ),
        )

    def admit(self) -> bool:
        """Moves waiting requests into free rows; returns whether `rows` changed."""
        changed = False
        for row, running in enumerate(self._running):
            if running is not None or not self._waiting:
                continue
            request = self._waiting[0]
            if request.num_pages > self._allocator.num_free and any(self._running):
                break
            self._allocator.allocate(request)
            self._running[row] = self._waiting.popleft()
            self._fill_row(row, request)
            changed = True
        return changed

    def next_chunk(self, num_tokens: int) -> Chunk | None:
        """Takes up to `num_tokens` prompt tokens; None if there are none left to take."""
        chunk = self.empty_chunk(num_tokens)
        batch, end = chunk.batch, 0
        for row, request in enumerate(self._running):
            if request:
                take = min(len(request.prompt) - request.prefilled, num_tokens - end)
                self._fill_chunk(chunk, row, request, end, take)
                end += take
            batch.cu_seqlens_q[row + 1] = end
        chunk.last_row[:] = np.maximum(batch.cu_seqlens_q[1:] - 1, 0)
        return chunk if end else None

    def continued(self, chunk: Chunk) -> list[tuple[Request, slice, slice]]:
        """Says which rows of a chunk have another token after them, and which places those have.

        Returns:
            For each request in the chunk: the request, its rows that are not the end of its prompt,
            and their places in the prompt.
        """
        found = []
        cu_seqlens = chunk.batch.cu_seqlens_q.tolist()
        for request, begin, end in zip(self._running, cu_seqlens, cu_seqlens[1:], strict=False):
            if begin < end:
                place = int(chunk.batch.positions[begin])
                count = min(end - begin, len(request.prompt) - 1 - place)
                found.append((request, slice(begin, begin + count), slice(place, place + count)))
        return found

    def empty_chunk(self, num_tokens: int) -> Chunk:
        """Returns a chunk of nothing but padding."""
        b, t = len(self._running), num_tokens
        batch = Batch(
            tokens=np.zeros(t, np.int32),
            positions=np.zeros(t, np.int32),
            slots=np.full(t, -1, np.int32),
            cu_seqlens_q=np.zeros(b + 1, np.int32),
            seqused_k=np.zeros(b, np.int32),
            block_table=self.rows.block_table.copy(),
        )
        return Chunk(batch, last_row=np.zeros(b, np.int32), completes=np.zeros(b, np.bool_))

    def dispatch(self, rows: Iterable[int]) -> list[tuple[int, Request]]:
        """Notes that the next token of `rows` is being computed; returns who is to get it."""
        receivers = [(row, self._running[row]) for row in rows]
        for _, request in receivers:
            request.dispatched += 1
        return receivers

    def decode_rows(self) -> list[int]:
        """Rows that may still need a token that no dispatched step computes."""
        return [
            row
            for row, request in enumerate(self._running)
            if request and 0 < request.dispatched < request.limit
        ]

    def receive(self, row: int, request: Request, token: int) -> Output:
        """Books a computed token, and frees the row if it is the request's last."""
        if token < 0:
            raise ValueError(NOT_FINITE)
        request.received += 1
        reason = None
        if token in request.stop_ids:
            reason = "stop"
        elif request.received == request.limit:
            reason = "length"
        if reason:
            self.release(row)
        return Output(request.index, token, reason)

    def release(self, row: int) -> None:
        """Frees the row and the pages of a request that is through."""
        request = self._running[row]
        request.finished = True
        self._running[row] = None
        self._allocator.release(request)

    def close(self) -> None:
        """Releases what unfinished requests hold."""
        for request in filter(None, self._running):
            self._allocator.release(request)

    def _fill_chunk(self, chunk: Chunk, row: int, request: Request, begin: int, take: int) -> None:
        """Puts the next `take` tokens of a prompt into the chunk's rows from `begin` on."""
        if not take:
            return
        batch, here = chunk.batch, slice(begin, begin + take)
        place = np.arange(request.prefilled, request.prefilled + take)
        batch.tokens[here] = request.prompt[place]
        batch.positions[here] = place
        pages = self.rows.block_table[row, place // PAGE_SIZE]
        batch.slots[here] = pages * PAGE_SIZE + place % PAGE_SIZE
        request.prefilled += take
        batch.seqused_k[row] = request.prefilled
        chunk.completes[row] = request.prefilled == len(request.prompt)

    def _fill_row(self, row: int, request: Request) -> None:
        rows, params = self.rows, request.params
        rows.block_table[row] = 0
        rows.block_table[row, : len(request.pages)] = request.pages
        rows.limit[row] = request.limit
        rows.stop_ids[row] = -1
        rows.stop_ids[row, : len(request.stop_ids)] = request.stop_ids
        # What f32 and int32 have of them: next to nothing is not 0, which means something else.
        least = 1e-30  # logits divided by it are finite
        rows.sampling.temperature[row] = params.temperature and max(params.temperature, least)
        rows.sampling.top_k[row] = min(params.top_k, np.iinfo(np.int32).max)
        rows.sampling.top_p[row] = max(params.top_p, least)
        seed = secrets.randbits(32) if params.seed is None else params.seed
        rows.sampling.seed[row] = seed & 0xFFFFFFFF


def check_limits(
    config: ModelConfig,
    *,
    max_model_len: int,
    max_num_seqs: int = 1,
    num_pages: int | None = None,
    prefill_tokens: int = 1,
    decode_steps: int = 1,
) -> None:
    """Raises ValueError unless an `Engine` for a model can have these."""
    if not 2 <= max_model_len <= config.max_positions:
        raise ValueError(
            f"engine: max_model_len is {max_model_len}, expected 2 to {config.max_positions}, "
            "the model's own limit"
        )
    for name, value in (
        ("max_num_seqs", max_num_seqs),
        ("num_pages", 1 if num_pages is None else num_pages),
        ("prefill_tokens", prefill_tokens),
        ("decode_steps", decode_steps),
    ):
        if value < 1:
            raise ValueError(f"engine: {name} is {value}, expected 1 or more")


def check_prompt(index: int, prompt: Sequence[int], max_model_len: int) -> None:
    """Raises ValueError unless a prompt is a list that leaves room for a completion."""
    if np.ndim(prompt) != 1:
        raise ValueError(
            f"engine: prompt {index} has {np.ndim(prompt)} axes, expected 1, of tokens"
        )
    if not 0 < len(prompt) < max_model_len:
        raise ValueError(
            f"engine: prompt {index} has {len(prompt)} tokens, "
            f"expected 1 to {max_model_len - 1}: max_model_len is {max_model_len}, completion included"
        )


def check_tokens(index: int, prompt: Sequence[int], vocab: int) -> None:
    """Raises ValueError unless a prompt is of numbers of tokens that the model has."""
    tokens = np.asarray(prompt)
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"engine: prompt {index} is of {tokens.dtype}, expected integers")
    for token in (tokens.min(), tokens.max()):
        if not 0 <= token < vocab:
            raise ValueError(
                f"engine: prompt {index} has the token {token}, expected 0 to {vocab - 1}"
            )


def make_request(
    index: int,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    stop_ids: tuple[int, ...],
    max_model_len: int,
    vocab: int | None = None,
) -> Request:
    """Checks a prompt, its tokens if `vocab` is given, and bounds its completion by `max_model_len`."""
    check_prompt(index, prompt, max_model_len)
    if vocab is not None:
        check_tokens(index, prompt, vocab)
    return Request(
        index=index,
        prompt=np.asarray(prompt, np.int32),
        params=params,
        limit=min(params.max_tokens, max_model_len - len(prompt)),
        stop_ids=() if params.ignore_eos else stop_ids,
    )


def make_requests(
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams | Sequence[SamplingParams],
    **settings: Any,
) -> list[Request]:
    """Makes a request of each prompt; `sampling` is one for all or one for each, and `settings` are `make_request`'s."""
    if isinstance(sampling, SamplingParams):
        sampling = [sampling] * len(prompts)
    if len(sampling) != len(prompts):
        raise ValueError(
            f"engine: sampling has {len(sampling)} settings, expected 1 for each of {len(prompts)} prompts"
        )
    pairs = enumerate(zip(prompts, sampling, strict=True))
    return [make_request(index, prompt, params, **settings) for index, (prompt, params) in pairs]
