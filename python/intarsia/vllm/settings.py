"""What a user asks vLLM for and does not get, said once in the log: nothing is to be overridden in silence."""

import copy
import dataclasses
import enum
import json
from typing import Any

from vllm.config import (
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
