"""What a user's type checker says of calls: checked by `make check`, never run.

`assert_type` fails where a result is not of exactly that type; an ignored error that is none fails, too.
"""

from typing import assert_type

import intarsia
import jax
import numpy as np
from intarsia import jax as ij
from intarsia.models import Completion, Engine, SamplingParams
from intarsia.vllm import register_ops
from intarsia.xla_ops import setup_custom_call

Pair = tuple[jax.Array, jax.Array]
Triple = tuple[jax.Array, jax.Array, jax.Array]


def results_depend_on_a_flag(x: jax.Array, cache: Pair, flag: bool) -> None:
    assert_type(ij.paged_attention(x, cache, x, x, x), jax.Array)
    assert_type(ij.paged_attention(x, cache, x, x, x, return_lse=True), Pair)
    assert_type(ij.paged_attention(x, cache, x, x, x, return_lse=flag), jax.Array | Pair)
    assert_type(ij.cascade_attention(x, cache, x, 64, x, x, x), jax.Array)
    assert_type(ij.cascade_attention(x, cache, x, 64, x, x, x, return_lse=True), Pair)
    assert_type(ij.flash_attn_varlen(x, x, x, x, cu_seqlens_k=x), jax.Array)
    assert_type(ij.flash_attn_varlen(x, x, x, x, return_lse=True), Pair)
    assert_type(ij.wire.paged_attention(x, x, None, x, x, x), jax.Array)
    assert_type(ij.dot_product_attention(x, x, x), jax.Array)
    assert_type(ij.dot_product_attention(x, x, x, return_residual=True), Pair)
    assert_type(ij.flash_mha_with_kvcache(x, x, x, cache_seqlens=3), jax.Array)
    assert_type(ij.flash_mha_with_kvcache(x, x, x, return_softmax_lse=True), Pair)


def results_depend_on_an_operand(x: jax.Array, maybe: jax.Array | None) -> None:
    assert_type(ij.rotary_embedding(x, x, x), jax.Array)
    assert_type(ij.rotary_embedding(x, x, x, x), Pair)
    assert_type(ij.rotary_embedding(x, x, x, maybe), jax.Array | Pair)
    assert_type(ij.rms_norm_dynamic_per_token_quant(x, x), Pair)
    assert_type(ij.rms_norm_dynamic_per_token_quant(x, x, residual=x), Triple)
    assert_type(ij.rms_norm_dynamic_per_token_quant(x, x, None, x), Triple)
    assert_type(ij.fused_add_rms_norm(x, x), Pair)


def a_cache_comes_back_in_its_form(x: jax.Array, cache: Pair, either: jax.Array | Pair) -> None:
    assert_type(ij.reshape_and_cache_flash(x, x, x, x), jax.Array)
    assert_type(ij.reshape_and_cache_flash(x, x, cache, x), Pair)
    assert_type(ij.reshape_and_cache_flash(x, x, either, x), jax.Array | Pair)
    assert_type(
        ij.rotary_embedding_and_cache(x, x, x, cache, x, num_heads=4), tuple[jax.Array, Pair]
    )


def operands_are_what_jax_takes(x: np.ndarray) -> None:
    assert_type(ij.rms_norm(x, x), jax.Array)
    assert_type(ij.linear(x, x, out_dtype="f32"), jax.Array)
    ij.rms_norm("x")  # type: ignore[arg-type]


def words_are_known(x: jax.Array, cache: Pair) -> None:
    ij.rms_norm(x, rounding="before_weight")
    ij.rms_norm(x, rounding="twice")  # type: ignore[arg-type]
    ij.linear(x, x, out_dtype="bf16")  # type: ignore[arg-type]
    ij.paged_attention(x, cache, x, x, x, kv_cache_dtype="int8")  # type: ignore[call-overload]


def names_have_types(engine: Engine) -> None:
    assert_type(intarsia.load_ops("x.so"), intarsia.Library)
    assert_type(engine.generate([[1]], SamplingParams()), list[Completion])
    assert_type(register_ops(), bool)
    assert_type(setup_custom_call(), bool)
