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
from typing import Annotated, Any, ClassVar, Literal

from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, model_validator

from vllm_operator.catalog.entry import Entry, Sourced, SpecifierText, load_file, matching, read_data
from vllm_operator.catalog.error_forms import Alternatives
from vllm_operator.catalog.templates import join

ECHO_PRIORITY = 20
"""Maximum priority of signatures that only report a failure elsewhere."""

TEXT_LIMIT, LIST_LIMIT = 600, 16
"""Maximum characters of a text, and maximum length of a list, except of those that only ship with the operator."""

_SHOWN = ("cast", "uncompiled", "counted", "wsl", "paging", "pages", "tritons", "quantized", "customized", "unified", "asleep")
_AROUND = ("proposing", "placeholders", "filled", "reserved", "jitted", "invariant", "profiled", "unfused", *_SHOWN)
_CIRCUMSTANCES = ("device", "platform", "version", "eager", "nccl", "cached", "runner", "offloader", "architecture", *_AROUND)
_FOUND = ("plugin", "aligned", "advised", "candidates", "drafter", "launched", "unset", "recreated", "usersite", "assigned", "linked")
_LOGGED = (*_FOUND, "gemm", "given", "survived", "fusions", "qwix", "built", "fixed", "aborted", "devices", "pool", "unlinked", "switch")
SETTINGS = ("utilization", *_CIRCUMSTANCES, *_LOGGED, "chosen", "step", "graphs", "positions", "loopback", "spare", "looped", "speculated")
FACTS = ("stage", "limit", "attention", "moe", "options", "apart", "traceback", "notices", *SETTINGS)
"""Names that every text may use in addition to captures: the stage of the start, the memory limit of the container (`none` without one),
backends, arguments and optional flags that the log shows, how to start without the code in the frames of the error, its last frames,
notices, and `SETTINGS`, from lines."""


class Severity(StrEnum):
    """Severity of a crash: the process failed, is slower than possible, or is not affected."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    BENIGN = "benign"


class LinePattern(Entry):
    """A line matches if it contains `anchor` and `regex` is found in it."""

    anchor: str = Field(description="Text in the line. The regular expression is tried only on lines that contain it.")
    regex: str = Field(description="Regular expression. Texts can use its named groups.")
    context: str | None = Field(
        None, description="Regular expression that must be found in the frames of the traceback that the line ends."
    )
    evidence: Literal["weak", "warning", "error"] | None = Field(
        None,
        description="`weak` counts only if nothing else explains the crash, and `warning` even if it is only a warning; "
        "`error` does not count in a warning.",
    )
    overrules: tuple[str, ...] = Field(
        (), description="Signatures that this one explains, because the line says that a program was ended from outside."
    )


class Change(Entry):
    """A change of an environment variable or argument that fixes the crash."""

    name: str = Field(description="Name of the variable or flag. A person must supply one in `<angle brackets>`.")
    value: Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT)] | None = Field(
        None, description="Template of the value. Absent for a flag without a value."
    )
    bound: Literal["AtMost", "AtLeast"] | None = Field(
        None,
        description="The value is a limit for a number. One that is set and within it is not changed. Absent: the exact value.",
    )
    remove: StrictBool = Field(False, description="Remove the variable or flag.")
    versions: SpecifierText | None = Field(
        None, description="vLLM versions that have it (PEP 440), in quotes. Absent: all, or it is not vLLM's own."
    )


def _named(pattern: str, hint: str) -> AfterValidator:
    check = matching(rf"{pattern}|<[^<>]{{1,80}}>", hint)

    def check_name(change: Change) -> Change:
        check(change.name)
        return change

    return AfterValidator(check_name)


_Template = Annotated[str, BeforeValidator(join)]
_Text = Annotated[str, Field(max_length=TEXT_LIMIT)]
_Texts = Annotated[tuple[_Text, ...], Field(max_length=LIST_LIMIT)]
_Variable = Annotated[Change, _named("[A-Za-z_][A-Za-z0-9_]{0,127}", "is not the name of a variable")]
_Flag = Annotated[Change, _named("--[a-z0-9][-a-z0-9_.]{0,125}", "is not the name of a flag")]
_is_name = matching(r"[A-Z][A-Za-z0-9]{2,62}", "is not a name like DriverTooOld, of at most 63 letters and digits")


class _Explained(Entry):
    """Something with a cause and a remedy, which can use the names in `facts`."""

    @model_validator(mode="before")
    @classmethod
    def _state_facts(cls, written: Any) -> Any:
        match written:
            case {"facts": dict(facts), "cause": cause, "remedy": remedy}:
                stated = "".join(f"{{% set {name} = {value} %}}" for name, value in facts.items())
                return {**written, "cause": [stated, cause], "remedy": [stated, remedy]}
        return written


class Signature(_Explained):
    """One kind of crash."""

    is_user_defined: ClassVar[bool] = False
    """Whether it is user-defined. Its patterns are then matched in linear time."""

    id: Annotated[str, AfterValidator(_is_name)] = Field(
        description="Name of the crash: reason of the condition `Crashed` and of the event."
    )
    severity: Severity = Field(description="`fatal` is a crash; `degraded` and `benign` are notices.")
    priority: Annotated[StrictInt, Field(ge=1, le=100)] = Field(
        description="1 to 100. Of several in one log, the highest is the cause; up to 20 is a consequence."
    )
    patterns: tuple[LinePattern, ...] = Field(description="A line that matches any of them belongs to the signature.")
    cause: _Template = Field(description="Template, or a list of its pieces: what happened.")
    remedy: _Template = Field(description="Template, or a list of its pieces: what to do.")
    facts: Mapping[str, str] = Field({}, description="Names for conditions and values in both texts. Not in custom signatures.")
    stages: _Texts = Field((), description="Stages of a start in which it happens; for readers.")
    versions: _Text = Field("all", description="vLLM versions; for readers.")
    architectures: _Text = Field("any", description="GPUs; for readers.")
    environment: Annotated[tuple[_Variable, ...], Field(max_length=LIST_LIMIT)] = Field((), description="Variables to change.")
    arguments: Annotated[tuple[_Flag, ...], Field(max_length=LIST_LIMIT)] = Field((), description="Flags to change.")
    follows_others: StrictBool = Field(False, description="Another error usually comes first, so it counts only if there is none.")
    retryable: StrictBool = Field(False, description="The same start may succeed the next time.")
    origin: Literal["node", "outside"] | None = Field(
        None, description="Cause that is not in the spec: `node` (hardware), or `outside` (hub, storage, registry, another Pod)."
    )
    auto_safe: StrictBool = Field(False, description="The operator may apply the remedy by itself.")
    references: _Texts = Field((), description="Where to read more, best first.")
    remedy_action: Literal["quarantine-cache", "clean-cache"] | None = Field(None, description="What the operator itself does.")
    explains: _Texts | None = Field(None, description="Only for `benign`: crashes beside which it is shown. Absent: beside all.")
    cache_variable: str | None = Field(
        None, description="If the operator sets this variable, the damaged file is in the cache that it names."
    )

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


class Sample(Sourced):
    """One or more lines that belong to a signature, and their source."""

    signature: str
    text: str


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
        fits_gpu = "any" in self.architectures or architecture in self.architectures
        return fits_gpu and version is not None and SpecifierSet(self.versions).contains(version, prereleases=True)

    def select(self, signature: Signature) -> tuple[Change, ...]:
        """Return the signature's changes that it applies."""
        return tuple(change for change in (*signature.arguments, *signature.environment) if change.name in self.changes)


class LineMeaning(Sourced):
    """A log record whose message begins with one of `words`, contains `anchor`, and in which `regex` is found.

    `stage` begins, or with `ends` ends; `banner` and `engine` say that a server process or an engine starts; `component` is the component
    of the captured `backend`; `shutdown`: the "engine" stops on request, or the "server" stops on request or because its engine is dead;
    `progress` labels the captured `completed` and `total`; `arguments`: the line has the arguments of the server; `peers`: what it says
    about the nodes of one engine.
    """

    id: str
    words: tuple[str, ...]
    regex: str
    versions: str
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
    peers: Literal["placed", "awaited", "joined", "silent", "answer", "stop", "orphaned"] | None = None


class Bar(Sourced):
    """A progress bar whose label begins with `prefix` shows the progress of `stage`; `label` is our name for it."""

    prefix: str
    stage: str
    label: str
    versions: str
    samples: tuple[str, ...]


class Silence(Entry):
    """Maximum seconds for which a healthy stage may log nothing, the reason, and what to do if the log ends in it."""

    seconds: int
    why: str
    advice: str = ""


class Measured(Sourced):
    """Measured seconds by stage: `cold` with empty caches, `warm` with full ones.

    `where`: model, version and GPU, in words.
    """

    where: str
    stages: Mapping[str, Mapping[str, int]]


class Circumstance(Entry):
    """If `seen` is found in what the log shows, words of remedies are `replaced`, and sentences left out in which `omitted` is found."""

    seen: str
    replaced: Mapping[str, str]
    omitted: str


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


class FailureKind(_Explained):
    """What the engine was doing when an error ended it that matches no signature.

    The message of the error follows `cause`. `frames` is a regular expression for a frame of the traceback, and `message` one for the
    message of the error, which decides alone if there is no `frames`. `words` is one for the message that counts if no frame tells a kind.
    `first`: it decides before those of other frames. `general`: it says little, so it is the last choice. `follows_others`: another process
    has usually failed first.
    """

    id: str
    cause: _Template
    remedy: _Template
    facts: Mapping[str, str] = {}
    frames: str | None = None
    message: str | None = None
    words: str | None = None
    first: StrictBool = False
    general: StrictBool = False
    follows_others: StrictBool = False


class Heartbeat(Sourced):
    """Text of a line that repeats at an interval while a process waits."""

    text: str
    sample: str


class Stages(Entry):
    """Knowledge about the lines of a start: the content of `stages.yaml`.

    `silent_backends` (parts of names) compile kernels without logging, in `silent_stages`; silence up to `silent_after_seconds` is usual.
    `echoes` are parts of exceptions that only report failures elsewhere. `measured` is for `dense` models and for those with `experts`.
    `settings` and `placement` are what the line with the arguments says; `settings` also lines before it. `ended` is advice.
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
    circumstances: tuple[Circumstance, ...]
    settings: Alternatives
    placement: Alternatives
    ended: str


@dataclass(frozen=True, slots=True, eq=False)
class StartupKnowledge:
    """The meaning of the lines of a start, and the known crashes. Compared by identity."""

    stages: Stages
    signatures: tuple[Signature, ...]
    kinds: tuple[FailureKind, ...] = ()


def load_signature_samples() -> tuple[Sample, ...]:
    """Read the sample lines of all signatures."""
    samples = read_data("signature_samples.yaml")
    return tuple(Sample(signature=signature, **each) for signature, entries in samples.items() for each in entries)


def load_remedies() -> Mapping[str, Remedy]:
    """Read the remedies that the operator may apply itself, by signature."""
    return {remedy.signature: remedy for remedy in load_file(tuple[Remedy, ...], "remedies.yaml", "remedies")}


@cache
def load_startup() -> StartupKnowledge:
    """Return the knowledge that ships with the operator. It is read once and immutable."""
    return StartupKnowledge(
        stages=load_file(Stages, "stages.yaml"),
        signatures=load_file(tuple[Signature, ...], "signatures.yaml", "signatures"),
        kinds=load_file(tuple[FailureKind, ...], "failures.yaml", "failures"),
    )
