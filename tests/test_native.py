"""The C functions through ctypes: inference, its errors, and calls on NumPy's memory."""

import ctypes
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import running
import support
from intarsia import _native

LIBRARY = _native.main_library()


def t(*shape: int, dtype: str = "f32") -> _native.Tensor:
    return _native.Tensor(shape, dtype)


def test_infer_shapes_dtypes_aliases_and_workspaces() -> None:
    query, cache = t(5, 4, 64, dtype="bf16"), t(7, 16, 2, 64, dtype="bf16")
    lens, table, starts = t(3, dtype="i32"), t(3, 2, dtype="i32"), t(4, dtype="i64")
    operands = [query, cache, cache, lens, table, starts, None, None]
    out, lse, workspace = LIBRARY.infer("paged_attention", operands, {"return_lse": True})
    assert (out.shape, out.dtype, out.alias, out.workspace) == ((5, 4, 64), "bf16", None, False)
    assert (lse.shape, lse.dtype) == ((4, 5), "f32")
    assert workspace.workspace and workspace.dtype == "f32"
    assert LIBRARY.infer("paged_attention", operands, {})[1] is None

    operands = [t(3, 2, 8), t(3, 2, 8), t(4, 16, 2, 8), t(4, 16, 2, 8), t(3, dtype="i32"), None]
    key_cache, value_cache = LIBRARY.infer("reshape_and_cache_flash", operands, {})
    assert (key_cache.alias, value_cache.alias) == (2, 3)


CACHE = t(7, 16, 2, 64)
PAGED = [t(5, 4, 64), CACHE, CACHE, t(3, dtype="i32"), t(3, 2, dtype="i32"), t(4, dtype="i32")]


def paged(**changed: _native.Tensor | None) -> list[_native.Tensor | None]:
    names = [row["name"] for row in LIBRARY.find("paged_attention").operands]
    return [changed.get(name, x) for name, x in itertools.zip_longest(names, PAGED)]


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("rms_norm", [t(3, 64), t(5)], {}, "rms_norm: weight has n=5 but x has n=64"),
        ("rms_norm", [t(), None], {}, r"rms_norm: x has shape \[\], expected \[... n\]"),
        ("rms_norm", [t(3, 4, dtype="i8"), None], {}, "rms_norm: x has dtype i8, expected f32|f16"),
        ("rms_norm", [t(3, 4), t(4, dtype="f16")], {}, "weight has dtype f16 but x has f32"),
        ("rms_norm", [None, None], {}, "rms_norm: x is missing"),
        ("simple_add", [t(3, 4)], {}, "simple_add: got 1 operands, expected 2"),
        (
            "rms_norm",
            [t(3, 4), None],
            {"rounding": "up"},
            'rms_norm: rounding is "up", expected one of once|before_weight',
        ),
        ("simple_add", [t(3, 4), t(3, 5)], {}, r"simple_add: b has .*\[3, 5\] but a has \[3, 4\]"),
        ("silu_and_mul", [t(3, 5), None], {}, r"silu_and_mul: x has 2\*n=5, expected a multiple"),
        ("paged_attention", paged(seqused_k=t(2, dtype="i32")), {}, "block_table has b=3 but"),
        ("paged_attention", paged(value_cache=None), {}, "value_cache is missing, layout NHD"),
        ("paged_attention", paged(query=t(5, 3, 64)), {}, "h=3, expected a multiple of hk=2"),
        ("paged_attention", paged(), {"sliding_window": 0}, "sliding_window is 0, expected at"),
        ("paged_attention", paged(layer=t(dtype="i32")), {}, r"shape \[7, 16, 2, 64\], expected"),
        (
            "paged_attention",
            paged(value_cache=t(7, 16, 1, 64)),
            {},
            "paged_attention: value_cache has hk=1 but key_cache has hk=2",
        ),
        (
            "rotary_embedding",
            [t(3, dtype="i32"), t(3, 2, 64), t(9, 64), None],
            {"rope_dim_offset": 2**63 - 1},
            "rope_dim_offset=9223372036854775807 plus r=64",
        ),
        (
            "rotary_embedding",
            [t(3, dtype="i32"), t(3, 128), t(9, 64), None],
            {"head_size": -64},
            "rotary_embedding: head_size is -64, expected at least 1",
        ),
        (
            "reshape_and_cache_flash",
            [t(3, 2, 8), t(3, 2, 8), t(4, 16, 2, 8), t(4, 16, 2, 8), t(4, dtype="i32"), None],
            {},
            "slot_mapping has 4 slots but key has t=3",
        ),
        ("simple_add", [t(2**40, 2**40), t(2**40, 2**40)], {}, "more than 2.63 bytes"),
        ("simple_add", [t(-1), t(-1)], {}, "negative size"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(op, operands, attributes, message) -> None:
    with pytest.raises(ValueError, match=message) as error:
        LIBRARY.infer(op, operands, attributes)
    assert str(error.value).startswith(f"{op}: ")


def test_what_is_legal_but_not_built() -> None:
    wide = {name: t(7, 16, 2, 520) for name in ("key_cache", "value_cache")}
    with pytest.raises(
        NotImplementedError,
        match="d=520; built are multiples of 8 up to 512 on CPUs and 256 on CUDA",
    ):
        LIBRARY.infer("paged_attention", paged(query=t(5, 4, 520), **wide), {})


def test_attributes_are_checked_before_they_are_cast() -> None:
    operands = [t(3, 64), None]
    with pytest.raises(TypeError, match=r"rms_norm: unknown attribute epsilon, expected .*eps"):
        LIBRARY.infer("rms_norm", operands, {"epsilon": 1e-5})
    for name, value in (("eps", "1"), ("eps", True), ("rounding", 1)):
        with pytest.raises(TypeError, match=f"rms_norm: attribute {name} is {value!r}, expected"):
            LIBRARY.infer("rms_norm", operands, {name: value})
    assert LIBRARY.infer("rms_norm", operands, {"eps": None}) == LIBRARY.infer(
        "rms_norm", operands, {}
    )


@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf")])
def test_an_eps_that_is_no_size_is_refused(eps: float) -> None:
    """In every op that has one."""
    having = [op for op in support.op_names() if "eps" in attribute_names(op)]
    assert len(having) >= 6
    for op in having:
        ((_, sizes),) = support.cases(op, "wire").items()
        operands, attributes = support.op_module(op).arguments(
            np.random.default_rng(0), np.float32, **sizes
        )
        message = rf"^{op}: eps is {eps:f}, expected a finite number of at least 0$"
        with pytest.raises(ValueError, match=message):
            LIBRARY.infer(op, [running.tensor(x) for x in operands], attributes | {"eps": eps})
    x = running.tensor(np.ones((2, 8), np.float32))
    assert LIBRARY.infer("rms_norm", [x], {"eps": 0.0})


def attribute_names(op: str) -> list[str]:
    return [row["name"] for row in LIBRARY.find(op).attributes]


def test_an_unknown_op_lists_those_there_are() -> None:
    with pytest.raises(LookupError) as error:
        LIBRARY.infer("rms_nrom", [], {})
    for op in LIBRARY.ops:
        assert op in str(error.value)


def test_the_c_function_names_the_ops_too() -> None:
    lib = ctypes.CDLL(str(LIBRARY.path))
    lib.intarsia_error.restype = ctypes.c_char_p
    assert lib.intarsia_infer(b"rms_nrom", None, ctypes.c_size_t(0), None, ctypes.c_size_t(0)) == 3
    message = lib.intarsia_error().decode()
    assert message.startswith("no op rms_nrom")
    assert all(op in message for op in LIBRARY.ops)


def test_too_many_axes() -> None:
    with pytest.raises(ValueError, match="rank 9"):
        LIBRARY.infer("simple_add", [t(*[1] * 9), t(*[1] * 9)], {})


def test_platforms_of_a_call() -> None:
    x = np.ones((2, 3), np.float32)
    operands, results = [running.tensor(x)] * 2, [running.tensor(x.copy())]
    with pytest.raises(ValueError, match="platform is Cuda, expected Host or CUDA"):
        LIBRARY.call("simple_add", "Cuda", operands, {}, results)
    if LIBRARY.manifest["cuda"] is None:
        with pytest.raises(NotImplementedError, match="built without CUDA"):
            LIBRARY.call("simple_add", "CUDA", operands, {}, results)


def test_results_of_a_call_are_checked() -> None:
    x = np.ones((2, 3), np.float32)
    a = running.tensor(x)
    for results, message in (
        ([_native.Tensor((3, 2), "f32", x.ctypes.data)], r"out has shape \[3, 2\], expected \[2"),
        ([_native.Tensor((2, 3), "f16", x.ctypes.data)], "out has dtype f16, expected f32"),
        ([None], "result out is missing"),
        ([a, a], "got 2 results, expected 1"),
    ):
        with pytest.raises(ValueError, match=message):
            LIBRARY.call("simple_add", "Host", [a, a], {}, results)


def test_rows_of_strided_operands() -> None:
    """What torch passes: heads cut out of one wider array; only the last axis is dense."""
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((6, 5, 2, 16)).astype(np.float32)
    key, value = qkv[:, 1], qkv[:, 3]
    caches = [np.zeros((3, 4, 2, 16), np.float32) for _ in range(2)]
    slots = np.array([3, -1, 0, 11, 5, 6], np.int32)
    operands = [running.tensor(x) for x in (key, value, *caches, slots)]
    LIBRARY.call("reshape_and_cache_flash", "Host", [*operands, None], {}, operands[2:4])
    want = support.op_module("reshape_and_cache_flash").reference(
        key, value, *(np.zeros_like(c) for c in caches), slots
    )
    for cache, expected in zip(caches, want, strict=True):
        np.testing.assert_array_equal(cache, expected)


def test_a_strided_operand_that_an_op_cannot_take_is_refused() -> None:
    x = np.zeros((4, 8), np.float32)[:, ::2]
    with pytest.raises(ValueError, match="simple_add: a is strided, expected a dense"):
        LIBRARY.infer("simple_add", [running.tensor(x)] * 2, {})


def test_calls_agree_with_the_custom_calls() -> None:
    """The same kernels with and without XLA, to the bit: each op's example, all in one program."""
    calls = []
    for op in support.op_names("cpu"):
        (sizes,) = support.cases(op, "wire").values()
        rng = np.random.default_rng(0)
        calls.append((op, *support.op_module(op).arguments(rng, np.float32, **sizes)))
    for call, inside in zip(calls, running.run_all(calls), strict=True):
        for a, b in zip(running.run_native(*call), inside, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=call[0])


def process_of_its_own(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # With this process' own paths: its library may be one built for a sanitizer.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    site = ["-S"] if sys.flags.no_site else []
    done = subprocess.run(
        [sys.executable, *site, "-c", code], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


def in_a_process_of_its_own(code: str, **environment: str) -> str:
    return process_of_its_own(code, **environment).stdout


OUT_OF_RANGE = """
import numpy as np, native_calls, support

# op, operand, an index that is out of its range, where
CALLS = [
    ("reshape_and_cache_flash", "slot_mapping", 12, 1),
    ("paged_attention", "block_table", 5, 2),
    ("rotary_embedding", "positions", -1, 0),
    ("rotary_embedding_and_cache", "positions", 16, 1),
    ("rotary_embedding_and_cache", "slot_mapping", 12, 2),
]
for op, operand, index, place in CALLS:
    (sizes,) = support.cases(op, "wire").values()
    module = support.op_module(op)
    operands, attributes = module.arguments(np.random.default_rng(0), np.float32, **sizes)
    names = [row["name"] for row in native_calls.LIBRARY.find(op).operands]
    indices = operands[names.index(operand)]
    indices[...] = 0
    indices.flat[place] = index
    try:
        native_calls.run_native(op, operands, attributes)
        print(op, "skips it")
    except ValueError as error:
        print(error)
"""


def test_indices_are_checked_on_demand() -> None:
    """INTARSIA_CHECK=1 in the environment reports what is otherwise skipped."""
    want = [
        "reshape_and_cache_flash: slot_mapping[1] is 12, expected less than 12",
        "paged_attention: block_table[2] is 5, expected less than 5",
        "rotary_embedding: positions[0] is -1, expected less than 16",
        "rotary_embedding_and_cache: positions[1] is 16, expected less than 16",
        "rotary_embedding_and_cache: slot_mapping[2] is 12, expected less than 12",
    ]
    assert in_a_process_of_its_own(OUT_OF_RANGE).count("skips it") == len(want)
    got = in_a_process_of_its_own(OUT_OF_RANGE, INTARSIA_CHECK="1").splitlines()
    for line, message in zip(got, want, strict=True):
        assert line.startswith(message)


def test_instruction_set_can_be_held_back() -> None:
    code = "from intarsia import _native; print(_native.main_library().manifest['isa'])"
    assert in_a_process_of_its_own(code, INTARSIA_ISA="avx2").strip() in ("avx2", "generic")


LOGGED = """
import numpy as np
from native_calls import run_native
run_native("simple_add", [np.ones((2, 3), np.float32)] * 2, {})
x = np.ones((2, 8), np.float32)
run_native("rms_norm", [x, x[0]], {"eps": 1e-5})
"""


def test_calls_are_logged_on_demand() -> None:
    """INTARSIA_LOG=1 in the environment: a line on stderr for each call, before it runs."""
    assert "intarsia:" not in process_of_its_own(LOGGED).stderr
    said = process_of_its_own(LOGGED, INTARSIA_LOG="1").stderr
    add, norm = [line for line in said.splitlines() if "intarsia:" in line]
    assert add == "intarsia: simple_add on cpu: a f32[2, 3], b f32[2, 3], -> out f32[2, 3]"
    assert norm.startswith("intarsia: rms_norm on cpu: x f32[2, 8], weight f32[8], eps 1e-05, ")
    assert norm.endswith("-> out f32[2, 8]")


ADD = """
import numpy as np
from intarsia import _native
x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
one, sum = (_native.Tensor(a.shape, "f32", a.ctypes.data) for a in (x, y))
try:
    _native.main_library().call("simple_add", "Host", [one, one], {}, [sum])
    print("runs", *y)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("INTARSIA_ISA", "avx", 'INTARSIA_ISA is "avx", expected avx2 or avx512 or nothing'),
        ("INTARSIA_CHECK", "yes", 'INTARSIA_CHECK is "yes", expected 0 or 1 or nothing'),
        ("INTARSIA_ARCH", "70", 'INTARSIA_ARCH is "70", expected 80 or 86 or 89 or 90 or nothing'),
    ],
)
def test_an_environment_variable_that_means_nothing_is_named(name, value, says) -> None:
    said = in_a_process_of_its_own(ADD, **{name: value}).strip()
    assert said == f"simple_add: environment variable {says}"


@pytest.mark.parametrize(
    "settings",
    [
        {"INTARSIA_ISA": "avx512"},
        {"INTARSIA_CHECK": "0"},
        {"INTARSIA_ARCH": "80"},
        {"INTARSIA_ISA": "", "INTARSIA_CHECK": ""},
    ],
)
def test_environment_variables_may_say_what_holds_anyway(settings) -> None:
    assert in_a_process_of_its_own(ADD, **settings).strip() == "runs 2.0 2.0 2.0"


def test_the_package_needs_neither_jax_nor_torch() -> None:
    code = "import sys, intarsia; print({'jax', 'torch', 'numpy'} & set(sys.modules))"
    assert in_a_process_of_its_own(code).strip() == "set()"
