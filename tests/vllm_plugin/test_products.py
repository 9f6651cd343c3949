"""Which tensors are known to be parts of one product: those that the op for the rotation and the write to the cache may take."""

from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import products

HEAD = 16


def turned(whole: torch.Tensor, sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """What a model gives to `Attention`: turned queries and keys, and values."""
    query, key, value = products._split(whole, sizes, -1)
    results = query.clone(), key.clone()
    products.mark_turned(torch.arange(3), (query, key), results, torch.ones(8, HEAD), True, HEAD)
    return *results, value


def test_parts_of_one_product() -> None:
    whole = torch.randn(3, 8 * HEAD)
    found = products._turned_of(*turned(whole, (4 * HEAD, 2 * HEAD, 2 * HEAD)), HEAD)
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
    assert products._turned_of(*turned(whole, (4 * HEAD, 2 * HEAD, 2 * HEAD)), HEAD // 2) is None


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
            given = (*turned(product, (4 * HEAD, 2 * HEAD, 2 * HEAD)), product)
            if changed < 4:
                given[changed].mul_(2)
            found.append((products._turned_of(*given[:3], HEAD), whole))
        return whole

    jax.make_jaxpr(step)(jnp.ones((3, 8 * HEAD)))
    [(by, whole)] = found
    assert (by is None) == (changed < 3)
    assert by is None or by.product.whole is whole


def test_anything_done_in_between() -> None:
    sizes = (4 * HEAD, 2 * HEAD, 2 * HEAD)
    query, key, value = turned(torch.randn(3, 8 * HEAD), sizes)
    other = turned(torch.randn(3, 8 * HEAD), sizes)
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


def test_a_rotation_of_normed_queries_says_nothing() -> None:
    query, key, value = products._split(torch.randn(3, 8 * HEAD), (4 * HEAD, 2 * HEAD, 2 * HEAD), 1)
    for given in ((query * 2, key), (query, key * 2), (key, query), (query, None)):
        results = given[0].clone(), key.clone()
        products.mark_turned(torch.arange(3), given, results, torch.ones(8, HEAD), True, HEAD)
        assert products._turned_of(*results, value, HEAD) is None
