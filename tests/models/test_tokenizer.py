"""Tokenizers from GGUF and from tokenizer.json, chat templates, and streaming text."""

import json

import pytest
from intarsia.models import Tokenizer

MULTI_BYTE = "naïve café, 日本語のテキスト, Ελληνικά, 👩‍👩‍👧 and 🧵🪡, done."


def test_chat_prompts_are_those_of_transformers(smollm2_tokenizer, recorded):
    for sequence in recorded:
        assert smollm2_tokenizer.render_chat(sequence["prompt"]) == sequence["chat_text"]
        assert smollm2_tokenizer.encode_chat(sequence["prompt"]) == sequence["prompt_ids"]


def test_decoding_is_that_of_transformers(smollm2_tokenizer, recorded):
    for sequence in recorded:
        assert smollm2_tokenizer.decode(sequence["tokens"]) == sequence["text"]


def test_text_survives_encoding_and_decoding(smollm2_tokenizer):
    text = MULTI_BYTE + "  two  spaces\n\n\ttab 12345 it's"
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


def test_special_tokens_are_one_token_and_hidden_in_text(smollm2_tokenizer):
    tokens = smollm2_tokenizer.encode("<|im_start|>user")
    assert tokens[0] == 1
    assert smollm2_tokenizer.decode(tokens) == "user"
    assert smollm2_tokenizer.decode(tokens, skip_special=False) == "<|im_start|>user"


def test_streamed_text_is_whole_characters_and_adds_up(smollm2_tokenizer):
    tokens = smollm2_tokenizer.encode(MULTI_BYTE)
    stream = smollm2_tokenizer.stream()
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == MULTI_BYTE
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert "" in pieces  # Some token did end inside a character, or this tests nothing.
    assert sum(piece != "" for piece in pieces) > len(tokens) // 2  # Text is not held back.


def test_stream_that_ends_inside_a_character_shows_it_at_the_end(smollm2_tokenizer):
    first_byte = smollm2_tokenizer.encode("日")[:1]
    stream = smollm2_tokenizer.stream()
    assert [stream.push(token) for token in first_byte] == [""]
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"
    assert stream.finish() == ""


def test_stream_goes_on_after_bytes_that_are_no_text(smollm2_tokenizer):
    broken = smollm2_tokenizer.encode("日")[:1] + smollm2_tokenizer.encode(" and on")
    stream = smollm2_tokenizer.stream()
    text = "".join(stream.push(token) for token in broken) + stream.finish()
    assert text == "\N{REPLACEMENT CHARACTER} and on"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["the", "Ġthe", "1", "2", "3"]),
        ("qwen2", ["the", "Ġthe", "1", "2", "3"]),
        ("llama-bpe", ["the", "Ġthe", "123"]),
        ("gpt-4o", ["the", "Ġthe", "123"]),
        ("default", ["the", "Ġthe", "123"]),
    ],
)
def test_pre_tokenizers_cut_digits_as_their_models_do(write_gguf, tiny_weights, pre, pieces):
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights, pre=pre, add_bos=False))
    assert tokenizer.backend.encode("the the123").tokens == pieces


def test_gpt_4o_cuts_words_before_capitals(write_gguf, tiny_weights):
    backend = Tokenizer.from_path(write_gguf(tiny_weights, pre="gpt-4o")).backend
    cut = backend.pre_tokenizer.pre_tokenize_str("HelloWorld don't ABCd 12345//\n  x")
    pieces = ["Hello", "World", "Ġdon't", "ĠABCd", "Ġ", "123", "45", "//Ċ", "Ġ", "Ġx"]
    assert [piece for piece, _ in cut] == pieces


def test_bos_comes_first_where_the_file_says_so(write_gguf, tiny_weights):
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights, add_bos=True))
    assert tokenizer.encode("the")[0] == 0
    assert tokenizer.encode("<|begin|>the") == tokenizer.encode("the")
    assert Tokenizer.from_path(write_gguf(tiny_weights, pre="qwen2")).encode("the")[0] != 0


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ tools is none }} {{ documents is none }}", "True True"),
        ("{% if tools is not none %}wrong{% endif %}{{ unk_token }}{{ pad_token }}", "<unk><pad>"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}c", "abc"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
        ("{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}", "1"),
    ],
)  # fmt: skip
def test_templates_have_what_transformers_gives_them(
    write_gguf, tiny_weights, tmp_path, template, text
):
    Tokenizer.from_path(write_gguf(tiny_weights)).backend.save(str(tmp_path / "tokenizer.json"))
    said = {"pad_token": "<pad>", "unk_token": {"content": "<unk>"}, "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    assert Tokenizer.from_path(tmp_path).render_chat("b") == text


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja", "gguf"])
def test_a_template_that_fails_names_its_file(write_gguf, tiny_weights, tmp_path, name):
    wrong = "{{ raise_exception('no') }}"
    file = write_gguf(tiny_weights, chat_template=wrong)
    path = file
    if name != "gguf":
        Tokenizer.from_path(file).backend.save(str(tmp_path / "tokenizer.json"))
        path, file = tmp_path, tmp_path / name
        file.write_text(wrong if name.endswith("jinja") else json.dumps({"chat_template": wrong}))
    with pytest.raises(ValueError, match=f"^{file}: chat template: no$"):
        Tokenizer.from_path(path).render_chat("hi")


def test_chat_template_of_a_conversation(write_gguf, tiny_weights):
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights))
    conversation = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "?"},
    ]
    text = "user: hi<|end|>assistant: ho<|end|>user: ?<|end|>assistant: "
    assert tokenizer.render_chat(conversation) == text
    assert tokenizer.encode_chat(conversation).count(1) == 3


def test_directory_gives_the_same_tokens_as_gguf(write_gguf, tiny_weights, tmp_path):
    of_gguf = Tokenizer.from_path(write_gguf(tiny_weights))
    directory = tmp_path / "hf"
    directory.mkdir()
    # What trainers leave in the file is not for prompts, as in transformers.
    of_gguf.backend.enable_truncation(3)
    of_gguf.backend.enable_padding(length=40)
    of_gguf.backend.save(str(directory / "tokenizer.json"))
    of_gguf.backend.no_truncation()
    of_gguf.backend.no_padding()
    settings = {
        "bos_token": {"content": "<|begin|>"},
        "eos_token": "<|end|>",
        "chat_template": [{"name": "default", "template": of_gguf.chat_template}],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    of_directory = Tokenizer.from_path(directory)
    assert of_directory.encode(MULTI_BYTE) == of_gguf.encode(MULTI_BYTE)
    assert of_directory.encode_chat("the") == of_gguf.encode_chat("the")
    assert of_directory.special_tokens == of_gguf.special_tokens


# From the library sentencepiece, with a model made of the same pieces, scores and types.
SENTENCEPIECE_IDS = {
    MULTI_BYTE: (
        "1789 238527 560 33443 236764 33375 238582 236945 95830 236764 23883 109959 42220 236764 "
        "236743 243767 237243 243767 237243 244814 532 236743 250769 478 397 408 399 236764 3028 "
        "236761"
    ),
    "  two  spaces\n\n\ttab 12345 it's": (
        "138 13498 138 35220 108 255968 4823 236743 236770 236778 236800 236812 236810 625 236789 "
        "236751"
    ),
    "def f(x):\n    return  x**2  # ok\n": (
        "2063 517 236769 236781 1473 107 140 2060 138 236781 1018 236778 138 236865 7546 107"
    ),
    "<b>bold</b> a<br>b": "200 15640 209 496 236820 1457 236813 236763",
    "aaaaaaaaaaaaaaa abababab": "128820 50354 72004 763 111507 596",
}


@pytest.mark.full  # reading Gemma's 262,144 pieces takes 8 s
@pytest.mark.parametrize("text", SENTENCEPIECE_IDS)
def test_pieces_are_those_of_sentencepiece(gemma3_tokenizer, text):
    bos, *ids = gemma3_tokenizer.encode(text)
    assert bos == 2
    assert ids == [int(token) for token in SENTENCEPIECE_IDS[text].split()]
    assert gemma3_tokenizer.decode([bos, *ids]) == text


@pytest.mark.full
def test_gemma_texts_are_those_of_transformers(gemma3_tokenizer, recorded_gemma3):
    for sequence in recorded_gemma3:
        assert gemma3_tokenizer.encode(sequence["prompt"]) == sequence["prompt_ids"]
        assert gemma3_tokenizer.decode(sequence["tokens"]) == sequence["text"]
    assert gemma3_tokenizer.chat_template is None


@pytest.fixture(params=["tiny", pytest.param("gemma3", marks=pytest.mark.full)])
def of_pieces(request, write_gguf, tiny_weights) -> Tokenizer:
    """A tokenizer of SentencePiece's pieces."""
    if request.param == "gemma3":
        return request.getfixturevalue("gemma3_tokenizer")
    settings = {"tokenizer": "llama", "pre": "default", "add_space_prefix": False}
    return Tokenizer.from_path(write_gguf(tiny_weights, **settings))


def test_streamed_bytes_of_sentencepiece_are_whole_characters(of_pieces):
    stream = of_pieces.stream()
    pieces = [stream.push(token) for token in of_pieces.encode(MULTI_BYTE)]
    assert "".join(pieces) + stream.finish() == MULTI_BYTE
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert pieces.count("") >= 3  # The last emoji but one token is bytes.


# The turns of Gemma's own template, whose full form also folds a system message into the first.
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + "
    "('model' if m['role'] == 'assistant' else m['role']) + '\\n' + m['content'] | trim + "
    "'<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


def test_gemma_chat_has_one_bos_and_its_turns_as_single_tokens(write_gguf, gemma_weights):
    path = write_gguf(
        gemma_weights,
        architecture="gemma3",
        tokenizer="llama",
        pre="default",
        add_space_prefix=False,
        chat_template=GEMMA_TEMPLATE,
    )
    tokenizer = Tokenizer.from_path(path)
    text = "<bos><start_of_turn>user\nthe  the<end_of_turn>\n<start_of_turn>model\n"
    assert tokenizer.render_chat("the  the ") == text
    tokens = [tokenizer.backend.id_to_token(i) for i in tokenizer.encode_chat("the  the ")]
    user = ["<0x75>", "<0x73>", "er"]
    model = ["<0x6D>", "o", "<0x64>", "e", "<0x6C>"]
    assert tokens == [
        *("<bos>", "<start_of_turn>", *user, "\n", "the", "  ", "the", "<end_of_turn>", "\n"),
        *("<start_of_turn>", *model, "\n"),
    ]


@pytest.mark.parametrize(("prefix", "pieces"), [(None, ["▁the", "▁the"]), (False, ["the", "▁the"])])
def test_texts_begin_with_a_space_unless_the_file_says_no(write_gguf, tiny_weights, prefix, pieces):
    settings = {"tokenizer": "llama", "pre": "default", "add_space_prefix": prefix}
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights, **settings))
    tokens = tokenizer.encode("the the")
    assert [tokenizer.backend.id_to_token(i) for i in tokens] == ["<bos>", *pieces]
    assert tokenizer.decode(tokens) == "the the"


def test_pieces_are_joined_by_score(write_gguf, tiny_weights):
    settings = {"tokenizer": "llama", "pre": "default", "add_space_prefix": False}
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights, **settings))
    # "th" comes before "▁t", which so never gets its t; "the" before "er".
    assert tokenizer.backend.encode(" th ther 日é").tokens == [
        *("▁", "th", "▁the", "r", "▁", "日", "<0xC3>", "<0xA9>")
    ]


def test_half_a_character_is_the_text_s_fault(write_gguf, tiny_weights):
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights))
    for encode in (tokenizer.encode, tokenizer.encode_chat):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            encode("the \udcff")


def test_errors_name_what_was_got_and_expected(write_gguf, tiny_weights, tmp_path):
    with pytest.raises(ValueError, match=r"pre is 'odd', expected one of default, .*llama-bpe"):
        Tokenizer.from_path(write_gguf(tiny_weights, pre="odd"))
    with pytest.raises(ValueError, match=r"model is 'bert', expected 'gpt2' or 'llama'"):
        Tokenizer.from_path(write_gguf(tiny_weights, tokenizer="bert", pre="default"))
    with pytest.raises(ValueError, match="no chat template"):
        path = write_gguf(tiny_weights, pre="qwen2", chat_template=None)
        Tokenizer.from_path(path).encode_chat("hi")
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        Tokenizer.from_path(tmp_path)
