"""How far this process is, which the others hear for the case that it gets no further."""

import contextlib
import json
import threading
import time

import jax

from intarsia.processes.peers import Peers


class Progress:
    """What this process does, and since when."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._moved: float | None = time.monotonic()
        self._at = self._meeting = self._told = ""
        self._telling = threading.Lock()  # or the store might keep the older of two texts
        self._meetings: dict[int, str] = {}  # where those wait that do, when last asked
        self._apart_since = time.monotonic()

    def mark(self, text: str) -> None:
        """Says what it does from now on."""
        self._at = text
        self.move()

    def move(self) -> None:
        """Says that it got further."""
        self._meeting = ""
        self._moved = time.monotonic()

    def wait(self) -> None:
        """Says that it waits for another one, which has a limit of its own, or for work."""
        self._moved = None

    def meet(self, text: str, meeting: str) -> None:
        """Says that it waits for all the others, at a meeting of this name."""
        self.mark(text)
        self._meeting = meeting
        self.wait()

    def stalls(self, seconds: float) -> bool:
        """Whether it got no further for so long."""
        moved = self._moved
        return moved is not None and time.monotonic() - moved > seconds

    def tell(self) -> None:
        """Tells the others what it does, if they do not know."""
        with self._telling:
            text = json.dumps([self._at, self._meeting])
            if text != self._told:
                self._peers.put("stage", text)
                self._told = text

    def of_all(self) -> str:
        """What each process does, as far as it is known."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            stages = self._stages().items()
            return ", ".join(f"{self._peers.names[i]} is at {at!r}" for i, (at, _) in stages)
        return "the coordinator is gone"

    def apart(self, seconds: float) -> str:
        """At which meetings processes wait, if all wait, and for so long not at the same; to be asked every second or so.

        Raises:
          jax.errors.JaxRuntimeError: The coordinator does not answer.
        """
        if not self._meeting:  # it is not for this process to say
            self._meetings = {}
            return ""
        meetings = {i: meeting for i, (_, meeting) in self._stages().items() if meeting}
        if meetings != self._meetings:
            self._meetings, self._apart_since = meetings, time.monotonic()
        all_wait = len(meetings) == len(self._peers.names)
        if not all_wait or len({*meetings.values()}) == 1:
            return ""
        if time.monotonic() - self._apart_since <= seconds:
            return ""
        return ", ".join(f"{self._peers.names[i]} at {name!r}" for i, name in meetings.items())

    def _stages(self) -> dict[int, tuple[str, str]]:
        values = sorted(self._peers.values("stage").items())
        return {index: tuple(json.loads(text)) for index, text in values}
