"""Prometheus counters of XLA programs, beside vLLM's own in /metrics.

A program is compiled in an engine's process or a rank's, and /metrics is the server's. So the server makes a folder, each of those
processes keeps its counts in a file there, and the server adds them up when it is asked. Several servers beside each other serve what
Prometheus's library adds up over processes instead. Processes on other hosts are not counted.
"""

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import REGISTRY, Counter
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from vllm.logger import init_logger

from intarsia import _environment

logger = init_logger("vllm.intarsia.metrics")

_TEXTS = {
    "intarsia_xla_programs": "XLA programs compiled, or read from the cache of programs.",
    "intarsia_xla_programs_late": "XLA programs compiled while serving: a request waited for each.",
}
"""Of the counters, in the order in which a file has them."""
_COUNTERS = [Counter(name, text, registry=None) for name, text in _TEXTS.items()]
"""This process's. With PROMETHEUS_MULTIPROC_DIR, which vLLM sets for several servers, any of these finds them there."""


@functools.cache
def serve_counts() -> None:
    """In the process of `vllm serve`, adds the counters to what /metrics tells."""
    if _environment.metrics_folder() is None and "vllm.entrypoints.cli.serve" in sys.modules:
        folder = tempfile.TemporaryDirectory(prefix="intarsia-metrics-")
        _environment.keep_metrics_in(folder.name)
        REGISTRY.register(Counts(folder))


class Counts(Collector):
    """The sums of all files of a folder, which lives as long as this."""

    def __init__(self, folder: tempfile.TemporaryDirectory):
        self._folder = folder

    def collect(self) -> Iterator[CounterMetricFamily]:
        rows = [file.read_text().split() for file in Path(self._folder.name).glob("*.counts")]
        for column, (name, text) in enumerate(_TEXTS.items()):
            yield CounterMetricFamily(name, text, value=sum(int(row[column]) for row in rows))


def tell(late: bool) -> None:
    """Says that this process has compiled a program, to the server that asks if there is one."""
    for counter, more in zip(_COUNTERS, (1, int(late)), strict=True):
        counter.inc(more)
    folder = _environment.metrics_folder()
    if folder is None or not os.path.isdir(folder):
        return
    file = Path(folder, f"{os.getpid()}.counts")
    unfinished = file.with_suffix(".new")
    try:
        unfinished.write_text(" ".join(str(_count(counter)) for counter in _COUNTERS))
        unfinished.replace(file)
    except OSError as error:  # no disk space, say: not worth a server
        logger.warning_once(
            "intarsia-vllm: /metrics counts too few XLA programs: %s cannot be written: %s",
            folder,
            error.strerror,
        )


def _count(counter: Counter) -> int:
    [metric] = counter.collect()
    return int(metric.samples[0].value)
