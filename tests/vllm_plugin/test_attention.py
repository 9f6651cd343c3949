"""A layer's attention to a paged cache, against f64; decode steps take the op for one token a request."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("vllm")

import intarsia
import intarsia.jax
from intarsia.vllm import attention
from intarsia.vllm.attention import TracedMetadata
from intarsia.vllm.batch import Group
from intarsia.vllm.compat import import_torchax

_, ENVIRONMENT = import_torchax()

HEADS, KV_HEADS, HEAD, PAGE = 4, 2, 16, 8
LENGTHS = (5, 19)
"""Keys of each request, this step's included."""


def expected(query: np.ndarray, cache: np.ndarray, table: np.ndarray, slopes: list) -> np.ndarray:
    """Of the newest token of each request: softmax(q k / sqrt(d) - slope * distance) v."""
    out = np.zeros(query.shape)
    for i, length in enumerate(LENGTHS):
        keys, values = cache[:, table[i]].reshape(2, -1, KV_HEADS, HEAD)[:, :length]
        for head in range(HEADS):
            of = head // (HEADS // KV_HEADS)
            scores = keys[:, of] @ query[i, head] * HEAD**-0.5
            scores -= (slopes[head] if slopes else 0) * np.arange(length)[::-1]
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[:, of] / weights.sum()
    return out


@pytest.mark.parametrize("slopes", [None, [0.5, 0.25, 0.125, 0.0625]], ids=["plain", "ALiBi"])
@pytest.mark.parametrize(
    ("decode", "op"), [(True, "paged_attention"), (False, "flash_attn_varlen")]
)
def test_a_token_of_each_request(
    monkeypatch: pytest.MonkeyPatch, decode: bool, op: str, slopes: list[float] | None
) -> None:
    from torchax import interop

    monkeypatch.setattr(attention, "get_tensor_model_parallel_world_size", lambda: 1)
    intarsia.jax.register(intarsia.main_library())
    one = attention.XlaGpuPagedAttention(HEADS, HEAD, HEAD**-0.5, KV_HEADS, slopes)
    draw = np.random.default_rng(0)
    table = np.array([[3, 0, 0], [1, 4, 2]])
    query = draw.normal(size=(2, HEADS, HEAD))
    cache = draw.normal(size=(2, 5, PAGE, KV_HEADS, HEAD))
    group = Group(*(jnp.asarray(x, jnp.int32) for x in ([0, 1, 2], LENGTHS, table, [-1, -1])))

    def step(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        caches = SimpleNamespace(read=lambda name: (keys, values))
        layer = SimpleNamespace(layer_name="layer")
        with ENVIRONMENT:
            operand = interop.torch_view(query)
            return one.attend(layer, operand, None, None, TracedMetadata(group, caches, decode))

    compiled = jax.jit(step).lower(*map(jnp.float32, (query, *cache))).compile()
    assert re.findall(r'custom_call_target="intarsia\.(\w+)"', compiled.as_text()) == [op]
    out = compiled(*map(jnp.float32, (query, *cache)))
    np.testing.assert_allclose(out, expected(query, cache, table, slopes), atol=1e-5)
