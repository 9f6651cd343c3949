"""A transformers Llama compiled by XLA: `torch.compile(model, backend="intarsia")`, KV cache and all.

    python examples/torch_compile_llama.py

Needs jax, torchax and transformers (`make setup-torch`). The weights are random and the model is small; the tokens must be those of eager torch.
"""

import torch
from small_llama import small_llama


@torch.no_grad()
def main() -> None:
    model = small_llama()
    prompt = torch.randint(0, 512, (2, 10))
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    expected = model.generate(prompt, **options)
    model.forward = torch.compile(model.forward, backend="intarsia")
    tokens = model.generate(prompt, **options)
    print("tokens", tokens.tolist())
    print("the same tokens as eager torch:", torch.equal(tokens, expected))
    assert torch.equal(tokens, expected)


if __name__ == "__main__":
    main()
