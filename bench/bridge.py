"""What a call of the bridge to torch costs on the CPU: a chain of small calls in one program, time for each.

python bench/bridge.py
"""

import time
from collections.abc import Callable

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from intarsia.torch import bridge

CALLS, RUNS = 64, 50
X = jnp.ones((4, 64))
LIKE_X = jax.ShapeDtypeStruct(X.shape, X.dtype)


@torch.library.custom_op("intarsia_bench::relu", mutates_args=())
def python_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


python_relu.register_fake(torch.empty_like)


def microseconds(call: Callable[[jax.Array], jax.Array]) -> float:
    """Of one call in a chain, at best."""

    def chain(x: jax.Array) -> jax.Array:
        for _ in range(CALLS):
            x = call(x)
        return x

    compiled = jax.jit(chain)
    compiled(X).block_until_ready()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        compiled(X).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times) / CALLS * 1e6


def main() -> None:
    rows = {
        "a custom call of ours": lambda x: intarsia.jax.simple_add(x, x),
        'aten::relu, "c"': bridge.op("aten::relu"),
        'aten::relu.out, "c"': lambda x: bridge.call("aten::relu.out", x, out=LIKE_X),
        'aten::relu_, "c"': bridge.op("aten::relu_"),
        'aten::relu, "python"': bridge.op("aten::relu", via="python"),
        'an op in Python, "c"': bridge.op("intarsia_bench::relu"),
        'an op in Python, "python"': bridge.op("intarsia_bench::relu", via="python"),
        "jax.pure_callback": lambda x: jax.pure_callback(
            lambda x: np.maximum(np.asarray(x), 0), LIKE_X, x
        ),
    }
    for name, call in rows.items():
        print(f"{name:28} {microseconds(call):7.2f} us")


if __name__ == "__main__":
    main()
