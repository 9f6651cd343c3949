"""Text to tokens and back: by tokenizer.json, or by the vocabulary inside a GGUF file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from intarsia.models.files import FileError, read_json, reading

# As templates may name them (transformers' SPECIAL_TOKENS_ATTRIBUTES).
_SPECIAL_TOKENS = tuple(
    f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A tokenizer with the chat template of its model.

    Attributes:
        backend: The `tokenizers.Tokenizer` that does the work.
        chat_template: Jinja source, or None if the model has none.
        special_tokens: `bos_token`, `eos_token` and others as the template may name them.
        add_bos: Whether `encode` puts bos first by itself (a GGUF file says so by a flag).
        source: The file that it was read from. Some files can be read, but not be used for every text;
            the error then names the file.
        template_source: The file that the chat template was read from.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        add_bos: bool = False,
        source: Path | str = "tokenizer",
        template_source: Path | str | None = None,
    ) -> None:
        self.backend = backend
        self.source = source
        self.template_source = source if template_source is None else template_source
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self.add_bos = add_bos

    @classmethod
    def from_path(cls, path: str | Path) -> "Tokenizer":
        """Reads the tokenizer of a model: a .gguf file or a Hugging Face directory.

        Raises:
            ValueError: A file is broken, or of a kind that is not supported.
            FileNotFoundError: The path holds no tokenizer.
        """
        path = Path(path)
        return _from_directory(path) if path.is_dir() else _from_gguf(path)

    def encode(self, text: str) -> list[int]:
        """Turns plain text into tokens, with the special tokens that the model wants around it.

        Raises:
            ValueError: The text has half a pair of surrogates, so it is no UTF-8.
        """
        text.encode()
        with reading(self.source):
            ids = self.backend.encode(text).ids
        if self.add_bos and "bos_token" in self.special_tokens:
            bos = self.backend.token_to_id(self.special_tokens["bos_token"])
            ids = ids if ids[:1] == [bos] else [bos, *ids]
        return ids

    def encode_chat(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Turns a user's prompt, or a list of messages, into tokens by the chat template."""
        text = self.render_chat(prompt)
        text.encode()  # or it raises, where tokenizers would not say what is wrong
        with reading(self.source):
            return self.backend.encode(text, add_special_tokens=False).ids

    def render_chat(self, prompt: str | Sequence[Mapping[str, str]]) -> str:
        """Returns the text that the chat template makes of a prompt or a list of messages.

        Raises:
            ValueError: There is no template, or it is wrong, refuses the messages, or takes more
                time or memory than any template needs.
        """
        if self.chat_template is None:
            raise ValueError("tokenizer: the model has no chat template; encode the prompt as text")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        from intarsia.models import chat_template

        # None is what transformers gives for what it was not given; a template can tell it from undefined.
        given = {"messages": messages, "tools": None, "documents": None}
        with reading(self.template_source):
            return chat_template.render(
                self.chat_template, **given, add_generation_prompt=True, **self.special_tokens
            )

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Turns tokens into text."""
        with reading(self.source):
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
    config = read_json(config_file)
    template = config.get("chat_template")
    if isinstance(template, list):
        with reading(config_file, "chat_template"):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise FileError(f"{config_file}: chat_template is no text, and no list of named texts")
    if template_file.exists():
        with reading(template_file):
            template = template_file.read_text(encoding="utf-8")
    special = {}
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            special[name] = text
        elif token is not None:
            raise FileError(f"{config_file}: {name} is {token!r:.60}, expected a text")
    with reading(file):
        # The file's own post-processor adds bos, hence no add_bos here.
        backend = tokenizers.Tokenizer.from_file(str(file))
        # Its training's, which transformers ignores, too, unless it is asked.
        backend.no_truncation()
        backend.no_padding()
    template_source = template_file if template_file.exists() else config_file
    return Tokenizer(
        backend,
        chat_template=template,
        special_tokens=special,
        source=file,
        template_source=template_source,
    )


def _from_gguf(path: Path) -> Tokenizer:
    from intarsia.models.gguf_file import open_gguf
    from intarsia.models.gguf_tokenizer import build_tokenizer

    fields = open_gguf(path).fields
    with reading(path):
        return _of_fields(path, fields, build_tokenizer)


def _of_fields(
    path: Path, fields: Mapping[str, Any], build_tokenizer: Callable[..., Any]
) -> Tokenizer:
    """The tokenizer that GGUF's keys describe."""

    def get(key: str, *default: Any) -> Any:
        name = f"tokenizer.ggml.{key}"
        if name not in fields and not default:
            raise ValueError(f"tokenizer: GGUF key {name} is missing")
        return fields[name].contents() if name in fields else default[0]

    for name in ("tokens", "token_type", "merges", "scores"):
        if not isinstance(get(name, []), list):
            raise ValueError(f"tokenizer.ggml.{name} is no array")

    backend = build_tokenizer(get)
    ids = {name: get(f"{name}_id", None) for name in ("bos_token", "eos_token")}
    template = fields.get("tokenizer.chat_template")
    template = None if template is None else template.contents()
    if template is not None and not isinstance(template, str):
        raise ValueError("tokenizer.chat_template is no text")
    special = {name: None if i is None else backend.id_to_token(i) for name, i in ids.items()}
    # Where the file does not say it, the kinds of tokenizers that put bos first (llama.cpp's rule).
    adds_bos = get("model") == "llama" or get("pre", None) == "llama-bpe"
    return Tokenizer(
        backend,
        chat_template=template,
        special_tokens={name: token for name, token in special.items() if token is not None},
        add_bos=get("add_bos_token", adds_bos),
        source=path,
    )
