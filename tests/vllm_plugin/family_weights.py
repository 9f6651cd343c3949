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
    """DeepSeek's form: e4m3, and an f32 scale of each 128 by 128; the last ones may be smaller."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    rows, columns = tensor.shape
    whole = torch.nn.functional.pad(tensor, (0, -columns % 128, 0, -rows % 128))
    blocks = whole.reshape(len(whole) // 128, 128, -1, 128)
    scale = blocks.abs().amax((1, 3), keepdim=True) / _LARGEST_E4M3
    codes, numbers = _in_e4m3(blocks, scale)
    written = {
        name: codes.reshape(whole.shape)[:rows, :columns].contiguous(),
        name + "_scale_inv": scale[:, 0, :, 0].contiguous(),
    }
    return written, numbers.reshape(whole.shape)[:rows, :columns].contiguous()


def fp8_tensor(name: str, tensor: torch.Tensor) -> Written:
    """e4m3 with one scale, and one of activations, which are not quantized here."""
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


def _in_integers(
    tensor: torch.Tensor, group: int, largest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Symmetric codes [rows, columns], scales [rows, groups], and what they stand for."""
    groups = tensor.reshape(len(tensor), -1, group)
    scale = groups.abs().amax(-1, keepdim=True) / largest
    codes = torch.round(groups / scale)
    return (codes.reshape(tensor.shape), scale[..., 0], (codes * scale).reshape(tensor.shape))


def _words(
    codes: torch.Tensor, dim: int, places: tuple[int, ...] = tuple(range(8))
) -> torch.Tensor:
    """Eight codes of 4 bits in an i32, along a dimension; `places` says where in it each of them is."""
    codes = codes.to(torch.int64).movedim(dim, -1)
    parts = codes.reshape(*codes.shape[:-1], -1, 8) << (4 * torch.tensor(places))
    words = parts.sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).movedim(-1, dim)


def _of(name: str, suffix: str) -> str:
    return name.removesuffix("weight") + suffix


def ct_int4(name: str, tensor: torch.Tensor) -> Written:
    """compressed-tensors' pack-quantized: 4 bits in groups of 128."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    codes, scale, numbers = _in_integers(tensor, 128, 7)
    return {
        _of(name, "weight_packed"): _words(codes + 8, 1).contiguous(),
        _of(name, "weight_scale"): scale.contiguous(),
        _of(name, "weight_shape"): torch.tensor(tensor.shape),
    }, numbers


def kimi_int4(name: str, tensor: torch.Tensor) -> Written:
    """The same for experts alone, in groups of 32, with scales in bf16."""
    if ".experts." not in name or not _is_linear(name, tensor):
        return {name: tensor}, tensor
    groups = tensor.reshape(len(tensor), -1, 32)
    scale = (groups.abs().amax(-1, keepdim=True) / 7).bfloat16().float()
    codes = torch.round(groups / scale).clamp(-8, 7)
    return {
        _of(name, "weight_packed"): _words(codes.reshape(tensor.shape) + 8, 1).contiguous(),
        _of(name, "weight_scale"): scale[..., 0].bfloat16(),
        _of(name, "weight_shape"): torch.tensor(tensor.shape),
    }, (codes * scale).reshape(tensor.shape)


def ct_int8(name: str, tensor: torch.Tensor) -> Written:
    """compressed-tensors' int8 with a scale of each row; activations are not quantized here."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    codes, scale, numbers = _in_integers(tensor, tensor.shape[1], 127)
    return {name: codes.to(torch.int8), name + "_scale": scale.contiguous()}, numbers


def ct_fp8(name: str, tensor: torch.Tensor) -> Written:
    """compressed-tensors' fp8 with a scale of each row."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    scale = tensor.abs().amax(1, keepdim=True) / _LARGEST_E4M3
    codes, numbers = _in_e4m3(tensor, scale)
    return {name: codes, name + "_scale": scale}, numbers


def ct_fp8_block(name: str, tensor: torch.Tensor) -> Written:
    """compressed-tensors' fp8 with a scale of each 128 by 128, as DeepSeek's but for a name."""
    written, numbers = fp8_block(name, tensor)
    return {key.removesuffix("_inv"): x for key, x in written.items()}, numbers


def gptq(name: str, tensor: torch.Tensor) -> Written:
    """GPTQ's 4 bits in groups of 128, symmetric."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    codes, scale, numbers = _in_integers(tensor, 128, 7)
    groups, rows = scale.shape[1], len(tensor)
    return {
        _of(name, "qweight"): _words((codes + 8).t(), 0).contiguous(),
        _of(name, "qzeros"): _words(torch.full((groups, rows), 7), 1).contiguous(),
        _of(name, "scales"): scale.t().contiguous(),
        _of(name, "g_idx"): torch.arange(tensor.shape[1], dtype=torch.int32) // 128,
    }, numbers


def awq(name: str, tensor: torch.Tensor) -> Written:
    """AWQ's 4 bits in groups of 128 with zero points, and its order of nibbles."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    groups = tensor.reshape(len(tensor), -1, 128)
    lowest = groups.amin(-1, keepdim=True)
    scale = (groups.amax(-1, keepdim=True) - lowest) / 15
    zero = torch.round(-lowest / scale).clamp(0, 15)
    codes = (torch.round(groups / scale) + zero).clamp(0, 15)
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    return {
        _of(name, "qweight"): _words(codes.reshape(tensor.shape).t(), 1, order).contiguous(),
        _of(name, "qzeros"): _words(zero[..., 0].t(), 1, order).contiguous(),
        _of(name, "scales"): scale[..., 0].t().contiguous(),
    }, ((codes - zero) * scale).reshape(tensor.shape)


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


FORMS: dict[str, tuple[Callable[[str, torch.Tensor], Written], dict[str, Any]]] = {
    "transposed": (transposed, {}),
    "fp8_block": (
        fp8_block,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "fp8_tensor": (fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "mxfp4": (mxfp4, {"quant_method": "mxfp4"}),
    "ct_int4": (
        ct_int4,
        _compressed_tensors("pack-quantized", _said(4, "int", "group", group_size=128), None),
    ),
    "kimi_int4": (
        kimi_int4,
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
        ct_int8,
        _compressed_tensors(
            "int-quantized", _said(8, "int", "channel"), _said(8, "int", "token", dynamic=True)
        ),
    ),
    "ct_fp8": (
        ct_fp8,
        _compressed_tensors(
            "float-quantized",
            _said(8, "float", "channel"),
            _said(8, "float", "token", dynamic=True),
        ),
    ),
    "ct_fp8_weights": (
        ct_fp8,
        _compressed_tensors("float-quantized", _said(8, "float", "channel"), None),
    ),
    "ct_fp8_block": (
        ct_fp8_block,
        _compressed_tensors(
            "float-quantized",
            _said(8, "float", "block", block_structure=[128, 128]),
            _said(8, "float", "group", group_size=128, dynamic=True),
        ),
    ),
    "gptq": (
        gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    ),
    "awq": (
        awq,
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
        one = name.endswith(_IN_ONE_TENSOR) and function not in (transposed, mxfp4)
        in_form, numbers[name] = (
            _of_each_expert(function, name, tensor) if one else function(name, tensor)
        )
        written |= in_form
    save_file(numbers, reference / "model.safetensors", metadata={"format": "pt"})
    save_file(written, checkpoint / "model.safetensors", metadata={"format": "pt"})
    if said:
        file = checkpoint / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": said}))
