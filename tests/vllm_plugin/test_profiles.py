"""What a profile tells: JAX's trace, in which ops have the names of vLLM's layers."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import profiler, scopes, worker
from intarsia.vllm.compat import import_torchax
from vllm.config import ProfilerConfig
from vllm.v1.executor import abstract
from vllm.v1.worker import gpu_worker

_, ENVIRONMENT = import_torchax()
from torchax import interop  # noqa: E402  not before torchax is imported as it has to be


class Layer(torch.nn.Module):
    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.proj, self.act = torch.nn.Linear(4, 4), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.proj(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        act = torch.nn.Sigmoid()  # of both
        self.layers = torch.nn.ModuleList([Layer(act), Layer(act)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_ops_have_the_names_of_layers() -> None:
    model = Model().eval()
    weights = {name: jnp.asarray(x.detach().numpy()) for name, x in model.named_parameters()}

    def step(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        with torch.no_grad(), ENVIRONMENT, scopes.of_modules(model):
            operands = interop.torch_view(weights)
            out = torch.func.functional_call(model, operands, (interop.torch_view(x),))
        return interop.jax_view(out)

    text = jax.jit(step).lower(weights, jnp.ones((2, 4))).as_text(debug_info=True)
    assert "layers/0/proj/" in text and "layers/1/proj/" in text
    assert "layers/0/act/" in text


def test_a_model_that_does_not_trace_leaves_no_names() -> None:
    model = Model()
    model.layers[1].proj.weight = torch.nn.Parameter(torch.ones(3, 3))
    with pytest.raises(RuntimeError), scopes.of_modules(model):
        model(torch.ones(1, 4))
    text = jax.jit(jnp.sin).lower(jnp.ones(3)).as_text(debug_info=True)
    assert "layers" not in text
    assert not torch.nn.modules.module._global_forward_pre_hooks


def worker_of(rank: int, replica: int, folder: Path, **given: int) -> worker.XlaWorker:
    one = object.__new__(worker.XlaWorker)
    one.profiler = None
    one.profiler_config = ProfilerConfig(
        profiler="torch", torch_profiler_dir=str(folder), ignore_frontend=True, **given
    )
    one.rank, one.parallel_config = rank, SimpleNamespace(data_parallel_index=replica)
    return one


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What JAX's tracer is told, and the user."""
    found: list[str] = []
    tracer = SimpleNamespace(
        start_trace=lambda folder: found.append(f"start {Path(folder).name}"),
        stop_trace=lambda: found.append("stop"),
    )
    monkeypatch.setattr(profiler, "jax", SimpleNamespace(profiler=tracer))
    log = SimpleNamespace(warning=lambda text: found.append(text))
    monkeypatch.setattr(profiler, "logger", log)
    monkeypatch.setattr(gpu_worker, "logger", log)
    return found


def test_a_profile_is_jaxs(tmp_path: Path) -> None:
    one = worker_of(0, 0, tmp_path)
    for prefix in (None, "warm"):
        one.profile(True, prefix)
        jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((64, 64))))
        one.profile(False)
    traces = {x.relative_to(tmp_path).parts[0]: x for x in tmp_path.rglob("*.xplane.pb")}
    assert sorted(traces) == ["replica0_rank0", "warm_replica0_rank0"]
    assert all(b"dot" in trace.read_bytes() for trace in traces.values())


def test_ranks_of_a_host_profile_in_folders_of_their_own(tmp_path: Path, done: list[str]) -> None:
    """In one, the trace of whoever wrote last was left."""
    for replica, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        worker_of(rank, replica, tmp_path).profile(True)
    assert done == [
        "start replica0_rank0",
        "start replica0_rank1",
        "start replica1_rank0",
        "start replica1_rank1",
    ]


def test_a_profile_is_of_the_steps_that_are_asked_for(tmp_path: Path, done: list[str]) -> None:
    """Of the server's settings, or of this profile's own."""
    one = worker_of(0, 0, tmp_path, delay_iterations=2)
    for own in ({}, {"delay_iterations": 1, "max_iterations": 1}):
        one.profile(True, **own)
        for _ in range(4):
            done.append("step")
            one.profiler.step()
        one.profile(False)
    began = "start replica0_rank0"
    assert done[:7] == ["step", "step", began, "step", "step", "stop", "step"]
    # vLLM counts where a step begins: the one that is profiled lies between.
    assert done[7:10] == [began, "step", "stop"]
    assert done[-1] == "intarsia-vllm: /stop_profile: no profile is running"


def test_what_comes_out_of_turn_is_told_and_no_error(tmp_path: Path, done: list[str]) -> None:
    one = worker_of(0, 0, tmp_path)
    one.profile(False)
    for prefix in ("a", "b"):
        one.profile(True, prefix)
    for _ in range(2):
        one.profile(False)
    assert done == [
        "Profiler was not started, nothing to stop.",
        "start a_replica0_rank0",
        "intarsia-vllm: /start_profile: a profile is running, which goes on",
        "stop",
        "intarsia-vllm: /stop_profile: no profile is running",
    ]


def test_an_error_of_the_tracers_is_not_a_ranks(tmp_path: Path) -> None:
    """JAX has one trace at a time, and this is another's."""
    jax.profiler.start_trace(tmp_path / "another")
    one = worker_of(0, 0, tmp_path)
    one.profile(True)
    one.profile(False)
    jax.profiler.stop_trace()
    assert [x.name for x in tmp_path.iterdir()] == ["another"]


@pytest.mark.parametrize("name", ["XlaWorker", "XlaCpuWorker"])
def test_arguments_of_torchs_profiler_are_refused_before_a_worker_is_asked(name: str) -> None:
    """By vLLM, which looks whether the worker has such a parameter."""
    path = f"intarsia.vllm.worker.{name}"
    abstract._check_worker_profile_kwargs(path, {"delay_iterations": 1, "max_iterations": 1})
    with pytest.raises(ValueError, match=r"does not support .* overrides: profiler_kwargs"):
        abstract._check_worker_profile_kwargs(path, {"profiler_kwargs": {"with_stack": True}})


def test_a_prefix_that_would_leave_the_folder_is_refused(tmp_path: Path, done: list[str]) -> None:
    with pytest.raises(ValueError, match="profile_prefix must be"):
        worker_of(0, 0, tmp_path).profile(True, "../other")
    assert not done


def test_a_profile_that_was_not_asked_for_is_refused() -> None:
    one = object.__new__(worker.XlaWorker)
    one.profiler = one.profiler_config = None
    with pytest.raises(RuntimeError, match="--profiler-config"):
        one.profile(True)
