"""vLLM's torch model as two XLA programs: the step, which takes and gives back the KV caches, and the logits. A decode step has
both in one.

`XlaModel` stands where vLLM's runner has its model. This is the seam for a model that is written in JAX: it would replace
the two traced functions.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import KVCacheConfig

from intarsia._steps import warm_up_runs
from intarsia.vllm import caches as kv
from intarsia.vllm import scopes
from intarsia.vllm.attention import TracedMetadata, unread_buffers
from intarsia.vllm.batch import BatchLayout, StepShape, bucket, buckets
from intarsia.vllm.compat import import_torchax
from intarsia.vllm.operands import traced
from intarsia.vllm.parallel import Ranks, mark
from intarsia.vllm.programs import Programs

_, _ENVIRONMENT = import_torchax()
from torchax import interop  # noqa: E402  not before torchax is imported as it has to be

_SMALLEST_MIXED = 16
"""Tokens of the smallest program for steps that are not decoding alone."""

_LARGEST_TO_WARM_UP = 256
"""Tokens of the largest program that is run before it is needed, on a CPU."""


class XlaModel(torch.nn.Module):
    """Runs a model of vLLM's as XLA programs over its own weights, which stay where torch has them.

    What vLLM asks of a model beyond `forward` and `compute_logits` falls through to `inner`.

    Args:
      inner: vLLM's model, its weights loaded.
      config: vLLM's configuration.
      max_tokens: of a step.
      max_requests: of a step.
    """

    def __init__(
        self, inner: torch.nn.Module, config: VllmConfig, max_tokens: int, max_requests: int
    ):
        super().__init__()
        self.inner = inner
        self._config = config
        self._ranks = Ranks(config.parallel_config.tensor_parallel_size)
        self.programs = Programs(self._ranks)
        self.decode_sizes = _sizes(config, "request_buckets", 1, max_requests)
        self.mixed_sizes = _sizes(config, "token_buckets", _SMALLEST_MIXED, max_tokens)
        self._layout = BatchLayout([])
        self._plan: kv.CachePlan | None = None
        self._pools: kv.Pools = {}
        self._group_of: dict[str, int] = {}
        self._first_layers: list[str] = []  # one of each KV cache group, in the order of the groups
        layers = config.compilation_config.static_forward_context.items()
        self._encoders = [
            name for name, x in layers if getattr(x, "attn_type", "") == AttentionType.ENCODER_ONLY
        ]
        # Of decode steps, each at one address: XLA records a graph anew for another, 0.8 ms of the host's for 48 layers. torch's
        # stream waits for a step's result, and so does what is written there next. Vectors of other steps are large.
        self._vectors: dict[StepShape, torch.Tensor] = {}
        self._logits_of_step: torch.Tensor | None = None
        self._zeroes_blocks = False
        self._generates = config.model_config.runner_type == "generate"
        self._typed = "token_type_ids" in inspect.signature(inner.forward).parameters
        self.take_weights()

    # Nothing is a submodule or a parameter: vLLM walks over modules, and torch's look at each value takes 5 us.
    __setattr__ = object.__setattr__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def take_weights(self) -> None:
        """Takes the model's weights and buffers over, without a copy where torch and XLA lay them out alike."""
        found = dict(self.inner.named_parameters()) | dict(self.inner.named_buffers())
        unread = unread_buffers(self._config.cache_config.cache_dtype)
        tensors = {k: v for k, v in found.items() if not k.endswith(unread)}
        self._tensors = tensors  # whose memory the arrays are
        # By their order: JAX would sort the names in each step.
        self._weights = self._ranks.stacked(tuple(_to_jax(x.detach()) for x in tensors.values()))

    # ------------------------------------------------------------------ caches

    def make_caches(
        self, config: KVCacheConfig, shared_layers: Mapping[str, str], widths: list[int]
    ) -> None:
        """Allocates the KV caches; `widths` are the columns of each group's block table."""
        self._describe_caches(config, shared_layers, widths)
        self._pools = self._plan.allocate(self._ranks)
        self._zeroes_blocks = config.needs_kv_cache_zeroing

    def _describe_caches(
        self, config: KVCacheConfig, shared_layers: Mapping[str, str], widths: list[int]
    ) -> None:
        self._plan = kv.CachePlan(config, shared_layers)
        self._layout = BatchLayout(widths, self._typed)
        self._group_of = {
            name: i for i, group in enumerate(config.kv_cache_groups) for name in group.layer_names
        }
        for name, other in shared_layers.items():
            self._group_of.setdefault(name, self._group_of[other])
        # vLLM gives those without a cache a group when it makes the caches; to compile for before, any group will do.
        for name in self._encoders:
            self._group_of.setdefault(name, 0)
        layer_of = {group: name for name, group in reversed(self._group_of.items())}
        self._first_layers = [layer_of[group] for group in sorted(layer_of)]

    def zero_blocks(self, ids: list[int]) -> None:
        """Zeroes blocks in every layer."""
        for chunk in kv.chunks(ids):
            self._edit("zeroing of blocks", kv.zero_blocks, chunk)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies blocks, each pair from and to, in every layer."""
        columns = zip(*pairs, strict=True)
        for sources, targets in zip(*(kv.chunks(column) for column in columns), strict=True):
            self._edit("copying of blocks", kv.copy_blocks, sources, targets)

    def _edit(self, name: str, function: Any, *ids: list[int]) -> None:
        device = next(self.inner.parameters()).device
        tensors = [torch.tensor(x, dtype=torch.int32, device=device) for x in ids]
        args = [self._ranks.stacked(_to_jax(x)) for x in tensors]
        program = self.programs.get(name, function, self._pools, *args, donate=(0,))
        self._pools = program(self._pools, *args)

    # ------------------------------------------------------------------ a step

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """The final hidden states [t, n] of the batch in vLLM's forward context."""
        if input_ids is None or inputs_embeds is not None or others:
            raise NotImplementedError(
                f"XlaModel: a step with {['inputs_embeds', *others]}, expected token ids alone"
            )
        if token_type_ids is not None and not self._typed:
            raise NotImplementedError("XlaModel: types of tokens, which the model does not take")
        if positions.ndim > 1:
            # An axis each for time, height and width: without images, which are refused, all are alike.
            positions = positions[0]
        self._logits_of_step = None
        metadata = get_forward_context().attn_metadata
        if metadata is None:  # a run of vLLM's to measure memory
            shape = (len(input_ids), self._config.model_config.get_hidden_size())
            return torch.zeros(
                shape, dtype=self._config.model_config.dtype, device=input_ids.device
            )
        groups = [metadata[name] for name in self._first_layers]
        shape = self._shape(groups[0])
        vector = self._layout.pack(
            shape, input_ids, positions, groups, token_type_ids, into=self._vectors.get(shape)
        )
        hidden, self._logits_of_step = self._run(shape, vector)
        return hidden[: len(input_ids)]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [t, vocab] of hidden states [t, n], as many at a time as there are requests in a step."""
        if self._logits_of_step is not None:
            # What vLLM asks for first after a step is each request's last token, in a decode step all there are.
            logits, self._logits_of_step = self._logits_of_step, None
            return logits[: len(hidden_states)]
        largest = self.decode_sizes[-1]
        parts = [self._logits(rows) for rows in hidden_states.split(largest)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _shape(self, metadata: Any) -> StepShape:
        tokens, requests = metadata.num_actual_tokens, metadata.num_reqs
        if metadata.max_query_len == 1 and self._generates:
            size = bucket(self.decode_sizes, requests)
            return StepShape(size, size, decode=True)
        return self._mixed(bucket(self.mixed_sizes, tokens))

    def _mixed(self, tokens: int) -> StepShape:
        return StepShape(tokens, min(tokens, self.decode_sizes[-1]), decode=False)

    def _run(
        self, shape: StepShape, vector: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states, and logits in a decode step."""
        if shape.decode:
            self._vectors[shape] = vector
        args = self._operands(vector)
        program = self._with_step(self.programs.get, shape, *args)
        mark("in the step's program")
        hidden, logits, self._pools = program(*args)
        return self._to_torch(hidden), None if logits is None else self._to_torch(logits)

    def _to_torch(self, array: jax.Array) -> torch.Tensor:
        return torch.from_dlpack(self._ranks.own(array))

    def _operands(self, vector: torch.Tensor) -> tuple[Any, kv.Pools, Any]:
        return self._weights, self._pools, self._ranks.stacked(_to_jax(vector))

    def _with_step(self, take: Callable[..., Any], shape: StepShape, *args: Any) -> Any:
        """`Programs.get` or `begin` of a step's program."""
        step = functools.partial(self._trace_step, shape)
        return take(shape, step, *args, donate=(1,), tokens=shape.tokens)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = len(hidden)
        size = bucket(self.decode_sizes, rows)
        if rows < size:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, size - rows))
        args = (self._weights, self._ranks.stacked(_to_jax(hidden)))
        program = self.programs.get(f"logits of {size} rows", self._trace_logits, *args)
        mark("in the program of the logits")
        return self._to_torch(program(*args))[:rows]

    # ------------------------------------------------------------------ tracing

    def _trace_step(
        self, shape: StepShape, weights: Any, pools: kv.Pools, vector: jax.Array
    ) -> tuple[jax.Array, jax.Array | None, kv.Pools]:
        step = self._layout.unpack(shape, vector)
        caches = kv.TracedCaches(self._plan, pools)
        metadata = {
            name: TracedMetadata(step.groups[group], caches, shape.decode)
            for name, group in self._group_of.items()
        }
        slots = {name: interop.torch_view(x.group.slot_mapping) for name, x in metadata.items()}
        # Under inference_mode, which vLLM's runner is in, composite ops would not be taken apart.
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            set_current_vllm_config(self._config),  # which layers made in a forward pass ask for
            set_forward_context(
                metadata, self._config, num_tokens=shape.tokens, slot_mapping=slots
            ),
            _ENVIRONMENT,
            self._traced_weights(weights),
        ):
            types = {"token_type_ids": interop.torch_view(step.token_types)} if self._typed else {}
            hidden = self.inner(
                input_ids=interop.torch_view(step.input_ids),
                positions=interop.torch_view(step.positions),
                intermediate_tensors=None,
                inputs_embeds=None,
                **types,
            )
            logits = self.inner.compute_logits(hidden) if shape.decode else None
        return interop.jax_view(hidden), interop.jax_view(logits), caches.pools

    def _trace_logits(self, weights: Any, hidden: jax.Array) -> jax.Array:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            set_current_vllm_config(self._config),  # which layers made in a forward pass ask for
            _ENVIRONMENT,
            self._traced_weights(weights),
        ):
            return interop.jax_view(self.inner.compute_logits(interop.torch_view(hidden)))

    @contextmanager
    def _traced_weights(self, weights: Any) -> Iterator[None]:
        """The model with a program's operands for its tensors, which it gets back at the end.

        `torch.func.functional_call` gives them back in the wrong order where modules are shared, as rotary embeddings
        are by layers, and by vLLM's other models in the process: what was traced would stay in them.
        """
        operands = dict(zip(self._tensors, interop.torch_view(weights), strict=True))
        swapped = torch.nn.utils.stateless._reparametrize_module(
            self.inner, operands, tie_weights=True, stack_weights=True
        )
        with (
            swapped,
            traced(self._tensors, operands),
            scopes.of_modules(self.inner),
        ):
            yield

    # ------------------------------------------------------------------ ahead of time

    def compile_ahead(self, device: torch.device) -> None:
        """Compiles every program that a step can need, the largest first, and runs it until it is as fast as it gets."""
        shapes = [self._mixed(n) for n in self.mixed_sizes]
        if self._generates:
            shapes += [StepShape(n, n, decode=True) for n in self.decode_sizes]
        shapes.reverse()
        for shape in shapes:
            operands = self._operands(self._layout.padding(shape, device))
            self._with_step(self.programs.begin, shape, *operands)
        self.programs.await_all()
        for shape in shapes:
            vector = self._layout.padding(shape, device)
            for _ in range(_warm_up_runs(shape.tokens)):
                self._run(shape, vector)
        model = self._config.model_config
        for size in reversed(self.decode_sizes) if self._generates else ():
            hidden = torch.zeros(size, model.get_hidden_size(), dtype=model.dtype, device=device)
            for _ in range(max(1, _warm_up_runs(size))):
                self._logits(hidden)
        if self._zeroes_blocks:
            self.zero_blocks([-1])
        if self._pools:
            self.copy_blocks([(-1, -1)])
        self.programs.seal()

    def temporary_bytes(self, specs: Mapping[str, Any], shared_layers: Mapping[str, str]) -> int:
        """What XLA says that the largest programs need beside weights and caches.

        Args:
          specs: of the KV cache, by layer.
          shared_layers: layers that read another layer's cache.
        """
        config = kv.one_block_each(specs)
        longest = self._config.model_config.max_model_len
        widths = [-(-longest // group.kv_cache_spec.block_size) for group in config.kv_cache_groups]
        self._describe_caches(config, shared_layers, widths)
        pools = self._plan.abstract(self._ranks)
        used, shapes = [], [self._mixed(self.mixed_sizes[-1])]
        if self._generates:  # this step's program has the largest logits, too
            rows = self.decode_sizes[-1]
            shapes.append(StepShape(rows, rows, decode=True))
        for shape in shapes:
            step = functools.partial(self._trace_step, shape)
            vector = self._ranks.abstract((self._layout.size(shape),), "int32")
            program = self.programs.compile(
                step, self._weights, pools, vector, donate=(1,), tokens=shape.tokens
            )
            used.append(program)
        sizes = [program.memory_analysis() for program in used]
        return max(x.temp_size_in_bytes for x in sizes) + sum(
            x.output_size_in_bytes - x.alias_size_in_bytes for x in sizes
        )


def _warm_up_runs(tokens: int) -> int:
    """As often as any step has to run, but for large ones on a CPU: their first run is hardly slower than the next."""
    on_cpu = jax.devices()[0].platform == "cpu"
    return 0 if on_cpu and tokens > _LARGEST_TO_WARM_UP else warm_up_runs()


def _sizes(config: VllmConfig, option: str, smallest: int, largest: int) -> list[int]:
    """Sizes to compile for: the user's, or powers of two; the largest is always there."""
    additional = config.additional_config or {}
    if not isinstance(additional, Mapping):
        raise ValueError(f"additional_config is {additional!r}, expected an object")
    given = additional.get(option)
    if given is None:
        return buckets(min(smallest, largest), largest)
    # bool is an int to Python; true would count as 1
    if not isinstance(given, list | tuple) or not all(type(n) is int and n > 0 for n in given):
        raise ValueError(
            f"additional_config: {option} is {given}, expected positive integers in a list"
        )
    return sorted({n for n in given if n < largest} | {largest})


def _to_jax(tensor: torch.Tensor) -> jax.Array:
    return jax.dlpack.from_dlpack(tensor.contiguous())
