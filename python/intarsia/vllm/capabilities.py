"""What the plugin can do, as numbers and names: `refusals` and vLLM's interfaces are made of it."""

import torch

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
"""Of activations."""
FP8_CACHES = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
"""vLLM's names of caches in fp8, which it types as uint8, and ours."""
LARGEST_HEADS = {"cpu": 512, "cuda": 256}
"""A head's largest dimension, by the platform's kind of device; all are multiples of 8."""
RECURRENT = (
    "D3ForSequenceClassification",
    "InternS2PreviewForConditionalGeneration",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Lfm2VlForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "NemotronHForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
"""vLLM's classes of models whose recurrent layers are short convolutions, gated delta nets or Mamba 2's."""
QUANTIZATIONS = (
    *("auto_awq", "auto_gptq", "compressed-tensors", "fp8", "gpt_oss_mxfp4"),
    *("modelopt", "modelopt_fp4", "modelopt_mixed"),
    *("fp8_per_tensor", "fp8_per_channel", "fp8_per_block"),
)
"""vLLM's names of quantized checkpoints that are served, and of what it makes of others as it loads them."""
MODELOPT = ("FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4")
"""ModelOpt's names of what its mixed checkpoints may have of them."""
