"""A start on a cluster in memory that finds the volume of its caches full, and the Job that makes room."""

from typing import Any

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.kube.client import JOB, POD
from vllm_operator.logs.state import Crash, Stage, StartupState

FULL = Crash(signature="DiskFull", cause="A volume is full.", remedy=None, reference=None, line="[Errno 28] No space left on device")


async def full(fleet: Fleet, *, restarts: int = 0, **spec: Any) -> str:
    """A start that found the volume full."""
    await fleet.serve(**spec)
    pod = fleet.start()
    await fleet.settle()
    crash(fleet, pod, restarts)
    await fleet.settle()
    return pod


def crash(fleet: Fleet, pod: str, restarts: int) -> None:
    ended = {"exitCode": 1, "reason": "Error", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended}, restarts=restarts)
    fleet.bench.logs.told[(fleet.uid(pod), restarts)] = StartupState(stage=Stage.TORCH_COMPILE, crash=FULL, last_line_at=fleet.bench.now)


def jobs(bench: Bench) -> list[dict[str, Any]]:
    return bench.cluster.all(JOB)


def run_job(fleet: Fleet, **status: Any) -> str:
    """The Pod of the Job exists; returns its name."""
    job = jobs(fleet.bench)[-1]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    marks = {"labels": job["spec"]["template"]["metadata"]["labels"], "ownerReferences": [owner]}
    metadata = {"name": f"{job['metadata']['name']}-x", "namespace": "default", **marks}
    spec = job["spec"]["template"]["spec"]
    fleet.bench.cluster.put({"apiVersion": "v1", "kind": POD.kind, "metadata": metadata, "spec": spec, "status": status})
    return str(metadata["name"])


def finish(fleet: Fleet, message: str, *, code: int = 0) -> str:
    """The Pod of the Job ends; returns its name."""
    ended = {"exitCode": code, "finishedAt": fleet.time(), "message": message}
    containers = [{"name": "clean", "state": {"terminated": ended}}]
    return run_job(fleet, phase="Failed" if code else "Succeeded", containerStatuses=containers)
