"""`topk_router` against NumPy in f64: ties, groups, numbers that are none."""

import intarsia.jax as ij
import jax
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, LEAD, SEEDS, check
from hypothesis import assume, given
from hypothesis import strategies as st


@st.composite
def routings(draw):
    rng, t = np.random.default_rng(draw(SEEDS)), support.DTYPES[draw(DTYPES)]
    groups, each = draw(
        st.sampled_from([(1, 1), (1, 7), (1, 128), (4, 3), (8, 32), (32, 32), (5, 1)])
    )
    e = groups * each
    topk_groups = draw(st.integers(1, groups))
    top_k = draw(st.integers(1, min(40, topk_groups * each)))
    scoring = draw(st.sampled_from(["softmax", "sigmoid", "softplus_sqrt"]))
    bias, lead = None, draw(LEAD)
    if draw(st.booleans()) and e <= 256:
        bias, lead = (100 * rng.standard_normal(e)).astype(np.float32), ()
    # Few different numbers: ties are many.
    logits = (rng.integers(-6, 7, (*lead, e)) / 4).astype(t)
    if bias is not None:  # sums that f32 keeps apart
        keys = support.op_module("topk_router").scores_of(logits.astype(float), scoring) + bias
        best = -np.sort(-keys.reshape(groups, each), axis=-1)[:, :2].sum(-1)
        assume(all((np.diff(np.sort(x)) > 1e-3).all() for x in (keys, best)))
    attributes = {
        "top_k": top_k,
        "scoring": scoring,
        "renormalize": draw(st.booleans()),
        "num_groups": groups,
        "topk_groups": topk_groups,
        "scale": draw(st.sampled_from([1.0, 2.5])),
    }  # fmt: skip
    return [logits, bias], attributes


@running.on_each_platform
@given(call=routings())
def test_any_routing(platform, call) -> None:
    check("topk_router", *call, platform)


@running.on_each_platform
def test_ties_go_to_the_lower_expert(platform) -> None:
    logits = np.zeros((2, 70), np.float32)
    logits[1, [69, 33]] = 1
    weights, ids = running.run_any("topk_router", [logits, None], {"top_k": 4}, platform)
    assert ids.tolist() == [[0, 1, 2, 3], [33, 69, 0, 1]]
    np.testing.assert_allclose(weights[0], 1 / 70, rtol=1e-6)


@running.on_each_platform
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "softplus_sqrt"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("with_bias", [False, True])
def test_ids_are_experts_whatever_the_logits(scoring, groups, with_bias, platform) -> None:
    """Each once, and NaN behind all numbers."""
    rng = np.random.default_rng(1)
    logits = rng.choice(np.array([np.nan, np.inf, -np.inf, 0, 3], np.float32), (64, 16))
    logits[0], logits[1], logits[2] = np.nan, -np.inf, np.inf
    bias = rng.choice(np.array([np.inf, -np.inf, np.nan, 1], np.float32), 16) if with_bias else None
    attributes = {"top_k": 4, "scoring": scoring, "num_groups": groups, "topk_groups": 1}
    _, ids = running.run_any("topk_router", [logits, bias], attributes, platform)
    assert ((ids >= 0) & (ids < 16)).all()
    assert all(len(set(row)) == 4 for row in ids.tolist())
    if groups == 1 and not with_bias:
        chosen = np.take_along_axis(logits, ids, -1)
        order = np.where(np.isnan(chosen), -np.inf, chosen)
        assert (order[:, :-1] >= order[:, 1:]).all()


@running.on_each_platform
@pytest.mark.parametrize("scoring", ["sigmoid", "softplus_sqrt", "softmax"])
def test_scores_of_0_give_weights_of_0(scoring, platform) -> None:
    """As vLLM's kernels do. Of softmax a bias chooses an expert whose score is 0 in f32."""
    logits = np.array([[200.0, 1, 1, -10] if scoring == "softmax" else [-400.0] * 4], np.float32)
    bias = np.array([0, 0, 0, 10], np.float32) if scoring == "softmax" else None
    attributes = {"top_k": 1, "scoring": scoring, "renormalize": True}
    with jax.default_device(jax.devices(platform)[0]):
        weights, ids = ij.topk_router(logits, bias, **attributes)
        (d_logits,) = jax.grad(lambda x: ij.topk_router(x, bias, **attributes)[0].sum(), (0,))(
            logits
        )
    assert ids[0, 0] == (3 if scoring == "softmax" else 0)
    np.testing.assert_array_equal(weights, [[0.0]])
    np.testing.assert_array_equal(d_logits, np.zeros_like(logits))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"top_k": 9}, r"topk_router: top_k is 9, expected 1 to 8, the experts of 1 of 1 groups"),
        ({"top_k": 5, "num_groups": 2}, r"top_k is 5, expected 1 to 4, the experts of 1 of 2"),
        ({"num_groups": 3}, r"num_groups is 3, expected a divisor of the e=8 experts"),
        ({"num_groups": 4, "topk_groups": 5}, r"topk_groups is 5, expected 1 to num_groups=4"),
        ({"scoring": "relu"}, r"scoring is .*relu"),
    ],
)
def test_wrong_calls(attributes, message) -> None:
    with pytest.raises(ValueError, match=message):
        ij.topk_router(np.zeros((2, 8), np.float32), **attributes)


def test_more_experts_than_are_built() -> None:
    with pytest.raises(NotImplementedError, match=r"e=1025 experts in 1 groups, built are up to"):
        ij.topk_router(np.zeros((2, 1025), np.float32))
