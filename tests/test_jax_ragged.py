"""`ragged_paged_attention` against the reference that JAX ships beside its TPU kernel."""

import inspect
import runpy

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as tpu

EXAMPLE = support.ROOT / "examples" / "tpu_decode_loop.py"


def batch(dtype, kv_dtype=None, h=8, hk=2, d=64, page=8):
    """Three real sequences of four, with a prefill, a decode step and a chunk, and rows of padding."""
    rng = np.random.default_rng(0)
    lens_q, lens_k = np.array([5, 1, 7, 0]), np.array([5, 19, 16, 3], np.int32)
    pages, m = 20, 4
    q = jnp.asarray(rng.standard_normal((16, h, d)), dtype)
    kv_pages = jnp.asarray(rng.standard_normal((pages, page, 2 * hk, d)), kv_dtype or dtype)
    table = jnp.asarray(rng.permutation(pages)[: 4 * m].reshape(4, m), jnp.int32)
    starts = jnp.asarray(np.concatenate([[0], np.cumsum(lens_q)]), jnp.int32)
    return q, kv_pages, jnp.asarray(lens_k), table, starts, jnp.array([3], jnp.int32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sm_scale": 0.125},
        {"sm_scale": 0.125, "sliding_window": 4},
        {"sm_scale": 0.2, "soft_cap": 5.0, "mask_value": None},
        {"sm_scale": 0.125, "k_scale": 0.5, "v_scale": 3.0},
        {"num_kv_pages_per_block": 2, "num_queries_per_block": 4, "vmem_limit_bytes": 1 << 20},
    ],
    ids=str,
)
def test_it_computes_what_the_reference_does(options: dict, dtype) -> None:
    operands = batch(dtype)
    got = np.asarray(jax.jit(lambda *xs: ij.ragged_paged_attention(*xs, **options))(*operands))
    kept = {k: v for k, v in options.items() if "block" not in k and "vmem" not in k}
    wide = [x.astype(jnp.float32) if x.dtype == dtype else x for x in operands]
    want = np.asarray(tpu.ref_ragged_paged_attention(*wide, **kept))
    running.check("paged_attention", got[:13], want)
    assert got.dtype == dtype and not got[13:].any()


@pytest.mark.parametrize("kv_dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_fp8_pages(kv_dtype) -> None:
    operands = batch(jnp.float32, kv_dtype)
    scales = {"k_scale": 0.5, "v_scale": 2.0}
    got = np.asarray(ij.ragged_paged_attention(*operands, sm_scale=0.125, **scales))
    want = np.asarray(tpu.ref_ragged_paged_attention(*operands, sm_scale=0.125, **scales))
    running.check("paged_attention", got[:13], want)


def test_the_signature_is_that_of_the_tpu_kernel() -> None:
    ours = inspect.signature(ij.ragged_paged_attention).parameters
    theirs = inspect.signature(tpu.ragged_paged_attention).parameters
    assert [(p.name, p.kind) for p in ours.values()] == [(p.name, p.kind) for p in theirs.values()]
    for name, parameter in theirs.items():
        if name != "mask_value":  # theirs is a number, which means the same as None
            assert ours[name].default == parameter.default, name


def test_a_soft_cap_of_zero_is_refused_as_there() -> None:
    with pytest.raises(ValueError, match="soft_cap is 0, expected None or a number above 0"):
        ij.ragged_paged_attention(*batch(jnp.float32), soft_cap=0.0)


@pytest.mark.full
def test_the_example_gives_the_tokens_of_the_reference() -> None:
    def reference(*operands, sm_scale, **tuning):
        del tuning
        return tpu.ref_ragged_paged_attention(*operands, sm_scale=sm_scale)

    generate = runpy.run_path(str(EXAMPLE))["generate"]
    with jax.disable_jit():
        want = generate(2, reference)
    assert generate(2) == want


def test_the_example_runs(capsys) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.count("tokens, then [") == 3
