"""No template breaks out of its sandbox, or works without bound. Each of these would take hours, or all memory.

Most double or nest something sixty times, which is little to write and more than any machine can do.
"""

from __future__ import annotations

import pytest

from trioserve.errors import ParamError
from trioserve.text.template import ChatTemplate

TOO_MANY_STEPS = "takes too many steps"


def render(source: str, *, max_steps: int = 20_000, max_length: int = 100_000) -> str:
    template = ChatTemplate(source, bos_token="", eos_token="", max_steps=max_steps, max_length=max_length)
    return template.render([{"role": "user", "content": "hi"}])


def doubled(change: str, use: str = "", start: str = "[]") -> str:
    """A template that applies ``change`` to ns.x (and the same to ns.y) sixty times, then does ``use``."""
    again = change.replace("ns.x", "ns.y")
    return (
        f"{{% set ns = namespace(x={start}, y={start}) %}}{{% for i in range(60) %}}"
        f"{{% set ns.x = {change} %}}{{% set ns.y = {again} %}}{{% endfor %}}{use}"
    )


NESTED = "{% for a in range(9999) %}INNER{% endfor %}"
BODY = "{% set x = 1 %}" * 500
CALL = f"{{% call f() %}}{BODY}{{% endcall %}}"
LISTS = "[ns.x, ns.x]"
TUPLES = "(ns.x, ns.x)"
LONG = "'a' * 100000"


@pytest.mark.parametrize(
    "source",
    [
        # passes through loops and macros
        NESTED.replace("INNER", NESTED),
        "{% for a in range(99) %}{% for b in range(9999) if false %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) | map('string') %}{% endfor %}{% endfor %}",
        f"{{% for a in range(200) %}}{BODY}{{% endfor %}}",
        f"{{% macro f() %}}{BODY}{{% endmacro %}}{{% for a in range(200) %}}{{{{ f() }}}}{{% endfor %}}",
        f"{{% block a %}}{BODY}{{% endblock %}}{{% for a in range(200) %}}{{{{ self.a() }}}}{{% endfor %}}",
        f"{{% macro f() %}}{{% for a in range(200) %}}{{{{ caller() }}}}{{% endfor %}}{{% endmacro %}}{CALL}",
        "{% for x in range(30) recursive %}{{ loop(range(30)) if loop.depth < 30 }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{% if n %}{% set x = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
        # text and lists that double
        doubled("ns.x ~ ns.x", start="'ab'"),
        doubled("ns.x + ns.x", start="'ab'"),
        doubled("ns.x + ns.x", start="[1]"),
        doubled("y", start="'ab'").replace("{% set ns.x", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x"),
        "{% set y %}{% for i in range(9999) %}" + "x" * 20_000 + "{% endfor %}{% endset %}",
        # work on the same long text or list again and again
        f"{{% set b = {LONG} %}}{{% for a in range(999) %}}{{% set x = 'b' in b %}}{{% endfor %}}",
        f"{{% set b = {LONG} %}}{{% for a in range(999) %}}{{% set x = b[1:] %}}{{% endfor %}}",
        f"{{% set b = {LONG} %}}{{% for a in range(999) %}}{{% set x = b | upper %}}{{% endfor %}}",
        f"{{% set b = {LONG} %}}{{% for a in range(999) %}}{{% set x = b.upper() %}}{{% endfor %}}",
        f"{{% set b = {LONG} %}}{{% for a in range(999) %}}{{% set x = b is lower %}}{{% endfor %}}",
        f"{{% set b = {LONG} %}}{{% for a in range(99) %}}{{% set x | upper %}}{{{{ b }}}}{{% endset %}}{{% endfor %}}",
        "{% for a in range(999) %}{% set x = range(9999) | list %}{% endfor %}",
        "{% for a in range(999) %}{% set x = range(9999) | sort %}{% endfor %}",
        "{% for a in range(999) %}{% set x = range(9999) | map('string') | list %}{% endfor %}",
        "{% set x = ('ab ' * 100000) | title %}",
        # values that hold themselves many times over: 2 ** 60 items when read as a whole
        doubled(LISTS, "{{ ns.x }}"),
        doubled(LISTS, "{{ ns.x ~ '' }}"),
        doubled(LISTS, "{{ {'a': ns.x}.items() }}"),
        doubled(LISTS, "{{ ns.x | tojson }}"),
        doubled(LISTS, "{{ ns.x | upper }}"),
        doubled(LISTS, "{{ ns.x | string }}"),
        doubled(LISTS, "{{ [ns.x] | join }}"),
        doubled(LISTS, "{{ [ns.x] | map('string') | list }}"),
        doubled(LISTS, "{{ [ns.x] | reverse | map('string') | list }}"),
        doubled(LISTS, "{{ [{'a': ns.x}] | selectattr('a', 'eq', ns.y) | list }}"),
        doubled(LISTS, "{{ 'a' | replace('a', ns.x) }}"),
        doubled(LISTS, "{{ 'a' | replace('a', new=ns.x) }}"),
        doubled(LISTS, "{{ ns.x == ns.y }}"),
        doubled(LISTS, "{{ ns.x is eq(ns.y) }}"),
        doubled(LISTS, "{{ ns.x in [ns.y] }}"),
        doubled(LISTS, "{{ [ns.x].count(ns.y) }}"),
        doubled(LISTS, "{{ [ns.x, ns.y] | sort }}"),
        doubled(LISTS, "{{ raise_exception(ns.x) }}"),
        doubled(LISTS, "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(ns.x) }}"),
        doubled(LISTS, "{% set j = joiner(ns.x) %}{{ j() }}{{ j() }}"),
        doubled(LISTS, "{% for i in [ns.x, ns.y] %}{{ loop.changed(i) }}{% endfor %}"),
        doubled(TUPLES, "{% set x = {ns.x: 1} %}"),
        doubled(TUPLES, "{{ {}[ns.x] }}"),
        doubled(TUPLES, "{{ ns.x in {} }}"),
        doubled(TUPLES, "{{ {}.get(ns.x) }}"),
        doubled(TUPLES, "{{ dict([(ns.x, 1)]) }}"),
        doubled(TUPLES, "{{ [ns.x] | unique | list }}"),
        # steps can't be had back
        "{% set x = [-10**9] | map('#count') | list %}" + NESTED.replace("INNER", NESTED),
    ],
)
def test_work_without_bound_is_a_param_error(source: str) -> None:
    # chat-template-errors
    with pytest.raises(ParamError, match=TOO_MANY_STEPS) as caught:
        render(source)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = 'a' * 10**11 %}",
        "{% set x = 10**11 * 'a' %}",
        "{% set x = [1] * 10**11 %}",
        "{{ range(50000) | join('a' * 10**6) }}",
        "{{ ('a' * 10**6).join(['a'] * 50000) }}",
        "{{ ([['a'] * 999] * 99) | map('join', 'a' * 10**6) | list }}",
        "{{ ('a' * 10**5) | replace('a', 'b' * 10**6) }}",
        "{{ ('a' * 10**5) | replace('a', 'b' * 10**6, -1) }}",
        "{{ ('a' * 10**5).replace('', 'b' * 10**6) }}",
        "{% filter replace('a', 'b' * 10**6) %}" + "a" * 100_000 + "{% endfilter %}",
        "{{ ('\n' * 10**6) | indent(10**5) }}",
        "{{ [1] | tojson(indent=10**11) }}",
        "{{ [[[1]]] | tojson(indent='a' * 10**6) }}",
    ],
)
def test_what_would_make_much_from_little_is_not_done(source: str) -> None:
    # most would be some 100 GB; the steps would do for what they are made of
    with pytest.raises(ParamError, match=TOO_MANY_STEPS):
        render(source, max_steps=200_000)


def test_a_prompt_without_bound_is_a_param_error() -> None:
    # chat-template-errors
    with pytest.raises(ParamError, match="would have more than 5000 characters"):
        render("{% for i in range(999) %}0123456789{% endfor %}", max_length=5000)


@pytest.mark.parametrize("number", ["10**400", "ns.x", "('f' * 1000) | int(0, 16)"])
def test_large_numbers_are_not_reckoned_with(number: str) -> None:
    source = "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"
    with pytest.raises(ParamError, match="too large numbers"):
        render(f"{source if number == 'ns.x' else ''}{{% set x = ({number}) * ({number}) %}}")


def test_a_value_that_is_nested_very_deep_is_not_read() -> None:
    source = "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}"
    assert render(source) == ""
    with pytest.raises(ParamError, match="nested more than 64 levels deep"):
        render(source + "{{ ns.x }}")


def test_a_namespace_does_not_write_what_it_holds() -> None:
    assert render(doubled("namespace(a=ns.x, b=ns.x)", "{{ ns.x }}")) == "<namespace>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ [''] | map(attribute='__class__') | list }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.zfill(999999999) }}",
        "{{ 'a'.encode() }}",
        "{{ (1).to_bytes(999999999, 'big') }}",
        "{{ messages[0].update({}) }}",
        "{{ messages.sort() }}",
    ],
)
def test_what_is_not_for_templates_is_a_param_error(source: str) -> None:
    # chat-template-errors
    with pytest.raises(ParamError, match="a template may not use"):
        render(source)


def test_text_is_not_formatted_with_percent() -> None:
    with pytest.raises(ParamError, match="may not format text with %"):
        render("{{ '%999999999d' % 1 }}")
    assert render("{{ 7 % 4 }}") == "3"


# What stays as it is in jinja2


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ ' a b '.strip().split() | join('+') }}", "a+b"),
        ("{{ '-'.join(['a', 'b']) }}", "a-b"),
        ("{{ 'aXbX'.replace('X', '.', 1) }}|{{ 'aXbX' | replace('X', '.') }}", "a.bX|a.b."),
        ("{{ [{'n': 'a'}, {'n': 'b'}] | map(attribute='n') | join(', ') }}", "a, b"),
        ("{{ [{'n': 'a'}, {'n': 'b'}] | join(',', attribute='n') }}", "a,b"),
        ("{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent('>', true) }}", "a\n  b|>a\n>b"),
        ("{{ 'hello world' | title }} {{ 'x' | default('y') }} {{ z | default('y') }}", "Hello World x y"),
        ("{{ 2 + 3 * 4 - 1 }} {{ 7 // 2 }} {{ 2 ** 10 }} {{ 7 / 2 }}", "13 3 1024 3.5"),
        ("{{ [1] + [2] }} {{ 'a' * 3 }} {{ 'a' ~ 1 ~ none }}", "[1, 2] aaa a1None"),
        ("{{ 'b' in 'abc' }} {{ 1 < 2 <= 2 }} {{ [1, [2]] == [1, [2]] }}", "True True True"),
        (
            "{{ {'a': 1, 'b': {'c': 2}}.b.c }} {{ {'a': 1}.get('b', 3) }} {{ dict(a=1).items() | list }}",
            "2 3 [('a', 1)]",
        ),
        ("{% for k, v in {'a': 1, 'b': 2}.items() if v > 1 %}{{ k }}{% else %}none{% endfor %}", "b"),
        (
            "{% for x in [3, 4] | map('string') %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }} {% endfor %}",
            "13False2 24True2 ",
        ),
        ("{% for x in 'ab' %}{{ x }}{{ loop.cycle('1', '2') }}{% endfor %}", "a1b2"),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ x }} {% endfor %}", "11 23 "),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% macro m(x, y=2) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call m(1) %}!{% endcall %}", "12!"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% filter upper %}b{% endfilter %}", "A1B"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% with a = 1 %}{{ a }}{% endwith %}{% block b %}{{ 2 }}{% endblock %}", "12"),
        ("{{ messages[0:1][0]['content'][::-1] }} {{ messages | length }} {{ messages[-1].role }}", "ih 1 user"),
        ("{{ 5 is odd }} {{ x is defined }} {{ 'a' is string }} {{ 3 is divisibleby(3) }}", "True False True True"),
        (
            "{{ [3, 1, 2] | sort | first }} {{ [1, 1, 2] | unique | list }} {{ [1, 2] | reverse | list }}",
            "1 [1, 2] [2, 1]",
        ),
        ("{{ [1, none, 2] | select | list }}", "[1, 2]"),
        ("{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'eq', 2) | list }}", "[{'a': 2}]"),
    ],
)
def test_what_templates_use_works(source: str, text: str) -> None:
    assert render(source) == text
