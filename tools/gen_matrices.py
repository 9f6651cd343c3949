"""docs/matrices.md: what runs where, with which versions, and which transformations each op takes."""

import tomllib

import gen_words
import test_jax_vmap
from gen_words import HEADER, ROOT, table
from intarsia import _native
from intarsia.jax import _grad

_ENVIRONMENTS = {
    "jax": "`make test`, and so CI",
    "torch-newer": "`make test-torch`",
    "vllm-serve": "`make test-vllm`, and so CI",
    "vllm-ops": "`make test-vllm-ops`",
    "vllm-cpu-ops": "`make test-bridge-vllm`",
    "wheels-oldest": "`make test-wheels`, the oldest",
    "wheels-newest": "`make test-wheels`, the newest tested",
    "vllm-reference": "recorded the tokens that `make test-vllm` compares with",
    "fuzz": "`make fuzz-readers`",
}


def _pins() -> list[list[str]]:
    """The versions that pyproject.toml pins, by what runs with them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    torch_xla = project["project"]["optional-dependencies"]["torch-xla"]
    rows = [[f"`{pin}`" for pin in torch_xla if "==" in pin]]
    found = [["`make test`, and so CI", ", ".join(rows[0])]]
    for group, runs in _ENVIRONMENTS.items():
        pins = [f"`{pin}`" for pin in project["dependency-groups"][group] if "==" in pin]
        found.append([runs, ", ".join(pins)])
    return found


def _transformations(op: _native.Op) -> list[str]:
    mapped = test_jax_vmap.MAPPED.get(op.name)
    operands = [f"`{row['name']}`" for row in op.operands if mapped and row["name"] in mapped]
    return [
        f"[`{op.name}`](ops/{gen_words.family(op)}.md#{op.name})",
        ", ".join(operands) or "no",
        "yes" if _grad.has_gradient(op) else "no",
    ]


def page(ops: list[_native.Op]) -> str:
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = bounds["optional-dependencies"]
    users = [[f"`{name}`", ", ".join(f"`{p}`" for p in extras[name])] for name in ("jax", "cuda13")]
    users += [[f"`{name}`", ", ".join(f"`{p}`" for p in extras[name])] for name in ("torch",)]
    return f"""# Platforms and versions

<!-- {HEADER} -->

Linux alone, Python {bounds["requires-python"].lstrip(">=")} or newer. [The table of ops](ops.md#what-is-built) says which op runs where.

## Front ends

| front end | x86-64 CPU | NVIDIA GPU | guide |
|---|---|---|---|
| JAX | in CI | by hand, `make test-gpu` | [JAX](jax.md) |
| PyTorch, eager and inductor | in CI | by hand, `make test-gpu` | [PyTorch](torch.md) |
| `torch.compile(backend="intarsia")`, torchax | in CI | by hand | [PyTorch](torch.md) |
| torch_xla | in CI | by hand | [torch_xla](torch_xla.md) |
| vLLM's plugin | in CI | by hand | [vLLM](vllm.md) |
| C and C++ | in CI | by hand | [C and C++](start/cpp.md) |

On aarch64 the library builds with portable code for CPUs. CI has no such machine.

## CPUs

| instruction set | held back by |
|---|---|
| AVX-512 (F, BW, VL, DQ) | |
| AVX2 with FMA and F16C | `INTARSIA_ISA=avx2` |
| portable | on other processors |

## GPUs

| compute capability | GPUs | attention and grouped products |
|---|---|---|
| 9.0 | H100, H200 | Hopper's kernels (wgmma, TMA) for prefill in 16 bits, over an fp8 cache and in e4m3, and grouped products; the portable ones elsewhere |
| 8.0, 10.0 | A100, B200 | the portable kernels |
| 8.6, 8.9, 12.x | A10, L4, L40S, RTX 3090, 4090, 5090 | the portable kernels, with smaller tiles where 99 KB of shared memory ask for it |
| below 8.0 | V100, T4 | refused |

`intarsia doctor` names the kernels that a GPU gets. `INTARSIA_ARCH=80|86|89|90` holds a GPU back to those of another.

## Versions that run

{table(["extra", "asks for"], users)}

## Versions that are tested

{table(["by", "with"], _pins())}

## Transformations in JAX

`vmap` maps the operands that are named and shares the others. `grad` is reverse mode. `shard_map`, `scan` and `export` take every op.

{table(["op", "vmap over", "grad"], [_transformations(op) for op in ops])}
"""
