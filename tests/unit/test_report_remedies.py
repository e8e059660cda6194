"""Remedies and stalls as the status and the events tell them."""

from dataclasses import replace
from typing import Any

from support import observations as o
from vllm_operator.logs.state import Crash, Stage, StartupState
from vllm_operator.status.observation import Observation
from vllm_operator.status.remedies import remediation_in_force
from vllm_operator.status.report import Report, report

X1 = ("vllm-a-x1", 0)
CRASH = Crash(
    signature="MaxModelLenExceedsKvCache",
    cause="A request of --max-model-len 131072 tokens does not fit in the KV cache",
    remedy="Lower --max-model-len to at most 5568",
    reference=None,
    line="ValueError: ...",
    captures=(("estimated", "5568"),),
)
AUTO: dict[str, Any] = {"remediation": {"mode": "Auto"}}


def crashed(spec: dict[str, Any], *, stage: Stage = Stage.MEMORY_PROFILING, **more: Any) -> Observation:
    state = StartupState(stage=stage, crash=CRASH, last_line_at=o.at(-31), lines=9)
    pods = more.pop("pods", (o.crashed_pod(),))
    return o.observe(*pods, states={X1: state}, spec=spec, **more)


def told(written: Report) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in written.events]


def message(written: Report, type: str) -> str:
    return next((condition.message for condition in written.status.conditions if condition.type == type), "")


def test_a_suggestion_is_said_with_where_its_command_is() -> None:
    written = report(crashed({}))
    assert written.status.last_crash is not None
    assert "--max-model-len" in (written.status.last_crash.command or "")
    assert written.status.remediation is None
    assert "What to do: Lower --max-model-len to at most 5568. The command is in status.lastCrash.command." in message(written, "Crashed")
    assert message(written, "Ready") == (
        "Pod vllm-a-x1 crashed (MaxModelLenExceedsKvCache). A request of --max-model-len 131072 tokens does not fit in the KV cache. "
        "See condition Crashed. Restarts alone do not help. The Pod keeps 8 GPUs meanwhile: to free them, set "
        "spec.replicas to 0."
    )
    assert told(written) == [("Warning", "MaxModelLenExceedsKvCache")]


def test_a_suggestion_is_a_part_of_the_record_of_its_crash_and_outlives_the_log() -> None:
    observed = crashed({})
    written = report(observed)
    crash = written.status.last_crash
    assert crash is not None
    assert crash.command is not None
    log_is_gone = o.after(replace(observed, startups={}), written, seconds=900)
    again = report(log_is_gone)
    assert again.status.last_crash == crash
    assert message(again, "Crashed") == message(written, "Crashed")


def test_a_suggestion_ends_with_the_spec_that_it_is_about() -> None:
    observed = crashed({})
    written = report(observed)
    resource = observed.resource.model_copy(update={"status": written.status})
    assert remediation_in_force(resource) is not None
    metadata = resource.metadata.model_copy(update={"generation": resource.metadata.generation + 1})
    assert remediation_in_force(resource.model_copy(update={"metadata": metadata})) is None


def test_a_suggestion_about_another_crash_than_the_last_one_names_it() -> None:
    unknown = o.crashed_pod("vllm-a-x2", seconds=-5)
    written = report(crashed({}, pods=(o.crashed_pod(), unknown), replicas=2, now=o.at(60))).status
    assert written.last_crash is not None
    assert written.remediation is not None
    assert (written.last_crash.pod, written.remediation.pod) == ("vllm-a-x2", "vllm-a-x1")
    assert written.remediation.signature == "MaxModelLenExceedsKvCache"


def test_a_remedy_is_said_where_the_crash_is_said_and_once_as_an_event() -> None:
    observed = crashed(AUTO)
    written = report(observed)
    assert told(written) == [("Warning", "MaxModelLenExceedsKvCache"), ("Normal", "RemedyApplied")]
    assert "The operator applied --max-model-len 5568. A change of the spec reverts it." in message(written, "Crashed")
    again = report(o.after(observed, written))
    assert again.status == written.status
    assert again.events == ()


def test_an_operator_that_has_lost_the_log_keeps_what_was_decided() -> None:
    observed = crashed(AUTO)
    written = report(observed)
    without_log = report(o.after(observed, written, seconds=20, startups={}))
    assert without_log.status.remediation == written.status.remediation


def test_a_crash_of_an_engine_that_had_started_is_not_remedied() -> None:
    written = report(crashed(AUTO, stage=Stage.READY))
    assert written.status.last_crash is not None
    assert written.status.last_crash.command is not None
    assert written.status.remediation is None


def test_a_crash_of_the_former_spec_changes_nothing_about_the_present_one() -> None:
    replaced = o.deployment(1, updated=0)
    assert report(crashed(AUTO, deployment=replaced)).status.remediation is None
    unseen = {**o.deployment(1), "metadata": {"name": "vllm-a", "generation": 2}}
    assert report(crashed(AUTO, deployment=unseen)).status.remediation is None
    old, new = o.crashed_pod(), o.starting_pod("vllm-a-x2")
    for pod, template, created in ((old, "a", -400), (new, "b", -10)):
        pod["metadata"] |= {"labels": {"pod-template-hash": template}, "creationTimestamp": o.stamp(created)}
    assert report(crashed(AUTO, deployment=o.deployment(2, updated=1), pods=(old, new))).status.remediation is None


def stalled(**startup: Any) -> Observation:
    state = StartupState(stage=Stage.READY, stage_since=o.at(-700), last_line_at=o.at(-700), lines=9)
    return o.observe(o.starting_pod(since=-800), states={X1: state}, spec={"startup": startup} if startup else {})


def deleted(observed: Observation) -> list[tuple[str, str]]:
    """The name and UID of the Pods that are deleted."""
    return [(pod.name, pod.uid) for pod in report(observed).pods_to_delete]


def test_a_stall_is_reported_and_left_alone() -> None:
    written = report(stalled())
    assert told(written) == [("Warning", "NoProgress")]
    assert deleted(stalled()) == []
    assert written.status.remediation is None


def test_a_stalled_pod_is_deleted_where_that_is_wished_until_it_is_gone() -> None:
    observed = stalled(onStall="Restart")
    written = report(observed)
    assert deleted(observed) == [("vllm-a-x1", "uid-vllm-a-x1")]
    assert told(written) == [("Warning", "NoProgress"), ("Warning", "RestartedStalled")]
    assert "The operator deletes the Pod" in message(written, "Ready")
    later = o.after(observed, written, seconds=1)
    again = report(later)
    assert deleted(later) == deleted(observed), "an operator that ended before it could delete the Pod goes on"
    assert (again.events, again.status) == ((), written.status)


def test_stalled_starts_are_restarted_so_many_times_and_no_more() -> None:
    observed = stalled(onStall="Restart", maxStallRestarts=1)
    written = report(observed)
    state = StartupState(stage=Stage.READY, stage_since=o.at(-700), last_line_at=o.at(-700), lines=9)
    second = o.after(observed, written, pods=(o.starting_pod("vllm-a-x2", since=-800),), startups={("uid-vllm-a-x2", 0): state})
    last = report(second)
    assert deleted(second) == []
    assert "spec.startup.maxStallRestarts is reached" in message(last, "Ready")
    assert last.status.remediation == written.status.remediation


def test_a_remedy_that_has_helped_stays_in_the_status() -> None:
    observed = crashed(AUTO)
    written = report(observed)
    serving = report(o.after(observed, written, seconds=60, pods=(o.ready_pod("vllm-a-x2"),), startups={}))
    assert message(serving, "Crashed") == ""
    assert serving.status.remediation is not None
    assert (serving.status.remediation.message or "").startswith("In force: --max-model-len 5568.")
