"""bench/ops.py refuses a figure rather than print what noise made of it; ways that bench/experts.py compares take turns."""

import importlib.util
import itertools

import jax
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


def test_ways_of_a_layer_take_turns(monkeypatch) -> None:
    """On the platform that is asked for, where a program is one call: it may not be JAX's first."""
    monkeypatch.syspath_prepend(support.ROOT / "bench")
    import experts_whole

    clock = itertools.count()

    def seconds(run) -> int:
        run()
        return next(clock)

    monkeypatch.setitem(experts_whole.LAYERS, "tiny", (4, 2, 8, 8, "silu"))
    monkeypatch.setattr(experts_whole, "seconds", seconds)
    with jax.default_device(jax.devices("cpu")[0]):
        rows = experts_whole.measure("tiny", 3, "float32", 3, (1.0, 1.0))
    figures = [(row.way, row.least_us, row.median_us) for row in rows]
    assert figures == [("ours", 0, 2e6), ("ragged_dot", 1e6, 3e6)]
