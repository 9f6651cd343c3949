"""tools/prose.py sees what it is for: long sentences, also of docstrings, spelling, dead links, names that are not there."""

import sys

import pytest
import support

sys.path.insert(0, str(support.ROOT / "tools"))

import prose
import prose_names
import spelling

NAMES = prose_names.Names(support.ROOT)


def test_the_prose_is_as_it_should_be() -> None:
    assert prose.problems() == []


def test_sentences_are_those_of_paragraphs_and_lists() -> None:
    text = """# A heading is none

One sentence. Another one with `code. here`, which
goes on. torch's comes third!

- An item is one. It has two.
| a table. Is | none. At all |

```sh
no. Code.
```
"""
    found = [(s.line, s.words) for s in prose.sentences(text)]
    assert found == [(3, 2), (3, 7), (3, 3), (6, 4), (6, 3)]


def test_a_long_sentence_is_named() -> None:
    text = "Short. A" + " word" * prose.LONGEST + ".\n"
    (said,) = prose._lengths("README.md", text)
    assert said.startswith(f"README.md:1: {prose.LONGEST + 1} words")
    assert list(prose._lengths("README.md", "word, " * prose.LONGEST)) != []
    page = ("A" + " word" * prose.P90 + ". A short one. ") * 10
    (said,) = prose._lengths("README.md", page)
    assert "a tenth of the sentences" in said


MODULE = '''"""A module. Two sentences here."""

def public(x):
    """One sentence, over
    two lines.

    Args:
      x: [t, n] with rows or [n] with !rows,
        T: rows. What goes on is
        a sentence as well.
      a, b: two of them.

    Returns:
        The result. It has more.

    Example:
      >>> public(1)  # No. Prose.

    A last one.

    >>> public(2)
    """
    def nested():
        """Not looked at."""

def _private():
    """Not looked at."""

class Public:
    def method(self):
        """Of a class."""
'''


def test_sentences_of_docstrings_are_those_of_what_is_public() -> None:
    of_functions = [(4, 5), (8, 1), (8, 8), (11, 3), (14, 2), (14, 3), (19, 3), (31, 3)]
    found = prose.docstring_sentences(MODULE, "_module.py")
    assert [(s.line, s.words) for s in found] == of_functions
    found = prose.docstring_sentences(MODULE, "module.py")
    assert [(s.line, s.words) for s in found] == [(1, 2), (1, 3), *of_functions]


def test_a_long_sentence_of_a_docstring_is_named() -> None:
    source = f'"""Short. A{" word" * prose.LONGEST}."""'
    (said,) = prose._long("a.py", prose.docstring_sentences(source, "a.py"))
    assert said.startswith(f"a.py:1: {prose.LONGEST + 1} words")


def test_wide_lines_are_named() -> None:
    wide = "word " * 40
    assert len(list(prose._widths("README.md", wide))) == 1
    assert list(prose._widths("README.md", "| " + wide)) == []


@pytest.mark.parametrize(
    ("british", "american"),
    [
        ("quantised", "quantized"),
        ("NORMALISATION", "NORMALIZATION"),
        ("Neighbours", "Neighbors"),
        ("unoptimised_path", "unoptimized_path"),
        ("centred", "centered"),
    ],
)
def test_british_words_are_respelled(british: str, american: str) -> None:
    assert spelling.american(british) == american
    assert [row[1:] for row in spelling.british(f"a {british} b")] == [(british, american)]


def test_words_that_look_british_stay() -> None:
    text = "a specialist, optimistic quantiles, tokenism, four, hours, advise, promise, otherwise"
    assert spelling.american(text) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`make dmeo`", "make dmeo: there is no such target"),
        ("```sh\nmake demo test nothing\n```", "make nothing: there is no such target"),
        ("`intarsia generat`", "intarsia generat: there is no such command"),
        ("`intarsia generate --prmpt x`", "intarsia generate has no --prmpt"),
        ("`intarsia.jax.rms_nrom(x)`", "intarsia.jax.rms_nrom does not exist"),
        ("`intarsia.nothing.at_all`", "intarsia.nothing.at_all does not exist"),
        ("`src/ops/no_op/no_op.h`", "src/ops/no_op/no_op.h does not exist"),
        ("`INTARSIA_CHEK=1`", "nothing reads INTARSIA_CHEK"),
    ],
)
def test_unknown_names_are_named(text: str, said: str) -> None:
    (found,) = NAMES.unknown("README.md", text)
    assert found.endswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "`make demo MODEL=gemma3`, make it so",
        "`intarsia generate --prompt x`, `intarsia ops`",
        "`intarsia.jax.rms_norm`, `intarsia.rms_norm`, `intarsia.xla_ops.register_ops()`",
        "`src/ops/<op>/`, `tests/data/cuda_budgets.json`, `build/site`, `INTARSIA_CHECK=1`",
        "```python\nintarsia.nothing\n```",
    ],
)
def test_known_names_are_not(text: str) -> None:
    assert list(NAMES.unknown("README.md", text)) == []


def test_dead_links_are_named() -> None:
    text = "[a](docs/no.md) [b](docs/jax.md#no-such-heading) [c](docs/jax.md#grad) [d](https://x)"
    found = list(NAMES.dead_links("README.md", text))
    assert found == [
        "README.md:1: links to docs/no.md, which does not exist",
        "README.md:1: links to docs/jax.md#no-such-heading, but jax.md has no such heading",
    ]


def test_words_of_an_older_revision_can_be_told(capsys) -> None:
    prose.words(None)
    said = capsys.readouterr().out
    assert "all of these" in said and "public docstrings" in said
