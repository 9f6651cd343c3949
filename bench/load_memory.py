"""Measures the memory that loading and running a model in codes takes beside the size of its file, on a CPU.

Usage: load_memory.py [--form NAME ...] [--dtype float32] [--layers N] [--json FILE]

Directories are those of large_checkpoints.py, one at a time. `plain_*` are files in bf16, whose linear layers `load_model` rounds;
`smollm2` and `gemma3` are the packaged GGUF files. Each is loaded by a process of its own, which then generates some tokens after
a prompt of 64.

Figures are resident memory, anonymous and of files, beyond what the process had just before `load_model`. By then JAX has compiled one
small program, which takes `xla`, nearly all of it pages of libraries. `loaded` and `run` are peaks (VmHWM) after loading and after
generating, `files` what files have of that in the end (RssFile): more pages of libraries, since tensors are read without mapping their
file. The system can drop these pages. `share_of_file` is `run` less the KV caches, beside the size of the file; `share_with_xla` has
`xla` as well.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import large_checkpoints
import record

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "python")]
from intarsia.models import find_model  # noqa: E402

_ROUNDED = {f"{large_checkpoints.PLAIN}_{bits}": bits for bits in ("int4", "int8", "fp8")}
_GGUF = ("smollm2", "gemma3")
_IN_CODES = tuple(form for form in large_checkpoints.FORMS if form != large_checkpoints.PLAIN)
FORMS = (*_IN_CODES, *_ROUNDED, *_GGUF)
_PROMPT = [*range(10, 74)]
_MODEL_LEN = 128


def memory() -> dict[str, int]:
    """Of this process, in bytes, by the names of proc(5)."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if line.startswith(("VmHWM", "VmRSS", "Rss")))
    return {name: int(said.split()[0]) * 1024 for name, said in pairs}


def load(path: pathlib.Path, quantize: str, dtype: str = "float32") -> tuple[Any, ...]:
    """Loads a model: its configuration and weights, memory before that, and bytes at the peak beyond what was there."""
    from intarsia.models import load_model
    from intarsia.models.memory import give_back_freed

    jax.block_until_ready(jax.jit(lambda: jax.numpy.zeros(8) + 1)())
    give_back_freed()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins at what is there now
    before = memory()
    config, params = load_model(path, quantize=quantize, dtype=dtype)
    jax.block_until_ready(params)
    return config, params, before, memory()["VmHWM"] - before["VmRSS"]


def measure(path: pathlib.Path, quantize: str, dtype: str) -> dict[str, float]:
    """Loads and runs a model: a row's figures, by this process."""
    from intarsia.models import Engine, SamplingParams

    jax.devices()
    first, begin = memory()["VmRSS"], time.perf_counter()
    config, params, before, loaded = load(path, quantize, dtype)
    seconds = time.perf_counter() - begin
    engine = Engine(config, params, max_num_seqs=1, max_model_len=_MODEL_LEN)
    engine.generate([_PROMPT], SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
    after, xla = memory(), before["VmRSS"] - first
    run = after["VmHWM"] - before["VmRSS"]
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    size = size or path.stat().st_size
    cache = sum(a.nbytes for a in jax.tree.leaves(engine._caches))
    mib = {
        "file": size,
        "weights": sum(a.nbytes for a in jax.tree.leaves(params)),
        "cache": cache,
        "xla": xla,
        "loaded": loaded,
        "run": run,
        "files": after["RssFile"] - before["RssFile"],
    }
    figures = {f"{name}_mib": round(value / 2**20, 1) for name, value in mib.items()}
    shares = {"of_file": run - cache, "with_xla": run + xla - cache}
    figures |= {f"share_{name}": round(value / size, 3) for name, value in shares.items()}
    return figures | {"load_s": round(seconds, 1)}


def main() -> None:
    """Writes and measures the forms that the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--form", nargs="+", choices=FORMS, default=FORMS, metavar="NAME", help=", ".join(FORMS)
    )
    parser.add_argument("--dtype", default="float32", help="of activations")
    parser.add_argument("--layers", type=int, help="fewer or more than the models have")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        path, quantize = args.work
        print(json.dumps(measure(pathlib.Path(path), quantize, args.dtype)))
        return
    rows = []
    for form in args.form:
        with tempfile.TemporaryDirectory() as folder:
            path = find_model(form) if form in _GGUF else pathlib.Path(folder)
            if form not in _GGUF:
                plain = large_checkpoints.PLAIN if form in _ROUNDED else form
                large_checkpoints.write(path, plain, args.layers)
            work = ["--work", str(path), _ROUNDED.get(form, "file")]
            command = [sys.executable, __file__, "--dtype", args.dtype, *work]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows.append({"form": form, "dtype": args.dtype} | json.loads(said))
        print(rows[-1], flush=True)
    if args.json:
        facts = {"device": "two CPU cores with AVX-512", "versions": {"jax": jax.__version__}}
        record.write(args.json, rows, **facts, command="python " + " ".join(sys.argv))


if __name__ == "__main__":
    main()
