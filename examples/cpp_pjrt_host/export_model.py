"""Writes what `host` runs: a Llama's prefill and decode step as StableHLO, and the arrays that they take.

python examples/cpp_pjrt_host/export_model.py smollm2 build/llama --prompt "The loom was invented in" --max-tokens 64

MODEL is what `intarsia generate` takes: a name, a GGUF file, a folder. FOLDER gets
  prefill.mlir, decode.mlir  what jax.export made; caches and state are donated, so XLA writes them in place
  arrays.bin                 the first contents of all arrays, one after another
  host.txt                   a line for each array (dtype, rank, dims), which of them each program takes and gives, when to stop
"""

import argparse
import functools
from pathlib import Path
from typing import Any

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
from intarsia.models import (
    ModelConfig,
    SamplingParams,
    Tokenizer,
    find_model,
    load_model,
    transformer,
)
from intarsia.models.sampling import Mode
from intarsia.models.schedule import PAGE_SIZE, PageAllocator, Schedule, make_request
from intarsia.models.steps import State, decode, prefill


def arrays_of(config: ModelConfig, params: dict, prompt: list[int], max_tokens: int) -> list[Any]:
    """The operands of `prefill`, for one sequence: the last, a chunk, is not `decode`'s."""
    length = len(prompt) + max_tokens
    pages = -(-length // PAGE_SIZE)
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    request = make_request(0, prompt, sampling, stop_ids=config.eos_ids, max_model_len=length)
    schedule = Schedule([request], PageAllocator(pages), 1, pages)
    schedule.admit()
    chunk = schedule.next_chunk(len(prompt))
    caches = transformer.make_caches(config, pages, PAGE_SIZE, params["embed"].dtype)
    zero = np.zeros(1, np.int32)
    state = State(token=zero, length=zero, generated=zero, active=np.zeros(1, np.bool_))
    tables = tuple(map(jnp.asarray, config.rope_tables(length)))
    return [params, caches, tables, state, schedule.rows, chunk]


def write(folder: Path, config: ModelConfig, operands: list[Any], steps: int, platform: str):
    """Exports both steps; `host.txt` names arrays by their number."""
    tokens = np.zeros((1, 1), np.int32)
    leaves, tree = jax.tree.flatten([*operands, tokens])
    *numbers, token_number = jax.tree.unflatten(tree, range(len(leaves)))
    lines = [f"array {a.dtype} {a.ndim} {' '.join(map(str, a.shape))}".strip() for a in leaves]
    for step, statics, given in (
        (prefill, (), operands),
        (decode, (1,), operands[:-1]),
    ):
        function = functools.partial(step, intarsia.jax, config, Mode.GREEDY, *statics)
        exported = jax.export.export(
            jax.jit(function, donate_argnums=(1, 3)),
            disabled_checks=intarsia.jax.export_exemptions(),
            platforms=[platform],
        )(*given)
        (folder / f"{step.__name__}.mlir").write_bytes(exported.mlir_module_serialized)
        flat = jax.tree.leaves(numbers[: len(given)])
        taken = [flat[i] for i in exported.module_kept_var_idx]
        made = jax.tree.leaves((numbers[1], (numbers[3], token_number)))
        for word, row in (("takes", taken), ("gives", made)):
            lines.append(f"{step.__name__}_{word} {len(row)} {' '.join(map(str, row))}")
    caches = jax.tree.leaves(numbers[1])
    lines.append(f"caches {len(caches)} {' '.join(map(str, caches))}")
    lines.append(f"tokens {token_number} {steps}")
    lines.append(f"stop {len(config.eos_ids)} {' '.join(map(str, config.eos_ids))}")
    (folder / "host.txt").write_text("\n".join(lines) + "\n")
    with (folder / "arrays.bin").open("wb") as file:
        for array in leaves:
            file.write(np.asarray(array).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default="The loom was invented in")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--platform", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    path = find_model(args.model)
    config, params = load_model(path)
    prompt = Tokenizer.from_path(path).encode(args.prompt)
    args.folder.mkdir(parents=True, exist_ok=True)
    operands = arrays_of(config, params, prompt, args.max_tokens)
    write(args.folder, config, operands, args.max_tokens, args.platform)


if __name__ == "__main__":
    main()
