"""What is compiled is counted, and what is compiled while serving is told of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("vllm")

import intarsia
import intarsia.jax as ops
from intarsia.vllm import programs
from intarsia.vllm.parallel import Ranks


def test_what_is_compiled_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter that the tests of engines find at 0, and the list that they find empty."""
    warnings = []
    monkeypatch.setattr(
        programs.logger, "warning", lambda text, *args: warnings.append(text % args)
    )
    intarsia.jax.register(intarsia.main_library())
    x, weight = jnp.ones((2, 64)), jnp.ones(64)
    scale = np.float32(np.random.default_rng().uniform())  # no program of another run's

    def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
        return ops.rms_norm(x, weight) * scale

    told = programs.Programs(Ranks(1))
    early = told.get("early", norm, x, weight)
    assert told.custom_calls == {"early": {"rms_norm": 1}}
    assert told.compiled_since_seal == 0 and told.late == []
    told.seal()
    assert told.get("early", norm, x, weight) is early
    early(x, weight)
    assert told.compiled_since_seal == 0 and told.late == [] and warnings == []

    told.get("late", norm, x[:1], weight)
    assert told.late == ["late"]
    assert warnings == ["XLA program: late was compiled while serving"]
    counted = told.compiled_since_seal
    assert counted >= 1

    jax.jit(lambda x: x * scale + 5)(x)  # none of ours
    assert told.compiled_since_seal > counted
    assert told.late == ["late"]
