"""Ops that a platform lacks: listed as such, refused there with a clear error, and XLA's version in their place."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
import wire
from intarsia import _native
from intarsia.cli import doctor
from intarsia.jax import _platforms
from jax import P, export, lax
from sharded import mesh_of, normal

LIBRARY = _native.main_library()
ON_GPUS = "all_reduce_fused_add_rms_norm"
X, W = normal(8, 64), normal(32, 64)


def product(x, w):
    """The op by itself, and no function that has XLA's version."""
    return ij.call("linear", (x, w))[0]


def lower(function, *arguments, on: tuple[str, ...]) -> str:
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=on).as_text()


def test_the_manifest_lists_every_op_with_its_platforms() -> None:
    platforms = {row["name"]: tuple(row["platforms"]) for row in LIBRARY.manifest["ops"]}
    assert sorted(platforms) == support.listed_ops()
    one = {name: found for name, found in platforms.items() if found != ("cpu", "cuda")}
    assert one.items() >= {("linear", ("cpu",)), (ON_GPUS, ("cuda",))}
    assert not {"cpu_ops", "cuda_ops"} & LIBRARY.manifest.keys()


def test_handlers_are_there_where_the_op_is() -> None:
    found = {(h.target, h.platform) for h in LIBRARY.handlers()}
    assert ("intarsia.linear", "Host") in found and ("intarsia.linear", "CUDA") not in found
    assert (f"intarsia.{ON_GPUS}", "Host") not in found


@pytest.mark.parametrize(
    ("op", "platform", "message"),
    [
        ("linear", "CUDA", "linear: runs on cpu, not on cuda"),
        (ON_GPUS, "Host", f"{ON_GPUS}: runs on cuda, not on cpu"),
    ],
)
def test_a_call_where_the_op_is_not(op: str, platform: str, message: str) -> None:
    call = wire.example(LIBRARY.find(op))
    results = [running.tensor(np.zeros(r.shape, np.float32)) for r in call.results]
    with pytest.raises(NotImplementedError, match=message):
        operands = [running.tensor(x) for x in call.operands]
        LIBRARY.call(op, platform, operands, call.attributes, results)


def test_a_program_for_a_platform_without_the_op_is_refused() -> None:
    assert "@intarsia.linear(" in lower(product, X, W, on=("cpu",))
    message = "linear: runs on cpu, not in a program for cuda; intarsia.jax.linear is XLA's version"
    with pytest.raises(NotImplementedError, match=message):
        lower(product, X, W, on=("cuda",))
    call = wire.example(LIBRARY.find(ON_GPUS))
    with pytest.raises(NotImplementedError, match=f"{ON_GPUS}: runs on cuda, not in a .* for cpu"):
        ij.call(ON_GPUS, call.operands, **call.attributes)


def test_a_call_in_the_branch_of_its_platform_is_not() -> None:
    """In a program for several, whose branches JAX lowers for all of them."""

    def either(x, w):
        return lax.platform_dependent(x, w, cpu=product, default=lambda x, w: x @ w.T)

    text = lower(either, X, W, on=("cpu", "cuda"))
    assert "@intarsia.linear(" in text and "stablehlo.dot_general" in text
    assert "@intarsia.linear(" not in lower(either, X, W, on=("cuda",))
    exporter = export.export(
        jax.jit(either), platforms=("cpu", "cuda"), disabled_checks=ij.export_exemptions()
    )
    np.testing.assert_allclose(exporter(X, W).call(X, W), X @ W.T, rtol=1e-5, atol=1e-4)


def test_the_check_stands_in_no_one_s_way() -> None:
    """Under vmap, grad, shard_map with its checks, and without jit."""
    want = X @ W.T
    near = dict(rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(jax.vmap(product, (0, None))(X[:, None], W)[:, 0], want, **near)
    got = jax.jit(jax.grad(lambda w: product(X, w).sum()))(W)
    np.testing.assert_allclose(got, np.tile(X.sum(0), (32, 1)), **near)
    mesh = mesh_of(model=2)
    parts = jax.shard_map(product, mesh=mesh, in_specs=(P("model"), P()), out_specs=P("model"))
    np.testing.assert_allclose(jax.jit(parts)(X, W), want, **near)
    with jax.disable_jit():
        np.testing.assert_allclose(product(jnp.asarray(X), jnp.asarray(W)), want, **near)


def test_a_function_with_a_fallback(monkeypatch) -> None:
    """The op where its spec has it, XLA's version elsewhere; keywords reach both."""
    monkeypatch.setattr(_platforms, "_with_fallback", set())
    function = _platforms.with_fallback(
        "simple_add",
        lambda a, b, *, scale: ij.simple_add(a, b) * scale,
        lambda a, b, *, scale: (a - -b) * scale,
    )
    assert _platforms.has_fallback(LIBRARY.find("simple_add"))

    def doubled(a, b):
        return function(a, b, scale=2.0)

    np.testing.assert_allclose(jax.jit(doubled)(X, X), 4 * X)
    for platform in ("cpu", "cuda"):
        assert "@intarsia.simple_add(" in lower(doubled, X, X, on=(platform,))
    text = lower(doubled, X, X, on=("tpu",))
    assert "intarsia." not in text and "stablehlo.subtract" in text


@pytest.mark.parametrize("op", ["linear", ON_GPUS])
def test_the_docs_say_where_it_runs(op: str) -> None:
    docs = support.ROOT / "docs"
    family = {"linear": "matmul", ON_GPUS: "norm"}[op]
    page = (docs / "ops" / f"{family}.md").read_text()
    where = {"linear": ("CPU", "| yes | XLA's |"), ON_GPUS: ("CUDA", "| XLA's | yes |")}[op]
    section = page.split(f"\n## {op}\n")[1].split("\n## ")[0]
    assert f"Runs on {where[0]} alone; `intarsia.jax.{op}` is XLA's version" in section
    row = f"[`{op}`](ops/{family}.md#{op}) {where[1]}"
    assert row in (docs / "ops.md").read_text()


def test_the_doctor_names_them(capsys) -> None:
    doctor._check_library(doctor._Report())
    said = capsys.readouterr().out
    assert f"{len(LIBRARY.ops)} ops, " in said
    assert f"{ON_GPUS} on cuda alone" in said and "linear on cpu alone" in said


def test_what_makes_up_its_operands_cannot_be_sharded() -> None:
    """The spec says nothing of the arguments that its function takes instead."""
    with pytest.raises(ValueError, match=f"shard: {ON_GPUS} is no op of intarsia.jax, expected"):
        ij.shard(ij.all_reduce_fused_add_rms_norm, mesh_of(model=2), tokens="model")
    with pytest.raises(AttributeError, match=f"ShardedOps has no {ON_GPUS}"):
        _ = getattr(ij.ShardedOps(mesh_of(model=2), tokens="model"), ON_GPUS)
