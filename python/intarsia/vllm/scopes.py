"""Names in profiles: an op of a program is told with the layers of vLLM's model that it is of, `layers/0/self_attn/qkv_proj`."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


@contextmanager
def of_modules(model: torch.nn.Module) -> Iterator[None]:
    """While a model is traced, puts what each of its modules calls into a scope of that module's name."""
    names = {id(module): name.replace(".", "/") for name, module in model.named_modules() if name}
    entered: list[tuple[str, AbstractContextManager]] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        # Modules of a list are called without it, and one that layers share has the name of the first.
        outer = entered[-1][0] if entered else ""
        name = names.get(id(module), outer)
        inside = name.removeprefix(outer + "/") if outer else name
        scope = jax.named_scope(inside or type(module).__name__)
        scope.__enter__()
        entered.append((name, scope))

    def leave(module: torch.nn.Module, *_: Any) -> None:
        entered.pop()[1].__exit__(None, None, None)

    handles = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
