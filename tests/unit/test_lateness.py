"""When a start is late: by its own estimate and deadline."""

from collections.abc import Mapping
from typing import Any

import pytest

from support import observations as o
from vllm_operator.api.status import CacheStatus, VLLMDeploymentStatus
from vllm_operator.logs.state import CacheEvidence, Stage, StartupState
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import report
from vllm_operator.status.starts import LONGEST_START_SECONDS, StartClock

X1 = ("vllm-a-x1", 0)
UNKNOWN_WEIGHTS = 3 * 3600


def observe(*pods: Mapping[str, Any], cache: CacheStatus | None = None, misses: int = 0, deadline: int = UNKNOWN_WEIGHTS) -> Observation:
    state = StartupState(stage=Stage.WEIGHT_LOAD, stage_since=o.at(-5), last_line_at=o.at(-5), cache=CacheEvidence(misses=misses))
    resource = o.resource(status=VLLMDeploymentStatus(cache=cache))
    outcome = o.outcome(plan=o.plan(deadline_seconds=deadline))
    return o.observe(*(pods or (o.starting_pod(since=-60),)), states={X1: state}, resource=resource, outcome=outcome)


def known(**seconds: Any) -> CacheStatus:
    return CacheStatus(**{"key": o.KEY, "state": "Warm", **seconds})


def with_probe(pod: dict[str, Any], **probe: Any) -> dict[str, Any]:
    return pod | {"spec": pod["spec"] | {"containers": [{"name": "vllm", "startupProbe": probe}]}}


CASES: dict[str, tuple[Observation, int]] = {
    "nothing is known: at its deadline": (observe(), UNKNOWN_WEIGHTS),
    "the plan has another deadline": (observe(deadline=900), 900),
    "a probe of the user's own": (observe(with_probe(o.starting_pod(), failureThreshold=30, periodSeconds=20, initialDelaySeconds=5)), 605),
    "a probe that leaves the period to the kubelet": (observe(with_probe(o.starting_pod(), failureThreshold=30)), 300),
    "a probe that waits for thousands of years": (
        observe(with_probe(o.starting_pod(), failureThreshold=2**31 - 1, periodSeconds=2**31 - 1)),
        LONGEST_START_SECONDS,
    ),
    "a probe that makes no sense": (observe(with_probe(o.starting_pod(), failureThreshold="many")), UNKNOWN_WEIGHTS),
    "twice the last warm start": (observe(cache=known(warm_start_seconds=1000, cold_start_seconds=4000)), 2000),
    "a short start may take ten minutes more": (observe(cache=known(warm_start_seconds=35, cold_start_seconds=459)), 635),
    "it builds what was not found: the last cold start": (
        observe(cache=known(warm_start_seconds=35, cold_start_seconds=2000), misses=1),
        4000,
    ),
    "only a warm start is known, and this one is cold": (observe(cache=known(warm_start_seconds=35), misses=1), UNKNOWN_WEIGHTS),
    "the caches are others by now": (observe(cache=CacheStatus(key="another", warm_start_seconds=35)), UNKNOWN_WEIGHTS),
    "never beyond the deadline": (observe(cache=known(warm_start_seconds=3600), deadline=4000), 4000),
}


@pytest.mark.parametrize("name", CASES)
def test_after_how_long_a_start_is_late(name: str) -> None:
    observation, seconds = CASES[name]
    clock = report(observation).start
    assert clock is not None
    assert clock.late_after_seconds == seconds


def test_a_start_begins_with_its_container_and_before_that_with_its_pod() -> None:
    assert report(observe(o.starting_pod(since=-60))).start == StartClock(o.at(-60), UNKNOWN_WEIGHTS)
    assert report(observe(o.pending_pod("ContainerCreating"))).start == StartClock(o.at(-400), UNKNOWN_WEIGHTS)


def test_of_several_starts_the_one_counts_that_is_late_first() -> None:
    pods = (o.starting_pod("vllm-a-x1", since=-60), o.starting_pod("vllm-a-x2", since=-90))
    assert report(o.observe(*pods, replicas=2)).start == StartClock(o.at(-90), UNKNOWN_WEIGHTS)


@pytest.mark.parametrize("pod", [o.ready_pod(), o.crashed_pod(), o.unschedulable_pod(), o.pending_pod("ImagePullBackOff")])
def test_what_serves_or_cannot_start_has_no_clock(pod: dict[str, Any]) -> None:
    assert report(o.observe(pod)).start is None
