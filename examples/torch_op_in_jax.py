"""A JAX program that calls ops of PyTorch: a built-in one, one that writes in place, and one written in Python.

python examples/torch_op_in_jax.py
"""

import jax
import jax.numpy as jnp
import torch
from intarsia.torch import bridge


@torch.library.custom_op("example::clamp_norm", mutates_args=())
def clamp_norm(x: torch.Tensor, largest: float) -> torch.Tensor:
    """Scales rows that are longer than `largest` down to that length."""
    return torch.renorm(x, p=2, dim=0, maxnorm=largest)


clamp_norm.register_fake(lambda x, largest: torch.empty_like(x))


@jax.jit
def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """PyTorch's flash attention between JAX's own operations; XLA compiles it all as one program."""
    op = "aten::_scaled_dot_product_flash_attention_for_cpu"
    out, _ = bridge.call(op, q * 0.5, k, v, is_causal=True)
    rows = out.reshape(-1, out.shape[-1])
    return bridge.call("example::clamp_norm", rows, 1.0).reshape(out.shape)


def write(cache: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """Rows into a cache. The op writes its first argument, which the jit below donates: no copy."""
    return bridge.call("aten::index_copy_", cache, 0, bridge.int64(slots), rows)


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (1, 4, 16, 64)) for key in keys)
    out = attend(q, k, v)
    print("longest row of attention:", float(jnp.linalg.norm(out, axis=-1).max()))

    cache = jnp.zeros((32, 64))
    address = cache.unsafe_buffer_pointer()
    cache = jax.jit(write, donate_argnums=0)(cache, jnp.array([5, 30]), out[0, 0, :2])
    print("rows written:", jnp.flatnonzero(jnp.any(cache != 0, axis=1)).tolist())
    print("in place:", cache.unsafe_buffer_pointer() == address)


if __name__ == "__main__":
    main()
