"""The alerts of the chart, as Prometheus evaluates them: what is reported minute by minute, and which alerts fire of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import engine_metrics, helm
from support import observations as o
from support.promtool import ALERTS, Firing, Recording, check_alerts
from testenv.binaries import find_binary
from vllm_operator.api.conditions import Verdict
from vllm_operator.api.labels import PLAN_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.status import CacheStatus, ConditionStatus, VLLMDeploymentStatus
from vllm_operator.controller.metrics import Metrics
from vllm_operator.logs.state import CacheEvidence, Stage, StartupState
from vllm_operator.status.observation import Exposure, ObjectProblem, Observation
from vllm_operator.status.report import report

pytestmark = pytest.mark.skipif(find_binary("promtool") is None, reason="there is no promtool; `make testenv` builds it")

RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]}
OBJECT = {"namespace": o.NAMESPACE, "name": "vllm-a"}
STALLED = {**OBJECT, "type": "Ready", "status": "False", "reason": "NoProgress"}
X1 = ("vllm-a-x1", 0)
Minute = Callable[[int], Observation]


@dataclass(frozen=True)
class Story:
    """What there is at each minute, and which alerts fire then: by minute and name; those that are not named must be silent."""

    minutes: int
    there_is: Minute
    firing: dict[int, dict[str, Sequence[Firing]]]
    known: CacheStatus | None = None


def now(minute: int) -> dict[str, Any]:
    return {"now": o.at(60 * minute)}


def starting(minute: int, *, since: int = 0, restarts: int = 0) -> Observation:
    """A start since a minute, which logs all the time."""
    state = StartupState(
        stage=Stage.KERNEL_WARMUP, stage_since=o.at(60 * since), last_line_at=o.at(60 * minute), cache=CacheEvidence(misses=1)
    )
    pod = o.starting_pod(since=60 * since, restarts=restarts, last=o.terminated(seconds=60 * since) if restarts else None)
    return o.observe(pod, states={(X1[0], restarts): state}, **now(minute))


def silent(minute: int) -> Observation:
    """A start that logs nothing after its first second."""
    state = StartupState(stage=Stage.WEIGHT_LOAD, stage_since=o.at(0), last_line_at=o.at(1))
    return o.observe(o.starting_pod(since=0), states={X1: state}, **now(minute))


def serving(minute: int, *, since: int = 0) -> Observation:
    return o.observe(o.ready_pod(since=0, ready=60 * since), **now(minute))


def crashed(minute: int, *, restarts: int = 0, signature: str = "MigUuidNotInteger") -> Observation:
    state = StartupState(crash=replace(o.DEEP_GEMM_CRASH, signature=signature), is_final=True)
    return o.observe(o.crashed_pod(restarts=restarts, seconds=60 * minute - 30), states={(X1[0], restarts): state}, **now(minute))


def until(end: int, first: Minute, then: Minute) -> Minute:
    return lambda minute: first(minute) if minute < end else then(minute)


def looping(minute: int) -> Observation:
    """Six minutes of a start, then four of waiting after its crash, again and again."""
    turn, within = divmod(minute, 10)
    return starting(minute, since=10 * turn, restarts=turn) if within < 6 else crashed(minute, restarts=turn)


def beside_one_that_serves(minute: int) -> Observation:
    state = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(0), last_line_at=o.at(60 * minute), cache=CacheEvidence(misses=1))
    pods = (o.ready_pod("vllm-a-x0", since=-3600, ready=-3000), o.starting_pod(since=0))
    return o.observe(*pods, replicas=2, states={X1: state}, **now(minute))


def hanging(minute: int) -> Observation:
    return o.observe(o.unready_pod(seconds=0), pod_events=(o.hang_event(seconds=0),), **now(minute))


def ended_for_a_hang(minute: int) -> Observation:
    return o.observe(o.crashed_pod(code=0, reason="Completed", seconds=120, message=o.HANG), **now(minute))


def unschedulable(minute: int) -> Observation:
    return o.observe(o.unschedulable_pod(), **now(minute))


def scaled_to_zero(minute: int) -> Observation:
    return o.observe(replicas=0, **now(minute))


def without_a_gpu(minute: int) -> Observation:
    planned = Verdict(ConditionStatus.FALSE, "NoMatchingGPU", "No node has such a GPU.")
    return o.observe(outcome=o.outcome(planned=planned, plan=None), deployment=None, **now(minute))


def not_accepted(minute: int) -> Observation:
    accepted = Verdict(ConditionStatus.FALSE, "Unsupported", "This is known to fail.")
    planned = Verdict(ConditionStatus.FALSE, "NotAccepted", "Nothing was planned.")
    return o.observe(outcome=o.outcome(accepted=accepted, planned=planned, plan=None), deployment=None, **now(minute))


def refused(minute: int) -> Observation:
    return o.observe(o.ready_pod(since=-3600, ready=-3000), apply_error="exceeded quota", **now(minute))


def three_of_four(minute: int) -> Observation:
    pods = [o.ready_pod(f"vllm-a-x{number}", since=-3600, ready=-3000) for number in (2, 3, 4)]
    return o.observe(*pods, o.unschedulable_pod(), replicas=4, **now(minute))


def four_of_four(minute: int) -> Observation:
    pods = [o.ready_pod(f"vllm-a-x{number}", since=-3600, ready=-3000) for number in (1, 2, 3, 4)]
    return o.observe(*pods, replicas=4, **now(minute))


def a_fourth_starts(minute: int) -> Observation:
    state = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(0), last_line_at=o.at(60 * minute), cache=CacheEvidence(misses=1))
    pods = [o.ready_pod(f"vllm-a-x{number}", since=-3600, ready=-3000) for number in (2, 3, 4)]
    return o.observe(*pods, o.starting_pod(since=0), replicas=4, states={X1: state}, **now(minute))


def without_a_route(minute: int) -> Observation:
    return o.observe(o.ready_pod(since=-3600, ready=-3000), exposure=Exposure(awaits_gateway=True), **now(minute))


def without_metrics(minute: int) -> Observation:
    problem = ObjectProblem("MetricsAPIMissing", "HorizontalPodAutoscaler", "custom.metrics.k8s.io")
    return o.observe(o.ready_pod(since=-3600, ready=-3000), scaling=(problem,), spec={"autoscaling": {"maxReplicas": 4}}, **now(minute))


def without_a_claim(minute: int) -> Observation:
    spec = {"cache": {"claimName": "caches"}}
    return o.observe(o.pending_pod("ContainerCreating"), spec=spec, claim=None, claim_name="caches", **now(minute))


def with_an_unbound_claim(minute: int) -> Observation:
    return o.observe(o.pending_pod("ContainerCreating"), claim=o.claim("Pending"), **now(minute))


def drifted(minute: int) -> Observation:
    planned = Verdict(ConditionStatus.TRUE, "PlanDrifted", "A new plan would differ.")
    return o.observe(o.ready_pod(since=-3600, ready=-3000), outcome=o.outcome(planned=planned), **now(minute))


def failing(minute: int) -> Observation:
    """An upgrade that fails, beside a revision that has served; from minute 2 on, that one runs again."""
    if minute >= 2:
        resource = o.resource().model_copy(update={"is_rolled_back_by_operator": True, "rolled_back_to": 1})
        return o.observe(o.ready_pod(since=60, ready=100), resource=resource, revision="vllm-a-0000000001", **now(minute))
    served = {SERVED_ANNOTATION: o.stamp(-5000)}
    metadata = [{"name": "vllm-a-0000000001", "annotations": served}, {"name": "vllm-a-0123456789"}]
    revisions = tuple({"metadata": each, "revision": number} for number, each in enumerate(metadata, 1))
    live = o.deployment()
    live["metadata"]["annotations"] = {PLAN_ANNOTATION: "vllm-a-0123456789"}
    return replace(crashed(minute), revisions=revisions, deployment=live)


def not_in_effect(type: str, reason: str) -> dict[str, Sequence[Firing]]:
    labels = {**OBJECT, "type": type, "status": "False", "reason": reason}
    summary = f"A part of the spec of models/vllm-a is not in effect: {type} is False ({reason})."
    return {"VLLMDeploymentPartNotInEffect": [Firing(labels, summary)]}


def storage_missing(reason: str) -> dict[str, Sequence[Firing]]:
    return {"VLLMDeploymentStorageMissing": [Firing({**OBJECT, "reason": reason}, f"A volume of models/vllm-a cannot be used: {reason}.")]}


ONE_IS_MISSING: dict[str, Sequence[Firing]] = {"VLLMDeploymentReplicasMissing": [Firing(OBJECT, "models/vllm-a lacks 1 of its replicas.")]}
PLAN_DIFFERS: dict[str, Sequence[Firing]] = {
    "VLLMDeploymentPlanDiffers": [Firing(OBJECT, "A new plan for models/vllm-a would differ from the current one.")]
}


def serves_nothing(reason: str) -> dict[str, Sequence[Firing]]:
    return {"VLLMDeploymentNotAvailable": [Firing(OBJECT, f"models/vllm-a serves nothing: {reason}.")]}


def late(duration: str) -> dict[str, Sequence[Firing]]:
    return {"VLLMDeploymentStartLate": [Firing(OBJECT, f"A start of models/vllm-a has taken {duration} so far, longer than it should.")]}


def has_crashed(reason: str) -> dict[str, Sequence[Firing]]:
    labels = {**OBJECT, "type": "Crashed", "status": "True", "reason": reason}
    return {"VLLMDeploymentCrashed": [Firing(labels, f"models/vllm-a has crashed: {reason}.")]}


def not_planned(type: str, status: str, reason: str) -> dict[str, Sequence[Firing]]:
    labels = {**OBJECT, "type": type, "status": status, "reason": reason}
    return {"VLLMDeploymentNotPlanned": [Firing(labels, f"models/vllm-a is not deployed as its spec says: {reason}.")]}


HANGS: dict[str, Sequence[Firing]] = {
    "VLLMDeploymentHung": [
        Firing(
            {**OBJECT, "type": "Hung", "status": "True", "reason": "EngineHung"},
            "An engine of models/vllm-a has work and makes no progress.",
        )
    ]
}
IS_STALLED: dict[str, Sequence[Firing]] = {"VLLMDeploymentNoProgress": [Firing(STALLED, "A start of models/vllm-a makes no progress.")]}

STORIES = {
    "a cold start of an hour, as the last one took": Story(
        70,
        until(60, starting, lambda minute: serving(minute, since=60)),
        {21: {}, 30: {}, 45: {}, 59: {}, 65: {}},
        known=CacheStatus(key=o.KEY, cold_start_seconds=3600),
    ),
    "a first start, which nothing is known of, of two hours": Story(130, until(120, starting, serving), {25: {}, 60: {}, 119: {}, 125: {}}),
    "a first start that does not end": Story(
        220,
        until(212, starting, lambda minute: serving(minute, since=212)),
        # three hours and seven seconds: the weights are of unknown size
        {179: {}, 186: late("3h 6m 0s"), 205: {**late("3h 25m 0s"), **serves_nothing("Starting")}, 219: {}},
    ),
    "a start that takes much longer than the last one": Story(
        50,
        until(40, starting, lambda minute: serving(minute, since=40)),
        {19: {}, 26: late("26m 0s"), 39: late("39m 0s"), 44: {}},
        known=CacheStatus(key=o.KEY, cold_start_seconds=600),
    ),
    "a late start beside a replica that serves": Story(
        50, beside_one_that_serves, {19: {}, 49: late("49m 0s")}, known=CacheStatus(key=o.KEY, cold_start_seconds=600)
    ),
    "a start that falls silent": Story(
        60,
        until(50, silent, lambda minute: serving(minute, since=50)),
        {14: {}, 22: IS_STALLED, 42: {**IS_STALLED, **serves_nothing("NoProgress")}, 58: {}},
    ),
    "a crash, then another one, then it serves": Story(
        20,
        until(6, crashed, until(12, lambda minute: crashed(minute, restarts=1, signature="HfGatedRepo"), lambda m: serving(m, since=12))),
        {0: {}, 4: has_crashed("MigUuidNotInteger"), 10: has_crashed("HfGatedRepo"), 16: {}},
    ),
    "an engine that hangs and is restarted": Story(
        12,
        until(2, hanging, until(6, ended_for_a_hang, lambda minute: serving(minute, since=6))),
        {0: HANGS, 1: HANGS, 4: has_crashed("EngineHung"), 10: {}},
    ),
    "an upgrade that fails and comes back": Story(
        14,
        until(10, failing, lambda minute: serving(minute, since=-30)),
        {
            7: {"VLLMDeploymentRolledBack": [Firing(OBJECT, "The requested spec of models/vllm-a failed, and an earlier revision runs.")]},
            13: {},
        },
    ),
    "a crash that only the user's signatures know": Story(
        5, lambda minute: crashed(minute, signature="OurLicenceServer"), {3: has_crashed("Other")}
    ),
    "a crash loop": Story(45, looping, {44: {**has_crashed("MigUuidNotInteger"), **serves_nothing("MigUuidNotInteger")}}),
    "no node takes the Pod": Story(36, until(25, unschedulable, serving), {19: {}, 21: serves_nothing("Unschedulable"), 34: {}}),
    "scaled to zero": Story(40, scaled_to_zero, {39: {}}),
    "no GPU, until a node joins": Story(
        40,
        until(30, without_a_gpu, serving),
        {
            7: not_planned("Ready", "False", "NoMatchingGPU"),
            29: {**not_planned("Ready", "False", "NoMatchingGPU"), **serves_nothing("NoMatchingGPU")},
            36: {},
        },
    ),
    "a spec that is not accepted is told once": Story(8, not_accepted, {7: not_planned("Ready", "False", "Unsupported")}),
    "the API server refuses a change of what serves": Story(8, refused, {7: not_planned("Ready", "False", "ApplyFailed")}),
    "one of four replicas finds no node": Story(
        60, until(45, three_of_four, lambda minute: four_of_four(minute)), {29: {}, 31: ONE_IS_MISSING, 44: ONE_IS_MISSING, 58: {}}
    ),
    "a fourth replica that starts for forty minutes": Story(45, until(40, a_fourth_starts, four_of_four), {31: {}, 39: {}, 44: {}}),
    "no Gateway takes the route": Story(
        30,
        until(20, without_a_route, serving),
        {14: {}, 16: not_in_effect("Exposed", "RouteNotAccepted"), 19: not_in_effect("Exposed", "RouteNotAccepted"), 24: {}},
    ),
    "no API serves what an autoscaler measures": Story(18, without_metrics, {17: not_in_effect("Autoscaled", "MetricsAPIMissing")}),
    "the claim of the caches does not exist": Story(
        16, until(10, without_a_claim, serving), {4: {}, 6: storage_missing("ClaimMissing"), 12: {}}
    ),
    "a claim that is not bound yet": Story(8, with_an_unbound_claim, {7: {}}),
    "a new plan would differ": Story(90, until(80, drifted, serving), {59: {}, 61: PLAN_DIFFERS, 79: PLAN_DIFFERS, 82: {}}),
}


def record(story: Story) -> Recording:
    """Report at each minute what there is, upon the status of the minute before, and scrape."""
    metrics, recording, status = Metrics(), Recording(o.NOW.timestamp()), VLLMDeploymentStatus(cache=story.known)
    for minute in range(story.minutes):
        observation = story.there_is(minute)
        written = report(o.following(observation, status))
        status = written.status
        metrics.reported(o.NAMESPACE, "vllm-a", status, written.start, replicas=observation.wanted)
        recording.scrape(metrics)
    return recording


def at_each_minute(firing: dict[int, dict[str, Sequence[Firing]]]) -> list[tuple[int, str, Sequence[Firing]]]:
    return [(minute, name, those.get(name, ())) for minute, those in firing.items() for name in RULES]


@pytest.mark.parametrize("name", STORIES)
def test_exactly_the_alerts_of_a_story_fire(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    assert check_alerts(tmp_path, record(story), at_each_minute(story.firing)) == ""


def test_an_operator_that_is_away_is_reported_and_forgotten_when_it_is_back(tmp_path: Path) -> None:
    metrics, recording = Metrics(), Recording()
    for minute in range(40):
        recording.scrape(None if 10 <= minute < 30 else metrics)
    absent: dict[str, Sequence[Firing]] = {
        "VLLMOperatorAbsent": [Firing({}, "The vLLM operator is not running, or Prometheus does not reach it.")]
    }
    assert check_alerts(tmp_path, recording, at_each_minute({9: {}, 17: {}, 22: absent, 29: absent, 32: {}})) == ""


def test_two_pods_of_the_operator_fire_nothing_and_a_takeover_neither_ends_nor_repeats_an_alert(tmp_path: Path) -> None:
    """The first leads until minute 30, is gone, and the second leads from minute 31 on: engines serve nothing all the time."""
    recording, status = Recording(o.NOW.timestamp()), VLLMDeploymentStatus()
    pods = [Metrics(), Metrics()]
    pods[0].observe_leader(lambda: recording.minutes < 30, lambda: 1.0)
    pods[1].observe_leader(lambda: recording.minutes > 30, lambda: 1.0)
    for metrics in pods:
        metrics.observe_queue(lambda: 0, lambda: 0.0)
    for minute in range(50):
        observation = unschedulable(minute)
        status = report(o.following(observation, status)).status
        shown = {"one": pods[0]} if minute < 5 else {"one": pods[0], "two": pods[1]} if minute < 30 else {"two": pods[1]}
        leader = pods[0] if minute < 30 else pods[1]
        if minute != 30:
            leader.reported(o.NAMESPACE, "vllm-a", status, replicas=1)
        recording.scrape(shown)
    fires = serves_nothing("Unschedulable")
    assert check_alerts(tmp_path, recording, at_each_minute({19: {}, 22: fires, 30: fires, 31: fires, 49: fires})) == ""


def test_an_operator_without_a_leader_is_reported(tmp_path: Path) -> None:
    metrics, recording = [Metrics(), Metrics()], Recording()
    for each in metrics:
        each.observe_leader(lambda: not 10 <= recording.minutes < 30, lambda: 1.0)
    for _ in range(40):
        recording.scrape({"one": metrics[0], "two": metrics[1]})
    summary = "The vLLM operator runs, but none of its Pods may write."
    leaderless: dict[str, Sequence[Firing]] = {"VLLMOperatorNoLeader": [Firing({}, summary)]}
    assert check_alerts(tmp_path, recording, at_each_minute({9: {}, 14: {}, 16: leaderless, 29: leaderless, 32: {}})) == ""


def engine(name: str, labels: str = "") -> str:
    return f'vllm:{name}{{namespace="models",name="vllm-a",pod="vllm-a-x1",engine="0"{labels}}}'


def gauges(*, running: float = 8, waiting: float = 0, cache: float = 0.5, preemptions: float = 0) -> dict[str, float]:
    """An engine at some minute; `preemptions` so far."""
    return {
        engine("num_requests_running"): running,
        engine("num_requests_waiting"): waiting,
        engine("kv_cache_usage_perc"): cache,
        engine("num_preemptions_total"): preemptions,
    }


def first_tokens(minute: int, *, fast: int, slow: int) -> dict[str, float]:
    """The histogram of the times to the first token: so many requests each minute that took 1 s, and more than 10 s."""
    buckets = {"1.0": fast, "10.0": fast, "20.0": fast + slow, "+Inf": fast + slow}
    return {engine("time_to_first_token_seconds_bucket", f',le="{le}"'): minute * number for le, number in buckets.items()}


def tokens(seconds: float, number: float) -> dict[str, float]:
    return {engine("inter_token_latency_seconds_sum"): seconds, engine("inter_token_latency_seconds_count"): number}


ENGINES: dict[str, tuple[Callable[[int, bool], dict[str, float]], str, str]] = {
    "requests wait": (
        lambda _, busy: gauges(waiting=20 if busy else 7),
        "VLLMEngineQueue",
        "20 requests wait for models/vllm-a, more than it serves.",
    ),
    "running requests are preempted": (
        lambda minute, busy: gauges(cache=0.97 if busy else 0.95, preemptions=4 * max(0, min(minute, 40) - 5)),
        "VLLMEngineCacheFull",
        "The KV cache of models/vllm-a is full: running requests are preempted.",
    ),
    "first tokens are slow": (
        lambda minute, busy: first_tokens(minute, fast=0 if busy else 60, slow=60 if busy else 0),
        "VLLMEngineSlowFirstToken",
        "Clients of models/vllm-a wait 19.5s for the first token (95th percentile).",
    ),
    "tokens are slow": (
        lambda minute, _: tokens(60.0 * minute, 1200 * min(minute, 5) + 200 * max(0, min(minute, 40) - 5) + 1200 * max(0, minute - 40)),
        "VLLMEngineSlowTokens",
        "models/vllm-a needs 300ms for each token, on average.",
    ),
}
"""What an engine of each story shows at a minute, and whether it is busy: from minute 5 to 40. The alert that fires, and its summary."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_is_overloaded_is_reported_until_it_is_not(name: str, tmp_path: Path) -> None:
    shown, alert, summary = ENGINES[name]
    recording = Recording()
    for minute in range(70):
        recording.scrape(None, more=shown(minute, 5 <= minute < 40))
    fires: dict[str, Sequence[Firing]] = {alert: [Firing(OBJECT, summary)]}
    moments = [(4, ()), (18, ()), (38, fires[alert]), (66, ())]
    assert check_alerts(tmp_path, recording, [(minute, alert, firing) for minute, firing in moments]) == ""


def test_the_alerts_about_engines_ask_for_metrics_that_all_versions_have() -> None:
    shown = [{name.partition("{")[0] for name, _ in engine_metrics.series(version)} for version in engine_metrics.VERSIONS]
    asked = {name for rule in RULES.values() for name in re.findall(r"vllm:\w+", rule["expr"])}
    assert asked
    assert asked <= shown[0] & shown[1]


def test_an_engine_that_the_operator_does_not_manage_fires_nothing(tmp_path: Path) -> None:
    recording = Recording()
    for _ in range(40):
        shown = gauges(running=0, waiting=50)
        recording.scrape(None, more={name.replace(',name="vllm-a"', ""): value for name, value in shown.items()})
    assert check_alerts(tmp_path, recording, [(39, "VLLMEngineQueue", ())]) == ""


def test_the_first_error_of_the_operator_is_reported_already(tmp_path: Path) -> None:
    metrics, recording = Metrics(), Recording()
    for minute in range(40):
        if minute == 10:
            metrics.reconciled("bug", 0.1)
        recording.scrape(metrics)
    bug: dict[str, Sequence[Firing]] = {"VLLMOperatorBug": [Firing({}, "A bug in the vLLM operator stopped a reconciliation.")]}
    assert check_alerts(tmp_path, recording, at_each_minute({9: {}, 12: bug, 39: {}})) == ""


def test_a_queue_that_waits_is_reported(tmp_path: Path) -> None:
    metrics, recording, age = Metrics(), Recording(), [0.0]
    metrics.observe_queue(lambda: 1, lambda: age[0])
    for minute in range(30):
        age[0] = 300.0 if 5 <= minute < 20 else 0.0
        recording.scrape(metrics)
    behind: dict[str, Sequence[Firing]] = {"VLLMOperatorBehind": [Firing({}, "The vLLM operator is 5m 0s behind.")]}
    assert check_alerts(tmp_path, recording, at_each_minute({4: {}, 12: behind, 22: {}})) == ""


def test_rules_that_are_not_used_are_reported(tmp_path: Path) -> None:
    metrics, recording = Metrics(), Recording()
    for minute in range(30):
        metrics.user_data("rules", used=1, ignored=2 if 5 <= minute < 20 else 0)
        recording.scrape(metrics)
    summary = "2 custom rules or signatures are invalid and not used."
    ignored: dict[str, Sequence[Firing]] = {"VLLMOperatorRulesIgnored": [Firing({"state": "ignored"}, summary)]}
    assert check_alerts(tmp_path, recording, at_each_minute({4: {}, 12: ignored, 22: {}})) == ""


def test_caches_that_are_damaged_twice_are_reported_and_once_is_none(tmp_path: Path) -> None:
    metrics, recording = Metrics(), Recording()
    for minute in range(60):
        generation = 0 if minute < 20 else 1 if minute < 40 else 2
        metrics.reported(o.NAMESPACE, "vllm-a", VLLMDeploymentStatus(cache=CacheStatus(key=o.KEY, generation=generation or None)))
        if minute >= 50:  # otherwise the alert ends a day later
            metrics.forget(o.NAMESPACE, "vllm-a")
        recording.scrape(metrics)
    again: dict[str, Sequence[Firing]] = {
        "VLLMCachesDamagedAgain": [Firing(OBJECT, "The caches of models/vllm-a were damaged more than once within a day.")]
    }
    assert check_alerts(tmp_path, recording, at_each_minute({19: {}, 39: {}, 42: again, 58: {}})) == ""


def test_volumes_that_nobody_uses_for_a_day_are_reported(tmp_path: Path) -> None:
    metrics, recording, day = Metrics(), Recording(), 24 * 60
    sizes: dict[str, list[int]] = {}
    metrics.observe_orphans(lambda: sizes)
    for minute in range(day + 30):
        sizes = {"models": [20 * 2**30, 30 * 2**30]} if 5 <= minute < day + 20 else {}
        recording.scrape(metrics)
    summary = "Volumes of 50GiB in models belong to no VLLMDeployment."
    orphaned: dict[str, Sequence[Firing]] = {"VLLMVolumesOrphaned": [Firing({"namespace": "models"}, summary)]}
    assert check_alerts(tmp_path, recording, at_each_minute({4: {}, day: {}, day + 10: orphaned, day + 25: {}})) == ""


def resolves(story: Story, name: str) -> bool:
    """Whether an alert fires in a story, and no longer fires at its end."""
    *before, last = [name in story.firing[minute] for minute in sorted(story.firing)]
    return any(before) and not last


def test_each_alert_fires_and_resolves_in_a_test_and_leads_to_its_place_in_the_docs() -> None:
    fired = {name for story in STORIES.values() for those in story.firing.values() for name in those}
    source = Path(__file__).read_text("utf-8")
    assert {name for name in RULES if name not in fired and source.count(f'"{name}"') == 0} == set()
    # those of the other tests end with a minute without alerts
    assert {name for name in fired if not any(resolves(story, name) for story in STORIES.values())} == set()
    headings = re.findall(r"^### (\w+)$", (helm.ROOT / "docs" / "operations.md").read_text("utf-8"), re.MULTILINE)
    assert [name for name in headings if name.startswith("VLLM")] == list(RULES)
    page = "https://github.com/vllm-operator/vllm-operator/blob/main/docs/operations.md"
    assert {name: rule["annotations"]["runbook_url"] for name, rule in RULES.items()} == {name: f"{page}#{name.lower()}" for name in RULES}
