"""A report is an answer, not a log: it is rewritten only when there is news, and a restart of the operator loses nothing."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support import observations as o
from support.own_knowledge import LICENCE_SIGNATURE
from support.shapes import OBJECTS
from vllm_operator.api.conditions import PAGES, find_condition
from vllm_operator.api.status import ObservedBackend, VLLMDeploymentStatus
from vllm_operator.catalog.startup import load_startup
from vllm_operator.catalog.user_entries import with_user_signatures
from vllm_operator.logs.state import CacheEvidence, Crash, Progress, Stage, StartupState
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import report

X1 = ("vllm-a-x1", 0)


def counting(done: int, *, eta: int = 60, seconds: float = 0, stage: Stage = Stage.KERNEL_WARMUP) -> StartupState:
    progress = Progress(done, 1000, "DeepGEMM warm-up", eta)
    return StartupState(stage=stage, progress=progress, stage_since=o.at(-30), started_at=o.at(-60), last_line_at=o.at(seconds))


def on(state: StartupState, *, seconds: float = 0, before: VLLMDeploymentStatus | None = None) -> Observation:
    return o.observe(o.starting_pod(), states={X1: state}, now=o.at(seconds), resource=o.resource(status=before))


PROGRESS = {
    "one more kernel after 3 s is held back": (counting(105, seconds=3), 3, False),
    "half of five percent and another estimate are held back": (counting(125, eta=200, seconds=3), 3, False),
    "five percent are shown at once": (counting(150, seconds=3), 3, True),
    "little progress is shown after 10 s": (counting(105, seconds=10), 10, True),
    "no progress is not shown however long it lasts": (counting(100), 300, False),
    "another stage is shown at once": (replace(counting(100, stage=Stage.CUDA_GRAPH_CAPTURE), progress=None), 1, True),
    "a bar that starts over is shown at once": (counting(0, seconds=3), 3, True),
}


@pytest.mark.parametrize(("state", "seconds", "want_shown"), PROGRESS.values(), ids=PROGRESS)
def test_progress_is_written_at_most_every_10_s_or_5_percent(state: StartupState, seconds: float, want_shown: bool) -> None:
    first = report(on(counting(100)))
    second = report(on(state, seconds=seconds, before=first.status))
    assert (second.status != first.status) is want_shown


def test_progress_that_is_held_back_is_looked_at_when_it_is_due() -> None:
    first = report(on(counting(100)))
    second = report(on(counting(105, seconds=3), seconds=3, before=first.status))
    assert second.requeue_after_seconds == 7
    third = report(on(counting(105, seconds=3), seconds=10, before=second.status))
    assert third.status.startup is not None
    assert third.status.startup.completed == 105


def test_summary_and_startup_tell_the_same_number_while_progress_is_held_back() -> None:
    first = report(on(counting(100)))
    second = report(on(counting(105, seconds=3), seconds=3, before=first.status)).status
    ready = find_condition(second.conditions, "Ready")
    assert ready is not None
    assert "100/1000" in ready.message


def test_another_pod_that_crashes_is_shown_while_progress_is_held_back() -> None:
    pods = (o.starting_pod(), o.starting_pod("vllm-a-x2"))
    observation = o.observe(*pods, replicas=2, states={X1: counting(100)})
    first = report(observation)
    changed = o.after(observation, first, seconds=2, pods=(pods[0], o.crashed_pod("vllm-a-x2", reason="OOMKilled")))
    crashed = find_condition(report(changed).status.conditions, "Crashed")
    assert crashed is not None
    assert crashed.reason == "OOMKilled"


def test_what_a_report_itself_says_of_the_caches_changes_nothing_about_the_start_beside_it() -> None:
    loading = StartupState(stage=Stage.TORCH_COMPILE, stage_since=o.at(-5), last_line_at=o.at(-1))
    seen = o.observe(o.ready_pod("vllm-a-x2"), o.starting_pod(), replicas=2, states={X1: loading})
    first = report(seen)
    assert first.status.cache is not None
    assert first.status.cache.state == "Filled"
    assert report(o.after(seen, first, seconds=10)).status.startup == first.status.startup


def test_a_stall_is_looked_for_when_it_is_due() -> None:
    state = StartupState(stage=Stage.PROCESS_START, stage_since=o.at(-30), last_line_at=o.at(-100), started_at=o.at(-200))
    observation = o.observe(o.starting_pod(since=-200), states={X1: state})
    assert report(observation).requeue_after_seconds == 570
    stalled = report(replace(observation, now=o.at(570)))
    starting = find_condition(stalled.status.conditions, "Ready")
    assert starting is not None
    assert starting.reason == "NoProgress"
    assert stalled.requeue_after_seconds is None


def test_a_stage_that_is_known_to_be_silent_gets_its_time() -> None:
    state = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(-800), started_at=o.at(-850), silent_stage_inferred=True)
    condition = find_condition(report(o.observe(o.starting_pod(since=-850), states={X1: state})).status.conditions, "Ready")
    assert condition is not None
    assert condition.reason == "Starting"


def test_a_log_from_the_future_does_not_grant_patience_for_ever() -> None:
    state = StartupState(stage=Stage.PROCESS_START, stage_since=o.at(-700), last_line_at=o.at(86400), started_at=o.at(-700))
    condition = find_condition(report(o.observe(o.starting_pod(since=-700), states={X1: state})).status.conditions, "Ready")
    assert condition is not None
    assert condition.reason == "NoProgress"


def test_nothing_is_due_once_all_serve() -> None:
    assert report(o.observe(o.ready_pod())).requeue_after_seconds is None


def test_a_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    first = report(on(counting(100)))
    second = report(on(counting(900, seconds=60), seconds=60, before=first.status))
    before, after = (find_condition(s.conditions, "Ready") for s in (first.status, second.status))
    assert before is not None
    assert after is not None
    assert after.message != before.message
    assert after.last_transition_time == before.last_transition_time == o.stamp(0)


def test_a_restarted_operator_that_has_no_logs_any_more_keeps_what_was_seen() -> None:
    state = StartupState(
        stage=Stage.READY,
        stage_since=o.at(-20),
        started_at=o.at(-55),
        last_line_at=o.at(-20),
        cache=CacheEvidence(hits=4),
        observed_backends=(("MoE", "DEEPGEMM"), ("Attention", "TRITON_MLA")),
    )
    crash = StartupState(crash=o.DEEP_GEMM_CRASH)
    pod = o.ready_pod(since=-55, restarts=1, last=o.terminated(seconds=-60))
    seen = o.observe(pod, states={X1: crash, ("vllm-a-x1", 1): state})
    first = report(seen)
    again = report(o.after(seen, first, seconds=3600, startups={}))
    assert again.status.to_json() == first.status.to_json()
    assert again.events == ()
    assert again.status.cache is not None
    assert again.status.cache.warm_start_seconds == 35
    assert again.status.engine is not None
    assert again.status.engine.observed_backends == [ObservedBackend(component="Attention", backend="TRITON_MLA")]


SHARED: dict[str, Any] = {"spec": {"cache": {"claimName": "shared"}}, "claim_name": "shared"}
EMPTY_DIR: dict[str, Any] = {"spec": {"cache": {"storage": "EmptyDir"}}, "claim_name": None, "claim": None}


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (SHARED, None),
        (EMPTY_DIR, None),
        ({"claim_name": "of-the-pod-template"}, "of-the-pod-template"),
        ({"claim_name": None, "claim": None}, ""),
        ({**SHARED, "claim_name": "vllm-a-cache"}, "vllm-a-cache"),
    ],
)
def test_the_status_names_the_claim_of_the_caches_only_if_the_spec_does_not(changes: dict[str, Any], reported: str | None) -> None:
    state = StartupState(stage=Stage.READY, stage_since=o.at(-20), started_at=o.at(-55), cache=CacheEvidence(hits=4))
    seen = o.observe(o.ready_pod(since=-55), states={("vllm-a-x1", 0): state})
    first = report(seen)
    assert first.status.cache is not None
    assert first.status.cache.claim_name is None
    later = o.after(seen, first, startups={}, **{name: value for name, value in changes.items() if name != "spec"})
    if "spec" in changes:
        spec = later.resource.spec.model_validate({**later.resource.spec.to_json(), **changes["spec"]})
        later = replace(later, resource=later.resource.model_copy(update={"spec": spec}).with_pinned(later.resource.pinned))
    told = report(later).status
    assert told.cache is not None
    assert told.cache.claim_name == reported


def test_a_crash_is_named_once_its_log_is_read_and_reported_once() -> None:
    observation = o.observe(o.crashed_pod(seconds=-1))
    first = report(observation)
    assert first.events == ()
    assert first.status.last_crash is None
    assert first.requeue_after_seconds == 9
    known = {("uid-vllm-a-x1", 0): StartupState(crash=o.DEEP_GEMM_CRASH)}
    second_look = o.after(observation, first, seconds=1, startups=known)
    second = report(second_look)
    assert [e.reason for e in second.events] == ["MigUuidNotInteger"]
    assert report(o.after(second_look, second, seconds=1)).events == ()


def test_an_unknown_crash_that_is_understood_later_is_renamed_without_another_event() -> None:
    observation = o.observe(o.crashed_pod())
    first = report(observation)
    assert first.status.last_crash is not None
    assert first.status.last_crash.signature == "Unknown"
    second = report(o.after(observation, first, startups={("uid-vllm-a-x1", 0): StartupState(crash=o.DEEP_GEMM_CRASH)}))
    assert second.status.last_crash is not None
    assert second.status.last_crash.signature == "MigUuidNotInteger"
    assert second.events == ()


def test_an_unknown_crash_whose_log_is_read_late_is_reported_with_the_error_of_the_log() -> None:
    observation = o.observe(o.crashed_pod())
    first = report(observation)
    assert first.status.last_crash is not None
    assert "its log does not say why" in str(first.status.last_crash.cause)
    unknown = replace(o.DEEP_GEMM_CRASH, signature="Unknown", cause="The engine failed with an error: the flux capacitor is empty")
    second = report(o.after(observation, first, startups={("uid-vllm-a-x1", 0): StartupState(crash=unknown)}))
    assert second.status.last_crash is not None
    assert second.status.last_crash.cause == unknown.cause
    assert second.events == ()
    log_is_gone = report(o.after(observation, second, startups={}))
    assert log_is_gone.status.last_crash == second.status.last_crash


def test_the_owner_of_the_cluster_names_a_crash_that_had_a_name_of_ours_already() -> None:
    startup, _ = with_user_signatures(load_startup(), {"ours.yaml": yaml.safe_dump([LICENCE_SIGNATURE])})
    knowledge = replace(load_knowledge(), startup=startup)
    name = str(LICENCE_SIGNATURE["id"])
    own = replace(o.DEEP_GEMM_CRASH, signature=name, cause="The licence server lic-7 did not answer.")
    observation = o.observe(o.crashed_pod(), states={X1: StartupState(crash=o.DEEP_GEMM_CRASH)})
    written = report(observation)
    for cause in (own.cause, "Our licence server lic-7 is away."):
        told = {("uid-vllm-a-x1", 0): StartupState(crash=replace(own, cause=cause))}
        written = report(o.after(observation, written, startups=told, knowledge=knowledge))
        assert written.status.last_crash is not None
        assert (written.status.last_crash.signature, written.status.last_crash.cause) == (name, cause)
        assert written.events == ()
    log_is_gone = report(o.after(observation, written, startups={}, knowledge=knowledge))
    assert log_is_gone.status.last_crash == written.status.last_crash


def test_a_known_crash_is_not_forgotten_for_a_vaguer_one() -> None:
    observation = o.observe(o.crashed_pod(code=137), states={X1: StartupState(crash=o.DEEP_GEMM_CRASH)})
    first = report(observation)
    second = report(o.after(observation, first, startups={}))
    assert second.status.last_crash == first.status.last_crash


def test_the_last_crash_outlives_its_pod() -> None:
    observation = o.observe(o.crashed_pod(), states={X1: StartupState(crash=o.DEEP_GEMM_CRASH)})
    first = report(observation)
    second = report(o.after(observation, first, pods=(o.ready_pod("vllm-a-x9"),), seconds=60))
    assert first.status.last_crash is not None
    added = {
        "exit_code": 1,
        "reference": f"{PAGES}/MigUuidNotInteger",
        "command": None,
    }  # Crashed said the first two
    assert second.status.last_crash == first.status.last_crash.model_copy(update=added)
    assert find_condition(second.status.conditions, "Crashed") is None


def test_each_crash_of_a_loop_is_reported_once_with_a_key_of_its_own() -> None:
    observation = o.observe()
    keys = []
    status = report(observation).status
    for restarts in range(3):
        crashed = o.crashed_pod(restarts=restarts, seconds=60 * restarts)
        for seconds in (20, 40):
            seen = o.following(o.observe(crashed, now=o.at(60 * restarts + seconds)), status)
            written = report(seen)
            keys += [e.key for e in written.events]
            status = written.status
    assert keys == ["crash-uid-vllm-a-x1-0", "crash-uid-vllm-a-x1-1", "crash-uid-vllm-a-x1-2"]


PODS = st.sampled_from(
    [
        o.starting_pod,
        o.ready_pod,
        o.crashed_pod,
        o.unschedulable_pod,
        lambda name: o.pending_pod("ErrImagePull", "manifest unknown", name=name),
        lambda name: o.pending_pod("ContainerCreating", name=name),
        lambda name: o.starting_pod(name, restarts=3, last=o.terminated(137, "OOMKilled")),
        lambda name: o.starting_pod(name, since=-5000),
        lambda name: o.pod(name, phase="Failed", reason="Evicted", message="low on memory"),
        lambda name: o.crashed_pod(name, seconds=-3),
    ]
)
PAST = st.integers(-900, 0).map(o.at)
TEXT = st.text(max_size=1500)
CRASHES = st.one_of(st.none(), st.builds(Crash, st.text(max_size=150), TEXT, st.none() | TEXT, st.none() | TEXT, TEXT, excerpt=TEXT))
STATES = st.builds(
    StartupState,
    stage=st.sampled_from(Stage),
    progress=st.none() | st.builds(Progress, st.integers(-5, 2000), st.integers(-5, 2000), st.text(max_size=90), st.none() | st.integers()),
    stage_since=st.none() | PAST,
    started_at=st.none() | PAST,
    last_line_at=st.none() | PAST,
    silent_stage_inferred=st.booleans(),
    crash=CRASHES,
    cache=st.builds(CacheEvidence, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    entered=st.lists(st.tuples(st.sampled_from(Stage), st.none() | PAST), max_size=5).map(tuple),
    observed_backends=st.lists(st.tuples(st.sampled_from(["MoE", "Attention"]), st.text(max_size=200)), max_size=3).map(tuple),
)


@st.composite
def observations(draw: Any) -> Observation:
    names = [f"vllm-a-x{n}" for n in range(draw(st.integers(0, 5)))]
    pods = [draw(PODS)(name) for name in names]
    states = {(name, run): draw(STATES) for name in names for run in draw(st.sets(st.integers(0, 3), max_size=2))}
    claim = draw(st.sampled_from([None, o.claim(), o.claim("Pending"), o.claim("Lost"), o.claim(modes=["ReadWriteOnce"])]))
    return o.observe(*pods, replicas=draw(st.integers(0, 5)), states=states, claim=claim)


@given(observations())
def test_the_same_scene_is_written_once_and_within_bounds(observation: Observation) -> None:
    first = report(observation)
    VLLMDeploymentStatus.model_validate(first.status.to_json())
    assert all(len(condition.message.partition(" (See ")[0]) <= 500 for condition in first.status.conditions)
    assert all(len(event.message) <= 1023 for event in first.events)
    again = report(o.after(observation, first))
    assert again.status.to_json() == first.status.to_json()
    assert again.events == ()


@given(observations(), st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_time_alone_changes_a_report_only_where_it_was_said_to(observation: Observation, steps: list[int]) -> None:
    written = report(observation)
    for seconds in steps:
        due = written.requeue_after_seconds
        later = report(o.after(observation, written, seconds=seconds))
        if due is None or seconds < due - 1:
            assert later.status.to_json() == written.status.to_json()
        observation, written = o.after(observation, written, seconds=seconds), later


@given(st.lists(OBJECTS, max_size=3), st.lists(OBJECTS, max_size=3), OBJECTS, OBJECTS, OBJECTS)
def test_no_shape_of_what_the_api_server_sends_raises(
    pods: list[Any], events: list[Any], deployment: dict[str, Any], claim: dict[str, Any], service: dict[str, Any]
) -> None:
    named = [{"metadata": {"name": f"vllm-a-x{n}"}} | pod for n, pod in enumerate(pods)]
    observation = o.observe(*named, pod_events=tuple(events), deployment=deployment, claim=claim, service=service)
    first = report(observation)
    VLLMDeploymentStatus.model_validate(first.status.to_json())
    assert report(o.after(observation, first)).status == first.status


def test_what_was_refused_is_tried_again_after_5_s_and_then_less_and_less_often() -> None:
    status, waits, now = VLLMDeploymentStatus(), [], 0.0
    for _ in range(12):
        refused = "Deployment vllm-a is forbidden: exceeded quota"
        said = report(o.observe(apply_error=refused, deployment=None, now=o.at(now), resource=o.resource(status=status)))
        assert said.requeue_after_seconds is not None
        waits.append(said.requeue_after_seconds)
        status, now = said.status, now + said.requeue_after_seconds

    assert waits[0] == 5
    assert waits == sorted(waits)
    assert waits[-1] == 30
    assert report(o.observe(deployment=None, now=o.at(now), resource=o.resource(status=status))).requeue_after_seconds is None
