"""How a family's checkpoint says what transformers' model has: other layouts, and codes for numbers.

Each function takes a tensor, and gives what the checkpoint has of it, and the tensor as these codes stand for it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Written = tuple[dict[str, torch.Tensor], torch.Tensor]

_LARGEST_E4M3 = 448.0
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def transposed(name: str, tensor: torch.Tensor) -> Written:
    """Experts in one tensor with the matrices the other way round."""
    if ".experts." in name:
        return {name: tensor.transpose(1, 2).contiguous()}, tensor
    return {name: tensor}, tensor


def _is_linear(name: str, tensor: torch.Tensor) -> bool:
    kept = ("embed", "lm_head", "norm", "mlp.gate.weight", "block_sparse_moe.gate.weight", "router")
    return tensor.ndim == 2 and name.endswith("weight") and not any(x in name for x in kept)


def _in_e4m3(tensor: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = (tensor / scale).to(torch.float8_e4m3fn)
    return codes, codes.float() * scale


def fp8_block(name: str, tensor: torch.Tensor) -> Written:
    """DeepSeek's form: e4m3, and an f32 scale of each 128 by 128."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    rows, columns = tensor.shape
    blocks = tensor.reshape(rows // 128, 128, columns // 128, 128)
    scale = blocks.abs().amax((1, 3), keepdim=True) / _LARGEST_E4M3
    codes, numbers = _in_e4m3(blocks, scale)
    written = {
        name: codes.reshape(tensor.shape),
        name + "_scale_inv": scale.reshape(rows // 128, columns // 128),
    }
    return written, numbers.reshape(tensor.shape)


def fp8_tensor(name: str, tensor: torch.Tensor) -> Written:
    """e4m3 with one scale, and one of activations, which are not quantised here."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    scale = tensor.abs().max() / _LARGEST_E4M3
    codes, numbers = _in_e4m3(tensor, scale)
    scales = {
        name + "_scale": scale.reshape(()),
        name.removesuffix("weight") + "input_scale": torch.ones(()),
    }
    return {name: codes} | scales, numbers


def mxfp4(name: str, tensor: torch.Tensor) -> Written:
    """gpt-oss' experts: e2m1 in blocks of 32 with a power of two."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        rounded = tensor.bfloat16().float() if "experts" in name else tensor  # biases
        return {name: rounded}, rounded
    rows = tensor.transpose(1, 2).reshape(tensor.shape[0], tensor.shape[2], -1, 32)
    power = torch.floor(torch.log2(rows.abs().amax(-1, keepdim=True))) - 2
    scaled = rows / 2**power
    index = (scaled.abs()[..., None] - _E2M1).abs().argmin(-1)
    codes = (index + 8 * (scaled < 0)).to(torch.uint8)
    numbers = torch.where(scaled < 0, -1, 1) * _E2M1[index] * 2**power
    written = {
        name + "_blocks": codes[..., ::2] | codes[..., 1::2] << 4,
        name + "_scales": (power[..., 0] + 127).to(torch.uint8),
    }
    matrices = numbers.reshape(rows.shape[0], rows.shape[1], -1)
    return written, matrices.transpose(1, 2).contiguous()


FORMS: dict[str, tuple[Callable[[str, torch.Tensor], Written], dict[str, Any]]] = {
    "transposed": (transposed, {}),
    "fp8_block": (
        fp8_block,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "fp8_tensor": (fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "mxfp4": (mxfp4, {"quant_method": "mxfp4"}),
}
"""By name: the function, and what config.json says of it."""


def rewrite(reference: Path, checkpoint: Path, form: str) -> None:
    """Writes a checkpoint in a form, and the reference anew, with the numbers that its codes stand for."""
    from safetensors.torch import load_file, save_file

    function, said = FORMS[form]
    shutil.copytree(reference, checkpoint)
    written, numbers = {}, {}
    for name, tensor in load_file(reference / "model.safetensors").items():
        in_form, numbers[name] = function(name, tensor)
        written |= in_form
    save_file(numbers, reference / "model.safetensors", metadata={"format": "pt"})
    save_file(written, checkpoint / "model.safetensors", metadata={"format": "pt"})
    if said:
        file = checkpoint / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": said}))
