"""Decodes with llama.cpp and with Intarsia in turn: one GGUF file, one prompt, one sequence, as many threads for each.

llama.cpp comes from an environment of its own, whose Python runs a server of this program (`--serve`) with xllamacpp, a package with
wheels on PyPI:

    uv venv /tmp/llama && uv pip install --python /tmp/llama/bin/python xllamacpp
    python bench/llama_cpp.py --llama-python /tmp/llama/bin/python --threads 2

Both sides pick the likeliest token. llama.cpp rounds activations to 8 bits before it multiplies (Q8_0, Q8_1), and keeps keys and values in
f16; here activations and cache are f32. The third column is Intarsia with the weights widened to f32. Threads of llama.cpp spin while
they wait, so on cores that others use, too, it falls far behind: compare on idle ones. CPU time of a token, which counts the spinning, is beside.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
from typing import Any

PROMPT = "Once upon a time, there was a weaver who"


def measured(generate: Any) -> dict[str, float]:
    """Tokens a second of decoding, and CPU seconds of this process for each."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    tokens, seconds = generate()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tokens/s": tokens / seconds, "CPU ms a token": 1e3 * cpu / tokens}


def serve(generate: Any) -> None:
    """Answers each line of stdin with what a generation measured."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    with os.fdopen(out, "w") as answers:
        for _ in sys.stdin:
            answers.write(json.dumps(measured(generate)) + "\n")
            answers.flush()


def llama(model: str, threads: int, tokens: int) -> Any:
    """llama.cpp's side."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.cpuparams.n_threads = threads
    params.n_ctx, params.n_parallel = 512, 1
    server = xllamacpp.Server(params)
    print("llama.cpp:", xllamacpp.get_system_info(), file=sys.stderr)

    def generate() -> tuple[int, float]:
        asked = {"prompt": PROMPT, "n_predict": tokens, "temperature": 0, "ignore_eos": True}
        timings = server.handle_completions(asked | {"cache_prompt": False})["timings"]
        return timings["predicted_n"], timings["predicted_ms"] / 1e3

    return generate


def ours(model: str, quantize: str | None, tokens: int) -> Any:
    """Intarsia's side."""
    from intarsia.models import Engine, SamplingParams, Tokenizer, load_model

    prompt = Tokenizer.from_path(model).encode(PROMPT)
    config, params = load_model(model, quantize=quantize)
    engine = Engine(config, params, max_num_seqs=1, max_model_len=len(prompt) + tokens)
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)

    def generate() -> tuple[int, float]:
        engine.generate([prompt], sampling)
        return engine.stats.decode_tokens, engine.stats.decode_seconds

    return generate


def main() -> None:
    """Runs all sides in turn, and prints each one's medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-python", help="a Python that has xllamacpp")
    parser.add_argument("--model", help="a .gguf file; the default is SmolLM2's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--serve", choices=("llama", "file", "f32"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
        if args.serve == "llama":
            serve(llama(args.model, args.threads, args.tokens))
        else:
            serve(ours(args.model, "file" if args.serve == "file" else None, args.tokens))
        return
    if args.llama_python is None:
        parser.error("--llama-python is missing: a Python of an environment that has xllamacpp")
    if args.model is None:
        from intarsia.models import find_model

        args.model = str(find_model("smollm2"))
    pythons = {"llama": args.llama_python, "file": sys.executable, "f32": sys.executable}
    flags = ["--model", args.model, "--threads", str(args.threads), "--tokens", str(args.tokens)]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in pythons}
    with contextlib.ExitStack() as stack:
        sides = {
            side: stack.enter_context(
                subprocess.Popen(
                    [python, __file__, "--serve", side, *flags],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for side, python in pythons.items()
        }
        for number in range(args.rounds + 1):
            for side, process in sides.items():
                assert process.stdin and process.stdout
                print("go", file=process.stdin, flush=True)
                measures = json.loads(process.stdout.readline())
                if number:  # the first compiles
                    found[side].append(measures)
                    print(side, {key: round(x, 2) for key, x in measures.items()}, flush=True)
        for process in sides.values():
            assert process.stdin
            process.stdin.close()
    medians = {
        side: {key: statistics.median(m[key] for m in runs) for key in runs[0]}
        for side, runs in found.items()
    }
    for side, of_side in medians.items():
        print(f"{side:6s} " + "  ".join(f"{key} {x:.2f}" for key, x in of_side.items()))
    for other in ("llama", "f32"):
        rate = medians["file"]["tokens/s"] / medians[other]["tokens/s"]
        print(f"file's codes against {other}: {rate:.2f}x")


if __name__ == "__main__":
    main()
