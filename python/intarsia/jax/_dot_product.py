"""`jax.nn.dot_product_attention` over our attention op."""

import numbers
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from intarsia.jax._call import as_array, two_sides
from intarsia.jax._dense import Count, attend_rows, check_built

_NAME = "dot_product_attention"
Implementation = Literal["xla", "cudnn"] | None
Window = int | tuple[int, int] | None


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: Window = None,
    implementation: Implementation = None,
    return_residual: Literal[False] = False,
) -> jax.Array: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: Window = None,
    implementation: Implementation = None,
    return_residual: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: Window = None,
    implementation: Implementation = None,
    return_residual: bool,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: Window = None,
    implementation: Implementation = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`jax.nn.dot_product_attention`, argument by argument, by our attention op.

    Causal and windows are aligned at the top left, as there and unlike `flash_attn_varlen`. Query i sees keys from
    i - left to i + right, whatever T and S are. A query that sees no key gives 0 and residual -inf; XLA's version
    gives it the mean of all values.

    Args:
      query: [b, T, h, d] or [T, h, d], f32, f16 or bf16; d up to 256, h a multiple of hk.
      key, value: [b, S, hk, d] or [S, hk, d], of query's dtype.
      bias, mask: refused, for the op takes neither; see `implementation`.
      scale: of the scores; default d ** -0.5.
      is_causal: query i sees no key behind key i.
      query_seq_lengths: int32 [b]; rows from there on give 0.
      key_value_seq_lengths: int32 [b]; keys from there on are not seen. With a causal mask or a window the op is
        then called twice, once for rows that see all keys on their right.
      local_window_size: (left, right) or one number for both.
      implementation: None: our op. "xla" or "cudnn": `jax.nn.dot_product_attention` itself, for what is refused here.
      return_residual: also return the log of the sum of exponentials, [b, T, h] or [T, h] in query's dtype, without
        a gradient.

    Returns:
      [b, T, h, d] or [T, h, d], or (out, residual). out can be differentiated in query, key and value.

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: bias or mask is given, or a head dim or dtype is not built.

    Source: `jax.nn.dot_product_attention` of JAX 0.10.

    Example:
      >>> out = dot_product_attention(query, key, value, is_causal=True)
    """
    if implementation is not None:
        options: dict[str, Any] = dict(
            bias=bias,
            mask=mask,
            scale=scale,
            is_causal=is_causal,
            query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths,
            local_window_size=local_window_size,
            implementation=implementation,
            return_residual=return_residual,
        )
        return jax.nn.dot_product_attention(query, key, value, **options)
    for name, given in (("bias", bias), ("mask", mask)):
        if given is not None:
            raise NotImplementedError(
                f"{_NAME}: {name} is not built; is_causal, local_window_size and sequence lengths are. "
                f'implementation="xla" is JAX\'s own function, which takes {name}'
            )
    q, k, v = (
        as_array(f"{_NAME}: {name}", x)
        for name, x in (("query", query), ("key", key), ("value", value))
    )
    shape = q.shape
    q, k, v = (jnp.expand_dims(x, 0) if x.ndim == 3 else x for x in (q, k, v))
    _check(q, k, v)
    left, right = _window(local_window_size)
    rows, keys = (
        _count(name, lengths, x)
        for name, lengths, x in (
            ("query_seq_lengths", query_seq_lengths, q),
            ("key_value_seq_lengths", key_value_seq_lengths, k),
        )
    )
    out, lse = _attend(q, k, v, rows, keys, left, 0 if is_causal else right, _number(scale))
    out = out.reshape(shape)
    if not return_residual:
        return out
    return out, lax.stop_gradient(lse.astype(q.dtype).reshape(shape[:-1]))


def _check(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    for name, x in (("query", q), ("key", k), ("value", v)):
        if x.ndim != 4:
            raise ValueError(
                f"{_NAME}: {name} has shape {list(x.shape)}, expected [b, n, h, d] or [n, h, d]"
            )
        check_built(f"{_NAME}: {name}", x)
        if x.dtype != k.dtype:
            raise ValueError(f"{_NAME}: {name} has dtype {x.dtype} but key has {k.dtype}")
    b, _, hk, d = k.shape
    if v.shape != k.shape:
        raise ValueError(
            f"{_NAME}: value has shape {list(v.shape)} but key has {list(k.shape)}, expected the same"
        )
    if q.shape[0] != b or q.shape[3] != d:
        raise ValueError(f"{_NAME}: query has shape {list(q.shape)}, expected [{b}, T, h, {d}]")
    if hk == 0 or q.shape[2] % hk:
        raise ValueError(f"{_NAME}: query has h={q.shape[2]}, expected a multiple of key's {hk}")


def _window(size: Window) -> tuple[int | None, int | None]:
    """Keys to the left and to the right; None: all."""
    if size is None:
        return None, None
    what = f"{_NAME}: local_window_size"
    sides = (size, size) if isinstance(size, numbers.Integral) else two_sides(what, size)
    if not all(isinstance(n, numbers.Integral) and int(n) >= 0 for n in sides):
        raise ValueError(f"{what} is {size!r}, expected numbers of 0 or more")
    return int(sides[0]), int(sides[1])


def _number(scale: Any) -> float | None:
    """An attribute: JAX's own function takes an array, too, and this one where its number is known."""
    try:
        return None if scale is None else float(scale)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_NAME}: scale is {scale!r:.60}, expected a number that is known when the program is traced"
        ) from error


def _count(name: str, lengths: ArrayLike | None, x: jax.Array) -> Count:
    """Rows of each member of x, as `lengths` says: a number if it says nothing."""
    b, size = x.shape[:2]
    if lengths is None:
        return size
    lengths = as_array(f"{_NAME}: {name}", lengths)
    if lengths.shape != (b,) or lengths.dtype != jnp.int32:
        raise ValueError(
            f"{_NAME}: {name} is {lengths.dtype} {list(lengths.shape)}, expected int32 [{b}]"
        )
    return jnp.clip(lengths, 0, size)


def _attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rows: Count,
    keys: Count,
    left: int | None,
    right: int | None,
    scale: float | None,
) -> tuple[jax.Array, jax.Array]:
    """Rows i to keys from i - left to i + right; None: all."""
    # A side that no pair of the arrays reaches beyond is open.
    left = left if left is not None and left < q.shape[1] - 1 else None
    right = right if right is not None and right < k.shape[1] - 1 else None
    if scale is None:
        scale = max(q.shape[3], 1) ** -0.5
    if isinstance(rows, int) and isinstance(keys, int):
        return _attend_fixed(q, k, v, rows, keys, left, right, scale)
    return _attend_ragged(q, k, v, rows, keys, left, right, scale)


def _attend_fixed(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rows: int,
    keys: int,
    left: int | None,
    right: int | None,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Rows i to keys from i - left to i + right, in one call.

    Aligned at the bottom right, row i stands at i + used - count: the window moves by the difference. Keys that no row sees,
    and rows that see none, are left out first, so that both sides of the moved window are 0 or more.
    """
    used = keys if right is None else min(keys, rows + right)
    count = rows if left is None else min(rows, used + left)
    shift = used - count
    window = (-1 if left is None else left + shift, -1 if right is None else right - shift)
    return attend_rows(q, k, v, first=0, count=count, used=used, window=window, scale=scale)


def _attend_ragged(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rows: Count,
    keys: Count,
    left: int | None,
    right: int | None,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """The same where lengths are on the device, and so cannot move a window, which is an attribute.

    Rows i < e = min(keys, rows + right) - right have keys to their right that they do not see. Cut there, count = e
    and used = e + right: row i stands at i + right, a shift that is known. All other rows see every key on their right.
    """
    if right is None:
        return _attend_open(q, k, v, 0, rows, keys, left, None, scale)
    used = jnp.minimum(keys, rows + right)
    end = jnp.maximum(used - right, 0)
    window = (-1 if left is None else left + right, 0)
    bounded = attend_rows(q, k, v, first=0, count=end, used=used, window=window, scale=scale)
    if isinstance(keys, int) and keys >= q.shape[1] + right:
        return bounded  # end is rows
    beyond = _attend_open(q, k, v, end, rows, keys, left, right, scale)
    # Each row is in one of the two calls; the other gives it 0 and -inf.
    return bounded[0] + beyond[0], jnp.maximum(bounded[1], beyond[1])


def _attend_open(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    first: Count,
    end: Count,
    keys: Count,
    left: int | None,
    right: int | None,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Rows [first, end) to keys from i - left on, where first is no less than keys - right."""
    if left is None:
        return attend_rows(
            q, k, v, first=first, count=end - first, used=keys, window=(-1, -1), scale=scale
        )
    # The last row that sees a key is keys + left - 1. Rows are moved so that a call ends there: then row i stands at
    # i - left.
    b, t = q.shape[:2]
    origin = 0 if right is None else keys - right
    room = left + (k.shape[1] if right is None else right)
    count = keys + left - origin
    index = jnp.broadcast_to(
        jnp.reshape(jnp.asarray(origin), (-1, 1)) + jnp.arange(room), (b, room)
    )
    moved = _rows(q, index)
    out, lse = attend_rows(
        moved, k, v, first=0, count=count, used=keys, window=(0, -1), scale=scale
    )
    row = jnp.arange(t)
    back = row - jnp.reshape(jnp.asarray(origin), (-1, 1))
    seen = (row >= jnp.reshape(first, (-1, 1))) & (row < jnp.reshape(end, (-1, 1))) & (back < room)
    back, seen = (jnp.broadcast_to(x, (b, t)) for x in (back, seen))
    out = jnp.where(seen[..., None, None], _rows(out, back), 0)
    return out, jnp.where(seen[..., None], _rows(lse, back), -jnp.inf)


def _rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of each member; the nearest where there is no such row."""
    index = jnp.clip(index, 0, max(x.shape[1] - 1, 0))
    return jnp.take_along_axis(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)
