"""Programs that this process has not traced, and plans that do not fit their op: nothing in them is trusted."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bridged import allocated, by_both_ways, normal, returning
from intarsia.torch import (
    _bridge_native,
    _bridge_plan,
    _bridge_read,
    _bridge_run,
    bridge,
)

X = normal(3, 4)


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bridge_read, "_patterns", set())


EXPORTED = """
import sys, jax, numpy as np
from intarsia.torch import bridge
bridge.register()
run = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
x = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
for y in run.call(x):
    np.testing.assert_array_equal(np.asarray(y), np.maximum(x, 0))
"""


@pytest.mark.full
def test_an_exported_program_runs_elsewhere(tmp_path: pathlib.Path) -> None:
    """In a process that has not traced it: what a persistent compilation cache does as well."""
    checks = [jax.export.DisabledSafetyCheck.custom_call(target) for target in bridge.TARGETS]
    relus = [bridge.op("aten::relu", via=via) for via in ("c", "python")]
    step = jax.jit(lambda x: tuple(relu(x) for relu in relus))
    program = jax.export.export(step, disabled_checks=checks)(
        jax.ShapeDtypeStruct((3, 4), jnp.float32)
    )
    (tmp_path / "program").write_bytes(program.serialize())
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", EXPORTED, str(tmp_path / "program")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


RELU = {
    "op": "aten::relu",
    "schema": str(torch.ops.aten.relu.default._schema),
    "python": False,
    "arguments": [["tensor"]],
    "returns": [0],
    "results": 1,
}


def program(plan: str) -> Callable[..., jax.Array]:
    """A program with a plan that was not filed by tracing it: as another process made it. Its result is like its first
    operand."""
    bridge.register()

    def run(*operands: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call(bridge.TARGETS[0], jax.typeof(operands[0]))(*operands, plan=plan)

    return jax.jit(run)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ("no JSON", "JSONDecodeError"),
        ({"op": "aten::nope"}, "torch has no op aten::nope"),
        (
            {
                "op": "aten::numel",
                "schema": str(torch.ops.aten.numel.default._schema),
                "returns": [None],
                "results": 0,
            },
            "result 0 is a int, which the C functions",
        ),
        ({"schema": "aten::relu(Tensor self, int n) -> Tensor"}, "the program expects"),
        ({"results": 2}, "the plan writes result 1 0 times, expected once"),
        ({"results": 0}, "return 0 is result 0, expected 0 to -1"),
        ({"results": 2**31}, "the plan's counts do not fit|int too large|writes result 0"),
        ({"returns": [1]}, "return 0 is result 1, expected 0 to 0"),
        ({"returns": [-5]}, "return 0 is result -5, expected 0 to 0"),
        ({"returns": [2147483655]}, "return 0 is result 2147483655, expected 0 to 0"),
        ({"returns": [None]}, "the plan writes result 0 0 times, expected once"),
        ({"returns": [[0]]}, r"return 0 is result \[0\]"),
        ({"returns": [0, None]}, "the plan has 2 returns, the op 1"),
        ({"returns": [True]}, "return 0 is result True"),
        ({"arguments": [["none"]]}, r"argument self is \['none'\], expected Tensor"),
        ({"arguments": [["int", 0x4141414141]]}, r"argument self is \['int', 280.*expected Tensor"),
        ({"arguments": [["mutated", 0]]}, "argument self is .*expected Tensor"),
        ({"arguments": [["fresh", -5]]}, "argument self is .*expected Tensor"),
        ({"arguments": []}, "the plan has 0 arguments, the op 1"),
        ({"arguments": ["tensor"]}, "argument self is 'tensor', expected Tensor"),
        ({"arguments": 3}, "the plan's arguments is 3, expected list"),
        ({"python": 1}, "the plan's python is 1, expected bool"),
        ("[]", "the plan is a list, expected an object"),
        ("[" * 100_000, "RecursionError"),
        ({"op": "__class__::mro"}, "torch has no op __class__::mro"),
        ({"op": "load_library::call"}, "torch has no op load_library::call"),
    ],
)
def test_programs_that_do_not_fit_this_torch(plan: Any, text: str) -> None:
    bridge.register(allow=["aten::numel"])
    wire = plan if isinstance(plan, str) else json.dumps({**RELU, **plan})
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(program(wire)(jnp.ones(2)))


def test_a_plan_that_several_threads_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    add, calls = _bridge_native.Library.add, []

    def slow(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise MemoryError("at the first time")
        time.sleep(0.2)
        add(*args)

    monkeypatch.setattr(_bridge_native.Library, "add", slow)
    run = program(json.dumps({**RELU, "unlike": "any plan filed before"}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="MemoryError: at the first time"):
        jax.block_until_ready(run(X[0]))
    rows = [X[0], -X[0], X[1], -X[1]]
    with ThreadPoolExecutor(4) as pool:
        for row, got in zip(rows, pool.map(lambda x: np.asarray(run(x)), rows), strict=True):
            np.testing.assert_array_equal(got, np.maximum(row, 0))
    assert len(calls) == 2


@by_both_ways
def test_a_call_that_is_not_made_keeps_no_memory(via: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors over operands, and optionals' cells, are made one after the other; then something fails."""
    arguments = ", ".join(f"Tensor? x{i}" for i in range(60))
    name = returning("Tensor", lambda *x: x[0], f"{arguments}, int n")
    entries = (*[["tensor"]] * 60, ["dtype", "of no torch"])
    plan = _bridge_plan.Plan(_bridge_plan.find_op(name), via == "python", entries, (0,), 1)
    text = _bridge_plan.to_text(plan)
    _bridge_run.file(text, plan)  # as if it had been traced: no plan that is read is like this
    run, operands = program(text), [X] * 60

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(jax.errors.JaxRuntimeError, match=text):
                jax.block_until_ready(run(*operands))

    filed, text = (
        text,
        "torch has no dtype of no torch" if via == "c" else "no attribute 'of no torch'",
    )
    fail(1)
    if via == "python":  # before Python takes the tensors
        monkeypatch.delitem(_bridge_run._plans, filed.encode())
        text = "KeyError"
    fail(20)
    before = allocated()
    fail(500)
    assert allocated() - before < 3e6  # of 30000 tensors


def plan_of(name: str, arguments: list[Any], returns: list[Any], results: int = 1) -> str:
    """A plan as a hostile program may have it, of an op that the process has."""
    return json.dumps(
        {
            "op": name,
            "schema": str(_bridge_plan.find_op(name)._schema),
            "python": False,
            "arguments": arguments,
            "returns": returns,
            "results": results,
        }
    )


def run_plan(text: str, *operands: jax.Array) -> jax.Array:
    return jax.block_until_ready(program(text)(*operands))


FROM_FILE = [
    ["str", "/etc/hostname"], ["none"], ["int", 4], ["dtype", "float32"], ["none"], ["none"], ["none"],
]  # fmt: skip


def test_an_op_that_nobody_allowed(tmp_path: pathlib.Path) -> None:
    made = tmp_path / "made"
    arguments = [["str", str(made)], ["bool", True], ["int", 4], *FROM_FILE[3:]]
    plan = json.loads(plan_of("aten::from_file", arguments, [0])) | {"python": True}
    text = (
        "PermissionError: aten::from_file: a program that this process has not traced .*"
        r'bridge\.register\(allow=\["aten::from_file"\]\)'
    )
    call = jax.ffi.ffi_call(bridge.TARGETS[0], jax.ShapeDtypeStruct((4,), jnp.float32))
    run = jax.jit(lambda: call(plan=json.dumps(plan)))
    bridge.register()
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(run())
    assert not made.exists()
    bridge.register(allow=["aten::from_file"])
    assert run().tolist() == [0, 0, 0, 0]
    assert made.stat().st_size == 16


SPACES = itertools.count()


@pytest.fixture(scope="module")
def one_more() -> Iterator[str]:
    """An op of an extension, by name."""
    yield returning("Tensor", lambda x: x + 1)


@pytest.mark.parametrize(
    ("pattern", "is_enough"),
    [
        ("intarsia_tests::*", True),
        ("*::*", True),
        ("{}", True),
        ("{}.*", False),
        ("other::*", False),
        ("intarsia_tests::x{}", False),
    ],
)
def test_patterns(one_more: str, pattern: str, is_enough: bool) -> None:
    text = plan_of(one_more, [["tensor"]], [0]) + " " * next(SPACES)  # not filed before
    pattern = pattern.replace("x{}", "no").replace("{}", one_more)
    bridge.register(allow=[pattern])
    bridge.register()  # takes nothing back
    if is_enough:
        assert jnp.array_equal(run_plan(text, X), X + 1)
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match="which nobody allowed"):
        run_plan(text, X)


def test_patterns_that_are_none() -> None:
    for wrong in ("aten", "*", "aten::[a-z]*", ""):
        with pytest.raises(ValueError, match=r"allow has .*expected 'namespace::op'"):
            bridge.register(allow=[wrong])
    with pytest.raises(TypeError, match=r"allow is '_C::\*', expected a list"):
        bridge.register(allow="_C::*")  # type: ignore[arg-type]


def test_what_this_process_traced_runs_wherever_it_is_read(one_more: str) -> None:
    """Here by the text of its plan: an exported program of the same process, or a compilation cache's."""
    check = jax.export.DisabledSafetyCheck.custom_call(bridge.TARGETS[0])
    step = jax.jit(lambda x: bridge.call(one_more, x))
    exported = jax.export.export(step, disabled_checks=[check])(jax.typeof(X)).serialize()
    assert jnp.array_equal(jax.export.deserialize(exported).call(X), X + 1)


@pytest.mark.parametrize(
    ("name", "is_free"),
    [
        ("aten::relu", True),
        ("aten::relu_", True),
        ("aten::mm.out", True),
        ("aten::index_put_", True),
        ("xla_gpu::rms_norm", True),
        ("aten::empty.memory_format", False),
        ("aten::empty_strided", False),
        ("aten::from_file", False),
        ("aten::set_.source_Tensor", False),
        ("aten::_index_put_impl_", False),
        ("aten::_unsafe_index.Tensor", False),
        ("aten::resize_", False),
        ("intarsia_tests::scaled", False),
    ],
)
def test_ops_that_need_no_permission(name: str, is_free: bool) -> None:
    assert _bridge_read.is_allowed(_bridge_plan.find_op(name)) == is_free


@pytest.mark.parametrize(
    ("name", "arguments", "returns", "text"),
    [
        ("aten::topk", [["tensor"], ["int", 2**63], *[["int", -1]] + [["bool", True]] * 2], [0, None],
         "argument k is .*expected int"),
        ("aten::topk", [["tensor"], ["float", 2.0], ["int", -1], *[["bool", True]] * 2], [0, None],
         "argument k is .*expected int"),
        ("aten::topk", [["tensor"], ["int", 2], ["int", -1], *[["bool", True]] * 2], [0],
         "the plan has 1 returns, the op 2"),
        ("aten::topk", [["tensor"], ["int", 2], ["int", -1], *[["bool", True]] * 2], [0, 0],
         "the plan writes result 0 2 times, expected once"),
        ("aten::mm.out", [["tensor"], ["tensor"], ["fresh", -5]], [None],
         "argument out is result -5, expected 0 to 0"),
        ("aten::mm.out", [["tensor"], ["tensor"], ["fresh", 1 << 40]], [None],
         "argument out is result 1099511627776, expected 0 to 0"),
        ("aten::mm.out", [["tensor"], ["tensor"], ["fresh", 0]], [0],
         "return 0 is 0, the op's is Tensor"),
        ("aten::relu_", [["fresh", 0]], [None], "argument self is .*expected Tensor"),
        ("aten::softmax.int", [["tensor"], ["int", 1], ["dtype", "Tensor"]], [0],
         "argument dtype is .*expected Optional"),
        ("aten::softmax.int", [["tensor"], ["int", 1], ["int", 77]], [0],
         "argument dtype is .*expected Optional"),
        ("aten::softmax.int", [["tensor"], ["bool", True], ["none"]], [0], "argument dim is"),
        ("aten::permute", [["tensor"], ["list", [["int", 0], ["tensor"]]]], [0],
         r"argument dims is \['tensor'\], expected int"),
        ("aten::permute", [["tensor"], ["list", 7]], [0], "argument dims is .*expected List"),
    ],
)  # fmt: skip
def test_plans_that_do_not_fit_the_schema(
    name: str, arguments: list[Any], returns: list[Any], text: str
) -> None:
    bridge.register(allow=["aten::softmax"])
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        run_plan(plan_of(name, arguments, returns), X, X)


def native_plan(**changes: Any) -> dict[str, Any]:
    """Arguments of `Library.add` for aten::relu, some of them others."""
    plan = {
        "op": "aten::relu",
        "overload": "",
        "python": False,
        "arguments": [_bridge_native.Argument(kind=_bridge_native.OPERAND)],
        "schema_returns": [_bridge_native.Return()],
        "returns": [0],
        "num_results": 1,
    }
    return plan | changes


Argument, Return = _bridge_native.Argument, _bridge_native.Return


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"arguments": [Argument(kind=_bridge_native.FRESH, result=-5)]}, "argument 0 is for result -5"),
        ({"arguments": [Argument(kind=_bridge_native.MUTATED, result=1)]}, "argument 0 is for result 1"),
        ({"arguments": [Argument(kind=9)]}, "argument 0 is of kind 9, expected 0 to 8"),
        ({"arguments": [Argument(kind=-1)]}, "argument 0 is of kind -1"),
        ({"arguments": [Argument(kind=_bridge_native.STRING)]}, "argument 0 has no text"),
        ({"arguments": [Argument(kind=_bridge_native.LIST, bits=2**64 - 1)]}, "list 0 has no such end"),
        ({"arguments": [Argument(kind=_bridge_native.LIST, bits=1)]}, "last list is cut short"),
        ({"returns": [-2]}, "return 0 is for result -2, expected 0 to 0"),
        ({"returns": [-1]}, "writes result 0 0 times"),
        ({"returns": [0, -1]}, "says where 2 tensors go, its op returns 1"),
        ({"schema_returns": [Return(is_list=1, count=-1)]}, "a list of less than nothing"),
        ({"num_results": -1}, "counts do not fit"),
        ({"num_results": 2**31 - 1}, "counts do not fit"),
    ],
)  # fmt: skip
def test_the_library_runs_no_plan_that_reaches_beyond_it(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        _bridge_run.library().add(text="of " + text, **native_plan(**changes))


@by_both_ways
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_op_that_gives_what_it_writes_another_form(via: str) -> None:
    """XLA's result would not have what the op wrote: it would be uninitialized, or as it was."""
    mm = bridge.op("aten::mm.out", via=via)
    for shape in ((100, 100), (3, 5)):
        out = jax.ShapeDtypeStruct(shape, jnp.float32)
        run = jax.jit(lambda x, y, out=out: mm(x, y, out=out))
        text = rf"aten::mm\.out: it gave what it writes into result 0 the shape \[5, 3\], expected \[{shape[0]}, "
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(run(normal(5, 4), normal(4, 3)))
    for name in ("aten::t_", "aten::set_.source_Tensor"):
        run = jax.jit(bridge.op(name, via=via))
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"{name}: .*other memory or strides"):
            jax.block_until_ready(run(*[normal(4, 4), normal(4, 4)][: 2 if "set" in name else 1]))
