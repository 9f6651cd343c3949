"""bench/ops.py refuses a figure rather than print what noise made of it."""

import importlib.util

import pytest
import support

_spec = importlib.util.spec_from_file_location("bench_ops", support.ROOT / "bench" / "ops.py")
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


def times(middle: float, spread: float) -> list[float]:
    return [middle + spread * (i - 4) / 4 for i in range(9)]


def test_a_quiet_machine_gives_a_figure() -> None:
    assert bench.seconds_per_call(times(2.0, 0.1), times(4.0, 0.1), 4) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("short", "long"), [(times(2.0, 0.1), times(1.9, 0.1)), (times(2.0, 1.0), times(2.5, 1.0))]
)
def test_noise_gives_none(short: list[float], long: list[float]) -> None:
    """Neither a negative time nor one that the next run would not show."""
    with pytest.raises(bench.TooNoisyError, match=r"calls took .* us, and runs differ by .* us"):
        bench.seconds_per_call(short, long, 4)
