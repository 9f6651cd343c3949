"""How a process ends: with the others, by itself, or because another one failed or died.

An end that is none with the others has one line, which says why (none where all are stopped), and `os._exit`: JAX's and gloo's
threads would not end otherwise.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

import jax

from intarsia.processes.peers import PREFIX, Peers
from intarsia.processes.place import Limits
from intarsia.processes.progress import Progress

# How long ends take, which those who wait for them must allow for:
# - an end with a line (`Endings._end`): up to FAREWELL + PARTING, 5.5 s. An engine of vLLM's gives its ranks 10 s for that
#   (intarsia/vllm/replicas.py, `_SECONDS_TO_END`).
# - `Endings.leave`: its own seconds, up to 2 PARTING, and up to POLL for its threads. vLLM kills a worker after 5 s, so its
#   ranks take 2 s (intarsia/vllm/parallel.py, `_FAREWELL_SECONDS`).
FAREWELL_SECONDS = 5  # for the others to hear of this end
_POLL_SECONDS = 1.0
_PARTING_SECONDS = 0.5  # for the others to go before process 0
_FAILED = f"{PREFIX}failed"  # a key: who failed first, and why; or who stopped all, and nothing
# In XLA's errors of collectives and of the coordinator's clients, which name no process.
_OF_PEERS = ("Gloo", "NCCL", "UNAVAILABLE", "CANCELLED", "ABORTED")


class Endings:
    """Watches over the processes, and ends this one."""

    def __init__(
        self, peers: Peers, progress: Progress, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self._peers, self._client, self._progress = peers, peers.client, progress
        self._limits, self._say = limits, say
        self._over, self._ending = threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._watch_words, self._watch_lives)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Ends this process's part, after all have met at the end."""
        self._over.set()
        self._peers.put("done", "")  # a slower one need not miss it
        if self._peers.index == 0:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the work is done
                self._wait_for_goodbyes()
        jax.distributed.shutdown()
        self._join(FAREWELL_SECONDS)

    def _wait_for_goodbyes(self) -> None:
        """Waits for the others to leave the coordinator: JAX aborts who finds it gone, even on the way out."""
        deadline = time.monotonic() + self._limits.heartbeat
        while time.monotonic() < deadline and len(self._peers.live()) > 1:
            time.sleep(0.05)

    def leave(self, seconds: float) -> None:
        """Ends this process's part, whether or not the others end theirs, of which it tells them."""
        self._over.set()
        try:
            self._client.wait_at_barrier(f"{PREFIX}leave", int(seconds * 1000))
        except jax.errors.JaxRuntimeError:  # some go on, or have died
            with contextlib.suppress(Exception):
                self._client.key_value_set(_FAILED, f"{self._peers.index} was told to end")
                time.sleep(_PARTING_SECONDS)
        self._stay_behind()
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.distributed.shutdown()
        self._join(_POLL_SECONDS)

    def _join(self, seconds: float) -> None:
        """Waits for the threads: one that comes back from jaxlib while Python ends aborts the process (CPython issue 87135)."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def stop(self) -> None:
        """Ends this process and the others, with status 0 and no line."""
        self._end("", 0, tell=True)

    def fail(self, error: BaseException, status: int) -> None:
        """Ends this process with a line about an error, and the others with one about this process."""
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            text = "interrupted"
        elif isinstance(error, jax.errors.JaxRuntimeError) and any(x in text for x in _OF_PEERS):
            # Most likely another one died, and whoever watches lives will end this one with its number.
            time.sleep(self._limits.heartbeat + FAREWELL_SECONDS)
        self._end(text, status, tell=True)

    def _end(
        self, text: str, status: int, *, tell: bool = False, alive: Sequence[int] | None = None
    ) -> None:
        """Prints a line, if there is one, and ends the process, after those who are alive have had time to hear of it."""
        if not self._ending.acquire(blocking=False):
            time.sleep(2 * FAREWELL_SECONDS)  # another thread does it
        if text:
            self._say(f"{self._peers.name}: {text}")
        with contextlib.suppress(Exception):  # another one was first
            if tell:
                self._client.key_value_set(_FAILED, f"{self._peers.index} {text}")
        with contextlib.suppress(Exception):
            # Process 0 has the store that the others read the line from.
            self._client.wait_at_barrier(_FAILED, FAREWELL_SECONDS * 1000, process_ids=alive)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self._stay_behind()
        os._exit(status)

    def _stay_behind(self) -> None:
        """Lets the others go first: JAX aborts whom the coordinator, in process 0, leaves behind."""
        if self._peers.index == 0:
            time.sleep(_PARTING_SECONDS)

    def _watch_words(self) -> None:
        """Ends this process when another one says that it failed, or when this one gets no further."""
        while not self._over.is_set():
            try:
                said = self._client.blocking_key_value_get(_FAILED, int(_POLL_SECONDS * 1000))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    self._over.wait(_POLL_SECONDS)  # JAX ends a process whose coordinator is gone
            else:
                index, _, text = said.partition(" ")
                if int(index) != self._peers.index:
                    line = f"ended, since {self._peers.names[int(index)]} failed: {text}"
                    self._end(line if text else "", 1 if text else 0)  # or it has stopped all
                return
            limit = self._limits.stall
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._progress.tell()
                if apart := self._progress.apart(limit):
                    text = f"no progress for {limit} s: processes wait for each other; {apart}"
                    self._end(text, 1, tell=True)
            if self._progress.stalls(limit):
                self._end(f"no progress for {limit} s; {self._progress.of_all()}", 1, tell=True)

    def _watch_lives(self) -> None:
        """Ends this process when the coordinator has missed another one's heartbeats."""
        while True:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._miss(self._peers.live())
            if self._over.wait(_POLL_SECONDS):
                return

    def _miss(self, alive: Sequence[int]) -> None:
        """Ends this process if one is gone that should be there."""
        gone = [index for index in self._peers.everyone if index not in alive]
        if gone and not self._over.wait(_POLL_SECONDS) and (dead := self._not_done(gone)):
            called, limit = self._peers.called(dead), self._limits.heartbeat
            self._end(f"ended, since {called} sent no heartbeat for {limit} s", 1, alive=alive)

    def _not_done(self, gone: Sequence[int]) -> Sequence[int]:
        """Those that did not leave after all had met at the end; this one's main thread may lag behind them."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            done = self._peers.values("done")
            return [index for index in gone if index not in done]
        return gone
