"""Batched generation with a paged KV cache: one program of a prefill step and one of decode steps.

The decode loop lives on the device: each step takes the tokens, lengths and end marks that the step
before it left there. The host dispatches programs and reads tokens one program behind. So the device
waits only where a program takes the host longer; then let one program make several steps
(`decode_steps`).
"""

import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

import intarsia.jax
from intarsia._steps import compile_step, custom_calls, warm_up_runs
from intarsia.models import transformer
from intarsia.models.config import ModelConfig
from intarsia.models.memory import allocating, give_back_freed
from intarsia.models.parallel import ModelParallel
from intarsia.models.sampling import Mode, SamplingParams
from intarsia.models.schedule import (
    NOT_FINITE,
    PAGE_SIZE,
    Output,
    PageAllocator,
    Request,
    Schedule,
    check_limits,
    make_requests,
)
from intarsia.models.steps import Caches, State, decode, prefill, score
from intarsia.models.weights import Params

_SMALLEST_CHUNK = 16
_DEFAULT_SAMPLING = SamplingParams()


@dataclasses.dataclass
class Completion:
    """A finished request: its tokens (the end token included) and why it ended."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None


@dataclasses.dataclass
class Stats:
    """Where the time of the last call went; compilation is in none of the other figures."""

    compile_seconds: float = 0.0
    time_to_first_token: float = 0.0
    prefill_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_seconds: float = 0.0
    decode_tokens: int = 0

    def add(self, prefill_tokens: int, new_tokens: int, seconds: float) -> None:
        """Books one program: of prefill if it took prompt tokens, else of decoding."""
        if prefill_tokens:
            self.prefill_tokens += prefill_tokens
            self.prefill_seconds += seconds
        else:
            self.decode_tokens += new_tokens
            self.decode_seconds += seconds


class _Program(NamedTuple):
    """A dispatched program whose tokens have not been read."""

    prefill_tokens: int  # 0 for decoding.
    receivers: list[list[tuple[int, Request]]]  # Of each of its steps.
    tokens: jax.Array  # [steps, b]


class Engine:
    """Generates from many prompts at once.

    Args:
        config: The model's hyperparameters.
        params: Its weights, as `load_model` returns them.
        ops: The kernels; `intarsia.jax` if None.
        max_num_seqs: Rows b of the batch; more prompts than that take turns.
        max_model_len: Longest prompt plus completion; the model's own limit if None.
        num_pages: Pages of the cache; enough for every row at its longest if None.
        prefill_tokens: Most prompt tokens in one step.
        decode_steps: Tokens for each row that a decoding program makes before the host gets them and
            new prompts their turn. More take less of the host's time and come in groups; after the last row's
            end, up to `decode_steps - 1` steps compute nothing.
        scan_layers: Run the layers under `lax.scan` with one stacked cache: compiles faster. On a GPU XLA copies all weights in each step then.
        tensor_parallel: Devices that the weights and KV heads are spread over; see `parallel.py`.
        expert_parallel: Devices that a mixture's experts are divided among; with `tensor_parallel`, the same ones.
        parallel: In the place of these two, what `load_model` spread the weights by. Where its devices are those
            of several processes, each of them makes the same calls and gets the same results.
        kv_cache_dtype: What keys and values are kept in, one of `KV_CACHE_DTYPES`; `auto` keeps
            them as they are.

    Attributes:
        stats: Timings of the last `generate` or `stream`.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        *,
        ops: ModuleType | None = None,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        num_pages: int | None = None,
        prefill_tokens: int = 512,
        decode_steps: int = 1,
        scan_layers: bool = False,
        tensor_parallel: int = 1,
        expert_parallel: int = 1,
        parallel: ModelParallel | None = None,
        kv_cache_dtype: str = "auto",
    ) -> None:
        self.stats = Stats()
        sizes = (tensor_parallel, expert_parallel)
        if parallel and sizes != (1, 1):
            raise ValueError("engine: parallel is given, expected no sizes beside it")
        if not parallel and sizes != (1, 1):
            parallel = ModelParallel(config, *sizes)
            params = parallel.place(params)
        self._parallel = parallel
        if parallel:
            config = parallel.config
            params = params | parallel.exchange(params["embed"].dtype)
        self._config = config
        self._ops = ops or intarsia.jax
        self._params = transformer.stack_layers(params) if scan_layers else params
        self._max_num_seqs = max_num_seqs
        self._max_model_len = config.max_positions if max_model_len is None else max_model_len
        check_limits(
            config,
            max_model_len=self._max_model_len,
            max_num_seqs=max_num_seqs,
            num_pages=num_pages,
            prefill_tokens=prefill_tokens,
            decode_steps=decode_steps,
        )
        self._prefill_tokens = prefill_tokens
        self._decode_steps = min(decode_steps, self._max_model_len)
        self._pages_per_seq = -(-self._max_model_len // PAGE_SIZE)
        most_pages = max_num_seqs * self._pages_per_seq
        self._allocator = PageAllocator(most_pages if num_pages is None else num_pages)
        self._caches: Caches = transformer.make_caches(
            config,
            self._allocator.num_pages,
            PAGE_SIZE,
            transformer.cache_dtype(kv_cache_dtype, params["embed"].dtype),
            stacked=scan_layers,
            parallel=self._parallel,
        )
        with allocating(f"rope tables of {self._max_model_len} positions"):
            tables = tuple(map(jnp.asarray, config.rope_tables(self._max_model_len)))
        rope_tables = self._on_all_devices(tables)
        # A call looks through a flat list of operands in half of the time that a tree takes.
        self._constants, self._tree = jax.tree.flatten((self._params, rope_tables))
        self._executables: dict[tuple[Any, ...], jax.stages.Compiled] = {}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] = _DEFAULT_SAMPLING,
    ) -> list[Completion]:
        """Generates completions of tokenized prompts; `sampling` is one for all or one for each."""
        completions = [Completion() for _ in prompts]
        for output in self.stream(prompts, sampling):
            completions[output.index].tokens.append(output.token)
            completions[output.index].finish_reason = output.finish_reason
        return completions

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] = _DEFAULT_SAMPLING,
    ) -> Iterator[Output]:
        """Yields the tokens of `generate` as they are made, interleaved over the prompts.

        Raises:
            ValueError: A prompt is empty, does not fit into `max_model_len`, or has a token that the model lacks; or logits are NaN.
            MemoryError: A request needs more pages than the cache has.
        """
        requests = self._make_requests(prompts, sampling)
        self.stats = Stats()
        with self._schedule(requests) as schedule:
            if requests:
                yield from self._run(schedule, requests)

    def prompt_logprobs(
        self, prompts: Sequence[Sequence[int]], progress: Callable[[], None] = lambda: None
    ) -> list[np.ndarray]:
        """Returns the log-probability of each token of each prompt but its first.

        The prompts go through prefill and the paged cache in chunks, as they do to be continued, so this measures what
        that costs in accuracy: of the cache's dtype, say. `progress` is called after each chunk. Raises as `stream` does.
        """
        requests = self._make_requests(prompts, SamplingParams(temperature=0.0, max_tokens=1))
        logprobs = [np.zeros(len(prompt) - 1, np.float32) for prompt in prompts]
        chunk_size = self._chunk_size(sum(map(len, prompts)))
        with self._schedule(requests) as schedule:
            while True:
                schedule.admit()
                chunk = schedule.next_chunk(chunk_size)
                if chunk is None:
                    return logprobs
                continued = schedule.continued(chunk)
                targets = np.zeros_like(chunk.batch.tokens)
                for request, rows, place in continued:
                    targets[rows] = request.prompt[1:][place]
                executable = self._compile(score, chunk_size, (), (chunk.batch, targets))
                operands = (self._caches, chunk.batch, targets)
                self._caches, values = executable(*operands, *self._constants)
                for request, rows, place in continued:
                    logprobs[request.index][place] = np.asarray(values)[rows]
                for row in np.flatnonzero(chunk.completes).tolist():
                    schedule.release(row)
                progress()

    def _on_all_devices(self, arrays: Any) -> Any:
        return self._parallel.copy(arrays) if self._parallel else arrays

    def _make_requests(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
    ) -> list[Request]:
        """Turns prompts into requests that fit into the model and into the empty cache."""
        requests = make_requests(
            prompts,
            sampling,
            stop_ids=self._config.eos_ids,
            max_model_len=self._max_model_len,
            vocab=self._config.vocab,
        )
        for request in requests:
            self._allocator.check_capacity(request)
            if self._parallel and self._parallel.spans_processes and not request.is_repeatable:
                raise ValueError(
                    f"prompt {request.index}: seed is None, expected the same number in each process"
                )
        return requests

    def _schedule(self, requests: list[Request]) -> contextlib.closing[Schedule]:
        return contextlib.closing(
            Schedule(requests, self._allocator, self._max_num_seqs, self._pages_per_seq)
        )

    def custom_calls(self) -> dict[str, dict[str, int]]:
        """Counts the library's calls in the compiled steps: `{"decode": {"rms_norm": 1}, ...}`."""
        return {
            kind: custom_calls(cast(str, executable.as_text()))
            for (kind, *_), executable in self._executables.items()
        }

    def _run(self, schedule: Schedule, requests: list[Request]) -> Iterator[Output]:
        """Keeps one program in flight while reading the tokens of the one before."""
        mode = max(request.params.mode for request in requests)
        num_tokens = sum(len(request.prompt) for request in requests)
        loop = _DeviceLoop(self, schedule, mode, self._chunk_size(num_tokens))
        in_flight: collections.deque[_Program] = collections.deque()
        begin = last = time.perf_counter()
        while True:
            if program := loop.dispatch():
                in_flight.append(program)
            elif not in_flight:
                return
            if program and len(in_flight) == 1:
                continue
            prefill_tokens, receivers, tokens = in_flight.popleft()
            values, now = np.asarray(tokens), time.perf_counter()
            outputs = [
                schedule.receive(row, request, int(of_step[row]))
                for of_step, rows in zip(values, receivers, strict=True)
                for row, request in rows
                if not request.finished
            ]
            self.stats.add(prefill_tokens, len(outputs), now - last)
            if outputs and not self.stats.time_to_first_token:
                self.stats.time_to_first_token = now - begin
            last = now
            yield from outputs

    def _compile(
        self,
        step: Callable[..., Any],
        tokens: int,
        statics: tuple[Any, ...],
        operands: tuple[Any, ...],
        donated: tuple[int, ...] = (0,),
        warm_up: Callable[[jax.stages.Compiled], None] = lambda _: None,
    ) -> jax.stages.Compiled:
        """Compiles a step of so many tokens ahead of time, once for each shape of its operands."""
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(operands))
        key = (step.__name__, *statics, shapes)
        if key not in self._executables:
            run: Callable[..., Any] = functools.partial(step, self._ops, self._config, *statics)
            if self._parallel:
                run = self._parallel.spread(run, self._params, self._caches)

            def flat(caches: Caches, *rest: Any) -> Any:
                params, tables = jax.tree.unflatten(self._tree, rest[len(operands) :])
                return run(params, caches, tables, *rest[: len(operands)])

            jitted = jax.jit(flat, donate_argnums=donated)
            lowered = jitted.lower(self._caches, *operands, *self._constants)
            self._executables[key] = compile_step(lowered, tokens)
            give_back_freed()
            warm_up(self._executables[key])
        return self._executables[key]

    def _chunk_size(self, num_tokens: int) -> int:
        """Rounds up to a power of two within bounds, so that few sizes are ever compiled."""
        return min(max(_SMALLEST_CHUNK, 1 << (num_tokens - 1).bit_length()), self._prefill_tokens)


def perplexity(logprobs: Sequence[np.ndarray]) -> float:
    """The perplexity that the log-probabilities of texts' tokens come to (`prompt_logprobs`)."""
    mean = np.concatenate(logprobs).mean(dtype=np.float64)
    if not np.isfinite(mean):
        raise ValueError(NOT_FINITE)
    return float(np.exp(-mean))


class _DeviceLoop:
    """Dispatches the steps of one `Engine.stream` call and holds what only that call needs."""

    def __init__(self, engine: Engine, schedule: Schedule, mode: Mode, chunk_size: int) -> None:
        b = engine._max_num_seqs
        self._engine = engine
        self._schedule = schedule
        self._chunk_size = chunk_size
        self._rows = self._copy_of(schedule.rows)
        self._state = self._copy_of(
            State(
                token=np.zeros(b, np.int32),
                length=np.zeros(b, np.int32),
                generated=np.zeros(b, np.int32),
                active=np.zeros(b, np.bool_),
            )
        )
        # Warm-up runs are made here, on nothing but padding, and their time counted as compilation.
        begin = time.perf_counter()
        padding = schedule.empty_chunk(chunk_size)
        self._prefill = self._ready(prefill, chunk_size, (mode,), padding)
        self._decode = self._ready(decode, b, (mode, engine._decode_steps))
        engine.stats.compile_seconds = time.perf_counter() - begin

    def _copy_of(self, arrays: Any) -> Any:
        # jax may go on reading the memory of a NumPy array that it was given.
        copies = jax.tree.map(lambda array: jnp.array(array, copy=True), arrays)
        return self._engine._on_all_devices(copies)

    def dispatch(self) -> _Program | None:
        """Starts the next program: of the prompts if any is unfinished, else more tokens for all."""
        schedule = self._schedule
        if schedule.admit():
            self._rows = self._copy_of(schedule.rows)
        if chunk := schedule.next_chunk(self._chunk_size):
            self._launch(self._prefill, chunk)
            completed = schedule.dispatch(np.flatnonzero(chunk.completes).tolist())
            return _Program(int(chunk.batch.cu_seqlens_q[-1]), [completed], self._tokens)
        if schedule.decode_rows():
            self._launch(self._decode)
            steps = range(self._engine._decode_steps)
            receivers = [schedule.dispatch(schedule.decode_rows()) for _ in steps]
            return _Program(0, receivers, self._tokens)
        return None

    def _ready(
        self, step: Callable[..., Any], tokens: int, statics: tuple[Any, ...], *operands: Any
    ) -> Callable[..., Any]:
        """Compiles a step and runs it often enough to be at its speed, unless that was done."""

        def warm_up(executable: Callable[..., Any]) -> None:
            for _ in range(warm_up_runs()):
                self._launch(executable, *operands)
            jax.block_until_ready(self._state)

        all_operands = (self._state, self._rows, *operands)
        # The state is donated so that it stays where it is: a recorded graph whose buffers move has
        # to be mended before each launch.
        return self._engine._compile(step, tokens, statics, all_operands, (0, 1), warm_up)

    def _launch(self, step: Callable[..., Any], *operands: Any) -> None:
        engine = self._engine
        engine._caches, (self._state, self._tokens) = step(
            engine._caches, self._state, self._rows, *operands, *engine._constants
        )
