"""Plain checkpoints written in the formats of others, by rounding to nearest: bits are put where each format's authors say, one by one.

`packed(weights, form)` gives a checkpoint's tensors, its `quantization_config`, and the numbers that the codes stand for, in f64.
"""

import copy
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from packed_words import words_of

Made = tuple[dict[str, np.ndarray], np.ndarray]
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # AutoAWQ, awq/utils/packing_utils.py


def _grouped(w: np.ndarray, group: int) -> np.ndarray:
    return w.astype(np.float64).reshape(len(w), -1, group or w.shape[1])


def _integers(w: np.ndarray, bits: int, group: int, *, symmetric: bool) -> tuple[Any, ...]:
    """Unsigned codes [rows, columns], f16 scales and zero points [rows, g], and what they stand for."""
    parts, most = _grouped(w, group), (1 << bits) - 1
    low, high = parts.min(-1, keepdims=True), parts.max(-1, keepdims=True)
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high)) * most / (most - 1)
        low = -high
    scale = np.maximum((high - low) / most, 2.0**-14).astype(np.float16)
    zero = np.full_like(low, most // 2 + 1)
    if not symmetric:
        zero = np.clip(np.rint(-low / scale), 1, most)  # 0 has no place in GPTQ's first version
    codes = np.clip(np.rint(parts / scale) + zero, 0, most)
    stands_for = ((codes - zero) * scale.astype(np.float64)).reshape(w.shape)
    return codes.reshape(w.shape).astype(np.uint8), scale[..., 0], zero[..., 0], stands_for


def _awq(w: np.ndarray, group: int = 64) -> Made:
    codes, scale, zero, stands_for = _integers(w, 4, group, symmetric=False)
    return {
        ".qweight": words_of(codes.T, 4, _AWQ_PLACES),
        ".qzeros": words_of(zero.T, 4, _AWQ_PLACES),
        ".scales": scale.T,
    }, stands_for


def _gptq(w: np.ndarray, group: int = 64, *, bits=4, symmetric=True, less=1, g_idx=True) -> Made:
    codes, scale, zero, stands_for = _integers(w, bits, group, symmetric=symmetric)
    columns = w.shape[1]
    made = {
        ".qweight": words_of(codes, bits).T,
        ".qzeros": words_of((zero - less).T, bits),
        ".scales": scale.T,
    }
    if g_idx:
        made[".g_idx"] = (np.arange(columns) // (group or columns)).astype(np.int32)
    return made, stands_for


def _ct_packed(w: np.ndarray, group: int = 64, *, bits: int = 4, symmetric: bool = True) -> Made:
    codes, scale, zero, stands_for = _integers(w, bits, group, symmetric=symmetric)
    made = {
        ".weight_packed": words_of(codes, bits),
        ".weight_scale": scale,
        ".weight_shape": np.array(w.shape, np.int64),
    }
    if not symmetric:
        made[".weight_zero_point"] = words_of(zero.T, bits).T
    return made, stands_for


def _ct_int8(w: np.ndarray, group: int = 0, *, symmetric: bool = True) -> Made:
    codes, scale, zero, stands_for = _integers(w, 8, group, symmetric=symmetric)
    made = {".weight": (codes ^ 128).view(np.int8), ".weight_scale": scale}
    if not symmetric:
        made[".weight_zero_point"] = (zero - 128).astype(np.int8)
    return made, stands_for


def _e4m3(w: np.ndarray, largest: np.ndarray, dtype: Any) -> tuple[np.ndarray, ...]:
    """Codes, scales, and what they stand for; `largest` has the shape of w."""
    scale = np.maximum(largest / 448, 2.0**-30).astype(dtype)
    codes = np.clip(w / scale.astype(np.float64), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes, scale, codes.astype(np.float64) * scale.astype(np.float64)


def _fp8(w: np.ndarray, *, of: str, name: str = ".weight_scale", dtype: Any = np.float32) -> Made:
    largest = np.abs(w.astype(np.float64))
    largest = largest.max(axis=1 if of == "rows" else None, keepdims=True)
    codes, scale, stands_for = _e4m3(w, np.broadcast_to(largest, w.shape), dtype)
    return {".weight": codes, name: scale[:, :1] if of == "rows" else scale[0, 0]}, stands_for


def _fp8_block(w: np.ndarray, block: int = 128, *, name: str, dtype: Any = np.float32) -> Made:
    rows, columns = (-(-size // block) for size in w.shape)
    whole = np.zeros((rows * block, columns * block))
    whole[: w.shape[0], : w.shape[1]] = np.abs(w)
    largest = whole.reshape(rows, block, columns, block).max(axis=(1, 3))
    wide = np.repeat(np.repeat(largest, block, 0), block, 1)[: w.shape[0], : w.shape[1]]
    codes, scale, stands_for = _e4m3(w, wide, dtype)
    return {".weight": codes, name: np.ascontiguousarray(scale[::block, ::block])}, stands_for


def _nearest_e2m1(parts: np.ndarray) -> np.ndarray:
    """The codes of the nearest numbers of e2m1."""
    return np.abs(parts[..., None] - _E2M1).argmin(-1).astype(np.uint8)


def _pairs(codes: np.ndarray) -> np.ndarray:
    return codes[..., ::2] | codes[..., 1::2] << 4


def _nvfp4(w: np.ndarray) -> Made:
    parts = _grouped(w, 16)
    largest = np.abs(parts).max(-1)
    divisor = np.float32(448 * 6 / largest.max())
    scale = np.maximum(largest / 6 * divisor, 2.0**-6).astype(ml_dtypes.float8_e4m3fn)
    by = (scale.astype(np.float64) / divisor)[..., None]
    codes = _nearest_e2m1(parts / by)
    return {
        ".weight_packed": _pairs(codes.reshape(w.shape)),
        ".weight_scale": scale,
        ".weight_global_scale": np.array([divisor]),
    }, (_E2M1[codes] * by).reshape(w.shape)


def mxfp4_of(w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [..., k], exponents u8 [..., k / 32], and what they stand for (OCP Microscaling Formats 1.0, section 6.3)."""
    parts = w.astype(np.float64).reshape(*w.shape[:-1], -1, 32)
    largest = np.maximum(np.abs(parts).max(-1), 2.0**-100)
    exponent = np.floor(np.log2(largest)) - 2
    by = 2.0 ** exponent[..., None]
    codes = _nearest_e2m1(parts / by)
    return (
        codes.reshape(w.shape),
        (exponent + 127).astype(np.uint8),
        (_E2M1[codes] * by).reshape(w.shape),
    )


def _ct_mxfp4(w: np.ndarray) -> Made:
    codes, exponents, stands_for = mxfp4_of(w)
    return {".weight_packed": _pairs(codes), ".weight_scale": exponents}, stands_for


def _ct_config(form: str, bits: int, kind: str, strategy: str, **weights: Any) -> dict[str, Any]:
    said = {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": said | weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def _with(pack: Callable[..., Made], **settings: Any) -> Callable[..., Made]:
    return lambda w, group: pack(w, group, **settings)


def _alone(pack: Callable[..., Made], **settings: Any) -> Callable[..., Made]:
    return lambda w, group: pack(w, **settings)


_AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
_GPTQ = {"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": False}
_INV, _OF_GROUPS = ".weight_scale_inv", {"group_size": "group"}
_FORMS: dict[str, tuple[Callable[..., Made], dict[str, Any]]] = {
    "awq": (_with(_awq), _AWQ | _OF_GROUPS),
    "gptq": (_with(_gptq), _GPTQ | _OF_GROUPS),
    "gptq_asymmetric": (_with(_gptq, symmetric=False), _GPTQ | _OF_GROUPS | {"sym": False}),
    "gptq_v2_8_bits": (
        _with(_gptq, bits=8, symmetric=False, less=0, g_idx=False),
        _GPTQ | _OF_GROUPS | {"sym": False, "bits": 8, "checkpoint_format": "gptq_v2"},
    ),
    "gptq_channels": (_alone(_gptq, group=0), _GPTQ | {"group_size": -1}),
    "ct_w4a16": (_with(_ct_packed), _ct_config("pack-quantized", 4, "int", "group") | _OF_GROUPS),
    "ct_w4a16_asymmetric": (
        _with(_ct_packed, symmetric=False),
        _ct_config("pack-quantized", 4, "int", "group", symmetric=False) | _OF_GROUPS,
    ),
    "ct_w8a16": (
        _alone(_ct_packed, bits=8, group=0),
        _ct_config("pack-quantized", 8, "int", "channel"),
    ),
    "ct_int8": (_alone(_ct_int8), _ct_config("int-quantized", 8, "int", "channel")),
    "ct_int8_asymmetric": (
        _alone(_ct_int8, symmetric=False),
        _ct_config("int-quantized", 8, "int", "channel", symmetric=False),
    ),
    "ct_fp8": (
        _alone(_fp8, of="rows", dtype=ml_dtypes.bfloat16),
        _ct_config("float-quantized", 8, "float", "channel"),
    ),
    "ct_fp8_block": (
        _with(_fp8_block, name=".weight_scale"),
        _ct_config("float-quantized", 8, "float", "block"),
    ),
    "ct_nvfp4": (
        _alone(_nvfp4),
        _ct_config("nvfp4-pack-quantized", 4, "float", "tensor_group", group_size=16),
    ),
    "ct_mxfp4": (
        _alone(_ct_mxfp4),
        _ct_config("mxfp4-pack-quantized", 4, "float", "group", group_size=32),
    ),
    "fp8_block": (
        _with(_fp8_block, name=_INV),
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
    ),
    "fp8_tensor": (_alone(_fp8, of="all"), {"quant_method": "fp8", "activation_scheme": "static"}),
}
FORMS = tuple(_FORMS)
"""Formats of matrices; gpt-oss's stacked ones are `pack_gpt_oss`'s."""


def packed(
    weights: dict[str, np.ndarray], form: str, group: int = 64
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, np.ndarray]]:
    """Quantizes the linear layers of a checkpoint.

    Args:
        weights: By Hugging Face name; projections are quantized, and others stay.
        form: One of `FORMS`.
        group: Columns of a group, rows and columns of a block.

    Returns:
        Tensors, `quantization_config`, and by name what each matrix in codes stands for, f64.
    """
    pack, config = _FORMS[form]
    config = copy.deepcopy(config)
    if "group_size" in config and config["group_size"] == "group":
        config.pop("group_size")
        said = (
            config
            if "config_groups" not in config
            else config["config_groups"]["group_0"]["weights"]
        )
        said["group_size"] = group
    if form == "fp8_block":
        config["weight_block_size"] = [group, group]
    if form == "ct_fp8_block":
        config["config_groups"]["group_0"]["weights"]["block_structure"] = [group, group]
    tensors, numbers = {}, {}
    for name, w in weights.items():
        if not name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")):
            tensors[name] = w
            continue
        made, numbers[name] = pack(w, group)
        stem = name.removesuffix(".weight")
        tensors |= {stem + ending: np.ascontiguousarray(array) for ending, array in made.items()}
    if form == "fp8_tensor":
        stems = [name.removesuffix(".weight") for name in numbers]
        tensors |= {f"{stem}.input_scale": np.float32(1).reshape(()) for stem in stems}
    return tensors, config, numbers


def pack_gpt_oss(weights: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any], Any]:
    """Quantizes gpt-oss's experts, [E, in, out], to mxfp4: blocks [E, out, in / 32, 16] and exponents."""
    tensors, numbers = {}, {}
    for name, w in weights.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = w
            continue
        codes, exponents, stands_for = mxfp4_of(np.ascontiguousarray(w.swapaxes(1, 2)))
        blocks = _pairs(codes).reshape(*exponents.shape, 16)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
        numbers[name] = stands_for.swapaxes(1, 2)
    left = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    return tensors, {"quant_method": "mxfp4", "modules_to_not_convert": left}, numbers


def save(tensors: dict[str, np.ndarray], path: Any) -> None:
    """Writes a safetensors file; NumPy's writer of the safetensors package has no 8-bit floats."""
    import json

    names = {
        "bool": "BOOL",
        "float8_e4m3fn": "F8_E4M3",
        "bfloat16": "BF16",
        "float8_e8m0fnu": "F8_E8M0",
    }
    letters = {"u": "U", "i": "I", "f": "F"}
    header, at = {}, 0
    for name, array in tensors.items():
        kind = names.get(array.dtype.name) or f"{letters[array.dtype.kind]}{8 * array.itemsize}"
        header[name] = {
            "dtype": kind,
            "shape": array.shape,
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
