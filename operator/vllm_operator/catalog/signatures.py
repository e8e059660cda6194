"""Known crashes: how their log lines look, why they happen, and what to do.

A signature is data (`data/signatures.yaml`): patterns over single log lines, and texts as jinja2 templates over what the
patterns capture. `vllm_operator.startup` decides which of several signatures in one log is the root cause; for that it needs
`severity`, `priority` and each pattern's `evidence`.

What a signature says about its remedy is for a person to weigh. A remedy that the operator applies by itself has limits that a
machine can check, and is an entry of its own (`data/remedies.yaml`).
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, ClassVar, Literal

from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, Field, StrictBool, StrictInt

from vllm_operator.catalog.entry import Entry, SpecifierText, load_file, matching, parse_entries
from vllm_operator.catalog.resources import read_data

ECHO_PRIORITY = 20
"""Signatures of this priority or less only report that something failed elsewhere."""

TEXT_LIMIT, LIST_LIMIT = 600, 16
"""Longest text of one line in characters, and longest list of texts, in a signature."""

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


SignatureName = Annotated[
    str, AfterValidator(matching(r"[A-Z][A-Za-z0-9]{2,62}", "is not a name like DriverTooOld, of at most 63 letters and digits"))
]
Text = Annotated[str, Field(max_length=TEXT_LIMIT)]
Texts = Annotated[tuple[Text, ...], Field(max_length=LIST_LIMIT)]


class LinePattern(Entry):
    """A line matches if it contains `anchor` and `regex` is found in it."""

    anchor: str = Field(description="text in the line; the regular expression is tried only on lines that contain it")
    regex: str = Field(description="regular expression; texts can use its named groups")
    context: str | None = Field(None, description="regular expression that must be found in the frames of the traceback that the line ends")
    evidence: Literal["weak", "error"] | None = Field(
        None, description="`weak` counts only if nothing else explains the crash; `error` does not count in a warning"
    )
    overrules: tuple[str, ...] = Field(
        (), description="signatures that this one explains: the line says that a program was ended from outside"
    )

    @property
    def weak(self) -> bool:
        """Whether it counts only if nothing else explains the crash."""
        return self.evidence == "weak"

    @property
    def errors_only(self) -> bool:
        """Whether it does not count in a warning."""
        return self.evidence == "error"


class Change(Entry):
    """A change of one environment variable or argument that repairs the crash."""

    name: str = Field(description="name of the variable or flag; one in `<angle brackets>` must be supplied by a person")
    value: str | None = Field(None, description="template of the value; absent for a flag without one")
    remove: StrictBool = Field(False, description="remove the variable or flag")
    versions: SpecifierText | None = Field(
        None, description="vLLM versions that have it (PEP 440), in quotes; absent: all, or it is not vLLM's own"
    )


class Signature(Entry):
    """One kind of crash."""

    is_user_defined: ClassVar[bool] = False
    """Whether the owner of the cluster wrote it; its patterns are then matched in linear time."""

    id: SignatureName = Field(description="name of the crash: reason of the condition `Crashed` and of the event")
    severity: Severity = Field(description="`fatal` is a crash; `degraded` and `benign` are notices")
    priority: Annotated[StrictInt, Field(ge=1, le=100)] = Field(
        description="1 to 100; of several in one log, the highest is the cause; up to 20 is a consequence"
    )
    stages: Texts = Field((), description="stages of a start in which it happens; for readers")
    versions: Text = Field("all", description="vLLM versions; for readers")
    architectures: Text = Field("any", description="GPUs; for readers")
    patterns: tuple[LinePattern, ...] = Field(description="patterns; a line that matches any of them belongs to the signature")
    cause: str = Field(description="template: what happened")
    remedy: str = Field(description="template: what to do")
    environment: tuple[Change, ...] = Field((), description="variables to change")
    arguments: tuple[Change, ...] = Field((), description="flags to change")
    follows_others: StrictBool = Field(False, description="another error usually comes first, so it counts only if there is none")
    retryable: StrictBool = Field(False, description="the same start may succeed the next time")
    auto_safe: StrictBool = Field(False, description="the operator may apply the remedy by itself")
    references: Texts = Field((), description="where to read more, best first")
    action: RemedyAction | None = Field(None, alias="remedyAction", description="what the operator itself does")
    explains: Texts | None = Field(None, description="only for `benign`: crashes beside which it is shown; absent: beside all")
    cache_variable: str | None = Field(
        None, description="if the operator sets this variable, the damaged file is in the cache that it names"
    )

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


class Sample(Entry):
    """A line (or a few) that belongs to a signature, and where it was seen."""

    signature: str
    text: str
    source: str


ANY = "any"


class Remedy(Entry):
    """A remedy that may be applied without asking.

    `changes` are names of changes of the signature; `costs` is the worst that they cost, in words.
    """

    signature: str
    changes: tuple[str, ...]
    versions: SpecifierText
    architectures: tuple[str, ...]
    costs: str

    def fits(self, version: str | None, architecture: str | None) -> bool:
        """Whether it is right for this vLLM version and GPU. An unknown version or GPU does not fit."""
        fits_gpu = ANY in self.architectures or architecture in self.architectures
        return fits_gpu and version is not None and SpecifierSet(self.versions).contains(version, prereleases=True)

    def select(self, signature: Signature) -> tuple[Change, ...]:
        """Return the changes of the signature that it applies."""
        return tuple(change for change in (*signature.arguments, *signature.environment) if change.name in self.changes)


class _Signatures(Entry):
    signatures: tuple[Signature, ...]


class _Remedies(Entry):
    remedies: tuple[Remedy, ...]


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Read the signatures that ship with the operator."""
    return load_file(_Signatures, "signatures.yaml").signatures


def load_signature_samples() -> tuple[Sample, ...]:
    """Read the sample lines of all signatures."""
    name = "signature_samples.yaml"
    return parse_entries(
        Sample, ({"signature": signature, **each} for signature, entries in read_data(name).items() for each in entries), name
    )


def load_remedies() -> Mapping[str, Remedy]:
    """Read the remedies that may be applied without asking, by signature."""
    return {remedy.signature: remedy for remedy in load_file(_Remedies, "remedies.yaml").remedies}
