"""`torch.compile(model, backend="intarsia")`: the pure parts of a graph as XLA programs.

The graph that AOTAutograd gives, of functional operators, is cut where an operator has no lowering
to JAX, draws random numbers, mutates memory or is of another device. What lies between two cuts is an island: an XLA
program, lowered by torchax, that reads torch's tensors and gives torch tensors without a copy (DLPack). At the
cuts run torch's own kernels, and ours for the ops that mutate, on the same tensors and in the
graph's order. Set `TORCH_LOGS="+intarsia.torch.backend"` to see what is cut and why.
"""

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized_v2,
    auto_functionalized_v2_dense,
)
from torch.fx.passes.split_module import split_module

from intarsia._packages import needed_by

with needed_by('torch.compile(backend="intarsia")'):
    from intarsia.torch._island import DEVICE_TYPES, Island, has_lowering

_log = logging.getLogger(__name__)


def _compile(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph of functional operators, of a forward or of a backward pass."""
    del inputs
    _refuse_xla(graph_module.graph)
    _mutate_in_place(graph_module.graph)
    _hoist_sizes(graph_module.graph)
    graph_module.recompile()
    parts = _cut(graph_module)
    for name, part in list(parts.named_children()):
        computed = [node for node in part.graph.nodes if node.op == "call_function"]
        if computed and all(map(_is_pure, computed)):
            setattr(parts, name, Island(part))
        elif computed:
            _log.info("outside XLA: %s", ", ".join(str(node.target) for node in computed))
    return make_boxed_func(parts.forward)


def _refuse_xla(graph: torch.fx.Graph) -> None:
    """Raises if there is a tensor of torch_xla's: nothing could be an island, and all would run as if not compiled."""
    for node in graph.nodes:
        for x in _tensors(node):
            if x.device.type == "xla":
                raise NotImplementedError(
                    f'torch.compile(backend="intarsia"): {node.name} is on {x.device}, expected '
                    f'{" or ".join(DEVICE_TYPES)}; use backend="openxla" for torch_xla\'s tensors'
                )


def _cut(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Splits a graph, in its order, into islands and what lies between them."""
    part_of: dict[torch.fx.Node, int] = {}
    part, device = 0, None
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and (own := _island_device(node)) != device:
            part, device = part + 1, own
        part_of[node] = part
    return split_module(graph_module, None, part_of.__getitem__, keep_original_order=True)


def _is_pure(node: torch.fx.Node) -> bool:
    return _island_device(node) is not None


def _island_device(node: torch.fx.Node) -> torch.device | None:
    """The device of the island that an operator can be in; None if it stays torch's.

    An island is on one device, and so are the tensors that it computes from, but for CPU scalars.
    """
    if node.target is operator.getitem:
        return _island_device(node.args[0])
    devices = {x.device for x in _tensors(node)}  # none: a number of the host
    if len(devices) != 1 or not has_lowering(node.target, node.kwargs):
        return None
    (device,) = devices
    operands = [x for operand in node.all_input_nodes for x in _tensors(operand)]
    is_here = all(x.device == device or (x.device.type == "cpu" and x.ndim == 0) for x in operands)
    return device if is_here and device.type in DEVICE_TYPES else None


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    values = node.meta.get("val")
    values = values if isinstance(values, tuple | list) else [values]
    return [x for x in values if isinstance(x, torch.Tensor)]


def _hoist_sizes(graph: torch.fx.Graph) -> None:
    """Computes sizes first, so that they cut nothing."""
    known = [node for node in graph.nodes if node.op == "placeholder"]
    for node in list(graph.nodes):
        is_size = isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
        if node.op == "call_function" and is_size and set(node.all_input_nodes) <= set(known):
            known[-1].append(node)
            known.append(node)


def _mutate_in_place(graph: torch.fx.Graph) -> None:
    """Lets ops that mutate write the tensors themselves where nobody wants the old values any more.

    AOTAutograd has made `op(x!)` a functional `new = auto_functionalized_v2(op, x)`, and of an input
    x it writes `x.copy_(newest)` at the graph's end. An op may write x at once if nothing reads x
    after it, and x is such an input, what another op wrote in this way, or an island's result.
    Elsewhere the op writes a clone. The copy at the end goes where x holds the newest values.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    copies = {
        node.args[0]: node
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        if node.args[0].op == "placeholder"
    }
    memory: dict[torch.fx.Node, torch.fx.Node] = {}  # whose memory a value lies in
    for node in graph.find_nodes(op="call_function", target=auto_functionalized_v2):
        op, bases = node.args[0], node.kwargs["_all_bases"]
        results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        first_base = max(len(op._schema.returns), 1)  # what returns nothing returns a None
        cloned = []
        for i, base in enumerate(bases):
            later = [user for user in base.users if order[user] > order[node]]
            is_read = any(user is not copies.get(base) for user in later)
            ours = base in copies or base in memory or _is_pure(base)
            written = results.get(first_base + i)
            if is_read or not ours:
                cloned.append(i)
                memory[written] = written
            else:
                memory[written] = memory.get(base, base)
        node.target, node.args = auto_functionalized_v2_dense, (op, tuple(cloned))
    for base, copy in copies.items():
        if memory.get(copy.args[1]) is base:
            copy.replace_all_uses_with(copy.args[1])
            graph.erase_node(copy)


intarsia = aot_autograd(fw_compiler=_compile, keep_inference_input_mutations=True)
