"""Crashes that are known by name: how their log lines look, why they happen, what can be done.

A signature is data (`data/signatures.yaml`): patterns over single log lines, and texts as jinja2 templates
over what the patterns capture. Which of several signatures in one log is the root cause is not decided here
but in `vllm_operator.startup`; what it needs for that is `severity`, `priority` and each pattern's `evidence`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from vllm_operator.catalog.resources import read_data

ECHO_PRIORITY = 20
"""Signatures of this priority or less only repeat that something failed elsewhere."""

FACTS = ("stage", "utilization")
"""What every text may use besides what was captured: the stage of the start, and the --gpu-memory-utilization that the log names."""


class Severity(StrEnum):
    """What it means when the line is in a log: the process failed, it runs worse than it could, or nothing."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    BENIGN = "benign"


class RemedyAction(StrEnum):
    """What the operator itself does about a crash."""

    QUARANTINE_CACHE = "quarantine-cache"
    """The kept caches are left behind, if it was them: the next start fills new ones."""
    CLEAN_CACHE = "clean-cache"
    """Caches that nobody uses are removed from the volume."""
    REMOUNT_VOLUME = "remount-volume"
    """The Pods are taken away and started again, so that the volume is mounted anew."""


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A line matches if it contains `anchor` and `regex` is found in it.

    With `context` (a regular expression), only if that is found in the frames of the same traceback.
    `weak` evidence explains a crash only where nothing else does. `errors_only`: a warning with this text explains nothing.
    `overrules`: the line says that a program was ended from outside, so it is the cause and not what these signatures, weak
    evidence or later lines report.
    """

    anchor: str
    regex: str
    context: str | None = None
    weak: bool = False
    errors_only: bool = False
    overrules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one environment variable or argument that repairs the crash.

    `value` is a jinja2 template over the captures; text in <angle brackets> must be filled in by a person.
    None sets nothing: with `remove` the name is to be removed, without it an argument takes no value.
    `versions` says which vLLM versions know it (PEP 440); None: all, or it is not vLLM's own.
    """

    name: str
    value: str | None = None
    remove: bool = False
    versions: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of crash. `cause` and `remedy` are jinja2 templates over the captures of its patterns.

    `follows_others`: usually another error came first, so it counts only where there is none. `is_user_defined`: written by the
    owner of the cluster; its patterns are matched in linear time whatever they are. `explains`: crashes to which a benign one
    contributes, the only ones beside which it is shown; None: it is always shown. `cache_variable`: where the operator sets this
    variable, the damaged file can only be in the cache that the variable names.
    """

    id: str
    severity: Severity
    priority: int
    stages: tuple[str, ...]
    versions: str
    architectures: str
    patterns: tuple[LinePattern, ...]
    cause: str
    remedy: str
    environment: tuple[Change, ...] = ()
    arguments: tuple[Change, ...] = ()
    follows_others: bool = False
    retryable: bool = False
    auto_safe: bool = False
    references: tuple[str, ...] = ()
    action: RemedyAction | None = None
    is_user_defined: bool = False
    explains: tuple[str, ...] | None = None
    cache_variable: str | None = None

    @property
    def is_echo(self) -> bool:
        """Whether it says that something failed, but not what."""
        return self.severity is Severity.FATAL and self.priority <= ECHO_PRIORITY

    def is_told_beside(self, crash: str | None) -> bool:
        """Whether it is worth telling as a notice beside a crash of this signature, or where there is none (None)."""
        return crash in self.explains if self.explains is not None else crash != self.id

    @property
    def reference(self) -> str | None:
        """The best place to read more: an upstream issue if there is one."""
        return self.references[0] if self.references else None


@dataclass(frozen=True, slots=True)
class Sample:
    """A line (or a few) that belongs to a signature, and where it was seen."""

    signature: str
    text: str
    source: str


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Read all signatures.

    Raises:
        ValueError: The data is not as described; the message names the signature.
    """
    return tuple(parse_signature(entry) for entry in read_data("signatures.yaml")["signatures"])


def load_signature_samples() -> tuple[Sample, ...]:
    """Read the sample lines of all signatures."""
    samples: Mapping[str, list[Mapping[str, str]]] = read_data("signature_samples.yaml")
    return tuple(Sample(signature, each["text"], each["source"]) for signature, entries in samples.items() for each in entries)


def parse_signature(entry: Mapping[str, Any], *, is_user_defined: bool = False) -> Signature:
    """Read a signature.

    Raises:
        ValueError: It is not as described; the message names it.
    """
    try:
        return Signature(
            id=entry["id"],
            severity=Severity(entry["severity"]),
            priority=int(entry["priority"]),
            stages=tuple(entry["stages"]),
            versions=str(entry["versions"]),
            architectures=str(entry["architectures"]),
            patterns=tuple(_pattern(pattern) for pattern in entry["patterns"]),
            cause=entry["cause"],
            remedy=entry["remedy"],
            environment=tuple(Change(**change) for change in entry.get("environment", ())),
            arguments=tuple(Change(**change) for change in entry.get("arguments", ())),
            follows_others=bool(entry.get("followsOthers", False)),
            retryable=bool(entry["retryable"]),
            auto_safe=bool(entry["autoSafe"]),
            references=tuple(entry.get("references", ())),
            action=RemedyAction(entry["remedyAction"]) if "remedyAction" in entry else None,
            is_user_defined=is_user_defined,
            explains=tuple(entry["explains"]) if "explains" in entry else None,
            cache_variable=entry.get("cacheVariable"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"signature {entry.get('id', '?')} in signatures.yaml: {error}") from error


def _pattern(entry: Mapping[str, Any]) -> LinePattern:
    evidence = entry.get("evidence")
    return LinePattern(
        anchor=entry["anchor"],
        regex=entry["regex"],
        context=entry.get("context"),
        weak=evidence == "weak",
        errors_only=evidence == "error",
        overrules=tuple(entry.get("overrules", ())),
    )
