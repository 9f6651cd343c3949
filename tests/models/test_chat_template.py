"""Chat templates come with a model: what they may not do, and how much of it."""

import inspect
import json
import subprocess
import sys
import time

import jinja2.filters
import pytest
from intarsia.models import chat_template
from intarsia.models.template_bounds import FILTERS

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
def test_time_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_MADE", 1 << 40)  # a fast CPU comes there first
    with pytest.raises(ValueError, match=r"^chat template: it takes more than 0.3 s$"):
        chat_template.render(source)


_TOO_MUCH = (
    "{{ 'a' * 10**10 }}",
    "{{ [1] * 10**9 }}",
    DOUBLING % ("'aaaaaaaa'", "ns.s ~ ns.s"),
    DOUBLING % ("'aaaaaaaa'", "ns.s + ns.s"),
    DOUBLING % ("['aaaaaaaa']", "[ns.s, ns.s]") + "{{ ns.s }}",
    "{% for i in range(9999) %}{{ 'a' * 100000 }}{% endfor %}",
    "{{ 'a'.replace('', 'b' * 10000000) }}",
    # One call of each that would make 200 million characters or more.
    "{{ ('a' * 10000).replace('a', 'b' * 30000) }}",
    "{{ ('a' * 10000)|replace('a', 'b' * 30000) }}",
    "{{ ('b' * 30000).join(['a'] * 10000) }}",
    "{{ (['a'] * 10000)|join('b' * 30000) }}",
    "{{ (['a'] * 10000)|map('upper')|join('b' * 30000) }}",
    "{{ ('a' * 10000)|join('b' * 30000) }}",
    r"{{ ('\t' * 1000000).expandtabs(400) }}",
    r"{{ ('\n' * 1000000)|indent(400) }}",
    "{{ '{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}'.format('a' * 16000000) }}",
    "{{ ('{0:>999999}' * 400).format(1) }}",
    "{{ ('%999999d' * 400) % ((1,) * 400) }}",
    "{{ 'a'|center(400000000) }}",
    "{{ 'a'.ljust(400000000) }}",
    "{{ ('a' * 16000000).split('a') }}",
    "{{ ('a ' * 8000000).split() }}",
    "{{ ('\U0001f600' * 16000000)|list|length }}",
    "{{ ('<' * 16000000)|e|e|e }}",
    r"{{ ('\x01' * 16000000)|tojson }}",
    r"{{ ['\x01' * 16000000] }}",
    "{{ namespace(a='a' * 9000000, b='a' * 9000000) }}",
    "{% set s = 'a' * 16000000 %}{{ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s }}",
)
# Each value is small enough, but there are many.
_TOO_MANY = (
    "{% set x %}{% for i in range(999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
    "{% set x %}{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endset %}",
    "{% set x %}{% for i in range(999) %}{{ 'a'|center(999999) }}{% endfor %}{% endset %}",
    "{% macro m() %}{% for i in range(999) %}{{ 'a' * 100000 }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% macro m(n, s) %}{{ m(n - 1, s ~ 'a') }}{% endmacro %}{{ m(99, 'a' * 9999999) }}",
    "{% set s = 'a' * 16000000 %}" + "".join(f"{{% set s{i} = s[1:] %}}" for i in range(20)),
    "{% for i in range(99999) %}{{ (-9999999999)|tick }}{{ 'a'|center(999999)|length }}{% endfor %}",
)


_TOO_LARGE = [
    *((source, "16777216 characters") for source in _TOO_MUCH),
    *((source, "67108864 characters in all") for source in _TOO_MANY),
    ("{{ 9 ** 999999999 }}", "an integer of more than 4096 bits"),
    ("{{ (7 ** 2000000) // (3 ** 2000000) }}", "an integer of more than 4096 bits"),
    ("{{ 0x" + "f" * 2000 + " // 3 }}", "an integer of more than 4096 bits"),
]
# Renders with 128 MiB more than Python has by then. What is refused too late has a MemoryError.
_WITH_LITTLE_MEMORY = """
import json, resource, sys, time
from intarsia.models import chat_template

chat_template.MOST_SECONDS = 20.0
chat_template.render("{{ 1 }}")
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (128 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
results = []
for source in json.load(sys.stdin):
    begin, message = time.thread_time(), ""
    try:
        chat_template.render(source)
    except ValueError as error:
        message = str(error)
    results.append([message, time.thread_time() - begin])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def rendered_with_little_memory() -> list[tuple[str, float]]:
    sources = json.dumps([source for source, _ in _TOO_LARGE])
    command = [sys.executable, "-c", _WITH_LITTLE_MEMORY]
    run = subprocess.run(command, input=sources, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", range(len(_TOO_LARGE)), ids=[s[:40] for s, _ in _TOO_LARGE])
def test_what_it_makes_is_bounded(
    case: int, rendered_with_little_memory: list[tuple[str, float]]
) -> None:
    message, seconds = rendered_with_little_memory[case]
    text = _TOO_LARGE[case][1]
    assert message.removeprefix("chat template: it makes ").removeprefix("more than ") == text
    assert seconds < 5


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('a' * 16000000).strip('b' * 1000000) }}",
        "{{ ('a' * 16000000)|trim('b' * 1000000) }}",
        "{{ ('a' * 16000000).rfind('b' ~ 'a' * 1000000) }}",
        "{{ ('a' * 16000000).rsplit('b' ~ 'a' * 1000000) }}",
    ],
)
def test_a_search_of_all_pairs_is_bounded(source: str) -> None:
    begin = time.thread_time()
    with pytest.raises(ValueError, match=r"compares more than 1073741824 characters$"):
        chat_template.render(source)
    assert time.thread_time() - begin < 2


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%*d' % (999999999, 1) }}", "a width among its values"),
        ("{{ '{:{}}'.format(1, 999999999) }}", "a width among its values"),
        ("{{ '%0999999999d' % 1 }}", "a width of millions"),
        ("{{ '%0999999999d'|format(1) }}", "a width of millions"),
        ("{{ '{:>999999999}'.format(1) }}", "a width of millions"),
        ("{{ 'x'.encode() * 100000 }}", "attribute 'encode' of 'str' object is unsafe"),
        ("{{ (1).to_bytes(99) }}", "attribute 'to_bytes' of 'int' object is unsafe"),
        ("{{ 'a'.translate({97: 'b'}) }}", "attribute 'translate' of 'str' object is unsafe"),
        ("{{ ('9' * 5000)|int }}", "a number of more than 4096 digits"),
        ("{{ 1|round(99999) }}", "rounds to more than 1000 digits"),
        ("{{ [[1]]|sum(start=[]) }}", "sums what are no numbers"),
        ("{{ [[1]]|tojson(indent=99) }}", "indents by more than 16 characters"),
        ("{{ strftime_now('%c' * 999) }}", "a date by more than 256 characters"),
        ("{{ 'a'|wordwrap(1) }}", "No filter named 'wordwrap'"),
        ("{% autoescape true %}{% endautoescape %}", "it sets autoescape"),
        ("{#" + " " * 300000 + "#}", "it has 300004 characters, expected 262144 or fewer"),
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


@pytest.mark.parametrize("name", [name for name in FILTERS if name in jinja2.filters.FILTERS])
def test_a_rule_takes_its_filter_s_arguments(name: str) -> None:
    function = chat_template._Environment().filters[name]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return  # of C, with a value alone
    of_jinja = ("context", "environment", "env", "eval_ctx")
    values = [p for p in parameters if p.name not in of_jinja][1:]
    named = {p.name: 1 for p in values if p.kind is p.POSITIONAL_OR_KEYWORD}
    inspect.signature(FILTERS[name]).bind("", **named)


def test_no_filter_changes_the_messages() -> None:
    messages = [*MESSAGES]
    with pytest.raises(ValueError, match="it indents a list, expected a text"):
        chat_template.render("{{ messages|indent }}", messages=messages)
    assert messages == MESSAGES


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


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("m.content.split('l')[-1].strip('o')", ""),
        ("m.content.rsplit('l', maxsplit=1)|join('-')", "hel-o"),
        ("m.content.replace('l', 'L', 1).title()", "Hello"),
        ("m.content|trim(chars='h')|replace('l', 'L', count=1)", "eLlo"),
        ("m.content[1:3] ~ m.content[::-1]", "elolleh"),
        ("', '.join(messages|map(attribute='role'))", "user"),
        ("messages|map(attribute='content')|map('upper')|join", "HELLO"),
        ("messages|selectattr('role', 'equalto', 'user')|list|length", "1"),
        ("[1, 2.5]|sum", "3.5"),
        ("'<a>'|e ~ '<b>'|safe", "&lt;a&gt;<b>"),
        ("1700000000|string ~ 1.0 ~ none", "17000000001.0None"),
        ("'{{\"a\": {}}}'.format(5)", '{"a": 5}'),
        ("'{form}'.format(form=1) ~ '%(form)s'|format(form=2)", "12"),
        ("[m]", "[{'role': 'user', 'content': 'hello'}]"),
        ("'a\nb'|indent(2)", "a\n  b"),
        ("(7 // 2, 7 % 2, 7 / 2, 7 - 2, 2 ** 10)", "(3, 1, 3.5, 5, 1024)"),
    ],
)
def test_what_templates_may_call_in_loops_and_blocks(expression: str, text: str) -> None:
    for around in ("{% block all scoped %}", ""):
        source = "{% for m in messages %}" + around + "{{ " + expression + " }}"
        source += ("{% endblock %}" if around else "") + "{% endfor %}"
        assert chat_template.render(source, messages=MESSAGES) == text
