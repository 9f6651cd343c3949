"""Text to tokens and back: tokenizer.json, or the vocabulary and merges inside a GGUF file."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

# How the kinds of GGUF's tokenizer.ggml.pre cut text into words, which merges never cross.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORD_PATTERNS = {
    "llama-bpe": _WORDS.format(digits=r"\p{N}{1,3}"),
    "qwen2": _WORDS.format(digits=r"\p{N}"),
}
_GPT2_KINDS = ("default", "gpt-2")

# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A tokenizer with the chat template of its model.

    Attributes:
        backend: The `tokenizers.Tokenizer` that does the work.
        chat_template: Jinja source, or None if the model has none.
        special_tokens: `bos_token` and `eos_token` as the template may name them.
        add_bos: Whether `encode` puts bos first by itself (a GGUF file says so by a flag).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        add_bos: bool = False,
    ) -> None:
        self.backend = backend
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self.add_bos = add_bos

    @classmethod
    def from_path(cls, path: str | Path) -> "Tokenizer":
        """Reads the tokenizer of a model: a .gguf file or a Hugging Face directory."""
        path = Path(path)
        return _from_directory(path) if path.is_dir() else _from_gguf(path)

    def encode(self, text: str) -> list[int]:
        """Turns plain text into tokens, with the special tokens that the model wants around it."""
        ids = self.backend.encode(text).ids
        if self.add_bos and "bos_token" in self.special_tokens:
            bos = self.backend.token_to_id(self.special_tokens["bos_token"])
            ids = ids if ids[:1] == [bos] else [bos, *ids]
        return ids

    def encode_chat(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Turns a user's prompt, or a list of messages, into tokens by the chat template."""
        return self.backend.encode(self.render_chat(prompt), add_special_tokens=False).ids

    def render_chat(self, prompt: str | Sequence[Mapping[str, str]]) -> str:
        """Returns the text that the chat template makes of a prompt or a list of messages."""
        if self.chat_template is None:
            raise ValueError("tokenizer: the model has no chat template; encode the prompt as text")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        template = _chat_environment().from_string(self.chat_template)
        return template.render(messages=messages, add_generation_prompt=True, **self.special_tokens)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Turns tokens into text."""
        return self.backend.decode(list(tokens), skip_special_tokens=skip_special)

    def stream(self) -> "TextStream":
        """Starts decoding a completion token by token."""
        return TextStream(self)


class TextStream:
    """Decodes one token at a time and never gives out half a character.

    Decoding is not a sum over tokens: a character's bytes may be spread over several, and some
    decoders treat a text's first token apart. So each step decodes the few tokens since the last
    clean cut, with and without the new one, and gives out the difference once it is complete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._begin = 0  # Tokens before this are not needed as context any more.
        self._given = 0  # The text of tokens before this has been given out.

    def push(self, token: int) -> str:
        """Adds a token; returns the text that it completes, often one word, sometimes nothing."""
        self._tokens.append(token)
        text = self._pending()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._begin, self._given = self._given, len(self._tokens)
        return text

    def finish(self) -> str:
        """Returns what is left at the end: only a character that was never completed."""
        text = self._pending()
        self._begin = self._given = len(self._tokens)
        return text

    def _pending(self) -> str:
        given = self._tokenizer.decode(self._tokens[self._begin : self._given])
        return self._tokenizer.decode(self._tokens[self._begin :])[len(given) :]


def _from_directory(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.exists():
        raise FileNotFoundError(f"tokenizer: {path} has no tokenizer.json")
    config_file, template_file = path / "tokenizer_config.json", path / "chat_template.jinja"
    config = json.loads(config_file.read_text()) if config_file.exists() else {}
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if template_file.exists():
        template = template_file.read_text()
    special = {}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        if token is not None:
            special[name] = token if isinstance(token, str) else token["content"]
    # The file's own post-processor adds bos, hence no add_bos here.
    backend = tokenizers.Tokenizer.from_file(str(file))
    return Tokenizer(backend, chat_template=template, special_tokens=special)


def _from_gguf(path: Path) -> Tokenizer:
    from intarsia.models.gguf_file import open_gguf

    fields = open_gguf(path).fields

    def get(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    if (kind := get("tokenizer.ggml.model")) != "gpt2":
        raise ValueError(f"tokenizer: tokenizer.ggml.model is {kind!r}, expected 'gpt2'")
    tokens = get("tokenizer.ggml.tokens")
    pre = get("tokenizer.ggml.pre", "default")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges")],
            # Llama 3's vocabulary holds words that its merges do not reach.
            ignore_merges=pre == "llama-bpe",
        )
    )
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    types = get("tokenizer.ggml.token_type", [])
    for special, wanted in ((True, _CONTROL), (False, _USER_DEFINED)):
        backend.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, kind in zip(tokens, types, strict=False)
                if kind == wanted
            ]
        )
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
    ids = {name: get(f"tokenizer.ggml.{key}") for name, key in names.items()}
    return Tokenizer(
        backend,
        chat_template=get("tokenizer.chat_template"),
        special_tokens={name: tokens[i] for name, i in ids.items() if i is not None},
        add_bos=get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"),
    )


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


def _chat_environment() -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    # The settings and functions that transformers gives to templates.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
