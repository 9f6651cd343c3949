"""`intarsia perplexity`: how well a model predicts a text, through the engine's prefill and cache."""

import argparse
import sys
from pathlib import Path

from intarsia.cli import _model, _processes

_CONTEXT = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("text", help="a file of text; - reads stdin, in one process")
    _model.add_arguments(parser)
    parser.add_argument(
        "--context",
        type=int,
        help="the text is cut into pieces of so many tokens, each scored alone (default: "
        f"{_CONTEXT}, or the model's limit)",
    )


def main(args: argparse.Namespace) -> int:
    """Scores; the result goes to stdout."""
    if args.text == "-" and _processes.asked_for(args):
        raise ValueError("the text is -, expected a file: each of several processes reads it")
    text = _read(args.text)
    with _processes.joined(args, "intarsia perplexity", contents=text) as share:
        _score(args, text, share)
    return 0


def _score(args: argparse.Namespace, text: str, share: _processes.Share) -> None:
    choice = _model.choose(args, share)
    import numpy as np

    from intarsia.models import Engine, perplexity

    tokens, limit = choice.tokenizer.encode(text), choice.config.max_positions
    context = min(_CONTEXT, limit - 1) if args.context is None else args.context
    if not 2 <= context < limit:
        raise ValueError(f"--context is {context}, expected 2 to {limit - 1} for this model")
    pieces = [tokens[i : i + context] for i in range(0, len(tokens), context)]
    if len(tokens) < 2:
        raise ValueError(f"the text has {len(tokens)} tokens, expected 2 or more")
    own = share.of(pieces)
    share.stage("loading")
    model = choice.load()
    share.meet("loaded")
    engine = Engine(
        model.config,
        model.params,
        max_num_seqs=1,
        max_model_len=max(map(len, pieces)) + 1,
        parallel=model.parallel,
        kv_cache_dtype=args.kv_cache_dtype,
    )
    share.stage("compiling and scoring")
    scored = [values.tolist() for values in engine.prompt_logprobs(own, share.progress)]
    parts = share.gather("logprobs", scored)
    if not share.prints:
        return
    logprobs = [np.asarray(values, np.float32) for part in parts for values in part]
    cache = model.dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    count = sum(map(len, logprobs))
    print(
        f"perplexity {perplexity(logprobs):.4f} of {count} token{'s' * (count != 1)} "
        f"({model.name} in {model.precision}, KV cache in {cache})"
    )


def _read(name: str) -> str:
    try:
        if name == "-":
            return sys.stdin.buffer.read().decode()  # UTF-8, whatever the locale says
        return Path(name).read_bytes().decode()  # its line ends as they are
    except UnicodeDecodeError as error:
        raise ValueError(f"the text {name} is not UTF-8: {error}") from None
    except OSError as error:
        raise type(error)(f"the text {name}: {error.strerror}") from None
