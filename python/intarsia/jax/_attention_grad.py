"""The gradient of `flash_attn_varlen`, an op of its own."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from intarsia.jax import _grad, wire
from intarsia.jax._call import as_array
from intarsia.jax._types import vary_alike

_grad.functions_with_gradient.add("flash_attn_varlen")

Operands = dict[str, Any]  # arrays, None where absent


def flash_attn_varlen(
    operands: Operands, attributes: dict[str, Any], *, deterministic: bool
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """The op of that name, made known to `jax.grad`: in q, k, v and sinks, for dense k and v.

    Args:
      operands: of the op, by name.
      attributes: of the op.
      deterministic: that of `flash_attn_varlen_backward`.
    """
    arrays = {
        name: None if x is None else as_array(f"flash_attn_varlen: {name}", x)
        for name, x in operands.items()
    }
    alike: Operands = dict(zip(arrays, vary_alike(arrays.values()), strict=True))
    try:
        hash((*attributes.values(),))
    except TypeError:  # the op says what is wrong
        return wire.flash_attn_varlen(**alike, **attributes)
    return _function(deterministic, **attributes)(alike)


@functools.lru_cache(maxsize=4096, typed=True)  # True equals 1
def _function(deterministic: bool, **attributes: Any) -> Callable[[Operands], Any]:
    """The op as a function of its operands, with its rule for grad."""

    @jax.custom_vjp
    def run(operands: Operands):
        return wire.flash_attn_varlen(**operands, **attributes)

    def forward(primals: Any):
        operands = _grad.values_of(primals)
        why_not = _why_not(primals, attributes)
        if why_not:
            return run(operands), (_Text(why_not), dict.fromkeys(operands))
        out, lse = flash_attn_varlen(
            operands, attributes | {"return_lse": True}, deterministic=deterministic
        )
        return (out, lse) if attributes["return_lse"] else out, (_Text(None), (operands, out, lse))

    def backward(given: Any, cotangents: Any):
        why_not, kept = given
        dout, dlse = cotangents if attributes["return_lse"] else (cotangents, None)
        if why_not.text:
            if all(isinstance(g, SymbolicZero) for g in jax.tree.leaves((dout, dlse))):
                return (kept,)
            raise NotImplementedError(f"flash_attn_varlen: the gradient {why_not.text}")
        operands, out, lse = kept
        return (_gradients(operands, out, lse, dout, dlse, attributes, deterministic),)

    run.defvjp(forward, backward, symbolic_zeros=True)
    run.__name__ = "flash_attn_varlen"  # type: ignore[attr-defined]  # in XLA's metadata and in profiles
    # Outside of jit, shard_map takes no rule with symbolic zeros.
    return jax.jit(run, inline=True)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Text:
    """A text among what the forward pass keeps, which is else arrays."""

    text: str | None


def _why_not(primals: dict[str, Any], attributes: dict[str, Any]) -> str | None:
    """Why this call has no gradient; None if it has one."""
    for name in ("block_table", "leftpad_k"):
        if primals[name] is not None:
            return f"with {name} is not built; it is for dense k and v"
    if chunk := attributes["attention_chunk"]:
        return f"with attention_chunk={chunk} is not built; it is for 0"
    if primals["v"] is None:
        return None  # the op says what is missing
    q, v = primals["q"].value, primals["v"].value
    if q.dtype.itemsize == 1 or v.dtype != q.dtype:
        return (
            f"for q in {q.dtype} and v in {v.dtype} is not built; "
            "it is for f32, f16 and bf16, the same for all"
        )
    if v.shape[-1] != q.shape[-1]:
        return (
            f"for dv={v.shape[-1]} where q has d={q.shape[-1]} is not built; it is for equal ones"
        )
    if primals["alibi_slopes"] is not None and primals["alibi_slopes"].perturbed:
        return "of alibi_slopes is not built; pass jax.lax.stop_gradient(alibi_slopes)"
    return None


def _gradients(
    operands: Operands,
    out: jax.Array,
    lse: jax.Array,
    dout: Any,
    dlse: Any,
    attributes: dict[str, Any],
    deterministic: bool,
) -> Operands:
    """The cotangent of each operand, None for indices and absent ones."""
    if isinstance(dout, SymbolicZero):
        dout = jnp.zeros(dout.shape, dout.dtype)
    if isinstance(dlse, SymbolicZero):
        dlse = None
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "alibi_slopes")
    shared = ("scale", "is_causal", "window_left", "window_right", "softcap")
    given: dict[str, Any] = {name: operands[name] for name in names}
    given |= {name: attributes[name] for name in shared}
    dq, dk, dv = wire.flash_attn_varlen_backward(
        dout, out=out, lse=lse, dlse=dlse, deterministic=deterministic, **given
    )
    dsinks = None
    if operands["sinks"] is not None:
        dsinks = _sinks_gradient(operands["sinks"], out, lse, dout, dlse)
    return dict.fromkeys(operands) | {"q": dq, "k": dk, "v": dv, "sinks": dsinks}


def _sinks_gradient(
    sinks: jax.Array, out: jax.Array, lse: jax.Array, dout: jax.Array, dlse: jax.Array | None
) -> jax.Array:
    """The sum over a head's rows of -exp(sink - lse) delta, delta = sum over d of dout out, less dlse.

    The op has it as a result, too, but without an axis by which vmap could tell the members of a batch apart.
    """
    products = dout.astype(jnp.float32) * out.astype(jnp.float32)
    delta = jnp.sum(products, axis=-1).T
    if dlse is not None:
        delta = delta - dlse
    # Rows of no sequence have lse -inf, and anything in dout.
    share = jnp.exp(sinks[:, None] - lse) * delta
    return -jnp.sum(jnp.where(jnp.isneginf(lse), 0.0, share), axis=-1)
