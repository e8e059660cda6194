"""Templates of signatures: those of users belong to a small language, and nothing in it raises, loops or grows."""

import contextlib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_operator.catalog.templates import RESULT_LIMIT, TemplateError, check_template, fill_in, fill_in_exactly, join


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ '{0}'.format() }}", "a call"),
        ("{% for i in range(10**9) %}x{% endfor %}", "a loop"),
        ("{{ 'a' * 10**9 }}", "arithmetic"),
        ("{{ 10**10**10 }}", "arithmetic"),
        ("{{ '%1000000000d' % 1 }}", "arithmetic"),
        ("{{ 'a'|center(1000000000) }}", "a filter"),
        ("{{ a.__class__ }}", "an attribute"),
        ("{{ a[b] }}", "a position"),
        ("{% set a = 1 %}", "set"),
        ("{% macro a() %}{% endmacro %}", "a macro"),
        ("{% include 'x' %}", "Include"),
        ("{{ {} }}", "Dict"),
        ("{{ a is defined }}", "a test"),
        ("{{" + "(" * 290 + "1" + ")" * 290 + "}}", "not a template"),
        ("{{ 1 < 'a' }}", "cannot be rendered"),
    ],
)
def test_what_could_loop_grow_or_reach_for_more_is_refused(text: str, reason: str) -> None:
    began = time.perf_counter()
    with pytest.raises(TemplateError, match=reason):
        check_template(text, alone=True)
    assert time.perf_counter() - began < 1


def test_nesting_within_the_limits_of_a_text_is_refused_or_read() -> None:
    # how much is refused depends on the recursion limit of Python, which some libraries raise
    began = time.perf_counter()
    with contextlib.suppress(TemplateError):
        check_template("{{ " + "-" * 590 + "1 }}", alone=True)
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("text", "captures", "said"),
    [
        ("{{ a }} of {{ b or 'many' }}", {"a": "1"}, "1 of many"),
        ("{% if a %}yes {{ a }}{% elif b %}b{% else %}no{% endif %}", {"b": "2"}, "b"),
        ("{{ [(a|float) - 1, 0.5]|max|round(1, 'floor') }}", {"a": "3.27"}, "2.2"),
        ("{{ (a|int) % 1000 // 10 }}", {"a": "12080"}, "8"),
        ("{{ a[:2] ~ a[-1]|upper }}", {"a": "abcz"}, "abZ"),
    ],
)
def test_what_is_captured_is_filled_in(text: str, captures: dict[str, str], said: str) -> None:
    assert fill_in(text, captures.items()) == said == fill_in_exactly(text, {"a": "", "b": "", **captures})


def test_a_text_that_fits_only_some_values_is_shown_without_the_others() -> None:
    text = "Out of memory{% if 100 // (size|default(1)|int) %} by {{ size }}{% endif %}."
    assert fill_in(text, [("size", "7")]) == "Out of memory by 7."
    assert fill_in(text, [("size", "none")]) == "Out of memory by ."
    assert fill_in_exactly(text, {"size": "none"}) is None


CASES = [
    "The start failed",
    {"if": "port", "then": [" on port {{ port }}", {"if": "host", "then": " of {{ host }}"}]},
    {"elif": "host == 'a'", "then": " on the first host"},
    {"else": " somewhere"},
    {"if": "late", "then": ", and late"},
    [{"if": "log", "then": ": {{ log }}"}],
    ".",
]


@pytest.mark.parametrize(
    ("captures", "said"),
    [
        ({}, "The start failed somewhere."),
        ({"port": "80"}, "The start failed on port 80."),
        ({"port": "80", "host": "a"}, "The start failed on port 80 of a."),
        ({"host": "a", "late": "1"}, "The start failed on the first host, and late."),
        ({"host": "b", "late": "1", "log": "no route"}, "The start failed somewhere, and late: no route."),
    ],
)
def test_a_text_of_pieces_has_the_first_case_that_holds_and_all_that_is_no_case(captures: dict[str, str], said: str) -> None:
    assert fill_in(join(CASES), captures.items()) == said


@pytest.mark.parametrize(
    "pieces",
    [
        [{"elif": "a", "then": "A"}],
        [{"else": "A"}],
        [{"if": "a", "then": "A"}, "and", {"else": "B"}],
        [{"if": "a", "then": "A"}, {"else": "B"}, {"elif": "c", "then": "C"}],
        [{"if": "a"}],
        [{"if": True, "then": "A"}],
        [{"if": "a", "then": 7}],
        [{"if": "a", "then": "A", "else": "B"}],
        ["A", None],
        [{"if": "a", "then": [{"when": "b"}]}],
    ],
)
def test_a_piece_that_is_neither_text_nor_a_case_in_its_place_is_refused(pieces: list[object]) -> None:
    with pytest.raises(ValueError, match="is neither text nor a case: write if and then, after it elif and then, or else"):
        join(pieces)


PIECES = [
    *(
        "{{ ",
        " }}",
        "{% if ",
        " %}",
        "{% else %}",
        "{% endif %}",
        "a",
        "b",
        "7",
        "0",
        "-",
        "+",
        "/",
        "//",
        "%",
        "~",
        "(",
        ")",
        "[",
        "]",
        ":",
    ),
    *("'x'", " or ", " and ", " not ", " in ", "==", "<", " if ", " else ", ",", "|", "|truncate(9)", "|round(2)", "|trim('x')", "1e308"),
]
expressions = st.lists(st.sampled_from(PIECES), max_size=12).map(lambda pieces: f"{{{{ {''.join(pieces)} }}}}")
values = st.one_of(st.text(max_size=400), st.sampled_from(["9" * 400, "1e999", "nan", "inf", "-inf", "0", "", "{{ a }}", "ß" * 400]))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=500)
@given(
    text=st.one_of(st.text("{}%ab|()[]'0 .", max_size=60), expressions),
    captures=st.dictionaries(st.sampled_from("ab"), values),
)
def test_whatever_is_written_and_captured_a_short_text_comes_out(text: str, captures: dict[str, str]) -> None:
    try:
        check_template(text, alone=True)
    except TemplateError:
        return
    assert len(fill_in(text, captures.items())) <= RESULT_LIMIT
    assert len(fill_in_exactly(text, captures) or "") <= RESULT_LIMIT
