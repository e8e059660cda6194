"""Knowledge about starts: the meaning of log lines, and known crashes with their causes and remedies.

It is data. Lines of a start (`data/stages.yaml`) have the vLLM versions that write them, and a sample. Stages are text here; their type is
`vllm_operator.logs.state.Stage`.

A signature of a crash (`data/signatures.yaml`) has patterns for single log lines, and texts as jinja2 templates over the captures of the
patterns. `vllm_operator.logs` decides which of several signatures in a log is the root cause, by `severity`, `priority` and the `evidence`
of each pattern. A user decides about the remedy in a signature. A remedy that the operator may apply itself is a separate entry
(`data/remedies.yaml`), with the versions and GPUs to which it is limited.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import ClassVar, Literal

from packaging.specifiers import SpecifierSet
from pydantic import StrictBool, StrictInt

from vllm_operator.catalog.entry import Entry, load_file, load_list, read_data

ECHO_PRIORITY = 20
"""Maximum priority of signatures that only report a failure elsewhere."""

FACTS = ("stage", "utilization", "device")
"""Names that every text may use in addition to captures: the stage of the start, and settings that the log shows."""


class Severity(StrEnum):
    """Severity of a crash: the process failed, is slower than possible, or is not affected."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    BENIGN = "benign"


class RemedyAction(StrEnum):
    """Action of the operator for a crash."""

    QUARANTINE_CACHE = "quarantine-cache"
    """Stop using the cache directory if it caused the crash; the next start fills a new one."""
    CLEAN_CACHE = "clean-cache"
    """Delete unused cache directories from the volume."""


class LinePattern(Entry):
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


class Change(Entry):
    """A change of an environment variable or argument that fixes the crash.

    Attributes:
        name: Name of the variable or flag. A person must supply one in `<angle brackets>`.
        value: Template of the value. Absent for a flag without a value.
        remove: Remove the variable or flag.
        versions: vLLM versions that have it (PEP 440), in quotes. Absent: all, or it is not vLLM's own.
    """

    name: str
    value: str | None = None
    remove: StrictBool = False
    versions: str | None = None


class Signature(Entry):
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
    """Whether it is user-defined. Its patterns are then matched in linear time."""

    id: str
    severity: Severity
    priority: StrictInt
    patterns: tuple[LinePattern, ...]
    cause: str
    remedy: str
    stages: tuple[str, ...] = ()
    versions: str = "all"
    architectures: str = "any"
    environment: tuple[Change, ...] = ()
    arguments: tuple[Change, ...] = ()
    follows_others: StrictBool = False
    retryable: StrictBool = False
    auto_safe: StrictBool = False
    references: tuple[str, ...] = ()
    remedy_action: RemedyAction | None = None
    explains: tuple[str, ...] | None = None
    cache_variable: str | None = None

    @property
    def is_echo(self) -> bool:
        """Whether it reports a failure without its cause."""
        return self.severity is Severity.FATAL and self.priority <= ECHO_PRIORITY

    def is_shown_beside(self, crash: str | None) -> bool:
        """Return whether to show it as a notice together with a crash of this signature, or without a crash (None)."""
        return crash in self.explains if self.explains is not None else crash != self.id

    @property
    def reference(self) -> str | None:
        """The best reference: an upstream issue if there is one."""
        return self.references[0] if self.references else None


class Sample(Entry):
    """One or more lines that belong to a signature, and their source."""

    signature: str
    text: str
    source: str


ANY = "any"


class Remedy(Entry):
    """A remedy that the operator may apply itself.

    `changes` are names of changes of the signature. `costs` describes their greatest disadvantage.
    """

    signature: str
    changes: tuple[str, ...]
    versions: str
    architectures: tuple[str, ...]
    costs: str

    def fits(self, version: str | None, architecture: str | None) -> bool:
        """Return whether it applies to this vLLM version and GPU. It never applies to an unknown version or GPU."""
        fits_gpu = ANY in self.architectures or architecture in self.architectures
        return fits_gpu and version is not None and SpecifierSet(self.versions).contains(version, prereleases=True)

    def select(self, signature: Signature) -> tuple[Change, ...]:
        """Return the signature's changes that it applies."""
        return tuple(change for change in (*signature.arguments, *signature.environment) if change.name in self.changes)


class LineMeaning(Entry):
    """A log record whose message begins with one of `words`, contains `anchor`, and in which `regex` is found.

    `stage` begins, or with `ends` ends; `banner` and `engine` say that a server process or an engine starts; `component` is the component
    of the captured `backend`; `shutdown`: the "engine" stops on request, or the "server" stops on request or because its engine is dead;
    `progress` labels the captured `completed` and `total`; `arguments`: the line has the arguments of the server.
    """

    id: str
    words: tuple[str, ...]
    regex: str
    versions: str
    source: str
    samples: tuple[str, ...]
    anchor: str = ""
    stage: str | None = None
    ends: bool = False
    banner: bool = False
    engine: bool = False
    cache: Literal["hit", "miss", "failure"] | None = None
    component: str | None = None
    shutdown: Literal["engine", "server"] | None = None
    progress: str | None = None
    arguments: bool = False


class Bar(Entry):
    """A progress bar whose label begins with `prefix` shows the progress of `stage`; `label` is our name for it."""

    prefix: str
    stage: str
    label: str
    versions: str
    source: str
    samples: tuple[str, ...]


class Silence(Entry):
    """Maximum seconds for which a healthy stage may log nothing, and the reason."""

    seconds: int
    why: str


class Measured(Entry):
    """Measured seconds by stage: `cold` with empty caches, `warm` with full ones.

    `where`: model, version and GPU, in words.
    """

    where: str
    source: str
    stages: Mapping[str, Mapping[str, int]]


class Failure(Entry):
    """Text that says that a process has failed.

    `serving`: also after the server was ready. `death`: it only reports that a process ended, as in an orderly shutdown. `unbidden`: the
    process did not stop on request, even if other processes did afterwards. `native`: no other line explains the failure.
    """

    text: str
    serving: bool = False
    death: bool = False
    unbidden: bool = False
    native: bool = False


class FailureKind(Entry):
    """What the engine was doing when an error ended it that matches no signature.

    Attributes:
        id: Name, for readers of the file.
        cause: What failed. The message of the error follows.
        remedy: The usual causes, and what to try first.
        frames: Regular expression for a frame of the traceback.
        message: Regular expression for the message of the error. Without `frames`, it decides alone.
    """

    id: str
    cause: str
    remedy: str
    frames: str | None = None
    message: str | None = None


class Heartbeat(Entry):
    """Text of a line that repeats at an interval while a process waits."""

    text: str
    source: str
    sample: str


class Stages(Entry):
    """Knowledge about the lines of a start: the content of `stages.yaml`.

    `silent_backends` are parts of names of backends that compile kernels without logging, which happens in `silent_stages`; silence under
    `silent_after_seconds` is ordinary. `echoes` are parts of exceptions that only report a failure elsewhere. `measured` is for `dense`
    models and for those with `experts`.
    """

    lines: tuple[LineMeaning, ...]
    bars: tuple[Bar, ...]
    measured: Mapping[str, Measured]
    silence: Mapping[str, Silence]
    silent_backends: tuple[str, ...]
    silent_stages: tuple[str, ...]
    silent_after_seconds: int
    failures: tuple[Failure, ...]
    echoes: tuple[str, ...]
    heartbeats: tuple[Heartbeat, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StartupKnowledge:
    """The meaning of the lines of a start, and the known crashes. Compared by identity."""

    stages: Stages
    signatures: tuple[Signature, ...]
    kinds: tuple[FailureKind, ...] = ()


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Read the signatures that ship with the operator."""
    return load_list(Signature, "signatures.yaml", "signatures")


def load_signature_samples() -> tuple[Sample, ...]:
    """Read the sample lines of all signatures."""
    samples = read_data("signature_samples.yaml")
    return tuple(Sample(signature=signature, **each) for signature, entries in samples.items() for each in entries)


@cache
def load_failure_kinds() -> tuple[FailureKind, ...]:
    """Read the kinds of failures for errors that match no signature."""
    return load_list(FailureKind, "failures.yaml", "failures")


def load_remedies() -> Mapping[str, Remedy]:
    """Read the remedies that the operator may apply itself, by signature."""
    return {remedy.signature: remedy for remedy in load_list(Remedy, "remedies.yaml", "remedies")}


@cache
def load_startup() -> StartupKnowledge:
    """Return the knowledge that ships with the operator. It is read once and immutable."""
    return StartupKnowledge(stages=load_file(Stages, "stages.yaml"), signatures=load_signatures(), kinds=load_failure_kinds())
