"""Steps of a rollout that follow each other within seconds are one write of the status, and nothing that matters waits for it."""

from datetime import timedelta
from typing import Any

import pytest

from support import observations as o
from vllm_operator.api.status import Condition, ConditionStatus, StartupStatus, VLLMDeploymentStatus
from vllm_operator.status.events import EventDraft
from vllm_operator.status.pacing import LATER_PACE, PACE, held_until

FALSE, TRUE = ConditionStatus.FALSE, ConditionStatus.TRUE


def condition(type: str, status: ConditionStatus, reason: str, message: str = "", *, at: float = 0) -> Condition:
    return Condition(type=type, status=status, reason=reason, message=message or reason, last_transition_time=o.stamp(at))


def status(
    summary: tuple[ConditionStatus, str] = (FALSE, "ReplicasNotReady"),
    starting: tuple[ConditionStatus, str] | None = (TRUE, "RollingOut"),
    *others: Condition,
    **fields: Any,
) -> VLLMDeploymentStatus:
    found = [condition("Ready", *summary)] + ([condition("Starting", *starting)] if starting is not None else [])
    return VLLMDeploymentStatus(**{"observed_generation": 2, "replicas": 1, "ready_replicas": 1, "conditions": [*found, *others], **fields})


BEFORE = status()
STEPS = {
    "the old Pod terminates": status((FALSE, "NotStarted"), (FALSE, "NotStarted"), ready_replicas=0, ready="0/1"),
    "the Deployment counts": status(replicas=0),
    "the new Pod gets a container": status((FALSE, "Progressing"), (TRUE, "Progressing"), startup=StartupStatus(stage="ImagePull")),
    "its process starts": status((FALSE, "Progressing"), (TRUE, "Progressing"), startup=StartupStatus(stage="ProcessStart")),
}
NEWS = {
    "all replicas serve": status((TRUE, "Serving"), None),
    "a stage of the log": status((FALSE, "Progressing"), (TRUE, "Progressing"), startup=StartupStatus(stage="WeightLoad")),
    "no node": status((FALSE, "Unschedulable"), (FALSE, "Unschedulable")),
    "an image that cannot be pulled": status((FALSE, "ImagePullFailed"), (FALSE, "ImagePullFailed")),
    "a crash": status((FALSE, "OutOfMemory"), (FALSE, "StartFailed"), condition("Crashed", TRUE, "OutOfMemory")),
    "a new spec": status(observed_generation=3),
    "another condition": status((FALSE, "NotStarted"), (FALSE, "NotStarted"), condition("CacheWarm", FALSE, "ClaimNotBound")),
}


@pytest.mark.parametrize("now", STEPS.values(), ids=STEPS)
def test_a_step_waits_for_three_seconds(now: VLLMDeploymentStatus) -> None:
    assert held_until(BEFORE, now, (), o.at(1)) == o.at(0) + PACE
    assert held_until(BEFORE, now, (), o.at(3)) is None


def test_in_later_rollouts_a_step_waits_for_twenty_seconds() -> None:
    before = BEFORE.model_copy(update={"url": "http://llama.default.svc:8000"})
    now = STEPS["the Deployment counts"].model_copy(update={"url": before.url})
    assert held_until(before, now, (), o.at(4)) == o.at(0) + LATER_PACE
    assert held_until(before, now, (), o.at(20)) is None


@pytest.mark.parametrize(("rollouts", "seconds"), [(1, 20.1), (100, 30), (400, 60), (5000, 60)])
def test_the_more_rollouts_have_begun_the_longer_a_step_waits(rollouts: int, seconds: float) -> None:
    before = BEFORE.model_copy(update={"url": "http://llama.default.svc:8000"})
    now = STEPS["the Deployment counts"].model_copy(update={"url": before.url})
    assert held_until(before, now, (), o.at(4), recent_rollouts=rollouts) == o.at(0) + timedelta(seconds=seconds)
    assert held_until(before, now, (), o.at(61), recent_rollouts=rollouts) is None
    assert held_until(BEFORE, STEPS["the Deployment counts"], (), o.at(1), recent_rollouts=rollouts) == o.at(0) + PACE


def test_a_rollout_that_only_looks_incomplete_waits_until_the_deployment_counts() -> None:
    now = STEPS["the Deployment counts"]
    assert held_until(BEFORE, now, (), o.at(30), ready_since=o.at(29)) == o.at(29) + LATER_PACE
    assert held_until(BEFORE, now, (), o.at(49), ready_since=o.at(29)) is None
    assert held_until(BEFORE, NEWS["a crash"], (), o.at(30), ready_since=o.at(29)) is None


@pytest.mark.parametrize("now", NEWS.values(), ids=NEWS)
def test_news_are_written_at_once(now: VLLMDeploymentStatus) -> None:
    assert held_until(BEFORE, now, (), o.at(1)) is None


def test_replicas_that_no_longer_serve_are_reported_at_once() -> None:
    serving = status((TRUE, "Serving"), None)
    assert held_until(serving, STEPS["the old Pod terminates"], (), o.at(1)) is None


def test_what_has_an_event_is_written_with_it() -> None:
    event = EventDraft(type="Warning", reason="NodeLost", message="", key="1")
    assert held_until(BEFORE, STEPS["the Deployment counts"], (event,), o.at(1)) is None


def test_an_equal_status_is_not_waited_for_and_a_first_one_is_written() -> None:
    assert held_until(BEFORE, BEFORE, (), o.at(1)) is None
    assert held_until(VLLMDeploymentStatus(), BEFORE, (), o.at(1)) is None


@pytest.mark.parametrize("stamp", [o.stamp(3600), "yesterday", None])
def test_a_time_of_the_future_or_none_holds_nothing(stamp: Any) -> None:
    odd = [item.model_copy(update={"last_transition_time": stamp}) for item in BEFORE.conditions]
    before = BEFORE.model_copy(update={"conditions": odd})
    now = STEPS["the Deployment counts"].model_copy(update={"conditions": odd})
    assert held_until(before, now, (), o.at(1)) is None
