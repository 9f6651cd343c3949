"""XLA's settings for a model's step."""

import jax
import jax.numpy as jnp
import pytest
from intarsia._steps import _graphs, compile_step


@pytest.mark.parametrize("tokens", [1, 64])
def test_a_step_compiles_with_its_settings(tokens: int) -> None:
    compiled = compile_step(jax.jit(lambda x: 2 * x).lower(jnp.ones(3)), tokens)
    assert compiled(jnp.ones(3)).tolist() == [2, 2, 2]


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
