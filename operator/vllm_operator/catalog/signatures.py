"""Known crashes: how their log lines look, why they happen, and what to do.

A signature is data (`data/signatures.yaml`): patterns over single log lines, and texts as jinja2 templates over what the
patterns capture. `vllm_operator.startup` decides which of several signatures in one log is the root cause; for that it needs
`severity`, `priority` and each pattern's `evidence`.

What a signature says about its remedy is for a person to weigh. A remedy that the operator applies by itself has limits that a
machine can check, and is an entry of its own (`data/remedies.yaml`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import ClassVar, Literal

from vllm_operator.catalog.resources import construct, read_data

ECHO_PRIORITY = 20
"""Signatures of this priority or less only report that something failed elsewhere."""

FACTS = ("stage", "utilization")
"""What every text may use besides captures: the stage of the start, and the --gpu-memory-utilization in the log."""


class Severity(StrEnum):
    """What the line means: the process failed, it runs worse than it could, or nothing."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    BENIGN = "benign"


class RemedyAction(StrEnum):
    """What the operator itself does about a crash."""

    QUARANTINE_CACHE = "quarantine-cache"
    """Stop using the cache directory if it caused the crash; the next start fills a new one."""
    CLEAN_CACHE = "clean-cache"
    """Delete unused cache directories from the volume."""
    REMOUNT_VOLUME = "remount-volume"
    """Delete the Pods and start them again, so that the volume is mounted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePattern:
    """A line matches if it contains `anchor` and `regex` is found in it.

    Attributes:
        anchor: Text in the line. The regular expression is tried only on lines that contain it.
        regex: Regular expression. Texts can use its named groups.
        context: Regular expression that must be found in the frames of the traceback that the line ends.
        evidence: `weak` counts only if nothing else explains the crash; `error` does not count in a warning.
        overrules: Signatures that this one explains, because the line says that a program was ended from outside.
    """

    anchor: str
    regex: str
    context: str | None = None
    evidence: Literal["weak", "error"] | None = None
    overrules: tuple[str, ...] = ()

    @property
    def weak(self) -> bool:
        """Whether it counts only if nothing else explains the crash."""
        return self.evidence == "weak"

    @property
    def errors_only(self) -> bool:
        """Whether it does not count in a warning."""
        return self.evidence == "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one environment variable or argument that repairs the crash.

    Attributes:
        name: Name of the variable or flag. A person must supply one in `<angle brackets>`.
        value: Template of the value. Absent for a flag without a value.
        remove: Remove the variable or flag.
        versions: vLLM versions that have it (PEP 440), in quotes. Absent: all, or it is not vLLM's own.
    """

    name: str
    value: str | None = None
    remove: bool = False
    versions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One kind of crash.

    Attributes:
        id: Name of the crash: reason of the condition `Crashed` and of the event.
        severity: `fatal` is a crash; `degraded` and `benign` are notices.
        priority: 1 to 100. Of several in one log, the highest is the cause; up to 20 is a consequence.
        patterns: A line that matches any of them belongs to the signature.
        cause: Template: what happened.
        remedy: Template: what to do.
        stages: Stages of a start in which it happens; for readers.
        versions: vLLM versions; for readers.
        architectures: GPUs; for readers.
        environment: Variables to change.
        arguments: Flags to change.
        follows_others: Another error usually comes first, so it counts only if there is none.
        retryable: The same start may succeed the next time.
        auto_safe: The operator may apply the remedy by itself.
        references: Where to read more, best first.
        remedy_action: What the operator itself does.
        explains: Only for `benign`: crashes beside which it is shown. Absent: beside all.
        cache_variable: If the operator sets this variable, the damaged file is in the cache that it names.
    """

    is_user_defined: ClassVar[bool] = False
    """Whether the owner of the cluster wrote it. Its patterns are then matched in linear time."""

    id: str
    severity: Severity
    priority: int
    patterns: tuple[LinePattern, ...]
    cause: str
    remedy: str
    stages: tuple[str, ...] = ()
    versions: str = "all"
    architectures: str = "any"
    environment: tuple[Change, ...] = ()
    arguments: tuple[Change, ...] = ()
    follows_others: bool = False
    retryable: bool = False
    auto_safe: bool = False
    references: tuple[str, ...] = ()
    remedy_action: RemedyAction | None = None
    explains: tuple[str, ...] | None = None
    cache_variable: str | None = None

    @property
    def is_echo(self) -> bool:
        """Whether it says that something failed, but not what."""
        return self.severity is Severity.FATAL and self.priority <= ECHO_PRIORITY

    def is_told_beside(self, crash: str | None) -> bool:
        """Whether to show it as a notice beside a crash of this signature, or without a crash (None)."""
        return crash in self.explains if self.explains is not None else crash != self.id

    @property
    def reference(self) -> str | None:
        """The best reference: an upstream issue if there is one."""
        return self.references[0] if self.references else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A line (or a few) that belongs to a signature, and where it was seen."""

    signature: str
    text: str
    source: str


ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A remedy that may be applied without asking.

    `changes` are names of changes of the signature; `costs` is the worst that they cost, in words.
    """

    signature: str
    changes: tuple[str, ...]
    versions: str
    architectures: tuple[str, ...]
    costs: str

    def fits(self, version: str | None, architecture: str | None) -> bool:
        """Whether it is right for this vLLM version and GPU. An unknown version or GPU does not fit."""
        from packaging.specifiers import SpecifierSet  # not needed to read a log

        fits_gpu = ANY in self.architectures or architecture in self.architectures
        return fits_gpu and version is not None and SpecifierSet(self.versions).contains(version, prereleases=True)

    def select(self, signature: Signature) -> tuple[Change, ...]:
        """Return the changes of the signature that it applies."""
        return tuple(change for change in (*signature.arguments, *signature.environment) if change.name in self.changes)


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Read the signatures that ship with the operator."""
    return construct(tuple[Signature, ...], read_data("signatures.yaml")["signatures"])


def load_signature_samples() -> tuple[Sample, ...]:
    """Read the sample lines of all signatures."""
    samples = read_data("signature_samples.yaml")
    return tuple(Sample(signature=signature, **each) for signature, entries in samples.items() for each in entries)


def load_remedies() -> Mapping[str, Remedy]:
    """Read the remedies that may be applied without asking, by signature."""
    remedies = construct(tuple[Remedy, ...], read_data("remedies.yaml")["remedies"])
    return {remedy.signature: remedy for remedy in remedies}
