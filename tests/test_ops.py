"""Every op x case x dtype x platform against the op's own reference in NumPy f64."""

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


@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize(
    ("op", "case", "platform"),
    [row for op, case in CASES for row in running.on_its_platforms(op, case)],
)
def test_against_f64(op: str, case: str, dtype: str, platform: str) -> None:
    operands, attributes = make(op, case, dtype)
    got = running.run(op, operands, attributes, platform)
    running.check_against_reference(op, operands, attributes, got, platform)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize(
    ("op", "case"), [row for row in CASES if support.platforms(row[0]) == ("cpu", "cuda")]
)
def test_cpu_and_gpu_agree(op: str, case: str, dtype: str) -> None:
    operands, attributes = make(op, case, dtype)
    cpu, gpu = (running.run_any(op, operands, attributes, p) for p in running.PLATFORMS)
    least = running.least_tolerance(op, operands, "gpu")
    sums = running.magnitudes(op, operands, attributes, len(cpu))
    for on_cpu, on_gpu, cancelled in zip(cpu, gpu, sums, strict=True):
        want = np.asarray(on_cpu, np.float64)
        running.check(op, on_gpu, want, least=least, cancelled=cancelled)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_plain_xla_computes_the_same(op: str, case: str) -> None:
    """What benchmarks compare with must be a fair opponent; it need not cover every corner."""
    if case in support.cases(op, "beyond_plain"):
        return
    module = support.op_module(op)
    operands, attributes = make(op, case, "f32")
    hints = getattr(module, "plain_xla_hints", lambda **_: {})(**support.cases(op, "ci")[case])
    with running.wide_indices(operands):
        got = jax.jit(lambda *xs: module.plain_xla(*xs, **attributes, **hints))(*operands)
    want = module.reference(*map(running.as_f64, operands), **attributes)
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
    module = support.op_module(op)
    for case, sizes in support.cases(op, "ci").items():
        operands, attributes = make(op, case, "bf16")
        results = module.reference(*map(running.as_f64, operands), **attributes)
        arrays = sum(x.size for x in [*operands, *results] if x is not None)
        moved, flops = module.floor(2, **sizes)
        assert 0 <= moved <= 2 * arrays + 8 * len(operands), case
        assert flops >= 0
