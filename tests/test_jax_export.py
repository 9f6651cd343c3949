"""Programs exported with `jax.export`: they come back, run in place, and those of old releases still run."""

import runpy
import subprocess
import sys

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recordings
import running
import support
import test_jax
from jax import export

RECORDED = sorted(recordings.FOLDER.glob("*/*.npz"))
REPLAYED = [
    pytest.param(
        path, row.values[1], id=f"{path.parent.name}-{path.stem}-{row.values[1]}", marks=row.marks
    )
    for path in RECORDED
    if path.stem not in support.NOT_CALLED_ALONE
    for row in running.on_its_platforms(path.stem)
]


def round_trip(function, *arguments, donate: tuple[int, ...] = ()) -> export.Exported:
    exporter = export.export(
        jax.jit(function, donate_argnums=donate), disabled_checks=ij.export_exemptions()
    )
    return export.deserialize(exporter(*arguments).serialize())


@pytest.mark.parametrize(("path", "platform"), REPLAYED)
def test_what_was_exported_still_runs(path, platform: str) -> None:
    recording = recordings.Recording.load(path)
    got = recording.replay(platform)
    least = running.least_tolerance(path.stem, recording.operands, platform)
    for i, (result, want) in enumerate(zip(got, recording.results, strict=True)):
        assert result.dtype == want.dtype
        running.check(path.stem, result, want.astype(np.float64), f"result {i}", least)


@running.on_each_platform
@pytest.mark.parametrize(
    "path", [p for p in RECORDED if running.donated(p.stem)], ids=lambda p: p.parent.name
)
def test_what_was_exported_still_writes_in_place(path, platform: str) -> None:
    """Under a jit that donates what shares its buffer with a result."""
    recording = recordings.Recording.load(path)
    shared = running.donated(path.stem)  # of its example all operands up to these are there
    device = jax.devices(platform)[0]
    arrays = [jnp.copy(jax.device_put(x, device)) for x in recording.operands]
    pointers = [arrays[i].unsafe_buffer_pointer() for i in shared]
    results = jax.tree.leaves(jax.jit(recording.exported().call, donate_argnums=shared)(*arrays))
    rows = running.LIBRARY.find(path.stem).results
    written = [x for x, row in zip(results, rows, strict=True) if row["alias"]]
    assert [x.unsafe_buffer_pointer() for x in written] == pointers
    for got, want in zip(results, recording.results, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


def test_every_op_of_this_version_is_recorded() -> None:
    """For its platforms, under the published exemptions."""
    assert recordings.missing() == [], "run `make gen`, or tools/record_exports.py"


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_recordings_are_of_calls_and_nothing_else(path) -> None:
    recording = recordings.Recording.load(path)
    program = recording.program
    assert b"intarsia." in program
    published = {str(check) for check in ij.export_exemptions()}
    used = {str(check) for check in recording.exported().disabled_safety_checks}
    assert used and used <= published
    assert b".py" not in program, "the program holds the paths of the machine that recorded it"
    assert path.stat().st_size < 100_000


def test_a_recording_is_read_as_it_was_written(tmp_path) -> None:
    """Also with element types that NumPy's format does not know."""
    types = [support.DTYPES["bf16"], np.dtype("float8_e4m3fn"), np.int64]
    values = [np.arange(6).astype(dtype).reshape(2, 3) for dtype in types]
    written = recordings.Recording(b"\0program\0", values, [np.zeros((0, 4), np.float16)])
    written.save(tmp_path / "op.npz")
    read = recordings.Recording.load(tmp_path / "op.npz")
    assert read.program == written.program
    for got, want in zip(
        [*read.operands, *read.results], [*written.operands, *written.results], strict=True
    ):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert got.tobytes() == want.tobytes()


def test_a_recording_is_not_overwritten(monkeypatch, capsys) -> None:
    path = recordings.path_of("rms_norm")
    before = path.read_bytes()
    tool = support.ROOT / "tools" / "record_exports.py"
    monkeypatch.setattr(sys, "argv", [str(tool), "rms_norm"])
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the tool extends
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tool), run_name="__main__")
    assert ended.value.code == 2
    assert "rms_norm: recorded already; --overwrite records again" in capsys.readouterr().err
    assert path.read_bytes() == before


@running.on_each_platform
def test_an_exported_step_writes_the_cache_in_place(platform: str) -> None:
    batch = test_jax.make_batch("NHD", None)
    arrays = test_jax.put(batch, platform)
    with jax.default_device(jax.devices(platform)[0]):
        exported = round_trip(test_jax.decode, *arrays, donate=(3,))
    want_out, want_caches = test_jax.decode_in_numpy(*batch)
    compiled = jax.jit(exported.call, donate_argnums=3).lower(*arrays).compile()
    opcodes = test_jax.opcodes_of_shape(compiled.as_text(), batch[3][0].shape)
    assert {"custom-call", "parameter"} <= opcodes <= test_jax.IN_PLACE
    pointers = [cache.unsafe_buffer_pointer() for cache in arrays[3]]
    out, caches = compiled(*arrays)
    assert [cache.unsafe_buffer_pointer() for cache in caches] == pointers
    running.check("paged_attention", np.asarray(out), want_out)
    for cache, want in zip(caches, want_caches, strict=True):
        np.testing.assert_array_equal(np.asarray(cache), want)


def test_one_program_for_cpus_and_gpus() -> None:
    """Exported where there is no GPU: the targets have the same names everywhere."""
    x = jnp.ones((2, 8))
    exported = export.export(
        jax.jit(ij.rms_norm), platforms=["cpu", "cuda"], disabled_checks=ij.export_exemptions()
    )(x)
    assert exported.platforms == ("cpu", "cuda")
    restored = export.deserialize(exported.serialize())
    np.testing.assert_array_equal(np.asarray(restored.call(x)), np.asarray(ij.rms_norm(x)))


def test_gradients_are_exported_with_the_program() -> None:
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    exported = export.export(jax.jit(ij.rms_norm), disabled_checks=ij.export_exemptions())(x)
    restored = export.deserialize(exported.serialize(vjp_order=1))
    got = jax.jit(jax.grad(lambda x: jnp.sum(restored.call(x) ** 3)))(x)
    want = jax.jit(jax.grad(lambda x: jnp.sum(ij.rms_norm(x) ** 3)))(x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_the_exemptions_are_our_targets() -> None:
    names = {str(check) for check in ij.export_exemptions()}
    targets = {handler.target for handler in running.LIBRARY.handlers()}
    targets |= {op.target for op in running.LIBRARY.ops.values()}  # whatever this build has
    assert targets >= {"intarsia.rms_norm", "XlaGpuSimpleAdd", "vllm_rms_norm_cuda"}
    assert names == {str(export.DisabledSafetyCheck.custom_call(target)) for target in targets}
    with pytest.raises(ValueError, match=r"intarsia\.simple_add"):
        export.export(jax.jit(ij.simple_add))(jnp.ones(3), jnp.ones(3))


def test_a_process_that_only_runs_exported_programs(tmp_path) -> None:
    x = jnp.linspace(-1, 1, 8)
    exported = export.export(jax.jit(ij.rms_norm), disabled_checks=ij.export_exemptions())(x)
    (tmp_path / "program").write_bytes(exported.serialize())
    code = f"""
import jax.numpy as jnp, intarsia.jax
from jax import export
program = export.deserialize(bytearray(open({str(tmp_path / "program")!r}, "rb").read()))
print([float(y) for y in program.call(jnp.linspace(-1, 1, 8))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(eval(done.stdout), np.asarray(ij.rms_norm(x)), rtol=1e-6)


def test_symbolic_shapes_are_refused() -> None:
    (tokens,) = export.symbolic_shape("t")
    x = jax.ShapeDtypeStruct((tokens, 8), jnp.float32)
    with pytest.raises(NotImplementedError, match=r"rms_norm: x has the symbolic shape \(t, 8\)"):
        export.export(jax.jit(ij.rms_norm), disabled_checks=ij.export_exemptions())(x)
