"""Reports on engines that hang: from the readiness probe while they hang, from the termination message after their restart."""

from typing import Any

import pytest

from support import observations as o
from vllm_operator.api.conditions import CRASHED, HUNG, READY, find_condition
from vllm_operator.api.status import Condition
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.pods.view import Phase
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import report

SAID = "3 requests are running, no token since 14:02:10 UTC; /health answers 200."


def hanging(**more: Any) -> Observation:
    return o.observe(o.unready_pod(), pod_events=(o.hang_event(),), **more)


def condition(observation: Observation, type: str) -> Condition | None:
    return find_condition(report(observation).status.conditions, type)


@pytest.mark.parametrize("type", [HUNG, READY])
def test_a_hang_is_a_condition_with_its_numbers(type: str) -> None:
    found = condition(hanging(), type)
    assert found is not None
    assert found.reason == "EngineHung"
    assert found.status == ("True" if type == HUNG else "False")
    assert "3 requests are running, no token since 14:02:10 UTC; /health" in found.message


@pytest.mark.parametrize(
    ("on_hang", "expected"),
    [
        ("Restart", "the engine is killed, and the container restarts"),
        ("Report", "To restart it: `kubectl delete pod vllm-a-x1 -n models`."),
    ],
)
def test_the_message_says_what_happens_next(on_hang: str, expected: str) -> None:
    found = condition(hanging(outcome=o.outcome(plan=o.plan(on_hang=on_hang))), HUNG)
    assert found is not None
    assert expected in found.message


def test_a_hang_is_one_event_however_long_it_lasts() -> None:
    first = report(hanging())
    assert [(each.type, each.reason) for each in first.events] == [("Warning", "EngineHung")]
    assert SAID in first.events[0].message
    assert report(o.after(hanging(), first, seconds=30)).events == ()


def test_a_hang_that_passes_is_over() -> None:
    first = report(hanging())
    again = report(o.following(o.observe(o.ready_pod(), pod_events=(o.hang_event(),)), first.status))
    assert find_condition(again.status.conditions, HUNG) is None
    assert find_condition(again.status.conditions, READY).status == "True"  # type: ignore[union-attr]  # Ready is always set


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((), id="no event"),
        pytest.param(
            (o.event("Unhealthy", "Readiness probe failed: The server does not answer /health", seconds=-5),), id="another reason"
        ),
        pytest.param((o.hang_event(seconds=-300),), id="an earlier hang"),
        pytest.param((o.hang_event("vllm-a-x2"),), id="of another Pod"),
    ],
)
def test_a_probe_that_fails_otherwise_is_no_hang(events: tuple[dict[str, object], ...]) -> None:
    observation = o.observe(o.unready_pod(), pod_events=events)
    assert [pod.phase for pod in observation.pod_facts] == [Phase.NOT_RESPONDING]
    assert condition(observation, HUNG) is None


def test_a_pod_that_is_being_deleted_does_not_hang() -> None:
    assert condition(o.observe(o.terminating(o.unready_pod()), pod_events=(o.hang_event(),)), HUNG) is None


def test_of_several_hangs_one_is_described_and_the_others_are_counted() -> None:
    names = ("vllm-a-x1", "vllm-a-x2")
    found = condition(o.observe(*map(o.unready_pod, names), replicas=2, pod_events=tuple(map(o.hang_event, names))), HUNG)
    assert found is not None
    assert "1 other Pod" in found.message


def test_a_restart_because_of_a_hang_is_a_crash_that_says_so() -> None:
    aborted = StartupState(stage=Stage.READY, crash=o.DEEP_GEMM_CRASH, is_final=True)  # the stacks look like an error in native code
    crashed = o.crashed_pod(code=0, reason="Completed", restarts=2, message=o.HANG)
    written = report(o.observe(crashed, states={("vllm-a-x1", 2): aborted}))
    crash = written.status.last_crash
    assert crash is not None
    told = find_condition(written.status.conditions, CRASHED)
    assert told is not None
    assert "with exit code 0" in told.message
    assert (crash.signature, crash.restarts, crash.exit_code) == ("EngineHung", 2, None), "the condition has the exit code"
    assert SAID in (crash.cause or "")
    assert "VLLM::Worker_TP1: suspended" in (crash.cause or "")
    assert crash.excerpt
    assert "EngineHung" in [each.reason for each in written.events]
