"""Every op x case x dtype x platform against the op's own reference in NumPy f64."""

import functools
import zlib

import jax
import numpy as np
import pytest
import running
import support

# Of support.NOT_CALLED_ALONE there are none: it says why, and where those ops are tested.
CASES = [(op, name) for op in support.op_names() for name in support.cases(op, "ci")]


def make(op: str, case: str, dtype: str) -> tuple[list, dict]:
    rng = np.random.default_rng(zlib.crc32(f"{op} {case} {dtype}".encode()))
    sizes = support.cases(op, "ci")[case]
    return support.op_module(op).arguments(rng, support.DTYPES[dtype], **sizes)


Name = tuple[str, str]  # case and dtype
Results = dict[Name, list[np.ndarray]]


@functools.lru_cache(maxsize=1)  # of the op whose cases are tested one after the other
def calls_of(op: str) -> dict[Name, tuple[list, dict]]:
    """Operands and attributes of every case in every dtype."""
    return {
        (case, dtype): make(op, case, dtype)
        for case in support.cases(op, "ci")
        for dtype in support.DTYPES
    }


@functools.cache
def in_one_program(op: str, platform: str) -> Results:
    """The results of every case in every dtype: one program to compile instead of hundreds."""
    calls = calls_of(op)
    results = running.run_all([(op, *call) for call in calls.values()], platform)
    return dict(zip(calls, results, strict=True))


@pytest.mark.parametrize(
    ("op", "case", "platform"),
    [row for op, case in CASES for row in running.on_its_platforms(op, case)],
)
def test_against_f64(op: str, case: str, platform: str) -> None:
    for dtype in support.DTYPES:
        got = in_one_program(op, platform)[case, dtype]
        running.check_against_reference(op, *calls_of(op)[case, dtype], got, platform)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "case"), [row for row in CASES if support.platforms(row[0]) == ("cpu", "cuda")]
)
def test_cpu_and_gpu_agree(op: str, case: str) -> None:
    for dtype in support.DTYPES:
        operands, attributes = make(op, case, dtype)
        cpu = running.run_native(op, operands, attributes)
        gpu = in_one_program(op, "gpu")[case, dtype]
        least = running.least_tolerance(op, operands, "gpu")
        sums = running.magnitudes(op, operands, attributes, len(cpu))
        for on_cpu, on_gpu, cancelled in zip(cpu, gpu, sums, strict=True):
            want = np.asarray(on_cpu, np.float64)
            running.check(op, on_gpu, want, least=least, cancelled=cancelled)


@functools.cache
def plain_in_one_program(op: str, names: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    """By case, what plain XLA computes in f32."""
    module = support.op_module(op)
    beyond = support.cases(op, "beyond_plain")
    found: dict[str, list[np.ndarray]] = {}
    for wide in (False, True):
        calls = {case: make(op, case, "f32") for case in names if case not in beyond}
        calls = {k: v for k, v in calls.items() if running.has_wide_indices(v[0]) == wide}

        def program(operands: dict[str, list], calls=calls) -> dict[str, list]:
            hints = getattr(module, "plain_xla_hints", lambda **_: {})
            return {
                case: module.plain_xla(
                    *operands[case], **how, **hints(**support.cases(op, "ci")[case])
                )
                for case, (_, how) in calls.items()
            }

        with jax.enable_x64(wide):
            found |= jax.jit(program)({case: operands for case, (operands, _) in calls.items()})
    return found


def in_every_run(op: str) -> tuple[str, ...]:
    """The op's example. Compiling XLA's versions of all cases takes longer than all tests of our own results."""
    return tuple(support.cases(op, "wire"))


@pytest.mark.parametrize(
    ("op", "case"),
    [
        pytest.param(op, case, marks=[] if case in in_every_run(op) else [pytest.mark.full])
        for op, case in CASES
    ],
)
def test_plain_xla_computes_the_same(op: str, case: str) -> None:
    """What benchmarks compare with must be a fair opponent; it need not cover every corner."""
    if case in support.cases(op, "beyond_plain"):
        return
    operands, attributes = make(op, case, "f32")
    names = in_every_run(op)
    if case not in names:
        names = tuple(name for name in support.cases(op, "ci") if name not in names)
    got = plain_in_one_program(op, names)[case]
    want = support.op_module(op).reference(*map(running.as_f64, operands), **attributes)
    sums = running.magnitudes(op, operands, attributes, len(want))
    for result, expected, cancelled in zip(got, want, sums, strict=True):
        running.check(op, np.asarray(result), expected, cancelled=cancelled)


@pytest.mark.parametrize("op", support.op_names())
def test_has_cases_of_each_kind(op: str) -> None:
    benches = {"cpu": "bench_cpu", "cuda": "bench"}
    for tag in ("ci", "wire", *(benches[p] for p in support.platforms(op))):
        assert support.cases(op, tag), f"no case has the tag {tag}"


@pytest.mark.parametrize("op", support.op_names())
def test_floor_is_what_the_operands_hold(op: str) -> None:
    """The floor of a benchmark is never more than operands and results together."""
    module, largest = support.op_module(op), 0
    for case, sizes in support.cases(op, "ci").items():
        operands, attributes = make(op, case, "bf16")
        given = sum(x.nbytes for x in operands if x is not None)
        held = given + running.bytes_of_results(op, operands, attributes)
        moved, flops = module.floor(2, **sizes)
        assert 0 <= moved <= held, case
        assert flops >= 0
        largest = max(largest, moved)
    assert largest > 0, "no case moves a byte"
