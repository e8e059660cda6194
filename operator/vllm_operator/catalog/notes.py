"""Notes of a plan, and other texts: templates in `notes.yaml` and `import_texts.yaml`, filled in with values by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from vllm_operator.catalog.entry import Entry, load_file, loader


class Severity(StrEnum):
    """Severity of a note in a plan, the most severe first."""

    FAILURE = "Failure"
    """The start is expected to fail."""
    RISK = "Risk"
    """The start may fail, or the engine may be slow or wrong."""
    NO_EFFECT = "NoEffect"
    """A setting of the user has no effect."""
    INFO = "Info"
    """What the operator assumed, or what a setting of the user changes."""


class NoteTexts(Entry):
    """The content of `notes.yaml`: format strings by name. Notes are grouped by their severity; `texts` are parts of other messages."""

    failure: Mapping[str, str]
    risk: Mapping[str, str]
    no_effect: Mapping[str, str]
    info: Mapping[str, str]
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Note:
    """One note: the fact, then the user's options."""

    severity: Severity
    text: str


def note(name: str, /, **values: Any) -> Note:
    """Return the note of this name in `notes.yaml`."""
    severity, template = _notes()[name]
    return Note(severity, template.format_map(values))


def say(name: str, /, **values: Any) -> str:
    """Return the text of this name in `notes.yaml` or `import_texts.yaml`."""
    return _texts()[name].format_map(values)


def order(notes: Iterable[Note]) -> list[str]:
    """Return the distinct texts, the most severe first. Notes of one severity keep their order."""
    ranks = list(Severity)
    return list(dict.fromkeys(note.text for note in sorted(notes, key=lambda note: ranks.index(note.severity))))


@cache
def _texts() -> Mapping[str, str]:
    return {**_read_notes().texts, **load_file(dict[str, str], "import_texts.yaml")}


@cache
def _notes() -> Mapping[str, tuple[Severity, str]]:
    texts = _read_notes()
    groups = zip(Severity, (texts.failure, texts.risk, texts.no_effect, texts.info), strict=True)
    return {name: (severity, template) for severity, group in groups for name, template in group.items()}


_read_notes = loader(NoteTexts, "notes.yaml")
