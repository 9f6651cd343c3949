"""`intarsia generate`: text from a small language model, through the library's own kernels."""

import argparse
import dataclasses
import operator
import os
import secrets
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from intarsia.cli import _model, _processes

if TYPE_CHECKING:
    from intarsia.models import Engine, SamplingParams, Tokenizer

_STEPS_ON_GPU = 8  # docs/notebook/decode.md, "Chains"
_NO_BREAK = "\u00a0"  # textwrap cuts lines at ASCII's spaces alone

_DEFAULT_PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "What is weaving, and what is it good for?",
)
# For a model that only continues texts.
_DEFAULT_TEXTS = (
    "Once upon a time, there was a weaver who",
    "The loom was invented in",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags; where vLLM has such a flag, it is named as there."""
    _model.add_arguments(parser)
    parser.add_argument(
        "--prompt",
        type=_utf8,
        action="append",
        metavar="TEXT",
        help="may be given several times",
    )
    parser.add_argument("--max-tokens", type=int, default=128, help="default: %(default)s")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="0, the default here (vLLM's is 1), always takes the likeliest token",
    )
    parser.add_argument("--top-k", type=int, default=0, help="0, the default, or -1 keeps all")
    parser.add_argument("--top-p", type=float, default=1.0, help="1 keeps all (default)")
    parser.add_argument("--seed", type=int, help="makes sampling repeatable")
    parser.add_argument(
        "--no-chat-template", action="store_true", help="continue the prompts as plain text"
    )
    parser.add_argument(
        "--scan-layers",
        action="store_true",
        help="run the layers in a loop: compiles faster; on a GPU each step copies all weights then",
    )
    parser.add_argument(
        "--decode-steps",
        type=int,
        help="steps of one program; tokens appear that many at a time "
        f"(default: {_STEPS_ON_GPU} on one GPU, else 1)",
    )
    parser.add_argument(
        "--reference", action="store_true", help="compare with the same model in plain jax.numpy"
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        help="longest prompt plus completion (default: what the prompts need)",
    )


def _utf8(argument: str) -> str:
    return os.fsencode(argument).decode()  # whatever the locale says


def main(args: argparse.Namespace) -> int:
    """Generates; texts go to stdout, everything else to stderr."""
    with _processes.joined(args, "intarsia generate") as share:
        _generate(args, share)
    return 0


def _generate(args: argparse.Namespace, share: _processes.Share) -> None:
    from intarsia.models import Engine
    from intarsia.models.schedule import check_limits, check_prompt, check_tokens

    if args.reference and args.temperature != 0:
        raise ValueError(f"--reference needs --temperature 0, got {args.temperature}")
    if args.reference and share.processes:
        raise ValueError(f"--reference needs one process, got {share.processes.count}")
    sampling = _sampling(args)
    choice = _model.choose(args, share)
    config, tokenizer = choice.config, choice.tokenizer
    plain = args.no_chat_template or tokenizer.chat_template is None
    texts = args.prompt or list(_DEFAULT_TEXTS if plain else _DEFAULT_PROMPTS)
    prompts = [(tokenizer.encode if plain else tokenizer.encode_chat)(text) for text in texts]
    needed = max(map(len, prompts)) + args.max_tokens
    max_model_len = args.max_model_len
    if max_model_len is None:
        max_model_len = min(needed, config.max_positions)
    decode_steps = _default_steps(args) if args.decode_steps is None else args.decode_steps
    # The engine refuses these as well, but has the weights by then.
    check_limits(config, max_model_len=max_model_len, decode_steps=decode_steps)
    decode_steps = min(decode_steps, max_model_len)  # as the engine takes them
    for index, prompt in enumerate(prompts):
        check_prompt(index, prompt, max_model_len)
        check_tokens(index, prompt, config.vocab)
    own = share.of(range(len(prompts)))
    share.stage("loading")
    model = choice.load()
    share.meet("loaded")
    engine = Engine(
        config,
        model.params,
        max_num_seqs=len(own),
        max_model_len=max_model_len,
        decode_steps=decode_steps,
        scan_layers=args.scan_layers,
        parallel=model.parallel,
        kv_cache_dtype=args.kv_cache_dtype,
    )
    _say_what_runs(args, choice, model, decode_steps)
    printer = _Printer(tokenizer, texts)
    completions: list[list[int]] = [[] for _ in prompts]
    ends: list[str | None] = [None for _ in prompts]
    share.stage("compiling and generating")
    for output in engine.stream([prompts[i] for i in own], _seeded(sampling, own, share)):
        index = own[output.index]
        completions[index].append(output.token)
        ends[index] = output.finish_reason
        printer.push(index, output.token, output.finish_reason)
        share.progress()
    for others in share.gather("completions", [(i, completions[i], ends[i]) for i in own])[1:]:
        for index, tokens, end in others:
            printer.push_all(index, tokens, end)
    _summarize(engine, share)
    if _waits_for_weights(len(own)):
        _say_row(
            "weights", _reading(model, engine.stats.decode_tokens, engine.stats.decode_seconds)
        )
    if args.reference:
        # Once more without printing, which the reference does not do either.
        engine.generate(prompts, sampling)
        _say("")
        _say("without printing")
        _say_row("decode", _rate(engine.stats.decode_tokens, engine.stats.decode_seconds))
        limits = [min(args.max_tokens, max_model_len - len(prompt)) for prompt in prompts]
        rate = engine.stats.decode_tokens, engine.stats.decode_seconds
        _compare(model, prompts, completions, limits, args.kv_cache_dtype, rate)


def _sampling(args: argparse.Namespace) -> "SamplingParams":
    from intarsia.models import SamplingParams

    sampling = SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
    )
    for flag, given, idle in (
        ("--top-k", args.top_k, (0, -1)),
        ("--top-p", args.top_p, (1,)),
        ("--seed", args.seed, (None,)),
    ):
        if args.temperature == 0 and given not in idle:
            print(f"{flag} {given} has no effect at --temperature 0", file=sys.stderr)
    return sampling


def _devices(args: argparse.Namespace) -> int:
    """How many share the model."""
    return max(args.tensor_parallel, args.expert_parallel)


def _default_steps(args: argparse.Namespace) -> int:
    """Steps of one program. On a GPU a step can take less time than the host needs to start one."""
    from intarsia._steps import on_gpu

    return _STEPS_ON_GPU if _devices(args) == 1 and on_gpu() else 1


def _say_what_runs(
    args: argparse.Namespace, choice: _model.Choice, model: _model.Model, decode_steps: int
) -> None:
    kept = "" if args.kv_cache_dtype == "auto" else f", KV cache in {args.kv_cache_dtype}"
    devices = _devices(args)
    spread = "" if devices == 1 else f", on {devices} devices"
    grouped = "" if decode_steps == 1 else f", {decode_steps} steps a program"
    _say(
        f"{model.name}: {choice.config.layers} layers in {model.precision}{kept}{spread}{grouped}; compiling"
    )
    if choice.widened:
        _say(
            f"the file's codes are widened to {model.dtype}, since {devices} devices share the weights: "
            "a token reads more memory"
        )


def _seeded(
    sampling: "SamplingParams", own: Sequence[int], share: _processes.Share
) -> "SamplingParams | list[SamplingParams]":
    """Sampling for each prompt, with seeds that all processes agree on."""
    if sampling.seed is not None or share.processes is None:
        return sampling
    seed = share.agree("seed", secrets.randbits(32))
    return [dataclasses.replace(sampling, seed=(seed + index) & 0xFFFFFFFF) for index in own]


class _Printer:
    """Prints completions in the order of their prompts, the first unfinished one live."""

    def __init__(self, tokenizer: "Tokenizer", prompts: Sequence[str]) -> None:
        self._prompts = prompts
        self._streams = [tokenizer.stream() for _ in prompts]
        self._unprinted = ["" for _ in prompts]
        self._done = [False for _ in prompts]
        self._live = -1
        self._begin_next()

    def push(self, index: int, token: int, finish_reason: str | None) -> None:
        """Takes one token of one completion."""
        stream = self._streams[index]
        self._unprinted[index] += stream.push(token)
        if finish_reason:
            cut = " [...]" if finish_reason == "length" else ""  # not the model's own end
            self._unprinted[index] += stream.finish() + cut
            self._done[index] = True
        if index == self._live:
            self._flush()

    def push_all(self, index: int, tokens: Sequence[int], finish_reason: str | None) -> None:
        """Takes a whole completion."""
        for place, token in enumerate(tokens, 1):
            self.push(index, token, finish_reason if place == len(tokens) else None)

    def _begin_next(self) -> None:
        self._live += 1
        label = f"[{self._live + 1}] " if len(self._prompts) > 1 else ""
        print(f"\n{label}> {self._prompts[self._live]}", flush=True)

    def _flush(self) -> None:
        while True:
            print(self._unprinted[self._live], end="", flush=True)
            self._unprinted[self._live] = ""
            if not self._done[self._live]:
                return
            print(flush=True)
            if self._live + 1 == len(self._prompts):
                return
            self._begin_next()


def _summarize(engine: "Engine", share: _processes.Share) -> None:
    """Prints what this process's engine took; of several replicas, each times its own prompts."""
    import jax

    stats, device = engine.stats, jax.devices()[0]
    whose = f", replica {share.replica} of {share.replicas}" if share.replicas > 1 else ""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    _say("")
    _say_row("device", f"{device.platform} ({cores if device.platform == 'cpu' else device})")
    _say_row("compile", f"{stats.compile_seconds:.1f} s, not part of what follows")
    _say_row("first token", f"{stats.time_to_first_token * 1e3:.0f} ms{whose}")
    _say_row("prefill", _rate(stats.prefill_tokens, stats.prefill_seconds) + whose)
    _say_row("decode", _rate(stats.decode_tokens, stats.decode_seconds) + whose)
    for step, calls in engine.custom_calls().items():
        counts = ", ".join(f"{op}{_NO_BREAK}{count}" for op, count in calls.items()) or "none"
        _say_row(f"calls in {step}", counts)


def _compare(
    model: _model.Model,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[list[int]],
    limits: Sequence[int],
    kv_cache_dtype: str,
    decoded: tuple[int, float],
) -> None:
    """Prints what plain jax.numpy does. `decoded`: tokens and seconds of ours."""
    from intarsia.models import reference

    tokens, seconds = decoded

    _say("")
    _say(f"plain jax.numpy, weights in {model.dtype}, without printing; compiling")
    params = model.unquantized_params()
    result = reference.generate(
        model.config, params, prompts, max(limits), kv_cache_dtype=kv_cache_dtype
    )
    _say_row("compile", f"{result.compile_seconds:.1f} s")
    _say_row("prefill", _rate(sum(map(len, prompts)), result.prefill_seconds))
    _say_row("decode", _rate(result.decode_tokens, result.decode_seconds))
    if seconds and result.decode_seconds and result.decode_tokens:
        plain = result.decode_tokens / result.decode_seconds
        _say_row("ratio", f"decode {tokens / seconds / plain:.2f} times as fast as plain jax.numpy")
        if _waits_for_weights(len(prompts)) and model.precision == "float32":
            _say_row("", "one sequence waits for memory, here as there: try two --prompt,")
            _say_row("", "or --dtype bfloat16, which halves what it reads")
    expected = [row[:limit] for row, limit in zip(result.tokens, limits, strict=True)]
    _say_row(
        "greedy tokens",
        _verdict(expected, completions, model.quantize, model.activations == "int8"),
    )


def _verdict(
    expected: Sequence[list[int]],
    completions: Sequence[list[int]],
    quantize: str | None,
    in_int8: bool,
) -> str:
    """How far the completions are those of the reference, and what to think of it."""
    equal = sum(map(operator.eq, expected, completions))
    counts = f"{equal} of {len(completions)} completions equal"
    if equal == len(completions):
        return f"the same ({counts})"
    common = sum(
        len(os.path.commonprefix(pair)) for pair in zip(expected, completions, strict=True)
    )
    counts += f", {common} of {sum(map(len, expected))} tokens before they part"
    if quantize in (None, "file") and not in_int8:
        return f"different ({counts})"
    what = "activations in int8" if in_int8 else f"weights in {quantize}"
    return f"{counts}; {what} may choose others than the reference's, which are not quantized"


def _waits_for_weights(sequences: int) -> bool:
    """Whether decoding does little but read the weights: of one sequence, on a CPU."""
    import jax

    return sequences == 1 and jax.default_backend() == "cpu"


def _reading(model: _model.Model, steps: int, seconds: float) -> str:
    """What a step of one sequence reads, and how fast."""
    import jax

    def size_of(weights: Any) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(weights))

    # The embedding gives one row, unless it is the output projection as well.
    tables = {"embed"} if "lm_head" in model.params else set()
    size = size_of({name: w for name, w in model.params.items() if name not in tables})
    if chosen := model.config.experts:
        of_experts = [
            {role: w for role, w in layer.items() if role.startswith("experts_")}
            for layer in model.params["layers"]
        ]
        size -= size_of(of_experts) * (chosen.count - chosen.per_token) // chosen.count
    rate = size * steps / seconds if seconds else 0.0
    return f"{size / 1e6:.0f} MB for each token, {rate / 1e9:.1f} GB/s"


def _rate(tokens: int, seconds: float) -> str:
    rate = tokens / seconds if seconds else 0.0
    return f"{tokens} tokens in {seconds:.2f} s, {rate:.1f} tokens/s"


def _say_row(label: str, text: str) -> None:
    """A label and what belongs to it, in as many lines as the terminal needs, cut between words."""
    width = max(shutil.get_terminal_size((120, 24)).columns, 60)
    lines = textwrap.fill(
        text,
        width,
        initial_indent=f"{label:<17}",
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,
    )
    _say(lines.replace(_NO_BREAK, " "))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
