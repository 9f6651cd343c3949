"""The op reference: each op has a section with its signature and an example, and the examples run."""

import ast
import doctest
import functools
import inspect
import re

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import pytest
import support

PAGES = sorted((support.ROOT / "docs" / "ops").glob("*.md"))


@functools.cache
def sections() -> dict[str, str]:
    """The section of each op, from the page of its family."""
    found = {}
    for page in PAGES:
        for section in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
            name = section.splitlines()[0].strip()
            assert name not in found
            found[name] = section
    return found


def example(op: str) -> str:
    (block,) = re.findall(r"^```pycon\n(.*?)^```", sections()[op], re.S | re.M)
    return block


def test_every_op_has_a_section() -> None:
    assert sorted(sections()) == support.listed_ops()
    index = (support.ROOT / "docs" / "ops.md").read_text()
    for op in support.listed_ops():
        assert f'<a id="{op}"></a>' in index  # what links of earlier versions name


@pytest.mark.parametrize("op", support.listed_ops())
def test_the_example_runs(op: str) -> None:
    """As on the page, imports and all, with the results that it shows."""
    test = doctest.DocTestParser().get_doctest(example(op), {}, op, None, None)
    assert any(case.want for case in test.examples), "an example shows what comes out"
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert failed == 0, "".join(said)


@pytest.mark.parametrize("op", support.listed_ops())
def test_the_signature_comes_first(op: str) -> None:
    section = sections()[op]
    assert section.index("```python\nintarsia.jax." + op + "(") < section.index("```pycon")
    shown = re.search(r"```python\nintarsia\.jax\.\w+\((.*?)\) -> ", section, re.S)[1]
    function = getattr(ij, op)
    expected = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in expected:
            expected.append("*")
        expected.append(parameter.name)
    parsed = ast.parse(f"def f({shown.strip().rstrip(',')}): ...").body[0].args
    names = [a.arg for a in parsed.args] + ["*"] * bool(parsed.kwonlyargs)
    assert names + [a.arg for a in parsed.kwonlyargs] == expected


@pytest.mark.parametrize("op", support.listed_ops())
def test_docstrings_have_the_same_example(op: str) -> None:
    lines = example(op).splitlines()[2:]  # without imports
    doc = inspect.getdoc(getattr(ij, op))
    shown = doc.partition("\nExample:\n")[2]
    assert [line[2:] for line in shown.splitlines()] == lines


WIRE_ALONE = [
    op
    for op in support.listed_ops()
    if getattr(ij, op) is not getattr(ij.wire, op) and op not in support.NOT_CALLED_ALONE
]


@pytest.mark.parametrize("op", WIRE_ALONE)
def test_examples_of_the_wire_run(op: str) -> None:
    """Of functions that have another signature in intarsia.jax."""
    doc = inspect.getdoc(getattr(ij.wire, op))
    given = {"jax": jax, "jnp": jnp, "wire": ij.wire}
    test = doctest.DocTestParser().get_doctest(
        doc.partition("\nExample:\n")[2], given, op, None, None
    )
    assert f"wire.{op}(" in doc and test.examples
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert failed == 0, "".join(said)
