"""How a family's checkpoint says what transformers' model has: other layouts, and codes for numbers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_codes as codes
import torch
from family_codes import Written


def _compressed_tensors(
    form: str, weights: dict[str, Any], inputs: dict[str, Any] | None, *kept: str
) -> Any:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*mlp\\.gate$", *kept],
        "config_groups": {"group_0": group},
    }


def _said(bits: int, kind: str, strategy: str, **others: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy} | others


def _modelopt(algorithm: str, **others: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head", "*mlp.gate"],
    } | others


FORMS: dict[str, tuple[Callable[[str, torch.Tensor], Written], dict[str, Any]]] = {
    "transposed": (codes.transposed, {}),
    "fp8_block": (
        codes.fp8_block,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "fp8_tensor": (codes.fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "mxfp4": (codes.mxfp4, {"quant_method": "mxfp4"}),
    "ct_int4": (
        codes.ct_int4,
        _compressed_tensors("pack-quantized", _said(4, "int", "group", group_size=128), None),
    ),
    "kimi_int4": (
        codes.kimi_int4,
        _compressed_tensors(
            "pack-quantized",
            _said(4, "int", "group", group_size=32),
            None,
            *(
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ),
        ),
    ),
    "ct_int8": (
        codes.ct_int8,
        _compressed_tensors(
            "int-quantized", _said(8, "int", "channel"), _said(8, "int", "token", dynamic=True)
        ),
    ),
    "ct_fp8": (
        codes.ct_fp8,
        _compressed_tensors(
            "float-quantized",
            _said(8, "float", "channel"),
            _said(8, "float", "token", dynamic=True),
        ),
    ),
    "ct_fp8_weights": (
        codes.ct_fp8,
        _compressed_tensors("float-quantized", _said(8, "float", "channel"), None),
    ),
    "ct_fp8_block": (
        codes.ct_fp8_block,
        _compressed_tensors(
            "float-quantized",
            _said(8, "float", "block", block_structure=[128, 128]),
            _said(8, "float", "group", group_size=128, dynamic=True),
        ),
    ),
    "as_loaded": (codes.as_loaded, {}),
    "rows_as_loaded": (codes.rows_as_loaded, {}),
    "blocks_as_loaded": (codes.blocks_as_loaded, {}),
    "modelopt_fp8": (codes.fp8_tensor, _modelopt("FP8")),
    "modelopt_rows": (codes.rows_of_modelopt, _modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
    "modelopt_blocks": (codes.blocks_of_modelopt, _modelopt("FP8_PB_WO")),
    "modelopt_mixed": (
        codes.mixed,
        _modelopt(
            "MIXED_PRECISION",
            quantized_layers={
                f"model.layers.{i}.{part}": {"quant_algo": algorithm}
                for i in range(2)
                for part, algorithm in (
                    *((f"self_attn.{x}_proj", "FP8") for x in "qkvo"),
                    ("mlp.experts", "NVFP4"),
                )
            },
        ),
    ),
    "nvfp4_weights": (codes.nvfp4_weights, _modelopt("W4A16_NVFP4", group_size=16)),
    "nvfp4": (codes.nvfp4, _modelopt("NVFP4", group_size=16)),
    "ct_nvfp4": (
        codes.ct_nvfp4,
        _compressed_tensors(
            "nvfp4-pack-quantized",
            _said(4, "float", "tensor_group", group_size=16),
            _said(4, "float", "tensor_group", group_size=16, dynamic="local"),
        ),
    ),
    "ct_mxfp4": (
        codes.ct_mxfp4,
        _compressed_tensors(
            "mxfp4-pack-quantized",
            _said(4, "float", "group", group_size=32, scale_dtype="torch.uint8"),
            _said(4, "float", "group", group_size=32, dynamic=True, scale_dtype="torch.uint8"),
        ),
    ),
    "gptq": (
        codes.gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    ),
    "awq": (
        codes.awq,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "zero_point": True,
            "version": "gemm",
        },
    ),
}
"""By name: the function, and what config.json says of it."""


def _of_each_expert(
    function: Callable[[str, torch.Tensor], Written], name: str, tensor: torch.Tensor
) -> Written:
    """Experts that transformers has in one tensor, as checkpoints have them."""
    folder, _, parts = name.rpartition("experts.")
    names = ("gate_proj", "up_proj") if parts == "gate_up_proj" else (parts,)
    written, numbers = {}, []
    for i, expert in enumerate(tensor):
        each = zip(names, expert.chunk(len(names)), strict=True)
        done = [function(f"{folder}experts.{i}.{x}.weight", y.contiguous()) for x, y in each]
        written |= {k: v for part, _ in done for k, v in part.items()}
        numbers.append(torch.cat([y for _, y in done]))
    return written, torch.stack(numbers)


_IN_ONE_TENSOR = ("experts.gate_up_proj", "experts.down_proj")


def rewrite(reference: Path, checkpoint: Path, form: str) -> None:
    """Writes a checkpoint in a form, and the reference anew, with the numbers that its codes stand for."""
    from safetensors.torch import load_file, save_file

    function, said = FORMS[form]
    shutil.copytree(reference, checkpoint)
    written, numbers = {}, {}
    for name, tensor in load_file(reference / "model.safetensors").items():
        one = name.endswith(_IN_ONE_TENSOR) and function not in (codes.transposed, codes.mxfp4)
        in_form, numbers[name] = (
            _of_each_expert(function, name, tensor) if one else function(name, tensor)
        )
        written |= in_form
    save_file(numbers, reference / "model.safetensors", metadata={"format": "pt"})
    save_file(written, checkpoint / "model.safetensors", metadata={"format": "pt"})
    if said:
        file = checkpoint / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": said}))
