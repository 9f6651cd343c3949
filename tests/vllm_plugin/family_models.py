"""Models of `families.FAMILIES` with random weights: made, asked of transformers, and asked of vLLM with our plugin.

cd tests/vllm_plugin && PYTHONPATH=.. python family_models.py qwen3_moe gemma3    # by hand, in the environment of make test-vllm
"""

import json
import math
import os
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from families import FAMILIES
from family import BASE, Family
from family_checkpoints import restate
from family_weights import rewrite

STEPS = 12
"""How many tokens each prompt is given."""


class Answer(NamedTuple):
    """What transformers says behind each part of a continued prompt."""

    tokens: list[int]
    deficits: list[float]
    """How far the logit of the token that came is behind the best one's."""


def prompts() -> list[list[int]]:
    """Token ids: two short prompts, and one that comes in two chunks and is longer than any sliding window."""
    random = np.random.default_rng(7)
    return [[int(t) for t in random.integers(3, 512, n)] for n in (5, 17, 90)]


def make(name: str, directory: Path) -> None:
    """Writes a family's model: in `model` as vLLM is given it, in `reference` as transformers is."""
    import torch

    family = FAMILIES[name]
    torch.manual_seed(0)
    model = _class(family).from_config(_config(family), dtype=torch.float32)
    randomize(model, family.factors)
    model.save_pretrained(directory / "reference")
    if family.form:
        rewrite(directory / "reference", directory / "model", family.form)
    elif not family.architecture:
        (directory / "model").symlink_to(directory / "reference")
    if family.architecture:
        checkpoint = "model" if family.form else "reference"
        restate(directory / checkpoint, directory / "model", family.architecture)


def randomize(model: Any, factors: Mapping[str, float] = {}) -> None:
    """Gives a model weights that depend on nothing but their names, times the factors of names that have these in them."""
    import torch

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and "inv_freq" not in name:
                array = _random(name, tuple(tensor.shape))
                array *= math.prod(factor for part, factor in factors.items() if part in name)
                tensor.copy_(torch.from_numpy(array))
    model.tie_weights()


def _config(family: Family) -> Any:
    from transformers import AutoConfig

    text = {**BASE, **family.config}
    if family.around is None:
        return AutoConfig.for_model(family.kind, **text)
    tied = text["tie_word_embeddings"]
    around = {"tie_word_embeddings": tied} | dict(family.around)
    return AutoConfig.for_model(family.kind, text_config=text, **around)


def _class(family: Family) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if family.kind == "k2_horizon":
        import family_k2_horizon  # noqa: F401  which makes it known to transformers
    return AutoModelForCausalLM if family.around is None else AutoModelForImageTextToText


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """So wide that greedy choices are clear."""
    array = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if "norm" in name.lower() and name.endswith("weight"):
        return 1 + 0.1 * array
    if len(shape) < 2:
        return 0.3 * array
    if "embed" in name:
        return 0.5 * array
    return array * (1.5 / np.sqrt(shape[-1]))


def by_transformers(
    name: str, directory: Path, continued: list[list[int]], config: Any
) -> list[Answer]:
    """What transformers says, greedily, behind each part of the prompts with these continuations.

    If it says the same, it would have continued them so: each token is the best one behind those before it. `config` is the
    engine's, which has run.
    """
    import torch
    from vllm.config import set_current_vllm_config

    # Where vLLM serves a model by transformers' classes, it has decorated them to ask for a configuration.
    with set_current_vllm_config(config):
        model = _class(FAMILIES[name]).from_pretrained(
            directory / "reference", dtype=torch.float32, attn_implementation="eager"
        )
    model.eval()
    answers = []
    for prompt, tokens in zip(prompts(), continued, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + tokens[:-1]])).logits[0]
        rows = logits[len(prompt) - 1 :]
        best = rows.max(-1)
        taken = rows[torch.arange(len(tokens)), torch.tensor(tokens)]
        answers.append(Answer(best.indices.tolist(), (best.values - taken).tolist()))
    return answers


class Run(NamedTuple):
    """What vLLM did with the prompts."""

    tokens: list[list[int]]
    custom_calls: dict[str, dict[str, int]]
    """How often each of our ops stands in each program."""
    config: Any
    """The engine's."""


def by_vllm(name: str, directory: Path, **options: Any) -> Run:
    """Continues them by vLLM."""
    from vllm_running import engine, greedy

    sizes = {
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "kv_cache_memory_bytes": 8 << 20,
        "additional_config": {"request_buckets": [4], "token_buckets": [64]},
        "skip_tokenizer_init": True,
    }
    with engine(directory / "model", **sizes | dict(FAMILIES[name].options) | options) as llm:
        texts = [{"prompt_token_ids": ids} for ids in prompts()]
        sampling = greedy(max_tokens=STEPS, detokenize=False)
        requests = llm.generate(texts, sampling, use_tqdm=False)
        programs, *_ = llm.collective_rpc("xla_programs")
        config = llm.llm_engine.vllm_config
    tokens = [list(x.outputs[0].token_ids) for x in requests]
    return Run(tokens, programs["custom_calls"], config)


def _try(name: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        start = time.process_time()
        directory = Path(root) / name
        make(name, directory)
        made = time.process_time()
        tokens, calls, config = by_vllm(name, directory)
        ran = time.process_time()
        answers = by_transformers(name, directory, tokens, config)
    wanted = [answer.tokens for answer in answers]
    verdict = "same" if tokens == wanted else f"{tokens} for {wanted}"
    seconds = made - start, ran - made, time.process_time() - ran
    behind = max(max(answer.deficits) for answer in answers)
    print(name, verdict, f"{behind:.4f}", *(f"{s:.0f} s" for s in seconds), json.dumps(calls))


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "VLLM_NO_USAGE_STATS": "1"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    for asked in sys.argv[1:]:
        try:
            _try(asked)
        except Exception:
            print(asked, "failed:", *traceback.format_exc().splitlines()[-40:], sep="\n  ")
        sys.stdout.flush()
