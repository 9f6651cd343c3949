"""Chat templates come with a model: what they may not do, and how much of it."""

import pytest
from intarsia.models import chat_template

MESSAGES = [{"role": "user", "content": "hello"}]
DOUBLING = (
    "{%% set ns = namespace(s=%s) %%}{%% for i in range(99) %%}{%% set ns.s = %s %%}{%% endfor %%}"
)


@pytest.fixture(autouse=True)
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 0.3)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) if range(9999)|list|length < 0 %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set l = ['a'] * 99999 %}{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}",
    ],
)
def test_time_is_bounded(source: str) -> None:
    with pytest.raises(ValueError, match=r"^chat template: it takes more than 0.3 s$"):
        chat_template.render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{{ [1] * 10**9 }}",
        DOUBLING % ("'aaaaaaaa'", "ns.s ~ ns.s"),
        DOUBLING % ("'aaaaaaaa'", "ns.s + ns.s"),
        DOUBLING % ("['aaaaaaaa']", "[ns.s, ns.s]") + "{{ ns.s }}",
        "{% for i in range(9999) %}{{ 'a' * 100000 }}{% endfor %}",
        "{% set x %}{% for i in range(999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
        "{% macro m() %}{% for i in range(999) %}{{ 'a' * 100000 }}{% endfor %}{% endmacro %}{{ m() }}",
        "{{ 'a'.replace('', 'b' * 10000000) }}",
        "{{ 9 ** 999999999 }}",
    ],
)  # fmt: skip
def test_what_it_makes_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 20.0)
    with pytest.raises(ValueError, match=r"^chat template: it makes more than 16777216 char"):
        chat_template.render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a'|center(999999999) }}", r"it takes 1e\+09 for an argument"),
        ("{{ 'x'.ljust(999999999) }}", r"it takes 1e\+09 for an argument"),
        ("{{ '%*d' % (999999999, 1) }}", r"it takes 1e\+09 for an argument"),
        ("{{ '%0999999999d' % 1 }}", "a width of millions"),
        ("{{ '%0999999999d'|format(1) }}", "a width of millions"),
        ("{{ '{:>999999999}'.format(1) }}", "a width of millions"),
        ("{{ range(999999) }}", "Range too big"),
        ("{{ lipsum(n=100000) }}", "'lipsum' is undefined"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ ''.__class__.__mro__ }}", "attribute '__class__' of 'str' object is unsafe"),
        ("{% if %}", "Expected an expression"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('no system role') }}", "no system role"),
    ],
)
def test_what_is_refused(source: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^chat template: .*{text}"):
        chat_template.render(source)


def test_what_templates_use() -> None:
    source = (
        "{%- macro turn(m) %}<{{ m.role }}>{{ m['content']|trim }}{% endmacro -%}"
        "{% set ns = namespace(found=false) %}"
        "{%- for m in messages if m.role != 'tool' %}{{ turn(m) }}{{ loop.index ~ ';' }}"
        "{% if loop.last %}{% set ns.found = true %}{% break %}{% endif %}{% endfor -%}"
        "{% set tail %}{{ 'a' * 3 }}{% endset %}{{ tail|upper ~ ns.found }}"
        "{{ {'b': [1, 'ü']}|tojson(indent=2) }}{{ '%s-%03d' % ('x', 7) }}{{ '{:>4}'.format('y') }}"
        "{{ strftime_now('%Y')|length }}{% for k, v in {'z': 1}|items %}{{ k }}{% endfor %}"
    )
    assert chat_template.render(source, messages=MESSAGES) == (
        '<user>hello1;AAATrue{\n  "b": [\n    1,\n    "ü"\n  ]\n}x-007   y4z'
    )
