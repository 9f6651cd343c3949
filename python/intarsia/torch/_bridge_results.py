"""The results of a call of the bridge, asked of the op's fake kernel while the program is traced."""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._subclasses import fake_tensor

from intarsia.torch._bridge_plan import MORE, Entry, Plan, is_tensor_list, writes

_NO_FAKE_KERNEL = (
    "it has no fake kernel that tells its results' shapes: register one by "
    "torch.library.register_fake, or give `results` to bridge.op"
)


def infer(
    op: torch._ops.OpOverload,
    name: str,
    entries: Sequence[Entry],
    tensors: Sequence[jax.ShapeDtypeStruct],
    outputs: Sequence[int] | None,
    given: Sequence[jax.ShapeDtypeStruct] | None,
) -> tuple[tuple[Any, ...], list[jax.ShapeDtypeStruct]]:
    """What becomes of what the op returns, as in `Plan.returns`, and the types of the results that this makes.

    Raises:
      ValueError: the fake kernel refuses the call, or `outputs` or `given` do not fit the op.
      NotImplementedError: shapes are not known: there is no fake kernel, or they depend on data.
    """
    returns = op._schema.returns
    kept = [i for i, r in enumerate(returns) if not writes(r.alias_info) and _has_tensors(r)]
    if outputs is not None:
        if not set(outputs) <= set(kept):
            raise ValueError(f"{name}: outputs is {outputs}, expected some of {kept}")
        kept = sorted(set(outputs))
    where: list[Any] = [[MORE] if _is_list(r) else None for r in returns]
    if given is not None:
        if [str(returns[i].real_type) for i in kept] == ["List[Tensor]"]:
            where[kept[0]] = [*range(len(given)), MORE]
            return tuple(where), list(given)
        if len(given) != len(kept) or any(str(returns[i].real_type) != "Tensor" for i in kept):
            raise ValueError(f"{name}: got {len(given)} results, expected {len(kept)} tensors")
        for number, i in enumerate(kept):
            where[i] = number
        return tuple(where), list(given)
    types: list[jax.ShapeDtypeStruct] = []
    if not kept and not any(map(_is_list, returns)):
        return tuple(where), types

    def number(fake: Any, is_kept: bool) -> int | None:
        if not is_kept or fake is None:
            return None
        types.append(_type(name, fake))
        return len(types) - 1

    fakes = _fake_results(op, name, entries, tensors)
    fakes = (fakes,) if len(returns) == 1 else fakes
    for i, fake in enumerate(fakes):
        if _is_list(returns[i]):
            where[i] = [number(f, i in kept) for f in fake]
        else:
            where[i] = number(fake, i in kept)
    return tuple(where), types


class _Quiet(logging.Filter, threading.local):
    """Drops what the threads log in which `on` is true."""

    on = False

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.on


_quiet_here = _Quiet()
logging.getLogger(fake_tensor.__name__).addFilter(_quiet_here)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's log, in this thread, of what is about to be raised."""
    before, _quiet_here.on = _quiet_here.on, True
    try:
        yield
    finally:
        _quiet_here.on = before


def _is_list(returned: Any) -> bool:
    return is_tensor_list(str(returned.real_type))


def _has_tensors(returned: Any) -> bool:
    return str(returned.real_type) == "Tensor" or _is_list(returned)


def _type(name: str, fake: torch.Tensor) -> jax.ShapeDtypeStruct:
    dtype = str(fake.dtype).removeprefix("torch.")
    try:
        return jax.ShapeDtypeStruct(tuple(int(n) for n in fake.shape), jnp.dtype(dtype))
    except TypeError:
        raise NotImplementedError(f"{name}: a result is {fake.dtype}, which JAX lacks") from None


def _fake_results(
    op: torch._ops.OpOverload,
    name: str,
    entries: Sequence[Entry],
    tensors: Sequence[jax.ShapeDtypeStruct],
) -> Any:
    # Shapes do not depend on the device, but some fake kernels expect theirs.
    on_gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    plan = Plan(op, True, tuple(entries), (), 0)
    try:
        with _quiet(), fake_tensor.FakeTensorMode(), torch.no_grad():
            fakes = (
                torch.empty(t.shape, dtype=getattr(torch, t.dtype.name), device=device)
                for t in tensors
            )
            args, kwargs = plan.fill(iter(list(fakes)))
            return op(*args, **kwargs)
    except fake_tensor.DynamicOutputShapeException:
        text = "the shape of a result depends on data, and XLA's shapes are fixed"
    except fake_tensor.DataDependentOutputException:
        text = "it looks at data, which is not known while a program is traced"
    except fake_tensor.UnsupportedOperatorException:
        text = _NO_FAKE_KERNEL
    except Exception as e:
        if "no fake impl registered" not in str(e):  # what torch.library.custom_op says of it
            raise ValueError(f"{name}: {e}") from e
        text = _NO_FAKE_KERNEL
    raise NotImplementedError(f"{name}: {text}")
