"""The model of torch_compile_llama.py and torchax_llama.py. Needs transformers.

Without torchax: a process that has imported it cannot compile with torch 2.10 or newer.
"""

import torch
import transformers


def small_llama() -> transformers.LlamaForCausalLM:
    """A Llama with grouped heads, two layers and random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=512,
        initializer_range=0.2,  # logits far enough apart
    )
    return transformers.LlamaForCausalLM(config).eval()
