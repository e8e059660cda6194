"""The story that events tell, and that nothing is told twice."""

from dataclasses import replace
from typing import Any

import pytest

from support import observations as o
from support.verdicts import plan_verdict
from vllm_operator.api.conditions import EventDraft, Verdict
from vllm_operator.api.plan import BackendChoice
from vllm_operator.api.status import ConditionStatus, ObservedBackend
from vllm_operator.logs.state import CacheEvidence, Progress, Stage, StartupState
from vllm_operator.status.observation import Exposure, ObjectProblem, Observation
from vllm_operator.status.report import Report, report

X1 = ("vllm-a-x1", 0)
UID = ("uid-vllm-a-x1", 0)


ENTERED = (
    (Stage.WEIGHT_LOAD, o.at(-60)),
    (Stage.KERNEL_WARMUP, o.at(0)),
    (Stage.CUDA_GRAPH_CAPTURE, o.at(284)),
    (Stage.READY, o.at(290)),
)


def told(events: tuple[EventDraft, ...]) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in events]


NO_ROUTE = Exposure((ObjectProblem("IntegrationDisabled", "HTTPRoute", "gateway"),))
NOT_ACCEPTED = Exposure(awaits_gateway=True)
NO_SCALER = (ObjectProblem("MetricsAPIMissing", "HorizontalPodAutoscaler", "custom.metrics.k8s.io"),)
NO_BUDGET = (ObjectProblem("ApplyFailed", "PodDisruptionBudget", "forbidden"),)


@pytest.mark.parametrize(
    ("pod", "part", "reasons"),
    [
        (o.ready_pod(), {"exposure": NO_ROUTE}, ["IntegrationDisabled"]),
        (o.starting_pod(), {"exposure": NO_ROUTE}, ["IntegrationDisabled"]),
        (o.ready_pod(), {"exposure": NOT_ACCEPTED}, ["RouteNotAccepted"]),
        (o.starting_pod(), {"exposure": NOT_ACCEPTED}, []),
        (o.ready_pod(), {"scaling": NO_SCALER}, ["MetricsAPIMissing"]),
        (o.ready_pod(), {"scaling": NO_BUDGET}, ["ApplyFailed"]),
        (
            o.ready_pod(),
            {"exposure": NO_ROUTE, "scaling": (*NO_SCALER, *NO_BUDGET)},
            ["IntegrationDisabled", "MetricsAPIMissing", "ApplyFailed"],
        ),
    ],
    ids=["no route", "before it serves", "not accepted", "not accepted yet", "no autoscaler", "no budget", "several"],
)
def test_each_part_that_is_not_in_effect_has_one_warning(pod: dict[str, Any], part: dict[str, Any], reasons: list[str]) -> None:
    scene = replace(o.observe(pod), **part)
    first, again = play(scene, scene)
    assert [event.reason for event in first.events if event.type == "Warning"] == reasons
    assert not [event for event in again.events if event.type == "Warning"]


def test_a_route_that_nobody_accepts_is_a_warning_when_the_engine_serves() -> None:
    reports = play(*(replace(o.observe(pod), exposure=NOT_ACCEPTED) for pod in (o.starting_pod(), o.ready_pod(), o.ready_pod())))
    assert [[event.reason for event in it.events if event.type == "Warning"] for it in reports] == [[], ["RouteNotAccepted"], []]


def play(*scenes: Observation) -> list[Report]:
    """Report on scenes in order, each with the status written before it."""
    written: list[Report] = []
    for observed in scenes:
        status = written[-1].status if written else observed.resource.status
        written.append(report(o.following(observed, status)))
    return written


def compiling(seconds: float) -> Observation:
    progress = Progress(900, 1735, "DeepGEMM warm-up")
    state = StartupState(stage=Stage.KERNEL_WARMUP, progress=progress, stage_since=o.at(0), last_line_at=o.at(seconds))
    return o.observe(o.starting_pod(), states={X1: state}, now=o.at(seconds))


def capturing(seconds: float) -> Observation:
    state = StartupState(stage=Stage.CUDA_GRAPH_CAPTURE, stage_since=o.at(284), last_line_at=o.at(seconds), entered=ENTERED[:3])
    return o.observe(o.starting_pod(), states={X1: state}, now=o.at(seconds))


def ready(seconds: float, cache: CacheEvidence) -> Observation:
    state = StartupState(stage=Stage.READY, stage_since=o.at(seconds), cache=cache, entered=ENTERED)
    return o.observe(o.ready_pod(since=-60, ready=seconds), states={X1: state}, now=o.at(seconds))


def test_a_plan_is_reported_where_it_replaces_another_state() -> None:
    nothing = o.outcome(planned=Verdict(ConditionStatus.FALSE, "NoMatchingGPU", "No node has such a GPU."), plan=None)
    story = play(o.observe(outcome=nothing, deployment=None), o.observe())
    assert [told(written.events) for written in story] == [[("Warning", "NoMatchingGPU")], [("Normal", "Planned")]]


def test_a_cold_start_is_reported_until_it_serves() -> None:
    story = play(o.observe(), compiling(100), capturing(290), ready(300, CacheEvidence(misses=9)))
    assert [told(written.events) for written in story] == [[], [], [], [("Normal", "Started")]]
    assert story[3].events[0].message == "The replica is ready. The start took 6 min (cold caches)."


def test_a_warm_start_says_so() -> None:
    story = play(o.observe(), ready(-25, CacheEvidence(hits=9)))
    assert told(story[1].events) == [("Normal", "Started")]
    assert "The start took 35 s (warm caches)" in story[1].events[0].message


def test_a_start_without_a_log_is_timed_by_its_pod() -> None:
    story = play(o.observe(), o.observe(o.ready_pod(since=-500, ready=-20)))
    assert story[1].events[0].message == "The replica is ready. The start took 8 min."


def test_a_replica_that_answers_again_has_not_started() -> None:
    hung = o.pod(
        containers=[o.container(o.running(-500), started=True)],
        conditions=[o.condition("PodScheduled", "True"), o.condition("Ready", "False", reason="ContainersNotReady")],
    )
    story = play(o.observe(), o.observe(hung), o.observe(o.ready_pod(since=-500, ready=-20)))
    assert story[2].events[0].message == "The replica is ready."


def test_a_stall_is_reported_once_and_again_if_it_comes_again_elsewhere() -> None:
    hung = StartupState(stage=Stage.DISTRIBUTED_INIT, stage_since=o.at(-700), started_at=o.at(-700), last_line_at=o.at(-700))
    observed = o.observe(o.starting_pod(since=-700), states={X1: hung})
    story = play(observed, replace(observed, now=o.at(60)), replace(observed, now=o.at(600)))
    assert [told(written.events) for written in story] == [[("Warning", "NoProgress")], [], []]
    moved_on = replace(observed, startups={UID: replace(hung, stage=Stage.WEIGHT_LOAD, stage_since=o.at(10), last_line_at=o.at(10))})
    hung_again = replace(moved_on, now=o.at(10 + 900))
    later = play(observed, replace(moved_on, now=o.at(20)), hung_again)
    assert told(later[2].events) == [("Warning", "NoProgress")]
    assert later[2].events[0].key != story[0].events[0].key


def test_a_refused_spec_is_reported_once_per_generation() -> None:
    refused = Verdict(ConditionStatus.FALSE, "NoMatchingGPU", "No node has an sm_100 GPU.")
    observed = o.observe(outcome=o.outcome(planned=refused, plan=None), deployment=None)
    story = play(observed, observed)
    assert [told(written.events) for written in story] == [[("Warning", "NoMatchingGPU")], []]


def test_a_spec_that_cannot_be_understood_is_reported_once_not_twice() -> None:
    invalid = Verdict(ConditionStatus.FALSE, "InvalidSpec", "spec.parallelism.tensor is 3.")
    follows = Verdict(ConditionStatus.UNKNOWN, "NotAccepted", "Nothing was planned.")
    observed = o.observe(outcome=o.outcome(accepted=invalid, planned=follows, plan=None), deployment=None)
    assert told(report(observed).events) == [("Warning", "InvalidSpec")]


def test_a_refused_child_is_reported_once_per_error() -> None:
    observed = o.observe(apply_error="Deployment vllm-a is forbidden: exceeded quota")
    story = play(observed, observed, replace(observed, apply_error="Service vllm-a is invalid"))
    assert [told(written.events) for written in story] == [
        [("Warning", "ApplyFailed")],
        [],
        [("Warning", "ApplyFailed")],
    ]


def test_refusals_that_differ_in_a_detail_are_counted_in_one_event() -> None:
    observed = o.observe(apply_error="Deployment vllm-a: failed calling webhook: read tcp 10.0.0.1:40000: connection reset by peer")
    again = replace(observed, apply_error="Deployment vllm-a: failed calling webhook: read tcp 10.0.0.1:40001: connection reset by peer")
    drafts = [event for written in play(observed, again) for event in written.events if event.reason == "ApplyFailed"]
    assert len({event.key for event in drafts}) == 2
    assert {event.series for event in drafts} == {"apply"}


def test_another_backend_than_planned_is_reported_once() -> None:
    state = StartupState(stage=Stage.WEIGHT_LOAD, observed_backends=(("MoE", "TRITON"),))
    observed = o.observe(o.starting_pod(), states={X1: state})
    story = play(observed, observed)
    assert [told(written.events) for written in story] == [[("Warning", "BackendMismatch")], []]
    assert "MoE TRITON instead of DEEPGEMM" in plan_verdict(story[1].status).message


def test_layers_of_another_kind_beside_the_planned_ones_are_no_difference() -> None:
    state = StartupState(stage=Stage.WEIGHT_LOAD, observed_backends=(("MoE", "BATCHED_DEEPGEMM"), ("MoE", "TRITON")))
    written = report(o.observe(o.starting_pod(), states={X1: state}))
    assert told(written.events) == []
    assert written.status.engine is None


def test_an_engine_that_takes_another_backend_than_it_was_known_to_take_is_reported() -> None:
    state = StartupState(stage=Stage.WEIGHT_LOAD, observed_backends=(("Attention", "TRITON_MLA"),))
    story = play(observed := o.observe(o.starting_pod(), states={X1: state}), observed)
    assert [told(written.events) for written in story] == [[("Warning", "BackendMismatch")], []]
    planned = plan_verdict(story[1].status)
    assert "TRITON_MLA instead of" in planned.message
    assert "which vLLM was expected to take by itself" in planned.message


def test_what_the_engine_may_take_for_reasons_of_its_own_is_no_difference() -> None:
    observed = o.observe(o.starting_pod(), states={X1: StartupState(stage=Stage.WEIGHT_LOAD, observed_backends=(("AllReduce", "PYNCCL"),))})
    plan = observed.outcome.plan
    assert plan is not None
    choice = BackendChoice(component="AllReduce", backend="CUSTOM", alternatives=["NCCL"], chosen_by="Engine", reason="It needs NVLink.")
    outcome = replace(observed.outcome, plan=plan.model_copy(update={"backends": [choice]}))
    written = report(replace(observed, outcome=outcome))
    assert told(written.events) == []
    assert written.status.engine is not None
    assert written.status.engine.observed_backends == [ObservedBackend(component="AllReduce", backend="PYNCCL")]


def test_an_image_that_cannot_be_pulled_is_reported_once_whatever_the_kubelet_calls_it() -> None:
    first, second = (o.observe(o.pending_pod(reason, "manifest unknown")) for reason in ("ErrImagePull", "ImagePullBackOff"))
    assert [told(written.events) for written in play(first, second, first)][1:] == [[], []]


def test_a_crash_of_several_pods_at_once_is_one_event() -> None:
    observed = o.observe(*(o.crashed_pod(f"vllm-a-x{n}") for n in range(4)), replicas=4)
    assert told(report(observed).events) == [("Warning", "UnknownCrash")]


def silent(seconds: float, *names: str) -> Observation:
    """Pods whose engines have said nothing since they began."""
    pods = (o.starting_pod(name, since=0) for name in names)
    return o.observe(*pods, replicas=2, now=o.at(seconds))


def test_each_pod_that_stalls_is_reported_once() -> None:
    both = ("vllm-a-x0", "vllm-a-x1")
    story = play(silent(10, "vllm-a-x1"), silent(700, "vllm-a-x1"), silent(710, *both), silent(720, *both))
    stalls = [[event.message.split()[1] for event in written.events if event.reason == "NoProgress"] for written in story]
    assert stalls == [[], ["vllm-a-x1"], ["vllm-a-x0"], []]


def test_a_lost_node_is_reported_once() -> None:
    conditions = [o.condition("ContainersReady", "True"), o.condition("Ready", "False", -20)]
    lost = o.observe(o.pod(containers=[o.container(o.running(), started=True, ready=True)], conditions=conditions))
    story = play(o.observe(o.ready_pod()), lost, lost)
    assert [("Warning", "NodeLost") in told(written.events) for written in story] == [False, True, False]
