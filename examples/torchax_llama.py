"""A transformers Llama under `jax.jit`, by torchax, with our attention and norms in place of its own.

    python examples/torchax_llama.py

Needs jax, torchax and transformers (`make setup-torch`). The weights are random and the model is small; the tokens must be those of the unmodified model in torch.
"""

import types

import intarsia.torchax  # noqa: F401  makes torch.ops.xla_gpu work on torchax's tensors
import jax
import torch
import torchax
import torchax.interop
import transformers
from small_llama import small_llama
from transformers.models.llama import modeling_llama


def attention(module, query, key, value, attention_mask, scaling, **options):
    """Causal attention of [b, h, s, d] by transformers' interface; gives [b, s, h, d]."""
    b, _, s, _ = query.shape
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    starts = torch.arange(0, b * s + 1, s, dtype=torch.int32, device=query.device)
    out, _ = torch.ops.xla_gpu.flash_attn_varlen(
        query, key, value, starts, starts, scale=scaling, is_causal=True
    )
    return out.unflatten(0, (b, s)), None


def rms_norm(self, hidden):
    """LlamaRMSNorm.forward, with the rounding that it has."""
    return torch.ops.xla_gpu.rms_norm(
        hidden, self.weight, eps=self.variance_epsilon, rounding="before_weight"
    )


def with_our_ops(model: transformers.LlamaForCausalLM) -> transformers.LlamaForCausalLM:
    """Puts our attention and norms into the model."""
    transformers.AttentionInterface.register("intarsia", attention)
    model.config._attn_implementation = "intarsia"
    for module in model.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = types.MethodType(rms_norm, module)
    return model


@torch.no_grad()
def greedy(logits_of, prompt: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Continues [b, s] by the likeliest tokens, in a buffer of one length: one compiled program."""
    b, s = prompt.shape
    ids = torch.cat([prompt, prompt.new_zeros(b, new_tokens)], dim=1)
    for end in range(s, s + new_tokens):
        ids[:, end] = logits_of(ids)[:, end - 1].argmax(-1)  # what follows `end` is not seen
    return ids


def main() -> None:
    model = small_llama()
    prompt = torch.randint(0, 512, (2, 10))
    expected = greedy(lambda ids: model(ids, use_cache=False).logits, prompt, 12)

    env = torchax.default_env()
    model = env.to_xla(with_our_ops(model))
    weights = torchax.interop.jax_view(model.state_dict())

    @jax.jit
    def logits_of(weights, ids):
        with env:
            weights, ids = torchax.interop.torch_view((weights, ids))
            result = torch.func.functional_call(model, weights, (ids,), {"use_cache": False})
            return torchax.interop.jax_view(result.logits)

    def in_torch(ids):
        return torch.from_dlpack(logits_of(weights, jax.dlpack.from_dlpack(ids, copy=True)))

    tokens = greedy(in_torch, prompt, 12)
    program = logits_of.lower(weights, jax.dlpack.from_dlpack(prompt)).as_text()
    calls = {op: program.count(f"@intarsia.{op}(") for op in ("flash_attn_varlen", "rms_norm")}
    print("tokens", tokens.tolist())
    print("our calls", calls)
    print("the same tokens as the unmodified model:", torch.equal(tokens, expected))
    assert torch.equal(tokens, expected)


if __name__ == "__main__":
    main()
