"""How clients of a server hear of its end.

`AsyncLLM.shutdown` of vLLM ends the engines, and then cancels the task that hands out what they send. Open answers hear of the end
only if the event loop lets that task hear of it before it cancels it. An answer that hears nothing never ends, and neither does the
server, which waits for its connections.
"""

import functools
from typing import Any

from intarsia.vllm.replacing import replace


@functools.cache
def tell_clients() -> None:
    """Has a server that ends give each open answer an error. For processes of servers."""
    from vllm.utils.async_utils import run_in_loop
    from vllm.v1.engine import async_llm

    def shutdown(server: Any, *args: Any, **given: Any) -> None:
        end(server, *args, **given)
        handler = getattr(server, "output_handler", None)
        if handler is not None:
            error = async_llm.EngineDeadError()
            run_in_loop(handler.get_loop(), server.output_processor.propagate_error, error)

    end = replace(async_llm.AsyncLLM, "shutdown", shutdown)
