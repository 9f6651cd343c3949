"""`intarsia perplexity`: how well a model predicts a text, through the engine's prefill and cache."""

import argparse
import sys
from pathlib import Path

from intarsia.cli import _model

_CONTEXT = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("text", help="a file of text; - reads stdin")
    _model.add_arguments(parser)
    parser.add_argument(
        "--context",
        type=int,
        help="the text is cut into pieces of so many tokens, each scored alone (default: "
        f"{_CONTEXT}, or the model's limit)",
    )


def main(args: argparse.Namespace) -> int:
    """Scores; the result goes to stdout."""
    text = sys.stdin.read() if args.text == "-" else Path(args.text).read_text()
    model = _model.load(args)
    from intarsia.models import Engine, perplexity

    tokens = model.tokenizer.encode(text)
    context = args.context or min(_CONTEXT, model.config.max_positions - 1)
    if not 2 <= context < model.config.max_positions:
        raise ValueError(
            f"--context is {context}, expected 2 to {model.config.max_positions - 1} for this model"
        )
    pieces = [tokens[i : i + context] for i in range(0, len(tokens), context)]
    if len(tokens) < 2:
        raise ValueError(f"the text has {len(tokens)} tokens, expected 2 or more")
    engine = Engine(
        model.config,
        model.params,
        max_num_seqs=1,
        max_model_len=max(map(len, pieces)) + 1,
        tensor_parallel=args.tensor_parallel,
        kv_cache_dtype=args.kv_cache_dtype,
    )
    logprobs = engine.prompt_logprobs(pieces)
    cache = model.dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    print(
        f"perplexity {perplexity(logprobs):.4f} of {sum(map(len, logprobs))} tokens "
        f"({model.name} in {model.precision}, KV cache in {cache})"
    )
    return 0
