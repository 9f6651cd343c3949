"""A mixture of experts trained twice from the same weights: by `lax.ragged_dot`, and by `grouped_matmul` in its place.

Rows come in 16 clusters, each with a linear map of its own to be learned. A layer of 16 experts, two of which each row takes, learns
them by Adam. Prints the losses of both, which are the same but for rounding, and how long a step takes.

    python examples/moe_in_jax.py
"""

import functools
import time
from collections.abc import Callable

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROWS, COLUMNS, EXPERTS, PER_ROW, WIDTH = 512, 128, 16, 2, 256
STEPS, RATE = 24, 3e-3


def make_data(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    """Rows and what is to be made of them, both [ROWS, COLUMNS]."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((EXPERTS, COLUMNS))
    maps = rng.standard_normal((EXPERTS, COLUMNS, COLUMNS)) / COLUMNS**0.5
    cluster = rng.integers(0, EXPERTS, ROWS)
    x = centers[cluster] + 0.3 * rng.standard_normal((ROWS, COLUMNS))
    y = np.einsum("rn,rnm->rm", x, maps[cluster])
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def make_weights(seed: int = 1) -> dict[str, jax.Array]:
    router, first, second = jax.random.split(jax.random.key(seed), 3)
    normal = jax.random.normal
    return {
        "router": normal(router, (COLUMNS, EXPERTS)) / COLUMNS**0.5,
        "gate_up": normal(first, (EXPERTS, COLUMNS, 2 * WIDTH)) / COLUMNS**0.5,
        "down": normal(second, (EXPERTS, WIDTH, COLUMNS)) / WIDTH**0.5,
    }


def mixture(product: Callable[..., jax.Array], weights: dict[str, jax.Array], x: jax.Array):
    """Each row's experts, weighted. Rows are sorted by expert, so that each has a group of them."""
    shares, ids = ij.topk_router(x @ weights["router"], top_k=PER_ROW, renormalize=True)
    order = jnp.argsort(ids.reshape(-1), stable=True)
    sizes = jnp.bincount(ids.reshape(-1), length=EXPERTS).astype(jnp.int32)
    hidden = product(x[order // PER_ROW], weights["gate_up"], sizes)
    out = product(ij.silu_and_mul(hidden), weights["down"], sizes)
    return jnp.einsum("rkn,rk->rn", out[jnp.argsort(order)].reshape(*ids.shape, -1), shares)


@functools.partial(jax.jit, static_argnames="product", donate_argnames="state")
def step(state, x, y, *, product):
    """One step of Adam; returns the new state and the loss before it."""
    weights, mean, square, count = state

    def loss_of(weights):
        return jnp.mean((mixture(product, weights, x) - y) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    count = count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, gradient)
    rate = RATE * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    weights = jax.tree.map(
        lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), weights, mean, square
    )
    return (weights, mean, square, count), loss


def train(product: Callable[..., jax.Array], steps: int = STEPS) -> tuple[list[float], float]:
    """The loss of each step, and the median of the seconds that steps took after the first, which compiles."""
    x, y = make_data()
    weights = make_weights()
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    state = weights, zeros(weights), zeros(weights), jnp.int32(0)
    losses, seconds = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        state, loss = step(state, x, y, product=product)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    return losses, float(np.median(seconds[1:]))


# f32's precision on every device; `grouped_matmul` has no other.
PRODUCTS = {
    "lax.ragged_dot": functools.partial(lax.ragged_dot, precision=lax.Precision.HIGHEST),
    "grouped_matmul": ij.grouped_matmul,
}

if __name__ == "__main__":
    results = {name: train(product) for name, product in PRODUCTS.items()}
    print("step         " + "".join(f"{name:>16}" for name in results))
    for at in (0, STEPS // 4, STEPS // 2, STEPS - 1):
        print(
            f"loss {at:3}     " + "".join(f"{losses[at]:16.5f}" for losses, _ in results.values())
        )
    print("ms per step  " + "".join(f"{seconds * 1e3:16.1f}" for _, seconds in results.values()))
