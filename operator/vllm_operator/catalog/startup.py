"""Knowledge about starts: the meaning of log lines, and the crashes that they report.

It is data, with the vLLM versions that write each line and a sample. Stages are text here; their type is
`vllm_operator.logs.state.Stage`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from vllm_operator.catalog.entry import Entry, load_file
from vllm_operator.catalog.signatures import Signature, load_signatures


class LineMeaning(Entry):
    """A log record whose message begins with one of `words`, contains `anchor`, and in which `regex` is found.

    `stage` begins; `banner` and `engine` say that a server process or an engine starts; `component` is the component of
    the captured `backend`; `shutdown`: the "engine" stops on request, or the "server" stops on request or because its engine is dead;
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


@cache
def load_startup() -> StartupKnowledge:
    """Return the knowledge that ships with the operator. It is read once and immutable."""
    return StartupKnowledge(stages=load_file(Stages, "stages.yaml"), signatures=load_signatures())
