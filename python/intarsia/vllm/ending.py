"""How clients of a server hear of its end.

`AsyncLLM.shutdown` of vLLM ends the engines, and then cancels the task that hands out what they send. Open answers hear of the end
only if the event loop lets that task hear of it before it cancels it. An answer that hears nothing never ends, and neither does the
server, which waits for its connections.

First the engines have some seconds to say that they abort what is open (`_environment.let_engines_end`), which ends answers without
an error.
"""

import functools
import logging
import sys
from types import TracebackType
from typing import Any

from vllm.logger import init_logger

from intarsia.vllm.replacing import replace

_COMMAND = "vllm.entrypoints.cli.main"


@functools.cache
def tell_clients() -> None:
    """Has a server that ends give each open answer an error. For processes of servers."""
    from vllm.utils.async_utils import run_in_loop
    from vllm.v1.engine import async_llm

    def is_news(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], async_llm.EngineDeadError))

    def shutdown(server: Any, *args: Any, **given: Any) -> None:
        handler = getattr(server, "output_handler", None)
        if handler is None:
            end(server, *args, **given)
            return
        # That an engine which was told to end has ended needs no traceback.
        async_llm.logger.addFilter(is_news)
        forget = functools.partial(async_llm.logger.removeFilter, is_news)
        run_in_loop(handler.get_loop(), handler.add_done_callback, lambda _: forget())
        end(server, *args, **given)
        error = async_llm.EngineDeadError()
        run_in_loop(handler.get_loop(), server.output_processor.propagate_error, error)

    end = replace(async_llm.AsyncLLM, "shutdown", shutdown)


@functools.cache
def say_interrupts() -> None:
    """Has vLLM's command say in a line that Ctrl-C ended its start, not by tracebacks; programs of users' own keep theirs."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if _COMMAND not in sys.modules and getattr(main, "name", None) != _COMMAND:
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            init_logger("vllm.intarsia.ending").info("intarsia-vllm: Ctrl-C ended the start")
        else:
            before(kind, value, trace)

    before, sys.excepthook = sys.excepthook, hook
