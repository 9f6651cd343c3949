"""Checkpoints of models that transformers has by another name: how the model's own files say what its class has.

Each of these models is, by its mathematics, one that transformers has; its own class comes with its files, or with vLLM alone.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]


class Own(NamedTuple):
    """A model's own files, made of transformers'."""

    model_type: str
    names: Mapping[str, str | None]
    """Regular expressions of transformers' names, and what stands for them, in this order; None: left out."""
    config: Callable[[Config], Config] = lambda config: config
    """What config.json says, of what transformers' says."""
    fused: Mapping[str, tuple[str, ...]] = {}
    """Names of layers, by what transformers has of them: rows of the first part come first."""
    numbers: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, tensor: tensor
    """What a tensor of transformers' name is in the files."""
    remote: bool = False
    """Whether the class of the configuration comes with the files; parts of it are of vLLM's or transformers' classes."""
    tokenizer: tuple[str, ...] = ()
    """Words that the model asks its tokenizer for, which then comes with the files."""


_QKV = ("q_proj", "k_proj", "v_proj")


def _bailing(config: Config) -> Config:
    return config | {
        "num_experts": config["n_routed_experts"],
        "num_shared_experts": config["n_shared_experts"],
        "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
        "moe_router_enable_expert_bias": True,
        "score_function": "sigmoid",
        "router_dtype": "fp32",
        "use_qk_norm": True,
        "use_rmsnorm": True,
        "use_bias": False,
        "use_qkv_bias": False,
        "embedding_dropout": 0.0,
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "rope_scaling": None,
        "partial_rotary_factor": config["rope_parameters"].get("partial_rotary_factor", 1.0),
    }


_BAILING_NAMES = {
    r"\.self_attn\.o_proj": ".attention.dense",
    r"\.self_attn\.q_norm": ".attention.query_layernorm",
    r"\.self_attn\.k_norm": ".attention.key_layernorm",
    r"\.self_attn\.": ".attention.",
    r"\.embed_tokens": ".word_embeddings",
    r"gate\.e_score_correction_bias": "gate.expert_bias",
}


def _plamo3(config: Config) -> Config:
    return config | {
        "interleaved_sliding_window": [
            config["sliding_window"] if kind == "sliding_attention" else None
            for kind in config["layer_types"]
        ]
    }


_PLAMO3_OFFSETS = {
    "post_attention_layernorm": 1 / 5,
    "post_feedforward_layernorm": 1 / 5**1.5,
}
"""What PLaMo 3 adds to a norm's weight, where Gemma adds 1."""


def _plamo3_numbers(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if "embed_tokens" in name:  # which Gemma multiplies by the root of the width
        return tensor * tensor.shape[1] ** 0.5
    for layer, offset in _PLAMO3_OFFSETS.items():
        if layer in name:
            return tensor + 1 - offset
    return tensor


def _mistral_large_3(config: Config) -> Config:
    quantized = {k: v for k, v in config.items() if k == "quantization_config"}
    config = config["text_config"] | quantized
    rope = config["rope_parameters"]
    del rope["partial_rotary_factor"]
    return config | {
        "llama_4_scaling": {
            "beta": rope["llama_4_scaling_beta"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        },
        "topk_method": None,
        "scoring_func": "softmax",
    }


_MISTRAL_NAMES = {
    r"vision_tower|multi_modal_projector": None,
    r"^(model\.language_model|language_model\.model|model)\.": "",
    r"^language_model\.lm_head": "lm_head",
    r"\.self_attn\.(kv|q)_a_layernorm": r".attention.\1_a_norm",
    r"\.self_attn\.kv_a_proj_with_mqa": ".attention.wkv_a_with_mqa",
    r"\.self_attn\.(\w+)_proj": r".attention.w\1",
    r"\.input_layernorm": ".attention_norm",
    r"\.post_attention_layernorm": ".ffn_norm",
    r"\.mlp\.(gate\.|experts|shared_experts)": r".\1",
    r"\.mlp\.": ".feed_forward.",
    r"\.gate_proj": ".w1",
    r"\.down_proj": ".w2",
    r"\.up_proj": ".w3",
    r"^embed_tokens": "tok_embeddings",
    r"^lm_head": "output",
    r"\.weight_scale$": ".qscale_weight",
    r"\.input_scale$": ".qscale_act",
}

_INTERN_VISION = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def _internvl_chat(config: Config) -> Config:
    return {
        "llm_config": config,
        "vision_config": _INTERN_VISION
        | {
            "image_size": 448,
            "patch_size": 14,
            "norm_type": "layer_norm",
            "layer_norm_eps": 1e-6,
            "hidden_act": "gelu",
            "initializer_factor": 1.0,
            "qkv_bias": True,
            "qk_normalization": False,
        },
        "force_image_size": 448,
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
        "use_thumbnail": True,
        "ps_version": "v2",
        "select_layer": -1,
    }


def _intern_s1(config: Config) -> Config:
    vision = _INTERN_VISION | {
        "image_size": [448, 448],
        "patch_size": [14, 14],
        "num_channels": 3,
        "norm_type": "layer_norm",
        "layer_norm_eps": 1e-6,
        "layer_scale_init_value": 0.1,
        "hidden_act": "gelu",
        "attention_bias": True,
        "use_qk_norm": False,
        "use_mask_token": False,
        "use_mean_pooling": True,
        "use_absolute_position_embeddings": True,
    }
    return {
        "text_config": config,
        "vision_config": vision,
        "downsample_ratio": 0.5,
        "projector_hidden_act": "gelu",
    }


def _ernie_vl(config: Config) -> Config:
    text, vision = config["text_config"], config["vision_config"]
    return text | {
        "vision_config": vision | {"embed_dim": vision["hidden_size"], "mlp_ratio": 1},
        "moe_num_experts": [text["moe_num_experts"]] * 2,
        "moe_layer_start_index": [1, 1],
        "moe_layer_end_index": [1, 1],
        "moe_layer_interval": 1,
        "freq_allocation": 20,
        "rope_theta": text["rope_parameters"]["rope_theta"],
        "rope_parameters": None,
        "pixel_hidden_size": vision["hidden_size"],
        "spatial_conv_size": 2,
        "temporal_conv_size": 2,
        "use_temporal_conv": True,
        "im_patch_id": 500,
    }


def _phi4mm(config: Config) -> Config:
    return config | {
        "img_processor": None,
        "audio_processor": {
            "name": "cascades",
            "config": {
                "activation": "swish",
                "attention_dim": 64,
                "attention_heads": 2,
                "batch_norm": False,
                "bias_in_glu": True,
                "causal": True,
                "chunk_size": -1,
                "cnn_layer_norm": True,
                "conv_activation": "swish",
                "conv_glu_type": "swish",
                "depthwise_multiplier": 1,
                "depthwise_seperable_out_channel": 64,
                "dropout_rate": 0.0,
                "encoder_embedding_config": {"input_size": 80},
                "ext_pw_kernel_size": 1,
                "ext_pw_out_channel": 64,
                "input_layer": "nemo_conv",
                "input_size": 80,
                "kernel_size": 3,
                "left_chunk": 18,
                "linear_units": 64,
                "nemo_conv_settings": {"conv_channels": 64},
                "num_blocks": 1,
                "relative_attention_bias_args": {"t5_bias_max_distance": 500, "type": "t5"},
                "time_reduction": 8,
            },
        },
        "embd_layer": {
            "embedding_cls": "image_audio",
            "audio_embd_layer": {
                "embedding_cls": "audio",
                "compression_rate": 8,
                "downsample_rate": 1,
                "projection_cls": "mlp",
            },
            "image_embd_layer": {"embedding_cls": "tune_image", "crop_size": 448},
        },
    }


def _step3p7(config: Config) -> Config:
    """The vision's as vLLM reads it, which transformers does not keep."""
    vision = {
        "width": 64,
        "layers": 1,
        "heads": 2,
        "mlp_ratio": 1.0,
        "image_size": 728,
        "patch_size": 14,
        "hidden_act": "quick_gelu",
        "output_dim": None,
        "use_abs_posemb": True,
        "use_cls_token": False,
        "use_ln_post": False,
        "use_ln_pre": True,
        "use_rope2d": True,
        "ls_init_value": 0.1,
    }
    text = config["text_config"] | {"architectures": ["Step3p5ForCausalLM"]}
    return config | {"vision_config": vision, "text_config": text}


OWN = {
    "BailingMoeV2ForCausalLM": Own(
        "bailing_moe_v2", _BAILING_NAMES, _bailing, {"query_key_value": _QKV}, remote=True
    ),
    "Ernie4_5_VLMoeForConditionalGeneration": Own("ernie4_5_moe_vl", {}, _ernie_vl, remote=True),
    "InternS1ForConditionalGeneration": Own(
        "interns1", {r"^model\.": "model.language_model."}, _intern_s1, remote=True
    ),
    "InternS2PreviewForConditionalGeneration": Own("interns2_preview", {}, remote=True),
    "InternVLChatModel": Own(
        "internvl_chat",
        {r"^": "language_model."},
        _internvl_chat,
        remote=True,
        tokenizer=("<img>", "</img>", "<IMG_CONTEXT>"),
    ),
    "K2HorizonForCausalLM": Own("k2_horizon", {}, remote=True),
    "KimiK25ForConditionalGeneration": Own(
        "kimi_k25", {r"vision_tower|mm_projector": None, r"\.blocks\.": ".layers."}
    ),
    "MistralLarge3ForCausalLM": Own("deepseek_v3", _MISTRAL_NAMES, _mistral_large_3),
    "Param2MoEForCausalLM": Own(
        "param2moe", _BAILING_NAMES, _bailing, {"query_key_value": _QKV}, remote=True
    ),
    "Phi4MMForCausalLM": Own(
        "phi4mm",
        {r"_proj\.weight": "_proj.base_layer.weight"},
        _phi4mm,
        remote=True,
    ),
    "Plamo3ForCausalLM": Own(
        "plamo3",
        {
            r"\.layers\.(\d+)\.": r".layers.layers.\1.",
            r"\.self_attn\.": ".mixer.",
            r"\.input_layernorm": ".pre_mixer_norm",
            r"\.post_attention_layernorm": ".post_mixer_norm",
            r"\.pre_feedforward_layernorm": ".pre_mlp_norm",
            r"\.post_feedforward_layernorm": ".post_mlp_norm",
        },
        _plamo3,
        {"qkv_proj": _QKV, "gate_up_proj": ("gate_proj", "up_proj")},
        _plamo3_numbers,
        remote=True,
    ),
    "Step3p7ForConditionalGeneration": Own("step3p7", {}, _step3p7, remote=True),
    "Step3p5ForCausalLM": Own(
        "step3p5",
        {r"^vision_model\.|^vit_large_projector": None},
        lambda config: config["text_config"],
    ),
}
"""By vLLM's class."""

_REMOTE = """from transformers import AutoConfig, PreTrainedConfig


class OwnConfig(PreTrainedConfig):
    model_type = "{model_type}"

    def __init__(self, **fields):
        super().__init__(**fields)
        for name, value in list(vars(self).items()):
            if name in ("llm_config", "text_config", "vision_config") and isinstance(value, dict):
                known = "model_type" in value
                setattr(self, name, AutoConfig.for_model(**value) if known else PreTrainedConfig(**value))
"""


def restate(source: Path, target: Path, architecture: str) -> None:
    """Writes a checkpoint as the model's own files are; source and target may be one directory."""
    from safetensors.torch import load_file, save_file

    own = OWN[architecture]
    if source != target:
        shutil.copytree(source, target)
    tensors = {
        name: own.numbers(name, tensor)
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    tensors = _renamed(_fused(tensors, own.fused), own.names)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    file = target / "config.json"
    config = own.config(json.loads(file.read_text()))
    config |= {"architectures": [architecture], "model_type": own.model_type}
    if own.remote:
        config["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}
        (target / "configuration_own.py").write_text(_REMOTE.format(model_type=own.model_type))
    file.write_text(json.dumps(config))
    if own.tokenizer:
        write_tokenizer(target, own.tokenizer)


def write_tokenizer(target: Path, words: tuple[str, ...] = ()) -> None:
    """Writes a tokenizer of a few words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = ["<unk>", *words]
    ids = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(target)


def _fused(tensors: Tensors, layers: Mapping[str, tuple[str, ...]]) -> Tensors:
    for whole, parts in layers.items():
        for name in [x for x in tensors if f".{parts[0]}." in x and ".experts." not in x]:
            each = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], whole)] = torch.cat(each)
    return tensors


def _renamed(tensors: Tensors, names: Mapping[str, str | None]) -> Tensors:
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, instead in names.items():
            if instead is None and re.search(pattern, name):
                break
            name = re.sub(pattern, instead or "", name)
        else:
            renamed[name] = tensor
    return renamed
