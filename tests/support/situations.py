"""Situations of a VLLMDeployment and the condition that each leads to; here those of Pods that ended."""

from dataclasses import dataclass
from typing import Any

from support import observations as o
from vllm_operator.api.status import CrashStatus, VLLMDeploymentStatus
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.status.observation import Observation

X1 = ("vllm-a-x1", 0)
KNOWN_CRASH = CrashStatus(signature="MigUuidNotInteger", cause="A MIG UUID.", pod="vllm-a-x1")


@dataclass(frozen=True)
class Situation:
    """What is observed; the condition and its status and reason (empty if it is absent); words in its message."""

    observation: Observation
    condition: str
    status: str
    reason: str
    words: tuple[str, ...] = ()


def crashed_state(**more: Any) -> StartupState:
    return StartupState(stage=Stage.CONFIGURATION, crash=o.DEEP_GEMM_CRASH, **more)


CRASHES = {
    "a known crash": Situation(
        o.observe(o.crashed_pod(restarts=2), states={("vllm-a-x1", 2): crashed_state()}),
        "Crashed",
        "True",
        "MigUuidNotInteger",
        ("crashed 3 times", "exit code 1", "MIG UUID", "What to do: remove CUDA_VISIBLE_DEVICES", "/r/MigUuidNotInteger"),
    ),
    "a known crash is the summary": Situation(
        o.observe(o.crashed_pod(), states={X1: crashed_state()}),
        "Ready",
        "False",
        "MigUuidNotInteger",
        (
            "(MigUuidNotInteger). CUDA_VISIBLE_DEVICES contains a MIG UUID, but",
            "See condition Crashed. Restarts alone do not help. The Pod keeps 8 GPUs meanwhile: to free them",
        ),
    ),
    "a crash stays in force while the next start runs": Situation(
        o.observe(o.starting_pod(restarts=1, last=o.terminated()), states={X1: crashed_state()}), "Crashed", "True", "MigUuidNotInteger"
    ),
    "an unknown crash quotes the innermost error": Situation(
        o.observe(o.crashed_pod(message="Traceback (most recent call last):\nRuntimeError: NVLS init failed\nrank 0 exits")),
        "Crashed",
        "True",
        "UnknownCrash",
        (
            "RuntimeError: NVLS init failed",
            "kubectl logs vllm-a-x1 -n models --previous",
            "report it at https://github.com/vllm-project/vllm/issues",
        ),
    ),
    "an unknown crash without a word": Situation(o.observe(o.crashed_pod()), "Crashed", "True", "UnknownCrash", ("does not say why",)),
    "a Pod that crashes again keeps the name of its crash while the log is read": Situation(
        o.observe(
            o.crashed_pod(restarts=1, seconds=-2),
            resource=o.resource(
                status=VLLMDeploymentStatus(last_crash=CrashStatus(signature="MigUuidNotInteger", cause="A MIG UUID.", pod="vllm-a-x1"))
            ),
        ),
        "Crashed",
        "True",
        "MigUuidNotInteger",
        ("A MIG UUID.",),
    ),
    "a crash whose log is still being read": Situation(
        o.observe(o.crashed_pod(seconds=-2)), "Crashed", "True", "DiagnosingCrash", ("exit code 1", "is reading its log")
    ),
    "killed for memory": Situation(
        o.observe(o.crashed_pod(code=137, reason="OOMKilled", seconds=-1)),
        "Crashed",
        "True",
        "OOMKilled",
        ("The container has no memory limit.", "resources.requests.memory"),
    ),
    "a child killed for memory, and nothing in the log but echoes": Situation(
        o.observe(o.crashed_pod(code=1, reason="OOMKilled")), "Crashed", "True", "OOMKilled"
    ),
    "a log that explains itself is believed although memory ran out as well": Situation(
        o.observe(o.crashed_pod(code=1, reason="OOMKilled"), states={X1: crashed_state()}), "Crashed", "True", "MigUuidNotInteger"
    ),
    "a crash that the log shows while its container hangs": Situation(
        o.observe(o.starting_pod(), states={X1: crashed_state(last_line_at=o.at(-11))}), "Crashed", "True", "MigUuidNotInteger"
    ),
    "a crash that the log shows a moment before the container ends": Situation(
        o.observe(o.starting_pod(), states={X1: crashed_state(last_line_at=o.at(-2))}), "Crashed", "", ""
    ),
    "a log that is older than the run is that of the run before": Situation(
        o.observe(o.starting_pod(since=-5), states={X1: crashed_state(last_line_at=o.at(-20))}), "Crashed", "", ""
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
        ("Pod vllm-a-x1 failed (Evicted).", "gpu-node-1", "low on resource: memory"),
    ),
    "refused by the kubelet": Situation(
        o.observe(o.pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed: no healthy devices")),
        "Crashed",
        "True",
        "UnexpectedAdmissionError",
        ("no healthy devices", "device plugin"),
    ),
    "refused by the driver of the device": Situation(
        o.observe(
            o.pending_pod("ContainerCreating"),
            pod_events=(o.event("FailedPrepareDynamicResources", "NodePrepareResources failed for ResourceClaim models/vllm-a-gpu"),),
        ),
        "Ready",
        "False",
        "ContainerConfigFailed",
        ("NodePrepareResources failed", "GPU's DRA driver on node gpu-node-1"),
    ),
    "the kubelet cannot make a sandbox": Situation(
        o.observe(
            o.pending_pod("ContainerCreating"),
            pod_events=(o.event("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured'),),
        ),
        "Ready",
        "False",
        "Starting",
        ('no runtime for "nvidia" is configured', "container runtime"),
    ),
    "a runtime that does not know the GPU": Situation(
        o.observe(o.pending_pod("RunContainerError", "nvidia-container-cli: device error: unknown device")),
        "Ready",
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
        "Ready",
        "False",
        "Unschedulable",
        (
            "0/3 nodes are available: 3 cannot allocate all claims. It starts by itself when a node that it may use has 8 GPUs free",
            "Scale something down or add a node.",
        ),
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
        ("critical Pod", "No priority class of users is higher"),
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
        o.observe(o.pod("vllm-a-x0", phase="Failed", reason="Evicted"), o.ready_pod()), "Crashed", "", ""
    ),
    "one replica of four crashed": Situation(
        o.observe(*(o.ready_pod(f"vllm-a-x{n}") for n in (2, 3, 4)), o.crashed_pod(), replicas=4, states={X1: crashed_state()}),
        "Ready",
        "False",
        "MigUuidNotInteger",
        ("3 of 4 replicas are ready.", "Pod vllm-a-x1 crashed"),
    ),
    "the known crash is told before the unknown one": Situation(
        o.observe(o.crashed_pod(), o.crashed_pod("vllm-a-x2", seconds=-15), replicas=2, states={X1: crashed_state()}),
        "Crashed",
        "True",
        "MigUuidNotInteger",
        ("1 other Pod crashed as well",),
    ),
}
