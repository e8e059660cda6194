"""Clocks that are wrong and counts that make no sense: what comes from a node or a log must not spoil the status."""

from datetime import datetime

import pytest

from support import observations as o
from vllm_operator.logs.state import Progress, Stage, StartupState
from vllm_operator.status.report import report
from vllm_operator.status.starts import learn

X1, X2 = "vllm-a-x1", "vllm-a-x2"
A_DAY = 86_400.0
MOST_OF_THE_API = 2**63 - 1


def test_a_crash_on_a_node_whose_clock_is_ahead_hides_no_later_one() -> None:
    ahead = o.crashed_pod(X1, seconds=A_DAY)
    first = report(o.observe(ahead, replicas=2, now=o.at(20))).status
    assert first.last_crash is not None
    assert first.last_crash.pod == X1
    later = o.observe(ahead, o.crashed_pod(X2, seconds=30), replicas=2, now=o.at(60), resource=o.resource(replicas=2, status=first))
    written = report(later)
    assert written.status.last_crash is not None
    assert written.status.last_crash.pod == X2
    assert [event.key for event in written.events if event.key.startswith("crash-")] == [f"crash-uid-{X2}-0"]
    again = report(o.observe(*later.pods, replicas=2, now=o.at(61), resource=o.resource(replicas=2, status=written.status)))
    assert again.status.last_crash == written.status.last_crash
    assert not again.events


def test_a_crash_in_the_log_of_a_node_whose_clock_is_ahead_is_reported_although_the_container_runs_on() -> None:
    state = StartupState(stage=Stage.WEIGHT_LOAD, crash=o.DEEP_GEMM_CRASH, last_line_at=o.at(A_DAY), stage_since=o.at(A_DAY))
    told = report(o.observe(o.starting_pod(), states={(X1, 0): state})).status
    assert told.last_crash is not None
    assert told.last_crash.signature == o.DEEP_GEMM_CRASH.signature


def test_a_clock_that_is_some_seconds_ahead_is_usual() -> None:
    earlier = o.crashed_pod(X2, seconds=-30)
    first = report(o.observe(earlier, replicas=2, now=o.at(0))).status
    second = o.observe(earlier, o.crashed_pod(X1, seconds=5), replicas=2, now=o.at(1), resource=o.resource(replicas=2, status=first))
    settled = report(o.observe(*second.pods, replicas=2, now=o.at(16), resource=o.resource(replicas=2, status=report(second).status)))
    assert settled.status.last_crash is not None
    assert settled.status.last_crash.pod == X1


@pytest.mark.parametrize(
    "counted",
    [
        Progress(999_999_998 * 10**15, 999_999_999 * 10**15, "Loading weights", 302),
        Progress(1, 2, "Loading weights", 10**20),
    ],
    ids=["more bytes than there are", "more seconds than there are"],
)
def test_a_count_that_the_api_cannot_hold_is_not_shown(counted: Progress) -> None:
    state = StartupState(stage=Stage.WEIGHT_LOAD, progress=counted, stage_since=o.at(-5), last_line_at=o.at(-1))
    startup = report(o.observe(o.starting_pod(), states={(X1, 0): state})).status.startup
    assert startup is not None
    numbers = (startup.completed, startup.total, startup.eta_seconds, *(pod.total for pod in startup.pods or ()))
    assert all(number is None or number <= MOST_OF_THE_API for number in numbers)


def test_a_stage_that_lasted_longer_than_any_start_teaches_nothing() -> None:
    ages = datetime.fromisoformat("1980-01-01T00:00:00+00:00")
    entered = ((Stage.WEIGHT_LOAD, ages), (Stage.KERNEL_WARMUP, o.at(0)), (Stage.READY, o.at(290)))
    learned = learn({"WeightLoad": 40}, StartupState(stage=Stage.READY, entered=entered))
    assert learned == {"WeightLoad": 40, "KernelWarmup": 290}
