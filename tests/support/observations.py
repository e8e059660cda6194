"""Builders for what reporting looks at: Pods as a kubelet shows them, states of a start, whole observations."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from vllm_operator.api.conditions import Verdict
from vllm_operator.api.plan import BackendChoice, Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import Distribution
from vllm_operator.api.status import ConditionStatus, VLLMDeploymentStatus
from vllm_operator.logs.state import Crash, StartupState
from vllm_operator.planning.outcome import Outcome
from vllm_operator.pods.view import PodView, Termination, read_pod
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import Report

NOW = datetime(2026, 11, 21, 14, 10, 0, tzinfo=UTC)
NAMESPACE = "models"
KEY = "v0.20.1-sm_90-4f2a"

DEEP_GEMM_CRASH = Crash(
    signature="MigUuidNotInteger",
    cause="CUDA_VISIBLE_DEVICES contains a MIG UUID, but this vLLM version accepts only device numbers",
    remedy="remove CUDA_VISIBLE_DEVICES from spec.engine.env; the device plugin gives the Pod its slice",
    reference="https://github.com/vllm-project/vllm/issues/41849",
    line="ValueError: invalid literal for int() with base 10: 'MIG-4cae0ba7-1f2c-5f9b-8b5e-0c6f7d0a9a11'",
    line_number=118,
    excerpt='  File "/usr/lib/python3.12/site-packages/vllm/platforms/cuda.py", line 77\nValueError: invalid literal for int()',
)


def at(seconds: float) -> datetime:
    """A time relative to NOW."""
    return NOW + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(type: str, status: str, seconds: float = -300, **more: object) -> dict[str, Any]:
    return {"type": type, "status": status, "lastTransitionTime": stamp(seconds), **more}


def running(seconds: float = -60) -> dict[str, Any]:
    return {"running": {"startedAt": stamp(seconds)}}


def terminated(code: int = 1, reason: str = "Error", seconds: float = -30, message: str = "", **more: Any) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "startedAt": stamp(seconds - 20), "finishedAt": stamp(seconds), **more}
    return {"terminated": ended | ({"message": message} if message else {})}


def termination(exit_code: int | None = 1, *, reason: str = "Error", message: str = "", signal: int | None = None) -> Termination:
    return Termination(restarts=0, exit_code=exit_code, reason=reason, message=message, signal=signal, finished_at=None)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def container(
    state: Mapping[str, Any],
    *,
    started: bool = False,
    ready: bool = False,
    restarts: int = 0,
    last: Mapping[str, Any] | None = None,
    name: str = "vllm",
) -> dict[str, Any]:
    return {
        "name": name,
        "image": "vllm/vllm-openai:v0.20.1",
        "state": dict(state),
        "lastState": dict(last or {}),
        "started": started,
        "ready": ready,
        "restartCount": restarts,
    }


def pod(name: str = "vllm-a-x1", *, phase: str = "Running", node: str = "gpu-node-1", **status: Any) -> dict[str, Any]:
    """A Pod; `status` takes `containers`, `init`, `conditions` and whatever else a status has."""
    containers = status.pop("containers", [])
    init = status.pop("init", [])
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "creationTimestamp": stamp(-400)},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": containers, "initContainerStatuses": init, **status},
    }


def starting_pod(
    name: str = "vllm-a-x1", *, since: float = -60, restarts: int = 0, last: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    conditions = [
        condition("PodScheduled", "True"),
        condition("ContainersReady", "False"),
        condition("Ready", "False", reason="ContainersNotReady"),
    ]
    return pod(name, containers=[container(running(since), restarts=restarts, last=last)], conditions=conditions)


def ready_pod(
    name: str = "vllm-a-x1", *, since: float = -500, ready: float = -20, restarts: int = 0, last: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    conditions = [condition("PodScheduled", "True"), condition("ContainersReady", "True", ready), condition("Ready", "True", ready)]
    state = container(running(since), started=True, ready=True, restarts=restarts, last=last)
    return pod(name, containers=[state], conditions=conditions)


def unready_pod(name: str = "vllm-a-x1", *, seconds: float = -5) -> dict[str, Any]:
    """A Pod that was ready, and whose readiness probe fails since this time."""
    conditions = [condition("PodScheduled", "True"), *(condition(type, "False", seconds) for type in ("ContainersReady", "Ready"))]
    return pod(name, containers=[container(running(-500), started=True)], conditions=conditions)


def crashed_pod(
    name: str = "vllm-a-x1",
    *,
    code: int = 1,
    reason: str = "Error",
    restarts: int = 0,
    seconds: float = -30,
    message: str = "",
    ran: float = 20,
) -> dict[str, Any]:
    """A Pod whose container ended at this time, after it had run for some seconds."""
    ended = terminated(code, reason, seconds, message)
    ended["terminated"]["startedAt"] = stamp(seconds - ran)
    state = container(ended, restarts=restarts)
    return pod(
        name, containers=[state], conditions=[condition("PodScheduled", "True"), condition("Ready", "False", reason="ContainersNotReady")]
    )


NOT_ENOUGH = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def unschedulable_pod(name: str = "vllm-a-x1", message: str = NOT_ENOUGH, seconds: float = -300) -> dict[str, Any]:
    waits = condition("PodScheduled", "False", seconds, reason="Unschedulable", message=message)
    return pod(name, phase="Pending", node="", conditions=[waits])


def pending_pod(reason: str, message: str = "", name: str = "vllm-a-x1", **more: Any) -> dict[str, Any]:
    return pod(
        name, phase="Pending", containers=[container(waiting(reason, message), **more)], conditions=[condition("PodScheduled", "True")]
    )


HANG = "Engine hangs: 3 requests are running, no token since 14:02:10 UTC; /health answers 200. VLLM::Worker_TP1: suspended."
"""What the readiness probe says about an engine that hangs."""


def member(manifest: dict[str, Any], rank: int, *, created: float = -400) -> dict[str, Any]:
    """A Pod as a member of the first group of a LeaderWorkerSet."""
    group = "leaderworkerset.sigs.k8s.io"
    labels = {f"{group}/group-index": "0", f"{group}/worker-index": str(rank), f"{group}/template-revision-hash": "7f"}
    metadata = manifest["metadata"] | {"labels": labels, "creationTimestamp": stamp(created)}
    return manifest | {"metadata": metadata, "spec": manifest["spec"] | {"nodeName": f"node-{'abcdefgh'[rank]}"}}


def hang_event(name: str = "vllm-a-x1", *, seconds: float = -5) -> dict[str, Any]:
    return event("Unhealthy", f"Readiness probe failed: {HANG}\n", name=name, seconds=seconds)


def event(
    reason: str, message: str = "", *, name: str = "vllm-a-x1", kind: str = "Pod", seconds: float = -10, uid: str | None = None
) -> dict[str, Any]:
    involved = {"kind": kind, "name": name, "uid": uid if uid is not None else f"uid-{name}"}
    return {"involvedObject": involved, "reason": reason, "message": message, "lastTimestamp": stamp(seconds)}


def claim(
    phase: str = "Bound", *, name: str = "vllm-a-cache", modes: Iterable[str] = ("ReadWriteMany",), storage_class: str = "fast"
) -> dict[str, Any]:
    spec = {"accessModes": list(modes)} | ({"storageClassName": storage_class} if storage_class else {})
    return {"metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": stamp(-400)}, "spec": spec, "status": {"phase": phase}}


def terminating(manifest: dict[str, Any], seconds: float = -5) -> dict[str, Any]:
    """An object that is being deleted and waits for its finalizers."""
    return manifest | {"metadata": manifest["metadata"] | {"deletionTimestamp": stamp(seconds)}}


def deployment(replicas: int = 1, *, updated: int | None = None, paused: bool = False, **status: Any) -> dict[str, Any]:
    counts = {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas if updated is None else updated}
    labels = {"app.kubernetes.io/instance": "vllm-a", "app.kubernetes.io/name": "vllm"}
    return {
        "metadata": {"name": "vllm-a", "generation": 1},
        "spec": {"selector": {"matchLabels": labels}, "paused": paused},
        "status": counts | status,
    }


def service() -> dict[str, Any]:
    return {"metadata": {"name": "vllm-a"}, "spec": {"ports": [{"port": 8000}]}}


def plan(**changes: Any) -> Plan:
    backends = [
        BackendChoice(component="MoE", backend="DEEPGEMM", chosen_by="Rule", reason="FP8 experts with 128x128 scales on sm_90."),
        BackendChoice(component="Attention", backend="FLASHMLA", chosen_by="Engine", reason="vLLM's own choice."),
    ]
    values: dict[str, Any] = {
        "observed_generation": 3,
        "catalog_version": "2026.11.1",
        "model": "deepseek-ai/DeepSeek-V3",
        "image": "vllm/vllm-openai:v0.20.1",
        "tools_image": "registry.example/vllm-operator:1",
        "engine_version": "0.20.1",
        "distribution": Distribution.VLLM,
        "architecture": "sm_90",
        "product": "NVIDIA-H200",
        "resource": "nvidia.com/gpu",
        "count": 8,
        "cache_key": KEY,
        "deadline_seconds": 10800,
        "backends": backends,
    }
    return Plan(**values | changes)


def outcome(**changes: Any) -> Outcome:
    planned = "Planned for NVIDIA H200 141GB (sm_90), 8 GPUs per replica, vLLM 0.20.1."
    values: dict[str, Any] = {
        "accepted": Verdict(ConditionStatus.TRUE, "Valid", "The spec is valid."),
        "planned": Verdict(ConditionStatus.TRUE, "Planned", planned),
        "plan": plan(),
    }
    return Outcome(**values | changes)


def resource(*, replicas: int = 1, status: VLLMDeploymentStatus | None = None, **spec: Any) -> VLLMDeployment:
    manifest = {
        "metadata": {"name": "vllm-a", "namespace": NAMESPACE, "uid": "uid-vllm-a", "generation": 3},
        "spec": {"model": {"uri": "hf://deepseek-ai/DeepSeek-V3"}, "replicas": replicas, **spec},
    }
    return VLLMDeployment.parse(manifest).model_copy(update={"status": status or VLLMDeploymentStatus()})


def observe(
    *pods: Mapping[str, Any] | PodView,
    replicas: int = 1,
    states: Mapping[tuple[str, int], StartupState] | None = None,
    spec: Mapping[str, Any] | None = None,
    **more: Any,
) -> Observation:
    """An observation of vllm-a. `states` are keyed by Pod name and run."""
    values: dict[str, Any] = {
        "resource": resource(replicas=replicas, **(spec or {})),
        "outcome": outcome(),
        "revision": "vllm-a-0123456789",
        "now": NOW,
        "knowledge": load_knowledge(),
        "deployment": deployment(replicas),
        "service": service(),
        "claim": claim(),
        "claim_name": "vllm-a-cache",
        "pods": pods,
        "startups": {(f"uid-{name}", run): state for (name, run), state in (states or {}).items()},
    }
    values |= more
    made = Observation(**with_views(values))
    return following(made, made.previous) if made.resource.pinned is None else made


def following(observation: Observation, status: VLLMDeploymentStatus) -> Observation:
    """The observation where this status was written before, and its plan is pinned."""
    pinned = (observation.outcome.plan or plan()) if status.revision is not None else None
    return replace(observation, resource=observation.resource.model_copy(update={"status": status}).with_pinned(pinned))


def with_views(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, with parsed Pods."""
    pods = {name: values[name] for name in ("pods", "followers", "primers") if name in values}
    return {**values, **{name: tuple(it if isinstance(it, PodView) else read_pod(it) for it in found) for name, found in pods.items()}}


def after(observation: Observation, written: Report, *, seconds: float = 0, **changes: Any) -> Observation:
    """The observation once a report was written, some seconds later, with other changes."""
    return replace(following(observation, written.status), **{"now": observation.now + timedelta(seconds=seconds), **with_views(changes)})
