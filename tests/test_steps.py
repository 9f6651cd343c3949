"""XLA's settings for a model's step."""

import jax
import jax.numpy as jnp
import pytest
from intarsia._steps import _graphs, compile_step


@pytest.mark.parametrize("tokens", [1, 64])
@pytest.mark.parametrize("to_run", [True, False])
def test_a_step_compiles_with_its_settings(tokens: int, to_run: bool) -> None:
    lowered = jax.jit(lambda x: 2 * x).lower(jnp.ones(3))
    compiled = compile_step(lowered, tokens, to_run=to_run)
    assert compiled(jnp.ones(3)).tolist() == [2, 2, 2]
    assert compiled.memory_analysis().output_size_in_bytes == 12


@pytest.mark.parametrize(
    ("version", "flags", "chosen"),
    [
        ((0, 11, 2), "", False),  # has no such kind
        ((0, 12, 0), "", True),
        ((0, 13, 0), "", False),  # not measured
        ((0, 12, 0), "--xla_gpu_enable_command_buffer=", False),  # the user chose
    ],
)
def test_graphs_on_gpus_hold_collectives(monkeypatch, version, flags, chosen) -> None:
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setenv("XLA_FLAGS", flags)
    kinds = _graphs().get("xla_gpu_enable_command_buffer", "")
    assert ("COLLECTIVES_KERNEL" in kinds) == chosen
