"""Fuzzes the readers of model files by atheris: a file is read, or one line names it and its fault.

make fuzz-readers RUNS=10000
.venv/fuzz/bin/python tests/fuzz/readers.py gguf -runs=10000 [corpus] [finding]
"""

import json
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

# atheris instruments nothing that an editable install's finder loads. PYTHONPATH has the package.
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable")]
with atheris.instrument_imports(include=["intarsia", "gguf", "jinja2"]):
    import gguf
    import jinja2.sandbox  # noqa: F401
    from intarsia.models import Tokenizer
    from intarsia.models.chat_template import render
    from intarsia.models.checkpoint import open_checkpoint

REFUSALS = (ValueError, OSError, NotImplementedError, MemoryError)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8, "head_dim": 4,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 9,
    "intermediate_size": 16, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "bos_token_id": 0,
    "max_position_embeddings": 64, "tie_word_embeddings": True, "eos_token_id": [1, 0],
}  # fmt: skip
SCALINGS = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4, "sliding_window": 8,
    "sliding_window_pattern": 2,
}  # fmt: skip
TEMPLATES = [
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}",
    "{% set n = namespace(x=0) %}{% macro f(a) %}{{ a | tojson }}{% endmacro %}{{ f(messages) }}",
    "{{ '%s' % bos_token ~ 'x' * 3 }}{{ raise_exception('no') }}",
    "{% for i in range(9) %}{{ loop.index | string | center(3) }}{% endfor %}",
]


def safetensors() -> bytes:
    header = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


def gguf(folder: Path) -> bytes:
    """A tiny model's file, its vocabulary included."""
    import numpy as np
    from gguf import GGUFWriter

    path = folder / "seed.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(16)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["<a>", "<b>", "a", "b", "ab"])
    writer.add_token_types([3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_tensor("token_embd.weight", np.zeros((5, 8), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def tokenizers() -> list[bytes]:
    """One of bytes, as Llama's, and one of words with every part that a file may have."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    by_bytes = Backend(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    by_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_bytes.add_special_tokens(["<a>"])
    words = Backend(models.Unigram([("<u>", 0.0), ("a", -1.0), ("b", -2.0)], 0, byte_fallback=True))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "_")])
    words.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    words.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    words.post_processor = processors.TemplateProcessing("<a> $A", special_tokens=[("<a>", 3)])
    words.add_special_tokens(["<a>"])
    return [backend.to_str().encode() for backend in (by_bytes, words)]


def seeds(reader: str, folder: Path) -> list[bytes]:
    if reader == "gguf":
        return [gguf(folder)]
    if reader == "safetensors":
        return [safetensors()]
    if reader == "tokenizer":
        return tokenizers()
    if reader == "config":
        configs = [CONFIG, *(CONFIG | {"rope_scaling": s} for s in SCALINGS), CONFIG | GEMMA]
        return [json.dumps(config).encode() for config in configs]
    return [template.encode() for template in TEMPLATES]


# What a field of another model, or of a broken one, may be.
VALUES = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**400,
    "", "x", "a b", "\ud800", "F32", "BF16", "I4", [], [0], [[]], [None], {}, {"type": "BPE"}, {"": 0},
]  # fmt: skip


def mutate_json(value: object, draw: random.Random) -> object:
    """The value with one of its parts replaced, left out, doubled or renamed."""
    inner = list(value.items()) if isinstance(value, dict) else None
    if isinstance(value, list):
        inner = list(enumerate(value))
    if not inner or draw.random() < 0.1:
        return draw.choice(VALUES)
    index = draw.randrange(len(inner))
    key, part = inner[index]
    what = draw.random()
    if what < 0.1:
        del inner[index]
    elif what < 0.2:
        inner.append((f"{key}{draw.choice(['', '_', '0', ' '])}", part))
    elif what < 0.25:
        inner[index] = key, draw.choice(inner)[1]
    else:
        inner[index] = key, mutate_json(part, draw)
    return dict(inner) if isinstance(value, dict) else [part for _, part in inner]


def mutator(reader: str, seeds: list[bytes]) -> Callable[[bytes, int, int], bytes]:
    """Half of the inputs of a JSON reader: another tree, which bytes changed one by one hardly ever become."""
    skip = 8 if reader == "safetensors" else 0  # the length of the header
    # Parsers in Rust, of whose branches atheris learns nothing: the corpus is soon the shortest file.
    unseen = reader in ("safetensors", "tokenizer")

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if unseen and draw.random() < 0.5:
            data = draw.choice(seeds)
        if reader in ("gguf", "chat_template") or draw.random() < 0.5:
            return atheris.Mutate(data, max_size)
        end = skip + int.from_bytes(data[:skip], "little") if skip else len(data)
        try:
            tree = json.loads(data[skip:end])
            for _ in range(draw.randint(1, 3)):
                tree = mutate_json(tree, draw)
            text = json.dumps(tree).encode()
        except (ValueError, RecursionError):
            return atheris.Mutate(data, max_size)
        head = struct.pack("<Q", len(text)) if skip else b""
        return (head + text + data[end:])[:max_size]

    return mutate


def check(path: Path, read: Callable[[], object]) -> None:
    """Reads; an error must be one line that names the file."""
    try:
        read()
    except REFUSALS as error:
        text = str(error)
        if str(path) not in text or "\n" in text or len(text) < len(str(path)) + 4:
            raise AssertionError(f"{type(error).__name__}: {text!r}") from error


def read_tensors(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for name in sorted(checkpoint.names)[:4]:
        checkpoint.read(name)


def target(reader: str, folder: Path) -> Callable[[bytes], None]:
    """What is called with each input."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    name = {"gguf": "x.gguf", "safetensors": "model.safetensors", "tokenizer": "tokenizer.json"}
    file = folder / name.get(reader, "config.json")

    def read_file(data: bytes) -> None:
        file.unlink(missing_ok=True)  # the one before may be mapped
        file.write_bytes(data)
        if reader == "gguf":
            check(file, lambda: read_tensors(file))
        if reader in ("gguf", "tokenizer"):
            path = file if reader == "gguf" else folder
            check(file, lambda: Tokenizer.from_path(path).encode("ab b"))
        if reader == "safetensors":
            check(file, lambda: read_tensors(folder))
        if reader == "config":  # no tensors beside it
            check(folder, lambda: open_checkpoint(folder))

    def read_template(data: bytes) -> None:
        messages = [{"role": "user", "content": "a"}]
        try:
            render(data.decode("utf-8", "replace"), messages=messages, bos_token="<a>")
        except ValueError as error:
            if not str(error).startswith("chat template: "):
                raise

    return read_template if reader == "chat_template" else read_file


def main() -> None:
    reader, arguments = sys.argv[1], sys.argv[2:]
    if "__ATHERIS_INSTRUMENTED__" not in open_checkpoint.__code__.co_consts:
        sys.exit("the readers are not instrumented, so atheris would try but the smallest inputs")
    scratch = Path(__file__).parents[2] / "build" / "readers" / reader  # atheris never returns
    folder, corpus = scratch / "model", scratch / "corpus"
    shutil.rmtree(scratch, ignore_errors=True)
    folder.mkdir(parents=True)
    corpus.mkdir()
    inputs = seeds(reader, folder)
    for i, seed in enumerate(inputs):
        (corpus / str(i)).write_bytes(seed)
    given = ["-timeout=30", "-rss_limit_mb=3000", "-max_len=4096", "-entropic=0", *arguments]
    if not any(Path(argument).is_file() for argument in arguments):
        given.append(str(corpus))
    atheris.Setup(
        [sys.argv[0], *given],
        target(reader, folder),
        custom_mutator=mutator(reader, inputs),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
