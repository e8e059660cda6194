"""JSON nested deeper than Python's decoder goes is read without its depths; everything else as ever."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.cluster.responses import DEPTH_LIMIT, DeepDecoder, cut


def nested(depth: int, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * depth + "1" + closing * depth


@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]"), ('[{"a":', "}]")])
@pytest.mark.parametrize("depth", [1200, 10_000, 100_000])
def test_what_lies_too_deep_is_null_and_the_rest_is_read(opening: str, closing: str, depth: int) -> None:
    text = f'{{"items": [{nested(depth, opening, closing)}, {{"name": "other"}}], "b": 2}}'
    with pytest.raises(RecursionError):
        json.JSONDecoder().decode(text)
    content = DeepDecoder().decode(text)
    assert (content["items"][1], content["b"]) == ({"name": "other"}, 2)
    value, levels = content["items"][0], 2
    while value is not None:
        value, levels = value["a"] if isinstance(value, dict) else value[0], levels + 1
    assert levels == DEPTH_LIMIT


def test_all_that_can_be_read_is_read_whole() -> None:
    assert DeepDecoder().decode(nested(500)) == json.loads(nested(500))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='{}[]"\\,: a', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='{}[]"\\ ', max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.recursive(values | st.floats(allow_nan=False) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_read_is_what_python_reads(value: object) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped, indent=2)
        assert DeepDecoder().decode(text) == json.JSONDecoder().decode(text) == value


UNUSUAL = ['"\\ud800"', '"\ud800"', '{"a": 1, "a": 2}', "-0", "1" * 40, "1e999", "123456789.12345678901234567890", " [1 ] "]


@pytest.mark.parametrize("text", UNUSUAL)
def test_values_at_the_limits_are_read_as_python_reads_them(text: str) -> None:
    expected = json.JSONDecoder().decode(text)
    assert (DeepDecoder().decode(text), type(DeepDecoder().decode(text))) == (expected, type(expected))


@given(value=values, limit=st.integers(1, 6))
def test_what_is_cut_is_json_of_that_depth(value: object, limit: int) -> None:
    assert json.loads(cut(json.dumps(value), limit)) == shallow(value, limit)


def shallow(value: object, limit: int) -> object:
    if isinstance(value, dict):
        return {key: shallow(inner, limit - 1) for key, inner in value.items()} if limit else None
    if isinstance(value, list):
        return [shallow(inner, limit - 1) for inner in value] if limit else None
    return value


@pytest.mark.parametrize("text", ["", "{", "[1,", '{"a": ', "]" * 10, "[" * 5000, '"' + "[" * 5000, '{"a":' * 5000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra"):
        DeepDecoder().decode(text)
