"""A serving loop as it is written for TPUs, on CPUs and GPUs: only the import of the attention is another.

A toy model of one layer and no training reads some prompts and continues them. The shape of the loop is that of
servers built on JAX's TPU kernel: one array of pages with K and V in alternating heads, a batch of fixed size
with `num_seqs` of it in use, prompts of different lengths in one ragged step, then one token a sequence and step.

    python examples/tpu_decode_loop.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

# On a TPU:
# from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from intarsia.jax import ragged_paged_attention

VOCABULARY, HEADS, KV_HEADS, HEAD_DIM = 97, 8, 2, 64
PAGE_SIZE, PAGES_PER_SEQUENCE, MAX_SEQUENCES = 16, 4, 4
PROMPTS = [
    [5, 17, 3, 88, 2],
    [42],
    [9, 9, 31, 64, 12, 7, 70, 1, 13, 55, 8, 6, 20, 33, 47, 90, 11, 4],
]


def make_weights(seed: int = 0) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 4)
    width = HEADS * HEAD_DIM
    return {
        "embed": jax.random.normal(keys[0], (VOCABULARY, width)),
        "wq": jax.random.normal(keys[1], (width, HEADS, HEAD_DIM)) / width**0.5,
        "wkv": jax.random.normal(keys[2], (width, 2 * KV_HEADS, HEAD_DIM)) / width**0.5,
        "wo": jax.random.normal(keys[3], (HEADS, HEAD_DIM, width)) / width**0.5,
    }


@functools.partial(jax.jit, static_argnames="attention", donate_argnames="kv_pages")
def step(
    weights, kv_pages, tokens, slots, kv_lens, page_indices, cu_q_lens, num_seqs, *, attention
):
    """Runs one ragged batch of tokens [t]; returns the next token of each sequence and the pages."""
    hidden = weights["embed"][tokens]
    q = jnp.einsum("tn,nhd->thd", hidden, weights["wq"])
    new_kv = jnp.einsum("tn,nhd->thd", hidden, weights["wkv"])  # K and V heads alternate
    kv_pages = kv_pages.at[slots // PAGE_SIZE, slots % PAGE_SIZE].set(new_kv, mode="drop")
    out = attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=HEAD_DIM**-0.5,
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
        vmem_limit_bytes=32 * 1024 * 1024,
    )
    out = jnp.zeros_like(q).at[: len(out)].set(out)
    hidden = hidden + jnp.einsum("thd,hdn->tn", out, weights["wo"])
    last = jnp.maximum(cu_q_lens[1:] - 1, 0)
    return jnp.argmax(hidden[last] @ weights["embed"].T, axis=-1).astype(jnp.int32), kv_pages


def generate(steps: int = 12, attention=ragged_paged_attention) -> list[list[int]]:
    """Continues each of the prompts by `steps` tokens."""
    weights = make_weights()
    count = len(PROMPTS)
    pages = MAX_SEQUENCES * PAGES_PER_SEQUENCE
    kv_pages = jnp.zeros((pages, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM))
    page_indices = np.arange(pages, dtype=np.int32).reshape(MAX_SEQUENCES, PAGES_PER_SEQUENCE)
    kv_lens = np.zeros(MAX_SEQUENCES, np.int32)
    texts = [list(prompt) for prompt in PROMPTS]
    new = [list(prompt) for prompt in PROMPTS]  # what each sequence brings to the next step
    for _ in range(steps):
        lens = np.array([len(tokens) for tokens in new] + [0] * (MAX_SEQUENCES - count))
        cu_q_lens = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
        rows = max(MAX_SEQUENCES, int(cu_q_lens[-1]))  # a decode step always has as many
        tokens, slots = np.zeros(rows, np.int32), np.full(rows, pages * PAGE_SIZE, np.int32)
        for i, ids in enumerate(new):
            at = kv_lens[i] + np.arange(len(ids))
            here = slice(cu_q_lens[i], cu_q_lens[i + 1])
            tokens[here] = ids
            slots[here] = page_indices[i, at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE
            kv_lens[i] += len(ids)
        next_tokens, kv_pages = step(
            weights,
            kv_pages,
            jnp.asarray(tokens),
            jnp.asarray(slots),
            jnp.array(kv_lens),  # a copy: the loop changes its own
            jnp.asarray(page_indices),
            jnp.asarray(cu_q_lens),
            jnp.array([count], jnp.int32),
            attention=attention,
        )
        new = [[int(token)] for token in next_tokens[:count]]
        for text, token in zip(texts, new, strict=True):
            text += token
    return texts


if __name__ == "__main__":
    for prompt, text in zip(PROMPTS, generate(), strict=True):
        print(f"{len(prompt):3} tokens, then {text[len(prompt) :]}")
