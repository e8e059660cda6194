"""What a real kubelet shows of a Pod, and what is read from it."""

from typing import Any

import pytest
from hypothesis import given

from support import observations as o
from support.shapes import OBJECTS
from vllm_operator.pods.view import EventLog, Phase, Termination, killed_by_probe, read_pod, refine

START_ERROR = {
    "terminated": {
        "exitCode": 128,
        "reason": "StartError",
        "message": 'exec: "vlm": executable file not found in $PATH',
        "startedAt": "1970-01-01T00:00:00Z",
        "finishedAt": o.stamp(-5),
    }
}
UNREADY = [o.condition("PodScheduled", "True"), o.condition("ContainersReady", "False"), o.condition("Ready", "False", -20)]
SERVED: dict[str, Any] = {"started": True, "ready": False}

PODS: dict[str, tuple[dict[str, Any], Phase, str]] = {
    "no node has a free GPU": (o.unschedulable_pod(), Phase.UNSCHEDULABLE, "Unschedulable"),
    "a claim that is missing shows as unschedulable": (
        o.unschedulable_pod(message='persistentvolumeclaim "vllm-a-cache" not found'),
        Phase.UNSCHEDULABLE,
        "Unschedulable",
    ),
    "the scheduler has not looked yet": (o.pod(phase="Pending", node=""), Phase.SCHEDULING, ""),
    "before start": (o.pending_pod("ContainerCreating"), Phase.CREATING, "ContainerCreating"),
    "on a node without a word about the container": (o.pod(phase="Pending"), Phase.CREATING, ""),
    "no such image": (o.pending_pod("ErrImagePull", "manifest unknown"), Phase.IMAGE_PULL_FAILED, "ErrImagePull"),
    "no such image, backing off": (o.pending_pod("ImagePullBackOff"), Phase.IMAGE_PULL_FAILED, "ImagePullBackOff"),
    "pull policy Never": (o.pending_pod("ErrImageNeverPull"), Phase.IMAGE_PULL_FAILED, "ErrImageNeverPull"),
    "a Secret is missing": (
        o.pending_pod("CreateContainerConfigError", 'secret "hf" not found'),
        Phase.CONTAINER_FAILED,
        "CreateContainerConfigError",
    ),
    "a command that cannot be run": (
        o.pending_pod("RunContainerError", "runc create failed", last=START_ERROR, restarts=1),
        Phase.CONTAINER_FAILED,
        "RunContainerError",
    ),
    "a command that cannot be run, backing off": (
        o.pending_pod("CrashLoopBackOff", "back-off 10s", last=START_ERROR, restarts=1),
        Phase.CONTAINER_FAILED,
        "StartError",
    ),
    "startup probe failing": (o.starting_pod(), Phase.STARTING, ""),
    "probe succeeded, readiness to follow within milliseconds": (
        o.pod(containers=[o.container(o.running(-10), **SERVED)], conditions=UNREADY),
        Phase.STARTING,
        "",
    ),
    "probe fails after it has served": (
        o.pod(containers=[o.container(o.running(-60), **SERVED)], conditions=UNREADY),
        Phase.NOT_RESPONDING,
        "",
    ),
    "serves": (o.ready_pod(), Phase.READY, ""),
    "serves, simulated without container states": (o.pod(conditions=[o.condition("Ready", "True")]), Phase.READY, ""),
    "exits at once, for the first time": (o.crashed_pod(), Phase.CRASHED, "Error"),
    "crash loop that shows terminated during its back-off": (o.crashed_pod(restarts=4), Phase.CRASHED, "Error"),
    "crash loop in the instant that shows CrashLoopBackOff": (
        o.pod(containers=[o.container(o.waiting("CrashLoopBackOff"), restarts=4, last=o.terminated())]),
        Phase.CRASHED,
        "Error",
    ),
    "starts again after a crash": (o.starting_pod(restarts=1, last=o.terminated()), Phase.STARTING, ""),
    "killed for memory": (o.crashed_pod(code=137, reason="OOMKilled"), Phase.CRASHED, "OOMKilled"),
    "its child killed for memory, its own exit code 1": (o.crashed_pod(code=1, reason="OOMKilled"), Phase.CRASHED, "OOMKilled"),
    "ended with exit code 0, which a server never should": (o.crashed_pod(code=0, reason="Completed"), Phase.CRASHED, "Completed"),
    "restartPolicy Never": (
        o.pod(phase="Failed", containers=[o.container(o.terminated())]),
        Phase.CRASHED,
        "Error",
    ),
    "evicted": (o.pod(phase="Failed", reason="Evicted", message="The node was low on memory."), Phase.FAILED, "Evicted"),
    "refused by the kubelet: the device is gone": (
        o.pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed due to no healthy devices"),
        Phase.FAILED,
        "UnexpectedAdmissionError",
    ),
    "node does not report, containers were ready": (
        o.pod(
            containers=[o.container(o.running(), started=True, ready=True)],
            conditions=[o.condition("ContainersReady", "True"), o.condition("Ready", "False", -20)],
        ),
        Phase.NODE_LOST,
        "NodeNotReady",
    ),
    "a readiness gate is not a lost node": (
        o.pod(
            containers=[o.container(o.running(), started=True, ready=True)],
            conditions=[o.condition("ContainersReady", "True"), o.condition("Ready", "False", -20, reason="ReadinessGatesNotReady")],
        ),
        Phase.NOT_RESPONDING,
        "ReadinessGatesNotReady",
    ),
    "being deleted": (
        {**o.starting_pod(), "metadata": {"name": "vllm-a-x1", "deletionTimestamp": o.stamp(0)}},
        Phase.TERMINATING,
        "",
    ),
}


@pytest.mark.parametrize(("pod", "want_phase", "want_reason"), PODS.values(), ids=PODS)
def test_a_pod_is_read_as_what_it_is(pod: dict[str, Any], want_phase: Phase, want_reason: str) -> None:
    view = read_pod(pod)
    assert (view.phase, view.reason) == (want_phase, want_reason)


TERMINATIONS: dict[str, tuple[dict[str, Any], tuple[int, int | None, str] | None]] = {
    "never ended": (o.starting_pod(), None),
    "the first run has ended": (o.crashed_pod(), (0, 1, "Error")),
    "terminated while waiting for the fourth restart": (o.crashed_pod(restarts=3), (3, 1, "Error")),
    "CrashLoopBackOff speaks of the run that the restart count names": (
        o.pod(containers=[o.container(o.waiting("CrashLoopBackOff"), restarts=3, last=o.terminated(137, "OOMKilled"))]),
        (3, 137, "OOMKilled"),
    ),
    "a running container's last state is the run before": (o.starting_pod(restarts=3, last=o.terminated()), (2, 1, "Error")),
}


@pytest.mark.parametrize(("pod", "want"), TERMINATIONS.values(), ids=TERMINATIONS)
def test_the_run_that_ended_is_known_by_its_restarts(pod: dict[str, Any], want: tuple[int, int | None, str] | None) -> None:
    ended = read_pod(pod).termination
    assert (ended and (ended.restarts, ended.exit_code, ended.reason)) == want


def test_a_container_that_never_started_has_no_start_in_1970() -> None:
    pod = o.pod(containers=[o.container({"running": {"startedAt": "1970-01-01T00:00:00Z"}})])
    assert read_pod(pod).started_at is None


def test_an_init_container_that_is_not_done_is_looked_at_before_the_engine() -> None:
    done = o.container(o.terminated(0, "Completed"), name="prepare")
    broken = o.container(o.terminated(1), name="fetch")
    view = read_pod(o.pod(phase="Pending", init=[done, broken], containers=[o.container(o.waiting("PodInitializing"))]))
    assert (view.container, view.phase) == ("fetch", Phase.CRASHED)


def test_a_sidecar_that_runs_does_not_hide_the_engine() -> None:
    sidecar = o.container(o.running(), started=True, ready=True, name="proxy")
    view = read_pod(o.pod(init=[sidecar], containers=[o.container(o.running())]))
    assert (view.container, view.phase) == ("", Phase.STARTING)


def test_a_sidecar_that_crashes_beside_a_good_engine_is_named() -> None:
    engine = o.container(o.running(), started=True, ready=True)
    view = read_pod(o.pod(containers=[engine, o.container(o.terminated(2), name="exporter")]))
    assert (view.container, view.phase) == ("exporter", Phase.CRASHED)


CREATING: dict[str, tuple[list[dict[str, Any]], Phase]] = {
    "no events: the permission may be missing": ([], Phase.CREATING),
    "the image is being pulled": ([o.event("Pulling")], Phase.IMAGE_PULLING),
    "the image has been pulled": ([o.event("Pulling", seconds=-20), o.event("Pulled", seconds=-5)], Phase.CREATING),
    "a volume cannot be mounted": ([o.event("FailedMount", 'path "/mnt/x" does not exist')], Phase.WAITING_FOR_VOLUME),
    "a volume of another Pod cannot be mounted": ([o.event("FailedMount", name="vllm-a-x9")], Phase.CREATING),
    "an event of a former Pod of the same name": ([o.event("Pulling", uid="uid-former")], Phase.CREATING),
}


@pytest.mark.parametrize(("events", "want"), CREATING.values(), ids=CREATING)
def test_events_tell_what_a_pod_without_a_container_waits_for(events: list[dict[str, Any]], want: Phase) -> None:
    assert refine(read_pod(o.pending_pod("ContainerCreating")), EventLog(tuple(events))).phase is want


def test_a_probe_that_killed_is_reported_by_an_event_only() -> None:
    view = read_pod(o.crashed_pod(code=137, seconds=-30))
    said = "Container vllm failed startup probe, will be restarted"
    assert killed_by_probe(view, EventLog((o.event("Killing", said, seconds=-60),))) == said
    assert killed_by_probe(view, EventLog((o.event("Killing", said, seconds=-3600),))) is None
    assert killed_by_probe(view, EventLog((o.event("Killing", "Stopping container vllm", seconds=-60),))) is None


@given(OBJECTS)
def test_no_shape_of_a_pod_raises(pod: dict[str, Any]) -> None:
    view = read_pod(pod)
    assert view.phase in Phase
    assert view.termination is None or isinstance(view.termination, Termination)
