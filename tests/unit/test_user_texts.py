"""YAML of the cluster's administrator: any content costs at most its own text, a second and a few megabytes."""

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_operator.catalog.entry import EntryError
from vllm_operator.catalog.user_entries import DEPTH_LIMIT, SIZE_LIMIT, collect, read_documents, read_yaml

LAUGHS = "- &a0 [x, x]\n" + "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        pytest.param("- {id: a, n: 7, no: off, text: '7'}", [{"id": "a", "n": 7, False: False, "text": "7"}], id="values"),
        pytest.param("rules:\n- {id: a}", [{"id": "a"}], id="under their name"),
        pytest.param("- {<<: {a: 1}, b: 2}", [{"a": 1, "b": 2}], id="merges"),
        pytest.param("", [], id="nothing"),
        pytest.param("rules:", [], id="nothing under their name"),
    ],
)
def test_entries_are_plain_values(text: str, entries: list[Any]) -> None:
    assert read_documents({"a": text}, "rules") == (entries, [])


@pytest.mark.parametrize("text", ["words", "a: b", "rules: [a]\nmore: b"])
def test_a_text_that_is_not_a_list_is_reported(text: str) -> None:
    assert read_documents({"a": text}, "rules") == ([], ["a: this is not a list of rules. It is ignored."])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("- a" * SIZE_LIMIT, "larger than 64 KiB", id="long"),
        pytest.param("é" * (SIZE_LIMIT - 1), "larger than 64 KiB", id="long in bytes"),
        pytest.param(LAUGHS, r"line 2.*alias \*a0 is not allowed", id="a billion laughs"),
        pytest.param("- &a [*a]\n", r"alias \*a is not allowed", id="a list in itself"),
        pytest.param("[" * 60_000, "nested deeper", id="lists nested so deep that PyYAML would end the process"),
        pytest.param("{a: " * 16_000, "nested deeper", id="mappings"),
        pytest.param("- " * 32_000, "nested deeper", id="lists in lines"),
        pytest.param("{? " * 20_000, "nested deeper", id="keys"),
        pytest.param(f"- {'[' * DEPTH_LIMIT}{']' * DEPTH_LIMIT}\n", f"nested deeper than {DEPTH_LIMIT}", id="one level too deep"),
        pytest.param("---\n[]\n---\n[]", "expected a single document", id="two documents"),
        pytest.param("a: b: c", "mapping values are not allowed", id="no YAML"),
        pytest.param("\ud800", "surrogates not allowed", id="half a character"),
        pytest.param("- " + "9" * 60_000, "Exceeds the limit", id="a number of 60,000 digits"),
        pytest.param("- !!python/object/apply:os.system [id]\n", "could not determine a constructor", id="a tag of Python"),
        pytest.param("- {[a]: b}\n", "unhashable key", id="a list as key"),
        pytest.param("- 2024-13-01\n", "month must be in", id="no date"),
    ],
)
def test_a_text_that_cannot_be_read_is_reported_and_costs_no_other(text: str, reason: str) -> None:
    entries, [problem] = read_documents({"good": "- {id: good}", "wrong": text}, "rules")
    assert entries == [{"id": "good"}]
    assert problem.startswith("wrong: this is not valid YAML: ")
    with pytest.raises(ValueError, match=f"(?s){reason}"):
        read_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("- a: 0x" + "f" * 60_000, id="a number of 60,000 digits"),
        pytest.param("- a: " + "1:" * 32_000 + "1", id="a sexagesimal number"),
        pytest.param("[" + "1," * 32_000 + "1]", id="as many numbers as fit"),
        pytest.param("- {" + ",".join(f"k{n}: 1" for n in range(7000)) + "}", id="as many keys as fit"),
    ],
)
def test_any_text_within_the_limits_is_read(text: str) -> None:
    documents, problems = read_documents({"a": text}, "rules")
    assert len(documents) + len(problems) > 0


@pytest.mark.parametrize("text", ['- {id: "a\\0"}', '- {"a\\e": 1}', '- {when: {of: [{x: "\\x7f"}]}}'])
def test_a_control_character_costs_its_entry(text: str) -> None:
    [problem] = collect({"a": text}, "rule", refuse, taken=(), count_expressions=len).problems
    assert "it contains the control character" in problem


def refuse(document: Any, before: Any) -> Any:
    raise EntryError("it was read")


PIECES = [
    *("- ", "[", "]", "{", "}", ": ", ", ", "? ", "&a ", "*a", "<<: *a", "!!str ", "!x ", "'", '"', "|\n", "> \n", "\n", "  ", "#"),
    *("---\n", "...\n", "%YAML 9\n", "a", "id", "7", "~", "\t", "é", "\\0", "rules:"),
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(text=st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    documents, problems = read_documents({"a": text}, "rules")
    assert len(problems) <= 1
    assert len(collect({"a": text}, "rule", refuse, taken=(), count_expressions=len).problems) == len(documents) + len(problems)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(st.characters(exclude_categories=["C"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(entries=st.lists(plain, max_size=4))
def test_what_was_written_is_what_is_read(entries: list[Any]) -> None:
    assert read_documents({"a": yaml.safe_dump(entries, allow_unicode=True)}, "rules") == (entries, [])
