#!/usr/bin/env python3
"""Runs a fuzzer many times over: a process a core, each with a seed of its own, over one corpus.

A process that finds something leaves its input in `--findings`; another seed then does what is left
of its share. The last line counts executions and findings; the status is 1 if there are any findings.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time
from pathlib import Path

# Entropic schedules take four fifths of the time where a run takes microseconds.
OPTIONS = ("-entropic=0", "-max_len=96", "-timeout=10", "-verbosity=0", "-print_final_stats=1")
# Stack frames that outlive their functions are not aligned for AVX-512: https://gcc.gnu.org/PR110027.
OF_ASAN = "detect_leaks=0:detect_stack_use_after_return=0"
MOST_FINDINGS = 5  # of a process; after that the fuzzer finds the same again and again
EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.M)


def worker(args: argparse.Namespace, index: int, runs: int, end: float) -> tuple[int, int]:
    """Executions and findings of one process, and of those that replace it."""
    executed, findings = 0, 0
    while (
        executed < runs and findings < MOST_FINDINGS and (left := int(end - time.monotonic())) > 0
    ):
        seed = args.seed + index + args.jobs * findings
        command = [args.fuzzer, *OPTIONS, f"-seed={seed}", f"-runs={runs - executed}"]
        command += [f"-max_total_time={left}", f"-artifact_prefix={args.findings}/{index}-"]
        command += [args.new, *args.corpus]
        environment = {"ASAN_OPTIONS": OF_ASAN, **os.environ}
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        done = EXECUTED.search(ended.stdout)
        executed += int(done[1]) if done else 0
        if ended.returncode == 0:
            break
        findings += 1
        (args.findings / f"{index}-{findings}.log").write_text(ended.stdout)
        print(f"seed {seed}, exit {ended.returncode}:\n{ended.stdout[-4000:]}", flush=True)
    return executed, findings


def main() -> int:
    """Shares the executions out."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fuzzer", type=Path)
    parser.add_argument("corpus", nargs="*", help="folders of inputs to begin with")
    parser.add_argument("--runs", type=int, default=10**12, help="executions of all processes")
    parser.add_argument("--seconds", type=int, default=10**6, help="the most that it may take")
    parser.add_argument("--jobs", type=int, default=cores, help="processes (default: one a core)")
    parser.add_argument("--seed", type=int, default=1, help="of the first process")
    parser.add_argument("--new", type=Path, default=Path("build/corpus/many"), help="new inputs")
    parser.add_argument("--findings", type=Path, default=Path("build/findings"))
    args = parser.parse_args()
    args.fuzzer = args.fuzzer.resolve()
    for folder in (args.new, args.findings):
        folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    share = -(-args.runs // args.jobs)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        calls = [
            pool.submit(worker, args, index, share, start + args.seconds)
            for index in range(args.jobs)
        ]
        results = [call.result() for call in calls]
    executed, findings = map(sum, zip(*results, strict=True))
    seconds = time.monotonic() - start
    print(
        f"{args.fuzzer.name}: {executed} executions, {findings} findings, {args.jobs} processes, "
        f"{seconds:.0f} s, {executed / seconds:.0f} executions/s"
    )
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
