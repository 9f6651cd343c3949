"""What vLLM and torch would warn of at a start with the plugin, and no user can do anything about."""

import functools
import logging
import warnings

_OF_LOGGERS = {
    # The plugin has set this (intarsia.vllm.settings), and says what a user's own settings come to.
    "vllm.config.vllm": "Inductor compilation was disabled by user settings",
    # nvcc without a GPU: nothing is built with it.
    "torch.utils.cpp_extension": "No CUDA runtime is found",
}
"""Part of a message, by the logger that tells it."""
_OF_PYTHON = "Explicitly requested dtype int64.* is not available"
"""JAX's, of the integers of 64 bits that vLLM's models ask for; programs count in 32."""


@functools.cache
def leave_out() -> None:
    """Leaves these messages, and no others, out of this process's log."""
    for name, part in _OF_LOGGERS.items():
        logging.getLogger(name).addFilter(functools.partial(_is_other, part))
    warnings.filterwarnings("ignore", _OF_PYTHON, UserWarning)


def _is_other(part: str, record: logging.LogRecord) -> bool:
    return part not in record.getMessage()
