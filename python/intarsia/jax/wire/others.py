"""Ops of no family, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all
from intarsia.jax.wire._words import Scoring


def merge_attn_states(
    prefix_out: ArrayLike, prefix_lse: ArrayLike, suffix_out: ArrayLike, suffix_lse: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Attention over two sets of keys, from the results over each.

    Args:
      prefix_out: [t, h, d], T: attention over the one set.
      prefix_lse: [h, t], f32: its natural log of the sum of exponentials; -inf or +inf: no key.
      suffix_out: [t, h, d], T: attention over the other set.
      suffix_lse: [h, t], f32: as prefix_lse.

    Returns:
      out: [t, h, d], T: attention over both.
      lse: [h, t], f32: of both; -inf where neither has a key.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: FlashInfer, arXiv:2501.01005, section 2.2; vLLM's _C::merge_attn_states. T is f32,
        f16 or bf16.

    Example:
      >>> prefix_out = jnp.ones((2, 4, 8))
      >>> prefix_lse = jnp.ones((4, 2))
      >>> suffix_out = jnp.ones((2, 4, 8))
      >>> suffix_lse = jnp.ones((4, 2))
      >>> out, lse = merge_attn_states(prefix_out, prefix_lse, suffix_out, suffix_lse)
      >>> print(jax.typeof(out), jax.typeof(lse))
      float32[2,4,8] float32[4,2]
    """
    return one_or_all(call("merge_attn_states", (prefix_out, prefix_lse, suffix_out, suffix_lse)))


def simple_add(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """Elementwise sum of two arrays of one shape.

    Args:
      a: [...], T: one summand.
      b: [...], T: the other.

    Returns:
      out: [...], T: a + b.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: the smallest op there is. T is f32, f16 or bf16.

    Example:
      >>> a = jnp.ones((2, 64))
      >>> b = jnp.ones((2, 64))
      >>> out = simple_add(a, b)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("simple_add", (a, b)))


def topk_router(
    logits: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    top_k: int = 1,
    scoring: Scoring = "softmax",
    renormalize: bool = False,
    num_groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1,
) -> tuple[jax.Array, jax.Array]:
    """The experts of each token, and their weights.

    Args:
      logits: [..., e], T: what a token says to each expert.
      bias: [e], f32: added to the scores where experts are chosen; weights have none of it;
        optional.
      top_k: experts of a token.
      scoring: scores from logits; one of softmax, sigmoid, softplus_sqrt.
      renormalize: weights of a token sum to scale, but where all of their scores are 0.
      num_groups: groups of neighboring experts.
      topk_groups: groups that a token may choose from.
      scale: what weights are multiplied by.

    Returns:
      weights: [..., top_k], f32: weights, the largest score first.
      ids: [..., top_k], i32: which experts these are.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's topk_softmax, topk_sigmoid, topk_softplus_sqrt and grouped_topk. T is f32,
        f16 or bf16.

    Example:
      >>> logits = jnp.ones((3, 8))
      >>> weights, ids = topk_router(logits, top_k=2, renormalize=True)
      >>> print(jax.typeof(weights), jax.typeof(ids))
      float32[3,2] int32[3,2]
    """
    return one_or_all(
        call(
            "topk_router",
            (logits, bias),
            top_k=top_k,
            scoring=scoring,
            renormalize=renormalize,
            num_groups=num_groups,
            topk_groups=topk_groups,
            scale=scale,
        )
    )
