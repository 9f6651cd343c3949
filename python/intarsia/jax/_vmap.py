"""Batching rules that follow from an op's spec: what `jax.vmap` makes of a call.

An op with free leading axes ("...") treats what they hold independently of each other, so vmap adds one more.
An op over a ragged batch (tokens "t", "tq", "tk"; sequences "b") takes the batches one after the other.
Operands without such an axis (weights, tables, caches) are shared by the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from intarsia import _native
from intarsia._dims import SEQUENCES, STARTS, TOKENS, Axes, Shape, axes_of_call

Arrays = Sequence[jax.Array | None]


def batch(
    op: _native.Op,
    call: Callable[[Arrays], tuple[jax.Array, ...]],
    size: int,
    batched: Sequence[bool],
    operands: Arrays,
    attributes: dict[str, Any],
) -> tuple[jax.Array, ...]:
    """The results of `size` calls at once, each with a new leading axis.

    Args:
      op: the op.
      call: runs it on operands in spec order.
      size: of the batch.
      batched: which operands have it as a leading axis, in spec order.
      operands: in spec order, None for absent ones.
      attributes: those that are given.
    """
    shapes = [
        None if x is None else x.shape[has:] for x, has in zip(operands, batched, strict=True)
    ]
    axes = axes_of_call(op, shapes, attributes)
    results = [
        (row["name"], found) for row, found in zip(op.results, axes.results, strict=True) if found
    ]
    if all(found.free is not None for _, found in results):
        kind: type[_FreeAxes | _Concatenation] = _FreeAxes
    elif all(found.tokens is not None for _, found in results):
        kind = _Concatenation
    else:
        name = next(name for name, found in results if found.tokens is None)
        raise NotImplementedError(
            f"{op.name}: has no vmap, since its result {name} has no axis for one; "
            "make one call for the whole batch, or loop over it with jax.lax.scan"
        )
    rule = kind(op, size, axes.operands, shapes)
    for row, found, x, has in zip(op.operands, axes.operands, operands, batched, strict=True):
        if has and not rule.takes(row["name"], found):
            raise NotImplementedError(
                f"{op.name}: {row['name']} {list(x.shape[1:])} is shared by the whole batch, but vmap gives "
                f"{size} of them; keep it out of the mapped axes (in_axes=None), or loop with jax.lax.map"
            )
    merged = [
        x if x is None or not rule.takes(row["name"], found) else _with_batch(x, has, size)
        for row, found, x, has in zip(op.operands, axes.operands, operands, batched, strict=True)
    ]
    outs = call(rule.merge(merged))
    return tuple(rule.split(*what, out) for what, out in zip(results, outs, strict=True))


def _with_batch(x: jax.Array, has: bool, size: int) -> jax.Array:
    return x if has else jnp.broadcast_to(x, (size, *x.shape))


class _FreeAxes:
    """The batch is one more of the free leading axes: the outer part of the first, so that no rank grows."""

    def __init__(
        self,
        op: _native.Op,
        size: int,
        axes: Sequence[Axes | None],
        shapes: Sequence[Shape | None],
    ):
        del op
        self._size = size
        self._axes = axes
        self._first = next((s[0] for a, s in zip(axes, shapes, strict=True) if a and a.free), 1)

    def takes(self, name: str, axes: Axes) -> bool:
        """Whether an operand has a value for each member of the batch."""
        del name
        return axes.free is not None

    def merge(self, operands: Arrays) -> Arrays:
        """What the call takes; operands have the batch in front."""
        return [
            x.reshape(self._size * self._first, *x.shape[2:]) if axes and axes.free else x
            for axes, x in zip(self._axes, operands, strict=True)
        ]

    def split(self, name: str, axes: Axes, result: jax.Array) -> jax.Array:
        """A result with the batch in front."""
        del name
        if not axes.free:
            return result
        return result.reshape(self._size, self._first, *result.shape[1:])


class _Concatenation:
    """The tokens, and the sequences, of one member of the batch follow those of the one before.

    Rows of a member behind its last sequence (padding) become one more sequence for each token axis, without
    tokens on the other axes: contract and kernels give such rows 0 and -inf. Rows in front of the next member's
    first sequence belong to it, too.
    """

    def __init__(
        self,
        op: _native.Op,
        size: int,
        axes: Sequence[Axes | None],
        shapes: Sequence[Shape | None],
    ):
        self._size = size
        self._axes = axes
        self._names = [row["name"] for row in op.operands]
        given = [(n, a, s) for n, a, s in zip(self._names, axes, shapes, strict=True) if a]
        # How many tokens one member has, by letter, in the order of the operands.
        self._tokens = {
            letter: shape[found.find(letter)]
            for _, found, shape in given
            for letter in found.letters
            if letter in TOKENS
        }
        # The first operand of starts speaks of the first token axis, and so on.
        self._starts = [name for name, found, _ in given if found.letters == (STARTS,)]
        self._letters = dict(zip(self._starts, self._tokens, strict=bool(self._starts)))
        # Where each member's first sequence starts, and its last one ends, by letter.
        self._bounds: dict[str, tuple[jax.Array, jax.Array]] = {}
        self._has_sinks = any(name == "sinks" for name, _, _ in given)

    def takes(self, name: str, axes: Axes) -> bool:
        letters = {*TOKENS, SEQUENCES, STARTS}
        return bool(letters & {*axes.letters}) or (name == "num_seqs" and bool(self._starts))

    def merge(self, operands: Arrays) -> Arrays:
        real = dict(zip(self._names, operands, strict=True)).get("num_seqs")
        merged: list[jax.Array | None] = []
        for name, axes, x in zip(self._names, self._axes, operands, strict=True):
            if x is None or name == "num_seqs":
                merged.append(None)
            elif name in self._starts:
                merged.append(self._merge_starts(name, x, real))
            else:
                merged.append(self._merge_array(axes, x))
        return merged

    def split(self, name: str, axes: Axes, result: jax.Array) -> jax.Array:
        at = axes.tokens
        tokens = self._tokens[axes.letter(at)]
        shape = (*result.shape[:at], self._size, tokens, *result.shape[at + 1 :])
        members = jnp.moveaxis(result.reshape(shape), at, 0)
        if name == "lse" and self._has_sinks:
            # A sink counts in a sequence without keys, but not in rows that are of no sequence.
            row = jnp.arange(tokens)
            first, end = (bound[:, None] for bound in self._bounds[axes.letter(at)])
            padding = (row < first) | (row >= end)
            members = jnp.where(padding[:, None, :], -jnp.inf, members)
        return members

    def _merge_starts(self, name: str, starts: jax.Array, real: jax.Array | None) -> jax.Array:
        letter = self._letters[name]
        size = self._tokens[letter]
        # Wrong starts of one member must not reach the next, as they do not from call to call.
        starts = lax.cummax(jnp.clip(starts, 0, size), axis=1)
        if real is not None:  # what lies behind the last real sequence is padding
            count = jnp.arange(starts.shape[1], dtype=real.dtype)
            starts = jnp.take_along_axis(starts, jnp.minimum(count, jnp.maximum(real, 0)), axis=1)
        first, last = starts[:, :1], starts[:, -1:]
        self._bounds[letter] = first[:, 0], last[:, 0]
        # Extra sequence i, the padding of token axis i, starts where those before it end. It reaches to the
        # next member's first sequence, or else its rows and keys in front of that would meet in one sequence.
        reach = size + jnp.pad(first, ((0, 1), (0, 0)))[1:]
        at = self._starts.index(name)
        ends = [reach if at < i else last for i in range(len(self._starts))]
        member = jnp.arange(self._size, dtype=starts.dtype)[:, None] * size
        every = jnp.concatenate([starts[:, :-1], *ends], axis=1) + member
        return jnp.append(every.reshape(-1), jnp.asarray(self._size * size, starts.dtype))

    def _merge_array(self, axes: Axes, x: jax.Array) -> jax.Array:
        if (at := axes.find(SEQUENCES)) is not None:
            padding = [(0, 0)] * x.ndim
            padding[at + 1] = (0, len(self._starts))
            x = jnp.pad(x, padding)
        else:
            at = axes.tokens
        if at is None:
            return x
        x = jnp.moveaxis(x, 0, at)
        return x.reshape(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])


def one_by_one(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The function, of which vmap makes a loop."""
    run = jax.custom_batching.custom_vmap(function)

    @run.def_vmap
    def batched(size: int, is_batched: Sequence[bool], *arrays: jax.Array):
        del size
        mapped = [a for a, has in zip(arrays, is_batched, strict=True) if has]

        def member(of_member: Sequence[jax.Array]) -> jax.Array:
            left = iter(of_member)
            return run(
                *(next(left) if has else a for a, has in zip(arrays, is_batched, strict=True))
            )

        return lax.map(member, mapped), True

    return run
