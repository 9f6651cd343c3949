"""The tokenizer that a GGUF file describes, built with the `tokenizers` library."""

from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

# How the kinds of GGUF's tokenizer.ggml.pre cut text into words, which merges never cross.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# OpenAI's o200k_base ends a word before a capital, and keeps contractions with it.
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}{any}{_SMALL}{some}{_CONTRACTIONS}?"
    for any, some in ("*+", "+*")
)
_WORD_PATTERNS = {
    "gpt-4o": _CASED_WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": _WORDS.format(digits=r"\p{N}{1,3}"),
    "qwen2": _WORDS.format(digits=r"\p{N}"),
}
_GPT2_KINDS = ("default", "gpt-2")

# Values of tokenizer.ggml.token_type.
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's.

Get = Callable[..., Any]
"""Returns the value of a key tokenizer.ggml.<key>, or the default; without one, raises ValueError."""


def build_tokenizer(get: Get) -> tokenizers.Tokenizer:
    """Builds the tokenizer; it adds no token of its own accord, bos included.

    Raises:
        ValueError: A kind of tokenizer that is not supported.
    """
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if (kind := get("model")) not in builders:
        expected = " or ".join(map(repr, builders))
        raise ValueError(f"tokenizer: tokenizer.ggml.model is {kind!r}, expected {expected}")
    tokens = get("tokens")
    types = get("token_type", [_NORMAL] * len(tokens))
    backend = builders[kind](get, tokens, types)
    for special, wanted in ((True, _CONTROL), (False, _USER_DEFINED)):
        backend.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, kind in zip(tokens, types, strict=True)
                if kind == wanted
            ]
        )
    return backend


def _byte_level(get: Get, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """BPE over bytes written as characters, with its merges in the file: GPT-2, Llama 3, Qwen2, gpt-oss."""
    del types
    pre = get("pre", "default")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in get("merges")],
            # Llama 3's vocabulary holds words that its merges do not reach.
            ignore_merges=pre == "llama-bpe",
        )
    )
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(get: Get, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE over characters, bytes where it has no character: Llama 2, Gemma.

    The file has a score for each piece in place of merges: of all neighbors that form a piece,
    those of the highest score are joined first. So a piece's score ranks all merges that form it.
    """
    scores = {
        token: score
        for token, score, kind in zip(tokens, get("scores"), types, strict=True)
        if kind == _NORMAL
    }
    merges = [
        (token[:i], token[i:])
        for token in sorted(scores, key=scores.__getitem__, reverse=True)
        for i in range(1, len(token))
        if token[:i] in scores and token[i:] in scores
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            unk_token=tokens[get("unknown_token_id", 0)],
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    to_pieces = [normalizers.Replace(" ", _SPACE)]
    to_text = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if get("add_space_prefix", True):  # Llama 2's, not Gemma's: every text begins with a space.
        to_pieces.insert(0, normalizers.Prepend(_SPACE))
        to_text.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(to_pieces)
    backend.decoder = decoders.Sequence(to_text)
    return backend


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    if kind in _GPT2_KINDS:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind not in _WORD_PATTERNS:
        expected = ", ".join((*_GPT2_KINDS, "smollm", *_WORD_PATTERNS))
        raise ValueError(f"tokenizer: tokenizer.ggml.pre is {kind!r}, expected one of {expected}")
    words = pre_tokenizers.Split(Regex(_WORD_PATTERNS[kind]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, to_bytes])
