"""A crash whose log could not be read: the status says so, says why, and what to do."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from support import observations as o
from support.followed_logs import FOREVER, KEY, World
from support.logs import TERMINATED, line, pod
from vllm_operator.api.conditions import find_condition
from vllm_operator.api.status import CrashStatus
from vllm_operator.kube.client import ClusterError, Forbidden, Invalid, Unavailable
from vllm_operator.logs.state import LogProblem, Stage, StartupState, UnreadLog
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import report

RUN = ("uid-vllm-a-x1", 0)


def last_crash(observation: Observation) -> CrashStatus:
    crash = report(observation).status.last_crash
    assert crash is not None
    return crash


@pytest.mark.parametrize(
    ("log", "problem", "detail"),
    [
        (
            [Forbidden('cannot get resource "pods/log"', verb="get", resource="pods/log")],
            LogProblem.FORBIDDEN,
            'cannot get resource "pods/log"',
        ),
        ([Invalid('previous terminated container "vllm" in pod "p" not found')], LogProblem.GONE, "not found"),
        ([b"unable to retrieve container logs for containerd://4f6b"], LogProblem.GONE, "unable to retrieve"),
        ([Unavailable("dial tcp 10.0.0.7:10250: connect: connection refused")], LogProblem.UNREACHABLE, "connection refused"),
        ([FOREVER], LogProblem.PENDING, ""),
    ],
)
async def test_why_a_log_was_not_read_is_kept(
    log: Iterable[ClusterError | bytes | float], problem: LogProblem, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    world.cluster.script_log("default", "p", *[list(log)] * 50)
    world.show(pod(state=TERMINATED))
    await world.until(lambda: ("uid-of-p", 0) in (unread := world.followers.unread(KEY)) and unread["uid-of-p", 0].problem is problem)
    assert detail in world.followers.unread(KEY)["uid-of-p", 0].detail
    assert world.state() is None
    await world.followers.close()


async def test_a_log_that_is_read_after_all_is_not_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.cluster.script_log("default", "p", [Unavailable("no route to host")], [line(1, "crash Boom")])
    world.show(pod(state=TERMINATED))
    await world.until(lambda: world.state() is not None and not world.followers.unread(KEY))
    await world.followers.close()


async def test_an_empty_log_counts_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.cluster.script_log("default", "p", *[[]] * 20)
    world.show(pod(state=TERMINATED))
    await world.until(lambda: world.followers.caught_up(KEY) and not world.followers.unread(KEY))
    await world.followers.close()


@pytest.mark.parametrize(
    ("unread", "cause", "remedy"),
    [
        (UnreadLog(LogProblem.PENDING), "the operator has not read its log yet", "kubectl logs vllm-a-x1 -n models --previous"),
        (UnreadLog(LogProblem.FORBIDDEN, "cannot get"), "lacks the permission to get pods/log", "ClusterRole"),
        (UnreadLog(LogProblem.GONE, 'container "vllm" not found'), 'its log no longer exists (container "vllm" not found)', "log store"),
        (UnreadLog(LogProblem.UNREACHABLE, "connection refused"), "its log could not be read (connection refused)", "Check node"),
    ],
)
def test_the_status_says_why_the_log_is_unknown_and_what_to_do(unread: UnreadLog, cause: str, remedy: str) -> None:
    crash = last_crash(o.observe(o.crashed_pod(), unread_logs={RUN: unread}))
    assert crash.signature == "Unknown"
    assert cause in str(crash.cause)
    assert "does not say why" not in str(crash.cause)
    assert remedy in str(crash.remedy)


def test_a_crash_whose_log_was_read_in_part_only_says_so() -> None:
    state = StartupState(lines=9000, skipped_seconds=60, is_final=True)
    crash = last_crash(o.observe(o.crashed_pod(), states={("vllm-a-x1", 0): state}))
    assert crash.signature == "Unknown"
    assert "parts of its log were not read, because it grew faster" in str(crash.cause)
    assert "log less" in str(crash.remedy)


def test_a_start_whose_log_is_read_in_part_only_says_how_much_is_missing_and_what_to_do() -> None:
    state = StartupState(stage=Stage.WEIGHT_LOAD, lines=9000, skipped_seconds=600)
    status = report(o.observe(o.starting_pod("vllm-a-x1"), states={("vllm-a-x1", 0): state})).status
    starting = find_condition(status.conditions, "Ready")
    assert starting is not None
    assert "at least 10 min of it were not read" in starting.message
    assert "configure the container to log less" in starting.message


def test_what_the_status_of_the_container_explains_needs_no_log() -> None:
    status = report(o.observe(o.crashed_pod(code=137, reason="OOMKilled"), unread_logs={RUN: UnreadLog(LogProblem.GONE)})).status
    crashed = find_condition(status.conditions, "Crashed")
    assert crashed is not None
    assert crashed.reason == "OOMKilled"
    assert " log " not in crashed.message


PENDING, UNREACHABLE, FORBIDDEN = (
    UnreadLog(problem, "why") for problem in (LogProblem.PENDING, LogProblem.UNREACHABLE, LogProblem.FORBIDDEN)
)


@pytest.mark.parametrize(
    ("before", "now", "is_replaced"),
    [
        ({RUN: PENDING}, {RUN: UNREACHABLE}, True),
        ({RUN: UNREACHABLE}, {RUN: FORBIDDEN}, True),
        ({RUN: UNREACHABLE}, {RUN: replace(UNREACHABLE, detail="another reason")}, False),  # no write for each new error text
        ({RUN: UNREACHABLE}, {RUN: PENDING}, False),  # the operator was restarted
        ({RUN: UNREACHABLE}, {}, True),  # the log was read, and says nothing
        ({}, {RUN: UnreadLog(LogProblem.GONE)}, False),  # it was read before, and the container is gone since
    ],
)
def test_the_better_known_reason_stays(
    before: dict[tuple[str, int], UnreadLog], now: dict[tuple[str, int], UnreadLog], is_replaced: bool
) -> None:
    observation = o.observe(o.crashed_pod(), unread_logs=before)
    first = report(observation)
    second = report(o.after(observation, first, unread_logs=now))
    assert (second.status.last_crash != first.status.last_crash) == is_replaced
    assert second.events == ()


def test_a_log_that_is_read_late_names_the_crash() -> None:
    observation = o.observe(o.crashed_pod(), unread_logs={RUN: UNREACHABLE})
    first = report(observation)
    second = report(o.after(observation, first, unread_logs={}, startups={RUN: StartupState(crash=o.DEEP_GEMM_CRASH)}))
    assert second.status.last_crash is not None
    assert second.status.last_crash.signature == "MigUuidNotInteger"
