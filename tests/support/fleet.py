"""Pods of a VLLMDeployment on a cluster in memory, made from the Deployments that the operator applied."""

import copy
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from support.operators import Bench, controlled_by_deployment, llama
from vllm_operator.api import reading
from vllm_operator.api.labels import APPLIED_ANNOTATION, GROUP_INDEX_LABEL, GROUP_REVISION_LABEL, WORKER_INDEX_LABEL
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, LEADER_WORKER_SET, POD, VLLM_DEPLOYMENT

Manifest = dict[str, Any]
READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False"}


class Fleet:
    """What the controllers of a cluster do for the operator, by hand."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._made = 0

    async def serve(self, name: str = "llama", **spec: Any) -> None:
        """Create a VLLMDeployment and reconcile it; its claim is bound at once."""
        self.bench.cluster.put(llama(name, **spec))
        await self.settle(name)
        for claim in self.bench.cluster.all(CLAIM):
            self.bench.cluster.edit(CLAIM, "default", claim["metadata"]["name"], {"status": {"phase": "Bound"}})
        await self.settle(name)

    async def settle(self, name: str = "llama") -> None:
        await self.bench.settle(("default", name))

    async def change(self, name: str = "llama", **spec: Any) -> None:
        """Change the spec, which raises the generation, and reconcile."""
        self.bench.cluster.edit(VLLM_DEPLOYMENT, "default", name, {"spec": spec})
        await self.settle(name)

    def deployment(self, name: str = "llama") -> Manifest | None:
        return next((item for item in self.bench.cluster.all(DEPLOYMENT) if item["metadata"]["name"] == name), None)

    def replicas(self, name: str = "llama") -> int | None:
        return reading.integer(self.deployment(name), "spec", "replicas")

    def start(self, deployment: str = "llama", *, pod: str | None = None, created: datetime | None = None, node: str = "node-1") -> str:
        """A Pod of a Deployment starts on a node, by default one without GPUs that the operator knows; return its name."""
        template = copy.deepcopy((self.deployment(deployment) or {})["spec"]["template"])
        self._made += 1
        name = pod or f"{deployment}-{self._made}"
        metadata = {"name": name, "namespace": "default", **controlled_by_deployment(deployment, template["metadata"]["labels"])}
        metadata |= {"annotations": template["metadata"].get("annotations") or {}}
        if created is not None:
            metadata["creationTimestamp"] = reading.stamp(created)
        spec = {**template["spec"], "nodeName": node}
        self.bench.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self.show(name, NOT_READY, state={"running": {"startedAt": self.time()}})
        return name

    def start_job(self, job: Manifest, status: Manifest, *, node: str = "node-1") -> str:
        """The Pod of a Job is in this state; return its name."""
        metadata, template = job["metadata"], job["spec"]["template"]
        name = f"{metadata['name']}-abcde"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        of_pod = {"name": name, "namespace": "default", "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        spec = {**template["spec"], "nodeName": node}
        self.bench.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": of_pod, "spec": spec, "status": status})
        return name

    def start_group(self, name: str = "llama", *, nodes: Sequence[str] = ("node-1", "node-2")) -> list[str]:
        """The Pods of the first group of a LeaderWorkerSet start; return their names, that of the leader first."""
        [workload] = [it for it in self.bench.cluster.all(LEADER_WORKER_SET) if it["metadata"]["name"] == name]
        self._made += 1
        pods = []
        for rank, node in enumerate(nodes):
            template = copy.deepcopy(workload["spec"]["leaderWorkerTemplate"]["workerTemplate" if rank else "leaderTemplate"])
            pod, owner = (f"{name}-0-{rank}", f"{name}-0") if rank else (f"{name}-0", name)
            numbers = {GROUP_INDEX_LABEL: "0", WORKER_INDEX_LABEL: str(rank), GROUP_REVISION_LABEL: f"revision-{self._made}"}
            owners = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": f"uid-{owner}", "controller": True}]
            labels = {**template["metadata"]["labels"], **numbers}
            metadata = {"name": pod, "namespace": "default", "labels": labels, "ownerReferences": owners, "creationTimestamp": self.time()}
            self.bench.cluster.put(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"], "nodeName": node}}
            )
            self.show(pod, READY if rank else NOT_READY)
            pods.append(pod)
        return pods

    def show(self, pod: str, *conditions: Manifest, state: Manifest | None = None, restarts: int = 0, phase: str = "Running") -> None:
        """What the kubelet, or the scheduler, says of a Pod."""
        moved = [{**condition, "lastTransitionTime": condition.get("lastTransitionTime", self.time())} for condition in conditions]
        ready = any(condition == {**condition, **READY} for condition in moved)
        state = state or {"running": {"startedAt": self.time()}}
        container = {"name": "vllm", "state": state, "lastState": {}, "restartCount": restarts, "ready": ready, "started": ready}
        containers = [container] if phase != "Pending" else []
        self.bench.cluster.edit(POD, "default", pod, {"status": {"phase": phase, "conditions": moved, "containerStatuses": containers}})

    def ready(self, pod: str) -> None:
        self.show(pod, READY)

    def unschedulable(self, pod: str) -> None:
        self.bench.cluster.edit(POD, "default", pod, {"spec": {"nodeName": None}})
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes: Insufficient nvidia.com/gpu.",
        }
        self.show(pod, condition, phase="Pending")

    def tell(self, about: Manifest, reason: str, message: str) -> None:
        """A controller or the kubelet writes an event, which is read some time later."""
        metadata = about["metadata"]
        involved = {"kind": about["kind"], "name": metadata["name"], "uid": metadata["uid"], "namespace": "default"}
        event = {"reason": reason, "message": message, "involvedObject": involved, "lastTimestamp": self.time()}
        named = {"name": f"{metadata['name']}.{reason.lower()}", "namespace": "default"}
        self.bench.cluster.put({"apiVersion": "v1", "kind": "Event", "metadata": named, **event})
        self.bench.pass_time(120)

    def gone(self, pod: str) -> None:
        self.bench.cluster.remove(POD, "default", pod)

    def claim(self, name: str = "llama-cache") -> Manifest:
        return next(item for item in self.bench.cluster.all(CLAIM) if item["metadata"]["name"] == name)

    def annotations(self, claim: str = "llama-cache") -> dict[str, str]:
        """The records on a claim; not the digest of its manifest."""
        annotations = self.claim(claim)["metadata"].get("annotations") or {}
        return {name: value for name, value in annotations.items() if name != APPLIED_ANNOTATION}

    def annotate(self, annotations: dict[str, str], claim: str = "llama-cache") -> None:
        """Somebody sets annotations of a PVC."""
        self.bench.cluster.edit(CLAIM, "default", claim, {"metadata": {"annotations": annotations}})

    def key(self, name: str = "llama") -> str:
        return self.bench.plan(name).cache_key

    def pods(self) -> tuple[str, ...]:
        return tuple(str(item["metadata"]["name"]) for item in self.bench.cluster.all(POD))

    def uid(self, pod: str) -> str:
        return next(str(item["metadata"]["uid"]) for item in self.bench.cluster.all(POD) if item["metadata"]["name"] == pod)

    def time(self) -> str:
        return reading.stamp(self.bench.now) or ""
