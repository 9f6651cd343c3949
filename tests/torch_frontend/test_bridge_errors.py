"""How the bridge fails: calls that do not fit, ops that raise, programs from elsewhere."""

import ctypes
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
import torch
from bridged import BESIDE_A_TENSOR, by_both_ways, normal, returning
from intarsia.torch import _bridge_native, _bridge_plan, _bridge_results, bridge


@by_both_ways
def test_an_exception_inside(via: str) -> None:
    x = normal(3, 4)
    failing = jax.jit(lambda x: bridge.op("intarsia_tests::scaled", via=via)(x, 1.0, True))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"intarsia_tests::scaled: .*no such scale"
    ):
        jax.block_until_ready(failing(x))
    far = jax.jit(lambda x, i: bridge.op("aten::index_select", via=via)(x, 0, bridge.int64(i)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"aten::index_select: .*out of"):
        jax.block_until_ready(far(x, jnp.array([1, 99])))
    # The next call is none the worse for it.
    assert jnp.array_equal(far(x, jnp.array([1])), x[1:2])


@by_both_ways
def test_a_wrong_dtype_fails_inside(via: str) -> None:
    op = bridge.op("aten::mm.out", via=via)
    out = jax.ShapeDtypeStruct((3, 3), jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"aten::mm\.out: .*(Expected|dtype)"):
        jax.block_until_ready(jax.jit(lambda x: op(x, x, out=out))(normal(3, 3)))


@by_both_ways
@pytest.mark.parametrize(
    ("size", "what"), [(4, "has dtype float64, its fake kernel gave float32"), (5, "has shape")]
)
def test_results_unlike_those_of_the_fake_kernel(via: str, size: int, what: str) -> None:
    lie = jax.jit(bridge.op("intarsia_tests::liar", via=via))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"intarsia_tests::liar: result 0 .*{what}"
    ):
        jax.block_until_ready(lie(normal(size)))


def test_an_op_without_fake_kernel() -> None:
    x = normal(3, 4)
    with pytest.raises(NotImplementedError, match=r"intarsia_tests::unknown: .*no fake kernel"):
        bridge.call("intarsia_tests::unknown", x)
    op = bridge.op("intarsia_tests::unknown", results=[jax.ShapeDtypeStruct((4,), jnp.float32)])
    np.testing.assert_allclose(jax.jit(op)(x), x.sum(0), rtol=1e-6)
    with pytest.raises(ValueError, match="got 0 results, expected 1"):
        bridge.op("intarsia_tests::unknown", results=[])(x)


X = normal(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: bridge.call("aten::nope", X), LookupError, "no op aten::nope"),
        (lambda: bridge.call("aten::mm.nope", X), LookupError, r"there is .*aten::mm\.out"),
        (lambda: bridge.call("relu", X), TypeError, "'relu', expected 'namespace::name'"),
        (lambda: bridge.call("aten::relu"), TypeError, "argument self is missing"),
        (lambda: bridge.call("aten::relu", X, 1), TypeError, "2 positional arguments"),
        (lambda: bridge.call("aten::relu", X, self=X), TypeError, "self is given twice"),
        (lambda: bridge.call("aten::relu", X, eps=1), TypeError, "unknown argument eps"),
        (lambda: bridge.call("aten::mm", X, eps=1), TypeError, "unknown argument eps"),
        (lambda: bridge.call("aten::relu", 3.0), TypeError, "argument self is .*expected an array"),
        (lambda: bridge.call("aten::relu", None), TypeError, "argument self is None"),
        (lambda: bridge.call("aten::relu", torch.ones(2)), TypeError, "expected an array"),
        (
            lambda: bridge.call("aten::relu", np.array([2**40])),
            ValueError,
            "argument self has values beyond int32",
        ),
        (
            lambda: bridge.call("aten::relu", bridge.int64(X)),
            TypeError,
            "argument self is float32, expected integers",
        ),
        (lambda: bridge.call("aten::topk", X, 2.0), TypeError, "argument k is 2.0, expected int"),
        (
            lambda: jax.jit(lambda x, k: bridge.call("aten::topk", x, k))(X, 2),
            TypeError,
            "argument k is .*expected int known while the program is traced",
        ),
        (lambda: bridge.call("aten::topk", X, True), TypeError, "argument k is True, expected int"),
        (
            lambda: bridge.call("aten::topk", X, 2**63),
            ValueError,
            "argument k is .* 64-bit integer",
        ),
        (lambda: bridge.call("aten::mm", X, X), ValueError, r"aten::mm: .*\[3, 4\] X \[3, 4\]"),
        (lambda: bridge.call("aten::nonzero", X), NotImplementedError, "depends on data"),
        (
            lambda: bridge.call("aten::add.Tensor", X, X),
            NotImplementedError,
            r'argument alpha, 1 unless given, is a Scalar, which the C functions .*via="python"',
        ),
        (
            lambda: bridge.call("aten::add.Scalar", X, 2, alpha=1),
            NotImplementedError,
            r'argument other is a Scalar, which the C functions .*via="python"',
        ),
        (
            lambda: bridge.op("aten::empty_like", via="python")(X, device=torch.device("cpu")),
            TypeError,
            "argument device is .*, expected no value: the bridge passes no Device",
        ),
        (
            lambda: bridge.call("aten::relu", jax.ShapeDtypeStruct((2,), jnp.float32)),
            TypeError,
            "self is a ShapeDtypeStruct.* only reads it",
        ),
        (
            lambda: bridge.call("aten::relu", X.astype(jnp.int4)),
            TypeError,
            "is int4, which torch lacks",
        ),
        (lambda: bridge.op("aten::relu", via="rpc"), ValueError, "via is 'rpc'"),
        (lambda: bridge.op("aten::topk", outputs=[2])(X, 1), ValueError, r"some of \[0, 1\]"),
        (
            lambda: jax.vmap(bridge.op("aten::relu"))(X),
            NotImplementedError,
            'aten::relu: .*vmap.*"sequential"',
        ),
        (
            lambda: jax.grad(lambda x: bridge.call("aten::relu", x).sum())(X),
            NotImplementedError,
            "aten::relu: .*differentiate.*custom_vjp",
        ),
    ],
)
def test_what_is_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("kind", BESIDE_A_TENSOR)
def test_results_that_c_functions_do_not_pass(kind: str) -> None:
    value = BESIDE_A_TENSOR[kind]
    for schema, result in ((f"(Tensor, {kind})", 1), (f"({kind}, Tensor)", 0)):
        name = returning(
            schema, lambda x, at=result: (x + 1, value(x)) if at else (value(x), x + 1)
        )
        text = rf'{name}: result {result} is a .* do not pass; .*"{name}", via="python"'
        with pytest.raises(NotImplementedError, match=text):
            bridge.call(name, X)
        assert jnp.array_equal(jax.jit(bridge.op(name, via="python"))(X), X + 1)


def test_a_result_that_is_no_tensor_alone() -> None:
    for kind, value in BESIDE_A_TENSOR.items():
        name = returning(kind, value)
        with pytest.raises(NotImplementedError, match=f"{name}: result 0 is a "):
            bridge.call(name, X)
    with pytest.raises(NotImplementedError, match="result 4 is a int"):
        bridge.call("aten::_scaled_dot_product_flash_attention", X, X, X)


def test_tensors_and_lists_of_them() -> None:
    name = returning("(Tensor, Tensor[])", lambda x: (x + 1, [x, x + 2]))
    with pytest.raises(NotImplementedError, match=r"List\[Tensor\]"):
        bridge.call(name, X)
    reason = _bridge_plan.why_not_c(_bridge_plan.find_op(name), [["tensor"]], True, True)
    assert reason == "the results are Tensor, List[Tensor]"
    for got, by in zip(jax.jit(bridge.op(name, via="python"))(X), (1, 0, 2), strict=True):
        assert jnp.array_equal(got, X + by)


C_TYPES = {
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "char": ctypes.c_char,
    "const char*": ctypes.c_char_p,
    "void**": ctypes.POINTER(ctypes.c_void_p),
    "const int32_t*": ctypes.POINTER(ctypes.c_int32),
    "const intarsia_bridge_argument*": ctypes.POINTER(_bridge_native.Argument),
    "const intarsia_bridge_return*": ctypes.POINTER(_bridge_native.Return),
}


def test_ctypes_mirror_the_header() -> None:
    header = (support.ROOT / "src" / "bridge" / "bridge.h").read_text()
    numbers = re.findall(r"\bINTARSIA_BRIDGE_(\w+) = (-?\d+)", header)
    assert len(numbers) == 13
    for name, number in numbers:
        assert getattr(_bridge_native, name) == int(number), name
    for struct, fields in re.findall(
        r"typedef struct intarsia_bridge_(\w+) \{(.*?)\n\}", header, re.S
    ):
        code = re.sub(r"//.*", "", fields)
        declared = [
            (name, C_TYPES[c_type] * int(size) if size else C_TYPES[c_type])
            for c_type, names, size in re.findall(r"(\w[\w ]*\**) ([\w, ]+)(?:\[(\d+)\])?;", code)
            for name in names.split(", ")
        ]
        assert declared == getattr(_bridge_native, struct.capitalize())._fields_, struct


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a lone \udc80 surrogate"), r"ValueError: a lone \\udc80 surrogate"),
        (UnspeakableError(), "UnspeakableError, whose text cannot be had"),
        (ValueError("\u20ac" * 2000), "ValueError: (\u20ac){1361}"),
    ],
)
def test_exceptions_whose_text_is_awkward(error: Exception, text: str) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise error

    # As text in C++: of whole characters, and one byte less than there is room for at most.
    assert re.fullmatch(text, _bridge_native._text(error).decode())
    assert len(_bridge_native._text(error)) < 4096
    name = returning("Tensor", fail)
    op = bridge.op(name, via="python", results=[jax.ShapeDtypeStruct(X.shape, X.dtype)])
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{name}: .*{text}"):
        jax.block_until_ready(jax.jit(op)(X))


def test_torchs_log_is_silent_in_the_thread_that_traces(caplog: pytest.LogCaptureFixture) -> None:
    """Two that trace, the first to begin ends first: what others log is heard all the while."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(caplog.handler)  # torch's loggers need not propagate
    begun, ended = threading.Event(), threading.Event()

    def second() -> None:
        with _bridge_results._quiet():
            begun.set()
            assert ended.wait(60)
            log.warning("not heard")

    try:
        with ThreadPoolExecutor(1) as pool:
            with _bridge_results._quiet():
                other = pool.submit(second)
                assert begun.wait(60)
                log.warning("not heard")
            log.warning("heard while another traces")
            ended.set()
            other.result(60)
        log.warning("heard in the end")
    finally:
        log.removeHandler(caplog.handler)
    heard = {r.getMessage() for r in caplog.records if r.name == log.name}
    assert heard == {"heard while another traces", "heard in the end"}
