"""A whole start of every version, in every shape that engines take and every form that logs take, reads as its stages.

The lines are the samples of the catalog, each quoted with its source for the versions that write it; here they are put
together as those versions do: who writes which line, with which prefix, and whether bars have one.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vllm_operator.catalog.startup import Bar, load_startup
from vllm_operator.catalog.versions import load_versions
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage, StartupState

KNOWLEDGE = load_startup()
VERSIONS = [table.version for table in load_versions().tables]
STAGES = tuple(stage for stage in Stage if stage not in (Stage.SCHEDULING, Stage.IMAGE_PULL))
FRONT = (Stage.PROCESS_START, Stage.CONFIGURATION, Stage.SERVER_START, Stage.READY)
"""Stages whose lines the API server writes."""


def applies(versions: str, version: str) -> bool:
    return versions == "all" or SpecifierSet(versions).contains(version)


@cache
def samples(version: str, stage: Stage) -> list[str]:
    """What this version writes in a stage, without what precedes the message."""
    lines = [meaning.samples[0] for meaning in KNOWLEDGE.stages.lines if meaning.stage == stage and applies(meaning.versions, version)]
    bars = [bar.samples[0] for bar in KNOWLEDGE.stages.bars if bar.stage == stage and bar.label and applies(bar.versions, version)]
    return [(line.partition("] ")[2] or line.partition(") ")[2] or line).rpartition("flashinfer.jit: ")[2] for line in lines] + bars


@dataclass(frozen=True)
class Shape:
    """Who writes: the front ends, the engine cores, the workers. Without workers the engine core does their work."""

    front: tuple[str, ...] = ("APIServer",)
    cores: tuple[str, ...] = ("EngineCore",)
    workers: tuple[str, ...] = ()


SHAPES = {
    "one GPU": Shape(),
    "tensor parallel": Shape(workers=("VllmWorker-0", "VllmWorker-1", "Worker_TP0", "Worker_TP1")),
    "pipeline parallel": Shape(workers=("Worker_PP0_TP0", "Worker_PP1_TP0")),
    "data parallel": Shape(front=("ApiServer_0", "ApiServer_1", "DPCoordinator"), cores=("EngineCore_DP0", "EngineCore_DP1")),
    "expert parallel": Shape(
        front=("ApiServer_0",),
        cores=("EngineCore_DP0", "EngineCore_DP1"),
        workers=("Worker_DP0_TP0_EP0", "Worker_DP0_TP1_EP1", "Worker_DP1_TP0_EP2", "Worker_DP1_TP1_EP3"),
    ),
    "context parallel on two nodes": Shape(workers=("Worker_PCP0_TP0_DCP0", "Worker_PCP1_TP1_DCP1")),
}


def writers(shape: Shape, stage: Stage, version: str) -> tuple[str, ...]:
    names = shape.front if stage in FRONT else shape.workers or shape.cores
    if Version(version) < Version("0.18"):
        return tuple("EngineCore_DP0" if name == "EngineCore" else name for name in names)
    return names


def start(version: str, shape: Shape) -> Iterator[tuple[str, str, str]]:
    """Process, kind and text of each line: all processes of a shape go through a stage at the same time."""
    for stage in STAGES:
        for text in samples(version, stage):
            for name in writers(shape, stage, version):
                kind = "bar" if "%" in text and "|" in text else "library" if text.startswith("[Autotuner]") else "record"
                yield name, "uvicorn" if kind == "record" and _is_of_uvicorn(text) else kind, text


def _is_of_uvicorn(text: str) -> bool:
    return text.startswith("INFO:") or "Started server process" in text


def prefix(name: str, kind: str, version: str) -> str:
    """Up to 0.30 a wrapper writes it on all that Python prints; since 0.31 the formatter, on records alone."""
    written = kind == "record" or Version(version) < Version("0.31")
    return f"({name} pid={100 + len(name)}) " if written else ""


@cache
def as_text(version: str, shape: Shape, *, colour: bool = False) -> str:
    lines = []
    for number, (name, kind, text) in enumerate(start(version, shape)):
        head = prefix(name, kind, version)
        if colour and head:
            head = f"\x1b[0;36m{head.strip()}\x1b[0;0m "
        time = f"11-21 09:{number // 60:02d}:{number % 60:02d}"
        if kind == "record":
            lines.append(f"{head}INFO {time} [module.py:{number + 1}] {text}")
        elif kind == "library":
            lines.append(f"{head}2025-{time},101 - INFO - autotuner.py:256 - flashinfer.jit: {text}")
        else:
            lines.append(head + text)
    return "\n".join(lines) + "\n"


def as_json(version: str, shape: Shape) -> str:
    """A JSON formatter: its fields are those of `--logging-config.formatter json` in 0.33; the wrapper still prefixes it up to 0.30."""
    lines = []
    for number, (name, kind, text) in enumerate(start(version, shape)):
        if kind != "record":
            lines.append(prefix(name, kind, version) + text)
            continue
        time = f"2026-11-21 09:{number // 60:02d}:{number % 60:02d},123"
        record = {"asctime": time, "levelname": "INFO", "name": "vllm", "process": 7, "message": text, "vllm_process_name": name}
        lines.append((prefix(name, kind, version) if Version(version) < Version("0.31") else "") + json.dumps(record))
    return "\n".join(lines) + "\n"


LONG_ARGUMENTS = "non-default args: {'chat_template': '" + "say INFO and ERROR 50%| " * 2000 + "', "


def cut(log: str) -> str:
    """Some container runtimes and log agents end a line after 16 KiB; what follows is a line without a beginning."""
    pieces = (line[begin : begin + 16384] for line in log.splitlines() for begin in range(0, max(len(line), 1), 16384))
    return "\n".join(pieces) + "\n"


FORMS: dict[str, Callable[[str, Shape], str | bytes]] = {
    "text": as_text,
    "coloured prefixes": lambda version, shape: as_text(version, shape, colour=True),
    "JSON": as_json,
    "invalid UTF-8 between lines": lambda version, shape: as_text(version, shape).encode().replace(b"\n", b"\n\xff\xfe\x80\n"),
    "beside a chatty library": lambda version, shape: as_text(version, shape).replace("\n", "\n[W1121 09:20:40 socket.cpp:207] busy\n"),
    "long lines cut at 16 KiB": lambda version, shape: cut(as_text(version, shape).replace("non-default args: {", LONG_ARGUMENTS)),
    "after a line of 200 kB": lambda version, shape: "x" * 200_000 + "\n" + as_text(version, shape),
}


def read(data: str | bytes) -> StartupState:
    parser = StartupParser(KNOWLEDGE)
    data = data.encode() if isinstance(data, str) else data
    for begin in range(0, len(data), 16 * 1024):  # as container runtimes cut what they pass on
        parser.feed(data[begin : begin + 16 * 1024])
    parser.end()
    return parser.final_state


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_goes_through_all_its_stages(version: str, form: str) -> None:
    for name, shape in SHAPES.items():
        state = read(FORMS[form](version, shape))

        assert [stage for stage, _ in state.entered] == list(STAGES), name
        assert state.crash is None, name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_times_of_its_stages_are_those_of_its_lines(version: str) -> None:
    state = read(as_text(version, SHAPES["one GPU"]))
    times = [time for _, time in state.entered]

    assert all(time is not None for time in times)
    assert times == sorted(time for time in times if time is not None)
    assert times[0] == datetime(2000, 11, 21, 9, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("bar", [pytest.param(bar, id=bar.prefix) for bar in KNOWLEDGE.stages.bars])
def test_each_bar_counts_its_stage(bar: Bar) -> None:
    for sample in bar.samples:
        parser = StartupParser(KNOWLEDGE)
        parser.feed(sample + "\n")

        assert parser.state.stage == bar.stage
        progress = parser.state.progress
        assert (progress.label if progress else "") == bar.label
