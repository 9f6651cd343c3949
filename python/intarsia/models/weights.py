"""Loads a model, from a GGUF file or a Hugging Face directory, into jax arrays.

Both kinds of file are read through Hugging Face's tensor names. The projections that share an
input (q, k, v and gate, up) are concatenated into one matrix product. Matrices stay [out, in] as the
files have them: on a CPU, XLA multiplies by either layout at the same speed. A tied embedding table
then serves as the output projection without being transposed.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from tqdm import tqdm

from intarsia._packing import empty
from intarsia.models.checkpoint import Checkpoint, open_checkpoint
from intarsia.models.choices import ACTIVATIONS, QUANTIZATIONS
from intarsia.models.config import ModelConfig
from intarsia.models.expert_codes import round_experts
from intarsia.models.files import reading
from intarsia.models.lazy import LazyArray
from intarsia.models.linear import NarrowMatrix, PackedMatrix, Weight, quantize
from intarsia.models.memory import give_back_freed
from intarsia.models.mixtures import read_experts, read_packed_experts
from intarsia.repack import PackedWeight, joined, round_to_nearest

_NARROW = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_BITS = {"int8": 8, "int4": 4}  # of what is rounded here
_CODES = {PackedMatrix, PackedWeight}
_DTYPES = ("float32", "bfloat16", "float16")

Params = dict[str, Any]
"""Weights by role: `embed` and `lm_head` [vocab, n] (no `lm_head` when tied), `first_norm` [n], and
`layers`, a list of dicts with `wqkv`, `bqkv` (with `qkv_bias`), `q_norm` and `k_norm` [d] (with
`qk_norm`), `sinks` [h] (with `sinks`), `wo`, `bo` (with `o_bias`), `attention_post_norm` (with `post_norms`), `mlp_norm`, `w_gate_up`, `w_down`,
`mlp_post_norm` (with `post_norms`) and `next_norm`, the norm that follows the block (the next block's,
or the model's last). With `experts` a layer has in the place of `w_gate_up` and `w_down` the arrays `router` [E, n], `experts_gate_up`
[E, 2i, n] and `experts_down` [E, n, i] (or a stacked `PackedWeight` each), and with `experts.biases` one of each role's name and `_bias`, without the last axis. `wqkv`, `wo`, `w_gate_up` and `w_down` are a `Weight` each (`linear.py`). `ModelParallel.exchange` may
add `exchange`, an `intarsia.jax.Exchange`."""


class Placement(Protocol):
    """What puts weights onto devices, as `ModelParallel` does."""

    def place(self, params: Params) -> Params: ...


def load_model(
    path: str | Path,
    *,
    dtype: Any = "float32",
    quantize: str | None = None,
    progress: bool = False,
    parallel: Placement | None = None,
    activations: str = "auto",
) -> tuple[ModelConfig, Params]:
    """Loads a model onto jax's default device, or spreads it over several.

    Args:
        path: A .gguf file, or a directory with config.json and model.safetensors (or its shards and
            their index). A .gguf file has any quantization that the `gguf` package can expand, a
            directory those of `quantized_files.QUANT_METHODS`.
        dtype: What the weights are converted to: float32, bfloat16 or float16.
        quantize: One of `QUANTIZATIONS`, or None for `dtype`.
            With "fp8" linear layers keep weights in float8_e4m3fn with a scale for each output channel,
            and quantize their inputs token by token.
            With "int8" and "int4" they round weights to the nearest code of that many bits, with a scale
            for each group of 128 columns, or of fewer where 128 do not divide a row. Inputs stay in `dtype`.
            The output projection has int8 in both, and so has an embedding that is one; several devices have them decoded.
            Other embeddings, norms, and with "fp8" the output projection stay in `dtype`.
            With "file" all matrices keep the codes of the file, or the 16 bits that it has where `dtype` is float32;
            activations are in `dtype`.
        progress: Whether to draw a progress bar on stderr.
        parallel: How to spread the weights, for an `Engine` that is given the same. A process reads what
            its own devices hold: of matrices their part, unless `quantize` is set, and vectors whole.
        activations: One of `ACTIVATIONS`: "int8" rounds what products with weights in codes multiply, 32 neighbors at a
            time, on CPUs. Experts take theirs as they are.

    Returns:
        The configuration and the weights; `Params` describes their layout.

    Raises:
        ValueError: The architecture, a tensor, the dtype or the quantization is not supported, or a
            tensor has a wrong shape.
        FileNotFoundError: The path holds no model.
    """
    if quantize not in (None, *QUANTIZATIONS):
        expected = " or ".join(QUANTIZATIONS)
        raise ValueError(f"quantize is {quantize!r}, expected {expected}, or None")
    if activations not in ACTIVATIONS:
        raise ValueError(f"activations is {activations!r}, expected {' or '.join(ACTIVATIONS)}")
    in_int8 = activations == "int8"
    if in_int8 and quantize not in (*_BITS, "file"):
        raise ValueError(
            f"activations is 'int8' beside quantize={quantize!r}, expected weights in codes: int8, int4 or file"
        )
    checkpoint = open_checkpoint(path)
    if (name := str(getattr(dtype, "__name__", dtype))) not in _DTYPES:
        raise ValueError(f"dtype is {name}, expected {', '.join(_DTYPES)}")
    dtype = jnp.dtype(dtype)
    if dtype == jnp.float16 and not checkpoint.config.fits_f16:
        raise ValueError("dtype is float16, whose range this model leaves; expected bfloat16")
    if quantize == "fp8" and checkpoint.config.experts:
        raise ValueError(
            "quantize is 'fp8', expected None for a model with experts, or 'int8', 'int4' or 'file'"
        )
    with reading(path):
        params = _assemble(checkpoint, dtype, quantize, progress, parallel)
    return checkpoint.config, _with_int8_activations(params) if in_int8 else params


def check_tensors(checkpoint: Checkpoint) -> None:
    """Refuses a checkpoint whose tensors `load_model` refuses; matrices of plain numbers are not read."""
    _assemble(checkpoint, np.dtype(np.float32), None, False, _Nowhere())


class _Nowhere:
    """A placement that keeps nothing."""

    def place(self, params: Params) -> Params:
        """Drops them."""
        del params
        return {}


def forms_of(params: Params) -> set[type]:
    """The classes of weights that are kept as the file has them, or rounded, in the place of arrays."""
    forms = (NarrowMatrix, *_CODES)
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, forms))
    return {type(x) for x in leaves if isinstance(x, forms)}


def _with_int8_activations(params: Params) -> Params:
    kept = forms_of(params)
    if PackedMatrix not in kept:
        of_experts = "only experts are in codes, which take activations as they are"
        raise ValueError(
            f"activations is 'int8', expected weights in codes: {of_experts if kept & _CODES else 'the file has none'}"
        )

    def change(weight: Any) -> Any:
        if not isinstance(weight, PackedMatrix):
            return weight
        return dataclasses.replace(weight, int8_activations=True)

    return jax.tree.map(change, params, is_leaf=lambda x: isinstance(x, PackedMatrix))


def _assemble(
    checkpoint: Checkpoint,
    dtype: np.dtype,
    quantization: str | None,
    progress: bool,
    parallel: Placement | None,
) -> Params:
    """Reads every tensor, checks its shape, and concatenates those that share an input."""
    config, tensors = checkpoint.config, _Tensors(checkpoint, dtype, quantization, parallel)
    params: Params = tensors.put({"first_norm": tensors.input_norm(0)})
    # Closed before an error is printed, which would otherwise stand in the bar's line.
    with tqdm(
        range(config.layers), "loading", unit="layer", file=sys.stderr, disable=not progress
    ) as bar:
        params["layers"] = []
        for layer in bar:
            params["layers"].append(tensors.block(layer))
            give_back_freed()
    tied = config.tie_embeddings
    params |= tensors.put({"embed": tensors.table("model.embed_tokens.weight", projects=tied)})
    if not tied:
        params |= tensors.put({"lm_head": tensors.table("lm_head.weight", projects=True)})
    if tensors.unread:
        raise ValueError(f"weights: unsupported tensors {', '.join(sorted(tensors.unread)[:5])}")
    return params


class _Tensors:
    """The tensors of a checkpoint as a model takes them.

    Attributes:
        unread: Names of those that nothing has asked for.
        put: Puts arrays by role where they belong.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: np.dtype,
        quantization: str | None,
        parallel: Placement | None,
    ) -> None:
        self.put = parallel.place if parallel else jax.device_put
        self._cuts = parallel is not None and quantization is None
        self.unread = set(checkpoint.names)
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._dtype = dtype
        self._quantization = quantization

    def read(self, name: str, *shape: int, dtype: Any = None) -> Any:
        """A tensor that has to have a shape, in `dtype` or the model's: NumPy's or lazy."""
        array = self._as_in_file(name, *shape)
        in_f32 = self._config.norm_in_f32 and name.endswith("norm.weight")
        dtype = np.float32 if in_f32 else dtype or self._dtype
        if isinstance(array, LazyArray):
            return array.astype(dtype)
        return array.astype(dtype, copy=False)

    def _as_in_file(self, name: str, *shape: int) -> Any:
        if name not in self._checkpoint.names:
            raise ValueError(f"weights: {name} is missing, expected shape {[*shape]}")
        cut = self._cuts and len(shape) > 1
        array = self._checkpoint.lazy(name) if cut else self._checkpoint.read(name)
        if array.shape != shape:
            raise ValueError(f"weights: {name} has shape {[*array.shape]}, expected {[*shape]}")
        self.unread.discard(name)
        return array

    def input_norm(self, layer: int) -> np.ndarray:
        """The norm before a layer, or the model's last."""
        last = layer == self._config.layers
        name = "model.norm.weight" if last else f"model.layers.{layer}.input_layernorm.weight"
        return self.read(name, self._config.hidden)

    def block(self, layer: int) -> Params:
        """A layer's weights by role, on the device."""
        config, prefix = self._config, f"model.layers.{layer}."
        weights = self._attention(prefix + "self_attn.")
        if config.experts:
            weights |= self._experts(prefix)
        else:
            n, m, mlp = config.hidden, config.intermediate, prefix + "mlp."
            weights["w_gate_up"] = self._linear(mlp, {"gate": m, "up": m}, n)
            weights["w_down"] = self._linear(mlp, {"down": n}, m)
        norms = {"mlp_norm": "post_attention_layernorm"}
        if config.post_norms:
            norms = {
                "attention_post_norm": "post_attention_layernorm",
                "mlp_norm": "pre_feedforward_layernorm",
                "mlp_post_norm": "post_feedforward_layernorm",
            }
        for role, name in norms.items():
            weights[role] = self.read(f"{prefix}{name}.weight", config.hidden)
        weights["next_norm"] = self.input_norm(layer + 1)
        return self.put(weights)

    def _experts(self, prefix: str) -> Params:
        """A layer's router and experts, those in codes on the device."""
        config, names = self._config, self._checkpoint.names
        if self._quantization in _BITS:
            wide = read_experts(
                config, names, prefix, functools.partial(self.read, dtype=np.float32)
            )
            return round_experts(wide, _BITS[self._quantization], self._dtype)
        if self._quantization == "file":
            made = read_packed_experts(config, names, prefix, self.read, self._packed_tensor)
            if made is not None:
                return made
        return read_experts(config, names, prefix, self.read)

    def _attention(self, prefix: str) -> Params:
        config = self._config
        n, d = config.hidden, config.head_dim
        h, hk = config.heads, config.kv_heads
        qkv = {"q": h * d, "k": hk * d, "v": hk * d}
        weights: Params = {
            "wqkv": self._linear(prefix, qkv, n),
            "wo": self._linear(prefix, {"o": n}, h * d),
        }
        if config.qk_norm:
            weights |= {
                role: self.read(f"{prefix}{role}.weight", d) for role in ("q_norm", "k_norm")
            }
        if config.qkv_bias:
            biases = [self.read(f"{prefix}{p}_proj.bias", rows) for p, rows in qkv.items()]
            weights["bqkv"] = np.concatenate(biases)
        if config.o_bias:
            weights["bo"] = self.read(f"{prefix}o_proj.bias", n)
        if config.sinks:
            weights["sinks"] = self.read(f"{prefix}sinks", h)
        return weights

    def _linear(self, prefix: str, rows_by_name: Mapping[str, int], columns: int) -> Weight:
        """The layers that share an input as one; quantized from what the file has, rounded once."""
        rows_by_tensor = {f"{prefix}{name}_proj.weight": r for name, r in rows_by_name.items()}
        if self._quantization in (None, "file"):
            return self.matrix(rows_by_tensor, columns)
        if self._quantization == "fp8":
            return quantize(jnp.asarray(self._plain(rows_by_tensor, columns, np.float32)))
        return self._rounded(rows_by_tensor, columns, _BITS[self._quantization])

    def table(self, name: str, *, projects: bool) -> Any:
        """A row for each token, of the output projection perhaps, which is in 8 bits where other layers are rounded."""
        rows, columns = {name: self._config.vocab}, self._config.hidden
        if projects and self._quantization in _BITS:
            return self._rounded(rows, columns, 8)
        return self.matrix(rows, columns)

    def _rounded(self, rows_by_name: Mapping[str, int], columns: int, bits: int) -> PackedMatrix:
        packed = round_to_nearest(self._plain(rows_by_name, columns, np.float32), bits)
        return PackedMatrix((jax.device_put(packed),), jnp.dtype(self._dtype))

    def matrix(self, rows_by_name: Mapping[str, int], columns: int) -> Any:
        """Rows of tensors one after the other: as the file has them if that is wanted, on the device, or lazy."""
        if self._quantization == "file":
            if packed := self._packed(rows_by_name, columns):
                return packed
            return self._as_narrow_as_file(rows_by_name, columns)
        matrix = self._plain(rows_by_name, columns)
        return matrix if isinstance(matrix, LazyArray) else jax.device_put(matrix)

    def _as_narrow_as_file(
        self, rows_by_name: Mapping[str, int], columns: int
    ) -> jax.Array | NarrowMatrix:
        """Plain numbers: those in 16 bits stay so where activations are in f32."""
        parts = [self._as_in_file(name, rows, columns) for name, rows in rows_by_name.items()]
        dtypes = {part.dtype for part in parts}
        if self._dtype == np.float32 and len(dtypes) == 1 and dtypes <= _NARROW:
            return NarrowMatrix(jax.device_put(_together(parts, dtypes.pop())), self._dtype)
        return jax.device_put(_together(parts, self._dtype))

    def _plain(self, rows_by_name: Mapping[str, int], columns: int, dtype: Any = None) -> Any:
        """Rows of tensors one after the other: NumPy's or lazy."""
        parts = [self._as_in_file(name, rows, columns) for name, rows in rows_by_name.items()]
        dtype = dtype or self._dtype
        if self._cuts:
            return np.concatenate(parts).astype(dtype)
        return _together(parts, dtype)

    def _packed(self, rows_by_name: Mapping[str, int], columns: int) -> PackedMatrix | None:
        parts = []
        for name, rows in rows_by_name.items():
            weight = self._packed_tensor(name, rows, columns)
            if not isinstance(weight, PackedWeight):
                return None
            parts.append(weight)
        return PackedMatrix(tuple(map(jax.device_put, joined(parts))), jnp.dtype(self._dtype))

    def _packed_tensor(self, name: str, rows: int, columns: int, count: int | None = None) -> Any:
        """A matrix in the file's codes, or `count` stacked ones as a list; None if they are plain numbers, or missing."""
        if name not in self._checkpoint.names:
            return None
        weight = self._checkpoint.read_packed(name)
        if weight is None:
            return None
        several = isinstance(weight, list)
        shape = [len(weight), *weight[0].shape] if isinstance(weight, list) else [*weight.shape]
        expected = [rows, columns] if count is None else [count, rows, columns]
        if shape != expected:
            raise ValueError(f"weights: {name} has shape {shape}, expected {expected}")
        if several == (count is not None):
            self.unread.discard(name)
        return weight


def _together(matrices: list[np.ndarray], dtype: Any) -> np.ndarray:
    """Rows of matrices one after the other, in memory that a CPU device of JAX takes as it is."""
    if len(matrices) == 1 and matrices[0].dtype == dtype:
        return matrices[0]
    whole = empty((sum(map(len, matrices)), matrices[0].shape[1]), dtype)
    return np.concatenate(matrices, out=whole, casting="unsafe")
