"""Faults in the middle of answers: who hears of them, how soon, and what is left."""

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
from vllm_running import Server, begun, family

HEARTBEAT = 10  # s, and the limit of the servers in the tests
BOUND = 180  # s, of a machine that has other things to do


def worker(server: Server) -> Any:
    """The one rank of a host."""
    [found] = server.children("VLLM::Worker")
    return found


def lose(
    servers: Sequence[Server],
    fault: Callable[[], Any],
    what: str,
    *,
    says: Mapping[int, str],
    clients: int = 1,
    resume: Callable[[], Any] = lambda: None,
) -> None:
    """Has a fault happen in the middle of answers: clients hear of it, the servers end, and nothing is left.

    An answer of another replica may be whole before its server ends.

    Args:
      servers: The first answers.
      fault: Makes it happen.
      what: It is called.
      says: What a server's log has to match in the end.
      clients: How many answers there are, at least one of which is to break off.
      resume: What is to go on, for it to end.
    """
    everything = [process for server in servers for process in family(server.process.pid)]
    with contextlib.ExitStack() as stack:
        streams = [begun(stack.enter_context(servers[0].client())) for _ in range(clients)]
        start = time.monotonic()
        fault()
        assert any([servers[0].breaks_off(stream) for stream in streams])
        known = time.monotonic() - start
        servers[0].process.wait(timeout=BOUND)
    ended = time.monotonic() - start
    with contextlib.suppress(psutil.NoSuchProcess):  # who was stopped may have been killed
        resume()
    _, left = psutil.wait_procs(everything, timeout=BOUND)
    assert left == []
    for i, text in says.items():
        assert re.search(text, servers[i].log()), servers[i].log()[-4000:]
    gone = time.monotonic() - start
    print(
        f"\n{what}: clients knew after {known:.1f} s; the server had ended after {ended:.1f} s, and all of it after {gone:.1f} s"
    )
