"""flash_attn_varlen_backward: its cases, and what it computes in the terms of attention/gradient.py."""

import numpy as np
from intarsia_src.attention import gradient
from intarsia_src.attention import operands as attention
from intarsia_src.attention import reference as f64
from intarsia_src.core.operands import random_array, random_scale

# No looser than the forward pass: measured errors of P and dS average out over the keys alike.
TOLERANCE = f64.TOLERANCE

_LLAMA = dict(h=32, hk=8, d=128, is_causal=True)
_SMOLLM2 = dict(h=9, hk=3, d=64)
_MIXED = ((1, 33), (5, 5), (0, 0), (1, 1), (7, 40), (3, 0), (0, 9), (9, 4), (1, 16), (130, 70))
_TWO = ((40, 70), (90, 90))

# Named after the models whose heads they are. `lens` has (queries, keys) of each sequence.
CASES = {
    "example": dict(tags="ci wire", lens=((3, 3), (2, 6)), h=4, hk=2, d=64, is_causal=True),
    "llama3_8b_train_4x4096": dict(tags="bench", lens=((4096, 4096),) * 4, **_LLAMA, drawn=True),
    "llama3_8b_train_4x4096_deterministic": dict(
        tags="bench", lens=((4096, 4096),) * 4, **_LLAMA, drawn=True, deterministic=True
    ),
    "llama3_1b_train_4x4096": dict(
        tags="bench", lens=((4096, 4096),) * 4, h=32, hk=8, d=64, is_causal=True, drawn=True
    ),
    "llama3_8b_train_1x512": dict(tags="bench_cpu", lens=((512, 512),), **_LLAMA, drawn=True),
    "smollm2_train_4x128": dict(
        tags="ci bench_cpu", lens=((128, 128),) * 4, **_SMOLLM2, is_causal=True
    ),
    "bidirectional": dict(tags="ci", lens=_MIXED, **_SMOLLM2),
    "causal": dict(tags="ci", lens=_MIXED, **_SMOLLM2, is_causal=True),
    "causal_deterministic": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, is_causal=True, deterministic=True
    ),
    "causal_int64": dict(tags="ci", lens=_MIXED, **_SMOLLM2, is_causal=True, index=np.int64),
    "used_keys": dict(tags="ci", lens=_MIXED, **_SMOLLM2, used=True, is_causal=True),
    "padded": dict(tags="ci", lens=_MIXED, **_SMOLLM2, padding=9, key_padding=5),
    "window_both": dict(tags="ci", lens=_TWO, **_SMOLLM2, window_left=16, window_right=5),
    "window_left_causal": dict(tags="ci", lens=_TWO, **_SMOLLM2, window_left=0, is_causal=True),
    "window_left_deterministic": dict(
        tags="ci", lens=((300, 700),), **_SMOLLM2, window_left=150, deterministic=True
    ),
    "window_right": dict(tags="ci", lens=((40, 70), (90, 9)), **_SMOLLM2, window_right=3),
    "gemma2_softcap": dict(
        tags="ci",
        lens=((30, 30), (2, 70)),
        h=8,
        hk=4,
        d=256,
        softcap=50.0,
        scale=0.0625,
        is_causal=True,
    ),
    "softcap_bends": dict(tags="ci", lens=_TWO, h=4, hk=4, d=32, softcap=0.5, scale=0.2),
    "alibi": dict(tags="ci", lens=_MIXED, **_SMOLLM2, alibi="head"),
    "alibi_by_sequence": dict(tags="ci", lens=_MIXED, **_SMOLLM2, alibi="sequence", is_causal=True),
    "sinks": dict(tags="ci", lens=_MIXED, **_SMOLLM2, sinks=True, padding=3),
    "lse_gradient": dict(tags="ci beyond_plain", lens=_MIXED, **_SMOLLM2, dlse=True),
    "sinks_window_lse_gradient": dict(
        tags="ci beyond_plain",
        lens=_MIXED,
        **_SMOLLM2,
        sinks=True,
        dlse=True,
        is_causal=True,
        window_left=7,
    ),
    "head_dim_8": dict(tags="ci", lens=((20, 50), (4, 9)), h=3, hk=1, d=8),
    "head_dim_96": dict(tags="ci", lens=((70, 80),), h=5, hk=5, d=96, is_causal=True),
    "head_dim_120": dict(tags="ci", lens=((70, 80),), h=5, hk=5, d=120, is_causal=True),
    "head_dim_128": dict(tags="ci", lens=((200, 300), (17, 90)), h=8, hk=2, d=128, is_causal=True),
    "head_dim_192": dict(tags="ci", lens=((70, 80),), h=4, hk=2, d=192, is_causal=True),
    "head_dim_256": dict(tags="ci", lens=((70, 150),), h=4, hk=2, d=256),
    "many_query_heads": dict(tags="ci", lens=((3, 70),), h=71, hk=1, d=64, is_causal=True),
    "no_tokens": dict(tags="ci beyond_plain", lens=((0, 5), (0, 0)), **_SMOLLM2, sinks=True),
}


def _options(
    head_dim, scale=None, is_causal=False, window_left=-1, window_right=-1, softcap=0.0
):  # fmt: skip
    return dict(
        scale=head_dim**-0.5 if scale is None else scale,
        left=window_left,
        right=0 if is_causal else window_right,
        softcap=softcap,
    )


def arguments(
    rng, dtype, *, lens, h, hk, d, used=False, padding=0, key_padding=0, index=np.int32, alibi=None,
    sinks=False, dlse=False, drawn=False, deterministic=False, **attributes,
):  # fmt: skip
    """Random operands in spec order, and attributes.

    `used`: seqused_k says that each sequence has a few keys fewer than its room. `padding`,
    `key_padding`: rows of q and of k beyond the sequences. `drawn`: out and lse are drawn, not
    computed, where only the time counts.
    """
    lens_q, lens_k = [n for n, _ in lens], [n for _, n in lens]
    t = sum(lens_q) + padding
    q, dout, drawn_out = (random_array(rng, (t, h, d), dtype) for _ in range(3))
    k, v = (random_array(rng, (sum(lens_k) + key_padding, hk, d), dtype) for _ in range(2))
    cu_seqlens_q, cu_seqlens_k = attention.starts(lens_q, index), attention.starts(lens_k, index)
    seqused_k = (
        np.maximum(np.array(lens_k) - rng.integers(0, 4, len(lens_k)), 0).astype(index)
        if used
        else None
    )
    alibi_slopes = random_scale(rng, alibi, lens, h)
    sinks = random_array(rng, (h,), np.float32) if sinks else None
    dlse = random_array(rng, (h, t), np.float32) if dlse else None
    if drawn:
        seen = np.concatenate([np.arange(1, n + 1) for n in lens_q])
        out = (drawn_out.astype(np.float32) / 8).astype(dtype)
        lse = np.broadcast_to(np.log(seen) + 0.5, (h, t)).astype(np.float32)
    else:
        exact = [np.asarray(x, np.float64) for x in (q, k, v)]
        out, lse = f64.attend_ragged(
            exact[0],
            cu_seqlens_q,
            f64.dense_keys(*exact[1:], cu_seqlens_k, seqused_k),
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            **_options(d, **attributes),
        )
        out, lse = out.astype(dtype), lse.astype(np.float32)
    return [
        dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, seqused_k, alibi_slopes, sinks, dlse,
    ], attributes | dict(deterministic=deterministic)  # fmt: skip


def _gradient(arrays, deterministic=False, magnitudes=False, **attributes):
    return gradient.backward(
        *arrays, magnitudes=magnitudes, **_options(arrays[1].shape[-1], **attributes)
    )


def reference(*arrays, **attributes):
    """The results in spec order. Operands are f64, indices integers."""
    return _gradient(arrays, **attributes)


def magnitudes(*arrays, **attributes):
    """For each result the size of what cancels in it."""
    return _gradient(arrays, magnitudes=True, **attributes)


def floor(dtype_bytes, *, lens, h, hk, d, is_causal=False, window_left=-1, **_):
    """The least a call must do: (bytes moved, flops)."""
    moved, flops = f64.floor(dtype_bytes, lens, h=h, hk=hk, d=d, causal=is_causal, left=window_left)
    # As many again for the gradients; five products where the forward pass has two.
    return 2 * moved, flops * 5 // 2


def plain_xla_hints(*, lens, **_):
    """What plain XLA must be told at compile time, and our op need not."""
    return dict(
        max_seqlen_q=max(len_q for len_q, _ in lens), max_seqlen_k=max(len_k for _, len_k in lens)
    )


def plain_xla(
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, seqused_k=None, alibi_slopes=None,
    sinks=None, dlse=None, *, deterministic=False, max_seqlen_q=None, max_seqlen_k=None,
    **attributes,
):  # fmt: skip
    """The same by differentiating jax.numpy's attention, as a user without this library would."""
    import jax
    import jax.numpy as jnp
    from intarsia_src.attention import plain_xla

    del out, lse, deterministic
    row = cu_seqlens_k[:-1, None] + jnp.arange(max_seqlen_k or k.shape[0])
    exists = row < k.shape[0]
    used = jnp.diff(cu_seqlens_k) if seqused_k is None else seqused_k

    def forward(q, k, v, sinks):
        k, v = (x[jnp.minimum(row, x.shape[0] - 1)] for x in (k, v))
        out, lse = plain_xla.attend(
            q,
            k,
            v,
            used,
            exists,
            cu_seqlens_q,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            max_len_q=max_seqlen_q or q.shape[0],
            **_options(q.shape[-1], **attributes),
        )
        return out if dlse is None else (out, lse)

    gradients = jax.vjp(forward, q, k, v, sinks)[1](dout if dlse is None else (dout, dlse))
    return [x for x in gradients if x is not None]
