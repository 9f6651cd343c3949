"""Which tensors are known to be parts of one product: those that the ops for norms, rotation and the write to the cache may take."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import products

HEAD = 16
SIZES = (4 * HEAD, 2 * HEAD, 2 * HEAD)


def turned(whole: torch.Tensor, sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """What a model gives to `Attention`: turned queries and keys, and values."""
    query, key, value = products._split(whole, sizes, -1)
    results = query.clone(), key.clone()
    products.mark_turned(torch.arange(3), (query, key), results, torch.ones(8, HEAD), True, HEAD)
    return *results, value


def test_parts_of_one_product() -> None:
    whole = torch.randn(3, 8 * HEAD)
    found = products._turned_of(*turned(whole, SIZES), HEAD)
    assert found.product.whole is whole
    assert found.positions.tolist() == [0, 1, 2] and found.is_neox


@pytest.mark.parametrize(
    "sizes",
    [
        (4 * HEAD, 3 * HEAD, 1 * HEAD),  # values narrower than keys
        (4 * HEAD + 8, 2 * HEAD - 4, 2 * HEAD - 4),  # no whole heads
    ],
)
def test_what_the_op_cannot_take(sizes: tuple[int, ...]) -> None:
    assert products._turned_of(*turned(torch.randn(3, 8 * HEAD), sizes), HEAD) is None


def test_a_rotation_of_other_heads() -> None:
    whole = torch.randn(3, 8 * HEAD)
    assert products._turned_of(*turned(whole, SIZES), HEAD // 2) is None


def test_a_rotation_of_something_else_than_tokens() -> None:
    """Each head with a position of its own."""
    query, key, value = products._split(torch.randn(3, 3 * HEAD), (HEAD,) * 3, -1)
    for n in (3, 9):
        results = query.clone(), key.clone()
        products.mark_turned(
            torch.arange(n), (query, key), results, torch.ones(8, HEAD), True, HEAD
        )
        assert (products._turned_of(*results, value, HEAD) is not None) == (n == 3)


@pytest.mark.parametrize("changed", range(5))
def test_a_program_that_changes_a_part(changed: int) -> None:
    """Queries, keys, values, the product or none of them, in place, between rotation and attention. To torch parts change with the
    product, to torchax they do not: what counts is the parts."""
    import jax
    import jax.numpy as jnp
    from intarsia.vllm.compat import import_torchax

    _, environment = import_torchax()
    from torchax import interop

    found = []

    def step(whole: jax.Array) -> jax.Array:
        with environment:
            product = interop.torch_view(whole)
            given = (*turned(product, SIZES), product)
            if changed < 4:
                given[changed].mul_(2)
            found.append((products._turned_of(*given[:3], HEAD), whole))
        return whole

    jax.make_jaxpr(step)(jnp.ones((3, 8 * HEAD)))
    [(by, whole)] = found
    assert (by is None) == (changed < 3)
    assert by is None or by.product.whole is whole


def test_anything_done_in_between() -> None:
    query, key, value = turned(torch.randn(3, 8 * HEAD), SIZES)
    other = turned(torch.randn(3, 8 * HEAD), SIZES)
    for parts in (
        (query * 1, key, value),
        (query, key * 1, value),
        (query, key, value * 1),
        (query, other[1], value),
        (query, key, other[2]),
        (key, query, value),
        (query, None, None),
    ):
        assert products._turned_of(*parts, HEAD) is None


def test_a_rotation_of_other_queries_says_nothing() -> None:
    query, key, value = products._split(torch.randn(3, 8 * HEAD), SIZES, 1)
    for given in ((query * 2, key), (query, key * 2), (key, query), (query, None)):
        results = given[0].clone(), key.clone()
        products.mark_turned(torch.arange(3), given, results, torch.ones(8, HEAD), True, HEAD)
        assert products._turned_of(*results, value, HEAD) is None


# ---------------------------------------------------------------------------- norms of heads

WEIGHTS = torch.full((HEAD,), 2.0), torch.full((HEAD,), 3.0)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """As the layer does it: another tensor, which says what it was."""
    result = x.clone()
    products.mark_normed(x, result, weight, eps)
    return result


def attend(query: Any, key: Any, value: Any) -> Any:
    """What is known when `Attention` is called with these queries and keys, turned."""
    results = query.clone(), key.clone()
    products.mark_turned(torch.arange(3), (query, key), results, torch.ones(8, HEAD), True, HEAD)
    return products._turned_of(*results, value, HEAD)


@pytest.mark.parametrize(
    ("by_head", "back"),
    [
        (lambda x: x.view(*x.shape[:-1], -1, HEAD), lambda y, x: y.view(x.shape)),  # Qwen 3
        (lambda x: x.unflatten(-1, (-1, HEAD)), lambda y, x: y.flatten(-2, -1)),  # Gemma 3
        (lambda x: x.reshape(-1, 2, HEAD), lambda y, x: y.reshape(x.shape)),  # GLM 4
        (lambda x: x.view(3, -1, HEAD), lambda y, x: y.view_as(x)),  # Apertus
        (lambda x: x.reshape(-1, HEAD), lambda y, x: y),
    ],
    ids=["view", "unflatten", "reshape", "view_as", "not back"],
)
def test_normed_heads_of_one_product(by_head: Callable[..., Any], back: Callable[..., Any]) -> None:
    whole = torch.randn(3, 8 * HEAD)
    *parts, value = products._split(whole, SIZES, -1)
    normed = [back(norm(by_head(x), w), x) for x, w in zip(parts, WEIGHTS, strict=True)]
    found = attend(*normed, value)
    assert found.product.whole is whole
    assert [x.weight for x in found.norms] == [*WEIGHTS] and found.norms[0].eps == 1e-6


def test_norms_that_the_op_cannot_take() -> None:
    query, key, value = products._split(torch.randn(3, 8 * HEAD), SIZES, -1)
    other, _, _ = products._split(torch.randn(3, 8 * HEAD), SIZES, -1)
    heads, wide = (x.view(3, -1, HEAD) for x in (query, key)), torch.ones(4 * HEAD)
    by_head, of_key = next(heads), norm(next(heads), WEIGHTS[1])
    of_query = norm(by_head, WEIGHTS[0])
    assert attend(of_query, of_key, value) is not None
    for given in (
        (of_query, key),  # one of both
        (query, of_key),
        (of_key, of_query),
        (norm(query, wide), norm(key, wide[: 2 * HEAD])),  # OLMo 2: all heads as one
        (norm(query.view(3, -1, HEAD // 2), wide[: HEAD // 2]), of_key),  # halves of heads
        (norm(by_head, WEIGHTS[0], 1e-5), of_key),
        (norm(of_query, WEIGHTS[0]), of_key),  # twice
        (norm(by_head * 1, WEIGHTS[0]), of_key),
        (of_query * 1, of_key),
        (of_query, of_key[:, :1]),
        (of_query.view(torch.int32), of_key),
        (norm(other.view(3, -1, HEAD), WEIGHTS[0]), of_key),
    ):
        assert attend(*given, value) is None
    assert attend(of_query, of_key, value * 1) is None


@pytest.mark.parametrize(
    ("backend", "tokens", "together"),
    [("cpu", 8192, True), ("gpu", 512, True), ("gpu", 1024, False)],
)
def test_a_large_product_is_normed_apart(
    monkeypatch: pytest.MonkeyPatch, backend: str, tokens: int, together: bool
) -> None:
    """On a GPU, where the op is slower then. Without norms there is one op in any case."""
    monkeypatch.setattr(products.jax, "default_backend", lambda: backend)
    whole = torch.empty(1, 1).expand(tokens, 5120)  # Qwen3-30B-A3B's
    *parts, value = products._split(whole, (4096, 512, 512), -1)
    weight = torch.ones(128)
    normed = [norm(x.reshape(tokens, -1, 128), weight) for x in parts]
    for given, known in ((parts, True), (normed, together)):
        results = [x.view(x.shape) for x in given]
        positions = torch.arange(tokens)
        products.mark_turned(positions, given, results, torch.ones(8, 128), True, 128)
        assert (products._turned_of(*results, value, 128) is not None) == known


@pytest.mark.parametrize("changed", [0, 1, None])
def test_a_program_that_changes_normed_heads(changed: int | None) -> None:
    import jax
    import jax.numpy as jnp
    from intarsia.vllm.compat import import_torchax

    _, environment = import_torchax()
    from torchax import interop

    found = []

    def step(whole: jax.Array, weight: jax.Array) -> jax.Array:
        with environment:
            *parts, value = products._split(interop.torch_view(whole), SIZES, -1)
            by = interop.torch_view(weight)
            normed = [norm(x.view(3, -1, HEAD), by) for x in parts]
            if changed is not None:
                normed[changed].mul_(2)
            found.append((attend(*(x.flatten(1) for x in normed), value), whole, weight))
        return whole

    jax.make_jaxpr(step)(jnp.ones((3, 8 * HEAD)), jnp.ones(HEAD))
    [(by, whole, weight)] = found
    if changed is None:
        assert by.product.whole is whole and all(x.weight is weight for x in by.norms)
    else:
        assert by is None
