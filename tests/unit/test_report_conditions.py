"""Which condition each situation leads to, and what stands in its message."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from support import observations as o
from vllm_operator.api.conditions import ORDER, find_condition
from vllm_operator.api.status import ConditionStatus
from vllm_operator.planning.outcome import Verdict
from vllm_operator.reporting.observation import Observation
from vllm_operator.reporting.report import report
from vllm_operator.startup.state import CacheEvidence, Progress, Stage, StartupState

NOT_RESTRICTED = (
    'pods "a-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true '
    '(pod or container "vllm" must set securityContext.runAsNonRoot=true)'
)
X1 = ("vllm-a-x1", 0)
COMPILING = StartupState(
    stage=Stage.KERNEL_WARMUP,
    progress=Progress(1436, 1735, "DeepGEMM warm-up", eta_seconds=52),
    stage_since=o.at(-140),
    started_at=o.at(-300),
    last_line_at=o.at(-2),
    cache=CacheEvidence(misses=3),
)
FLASHINFER = (("MoE", "FLASHINFER_CUTLASS"),)
SILENT = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(-140), last_line_at=o.at(-130), observed_backends=FLASHINFER)
HUNG = StartupState(stage=Stage.DISTRIBUTED_INIT, stage_since=o.at(-900), started_at=o.at(-930), last_line_at=o.at(-900))
REFUSED = Verdict(ConditionStatus.FALSE, "NoMatchingGPU", "No node has an sm_100 GPU. The cluster has: 3 nodes with NVIDIA-H200 (sm_90).")
UNKNOWN_PLAN = Verdict(ConditionStatus.UNKNOWN, "NotAccepted", "Nothing was planned because the spec was not accepted.")
INVALID = Verdict(ConditionStatus.FALSE, "InvalidSpec", "spec.parallelism.tensor is 3, and the model has 64 heads.")


@dataclass(frozen=True)
class Situation:
    """What is observed; the condition and its status and reason; words in its message."""

    observation: Observation
    condition: str
    status: str
    reason: str
    words: tuple[str, ...] = ()


def crashed_state(**more: Any) -> StartupState:
    return StartupState(stage=Stage.CONFIGURATION, crash=o.DEEP_GEMM_CRASH, **more)


SITUATIONS = {
    "compile progress": Situation(
        o.observe(o.starting_pod(), states={X1: COMPILING}),
        "Starting",
        "True",
        "Progressing",
        ("Pod vllm-a-x1", "DeepGEMM warm-up 1436/1735", "about 50 s left"),
    ),
    "compile progress is the summary, too": Situation(
        o.observe(o.starting_pod(), states={X1: COMPILING}), "Ready", "False", "Progressing", ("1436/1735",)
    ),
    "silent compilation is said to be inferred": Situation(
        o.observe(o.starting_pod(), states={X1: SILENT}), "Starting", "True", "Progressing", ("FlashInfer", "inferred", "14:07:50 UTC")
    ),
    "no log yet": Situation(o.observe(o.starting_pod()), "Starting", "True", "Progressing", ("starting the engine process",)),
    "a start without a sign of life": Situation(
        o.observe(o.starting_pod(since=-930), states={("vllm-a-x1", 0): HUNG}),
        "Starting",
        "False",
        "Stalled",
        ("13:55:00 UTC", "connecting the GPUs", "10 min", "stallSeconds", "kubectl logs vllm-a-x1"),
    ),
    "a patient user": Situation(
        o.observe(o.starting_pod(since=-930), states={X1: HUNG}, spec={"startup": {"stallSeconds": 1200}}),
        "Starting",
        "True",
        "Progressing",
    ),
    "no node takes the Pod": Situation(
        o.observe(o.unschedulable_pod()), "Starting", "False", "Unschedulable", ("3 Insufficient nvidia.com/gpu", "spec.accelerator")
    ),
    "no node takes the Pod for its taint": Situation(
        o.observe(o.unschedulable_pod(message="0/1 nodes are available: 1 node(s) had untolerated taint(s).")),
        "Starting",
        "False",
        "Unschedulable",
        ("untolerated taint", "spec.podTemplate.spec.tolerations"),
    ),
    "the image is being pulled": Situation(
        o.observe(o.pending_pod("ContainerCreating"), pod_events=(o.event("Pulling"),)), "Starting", "True", "PullingImage", ("v0.20.1",)
    ),
    "the image cannot be pulled": Situation(
        o.observe(o.pending_pod("ErrImagePull", "manifest unknown")),
        "Ready",
        "False",
        "ImagePullFailed",
        ("v0.20.1", "manifest unknown", "spec.engine.image"),
    ),
    "a Secret is missing": Situation(
        o.observe(o.pending_pod("CreateContainerConfigError", 'secret "hf" not found')),
        "Starting",
        "False",
        "ContainerConfigFailed",
        ('secret "hf" not found',),
    ),
    "a volume cannot be mounted": Situation(
        o.observe(o.pending_pod("ContainerCreating"), pod_events=(o.event("FailedMount", "Multi-Attach error"),)),
        "Starting",
        "True",
        "WaitingForVolume",
        ("Multi-Attach error",),
    ),
    "a known crash": Situation(
        o.observe(o.crashed_pod(restarts=2), states={("vllm-a-x1", 2): crashed_state()}),
        "Crashed",
        "True",
        "MigUuidNotInteger",
        ("crashed 3 times", "exit code 1", "MIG UUID", "What to do: remove CUDA_VISIBLE_DEVICES", "issues/41849"),
    ),
    "a known crash is the summary": Situation(
        o.observe(o.crashed_pod(), states={X1: crashed_state()}), "Ready", "False", "MigUuidNotInteger", ("What to do",)
    ),
    "a crash stays in force while the next start runs": Situation(
        o.observe(o.starting_pod(restarts=1, last=o.terminated()), states={X1: crashed_state()}), "Crashed", "True", "MigUuidNotInteger"
    ),
    "a start after a crash is a start": Situation(
        o.observe(o.starting_pod(restarts=1, last=o.terminated()), states={X1: crashed_state()}),
        "Starting",
        "True",
        "Progressing",
        ("after 1 restart",),
    ),
    "an unknown crash quotes the innermost error": Situation(
        o.observe(o.crashed_pod(message="Traceback (most recent call last):\nRuntimeError: NVLS init failed\nrank 0 exits")),
        "Crashed",
        "True",
        "UnknownCrash",
        ("RuntimeError: NVLS init failed", "kubectl logs vllm-a-x1 --previous"),
    ),
    "an unknown crash without a word": Situation(o.observe(o.crashed_pod()), "Crashed", "True", "UnknownCrash", ("does not say why",)),
    "a crash whose log is still being read": Situation(
        o.observe(o.crashed_pod(seconds=-2)), "Crashed", "True", "CrashUnderExamination", ("exit code 1", "being read")
    ),
    "killed for memory": Situation(
        o.observe(o.crashed_pod(code=137, reason="OOMKilled", seconds=-1)),
        "Crashed",
        "True",
        "OomKilledNoLog",
        ("resources.limits.memory",),
    ),
    "a child killed for memory, and nothing in the log but echoes": Situation(
        o.observe(o.crashed_pod(code=1, reason="OOMKilled")), "Crashed", "True", "OomKilledNoLog"
    ),
    "a log that explains itself is believed although memory ran out as well": Situation(
        o.observe(o.crashed_pod(code=1, reason="OOMKilled"), states={X1: crashed_state()}), "Crashed", "True", "MigUuidNotInteger"
    ),
    "a crash that the log shows while its container hangs": Situation(
        o.observe(o.starting_pod(), states={X1: crashed_state(last_line_at=o.at(-11))}), "Crashed", "True", "MigUuidNotInteger"
    ),
    "a crash that the log shows a moment before the container ends": Situation(
        o.observe(o.starting_pod(), states={X1: crashed_state(last_line_at=o.at(-2))}), "Crashed", "False", "NoCrash"
    ),
    "ended without an error": Situation(
        o.observe(o.crashed_pod(code=0, reason="Completed")), "Crashed", "True", "EndedWithoutError", ("spec.podTemplate",)
    ),
    "ended by its startup probe": Situation(
        o.observe(
            o.crashed_pod(code=137), pod_events=(o.event("Killing", "Container vllm failed startup probe, will be restarted", seconds=-60),)
        ),
        "Crashed",
        "True",
        "StartupProbeFailed",
        ("deadlineSeconds",),
    ),
    "ended by its startup probe, which it took for a wish": Situation(
        o.observe(
            o.crashed_pod(code=0, reason="Completed"),
            pod_events=(o.event("Killing", "Container vllm failed startup probe, will be restarted", seconds=-60),),
        ),
        "Crashed",
        "True",
        "StartupProbeFailed",
        ("deadlineSeconds",),
    ),
    "killed by nobody knows whom": Situation(o.observe(o.crashed_pod(code=137)), "Crashed", "True", "UnknownCrash", ("signal 9",)),
    "evicted": Situation(
        o.observe(o.pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")),
        "Crashed",
        "True",
        "Evicted",
        ("Pod vllm-a-x1 failed.", "gpu-node-1", "low on resource: memory"),
    ),
    "refused by the kubelet": Situation(
        o.observe(o.pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed: no healthy devices")),
        "Ready",
        "False",
        "UnexpectedAdmissionError",
        ("no healthy devices", "device plugin"),
    ),
    "refused by the driver of the device": Situation(
        o.observe(
            o.pending_pod("ContainerCreating"),
            pod_events=(o.event("FailedPrepareDynamicResources", "NodePrepareResources failed for ResourceClaim models/vllm-a-gpu"),),
        ),
        "Starting",
        "False",
        "ContainerConfigFailed",
        ("NodePrepareResources failed", "GPU's DRA driver on node gpu-node-1"),
    ),
    "the kubelet cannot make a sandbox": Situation(
        o.observe(
            o.pending_pod("ContainerCreating"),
            pod_events=(o.event("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured'),),
        ),
        "Starting",
        "True",
        "Progressing",
        ('no runtime for "nvidia" is configured', "container runtime"),
    ),
    "a runtime that does not know the GPU": Situation(
        o.observe(o.pending_pod("RunContainerError", "nvidia-container-cli: device error: unknown device")),
        "Starting",
        "False",
        "ContainerConfigFailed",
        ("RunContainerError", "unknown device"),
    ),
    "no device for the claims": Situation(
        o.observe(
            o.unschedulable_pod(
                message="0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, "
                "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
            )
        ),
        "Starting",
        "False",
        "Unschedulable",
        ("No node takes Pod vllm-a-x1: 0/3 nodes are available: 3 cannot allocate all claims. Free", "spec.accelerator"),
    ),
    "a node without room": Situation(
        o.observe(o.pod(phase="Failed", reason="OutOfnvidia.com/gpu", message="requested: 1, used: 8, capacity: 8")),
        "Crashed",
        "True",
        "OutOfResource",
        ("requested: 1, used: 8", "gpu-node-1"),
    ),
    "its node was shut down": Situation(
        o.observe(o.pod(phase="Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown.")),
        "Crashed",
        "True",
        "NodeShutdown",
        ("Node gpu-node-1 was shut down",),
    ),
    "a more important Pod took its place": Situation(
        o.observe(o.pod(phase="Failed", reason="Preempting", message="Preempted in order to admit critical pod")),
        "Crashed",
        "True",
        "Preempted",
        ("priorityClassName",),
    ),
    "an image for another CPU": Situation(
        o.observe(o.crashed_pod(code=255, message="exec /usr/local/bin/vllm: exec format error")),
        "Crashed",
        "True",
        "ExecFormatError",
        ("kubernetes.io/arch",),
    ),
    "the termination message explains it where the log is gone": Situation(
        o.observe(o.crashed_pod(message="ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000)")),
        "Crashed",
        "True",
        "PortInUse",
        ("Pod vllm-a-x1 crashed with exit code 1",),
    ),
    "a signal that says what happened": Situation(
        o.observe(o.crashed_pod(code=135)), "Crashed", "True", "BusErrorSharedMemory", ("/dev/shm",)
    ),
    "ended in a way without a rule": Situation(
        o.observe(o.pod(phase="Failed", reason="TopologyAffinityError", message="Resources cannot be aligned")),
        "Crashed",
        "True",
        "PodFailed",
        ("TopologyAffinityError",),
    ),
    "the corpse of an evicted Pod beside its replacement that serves": Situation(
        o.observe(o.pod("vllm-a-x0", phase="Failed", reason="Evicted"), o.ready_pod()), "Crashed", "False", "Recovered"
    ),
    "one replica of four crashed": Situation(
        o.observe(*(o.ready_pod(f"vllm-a-x{n}") for n in (2, 3, 4)), o.crashed_pod(), replicas=4, states={X1: crashed_state()}),
        "Ready",
        "False",
        "MigUuidNotInteger",
        ("3 of 4 replicas serve.", "Pod vllm-a-x1 crashed"),
    ),
    "the known crash is told before the unknown one": Situation(
        o.observe(o.crashed_pod(), o.crashed_pod("vllm-a-x2", seconds=-15), replicas=2, states={X1: crashed_state()}),
        "Crashed",
        "True",
        "MigUuidNotInteger",
        ("1 other Pod crashed as well",),
    ),
    "two of four serve, the slower one is named": Situation(
        o.observe(
            *(o.ready_pod(f"vllm-a-x{n}") for n in (3, 4)),
            o.starting_pod(),
            o.starting_pod("vllm-a-x2"),
            replicas=4,
            states={X1: COMPILING, ("vllm-a-x2", 0): replace(COMPILING, stage=Stage.WEIGHT_LOAD, progress=None)},
        ),
        "Ready",
        "False",
        "ReplicasNotReady",
        ("2 of 4 replicas serve.", "Pod vllm-a-x2: loading weights", "1 other Pod does not serve either."),
    ),
    "serving": Situation(o.observe(o.ready_pod()), "Ready", "True", "Serving", ("http://vllm-a.models:8000/v1", "DeepSeek-V3")),
    "serving the former spec": Situation(
        o.observe(o.ready_pod(), deployment=o.deployment(1, updated=0)), "Starting", "True", "RollingOut", ("0 of 1",)
    ),
    "its node is lost": Situation(
        o.observe(
            o.pod(
                containers=[o.container(o.running(), started=True, ready=True)],
                conditions=[o.condition("ContainersReady", "True"), o.condition("Ready", "False", -20)],
            )
        ),
        "Ready",
        "False",
        "NodeLost",
        ("gpu-node-1",),
    ),
    "readiness fails after serving": Situation(
        o.observe(
            o.pod(
                containers=[o.container(o.running(), started=True)],
                conditions=[o.condition("ContainersReady", "False"), o.condition("Ready", "False", -20)],
            )
        ),
        "Ready",
        "False",
        "NotResponding",
        ("readiness probe",),
    ),
    "recovered": Situation(
        o.observe(o.ready_pod(restarts=1, last=o.terminated()), states={X1: crashed_state()}),
        "Crashed",
        "False",
        "Recovered",
        ("MigUuidNotInteger", "Its restart serves."),
    ),
    "nothing crashed": Situation(o.observe(o.ready_pod()), "Crashed", "False", "NoCrash"),
    "no Pod yet": Situation(o.observe(), "Starting", "False", "NotStarted", ("No Pod exists yet",)),
    "the namespace demands a setting that the Pod lacks": Situation(
        o.observe(deployment=o.deployment(0, conditions=[o.condition("ReplicaFailure", "True", message=NOT_RESTRICTED)])),
        "Starting",
        "False",
        "NotStarted",
        ("must set securityContext.runAsNonRoot=true", "spec.podTemplate.spec.securityContext", "runAsUser"),
    ),
    "a quota forbids Pods": Situation(
        o.observe(
            deployment=o.deployment(0, conditions=[o.condition("ReplicaFailure", "True", message="exceeded quota: gpus, requested: 8")])
        ),
        "Ready",
        "False",
        "NotStarted",
        ("exceeded quota: gpus",),
    ),
    "the former Pod still holds the GPU": Situation(
        o.observe({**o.ready_pod(), "metadata": {"name": "vllm-a-x0", "deletionTimestamp": o.stamp(0)}}),
        "Starting",
        "False",
        "NotStarted",
        ("is being deleted",),
    ),
    "scaled to zero": Situation(o.observe(replicas=0, deployment=o.deployment(0)), "Ready", "True", "ScaledToZero"),
    "scaled to zero is not available": Situation(o.observe(replicas=0, deployment=o.deployment(0)), "Available", "False", "ScaledToZero"),
    "no GPU as asked for": Situation(
        o.observe(outcome=o.outcome(planned=REFUSED, plan=None), deployment=None), "Ready", "False", "NoMatchingGPU", ("NVIDIA-H200",)
    ),
    "a spec that contradicts itself": Situation(
        o.observe(outcome=o.outcome(accepted=INVALID, planned=UNKNOWN_PLAN, plan=None), deployment=None),
        "Ready",
        "False",
        "InvalidSpec",
        ("tensor is 3",),
    ),
    "nothing is started without a plan": Situation(
        o.observe(outcome=o.outcome(planned=REFUSED, plan=None), deployment=None),
        "Starting",
        "False",
        "NotStarted",
        ("Nothing is started",),
    ),
    "the engine chose otherwise, after many words about the plan": Situation(
        o.observe(
            o.starting_pod(),
            states={X1: SILENT},
            outcome=o.outcome(planned=Verdict(ConditionStatus.TRUE, "Resolved", "Planned for " + "8 GPUs, " * 60)),
        ),
        "Planned",
        "True",
        "Resolved",
        ("Planned for 8 GPUs", "instead of DEEPGEMM"),
    ),
    "a child is refused": Situation(
        o.observe(apply_error="Deployment vllm-a: spec.template.spec.volumes[0]: Invalid value"),
        "Ready",
        "False",
        "ApplyFailed",
        ("Deployment vllm-a",),
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_situation_leads_to_its_condition(situation: Situation) -> None:
    condition = find_condition(report(situation.observation).status.conditions, situation.condition)
    assert condition is not None
    assert (condition.status, condition.reason) == (situation.status, situation.reason), condition.message
    for words in situation.words:
        assert words in condition.message


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_every_condition_is_there_in_order_and_short(situation: Situation) -> None:
    conditions = report(situation.observation).status.conditions
    assert tuple(c.type for c in conditions) == ORDER
    assert {c.observed_generation for c in conditions} == {3}
    for condition in conditions:
        assert 0 < len(condition.message) <= 500
        assert condition.message == " ".join(condition.message.split())
        assert condition.message[-1] in ".)", condition.message


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_written_report_is_not_written_again(situation: Situation) -> None:
    first = report(situation.observation)
    again = report(o.after(situation.observation, first, seconds=4))
    assert again.status.to_json() == first.status.to_json()
    assert again.events == ()
