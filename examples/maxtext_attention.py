"""Our attention in MaxText: on GPUs its AttentionOp computes `attention: cudnn_flash_te` by the method `cudnn_flash_attention`.

    from MaxText.layers.attention_op import AttentionOp     # maxtext.layers.attention_op in newer ones
    import maxtext_attention
    AttentionOp.cudnn_flash_attention = maxtext_attention.cudnn_flash_attention

The method's arguments are MaxText 0.2's; older ones call it without `segment_positions` and `sinks`. Packed sequences become a ragged
batch, so what lies between them costs nothing; MaxText's own kernel builds a mask.
"""

import intarsia.jax as ij
import jax
import jax.numpy as jnp


def cudnn_flash_attention(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decoder_segment_ids: jax.Array | None,
    segment_positions: jax.Array | None = None,
    model_mode: str = "train",
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Causal attention of [b, s, h, d] to [b, s, hk, d]; MaxText scales query beforehand. Segment 0 is padding, which gives 0."""
    if self.attention_type.value not in ("global", "local_sliding"):
        raise NotImplementedError(f"attention_type is {self.attention_type.value}, expected global")
    b, s, h, d = query.shape
    ids = jnp.ones((b, s), jnp.int32) if decoder_segment_ids is None else decoder_segment_ids
    starts = _starts(ids)
    q, k, v = (x.reshape(b * s, -1, d) for x in (query, key, value))
    keys = self.sliding_window_size if self.attention_type.value == "local_sliding" else 0
    out = ij.flash_attn_varlen(
        q,
        k,
        v,
        starts,
        cu_seqlens_k=starts,
        is_causal=True,
        scale=1.0,
        window=(keys - 1, 0) if keys else (-1, -1),
        softcap=self.attn_logits_soft_cap or 0.0,
        sinks=sinks,
    )
    return jnp.where(ids[..., None, None] > 0, out.reshape(b, s, h, d), 0)


def _starts(ids: jax.Array) -> jax.Array:
    """Where a segment begins, and at the end as often as it takes for one shape: int32 [b * s + 1]."""
    first = jnp.ones_like(ids[:, :1], bool)
    begins = jnp.concatenate([first, ids[:, 1:] != ids[:, :-1]], axis=1).reshape(-1)
    (places,) = jnp.nonzero(begins, size=begins.size, fill_value=begins.size)
    return jnp.append(places, begins.size).astype(jnp.int32)
