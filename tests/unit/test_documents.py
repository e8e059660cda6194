"""What log stores give: entries are found wherever they are and put into order, and anything else is left as it is."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vllm_operator.cli.paste.documents import unfolded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["message", "timestamp", "time", "_source", "data", "values", "log"]), inner, max_size=4)
    ),
    max_leaves=25,
)


def lines(document: object) -> list[object]:
    return [json.loads(line) if line[:1] == "{" else line for line in unfolded(json.dumps(document).encode()).decode().splitlines()]


@given(JSON)
@example([[["1795251124000000000", "\ud800"]]])
@example({"message": "x", "timestamp": "1" * 5000})
def test_no_document_raises(document: object) -> None:
    assert isinstance(unfolded(json.dumps(document).encode()), bytes)


@given(st.sampled_from([b"", b"@timestamp,message\n", b'"Date","Message"\r\n', b"2026-11-21T09:00:01Z x\n"]), st.binary(max_size=300))
def test_no_table_raises(heading: bytes, rows: bytes) -> None:
    assert isinstance(unfolded(heading + rows), bytes)


@pytest.mark.parametrize("opened", ["[", '{"a": ', '[{"data": ', '{"message": "x", "a": '])
def test_a_document_of_any_depth_is_survived(opened: str) -> None:
    closed = {"[": "]", "{": "}"}
    data = opened * 600 + "1" + "".join(closed[each] for each in reversed(opened * 600) if each in closed)

    assert isinstance(unfolded(data.encode()), bytes)


def test_the_newest_first_is_turned_round() -> None:
    entries = [
        {"message": text, "timestamp": f"2026-11-21T09:00:0{second}Z"} for text, second in (("third", 3), ("second", 2), ("first", 1))
    ]

    assert [entry["message"] for entry in lines({"data": entries}) if isinstance(entry, dict)] == ["first", "second", "third"]


def test_a_cell_of_a_table_may_hold_several_lines() -> None:
    table = 'TimeGenerated,LogMessage\r\n2026-11-21T09:00:02Z,"third\nfourth"\r\n2026-11-21T09:00:01Z,"first, ""second"""\r\n'

    assert unfolded(table.encode()) == b'first, "second"\nthird\nfourth\n'


def test_a_text_with_the_newest_on_top_is_turned_round() -> None:
    lines = [f"2026-11-21T09:00:{second:02d}Z line {second}\n" for second in range(20)]

    assert unfolded(("logs of vllm\n" + "".join(lines[::-1])).encode()).decode() == "".join(lines) + "logs of vllm\n"


@pytest.mark.parametrize("times", [range(3, 0, -1), [9, *range(9)], range(20)])
def test_times_that_go_back_once_or_in_few_lines_are_no_reason_to_turn_a_text_round(times: Sequence[int]) -> None:
    text = "".join(f"2026-11-21T09:00:{second:02d}Z line\n" for second in times).encode()

    assert unfolded(text) == text


def test_what_has_no_time_stays_in_its_order() -> None:
    assert lines(["b", "a", "c"]) == ["b", "a", "c"]


def test_streams_are_put_together_by_time() -> None:
    streams = [{"stream": {}, "values": [["1795251124000000003", "third"], ["1795251124000000001", "first"]]}]
    streams += [{"stream": {}, "values": [["1795251124000000004", "fourth"], ["1795251124000000002", "second"]]}]

    assert lines({"status": "success", "data": {"result": streams}}) == ["first", "second", "third", "fourth"]


def test_an_entry_may_hold_lists_of_its_own() -> None:
    entry = {"MESSAGE": "Starting to load model", "_CAPABILITIES": ["a", "b"]}

    assert lines(entry) == [entry]


@pytest.mark.parametrize("text", ["", "INFO 11-21 09:00:00 [core.py:1] x\n", "[rank0]: x\n", '{"log": "a"}\n{"log": "b"}\n', '["cut'])
def test_what_is_no_document_is_left_alone(text: str) -> None:
    assert unfolded(text.encode()) == text.encode()
