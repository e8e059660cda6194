"""Notes of a plan: what a user should know about it. The most severe come first.

Severities, with what each means: `vllm_operator.catalog.rules.Severity`. A rule carries its severity as data.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_operator.catalog.rules import Severity


@dataclass(frozen=True, slots=True)
class Note:
    """One note: what is the case, then what the user can do."""

    severity: Severity
    text: str


def notes_of(severity: Severity, texts: Iterable[str]) -> list[Note]:
    """Notes of one severity."""
    return [Note(severity, text) for text in texts]


def order(notes: Iterable[Note]) -> list[str]:
    """The texts, the most severe first and each once. Notes of one severity keep their order."""
    ranks = list(Severity)
    return list(dict.fromkeys(note.text for note in sorted(notes, key=lambda note: ranks.index(note.severity))))
