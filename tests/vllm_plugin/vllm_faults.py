"""Faults in the middle of answers: who hears of them, how soon, and what is left."""

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
from vllm_running import Server, begun, family

HEARTBEAT = 10  # s, and the limit of the servers in the tests
KNOWN = HEARTBEAT + 30  # s, in which clients hear of a fault
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
    clients: Sequence[int] = (0,),
    lost: int = 0,
    tokens: int = 400,
    resume: Callable[[], Any] = lambda: None,
) -> None:
    """Has a fault happen in the middle of answers: clients hear of it, the servers end, and nothing is left.

    Each client of what is lost gets an error. An answer of another replica may be whole before its server ends.

    Args:
      servers: The first answers.
      fault: Makes it happen.
      what: It is called.
      says: What a server's log has to match in the end.
      clients: The replica that each client asks, one after the other.
      lost: The replica that is lost, or has lost a rank.
      tokens: Of each answer: the first is not to be whole before the last has begun.
      resume: What is to go on, for it to end.
    """
    everything = _running(servers)
    with contextlib.ExitStack() as stack:
        made = [(stack.enter_context(servers[0].client()), replica) for replica in clients]
        streams = [(begun(client, tokens, replica), replica) for client, replica in made]
        start = time.monotonic()
        fault()
        told = [servers[0].breaks_off(stream) for stream, replica in streams if replica == lost]
        known = time.monotonic() - start
        assert all(told), f"{told.count(False)} of {len(told)} answers were whole, expected errors"
        assert known < KNOWN, f"clients knew after {known:.1f} s, expected less than {KNOWN}"
        for stream, replica in streams:
            if replica != lost:
                servers[0].breaks_off(stream)
        servers[0].process.wait(timeout=BOUND)
    ended = time.monotonic() - start
    with contextlib.suppress(psutil.NoSuchProcess):  # who was stopped may have been killed
        resume()
    gone = _seconds_to_the_end(start, servers, everything, says)
    print(
        f"\n{what}: clients knew after {known:.1f} s; the server had ended after {ended:.1f} s, and all of it after {gone:.1f} s"
    )


def cut_off(
    servers: Sequence[Server], fault: Callable[[], Any], what: str, *, says: Mapping[int, str]
) -> None:
    """Has a fault happen that no client can be told of: the servers end, and nothing is left. Arguments as of `lose`."""
    everything = _running(servers)
    start = time.monotonic()
    fault()
    ended = []
    for server in servers:
        server.process.wait(timeout=BOUND)
        ended.append(time.monotonic() - start)
    gone = _seconds_to_the_end(start, servers, everything, says)
    seconds = " and ".join(f"{x:.1f}" for x in ended)
    print(f"\n{what}: servers had ended after {seconds} s, and all of it after {gone:.1f} s")


def _running(servers: Sequence[Server]) -> list[Any]:
    return [process for server in servers for process in family(server.process.pid)]


def _seconds_to_the_end(
    start: float, servers: Sequence[Server], everything: Sequence[Any], says: Mapping[int, str]
) -> float:
    """Since the start, until nothing is left of servers that said why."""
    _, left = psutil.wait_procs(everything, timeout=BOUND)
    assert left == []
    for i, text in says.items():
        assert re.search(text, servers[i].log()), (
            f"host {i} does not say {text!r}: {servers[i].log()[-4000:]}"
        )
    return time.monotonic() - start
