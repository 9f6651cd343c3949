"""What a profile tells: JAX's trace, in which ops have the names of vLLM's layers."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import scopes, worker
from intarsia.vllm.compat import import_torchax

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


def worker_of(rank: int, replica: int, folder: Path) -> worker.XlaWorker:
    one = object.__new__(worker.XlaWorker)
    one.profiler_config = SimpleNamespace(profiler="torch", torch_profiler_dir=str(folder))
    one.rank, one.parallel_config = rank, SimpleNamespace(data_parallel_index=replica)
    return one


def test_a_profile_is_jaxs(tmp_path: Path) -> None:
    one = worker_of(0, 0, tmp_path)
    one.profile(True, "prefix")
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((64, 64))))
    one.profile(False)
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"dot" in trace.read_bytes()


def test_ranks_of_a_host_profile_in_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one, the trace of whoever wrote last was left."""
    chosen = []
    monkeypatch.setattr(jax.profiler, "start_trace", chosen.append)
    for replica, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        worker_of(rank, replica, tmp_path).profile(True)
    assert [Path(folder).relative_to(tmp_path).as_posix() for folder in chosen] == [
        "replica0_rank0",
        "replica0_rank1",
        "replica1_rank0",
        "replica1_rank1",
    ]


def test_a_profile_that_was_not_asked_for_is_refused() -> None:
    one = object.__new__(worker.XlaWorker)
    one.profiler_config = None
    with pytest.raises(RuntimeError, match="--profiler-config"):
        one.profile(True)
