"""What an import did with each setting."""

from dataclasses import dataclass, field

from vllm_operator.cli.errors import InputError


class ImportRefusedError(InputError):
    """A deployment cannot be imported. The message says why, and what the user can do."""


@dataclass(slots=True)
class Report:
    """Sentences about what was kept as it is, written differently, and dropped, and what the user should look at."""

    kept: list[str] = field(default_factory=list)
    translated: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def sections(self) -> list[tuple[str, list[str]]]:
        """The parts with a title, each sentence once, without empty parts."""
        parts = (("Kept", self.kept), ("Translated", self.translated), ("Dropped", self.dropped), ("Advice", self.advice))
        return [(title, list(dict.fromkeys(sentences))) for title, sentences in parts if sentences]
