"""A deployed engine, whatever tool wrote it, and the report about its import."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.cli.inputs import InputError


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


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    Attributes:
        source: What was read, for the report.
        name: Name of the object.
        namespace: Its namespace; None if the manifest has none.
        image: Image of the engine; None if the manifest does not say.
        words: Command line.
        container: The engine's container as in a Pod, for what is not in the other fields.
        pod: The Pod spec.
        replicas: Number of Pods.
        model: Where the tool gets the model from, if not from the command line: hf://, pvc://, or what the operator cannot read.
        served_name: Name for clients, if not from the command line.
        token: Name and key of the Secret with the token for the hub.
        service: `spec.service` of the VLLMDeployment.
        weights: `spec.weights` of the VLLMDeployment.
        dropped: Settings without a counterpart.
        advice: What the user should know.
    """

    source: str
    name: str
    namespace: str | None = None
    image: str | None = None
    words: Sequence[str] = ()
    container: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    replicas: int | None = None
    model: str | None = None
    served_name: str | None = None
    token: tuple[str, str] | None = None
    service: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    advice: Sequence[str] = ()


def words_of_settings(settings: Mapping[str, Any], *, without: Sequence[str] = ()) -> list[str]:
    """Settings such as `maxModelLen: 4096` as words of a command line: `--max-model-len 4096`."""
    words: list[str] = []
    for name, value in settings.items():
        if name in without or value is None:
            continue
        flag = "--" + _CAMEL.sub("-", str(name)).lower().replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is False:
            words.append(flag.replace("--", "--no-", 1))
        elif isinstance(value, str | int | float) and value != "":
            words.append(f"{flag}={value}")
    return words
