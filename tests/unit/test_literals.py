"""Many texts are looked for in a line at once, whatever the line holds and however many they are."""

import string

from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.matching import Literals

KNOWLEDGE = load_startup()
ANCHORS = [pattern.anchor for signature in KNOWLEDGE.signatures for pattern in signature.patterns]
ANCHORS += [failure.text for failure in KNOWLEDGE.stages.failures]
CATALOG = Literals(ANCHORS)


@given(st.lists(st.text(min_size=1, max_size=4), max_size=8), st.text(max_size=30))
def test_what_is_found_is_what_stands_in_the_text(texts: list[str], text: str) -> None:
    assert Literals(texts).find(text) == [each for each in dict.fromkeys(texts) if each in text]


@given(st.lists(st.sampled_from(ANCHORS), max_size=4), st.text(max_size=20))
def test_each_text_of_the_catalog_is_found_beside_others(anchors: list[str], between: str) -> None:
    line = between.join(anchors)

    assert CATALOG.find(line) == [each for each in dict.fromkeys(ANCHORS) if each in line]


def test_half_a_character_keeps_nothing_from_being_found() -> None:
    assert CATALOG.find("\ud800CUDA out of memory\udfff") == [each for each in dict.fromkeys(ANCHORS) if each in "CUDA out of memory"]


def test_any_number_of_texts_is_found() -> None:
    texts = [f"{anchor} {letter}" for letter in string.ascii_letters for anchor in ANCHORS]
    many = Literals(texts)

    assert all(many.find(f"x {text} y") for text in texts[::97])
    assert many.find("nothing of it") == []


def test_without_texts_nothing_is_found() -> None:
    assert Literals([]).find("CUDA out of memory") == []
