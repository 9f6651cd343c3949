"""XLA programs compiled ahead: what each calls of ours, and that none is compiled once serving has begun."""

import os
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import jax
import torch
from vllm import envs
from vllm.logger import init_logger

from intarsia import _steps
from intarsia.vllm import metrics
from intarsia.vllm.parallel import Ranks, rest

logger = init_logger("vllm.intarsia.programs")  # vLLM shows only loggers below its own

_LARGEST_TO_WARM_UP = 256
"""Tokens of the largest program that is run before it is needed, on a CPU."""

_PREPARATION = "preparation"

_compilations = 0


def _count(event: str, duration: float, **_: Any) -> None:
    global _compilations
    _compilations += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count)


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, where JAX has not been told already."""
    if jax.config.jax_compilation_cache_dir is None:
        folder = os.path.join(envs.VLLM_CACHE_ROOT, "intarsia", "xla")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def warm_up_runs(tokens: int) -> int:
    """As often as any step has to run, but for large ones on a CPU: their first run is hardly slower than the next."""
    on_cpu = jax.devices()[0].platform == "cpu"
    return 0 if on_cpu and tokens > _LARGEST_TO_WARM_UP else _steps.warm_up_runs()


def type_of(array: jax.Array) -> jax.ShapeDtypeStruct:
    """What a program that is given the array may rely on."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def check_types(
    names: Iterable[str], arrays: Sequence[jax.Array], before: Sequence[jax.Array]
) -> None:
    """Raises RuntimeError if a weight is of another shape or dtype than the one that programs were compiled for."""
    for name, new, old in zip(names, arrays, before, strict=True):
        got, expected = (f"{x.dtype} {[*x.shape]}" for x in (new, old))
        if got != expected:
            raise RuntimeError(f"XlaModel: {name} has become {got}, expected {expected}")


class Programs:
    """The programs of one runner.

    Attributes:
      custom_calls: a count of each of our ops, by what the program is for.
      late: what was compiled after `seal`: nothing, or a bucket is missing.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        # One at a time: XLA times kernels on the GPU while it compiles. CUDA's current device, which differs between replicas, is
        # a thread's own.
        device = (torch.cuda.current_device(),) if torch.cuda.is_initialized() else ()
        set_device = torch.cuda.set_device if device else None
        self._thread = ThreadPoolExecutor(1, "compile", set_device, device)
        self._programs: dict[Hashable, Future[Any]] = {}  # and under _PREPARATION what comes before
        self._sealed_at: int | None = None
        self.custom_calls: dict[str, dict[str, int]] = {}
        self.late: list[str] = []

    def get(
        self, key: Hashable, function: Callable[..., Any], *args: Any, **options: Any
    ) -> jax.stages.Compiled:
        """The program of that key, which is begun if it is not there; the arguments are those of `begin`."""
        program = self.begin(key, function, *args, **options)
        try:
            return program.result()
        except CancelledError:
            # Another one failed. Its error comes once all that waits is cancelled.
            for other in [*self._programs.values()]:
                if not other.cancelled():
                    other.result()
            raise

    def begin(
        self,
        key: Hashable,
        function: Callable[..., Any],
        *args: Any,
        donate: tuple[int, ...] = (),
        tokens: int = 1,
        warm_up: Callable[[jax.stages.Compiled], Any] = lambda program: None,
    ) -> Future[jax.stages.Compiled]:
        """Lets XLA compile what `get` is going to be asked for, while the caller traces the next program.

        Args:
          function, args: as in `memory_of`; the program is for the types of these arguments.
          tokens: of a step that it is.
          warm_up: is called with the program, in the thread that compiles, before that takes the next.
        """
        if (begun := self._programs.get(key)) is not None:
            return begun
        try:
            lowered = self._lower(function, args, donate)
            self._raise_failure()
        except BaseException:
            self._cancel()
            raise
        return self._submit(key, self._compile, str(key), lowered, tokens, warm_up)

    def prepare(self, work: Callable[[], None]) -> None:
        """Lets the thread that compiles do this before the programs that begin from now on. `await_all` waits for it."""
        self._submit(_PREPARATION, work)

    def _submit(self, key: Hashable, work: Callable[..., Any], *args: Any) -> Future[Any]:
        def in_turn() -> Any:
            try:
                return work(*args)
            except BaseException:
                self._cancel()  # here, before this thread takes the next
                raise

        program = self._programs[key] = self._thread.submit(in_turn)
        return program

    def await_all(self) -> None:
        """Waits for what has begun, on every rank: one that reads programs from disk would wait in a step for those that compile."""
        try:
            for program in [*self._programs.values()]:
                program.result()
        except BaseException:  # Ctrl-C, too
            self._cancel()
            raise
        self._ranks.meet()

    def _raise_failure(self) -> None:
        """Raises the error of a program that could not be compiled, or of what comes before."""
        for program in [*self._programs.values()]:
            if program.done() and not program.cancelled():
                program.result()

    def _cancel(self) -> None:
        """Has none compiled that waits: a process ends, and tells why, when its threads have nothing more to do."""
        for key, program in [*self._programs.items()]:
            if program.cancel():
                self._programs.pop(key, None)  # both threads may come here

    def memory_of(
        self,
        function: Callable[..., Any],
        *args: Any,
        donate: tuple[int, ...] = (),
        tokens: int = 1,
    ) -> Any:
        """XLA's memory analysis of a program that is not to run.

        Args:
          function, args: a function of a rank's arrays; `args` are arrays, or their types, over all ranks.
          tokens: of a step that it is.
        """
        lowered = self._lower(function, args, donate)
        return _steps.compile_step(lowered, tokens, to_run=False).memory_analysis()

    def _lower(
        self, function: Callable[..., Any], args: tuple[Any, ...], donate: tuple[int, ...]
    ) -> jax.stages.Lowered:
        rest()  # large programs take longer to compile than any step may take to run
        spread = self._ranks.spread(function, *args)
        lowered = jax.jit(spread, donate_argnums=donate).lower(*args)
        if self._ranks.size > 1:
            self._ranks.agree(lowered.as_text())
        return lowered

    def seal(self) -> None:
        """Says that from now on nothing should be compiled."""
        self._sealed_at = _compilations

    @property
    def compiled_since_seal(self) -> int:
        """How many programs XLA has compiled in this process since `seal`, ours or not."""
        return 0 if self._sealed_at is None else _compilations - self._sealed_at

    def _compile(
        self,
        name: str,
        lowered: jax.stages.Lowered,
        tokens: int,
        warm_up: Callable[[jax.stages.Compiled], Any],
    ) -> jax.stages.Compiled:
        start = time.perf_counter()
        compiled = _steps.compile_step(lowered, tokens)
        seconds = time.perf_counter() - start
        warm_up(compiled)
        text = compiled.as_text()
        self.custom_calls[name] = _steps.custom_calls(text)
        described = ", ".join(f"{n} {op}" for op, n in self.custom_calls[name].items())
        aliased = text.split("\n", 1)[0].count("-alias")
        logger.info(
            "XLA program: %s: compiled in %.1f s; custom calls: %s; written in place: %d arrays",
            name,
            seconds,
            described or "none",
            aliased,
        )
        late = self._sealed_at is not None
        if late:
            self.late.append(name)
            logger.warning("XLA program: %s was compiled while serving", name)
        metrics.tell(late)
        return compiled
