"""Several processes with JAX's distributed runtime: the tokens of one, a part of the file each, and ends in bounded time."""

import json
import re
import subprocess
from pathlib import Path

import jax
import pytest
import started
import support
from intarsia import cli

DIVISIONS = [
    (2, "--tensor-parallel 2"),
    (2, "--data-parallel 2"),
    (4, "--tensor-parallel 4"),
    (4, "--tensor-parallel 2 --data-parallel 2"),
]
LIBRARY = """
import dataclasses, json, sys
from pathlib import Path
from intarsia.models import Engine, ModelParallel, SamplingParams, load_model, weights
from intarsia.models.lazy import LazyArray
from intarsia.processes import Limits, Place, join

path, address, count, index = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
processes = join(Place(address, count, index), Limits(start=60, heartbeat=10))
read = []

def counted(array):
    read.append(array.nbytes)
    return array

def opened(path, open=weights.open_checkpoint):
    checkpoint = open(path)
    def lazy(name):
        array = checkpoint.lazy(name)
        return LazyArray(array.shape, lambda index: counted(array[index]))
    return dataclasses.replace(checkpoint, read=lambda name: counted(checkpoint.read(name)), lazy=lazy)

weights.open_checkpoint = opened
parallel = ModelParallel(opened(path).config, count)
config, params = load_model(path, parallel=parallel)
processes.meet("loaded")
engine = Engine(config, params, parallel=parallel, max_num_seqs=2, max_model_len=64)
sampling = SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=8, ignore_eos=True)
tokens = [x.tokens for x in engine.generate([[5, 9, 200], [7]], sampling)]
try:
    engine.generate([[5]], SamplingParams(temperature=1.0))
except ValueError as error:
    refused = str(error)
print(json.dumps([sum(read), tokens, refused, index]))
processes.finish()
"""
# bench/decode.py with a small model; tells its tokens on stderr at the end.
BENCH = """
import dataclasses, json, sys
sys.path.insert(0, sys.argv.pop(1))
import decode

shape = {"hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "intermediate": 128, "vocab": 256}
whole, stream, told = decode.llama3_8b, decode.Engine.stream, {}
decode.llama3_8b = lambda layers: dataclasses.replace(whole(layers), **shape)

def heard(self, *args):
    for output in stream(self, *args):
        told.setdefault(output.index, []).append(output.token)
        yield output

decode.Engine.stream = heard
decode.main()
print("told", json.dumps([told[i] for i in sorted(told)]), file=sys.stderr)
"""


@pytest.mark.full
@pytest.mark.parametrize(("count", "arguments"), DIVISIONS)
def test_tokens_are_those_of_one_process(generate, one_process, count, arguments) -> None:
    """Of processes that flags place; of those that a launcher places, test_a_launchers_variables_are_a_place in every run."""
    _check_tokens([generate(count, i, *arguments.split()) for i in range(count)], one_process)


@pytest.mark.full
def test_tokens_between_two_addresses(generate, address, one_process) -> None:
    """As between two hosts: each process listens at an address of its own. Several steps a program, besides."""
    port = address.split(":")[1]
    arguments = ["--tensor-parallel", "4", "--decode-steps", "3"]
    arguments += ["--coordinator-address", f"127.0.0.2:{port}"]
    processes = [generate(2, i, *arguments, "--listen", f"127.0.0.{2 + i}") for i in range(2)]
    _check_tokens(processes, one_process)


def _check_tokens(processes: list[subprocess.Popen], expected: str) -> None:
    ends = started.ends(processes)
    assert [status for status, _, _ in ends] == [0] * len(ends), ends
    assert ends[0][1] == expected
    assert all(out == "" for _, out, _ in ends[1:])
    assert all("device " not in err and "loading" not in err for _, _, err in ends[1:])


@pytest.mark.parametrize("launcher", ["slurm", pytest.param("ompi", marks=pytest.mark.full)])
def test_a_launchers_variables_are_a_place(generate, one_process, launcher) -> None:
    arguments = ("--tensor-parallel", "2")
    ends = started.ends([generate(2, i, *arguments, launcher=launcher) for i in range(2)])
    assert [end[:2] for end in ends] == [(0, one_process), (0, "")], ends


@pytest.mark.gpu
@pytest.mark.parametrize("division", ["--tensor-parallel", "--data-parallel"])
def test_a_process_a_gpu_gives_the_tokens_of_a_cpu(generate, division) -> None:
    if len(jax.devices("gpu")) < 2:
        pytest.skip("this machine has one GPU")
    arguments = (division, "2", "--dtype", "float32")
    own = [{"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": str(i)} for i in range(2)]
    [(status, expected, err)] = started.ends([generate(1, 0)])
    assert status == 0 and len(expected.splitlines()) > len(started.PROMPTS), err
    ends = started.ends([generate(2, i, *arguments, **own[i]) for i in range(2)])
    assert [end[:2] for end in ends] == [(0, expected), (0, "")], ends


@pytest.mark.full
def test_perplexity_is_that_of_one_process(start, tiny_model, address, capsys, tmp_path) -> None:
    (tmp_path / "text").write_text("hello the world 123 " * 6)
    command = ["perplexity", str(tmp_path / "text"), "--model", str(tiny_model), "--context", "32"]
    command += ["--quantize", "none"]
    assert cli.main([*command, "--device", "cpu"]) == 0
    expected = capsys.readouterr().out
    flags = ["--coordinator", address, "--num-processes", "2", "--data-parallel", "2"]
    command[1] = "text"
    (other := tmp_path / "other").mkdir()
    (other / "text").write_text("hello the world 123 " * 7)

    def begin(folder: Path, index: int) -> subprocess.Popen:
        code = f"import os; os.chdir({str(folder)!r}); {started.COMMAND}"
        return start("-c", code, *command, *flags, "--process-id", str(index))

    first = begin(tmp_path, 0)
    [(status, _, err)] = started.ends([begin(other, 1)])
    assert status == 2 and "differs in contents: " in err
    ends = started.ends([first, begin(tmp_path, 1)])
    assert [end[:2] for end in ends] == [(0, expected), (0, "")]


@pytest.mark.full
@pytest.mark.parametrize(("count", "arguments"), DIVISIONS)
def test_the_benchmark_decodes_the_tokens_of_one_process(start, address, count, arguments) -> None:
    sizes = ["--layers", "2", "--sequences", "4", "--context", "24", "--new-tokens", "8"]
    command = ["-c", BENCH, str(support.ROOT / "bench"), *sizes]
    [(status, _, err)] = started.ends([start(*command)])
    assert status == 0, err
    expected = _told(err)
    assert len(expected) == 4 and all(len(tokens) == 8 for tokens in expected)
    place = ["--coordinator-address", address, "--num-processes", str(count), *arguments.split()]
    ends = started.ends([start(*command, *place, "--process-id", str(i)) for i in range(count)])
    assert [status for status, _, _ in ends] == [0] * count, ends
    replicas = 2 if "data" in arguments else 1
    firsts = ends[:: count // replicas]
    assert [tokens for _, _, err in firsts for tokens in _told(err)] == expected
    assert ("all-reduce" in ends[0][1]) == ("tensor" in arguments)
    assert (f", {replicas} times: decode step" in ends[0][1]) == (replicas > 1)
    assert all(out == "" for _, out, _ in ends[1:])


def _told(err: str) -> list[list[int]]:
    [line] = [line for line in err.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))


@pytest.mark.full
def test_a_process_reads_its_part(start, tiny_model, address, tiny_weights) -> None:
    """Of matrices half, but that two devices have an even number of rows of the vocabulary; vectors whole."""
    ends = started.ends(
        [start("-c", LIBRARY, str(tiny_model), address, "2", str(i)) for i in range(2)]
    )
    assert [status for status, _, _ in ends] == [0, 0], ends
    said = [json.loads(out.splitlines()[-1]) for _, out, _ in ends]
    whole = sum(array.nbytes for array in tiny_weights.values())
    vectors = sum(array.nbytes for array in tiny_weights.values() if array.ndim == 1)
    row = tiny_weights["model.embed_tokens.weight"][0].nbytes
    half = vectors + (whole - vectors) / 2
    assert sum(read for read, *_ in said) == pytest.approx(2 * half, abs=2 * row)
    assert all(read == pytest.approx(half, abs=row) for read, *_ in said)
    assert said[0][1] == said[1][1] and len(said[0][1][0]) == 8
    assert said[0][2] == "prompt 0: seed is None, expected the same number in each process"


def test_addresses_that_are_listened_at(start, address) -> None:
    """Never all interfaces: neither the coordinator's port nor gloo's."""
    script = """
import sys, jax, jax.numpy as jnp
from jax.experimental import multihost_utils
from intarsia.processes import Place, join
index = int(sys.argv[2])
processes = join(Place(sys.argv[1], 2, index), listen=f"127.0.0.{2 + index}" if index else None)
multihost_utils.process_allgather(jnp.ones(1))
inodes = set()
import os
for fd in os.listdir("/proc/self/fd"):
    try:
        inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            print("listens", fields[1].split(":")[0][-8:])
processes.finish()
"""
    ends = started.ends([start("-c", script, address, str(i)) for i in range(2)])
    assert [status for status, _, _ in ends] == [0, 0], ends
    found = [{*re.findall(r"listens (\w+)", out)} for _, out, _ in ends]
    assert found == [{"0100007F"}, {"0300007F"}]
