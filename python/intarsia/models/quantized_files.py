"""Checkpoints with weights in codes: what `quantization_config` says, and a matrix's tensors as a `PackedWeight`.

Activations stay as they are: where a file asks for quantized ones (W8A8), its weights alone are used, which is the more exact.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from intarsia import repack
from intarsia.models.fields import Fields
from intarsia.repack import PackedWeight

_FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
_SCALES = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32)))
_KEY = "quantization_config"


class Tensors:
    """The tensors of one matrix in codes.

    Args:
        stem: What their names begin with.
        names: Those of the whole checkpoint.
        read: Reads a tensor by its name.
    """

    def __init__(self, stem: str, names: Iterable[str], read: Callable[[str], np.ndarray]) -> None:
        self.stem = stem
        self._names = names
        self._read = read

    def has(self, ending: str) -> bool:
        """Whether there is a tensor of that ending."""
        return self.stem + ending in self._names

    def get(self, ending: str, *dtypes: Any, axes: int | None = None) -> np.ndarray:
        """A tensor, which has to be there, of one of some dtypes."""
        name = self.stem + ending
        if not self.has(ending):
            raise ValueError(f"tensor {name} is missing")
        array = self._read(name)
        said = ", ".join(str(np.dtype(dtype)) for dtype in dtypes)
        if array.dtype not in [np.dtype(dtype) for dtype in dtypes]:
            raise ValueError(f"tensor {name} is {array.dtype}, expected {said}")
        if (axes is not None and array.ndim != axes) or 0 in array.shape:
            expected = "no empty axis" if axes is None else f"{axes} axes, none of them empty"
            raise ValueError(f"tensor {name} has shape {[*array.shape]}, expected {expected}")
        return array

    def find(self, ending: str, *dtypes: Any, axes: int | None = None) -> np.ndarray | None:
        """A tensor, or None."""
        return self.get(ending, *dtypes, axes=axes) if self.has(ending) else None

    def expect(self, ending: str, array: np.ndarray | None, *shapes: tuple[int, ...]) -> None:
        """Refuses a tensor that has none of some shapes."""
        if array is not None and array.shape not in shapes:
            expected = " or ".join(str([*shape]) for shape in shapes)
            raise ValueError(
                f"tensor {self.stem}{ending} has shape {[*array.shape]}, expected {expected}"
            )


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a checkpoint holds matrices in codes.

    Attributes:
        markers: Endings of tensors that every matrix in codes has one of.
        endings: Of all tensors of a matrix.
        pack: Makes a weight of them; of stacked matrices a list.
        plain: Ending of the tensor that the matrix would be in plain numbers.
    """

    markers: tuple[str, ...]
    endings: tuple[str, ...]
    pack: Callable[[Tensors], PackedWeight | list[PackedWeight]]
    plain: str = ".weight"

    def stems(self, names: Iterable[str]) -> dict[str, str]:
        """What the names of each matrix's tensors begin with, by the name of the plain tensor."""
        found = {n.removesuffix(e) for n in names for e in self.markers if n.endswith(e)}
        return {stem + self.plain: stem for stem in found}


def scheme_from_hf(config: Fields) -> Scheme | None:
    """What config.json says of weights in codes; None if they are plain numbers.

    Raises:
        ValueError, NotImplementedError: It says what is not supported, or what makes no sense; the text names the key.
    """
    said = config.inner(_KEY)
    if said is None:
        return None
    with _inside(_KEY):
        method = said.get("quant_method", None)
        if not isinstance(method, str) or method not in _METHODS:
            raise ValueError(f"quant_method is {method!r}, expected one of {', '.join(_METHODS)}")
        return _METHODS[method](said)


@contextlib.contextmanager
def _inside(place: str) -> Iterator[None]:
    """Puts the key of an object before what is said of one inside it."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise type(error)(f"{place}.{error}") from error


def _one_of(said: Fields, key: str, *expected: Any, default: Any) -> Any:
    value = said.get(key, default)
    if not any(value is e or (type(value) is type(e) and value == e) for e in expected):
        raise ValueError(f"{key} is {value!r}, expected {' or '.join(map(repr, expected))}")
    return value


def _group_size(said: Fields) -> int:
    """Columns of a group; 0: all."""
    group = said.whole("group_size", -1, least=-1)
    return _checked_group("group_size", 0 if group == -1 else group or 1)


def _checked_group(key: str, group: int) -> int:
    if group not in (0, 16) and group % 32:
        raise ValueError(f"{key} is {group}, expected 16, a multiple of 32, or -1 for all columns")
    return group


def _groups(columns: int, group: int) -> int:
    return columns // group if group and columns > group else 1


# ------------------------------------------------------------------------------------------- AWQ and GPTQ


def _awq(said: Fields) -> Scheme:
    """AutoAWQ's "gemm" form."""
    _one_of(said, "bits", 4, default=4)
    _one_of(said, "version", "gemm", "GEMM", default="gemm")
    _one_of(said, "zero_point", True, default=True)
    group = _group_size(said)

    def pack(tensors: Tensors) -> PackedWeight:
        codes = tensors.get(".qweight", np.int32, axes=2)
        columns, words = codes.shape
        groups = _groups(columns, group)
        zeros = tensors.get(".qzeros", np.int32, axes=2)
        scales = tensors.get(".scales", *_SCALES, axes=2)
        tensors.expect(".qzeros", zeros, (groups, words))
        tensors.expect(".scales", scales, (groups, 8 * words))
        return repack.from_awq(codes, zeros, scales)

    return Scheme((".qweight",), (".qweight", ".qzeros", ".scales"), pack)


def _gptq(said: Fields) -> Scheme:
    bits = _one_of(said, "bits", 4, 8, default=None)
    group = _group_size(said)
    form = _one_of(said, "checkpoint_format", "gptq", "gptq_v2", default="gptq")
    _one_of(said, "pack_dtype", "int32", default="int32")
    _one_of(said, "is_marlin_format", False, default=False)
    if said.get("dynamic", {}):
        raise ValueError("dynamic gives modules settings of their own, expected none")
    if group and said.flag("desc_act", False):
        raise NotImplementedError(
            "desc_act is True, expected False: act-order (columns out of the order of their groups) is not supported"
        )
    half = 1 << (bits - 1)

    def pack(tensors: Tensors) -> PackedWeight:
        codes = tensors.get(".qweight", np.int32, axes=2)
        columns, rows = codes.shape[0] * 32 // bits, codes.shape[1]
        groups = _groups(columns, group)
        zeros = tensors.get(".qzeros", np.int32, axes=2)
        scales = tensors.get(".scales", *_SCALES, axes=2)
        order = tensors.find(".g_idx", np.int32, np.int64, axes=1)
        tensors.expect(".qzeros", zeros, (groups, rows * bits // 32))
        tensors.expect(".scales", scales, (groups, rows))
        tensors.expect(".g_idx", order, (columns,))
        # Symmetric weights have the same zero point everywhere, which is then the format's.
        stored = half - (form == "gptq")
        same = int.from_bytes(bytes([stored * (17 if bits == 4 else 1)]) * 4, "little")
        symmetric = bool((zeros.view(np.uint32) == same).all())
        return repack.from_gptq(
            codes,
            None if symmetric else zeros,
            scales,
            order,
            bits=bits,
            zeros_less_one=form == "gptq",
        )

    return Scheme((".qweight",), (".qweight", ".qzeros", ".scales", ".g_idx"), pack)


# ------------------------------------------------------------------------------------------- compressed-tensors

_CT_FORMATS = {
    "pack-quantized": ("int", (4, 8)),
    "int-quantized": ("int", (4, 8)),
    "float-quantized": ("float", (8,)),
    "naive-quantized": (None, (4, 8)),
    "nvfp4-pack-quantized": ("float", (4,)),
    "mxfp4-pack-quantized": ("float", (4,)),
}


def _compressed_tensors(said: Fields) -> Scheme:
    """Each matrix's tensors say what they are; the configuration is asked for what they cannot say."""
    _one_of(said, "quantization_status", "compressed", "frozen", default="compressed")
    for key in ("kv_cache_scheme", "transform_config"):
        if said.get(key, {}):
            raise ValueError(f"{key} is given, expected none")
    if sparsity := said.inner("sparsity_config"):
        with _inside("sparsity_config"):
            _one_of(sparsity, "format", "dense", default="dense")
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError("config_groups is no object, or an empty one")
    found = []
    for name, group in groups.items():
        with _inside(f"config_groups.{name}"):
            found.append(_of_group(Fields(group), said.get("format", None)))
    blocks, sizes, zeros = ({*column} - {None} for column in zip(*found, strict=True))
    if len(blocks) > 1:
        raise ValueError(f"config_groups has blocks of {sorted(blocks)}, expected one size")
    block = next(iter(blocks), None)
    endings = (
        *(".weight", ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape"),
        *(".weight_g_idx", ".weight_global_scale"),
        *(".input_scale", ".input_global_scale", ".input_zero_point"),
    )
    pack = functools.partial(_pack_compressed, block=block, sizes=sizes, zeros={True} == zeros)
    return Scheme((".weight_scale",), endings, pack)


def _of_group(group: Fields, format: Any) -> tuple[tuple[int, int] | None, int | None, bool]:
    """Checks a group's settings; rows and columns of a block, or columns of a row, that share a scale, and if it has zero points."""
    form = group.get("format", format)
    if not isinstance(form, str) or form not in _CT_FORMATS:
        raise ValueError(f"format is {form!r}, expected one of {', '.join(_CT_FORMATS)}")
    weights = group.inner("weights")
    if weights is None:
        raise ValueError("weights is missing")
    with _inside("weights"):
        kind, bits = _CT_FORMATS[form]
        _one_of(weights, "type", *([kind] if kind else ["int", "float"]), default="int")
        _one_of(weights, "num_bits", *bits, default=None)
        if weights.get("actorder", None) in ("group", "dynamic", True):
            raise NotImplementedError(
                f"actorder is {weights.get('actorder')!r}, expected 'weight' or none: act-order (columns out of the "
                "order of their groups) is not supported"
            )
        strategy = _one_of(
            weights, "strategy", None, "tensor", "channel", "group", "tensor_group", "block",
            default=None,
        )  # fmt: skip
        size = _group_size(weights) if strategy in ("group", "tensor_group") else None
        block = _block(weights, "block_structure") if strategy == "block" else None
        return block, size, not weights.flag("symmetric", True)


def _block(said: Fields, key: str) -> tuple[int, int]:
    block = said.get(key)
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(x) is int and 0 < x < 1 << 31 for x in block)
    ):
        raise ValueError(f"{key} is {block!r}, expected rows and columns of a block")
    _checked_group(key, block[1])
    return block[0], block[1]


def _pack_compressed(
    tensors: Tensors, block: tuple[int, int] | None, sizes: set[int], zeros: bool
) -> PackedWeight:
    zeros_of = tensors.get if zeros else tensors.find
    if not tensors.has(".weight_packed"):
        codes = tensors.get(".weight", np.int8, _FP8, axes=2)
        scale = tensors.get(".weight_scale", *_SCALES)
        if codes.dtype == _FP8:
            return _of_fp8(tensors, codes, scale, ".weight_scale", block)
        points = zeros_of(".weight_zero_point", np.int8)
        scale = _of_rows(tensors, ".weight_scale", scale, len(codes))
        if points is not None:
            points = _of_rows(tensors, ".weight_zero_point", points, len(codes))
        tensors.expect(".weight_zero_point", points, scale.shape)
        return repack.from_int8(codes, scale, points)
    codes = tensors.get(".weight_packed", np.int32, np.uint8, axes=2)
    rows = len(codes)
    if codes.dtype == np.uint8:
        return _of_e2m1(tensors, codes)
    shape = tensors.get(".weight_shape", np.int32, np.int64, axes=1).tolist()
    words = {bits: [rows, -(-shape[-1] * bits // 32)] for bits in (4, 8)}
    bits = next((b for b, size in words.items() if [*codes.shape] == size), None)
    if len(shape) != 2 or shape[0] != rows or bits is None:
        raise ValueError(
            f"tensor {tensors.stem}.weight_packed has shape {[*codes.shape]}, which holds no {shape} codes of 4 or 8 bits"
        )
    scale = _of_rows(tensors, ".weight_scale", tensors.get(".weight_scale", *_SCALES), rows)
    points = zeros_of(".weight_zero_point", np.int32, axes=2)
    tensors.expect(".weight_zero_point", points, (-(-rows * bits // 32), scale.shape[1]))
    weight = repack.from_compressed_tensors(codes, scale, points, bits=bits, columns=shape[1])
    if sizes and weight.group and weight.group not in sizes:
        raise ValueError(
            f"tensor {tensors.stem}.weight_scale has scales of {weight.group} columns, expected group_size {sorted(sizes)}"
        )
    _checked_group(f"tensor {tensors.stem}.weight_scale: columns of a group", weight.group)
    order = tensors.find(".weight_g_idx", np.int32, np.int64, axes=1)
    if order is not None:
        repack.check_order(order, shape[1], weight.group)
    return weight


def _of_rows(tensors: Tensors, ending: str, factor: np.ndarray, rows: int) -> np.ndarray:
    """Factors of the tensor, of rows, or of groups, as [rows, g]."""
    if factor.size == 1:
        return np.ascontiguousarray(np.broadcast_to(factor.reshape(1, 1), (rows, 1)))
    if factor.ndim not in (1, 2) or len(factor) != rows:
        tensors.expect(ending, factor, (1,), (rows, 1))
    return factor.reshape(rows, -1)


def _of_e2m1(tensors: Tensors, codes: np.ndarray) -> PackedWeight:
    """nvfp4 has scales in e4m3 and one of all, mxfp4 powers of two."""
    powers = () if tensors.has(".weight_global_scale") else (np.uint8, ml_dtypes.float8_e8m0fnu)
    scales = tensors.get(".weight_scale", *powers, _FP8, axes=2)
    group = 16 if scales.dtype == _FP8 else 32
    tensors.expect(".weight_scale", scales, (len(codes), 2 * codes.shape[1] // group))
    if group == 32:
        return repack.from_mxfp4(codes, scales)
    of_all = tensors.get(".weight_global_scale", np.float32)
    tensors.expect(".weight_global_scale", of_all, (), (1,))
    return repack.from_nvfp4(codes, scales, of_all, divides=True)


# ------------------------------------------------------------------------------------------- fp8 and mxfp4


def _fp8(said: Fields) -> Scheme:
    """DeepSeek's blocks, and scales of whole matrices."""
    _one_of(said, "fmt", "e4m3", default="e4m3")
    _one_of(said, "activation_scheme", "dynamic", "static", default="dynamic")
    block = _block(said, "weight_block_size") if said.has("weight_block_size") else None
    inverse = ".weight_scale_inv"

    def pack(tensors: Tensors) -> PackedWeight:
        codes = tensors.get(".weight", _FP8, axes=2)
        ending = inverse if tensors.has(inverse) else ".weight_scale"
        return _of_fp8(tensors, codes, tensors.get(ending, *_SCALES), ending, block)

    endings = (".weight", inverse, ".weight_scale", ".input_scale", ".activation_scale")
    return Scheme((inverse, ".weight_scale"), endings, pack)


def _of_fp8(
    tensors: Tensors,
    codes: np.ndarray,
    scale: np.ndarray,
    ending: str,
    block: tuple[int, int] | None,
) -> PackedWeight:
    if block is None:
        return repack.from_fp8(codes, _of_rows(tensors, ending, scale, len(codes)))
    grid = (-(-codes.shape[0] // block[0]), -(-codes.shape[1] // block[1]))
    tensors.expect(ending, scale, grid)
    return repack.from_fp8(codes, scale, block=block)


def _mxfp4(said: Fields) -> Scheme:
    """gpt-oss's experts: [experts, out, in / 32, 16]."""
    del said  # its list of modules in plain numbers is what has no tensors of codes

    def pack(tensors: Tensors) -> list[PackedWeight]:
        blocks = tensors.get("_blocks", np.uint8, axes=4)
        scales = tensors.get("_scales", np.uint8, ml_dtypes.float8_e8m0fnu, axes=3)
        tensors.expect("_blocks", blocks, (*blocks.shape[:3], 16))
        tensors.expect("_scales", scales, blocks.shape[:3])
        return [repack.from_mxfp4(*of_one) for of_one in zip(blocks, scales, strict=True)]

    return Scheme(("_blocks",), ("_blocks", "_scales"), pack, plain="")


_METHODS = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
}
QUANT_METHODS = tuple(_METHODS)
"""`quant_method` in `quantization_config`."""
