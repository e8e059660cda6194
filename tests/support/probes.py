"""What the kubelet writes about the readiness probe of an engine."""

import uuid
from datetime import UTC, datetime, timedelta

from support.cluster import Cluster, Manifest


def now() -> str:
    return stamp(datetime.now(UTC))


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


async def set_ready(cluster: Cluster, pod: Manifest, ready: bool, **of_container: object) -> None:
    """Writes the status as the kubelet does after the readiness probe.

    No real engine starts, serves and fails within one second. A simulated one may, so its failure has the time of the next second: a Pod
    that is not Ready since the second of its start has never been.
    """
    name, state = pod["metadata"]["name"], {"ready": ready, "started": True, **of_container}
    began = [it["state"]["running"]["startedAt"] for it in pod["status"]["containerStatuses"] if "running" in it["state"]]
    at = max([now(), *(stamp(datetime.fromisoformat(each) + timedelta(seconds=1)) for each in began)])
    conditions = [
        {**each, "status": str(ready), "lastTransitionTime": at} if each["type"] in ("Ready", "ContainersReady") else each
        for each in pod["status"]["conditions"]
    ]
    statuses = [{**each, **(state if each["name"] == "vllm" else {})} for each in pod["status"]["containerStatuses"]]
    await cluster.patch("Pod", name, {"status": {"conditions": conditions, "containerStatuses": statuses}}, subresource="status")


async def record_failed_probe(cluster: Cluster, pod: Manifest, said: str) -> None:
    """Writes the event of a readiness probe as the kubelet does, with what the probe has printed."""
    await record(cluster, pod, "Unhealthy", f"Readiness probe failed: {said}\n")


async def record(cluster: Cluster, pod: Manifest, reason: str, message: str) -> None:
    """Writes an event about the engine's container as the kubelet does."""
    metadata = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
    await cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:12]}", "namespace": metadata["namespace"]},
            "involvedObject": {**about, "fieldPath": "spec.containers{vllm}"},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet"},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
    )
