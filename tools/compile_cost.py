"""Runs a compiler and records what it cost: a launcher for CMake.

    compile_cost.py LOG nvcc -c kernel.cu -o kernel.o

appends one JSON line to LOG: the source, the CPU seconds and the peak memory in MB of the compiler
and its children, whether it hardly optimized (INTARSIA_FAST_COMPILE), and for each kernel the
registers and the bytes of spill stores and loads that ptxas reports (`-Xptxas -v`, whose lines do
not reach the terminal; its warnings do). tests/test_cuda_budgets.py holds them against
tests/data/cuda_budgets.json.
"""

import json
import pathlib
import re
import resource
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(?P<kernel>\S+)' for '(?P<arch>\w+)'")
SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
REPORT = re.compile(
    r"^ptxas info\s*: (Compiling entry|Function properties|Used \d+ registers|\d+ bytes gmem|Compile time)"
    r"|^\s*Function properties|bytes stack frame"
)
# What INTARSIA_FAST_COMPILE gives up.
LOSS = re.compile(r"^ptxas info\s*: \(C\d+\) Potential Performance Loss")
REGISTERS = re.compile(r"Used (?P<registers>\d+) registers")


def kernels(report: str) -> list[dict]:
    """What ptxas says of each entry function, in its order."""
    found: list[dict] = []
    for line in report.splitlines():
        if match := ENTRY.search(line):
            found.append(match.groupdict())
        elif found and (match := SPILLS.search(line) or REGISTERS.search(line)):
            found[-1] |= {key: int(value) for key, value in match.groupdict().items()}
    return found


def is_report(line: str) -> bool:
    """Whether a line is ptxas's report of resources, and no warning that a person must see."""
    return bool(REPORT.search(line))


def main(log: str, command: list[str]) -> int:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    fast_compile = any(argument.startswith("-Ofc") for argument in command)
    sys.stderr.writelines(
        line
        for line in done.stderr.splitlines(keepends=True)
        if not is_report(line.strip()) and not (fast_compile and LOSS.match(line))
    )
    source = next((a for a in reversed(command) if a.endswith(".cu")), None)
    if source is None or done.returncode:
        return done.returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {
        "source": source,
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": used.ru_maxrss // 1024,
        "fast_compile": fast_compile,
        "kernels": kernels(done.stderr),
    }
    with pathlib.Path(log).open("a") as file:
        file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
