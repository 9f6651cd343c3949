"""How far this process is, which the others hear for the case that it gets no further."""

import contextlib
import time

import jax

from intarsia.processes.peers import Peers


class Progress:
    """What this process does, and since when."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._moved: float | None = time.monotonic()
        self._at = self._told = ""

    def mark(self, text: str) -> None:
        """Says what it does from now on."""
        self._at = text
        self.move()

    def move(self) -> None:
        """Says that it got further."""
        self._moved = time.monotonic()

    def wait(self) -> None:
        """Says that it waits for another one, which has a limit of its own, or for work."""
        self._moved = None

    def stalls(self, seconds: float) -> bool:
        """Whether it got no further for so long."""
        moved = self._moved
        return moved is not None and time.monotonic() - moved > seconds

    def tell(self) -> None:
        """Tells the others what it does, if they do not know."""
        text = self._at
        if text != self._told:
            self._peers.put("stage", text)
            self._told = text

    def of_all(self) -> str:
        """What each process does, as far as it is known."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            stages = sorted(self._peers.values("stage").items())
            return ", ".join(f"{self._peers.names[i]} is at {text!r}" for i, text in stages)
        return "the coordinator is gone"
