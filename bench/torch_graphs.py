"""Times calls of torch on a GPU in CUDA graphs, several ways in turn."""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

ROUNDS = 7


def this_run(**versions: str) -> dict[str, Any]:
    """What `record.write` is to know of a program's run; `versions` of what is not torch."""
    return {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__} | versions,
        "command": " ".join(["python", *sys.argv]),
    }


def captured(way: Callable[[int], object], copies: int) -> tuple[torch.cuda.CUDAGraph, int]:
    calls = max(copies, 10)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        way(0)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(calls):
            way(i % copies)
    return graph, calls


def medians(found: dict[str, Callable[[int], object]], copies: int) -> dict[str, float]:
    """Microseconds a call of each way that this torch has for the sizes."""
    graphs = {}
    for name, way in found.items():
        try:
            graphs[name] = captured(way, copies)
        except RuntimeError as error:
            print(f"  {name}: {str(error).splitlines()[0][:110]}")
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 1):
        for name, (graph, calls) in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn:
                times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return {name: statistics.median(values) for name, values in times.items()}
