"""tools/compile_cost.py reads what ptxas says, and hides nothing that a person must see."""

import importlib.util
import json
import subprocess
import sys

import support

SCRIPT = support.ROOT / "tools" / "compile_cost.py"
SAYS = """\
ptxas info    : 24 bytes gmem
ptxas info    : Compiling entry function '_Z4Good' for 'sm_80'
ptxas info    : Function properties for _Z4Good
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 384 bytes smem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function '_Z3Bad' for 'sm_90a'
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers
kernel.cu(3): warning #1: a warning
"""


def test_kernels_and_their_spills_are_read() -> None:
    spec = importlib.util.spec_from_file_location("compile_cost", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.kernels(SAYS) == [
        {"kernel": "_Z4Good", "arch": "sm_80", "stores": 0, "loads": 0, "registers": 40},
        {"kernel": "_Z3Bad", "arch": "sm_90a", "stores": 12, "loads": 20, "registers": 255},
    ]


def test_warnings_reach_the_terminal_and_failures_the_build(tmp_path) -> None:
    compiler = f"import sys; sys.stderr.write({SAYS!r}); sys.exit(int(sys.argv[1]))"

    def run(code: int, *options: str) -> subprocess.CompletedProcess:
        command = [sys.executable, SCRIPT, tmp_path / "log", sys.executable, "-c", compiler]
        return subprocess.run(
            [*command, str(code), *options, "k.cu"], capture_output=True, text=True
        )

    done = run(0)
    shown = done.stderr.splitlines()
    assert [line[:20] for line in shown] == ["ptxas info    : (C75", "kernel.cu(3): warnin"]
    (record,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert record["source"] == "k.cu" and len(record["kernels"]) == 2
    assert run(3).returncode == 3
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    fast = run(0, "-Ofc=max").stderr.splitlines()
    assert [line[:20] for line in fast] == ["kernel.cu(3): warnin"]
    records = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert [record["fast_compile"] for record in records] == [False, True]
