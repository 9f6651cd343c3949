"""The plugin's own settings, and what a user asks vLLM for and does not get, said once in the log.

Nothing is to be misread or overridden in silence.
"""

import copy
import dataclasses
import difflib
import enum
import json
import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vllm import envs
from vllm.config import (
    CacheConfig,
    CompilationConfig,
    CompilationMode,
    CUDAGraphMode,
    VllmConfig,
)
from vllm.logger import init_logger

logger = init_logger("vllm.intarsia.settings")

_USED = {
    "mode": CompilationMode.NONE,
    "backend": "eager",  # with another, vLLM would turn its custom ops off, and with them ours
    "cudagraph_mode": CUDAGraphMode.NONE,
    "cudagraph_capture_sizes": [],
    "ir_enable_torch_wrap": False,  # IR ops are calls, not ops of torch's dispatcher
}
"""Of vLLM's compilation: each step is an XLA program, which neither torch.compile nor CUDA graphs of torch's could hold."""
_HEEDED = "custom_ops"
"""The one field that means to us what it means to vLLM: which layers are replaced."""

_UNUSED = {
    "kernel_config": ("linear_backend", "linear_backend_per_quant", "moe_backend", "monokernel"),
    "observability_config": ("enable_layerwise_nvtx_tracing",),
}
"""By vLLM's configurations, what chooses among its kernels or marks calls of its layers. Not every version has all."""


def check_environment() -> None:
    """Raises ValueError where vLLM would say what is wrong, and not with what."""
    try:
        envs.VLLM_CPU_KVCACHE_SPACE  # noqa: B018  which reads it
    except ValueError as error:
        raise ValueError(
            f"VLLM_CPU_KVCACHE_SPACE: {error}, expected a whole number of GiB"
        ) from None


class _Form(NamedTuple):
    """What a setting has to be."""

    text: str
    fits: Callable[[Any], bool]


def _is_positive(x: Any) -> bool:
    return type(x) is int and x > 0  # bool is an int to Python; true would count as 1


_SIZES = _Form(
    "positive integers in a list",
    lambda x: isinstance(x, list | tuple) and all(map(_is_positive, x)),
)
_SECONDS = _Form("a number of seconds, 1 or more, without decimals", _is_positive)
_ADDITIONAL = {
    "token_buckets": _SIZES,
    "request_buckets": _SIZES,
    "start_timeout": _SECONDS,
    "heartbeat_timeout": _SECONDS,
}
"""The keys of --additional-config that are the plugin's; docs/vllm.md says what they do."""


def additional(config: VllmConfig) -> dict[str, Any]:
    """What --additional-config has for the plugin; null is as good as nothing.

    Raises:
      ValueError: one of the values is of another form.
    """
    given = config.additional_config or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"additional_config is {given!r}, expected an object")
    ours = {name: given[name] for name in _ADDITIONAL if given.get(name) is not None}
    for name, value in ours.items():
        if not _ADDITIONAL[name].fits(value):
            raise ValueError(
                f"intarsia-vllm: additional_config: {name} is {value!r}, expected {_ADDITIONAL[name].text}"
            )
    return ours


def check_additional(config: VllmConfig) -> None:
    """Raises what `additional` raises, and says which keys are nobody's, as far as the plugin knows."""
    additional(config)
    if multiprocessing.parent_process() is not None:
        return  # which has said it
    for name in (config.additional_config or {}).keys() - _ADDITIONAL.keys():
        near = difflib.get_close_matches(str(name), _ADDITIONAL, 1)
        logger.warning_once(
            "intarsia-vllm: additional_config: %s is no key of this plugin's; %s",
            name,
            f"did you mean {near[0]}?" if near else f"its keys are {', '.join(_ADDITIONAL)}",
        )


def replace_compilation(config: VllmConfig) -> None:
    """Sets what the plugin needs of vLLM's compilation, before vLLM has put its defaults where nothing was asked for."""
    # An engine's process makes the configuration again, from the one that was treated here and that vLLM has filled in.
    compilation = config.compilation_config
    if any(getattr(compilation, name) != value for name, value in _USED.items()):
        _say_what_has_no_effect(config)
    for name, value in _USED.items():
        setattr(compilation, name, copy.copy(value))


def _say_what_has_no_effect(config: VllmConfig) -> None:
    asked = _asked_of_compilation(config.compilation_config)
    if asked:
        said = ", ".join(f"{name}={_text(value)}" for name, value in asked.items())
        used = ", ".join(f"{name}={_text(value)}" for name, value in _USED.items() if name in asked)
        logger.warning_once(
            "intarsia-vllm: --compilation-config with %s has no effect: each step is an XLA program%s",
            said,
            used and f", and vLLM's own compilation has {used}",
        )
    if config.optimization_level != _default_of(VllmConfig, "optimization_level"):
        logger.warning_once(
            "intarsia-vllm: --optimization-level %d has no effect: each step is an XLA program, optimized as XLA does",
            config.optimization_level,
        )


def say_what_is_unused(config: VllmConfig) -> None:
    """Says which of `_UNUSED` are not as by default."""
    if multiprocessing.parent_process() is not None:
        return  # which has said it
    asked = {}
    for part, names in _UNUSED.items():
        given = getattr(config, part)
        for name in names:
            value = getattr(given, name, None)
            if value != getattr(type(given), name, None):
                asked[name] = value
    if asked:
        logger.warning_once(
            "intarsia-vllm: these have no effect: %s; each step is an XLA program, with kernels of its own",
            ", ".join(f"{name}={_text(value)}" for name, value in asked.items()),
        )


def say_what_sizes_a_cache(config: VllmConfig) -> None:
    """Says on a CPU that a share of a GPU's memory is none of its own."""
    share = config.cache_config.gpu_memory_utilization
    if share != CacheConfig.gpu_memory_utilization and multiprocessing.parent_process() is None:
        logger.warning_once(
            "intarsia-vllm: --gpu-memory-utilization %s has no effect on a CPU: --kv-cache-memory-bytes or "
            "VLLM_CPU_KVCACHE_SPACE sizes the KV cache",
            share,
        )


def schedule_synchronously(config: VllmConfig) -> None:
    """Has each step scheduled when the one before it is done, whatever was asked for.

    Said as a matter of course: vLLM 0.32 and 0.33 do not tell a platform whether `--async-scheduling` was given; it is
    their default, too.
    """
    if config.scheduler_config.async_scheduling:
        logger.info_once(
            "intarsia-vllm: asynchronous scheduling is off: a CPU runs the steps itself"
        )
    config.scheduler_config.async_scheduling = False


def _asked_of_compilation(compilation: CompilationConfig) -> dict[str, Any]:
    """The fields that are neither vLLM's defaults nor what is used anyway."""
    default = CompilationConfig()
    asked = {}
    for field in dataclasses.fields(CompilationConfig):
        if not field.init or field.name == _HEEDED:
            continue
        value = getattr(compilation, field.name)
        if value != getattr(default, field.name) and value != _USED.get(field.name):
            asked[field.name] = value
    return asked


def _default_of(config: type, name: str) -> Any:
    [field] = [field for field in dataclasses.fields(config) if field.name == name]
    return field.default


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return value if isinstance(value, str) else json.dumps(value, default=str)
