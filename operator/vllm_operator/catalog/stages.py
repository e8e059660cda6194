"""What the lines of a start mean: stages, progress bars, chosen backends, cache hits, and how long silence is normal.

All of it is data (`data/stages.yaml`), with the versions of vLLM that write the line and a sample of each.
Stages are named here by their text; `vllm_operator.startup.state.Stage` is the type.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.catalog.resources import read_data


@dataclass(frozen=True, slots=True)
class LineMeaning:
    """A log record whose message begins with one of `words`, contains `anchor`, and in which `regex` is found.

    `stage` is entered; `banner` and `engine` say that a server process or an engine begins; `cache` is "hit",
    "miss" or "failure"; `component` is what the captured `backend` was chosen for; `loaded`: the weights are in
    GPU memory; `shutdown`: "engine" was told to stop, "server" was told to or has
    lost its engine; `progress` labels captured `completed` and `total`. `arguments`: it holds those of
    the server.
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
    cache: str | None = None
    component: str | None = None
    loaded: bool = False
    shutdown: str | None = None
    progress: str | None = None
    arguments: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar whose label begins with `prefix` counts what `stage` does; `label` is our name for it."""

    prefix: str
    stage: str
    label: str
    versions: str
    source: str
    samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Silence:
    """For how many seconds a stage may log nothing although all is well, and why."""

    seconds: int
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """How many seconds stages took where they were measured, by stage; `cold` with empty caches, `warm` with full ones.

    `where`: model, version and GPU, in words.
    """

    where: str
    source: str
    stages: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Failure:
    """Text that says that a process has failed.

    `serving`: also once the server was ready. `death`: it only says that a process is gone, which an orderly
    shutdown does as well. `unbidden`: nobody told it to, whatever the processes beside it were told after it was gone.
    `native`: the line is the only explanation that there will be.
    """

    text: str
    serving: bool = False
    death: bool = False
    unbidden: bool = False
    native: bool = False


@dataclass(frozen=True, slots=True)
class Stages:
    """All that is known of the lines of a start.

    `silent_backends` are parts of names of backends that compile kernels without a word, which happens in
    `silent_stages`; silence under `silent_after_seconds` is ordinary. `echoes` are parts of exceptions that only
    report what failed elsewhere. `heartbeats` are parts of lines that are repeated by the clock while something is
    waited for. `measured` is for `dense` models and for those with `experts`.
    """

    lines: tuple[LineMeaning, ...]
    bars: tuple[Bar, ...]
    measured: Mapping[str, Measured]
    silence: Mapping[str, Silence] = field(default_factory=dict)
    silent_backends: tuple[str, ...] = ()
    silent_stages: tuple[str, ...] = ()
    silent_after_seconds: int = 0
    failures: tuple[Failure, ...] = ()
    echoes: tuple[str, ...] = ()
    heartbeats: tuple[str, ...] = ()


def load_stages() -> Stages:
    """Read all of it.

    Raises:
        TypeError: An entry has a field that does not exist, or lacks one.
    """
    data = read_data("stages.yaml")
    return Stages(
        lines=tuple(_meaning(entry) for entry in data["lines"]),
        bars=tuple(Bar(**{**entry, "samples": tuple(entry["samples"])}) for entry in data["bars"]),
        measured={kind: Measured(**entry) for kind, entry in data["measured"].items()},
        silence={stage: Silence(**entry) for stage, entry in data["silence"].items()},
        silent_backends=tuple(data["silent_backends"]),
        silent_stages=tuple(data["silent_stages"]),
        silent_after_seconds=int(data["silent_after_seconds"]),
        failures=tuple(Failure(**entry) for entry in data["failures"]),
        echoes=tuple(data["echoes"]),
        heartbeats=tuple(entry["text"] for entry in data["heartbeats"]),
    )


def _meaning(entry: Mapping[str, Any]) -> LineMeaning:
    return LineMeaning(**{**entry, "words": tuple(entry["words"]), "samples": tuple(entry["samples"])})
