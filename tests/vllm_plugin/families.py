"""Families of models, each as small as it can be with what vLLM's layers see of it: head's dimension, routing, layers.

`family_models.py` makes models of them, and says what their tokens are.
"""

from families_latent import LATENT
from families_own import OWN
from families_recurrent import D3, RECURRENT
from families_text import DENSE, EXPERTS
from families_wide import WIDE
from families_wrapped import WRAPPED
from family import HEAD, Family

ARCHITECTURES = {
    "afmoe": ("AfmoeForCausalLM",),
    "deepseek_v3": ("DeepseekV3ForCausalLM",),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM",),
    "gemma3": ("Gemma3ForConditionalGeneration",),
    "gemma4": ("Gemma4ForConditionalGeneration",),
    "gemma4_text": ("Gemma4ForCausalLM",),
    "gemma4_unified": ("Gemma4UnifiedForConditionalGeneration",),
    "glm": ("GlmForCausalLM",),
    "glm4_moe": ("Glm4MoeForCausalLM",),
    "glm4v": ("Glm4vForConditionalGeneration",),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration",),
    "gpt_oss": ("GptOssForCausalLM",),
    "granite": ("GraniteForCausalLM",),
    "hunyuan_v1_moe": ("HunYuanMoEV1ForCausalLM",),
    "hy_v3": ("HYV3ForCausalLM",),
    "internvl": ("InternVLForConditionalGeneration",),
    "laguna": ("LagunaForCausalLM",),
    "lfm2": ("Lfm2ForCausalLM",),
    "lfm2_moe": ("Lfm2MoeForCausalLM",),
    "lfm2_vl": ("Lfm2VlForConditionalGeneration",),
    "llama": ("LlamaForCausalLM",),
    "llama4": ("Llama4ForConditionalGeneration",),
    "mellum": ("MellumForCausalLM",),
    "mimo_v2_flash": ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"),
    "minicpmv4_6": ("MiniCPMV4_6ForConditionalGeneration",),
    "minimax_m2": ("MiniMaxM2ForCausalLM",),
    "mistral3": ("Mistral3ForConditionalGeneration",),
    "mixtral": ("MixtralForCausalLM",),
    "muse_glimmer": ("MuseGlimmerForConditionalGeneration", "MuseGlimmerForCausalLM"),
    "nemotron_h": ("NemotronHForCausalLM",),
    "olmoe": ("OlmoeForCausalLM",),
    "phi3": ("Phi3ForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration",),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration",),
    "qwen3_next": ("Qwen3NextForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM",),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration",),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration",),
    "seed_oss": ("SeedOssForCausalLM",),
}
"""vLLM's classes that stand for a model type of transformers', the first as the test's config.json names it."""


_GROUPED = Family(
    "qwen3_moe",
    HEAD | {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128},
)
"""With experts whose matrices are whole groups of 128."""


def _as_loaded(form: str, quantization: str) -> Family:
    """What vLLM makes of a plain checkpoint."""
    return _GROUPED._replace(form=form, options={"quantization": quantization})


_QUANTIZED = {
    "gpt_oss_mxfp4": EXPERTS["gpt_oss"]._replace(form="mxfp4"),
    "mimo_v2_flash_fp8": EXPERTS["mimo_v2_flash"]._replace(form="fp8_block"),
    "minimax_m2_fp8": EXPERTS["minimax_m2"]._replace(form="fp8_block"),
    "llama_int8": DENSE["llama"]._replace(form="ct_int8"),
    "llama_fp8": DENSE["llama"]._replace(form="ct_fp8"),
    "llama_fp8_weights": DENSE["llama"]._replace(form="ct_fp8_weights"),
    "qwen2_fp8_block": DENSE["qwen2"]._replace(form="ct_fp8_block"),
    "phi3_fp8": DENSE["phi3"]._replace(form="fp8_tensor"),
    "llama_awq": DENSE["llama"]._replace(form="awq"),
    "qwen3_int4": DENSE["qwen3"]._replace(form="ct_int4"),
    "qwen2_gptq": DENSE["qwen2"]._replace(form="gptq"),
    "qwen3_fp8": Family("qwen3", HEAD, form="fp8_block"),
    "qwen3_moe_awq": _GROUPED._replace(form="awq"),
    "qwen3_moe_gptq": _GROUPED._replace(form="gptq"),
    "qwen3_moe_fp8": _GROUPED._replace(form="ct_fp8"),
    "qwen3_moe_fp8_block": _GROUPED._replace(form="ct_fp8_block"),
    "qwen3_moe_int8": _GROUPED._replace(form="ct_int8"),
    "qwen3_modelopt_rows": Family("qwen3", HEAD, form="modelopt_rows"),
    "qwen3_modelopt_blocks": Family("qwen3", HEAD, form="modelopt_blocks"),
    "llama_nvfp4": DENSE["llama"]._replace(form="nvfp4_weights"),
    "qwen3_moe_mixed": _GROUPED._replace(form="modelopt_mixed"),
    "qwen3_moe_modelopt_fp8": _GROUPED._replace(form="modelopt_fp8"),
    "qwen3_moe_nvfp4": _GROUPED._replace(form="nvfp4"),
    "qwen3_moe_ct_nvfp4": _GROUPED._replace(form="ct_nvfp4"),
    "qwen3_moe_ct_mxfp4": _GROUPED._replace(form="ct_mxfp4"),
    "qwen3_moe_as_loaded": _as_loaded("as_loaded", "fp8"),
    "qwen3_moe_rows_as_loaded": _as_loaded("rows_as_loaded", "fp8_per_channel"),
    "qwen3_moe_blocks_as_loaded": _as_loaded("blocks_as_loaded", "fp8_per_block"),
    "mistral3_fp8": WRAPPED["mistral3"]._replace(form="fp8_tensor"),
}
FAMILIES = DENSE | EXPERTS | OWN | LATENT | RECURRENT | WIDE | WRAPPED | _QUANTIZED

POOLING = {
    "d3": D3,
    "jina_v5": Family("qwen3", HEAD, architecture="JinaEmbeddingsV5Model"),
}
"""Those of `test_pooling.py` and `test_encoders.py`."""


def architectures(family: Family) -> tuple[str, ...]:
    """vLLM's classes of a family."""
    return (family.architecture,) if family.architecture else ARCHITECTURES[family.kind]
