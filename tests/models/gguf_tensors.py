"""GGUF files: tensors of Hugging Face's directories, named and ordered as llama.cpp's convert_hf_to_gguf.py does it."""

from collections.abc import Mapping

import gguf
import numpy as np

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_OTHER_NAMES = {
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    "gpt-oss": {"post_attention_layernorm": "post_attention_norm"},
}


def to_gguf(
    name: str, array: np.ndarray, architecture: str, head_dim: int
) -> tuple[str, np.ndarray]:
    """Renames, permutes llama's q and k, and adds 1 to gemma's norms; for any tensor but those of experts."""
    stem, _, kind = name.rpartition(".")
    if kind == "sinks":
        stem, kind = name, "weight"
    if architecture == "gemma3" and array.ndim == 1:
        array = array + 1
    if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
        heads = len(array) // head_dim
        array = array.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(array.shape)
    place = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        place = f"blk.{layer}."
    names = _NAMES | _OTHER_NAMES.get(architecture, {})
    return f"{place}{names.get(stem, stem)}.{kind}", array


def add_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, int | float | str]) -> None:
    """Adds numbers and texts by their whole keys."""
    adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in metadata.items():
        adders[type(value)](key, value)


def write_out(writer: gguf.GGUFWriter) -> None:
    """Writes what was added, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
