"""Sums of rows in an order that no schedule changes: on GPUs, XLA's scatters add floats by atomics, in any order."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

# In all functions indices stand behind a barrier: XLA on GPUs would compute them anew, cumsum included, for each number of a row.

_FAN_IN = 8  # Rows that one pass adds: most routers choose as many experts or fewer, for whom one pass is enough.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def sums_of_rows(values: jax.Array, owners: jax.Array, count: int) -> jax.Array:
    """[count, n] from values [m, n]: row o is the sum of the rows whose owner is o, in a tree of fixed shape.

    Differentiable in values, by a gather.

    Args:
      owners: [m] integer, in any order; a row of an owner that is none of 0 ... count - 1 counts nowhere.
    """
    if values.shape[0] == 0 or count == 0:
        return jnp.zeros((count, values.shape[1]), values.dtype)
    known = jnp.where((owners >= 0) & (owners < count), owners, count)
    lengths = jnp.bincount(known, length=count + 1)[:-1]
    values, lengths = _pass(values, lengths, jnp.argsort(known, stable=True))
    values, lengths = lax.while_loop(
        lambda left: jnp.any(left[1] > 1), lambda left: _pass(*left), (values, lengths)
    )
    first = jnp.clip(jnp.cumsum(lengths) - lengths, 0, values.shape[0] - 1)
    first = lax.optimization_barrier(first)
    return jnp.where((lengths > 0)[:, None], values[first], 0)


def _of_owners(sums: jax.Array, owners: jax.Array) -> jax.Array:
    """[m, n]: for each row that of its owner, 0 for a row that counts nowhere."""
    count = sums.shape[0]
    padded = jnp.append(sums, jnp.zeros((1, sums.shape[1]), sums.dtype), 0)
    return padded[jnp.where((owners >= 0) & (owners < count), owners, count)]


sums_of_rows.defvjp(
    lambda values, owners, count: (sums_of_rows(values, owners, count), owners),
    lambda count, owners, d_out: (_of_owners(d_out, owners), None),
)


def _pass(
    values: jax.Array, lengths: jax.Array, order: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Rows of each owner added by eights: what is left of them, and how many each owner has now.

    Args:
      values: [m, n], one owner after the other; with `order` [m] row r stands for values[order[r]].
      lengths: [count]; rows of each owner.
    """
    m, count = values.shape[0], lengths.shape[0]
    left = -(-lengths // _FAN_IN)
    # An owner's last rows leave at most one more than their share. Later passes repeat, so their shapes must not shrink.
    rows = m if order is None else min(m, m // _FAN_IN + count)
    owner = jnp.repeat(jnp.arange(count), left, total_repeat_length=rows)
    ends, ends_left = jnp.cumsum(lengths), jnp.cumsum(left)
    of_owner = jnp.arange(rows) - (ends_left - left)[owner]
    first = (ends - lengths)[owner] + of_owner * _FAN_IN
    place = first + jnp.arange(_FAN_IN)[:, None]
    exists = place < ends[owner]  # nowhere behind the last owner's rows
    # Where there is none, the eight's first again, which a GPU has in its cache.
    at = jnp.clip(jnp.where(exists, place, first), 0, m - 1)
    at = at if order is None else order[at]
    at, exists = lax.optimization_barrier((at, exists))
    terms = [jnp.where(e[:, None], values[a], 0) for a, e in zip(at, exists, strict=True)]
    return functools.reduce(jnp.add, terms), left


def add_weighted_rows(
    sums: jax.Array, values: jax.Array, owners: jax.Array, weights: jax.Array
) -> jax.Array:
    """Sums [count, n] with weights[r] * values[r] added to row owners[r], for values of [m, n]; in place within a loop.

    It takes memory for some [m, n], however many sums there are. Without a gradient.
    """
    count, m = sums.shape[0], values.shape[0]
    if count <= m:
        return sums + weighted_sums_of_rows(values, owners, weights, count)
    known = jnp.where((owners >= 0) & (owners < count), owners, count)
    # Owners by number, in their order: no more of them than values.
    met, number = jnp.unique(known, return_inverse=True, size=m, fill_value=count)
    number = jnp.where(known < count, number, m)
    met = jnp.where(met < count, met, count + jnp.arange(m, dtype=met.dtype))
    met, number = lax.optimization_barrier((met, number))
    added = weighted_sums_of_rows(values, number, weights, m)
    # No row twice, so that XLA needs no atomics, and the order of a row's sums is that of the calls.
    return sums.at[met].add(added, mode="drop", indices_are_sorted=True, unique_indices=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def weighted_sums_of_rows(
    values: jax.Array, owners: jax.Array, weights: jax.Array, count: int
) -> jax.Array:
    """[count, n] from values [m, n]: row o is the sum of weights[r] * values[r] over the rows r whose owner is o.

    Differentiable in values and weights [m]; the gradients gather, so they have the same bits at every run, too.
    """
    counts = ((owners >= 0) & (owners < count))[:, None]
    # Chosen, not multiplied by 0: a row that counts nowhere may hold NaN.
    return sums_of_rows(jnp.where(counts, weights[:, None] * values, 0), owners, count)


def _weighted_forward(values: jax.Array, owners: jax.Array, weights: jax.Array, count: int):
    return weighted_sums_of_rows(values, owners, weights, count), (values, owners, weights)


def _weighted_backward(count: int, saved: tuple[jax.Array, jax.Array, jax.Array], d_out: jax.Array):
    values, owners, weights = saved
    counts = ((owners >= 0) & (owners < count))[:, None]
    of_row = _of_owners(d_out, owners)
    d_values = jnp.where(counts, weights[:, None] * of_row, 0)
    d_weights = jnp.where(counts, values * of_row, 0).sum(1)
    return d_values, None, d_weights


weighted_sums_of_rows.defvjp(_weighted_forward, _weighted_backward)
