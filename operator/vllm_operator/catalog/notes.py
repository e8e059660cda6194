"""Notes of a plan for the user, the most severe first.

Severities are defined in `vllm_operator.catalog.rules.Severity`. Rules contain their severity.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_operator.catalog.rules import Severity


@dataclass(frozen=True, slots=True)
class Note:
    """One note: the fact, then the user's options."""

    severity: Severity
    text: str


def notes_of(severity: Severity, texts: Iterable[str]) -> list[Note]:
    """Return notes of one severity."""
    return [Note(severity, text) for text in texts]


def order(notes: Iterable[Note]) -> list[str]:
    """Return the distinct texts, the most severe first. Notes of one severity keep their order."""
    ranks = list(Severity)
    return list(dict.fromkeys(note.text for note in sorted(notes, key=lambda note: ranks.index(note.severity))))
