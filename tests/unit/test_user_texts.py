"""YAML of the cluster's owner: whatever stands there, it costs at most its own entry, a second and a few megabytes."""

import math
import time
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_operator.catalog.user_texts import DEPTH_LIMIT, SIZE_LIMIT, Broken, TextError, read_entries

GOOD = "- {id: good}\n"
LAUGHS = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
MERGES = "".join(f"  a{n}: &a{n}\n    <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        pytest.param(
            "- {id: a, n: 7, f: 0.5, yes: yes, no: off, null: ~, text: '7'}",
            [{"id": "a", "n": 7, "f": 0.5, "yes": True, "no": False, "null": None, "text": "7"}],
            id="values",
        ),
        pytest.param("rules:\n- {id: a}", [{"id": "a"}], id="under their name"),
        pytest.param(
            "- &base {id: a, when: {x: 1}}\n- {<<: *base, id: b}\n- [*base]",
            [{"id": "a", "when": {"x": 1}}, {"id": "b", "when": {"x": 1}}, [{"id": "a", "when": {"x": 1}}]],
            id="aliases and merges",
        ),
        pytest.param(
            "- {d: 2024-01-01, t: 2024-01-01T00:00:00Z, n: .nan, i: .inf, x: 0x10, s: 1:30}",
            [{"d": "2024-01-01", "t": "2024-01-01T00:00:00Z", "n": ".nan", "i": ".inf", "x": "0x10", "s": "1:30"}],
            id="dates and odd numbers are texts",
        ),
        pytest.param("- {1: a, on: b}", [{"1": "a", "on": "b"}], id="keys are texts"),
        pytest.param("- {a: !!str 7, b: !!int '7'}", [{"a": "7", "b": 7}], id="tags of plain values"),
        pytest.param("", [], id="nothing"),
        pytest.param("rules:", [], id="nothing under their name"),
        pytest.param("words", None, id="words"),
        pytest.param("a: b", None, id="a mapping"),
        pytest.param("rules: [a]\nmore: b", None, id="a mapping with more"),
    ],
)
def test_entries_are_plain_values(text: str, entries: list[Any] | None) -> None:
    assert read_entries(text, "rules") == entries


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(f"- {'[' * 30}{']' * 30}\n", f"nested deeper than {DEPTH_LIMIT}", id="nested deep"),
        pytest.param("- a: 0x" + "f" * 900_000 + "\n", f"larger than {SIZE_LIMIT} characters", id="a number of 900,000 digits"),
        pytest.param("- a: " + "1:" * 200_000 + "1\n", f"larger than {SIZE_LIMIT} characters", id="a sexagesimal number"),
        pytest.param("- a0: &a0 {x: 1}\n" + MERGES, f"larger than {SIZE_LIMIT} characters", id="merges of merges"),
        pytest.param("- &a [*a]\n", "alias *a has no anchor", id="a list in itself"),
        pytest.param("- {id: x, id: y}\n", "id occurs twice", id="a key twice"),
        pytest.param("- {[a]: b}\n", "a key must be text", id="a list as key"),
        pytest.param("- !!python/object/apply:os.system [id]\n", "python/object/apply:os.system is not known", id="a tag of Python"),
        pytest.param("- {a: !!binary aGk=}\n", "tag:yaml.org,2002:binary is not known", id="binary"),
        pytest.param('- {a: "\\0"}\n', "contains the control character '\\x00'", id="a control character"),
        pytest.param("- {<<: 7}\n", "<< must be followed by mappings", id="a merge of a number"),
    ],
)
def test_what_is_wrong_with_an_entry_costs_that_entry(text: str, reason: str) -> None:
    began = time.perf_counter()
    entries = read_entries(GOOD + text + "- {id: other}\n", "rules")
    assert entries is not None
    assert (entries[0], entries[2]) == ({"id": "good"}, {"id": "other"})
    assert isinstance(entries[1], Broken)
    assert reason in entries[1].reason
    assert time.perf_counter() - began < 2


def test_a_billion_laughs_are_as_many_entries_as_fit() -> None:
    entries = read_entries("- &a0 [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS + GOOD, "rules")
    assert entries is not None
    assert entries[-1] == {"id": "good"}
    assert sum(isinstance(entry, Broken) for entry in entries) == 8
    assert len(repr(entries)) < 10 * SIZE_LIMIT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("[" * 500_000, "nested deeper", id="lists nested half a million deep, which ended the process"),
        pytest.param("{a: " * 200_000, "nested deeper", id="mappings"),
        pytest.param("- " * 400_000, "nested deeper", id="lists in lines"),
        pytest.param("{? " * 300_000, "nested deeper", id="keys"),
        pytest.param("\n".join(" " * n + "a:" for n in range(1000)), "nested deeper", id="mappings in lines"),
        pytest.param("[" + "1," * 500_000 + "1]", "more than 50000 values", id="half a million numbers"),
        pytest.param("- {id: a}\n" * 90_000, "more than 50000 values", id="very many entries"),
        pytest.param("---\n[]\n---\n[]", "more than one document", id="two documents"),
        pytest.param("a: b: c", "mapping values are not allowed", id="no YAML"),
        pytest.param("\ud800", "surrogates not allowed", id="half a character"),
        pytest.param('- "\\ud800"', "invalid Unicode character", id="half a character, escaped"),
    ],
)
def test_a_text_that_cannot_be_read_is_reported(text: str, reason: str) -> None:
    began = time.perf_counter()
    with pytest.raises(TextError, match=reason):
        read_entries(text, "rules")
    assert time.perf_counter() - began < 5


PIECES = [
    *("- ", "[", "]", "{", "}", ": ", ", ", "? ", "&a ", "*a", "<<: *a", "!!str ", "!x ", "'", '"', "|\n", "> \n", "\n", "  ", "#"),
    *("---\n", "...\n", "%YAML 9\n", "a", "id", "7", "~", "\t", "é", "\\0", "rules:"),
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(text=st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
def test_whatever_is_written_there_plain_values_come_out(text: str) -> None:
    try:
        entries = read_entries(text, "rules")
    except TextError:
        return
    assert all(isinstance(entry, Broken) or is_plain(entry) for entry in entries or ())


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(st.characters(exclude_categories=["C"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(entries=st.lists(plain, max_size=4))
def test_what_was_written_is_what_is_read(entries: list[Any]) -> None:
    assert read_entries(yaml.safe_dump(entries, allow_unicode=True), "rules") == entries
