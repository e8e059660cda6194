"""The simulated kubelets' logs behave as a real kubelet's, also where that is awkward."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from testenv.api import ApiClient
from testenv.cri import LogWriter, parse_record
from testenv.logs import Changes, ContainerLogs, ContainerWatch, LogError, LogRequest, read_log, shorten_timestamp


@pytest.fixture
def logs(tmp_path: Path) -> ContainerLogs:
    return ContainerLogs(tmp_path, "demo", "server-0", "vllm")


def at(second: int, microsecond: int = 0) -> datetime:
    return datetime(2026, 11, 21, 9, 27, second, microsecond, tzinfo=UTC)


def asked(**query: str) -> LogRequest:
    return LogRequest.parse("/containerLogs/demo/server-0/vllm?" + "&".join(f"{key}={value}" for key, value in query.items()))


async def stream(logs: ContainerLogs, **query: str) -> bytes:
    request = asked(**query)
    return b"".join([data async for data in read_log(logs, logs.choose(request), request, Changes())])


def write(logs: ContainerLogs, *parts: bytes, run: int = 0, exits: bool = False) -> LogWriter:
    writer = LogWriter(logs.path(run))
    for second, part in enumerate(parts):
        writer.write(part, at=at(second))
    if exits:
        writer.exit(at=at(59))
    return writer


async def test_text_without_a_newline_is_invisible_until_the_newline_comes(logs: ContainerLogs) -> None:
    writer = write(logs, b"\r 1/3", b"\r 2/3")
    assert await stream(logs) == b""
    writer.write(b"\r 3/3\n")
    assert await stream(logs) == b"\r 1/3\r 2/3\r 3/3\n"


async def test_text_without_a_newline_is_visible_at_exit_and_stays_unterminated(logs: ContainerLogs) -> None:
    write(logs, b"done\n", b"dying", exits=True)
    assert await stream(logs) == b"done\ndying"


async def test_a_long_line_is_joined_and_stamped_once(logs: ContainerLogs) -> None:
    write(logs, b"x" * 40_000 + b"\n")
    assert [len(record.text) for line in logs.path(0).read_bytes().splitlines() if (record := parse_record(line))] == [
        16_384,
        16_384,
        7_232,
    ]
    assert await stream(logs, timestamps="true") == b"2026-11-21T09:27:00Z " + b"x" * 40_000 + b"\n"


async def test_a_long_bar_shows_its_first_16_kib_when_20_have_gathered(logs: ContainerLogs) -> None:
    writer = write(logs, b"y" * 20_479)
    assert await stream(logs) == b""
    writer.write(b"y")
    assert await stream(logs) == b"y" * 16_384


async def test_tail_counts_records_not_lines(logs: ContainerLogs) -> None:
    write(logs, b"first\n", b"x" * 20_000 + b"\n", b"last\n")
    assert await stream(logs, tailLines="2") == b"x" * (20_000 - 16_384) + b"\nlast\n"
    assert await stream(logs, tailLines="0") == b""


async def test_since_is_cut_to_whole_seconds_and_inclusive(logs: ContainerLogs) -> None:
    write(logs, b"zero\n", b"one\n", b"two\n")
    assert await stream(logs, sinceTime="2026-11-21T09:27:01.9Z") == b"one\ntwo\n"


async def test_the_limit_counts_timestamps_and_ends_a_followed_stream(logs: ContainerLogs) -> None:
    write(logs, b"zero\n", b"one\n")
    assert await stream(logs, timestamps="true", limitBytes="23", follow="true") == b"2026-11-21T09:27:00Z ze"


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("2026-11-21T09:27:00.120000000Z", "2026-11-21T09:27:00.12Z"),
        ("2026-11-21T09:27:00.000000000Z", "2026-11-21T09:27:00Z"),
        ("2026-11-21T09:27:00.123456789Z", "2026-11-21T09:27:00.123456789Z"),
    ],
)
def test_trailing_zeros_of_a_timestamp_are_cut(recorded: str, shown: str) -> None:
    assert shorten_timestamp(recorded) == shown


async def test_a_followed_stream_does_not_go_on_with_the_next_run(logs: ContainerLogs) -> None:
    write(logs, b"first run\n")
    following = asyncio.ensure_future(stream(logs, follow="true"))
    await asyncio.sleep(0)
    write(logs, b"second run\n", run=1)
    assert await following == b"first run\n"
    assert await stream(logs) == b"second run\n"
    assert await stream(logs, previous="true") == b"first run\n"


async def test_of_many_streams_that_wait_the_one_with_a_new_line_goes_on(tmp_path: Path) -> None:
    changes, silent = Changes(), [ContainerLogs(tmp_path, "demo", f"server-{number}", "vllm") for number in range(5)]
    readings = []
    for logs in silent:
        write(logs, b"begin\n")
        readings.append(read_log(logs, 0, asked(follow="true"), changes))
        assert await anext(readings[-1]) == b"begin\n"
    waiting = [asyncio.ensure_future(anext(reading)) for reading in readings]
    await asyncio.sleep(0)

    write(silent[3], b"more\n")

    assert await waiting[3] == b"more\n"
    assert [each.done() for each in waiting] == [False, False, False, True, False]
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_followed_stream_crosses_a_rotation(logs: ContainerLogs) -> None:
    write(logs, b"before\n")
    request = asked(follow="true")
    reading = read_log(logs, 0, request, Changes())
    assert await anext(reading) == b"before\n"
    logs.path(0).rename(logs.path(0).with_suffix(".log.1"))
    write(logs, b"after\n", exits=True)
    assert await anext(reading) == b"after\n"
    assert await stream(logs) == b"after\n"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, 'container "vllm" in pod "server-0" is waiting to start: ContainerCreating'),
        ({"previous": "true"}, 'previous terminated container "vllm" in pod "server-0" not found'),
    ],
)
def test_a_run_that_there_is_not_is_refused_in_the_kubelets_words(logs: ContainerLogs, query: dict[str, str], words: str) -> None:
    with pytest.raises(LogError) as error:
        logs.choose(asked(**query))
    assert (error.value.status, str(error.value)) == (400, words)


@pytest.mark.parametrize("target", ["/", "/containerLogs/a/b", "/containerLogs/../b/c", "/pods"])
def test_nothing_else_is_served(target: str) -> None:
    with pytest.raises(LogError) as error:
        LogRequest.parse(target)
    assert error.value.status == 404


def test_a_fault_for_the_previous_run_leaves_the_current_one_alone(logs: ContainerLogs) -> None:
    write(logs, b"x\n")
    logs.path(0).with_name("FAULT-PREVIOUS").write_text("unavailable\n")
    assert logs.fault(previous=True) == "unavailable"
    assert logs.fault(previous=False) == ""


def test_a_container_that_runs_has_a_log(logs: ContainerLogs, tmp_path: Path) -> None:
    container: dict[str, object] = {"name": "vllm", "state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}
    pod = {"metadata": {"namespace": "demo", "name": "server-0"}, "status": {"containerStatuses": [container]}}
    watch = ContainerWatch(cast(ApiClient, None), tmp_path)
    watch.pod_changed(pod)
    assert logs.runs() == []
    container["state"] = {"running": {"startedAt": "x"}}
    watch.pod_changed(pod)
    assert logs.runs() == [0]


@pytest.mark.parametrize(
    ("state", "restarts", "over"),
    [
        ({"running": {"startedAt": "x"}}, 1, {0}),
        ({"terminated": {"exitCode": 1}}, 1, {1}),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, 1, {1}),
        ({"waiting": {"reason": "ContainerCreating"}}, 0, set()),
    ],
)
def test_runs_end_with_their_containers(
    logs: ContainerLogs, tmp_path: Path, state: dict[str, object], restarts: int, over: set[int]
) -> None:
    for run in range(2):
        write(logs, b"x\n", run=run)
    container = {"name": "vllm", "state": state, "restartCount": restarts}
    pod = {"metadata": {"namespace": "demo", "name": "server-0"}, "status": {"containerStatuses": [container]}}
    watch = ContainerWatch(cast(ApiClient, None), tmp_path)  # it is told of Pods here, and asks for none
    watch.pod_changed(pod)
    assert {run for run in range(2) if logs.path(run).with_suffix(".exit").exists()} == over
    watch.pod_gone(pod)
    assert logs.runs() == []
