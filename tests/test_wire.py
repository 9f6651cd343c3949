"""docs/ops shows the StableHLO of each op's call; here XLA runs it without any of our Python."""

import re

import intarsia.jax
import jax
import numpy as np
import pytest
import running
import support
import wire
from intarsia import _native
from jax._src import xla_bridge  # as a front end of its own would: text in, program out
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir


def snippets() -> dict[str, str]:
    """The ```mlir block of each section of docs/ops."""
    pages = sorted((support.ROOT / "docs" / "ops").glob("*.md"))
    sections = [s for page in pages for s in re.split(r"^## ", page.read_text(), flags=re.M)[1:]]
    blocks = {
        s.splitlines()[0].strip(): re.findall(r"```mlir\n(.*?)```", s, re.S) for s in sections
    }
    assert all(len(found) <= 1 for found in blocks.values())
    return {op: found[0] for op, found in blocks.items() if found}


def execute(text: str, operands: list[np.ndarray], platform: str) -> list[np.ndarray]:
    intarsia.jax.register(_native.main_library())
    client = xla_bridge.get_backend(platform)
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        devices = xla_client.DeviceList(tuple(client.local_devices()[:1]))
        program = client.compile_and_load(module, devices, xla_client.CompileOptions())
    arrays = [jax.device_put(x, client.local_devices()[0]) for x in operands]
    return [np.asarray(x) for x in program.execute(arrays)]


def test_every_op_has_a_snippet() -> None:
    assert sorted(snippets()) == sorted(_native.main_library().ops)


@pytest.mark.parametrize(
    ("op", "platform"), [row for op in support.op_names() for row in running.on_its_platforms(op)]
)
def test_snippet_runs(op: str, platform: str) -> None:
    call = wire.example(_native.main_library().find(op))
    assert f"@intarsia.{op}(" in snippets()[op]
    operands = [x for x in call.operands if x is not None]
    # Caches alias: what the program writes must not be NumPy's memory.
    got = execute(snippets()[op], [np.array(x) for x in operands], platform)
    running.check_against_reference(op, call.operands, call.attributes, got)


def test_a_snippet_with_an_attribute_of_the_future_is_refused() -> None:
    call = wire.example(_native.main_library().find("rms_norm"))
    text = snippets()["rms_norm"].replace(
        "backend_config = {", "backend_config = {zeal = 1 : i64, "
    )
    with pytest.raises(Exception, match="rms_norm: unknown attribute zeal; exported by a newer"):
        execute(text, [x for x in call.operands if x is not None], "cpu")


def test_an_op_without_an_example_is_told_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = support.op_module("rms_norm").CASES
    untagged = {name: case | {"tags": "ci"} for name, case in cases.items()}
    monkeypatch.setattr(support.op_module("rms_norm"), "CASES", untagged)
    with pytest.raises(
        AssertionError, match=r"rms_norm: 0 cases .* in src/ops/rms_norm/rms_norm\.py"
    ):
        wire.example(_native.main_library().find("rms_norm"))
