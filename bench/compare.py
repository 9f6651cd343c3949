"""Compares two builds of the library on one GPU, or on the CPU: their times, or by --bits their results.

Usage: compare.py --old DIR [--new DIR] [--platform cpu|gpu] [--op NAME ...] [--rounds 4] [--bits] [--out FILE]

DIR: a checkout with its library in python/intarsia/lib; --new is this one if not given. The cases and their operands are
this checkout's. Both libraries are called through intarsia.h in one process, on the same memory. Needs torch.

Times: calls on inputs that rotate through more memory than a cache holds, on a GPU as one graph. Old and new take turns,
and a ratio is the median of those of the rounds. A case beyond LIMIT is timed again, alone, for more rounds: only if it
is beyond LIMIT again is it called slower or faster. Exit status 1: some case is slower, or some bits differ.
"""

import argparse
import collections
import hashlib
import importlib
import itertools
import json
import pathlib
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from ml_dtypes import float8_e4m3fn, float8_e5m2

ROOT = pathlib.Path(__file__).parent.parent
LIMIT = 0.02
_ROTATE_BYTES = {"cpu": 1 << 27, "gpu": 400 << 20}
_SETS, _REPLAYS, _AGAIN = 40, 9, 5
_SECONDS, _CALLS = 2e-3, 400  # of one timing: this long, but no more calls
_PLATFORM, _TAG = {"cpu": "Host", "gpu": "CUDA"}, {"cpu": "bench_cpu", "gpu": "bench"}
# What is not to be the same in two runs of one library; its cases run with `deterministic` instead.
_UNORDERED = {"flash_attn_varlen_backward": "sums in any order without deterministic=True"}
_RAGGED = ("paged_attention", "flash_attn_varlen", "flash_attn_varlen_backward")

# What a library raises that refuses a call.
_REFUSALS = (ValueError, NotImplementedError, LookupError, TypeError)

Case = tuple[str, str, list[np.ndarray | None], dict[str, Any]]


def load(checkout: pathlib.Path) -> Any:
    """A checkout's own intarsia._native: two libraries need not have manifests of one form."""
    # An editable installation's import hook would go before sys.path.
    sys.meta_path[:] = [x for x in sys.meta_path if "editable" not in type(x).__module__]
    for name in [x for x in sys.modules if x.split(".")[0] == "intarsia"]:
        del sys.modules[name]
    sys.path.insert(0, str(checkout.resolve() / "python"))
    native = importlib.import_module("intarsia._native")
    path = native.main_library().path.resolve()
    if not path.is_relative_to(checkout.resolve()):
        raise ImportError(f"got {path}, expected the library of {checkout}")
    return native


def upload(x: np.ndarray, device: str) -> torch.Tensor:
    """A copy of its bytes; an empty array has memory, too."""
    bits = x.reshape(-1).view(np.uint8) if x.size else np.zeros(16, np.uint8)
    return torch.from_numpy(bits).to(device, copy=True)


class Side:
    """One of the two libraries, and how it runs an op on a device's memory."""

    def __init__(self, checkout: pathlib.Path, platform: str, spec_of: Callable | None = None):
        """`spec_of` gives the op that cases are written for, where that may not be this library's."""
        self.native, self.platform = load(checkout), platform
        self.dtypes = sys.modules["intarsia._dtypes"]
        self.library, self.device = self.native.main_library(), {"gpu": "cuda"}.get(platform, "cpu")
        self.spec_of = spec_of or self.library.find

    def tensor(self, x: np.ndarray, memory: torch.Tensor) -> Any:
        return self.native.Tensor(x.shape, self.dtypes.name_of(x.dtype), memory.data_ptr())

    def known(self, op: str, arrays: list, attributes: dict[str, Any]) -> tuple[list[int], dict]:
        """A call's operands, by number, and attributes without what this library lacks and the call leaves out."""
        spec, mine = self.spec_of(op), self.library.ops[op]
        names = {row["name"] for row in mine.operands + mine.attributes}
        default = {row["name"]: row["default"] for row in spec.attributes}
        return (
            [
                i
                for i, (x, row) in enumerate(zip(arrays, spec.operands, strict=True))
                if x is not None or row["name"] in names
            ],
            {k: v for k, v in attributes.items() if k in names or v != default[k]},
        )

    def bind(self, case: Case, inputs: list[torch.Tensor | None]) -> tuple[Callable, list]:
        """A function that runs the call and holds its memory; rows of results that exist, with theirs."""
        op, _, arrays, attributes = case
        operands = [
            None if x is None else self.tensor(x, memory)
            for x, memory in zip(arrays, inputs, strict=True)
        ]
        kept, attributes = self.known(op, arrays, attributes)
        operands, inputs = [operands[i] for i in kept], [inputs[i] for i in kept]
        rows, outs, found = self.library.infer(op, operands, attributes), [], []
        for row in rows:
            if row is None:
                outs.append(None)
                continue
            if row.alias is not None:
                memory = inputs[row.alias]
            else:
                size = int(np.prod(row.shape)) * self.dtypes.numpy_dtype(row.dtype).itemsize
                # All bits set: an element that is not written shows.
                memory = torch.full((max(size, 16),), 255, dtype=torch.uint8, device=self.device)
            outs.append(self.native.Tensor(row.shape, row.dtype, memory.data_ptr()))
            found.append((row, memory))

        def run(_held: tuple = (inputs, found)) -> None:
            stream = torch.cuda.current_stream().cuda_stream if self.platform == "gpu" else None
            where = _PLATFORM[self.platform]
            self.library.call(op, where, operands, attributes, outs, stream)

        return run, found

    def digests(self, case: Case) -> list[str]:
        """A line for each result: dtype, shape and SHA-256 of its bytes."""
        inputs = [None if x is None else upload(x, self.device) for x in case[2]]
        run, found = self.bind(case, inputs)
        run()
        lines = []
        for row, memory in found:
            if not row.workspace:
                size = int(np.prod(row.shape)) * self.dtypes.numpy_dtype(row.dtype).itemsize
                bits = memory.cpu().numpy()[:size].tobytes()
                lines.append(f"{row.dtype}{list(row.shape)} {hashlib.sha256(bits).hexdigest()}")
        return lines

    def timer(self, case: Case, sets: list[list[torch.Tensor | None]]) -> Callable[[], float]:
        """A function that measures the seconds of a call."""
        runs = [self.bind(case, inputs)[0] for inputs in sets]
        work = self._program(runs)
        calls = int(np.clip(_SECONDS * len(runs) / self._seconds(work), len(runs), _CALLS))
        work = self._program(list(itertools.islice(itertools.cycle(runs), calls)))
        return lambda: self._seconds(work) / calls

    def _program(self, runs: list[Callable[[], None]]) -> Callable[[], object]:
        """All the calls one after the other: a graph, or a host would be too slow for a GPU."""
        for run in runs:
            run()
        if self.platform == "cpu":
            return lambda: [run() for run in runs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for run in runs:
                run()
        return graph.replay

    def _seconds(self, work: Callable[[], object]) -> float:
        if self.platform == "cpu":
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()  # the next one is launched meanwhile
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def draw_ragged(op: str, rng: np.random.Generator) -> dict[str, Any]:
    """Sizes of a ragged batch: empty sequences, single tokens, ends of pages and of tiles."""
    hk, edges = int(rng.integers(1, 4)), [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 513, 2049]
    lens = [
        (int(rng.choice([0, 1, 1, 2, 5, 33])), int(rng.choice([*edges, rng.integers(300)])))
        for _ in range(rng.integers(1, 8))
    ]
    sizes = dict(
        lens=lens, h=hk * int(rng.choice([1, 2, 3, 8])), hk=hk, padding=int(rng.integers(0, 4)),
        d=int(rng.choice([8, 64, 64, 72, 128, 128, 192, 256])), sinks=bool(rng.integers(2)),
        softcap=float(rng.choice([0.0, 0.0, 30.0])), index=[np.int32, np.int64][rng.integers(2)],
    )  # fmt: skip
    paged = op == "paged_attention" or (op == "flash_attn_varlen" and rng.integers(2))
    if paged:
        sizes |= dict(page=int(rng.choice([1, 7, 16, 64])))
    if op == "flash_attn_varlen_backward":
        sizes |= dict(alibi=[None, "head", "sequence"][rng.integers(3)], deterministic=True)
    else:
        sizes |= dict(return_lse=True, kv=[None, None, float8_e4m3fn, float8_e5m2][rng.integers(4)])
        if sizes["kv"]:
            sizes |= dict(scales=["tensor", "head", "sequence"][rng.integers(3)])
    if op == "paged_attention":
        return sizes | dict(sliding_window=[None, None, 1, 40][rng.integers(4)])
    causal = bool(rng.integers(2))
    return sizes | dict(is_causal=causal, window_left=int(rng.choice([-1, -1, 0, 100])))


def cases(ops: list[str], platform: str, bits: bool, ragged: int) -> Iterator[Case]:
    """What tests/test_ops.py runs and drawn batches, or what bench/ops.py times; operands by seeds of their names."""
    support = importlib.import_module("support")
    for op in ops:
        dtypes = list(support.DTYPES) if bits else ["bf16" if platform == "gpu" else "f32"]
        drawn = {f"ragged_{i}": None for i in range(ragged if bits and op in _RAGGED else 0)}
        chosen = support.cases(op, "ci" if bits else _TAG[platform]) | drawn
        for (name, sizes), dtype in itertools.product(chosen.items(), dtypes):
            rng = np.random.default_rng(zlib.crc32(f"{op} {name} {dtype}".encode()))
            arguments = support.op_module(op).arguments
            arrays, attributes = arguments(
                rng, support.DTYPES[dtype], **(draw_ragged(op, rng) if sizes is None else sizes)
            )
            if bits and op in _UNORDERED:
                attributes |= dict(deterministic=True)
            arrays = [None if x is None else np.array(x, order="C") for x in arrays]
            yield op, f"{name} {dtype}", arrays, attributes


def compare_bits(old: Side, new: Side, case: Case) -> dict[str, Any]:
    """A row: `same`, `differs`, `unordered` if the old library differs from itself, `new` if it refuses the call."""
    got = []
    for side in (old, new):
        try:
            got.append(side.digests(case))
        except _REFUSALS as error:
            got.append([f"refused: {error}"])
    verdict = "same" if got[0] == got[1] else "differs"
    if got[0][:1] and got[0][0].startswith("refused"):
        verdict = "both refuse" if got[1][0].startswith("refused") else "new"
    elif verdict == "differs" and any(old.digests(case) != got[0] for _ in range(3)):
        verdict = "unordered"
    return dict(verdict=verdict, old=got[0], new=got[1])


def compare_times(old: Side, new: Side, case: Case, rounds: int) -> dict[str, Any]:
    """A row: median microseconds a call of both, and the median over rounds of new's over old's."""
    size = sum(x.nbytes for x in case[2] if x is not None)
    count = int(np.clip(_ROTATE_BYTES[old.platform] // max(size, 1) + 1, 2, _SETS))
    first = [None if x is None else upload(x, old.device) for x in case[2]]
    copies = [[x if x is None else x.clone() for x in first] for _ in range(count - 1)]
    new_timer = new.timer(case, [first, *copies])
    try:
        timers = [old.timer(case, [first, *copies]), new_timer]
    except _REFUSALS:
        return dict(verdict="new")

    def measure(rounds: int) -> dict[str, Any]:
        us = []
        for i in range(rounds):
            pair = [0.0, 0.0]
            for side in (0, 1) if i % 2 == 0 else (1, 0):
                pair[side] = 1e6 * statistics.median(timers[side]() for _ in range(_REPLAYS))
            us.append(pair)
        return dict(
            old_us=statistics.median(pair[0] for pair in us),
            new_us=statistics.median(pair[1] for pair in us),
            ratio=statistics.median(pair[1] / pair[0] for pair in us),
        )

    row = measure(rounds) | dict(verdict="")
    if abs(row["ratio"] - 1) > LIMIT:
        row = measure(_AGAIN * rounds) | dict(first_ratio=row["ratio"])
        beyond = abs(row["ratio"] - 1) > LIMIT
        row["verdict"] = ("slower" if row["ratio"] > 1 else "faster") if beyond else "noise"
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--old", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=pathlib.Path, default=ROOT)
    parser.add_argument("--platform", choices=_PLATFORM, default="gpu")
    parser.add_argument("--op", action="append", help="only this op; may be given several times")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--bits", action="store_true", help="compare results, not times")
    parser.add_argument("--ragged", type=int, default=40, help="drawn batches an attention op")
    parser.add_argument("--out", type=pathlib.Path, help="also write the rows here, as JSON")
    args = parser.parse_args()
    new = Side(args.new, args.platform)
    old = Side(args.old, args.platform, new.library.find)
    # Cases and operands are this checkout's, whichever package the two sides have.
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "python")]
    ops = args.op or importlib.import_module("support").op_names()
    lacks = [op for op in ops if op not in old.library.ops]
    if lacks:
        print("not in the old library:", ", ".join(lacks))
        ops = [op for op in ops if op not in lacks]
    rows = []
    for case in cases(ops, args.platform, args.bits, args.ragged):
        compare = compare_bits if args.bits else lambda *x: compare_times(*x, args.rounds)
        row = dict(op=case[0], case=case[1]) | compare(old, new, case)
        rows.append(row)
        if "ratio" in row:
            times = f"{row['old_us']:10.2f}{row['new_us']:10.2f}{row['ratio']:8.3f}"
            print(f"{row['op']:<36}{row['case']:<48}{times} {row['verdict']}", flush=True)
        elif row["verdict"] not in ("same", ""):
            print(f"{row['op']:<36}{row['case']:<48}{row['verdict']}", flush=True)
    for op, why in _UNORDERED.items() if args.bits else ():
        print(f"{op}: compared with deterministic=True alone; it {why}")
    verdicts = collections.Counter(row["verdict"] or f"within {LIMIT:.0%}" for row in rows)
    print("; ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if {"slower", "differs"} & set(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
