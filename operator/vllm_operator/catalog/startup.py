"""What is known about starts: what the lines of a log mean, which backends they name, and which crashes they report.

All of it is data, with the versions of vLLM that write the line and a sample of each. Stages are named here by their text;
`vllm_operator.startup.state.Stage` is the type.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from pydantic import Field, StrictBool, StrictInt

from vllm_operator.catalog.entry import Entry, load_file, load_list
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.catalog.signatures import Signature, load_signatures


class LineMeaning(Entry):
    """A log record whose message begins with one of `words`, contains `anchor`, and in which `regex` is found.

    `stage` begins; `banner` and `engine` say that a server process or an engine starts; `component` is what the captured
    `backend` was chosen for; `loaded`: the weights are in GPU memory; `shutdown`: "engine" was told to stop, "server" was told
    to stop or has lost its engine; `progress` labels the captured `completed` and `total`; `arguments`: the line has the
    arguments of the server.
    """

    id: str
    words: tuple[str, ...]
    regex: str
    versions: str
    source: str
    samples: tuple[str, ...]
    anchor: str = ""
    stage: str | None = None
    banner: StrictBool = False
    engine: StrictBool = False
    cache: Literal["hit", "miss", "failure"] | None = None
    component: str | None = None
    loaded: StrictBool = False
    shutdown: Literal["engine", "server"] | None = None
    progress: str | None = None
    arguments: StrictBool = False


class Bar(Entry):
    """A progress bar whose label begins with `prefix` counts what `stage` does; `label` is our name for it."""

    prefix: str
    stage: str
    label: str
    versions: str
    source: str
    samples: tuple[str, ...]


class Silence(Entry):
    """For how many seconds a healthy stage may log nothing, and why."""

    seconds: StrictInt
    why: str


class Measured(Entry):
    """How many seconds stages took, by stage: `cold` with empty caches, `warm` with full ones.

    `where`: model, version and GPU, in words.
    """

    where: str
    source: str
    stages: Mapping[str, Mapping[str, StrictInt]]


class Failure(Entry):
    """Text that says that a process has failed.

    `serving`: also after the server was ready. `death`: it only says that a process ended, as in an orderly shutdown.
    `unbidden`: the process was not told to end, whatever the processes beside it were told afterwards. `native`: no other line
    explains the failure.
    """

    text: str
    serving: StrictBool = False
    death: StrictBool = False
    unbidden: StrictBool = False
    native: StrictBool = False


class Heartbeat(Entry):
    """Text of a line that repeats at an interval while a process waits."""

    text: str
    source: str
    sample: str


class Stages(Entry):
    """Everything that is known about the lines of a start: the content of `stages.yaml`.

    `silent_backends` are parts of names of backends that compile kernels without logging, which happens in
    `silent_stages`; silence under `silent_after_seconds` is ordinary. `echoes` are parts of exceptions that only
    report what failed elsewhere. `measured` is for `dense` models and for those with `experts`.
    """

    lines: tuple[LineMeaning, ...]
    bars: tuple[Bar, ...]
    measured: Mapping[str, Measured]
    silence: Mapping[str, Silence]
    silent_backends: tuple[str, ...]
    silent_stages: tuple[str, ...]
    silent_after_seconds: StrictInt
    failures: tuple[Failure, ...]
    echoes: tuple[str, ...]
    heartbeat_lines: tuple[Heartbeat, ...] = Field(alias="heartbeats")

    @cached_property
    def heartbeats(self) -> tuple[str, ...]:
        """Texts of lines that repeat at an interval while a process waits."""
        return tuple(line.text for line in self.heartbeat_lines)


class LoggedName(Entry):
    """A pattern of logged names, and the backends that such a line can mean."""

    pattern: re.Pattern[str]
    backends: tuple[str, ...]


class LoggedNamesOfComponent(Entry):
    """The logged names of one component."""

    component: Component
    source: str
    names: tuple[LoggedName, ...]


@dataclass(frozen=True, slots=True)
class LoggedNames:
    """What vLLM's log calls a backend, and what we call it.

    The log writes "TRT-LLM ragged DeepSeek", `AgRsAll2AllManager` or `FlashInferCutlassNvFp4LinearKernel`, differently in
    each version. One name for each backend shows whether the engine took what was planned.
    """

    components: Mapping[str, tuple[LoggedName, ...]]

    def meant(self, component: str, logged: str) -> tuple[str, ...]:
        """Return the backends, by our names, that a logged name can mean; none if it is unknown."""
        bare = _bare(logged)
        return next((name.backends for name in self.components.get(component, ()) if name.pattern.fullmatch(bare)), ())

    def agree(self, component: str, logged: str, planned: str) -> bool:
        """Whether a logged name can be the backend that was planned."""
        meant = self.meant(component, logged)
        return planned in meant if meant else _alike(logged, planned)


def _alike(one: str, other: str) -> bool:
    """Whether one name contains the other, and both or neither name FlashInfer."""
    first, second = _bare(one), _bare(other)
    return (first in second or second in first) and ("flashinfer" in first) == ("flashinfer" in second)


def _bare(backend: str) -> str:
    return "".join(c for c in backend.casefold() if c.isascii() and c.isalnum())


@dataclass(frozen=True, slots=True, eq=False)
class StartupKnowledge:
    """What the lines of a start mean, and the known crashes. Compared by identity."""

    stages: Stages
    signatures: tuple[Signature, ...]


def load_logged_names() -> LoggedNames:
    """Read the logged names that ship with the operator."""
    return LoggedNames({entry.component.value: entry.names for entry in load_list(LoggedNamesOfComponent, "logged_names.yaml")})


@cache
def load_startup() -> StartupKnowledge:
    """Return what ships with the operator. It is read once, and never changes."""
    return StartupKnowledge(stages=load_file(Stages, "stages.yaml"), signatures=load_signatures())
