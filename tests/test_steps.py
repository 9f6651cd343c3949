"""XLA's settings for a model's step."""

import jax
import jax.numpy as jnp
import pytest
from intarsia._steps import compile_step, custom_calls, options_of_step

TRITON, TUNING = "xla_gpu_enable_triton_gemm", "xla_gpu_autotune_level"
GRAPHS = "xla_gpu_enable_command_buffer"


@pytest.mark.parametrize("tokens", [1, 64])
@pytest.mark.parametrize("to_run", [True, False])
def test_a_step_compiles_with_its_settings(tokens: int, to_run: bool) -> None:
    lowered = jax.jit(lambda x: 2 * x).lower(jnp.ones(3))
    compiled = compile_step(lowered, tokens, to_run=to_run)
    assert compiled(jnp.ones(3)).tolist() == [2, 2, 2]
    assert compiled.memory_analysis().output_size_in_bytes == 12


@pytest.mark.parametrize(
    ("tokens", "to_run", "flags", "options"),
    [
        (1, True, "", {}),
        (63, True, "", {}),
        (64, True, "", {TRITON: False}),
        (512, True, "", {TRITON: False}),
        (1, False, "", {TRITON: False, TUNING: 0}),
        (64, False, "", {TRITON: False, TUNING: 0}),
        (64, True, f"--{TRITON}=true", {}),
        (1, False, f"--{TRITON}=true", {TUNING: 0}),
        (64, True, f"--{TUNING}=4", {TRITON: False}),
        (64, False, f"--{TUNING}=4", {TRITON: False, TUNING: 0}),
    ],
)
def test_products_on_a_gpu(
    tokens: int, to_run: bool, flags: str, options: dict[str, object]
) -> None:
    assert options_of_step("gpu", tokens, to_run=to_run, flags=flags) == options


def test_steps_on_cpus_are_ordered_for_memory() -> None:
    name = "xla_cpu_scheduler_type"
    for several in (False, True):
        chosen = options_of_step("cpu", 64, to_run=False, several=several)
        assert chosen == {name: "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    assert not options_of_step("cpu", 64, flags=f"--{name}=CPU_SCHEDULER_TYPE_DEFAULT")


@pytest.mark.parametrize(
    ("version", "several", "flags", "chosen"),
    [
        ((0, 11, 2), True, "", False),  # has no such kind
        ((0, 12, 0), True, "", True),
        ((0, 12, 0), False, "", False),
        ((0, 13, 0), True, "", False),  # not measured
        ((0, 12, 0), True, f"--{GRAPHS}=", False),  # the user chose
    ],
)
def test_graphs_on_gpus_hold_collectives(monkeypatch, version, several, flags, chosen) -> None:
    monkeypatch.setattr(jax, "__version_info__", version)
    kinds = options_of_step("gpu", 1, several=several, flags=flags).get(GRAPHS, "")
    assert ("COLLECTIVES_KERNEL" in kinds) == chosen


def test_flags_of_the_environment_are_heeded(monkeypatch) -> None:
    seen = []
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_DEFAULT")
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    monkeypatch.setattr(type(lowered), "compile", lambda self, options: seen.append(options))
    compile_step(lowered)
    monkeypatch.setenv("XLA_FLAGS", "")
    compile_step(lowered)
    assert "xla_cpu_scheduler_type" not in seen[0]
    assert jax.default_backend() != "cpu" or "xla_cpu_scheduler_type" in seen[1]


def test_calls_of_a_program_are_counted() -> None:
    line = '%a = f32[2] custom-call(%b), custom_call_target="{}", api_version=...'
    names = ["intarsia.rope", "intarsia.add", "other.add", "intarsia.rope"]
    calls = custom_calls("\n".join(map(line.format, names)))
    assert list(calls.items()) == [("add", 1), ("rope", 2)]
