"""Matrices in the forms that checkpoints have.

Each function takes a tensor of transformers' model, and gives what the checkpoint has of it, and the tensor as these codes stand
for it.
"""

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


def _as_loaded(name: str) -> str:
    """vLLM leaves out no router of what it quantizes itself."""
    return name.replace("mlp.gate.weight", "mlp.gate_proj.weight")


def as_loaded(name: str, tensor: torch.Tensor) -> Written:
    """A plain matrix of which vLLM makes e4m3 with one scale of all. All have the same largest number, as layers in one need."""
    if not _is_linear(_as_loaded(name), tensor):
        return {name: tensor}, tensor
    largest = 0.0625
    tensor = tensor.clamp(-largest, largest)
    tensor[0, 0] = largest
    return {name: tensor}, _in_e4m3(tensor, torch.tensor(largest / _LARGEST_E4M3))[1]


def rows_as_loaded(name: str, tensor: torch.Tensor) -> Written:
    """The same with a scale of each row, without a change."""
    return {name: tensor}, ct_fp8(_as_loaded(name), tensor)[1]


def blocks_as_loaded(name: str, tensor: torch.Tensor) -> Written:
    """The same with a scale of each 128 by 128."""
    return {name: tensor}, fp8_block(_as_loaded(name), tensor)[1]


_OF_ALL = 2.0**-9
"""A scale that all matrices in nvfp4 share, but those of gates and queries."""


def _in_e2m1(groups: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, u8, and what they stand for."""
    scaled = groups / factor
    index = (scaled.abs()[..., None] - _E2M1).abs().argmin(-1)
    codes = (index + 8 * (scaled < 0)).to(torch.uint8)
    return codes, torch.where(scaled < 0, -1, 1) * _E2M1[index] * factor


def _in_nvfp4(
    name: str, tensor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, float, torch.Tensor]:
    """Pairs of codes [n, k / 2], e4m3 scales [n, k / 16], the scale of all, and what they stand for."""
    of_all = _OF_ALL / 2 if "gate_proj" in name or "q_proj" in name else _OF_ALL
    groups = tensor.reshape(len(tensor), -1, 16)
    scale = (groups.abs().amax(-1, keepdim=True) / 6 / of_all).to(torch.float8_e4m3fn)
    factor = scale.float() * of_all
    codes, numbers = _in_e2m1(groups, factor)
    codes = codes.reshape(tensor.shape)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    return pairs, scale[..., 0].contiguous(), of_all, numbers.reshape(tensor.shape)


def nvfp4(name: str, tensor: torch.Tensor) -> Written:
    """ModelOpt's, with scales of activations, which are not quantized here."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    codes, scales, of_all, numbers = _in_nvfp4(name, tensor)
    return {
        name: codes,
        name + "_scale": scales,
        name + "_scale_2": torch.tensor(of_all),
        _of(name, "input_scale"): torch.tensor(0.01),
    }, numbers


def nvfp4_weights(name: str, tensor: torch.Tensor) -> Written:
    """The same without scales of activations."""
    written, numbers = nvfp4(name, tensor)
    return {key: x for key, x in written.items() if not key.endswith("input_scale")}, numbers


def mixed(name: str, tensor: torch.Tensor) -> Written:
    """ModelOpt's, with experts in nvfp4 and the rest in fp8."""
    return (nvfp4 if ".experts." in name else fp8_tensor)(name, tensor)


def ct_nvfp4(name: str, tensor: torch.Tensor) -> Written:
    """compressed-tensors', whose scales of matrices divide."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    codes, scales, of_all, numbers = _in_nvfp4(name, tensor)
    return {
        _of(name, "weight_packed"): codes,
        name + "_scale": scales,
        name + "_global_scale": torch.tensor([1 / of_all]),
        _of(name, "input_global_scale"): torch.tensor([100.0]),
    }, numbers


def _in_mxfp4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs of codes [..., k / 2], powers [..., k / 32] as e8m0 has them, and what they stand for, of numbers [..., k]."""
    groups = rows.unflatten(-1, (-1, 32))
    power = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    codes, numbers = _in_e2m1(groups, 2**power)
    codes = codes.flatten(-2)
    powers = (power[..., 0] + 127).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, powers, numbers.flatten(-2)


def mxfp4(name: str, tensor: torch.Tensor) -> Written:
    """gpt-oss' experts: e2m1 in blocks of 32 with a power of two."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        rounded = tensor.bfloat16().float() if "experts" in name else tensor  # biases
        return {name: rounded}, rounded
    codes, powers, numbers = _in_mxfp4(tensor.transpose(1, 2))
    written = {name + "_blocks": codes.unflatten(-1, (-1, 16)), name + "_scales": powers}
    return written, numbers.transpose(1, 2).contiguous()


def ct_mxfp4(name: str, tensor: torch.Tensor) -> Written:
    """compressed-tensors', of all linear layers."""
    if not _is_linear(name, tensor):
        return {name: tensor}, tensor
    codes, powers, numbers = _in_mxfp4(tensor)
    return {_of(name, "weight_packed"): codes, name + "_scale": powers}, numbers


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


def rows_of_modelopt(name: str, tensor: torch.Tensor) -> Written:
    """The same with scales [rows]."""
    written, numbers = ct_fp8(name, tensor)
    return {key: x.flatten() if key.endswith("scale") else x for key, x in written.items()}, numbers


def blocks_of_modelopt(name: str, tensor: torch.Tensor) -> Written:
    """With scales of 128 by 128 that have four axes."""
    written, numbers = ct_fp8_block(name, tensor)
    scaled = {k: x[:, None, :, None] if k.endswith("scale") else x for k, x in written.items()}
    return scaled, numbers


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
