"""Files of the catalog: every entry is valid, and a mistake in one is named with its file, its entry and its field."""

import copy
import re
from typing import Any

import pytest

from vllm_operator.catalog import entry as entries
from vllm_operator.catalog.backends import Invocation, Kernel, LoggedNamesOfComponent, Questions
from vllm_operator.catalog.caches import Caches, PrimingRule
from vllm_operator.catalog.entry import Entry, EntryError, list_data, load_file, parse_entry, read_data
from vllm_operator.catalog.gpus import Architecture, GPUs, Images, Variant
from vllm_operator.catalog.models import Models, NumberFormat
from vllm_operator.catalog.notes import NoteTexts
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.catalog.rules import Rule
from vllm_operator.catalog.startup import Signature, Stages, load_startup
from vllm_operator.catalog.user_entries import UserSignature
from vllm_operator.catalog.versions import EngineFacts, VersionTable
from vllm_operator.logs.state import Stage
from vllm_operator.sizing.formats import Names
from vllm_operator.status.knowledge import Messages, TerminationRules

FILES: dict[str, type[Entry]] = {
    "gpus.yaml": GPUs,
    "images.yaml": Images,
    "models.yaml": Models,
    "formats.yaml": Names,
    "caches.yaml": Caches,
    "engine.yaml": EngineFacts,
    "stages.yaml": Stages,
    "messages.yaml": Messages,
    "notes.yaml": NoteTexts,
    "questions.yaml": Questions,
    "terminations.yaml": TerminationRules,
    "versions/0.20.1.json": VersionTable,
}
LISTS: dict[str, type[Entry]] = {
    "kernels.yaml": Kernel,
    "invocations.yaml": Invocation,
    "logged_names.yaml": LoggedNamesOfComponent,
    **dict.fromkeys(list_data("rules"), Rule),
}


def test_lines_and_bars_name_stages_and_components_that_exist() -> None:
    stages = load_startup().stages
    named = (
        [line.stage for line in stages.lines if line.stage] + [bar.stage for bar in stages.bars] + [*stages.silence, *stages.silent_stages]
    )
    assert set(named) <= set(Stage)
    assert {line.component for line in stages.lines if line.component} <= set(Component)


@pytest.mark.parametrize("name", FILES)
def test_a_misspelled_field_of_a_file_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_data(name)
    field = next(iter(read))
    monkeypatch.setattr(entries, "read_data", lambda _: {f"{field}x": read[field], **{key: read[key] for key in read if key != field}})
    with pytest.raises(EntryError, match=re.escape(f"{name}: '{field}x' is not a field (did you mean {field}?)")):
        load_file(FILES[name], name)


@pytest.mark.parametrize("name", LISTS)
def test_a_misspelled_field_of_an_entry_is_refused_with_file_and_entry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = copy.deepcopy(read_data(name))
    first["sourc"] = first.pop("source", "x")
    monkeypatch.setattr(entries, "read_data", lambda _: [first, *others])
    with pytest.raises(EntryError, match=re.escape(f"{name}: [0]: 'sourc' is not a field")):
        load_file(tuple[LISTS[name], ...], name)  # type: ignore[valid-type]


SIGNATURE = {"id": "A", "severity": "fatal", "priority": 1, "patterns": [{"anchor": "ab", "regex": "ab"}], "cause": "c.", "remedy": "r."}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"priority": "1"}, "priority must be a whole number, not '1'"),
        ({"retryable": "yes"}, "retryable must be true or false, not 'yes'"),
        ({"patterns": [{"anchor": "ab", "regexp": "ab"}]}, "patterns[0]: 'regexp' is not a field (did you mean regex?)"),
        ({"remedy_action": None}, "'remedy_action' is not a field (did you mean remedyAction?)"),
        ({"patterns": ["ab"]}, "patterns[0] must be a mapping, not 'ab'"),
        ({"cause": 0.20}, "cause must be text: put 0.2 in quotes"),
        ({"severity": "Fatal"}, "severity: 'Fatal' does not exist (did you mean fatal?)"),
    ],
)
def test_a_mistake_in_a_signature_is_named_with_its_field(change: dict[str, Any], message: str) -> None:
    for kind in (Signature, UserSignature):  # what ships, and what users write
        with pytest.raises(EntryError) as caught:
            parse_entry(kind, {**SIGNATURE, "id": "Mine", **change})
        assert str(caught.value) == message


HOPPER = {"name": "sm_90", "family": "Hopper", "fp8": True, "fp4": False, "mig": True, "cuda": "11.8"}
PRIMING = {"id": "a", "because": "b.", "source": "c"}
KERNEL = {"component": "MoE", "backend": "A", "source": "s", "works": [{}]}


@pytest.mark.parametrize(
    ("model", "written", "message"),
    [
        (Architecture, {**HOPPER, "cuda": 12.9}, "cuda: 12.9 is not text; put it in quotes, such as '12.9'"),
        (Architecture, {**HOPPER, "fp8": "yes"}, "fp8 must be true or false, not 'yes'"),
        (Variant, {"when": 0.20, "suffix": "-x", "cuda": "12.9"}, "when: 0.2 is not text; put it in quotes, such as '>=0.20'"),
        (PrimingRule, {**PRIMING, "versions": "new"}, "versions: 'new' is not a range of versions; one looks like '>=0.14,<0.20'"),
        (NumberFormat, {"quantization": "FP9", "bytesPerWeight": 1.0}, "quantization: 'FP9' does not exist (did you mean FP8?)"),
        (NumberFormat, {"quantization": "FP8", "bytesPerWeight": "1"}, "bytesPerWeight must be a number, not '1'"),
        (Kernel, {**KERNEL, "works": [{"tensors": 2}]}, "works[0]: 'tensors' is not a field (did you mean tensor?)"),
        (Kernel, {**KERNEL, "works": {}}, "works must be a list, not a mapping"),
        (Kernel, "words", "it must be a mapping, not 'words'"),
    ],
)
def test_a_mistake_says_what_to_write_instead(model: type[Entry], written: Any, message: str) -> None:
    with pytest.raises(EntryError) as caught:
        parse_entry(model, written)
    assert str(caught.value) == message
