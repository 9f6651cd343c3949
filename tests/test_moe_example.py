"""`examples/moe_in_jax.py`: the losses of `grouped_matmul` are those of `lax.ragged_dot`."""

import runpy

import numpy as np
import pytest
import support

EXAMPLE = support.ROOT / "examples" / "moe_in_jax.py"


def test_both_products_train_alike(capsys: pytest.CaptureFixture) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["step", "lax.ragged_dot", "grouped_matmul"]
    losses = np.array([[float(x) for x in row[2:]] for row in rows if row[0] == "loss"])
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=1e-3)
    assert (losses[-1] < losses[0] / 10).all()
    assert rows[-1][:3] == ["ms", "per", "step"] and len(rows[-1]) == 5
