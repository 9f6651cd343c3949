"""tools/site_hooks.py: links of the pages as the site has them. `make docs` builds the site, and fails at a dead link."""

import sys

import pytest
import support

pytest.importorskip("mkdocs", reason="make docs installs it")
sys.path.insert(0, str(support.ROOT / "tools"))

import site_hooks


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("docs/ops.md", "[a](../tests/wire.py)", "[a](source/tests/wire.py.md)"),
        ("docs/start/cpp.md", "[a](../../CONTRIBUTING.md#x)", "[a](../contributing.md#x)"),
        ("docs/start/jax.md", "[a](../jax.md#grad)", "[a](../jax.md#grad)"),
        ("README.md", "[a](docs/ops.md) [b](LICENSE)", "[a](ops.md) [b](source/LICENSE.md)"),
        ("README.md", "[a](https://docs.jax.dev/x) [b](#ops)", None),
        ("docs/jax.md", "```python\nx[0](../README.md)\n```\n", None),
        ("docs/design.md", "So:\n- a\n  b\n- c\n", "So:\n\n- a\n  b\n- c\n"),
        ("docs/design.md", "1. a\n2. b\n\n  c\n- d\n", "1. a\n2. b\n\n  c\n\n- d\n"),
        ("docs/design.md", "```sh\na\n- b\n```\n", None),
    ],
)
def test_links_and_lists(source: str, text: str, expected: str | None) -> None:
    assert site_hooks.rewritten(source, text) == (text if expected is None else expected)


def test_a_link_to_nothing_is_a_warning(caplog) -> None:
    site_hooks.rewritten("docs/ops.md", "[a](../tests/no_such_file.py)")
    assert "docs/ops.md links to ../tests/no_such_file.py, which is no file" in caplog.text


def test_every_source_that_a_page_links_to_is_shown() -> None:
    text = (support.ROOT / "docs" / "ops.md").read_text()
    shown = site_hooks.linked("docs/ops.md", text)
    assert "tests/test_exchange.py" in shown and "src/ops/rms_norm/rms_norm.py" in shown
