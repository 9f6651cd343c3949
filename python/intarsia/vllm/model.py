"""vLLM's torch model as two XLA programs: the step, which takes and gives back the KV caches, and the logits. A decode step has
both in one.

`XlaModel` stands where vLLM's runner has its model. This is the seam for a model that is written in JAX: it would replace
the two traced functions.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import KVCacheConfig

from intarsia.vllm import caches as kv
from intarsia.vllm import scopes
from intarsia.vllm.attention import TracedMetadata, unread_suffixes
from intarsia.vllm.batch import BatchLayout, StepShape, bucket, bucket_sizes, takes_token_types
from intarsia.vllm.compat import import_torchax
from intarsia.vllm.memory import collect_garbage_later
from intarsia.vllm.operands import traced
from intarsia.vllm.parallel import Ranks, mark
from intarsia.vllm.programs import Programs, check_types, type_of, warm_up_runs

_, _ENVIRONMENT = import_torchax()
from torchax import interop  # noqa: E402  not before torchax is imported as it has to be

logger = init_logger("vllm.intarsia.model")

_SMALLEST_MIXED = {"cpu": 16, "cuda": 64}
"""Tokens of the smallest program for steps that are not decoding alone: on a GPU fewer take as long."""


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
        smallest = _SMALLEST_MIXED[current_platform.device_type]
        self.decode_sizes = bucket_sizes(config, "request_buckets", 1, max_requests)
        self.mixed_sizes = bucket_sizes(config, "token_buckets", smallest, max_tokens)
        self._layout = BatchLayout([])
        self._plan: kv.CachePlan | None = None
        self._pools: kv.Pools = {}
        self.while_allocating: Callable[[], AbstractContextManager[None]] = nullcontext  # caches
        self._group_of: dict[str, int] = {}
        self._first_layers: list[str] = []  # one of each KV cache group, in the order of the groups
        layers = config.compilation_config.static_forward_context.items()
        self._encoders = [
            name for name, x in layers if getattr(x, "attn_type", "") == AttentionType.ENCODER_ONLY
        ]
        # Of decode steps, each at one address: XLA records a graph anew for another (docs/notebook/vllm.md). torch's stream
        # waits for a step's result, and so does what is written there next. Vectors of other steps are large.
        self._vectors: dict[StepShape, torch.Tensor] = {}
        self._logits_of_step: torch.Tensor | None = None
        self._zeroes_blocks = False
        self._generates = config.model_config.runner_type == "generate"
        self._tensors: dict[str, torch.Tensor] = {}
        self._typed = takes_token_types(inner)
        self.take_weights()

    # torch's own looks whether a value is a module or a parameter, to register it. None is to be, since vLLM walks over modules.
    __setattr__ = object.__setattr__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)  # self.inner would come here, too

    def take_weights(self) -> None:
        """Takes the model's weights and buffers over, without a copy where torch and XLA lay them out alike."""
        found = dict(self.inner.named_parameters()) | dict(self.inner.named_buffers())
        unread = unread_suffixes(self._config.cache_config.cache_dtype)
        tensors = {k: v for k, v in found.items() if not k.endswith(unread)}
        # A tuple, since JAX would sort a dict's names in every step. After a reload, in the order that the programs know.
        if self._tensors:
            if changed := tensors.keys() ^ self._tensors.keys():
                raise RuntimeError(f"XlaModel: reloading added or removed {sorted(changed)}")
            tensors = {name: tensors[name] for name in self._tensors}
        weights = self._ranks.stacked(tuple(_to_jax(x.detach()) for x in tensors.values()))
        if self._tensors:
            check_types(tensors, weights, self._weights)
        self._tensors, self._weights = tensors, weights  # whose memory is the tensors'

    # ------------------------------------------------------------------ caches

    def make_caches(
        self, config: KVCacheConfig, shared_layers: Mapping[str, str], widths: list[int]
    ) -> None:
        """Plans the KV caches; `widths` are the columns of each group's block table. `compile_ahead` allocates them."""
        self._describe_caches(config, shared_layers, widths)
        self._zeroes_blocks = config.needs_kv_cache_zeroing
        if self._config.model_config.enforce_eager:  # nothing is compiled ahead
            self._allocate()

    def _allocate(self) -> None:
        with self.while_allocating():
            self._pools = self._plan.allocate(self._ranks)
            jax.block_until_ready(self._pools)

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
        device = next(self.inner.parameters()).device
        for chunk in kv.chunks(ids):
            tensor = torch.tensor(chunk, dtype=torch.int32, device=device)
            args = (self._pools, self._ranks.stacked(_to_jax(tensor)))
            program = self.programs.get("zeroing of blocks", kv.zero_blocks, *args, donate=(0,))
            self._pools = program(*args)

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
            # The tokenizer names them, and a request has a pair of texts. An error in a step would end the engine.
            name = type(self.inner).__name__
            logger.warning_once("intarsia-vllm: %s takes no types of tokens: left out", name)
            token_type_ids = None
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
        hidden, logits = self._run(shape, vector)
        self._logits_of_step = None if logits is None else logits[: groups[0].num_reqs]
        return hidden[: len(input_ids)]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [t, vocab] of hidden states [t, n], as many at a time as there are requests in a step."""
        if self._logits_of_step is not None:
            # What vLLM asks for first after a step is each request's last token, in a decode step all there are.
            logits, self._logits_of_step = self._logits_of_step, None
            if len(logits) != len(hidden_states):
                raise RuntimeError(
                    f"XlaModel: got {len(hidden_states)} rows for logits, expected the {len(logits)} of the decode step first"
                )
            return logits
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
        self, shape: StepShape, vector: torch.Tensor, program: jax.stages.Compiled | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states, and logits in a decode step; `program` is the shape's."""
        if shape.decode:
            self._vectors[shape] = vector
        args = self._operands(vector)
        program = program or self._with_step(self.programs.get, shape, *args)
        mark("in the step's program")
        hidden, logits, self._pools = program(*args)
        return self._to_torch(hidden), None if logits is None else self._to_torch(logits)

    def _to_torch(self, array: jax.Array) -> torch.Tensor:
        return torch.from_dlpack(self._ranks.own(array))

    def _operands(self, vector: torch.Tensor) -> tuple[Any, kv.Pools, Any]:
        return self._weights, self._pools, self._ranks.stacked(_to_jax(vector))

    def _with_step(
        self, take: Callable[..., Any], shape: StepShape, *args: Any, **options: Any
    ) -> Any:
        """`Programs.get` or `begin` of a step's program."""
        step = functools.partial(self._trace_step, shape)
        return take(shape, step, *args, donate=(1,), tokens=shape.tokens, **options)

    def _logits(
        self, hidden: torch.Tensor, program: jax.stages.Compiled | None = None
    ) -> torch.Tensor:
        rows = len(hidden)
        size = bucket(self.decode_sizes, rows)
        if rows < size:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, size - rows))
        args = (self._weights, self._ranks.stacked(_to_jax(hidden)))
        program = program or self._with_logits(self.programs.get, size, *args)
        mark("in the program of the logits")
        return self._to_torch(program(*args))[:rows]

    def _with_logits(self, take: Callable[..., Any], rows: int, *args: Any, **options: Any) -> Any:
        """`Programs.get` or `begin` of the program of so many rows' logits."""
        return take(f"logits of {rows} rows", self._trace_logits, *args, **options)

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
        """Allocates the caches, compiles every program that a step can need, and runs all but a CPU's large ones until they are fast."""
        shapes = [self._mixed(n) for n in self.mixed_sizes]
        if self._generates:
            shapes += [StepShape(n, n, decode=True) for n in self.decode_sizes]
        shapes.reverse()
        with collect_garbage_later():
            self._compile_all(shapes, self.decode_sizes[::-1] if self._generates else [], device)
            if self._zeroes_blocks:
                self.zero_blocks([-1])
        self.programs.seal()

    def _compile_all(
        self, shapes: list[StepShape], logits: list[int], device: torch.device
    ) -> None:
        """Steps' programs, and those of so many rows' logits.

        A rank alone runs each while the next is traced: until `await_all` returns, the thread that compiles owns `_pools` and
        `_vectors`, and `inner` has tracers for weights, so nothing that warms up may read it. Several ranks first meet.
        """
        # By their types: a program is given the caches that it is run with.
        weights, pools = jax.tree.map(type_of, self._weights), self._plan.abstract(self._ranks)
        jobs = []
        for shape in shapes:
            vector = self._layout.padding(shape, device)
            begin = functools.partial(self._with_step, self.programs.begin, shape, weights, pools)
            jobs.append((begin, vector, functools.partial(self._warm_up, shape, vector)))
        model = self._config.model_config
        for size in logits:
            hidden = torch.zeros(size, model.get_hidden_size(), dtype=model.dtype, device=device)
            begin = functools.partial(self._with_logits, self.programs.begin, size, weights)
            jobs.append((begin, hidden, functools.partial(self._warm_up_logits, hidden)))
        # While the first is traced. torch has what it needs by now, and finds no room as long as XLA's allocator grows.
        self.programs.prepare(self._allocate)
        alone = self._ranks.size == 1
        for begin, tensor, warm_up in jobs:
            type_ = type_of(self._ranks.stacked(_to_jax(tensor)))
            begin(type_, **({"warm_up": warm_up} if alone else {}))
        self.programs.await_all()
        for _, _, warm_up in () if alone else jobs:
            warm_up()

    def _warm_up(
        self, shape: StepShape, vector: torch.Tensor, program: jax.stages.Compiled | None = None
    ) -> None:
        for _ in range(warm_up_runs(shape.tokens)):
            self._run(shape, vector, program)
        jax.block_until_ready(self._pools)  # XLA times kernels of the next program

    def _warm_up_logits(
        self, hidden: torch.Tensor, program: jax.stages.Compiled | None = None
    ) -> None:
        for _ in range(max(1, warm_up_runs(len(hidden)))):
            self._logits(hidden, program)  # done long before XLA times anything

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
        shapes = [self._mixed(self.mixed_sizes[-1])]
        if self._generates:  # this step's program has the largest logits, too
            rows = self.decode_sizes[-1]
            shapes.append(StepShape(rows, rows, decode=True))
        sizes = []
        for shape in shapes:
            step = functools.partial(self._trace_step, shape)
            vector = self._ranks.abstract((self._layout.size(shape),), "int32")
            args = (self._weights, pools, vector)
            sizes.append(self.programs.memory_of(step, *args, donate=(1,), tokens=shape.tokens))
        return max(x.temp_size_in_bytes for x in sizes) + sum(
            x.output_size_in_bytes - x.alias_size_in_bytes for x in sizes
        )


def _to_jax(tensor: torch.Tensor) -> jax.Array:
    return jax.dlpack.from_dlpack(tensor.contiguous())
