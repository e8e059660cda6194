"""Measure the operator beside many objects, nodes and Pods on a real API server: start, memory, idle load, and the cost of an event.

    python hack/bench/scale.py 100 500 1000 2000 5000     # numbers of VLLMDeployments; four Pods each, four nodes for ten of them

Objects, children, Pods and nodes are written to etcd as the operator and the controllers leave them: one object is served in memory, and
copied. No controller, scheduler or kubelet runs, so only the API server and the operator use the machine. Nothing but the objects that the
bench changes may be written: the column `writes` shows it.

CPU times are those of the operator. An event is a change of a Pod that changes nothing else.
"""

import argparse
import asyncio
import base64
import json
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.fleet import KINDS, PODS, Fleet
from bench.imports import memory
from bench.load import GROUP, Api, prepare
from bench.running import Operator
from support.fake_cluster import FakeCluster
from testenv import Environment
from vllm_operator.api import labels
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, DISRUPTION_BUDGET, POD, REVISION, SERVICE, VLLM_DEPLOYMENT, Kind, Manifest
from vllm_operator.cluster.managed_fields import with_digest
from vllm_operator.rendering.carried_plan import carried_value, carry, read_carried
from vllm_operator.rendering.revision import revision_name

TEMPLATE = "template-object"
NAMESPACES = 20
FOLDERS = {
    VLLM_DEPLOYMENT: "vllm-operator.dev/vllmdeployments",
    DEPLOYMENT: "deployments",
    REVISION: "controllerrevisions",
    SERVICE: "services/specs",
    CLAIM: "persistentvolumeclaims",
    POD: "pods",
    DISRUPTION_BUDGET: "poddisruptionbudgets",
}
"""Where the API server keeps the objects of a kind in etcd."""
BATCH = 50
EVENTS, EVENTS_PER_SECOND = 300, 30.0
IDLE_SECONDS = 20.0


class Copies:
    """Copies of an object that is served in memory, with its children and Pods."""

    def __init__(self, fleet: Fleet, applied: Sequence[Manifest]) -> None:
        self._now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.pods = len(fleet.behind.all(POD))
        self._objects = [(kind, item) for kind in FOLDERS for item in fleet.behind.all(kind)]
        self._desired = {(item["kind"], item["metadata"]["name"]): json.dumps(_without_digest(item)) for item in applied}
        [self._resource] = fleet.behind.all(VLLM_DEPLOYMENT)
        [deployment] = fleet.behind.all(DEPLOYMENT)
        self._carried = carried_value(deployment)
        self._plan = json.dumps(read_carried(VLLMDeployment.parse(self._resource), deployment).to_json())

    @classmethod
    async def make(cls, pods: int = PODS, *, ready: bool = True) -> "Copies":
        """Serve the object, with Pods that are Ready or start."""
        fleet, applied = Fleet(1, pods, ready=ready), list[Manifest]()
        apply = FakeCluster.apply

        async def record(self: FakeCluster, manifest: Manifest, **options: Any) -> Manifest:
            applied.append(manifest)
            return await apply(self, manifest, **options)

        with patch.object(FakeCluster, "apply", record):
            await fleet.object_cache.refresh(KINDS, changed=lambda key: None)
            await fleet.add(TEMPLATE)
        return cls(fleet, applied)

    def copy(self, number: int) -> Iterator[tuple[Kind, Manifest]]:
        """A copy with another name, namespace and UID, and with the names and digests that follow from these."""
        name, namespace, uid = f"object-{number:05}", f"fleet-{number % NAMESPACES:02}", str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))
        before = self._resource["metadata"]["uid"]

        def renamed(text: str) -> str:
            text = (
                text.replace(TEMPLATE, name)
                .replace('"namespace": "default"', f'"namespace": "{namespace}"')
                .replace(".default.svc", f".{namespace}.svc")
            )
            return text.replace(f'"uid": "{before}"', f'"uid": "{uid}"')

        owner: Any = SimpleNamespace(metadata=SimpleNamespace(name=name, uid=uid))
        plan = Plan.model_validate_json(renamed(self._plan))
        revision = revision_name(owner, plan)
        carried = str(carry(revision, plan))
        old = renamed(json.dumps(self._resource["status"]["pinnedPlan"]["revision"]))
        for kind, item in self._objects:
            made = json.loads(renamed(json.dumps(item)).replace(old, json.dumps(revision)).replace(self._carried, carried))
            metadata = made["metadata"]
            if desired := self._desired.get((made["kind"], item["metadata"]["name"])):
                digested = with_digest(json.loads(renamed(desired).replace(self._carried, carried)))
                metadata["annotations"][labels.APPLIED_ANNOTATION] = digested["metadata"]["annotations"][labels.APPLIED_ANNOTATION]
            if metadata["uid"] != uid:
                metadata["uid"] = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{kind.kind} {metadata['name']}"))
            if kind == POD:
                made["spec"]["nodeName"] = f"gpu-{number * self.pods // 10:05}"
                for container in made["status"]["containerStatuses"]:
                    container["state"]["running"]["startedAt"] = self._now
            yield kind, _stored(made)


def _without_digest(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {name: value for name, value in metadata["annotations"].items() if name != labels.APPLIED_ANNOTATION}
    kept = {name: value for name, value in metadata.items() if name not in ("annotations", "uid", "resourceVersion")}
    return {**manifest, "metadata": {**kept, **({"annotations": annotations} if annotations else {})}}


def _stored(manifest: Manifest) -> Manifest:
    """An object as the API server stores it."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "resourceVersion"}
    written = "2026-11-21T12:00:00Z"
    for entry in metadata.get("managedFields", ()):
        entry.update(apiVersion=manifest["apiVersion"], fieldsType="FieldsV1", time=written)
    return {**manifest, "metadata": {**metadata, "creationTimestamp": written}}


class Store:
    """Writes objects to etcd."""

    def __init__(self, environment: Environment) -> None:
        self._ask = environment.control_plane._ask_etcd
        self._waiting: list[dict[str, Any]] = []

    def put(self, folder: str, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        path = "/".join(part for part in ("/registry", folder, metadata.get("namespace"), metadata["name"]) if part)
        key, value = (base64.b64encode(part.encode()).decode() for part in (path, json.dumps(manifest)))
        self._waiting.append({"requestPut": {"key": key, "value": value}})
        if len(self._waiting) >= BATCH:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._ask("kv/txn", {"success": self._waiting})
        self._waiting = []


class Scale:
    """One control plane that gets more and more objects, and the operator beside them."""

    def __init__(self, environment: Environment, api: Api, copies: Copies) -> None:
        self._environment, self._api, self.copies = environment, api, copies
        self._store = Store(environment)
        self._objects = self._nodes = 0
        self._node: Manifest = {}

    async def prepare(self) -> None:
        await prepare(self._api)
        for number in range(NAMESPACES):
            metadata = {"name": f"fleet-{number:02}"}
            await self._api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        [name] = self._environment.add_nodes("h100-sxm")
        self._node = await self._api.call("GET", f"/api/v1/nodes/{name}")
        await self._api.call("DELETE", f"/api/v1/nodes/{name}")
        for other in ("kwok", "kube-controller-manager", "kube-scheduler"):
            self._environment.control_plane.stop_component(other)

    def grow(self, objects: int) -> None:
        """Add objects, Pods and nodes."""
        for number in range(self._objects, objects):
            for kind, manifest in self.copies.copy(number):
                self._store.put(FOLDERS[kind], manifest)
        for number in range(self._nodes, -(-objects * self.copies.pods // 10)):
            metadata = {**self._node["metadata"], "name": f"gpu-{number:05}", "uid": str(uuid.uuid4())}
            self._store.put("minions", _stored({**self._node, "apiVersion": "v1", "kind": "Node", "metadata": metadata}))
            self._nodes = number + 1
        self._store.flush()
        self._objects = objects

    async def measure(self) -> dict[str, float]:
        """Start the operator, and measure."""
        name, namespace = "object-00000", "fleet-00"
        path = f"{GROUP}/namespaces/{namespace}/vllmdeployments/{name}"
        change = {"spec": {"engine": {"args": [{"name": "--max-num-seqs", "value": str(64 + self._objects % 64)}]}}}
        await self._api.call("PATCH", path, change, "application/merge-patch+json")
        operator = Operator(self._environment.kubeconfig)
        applied = asyncio.create_task(self._until_changed(f"/apis/apps/v1/namespaces/{namespace}/deployments", name))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        try:
            await operator.start()
            found = {"serving s": time.monotonic() - began, "CPU s": operator.cpu()}
            found["first change s"] = await applied - began
            served = self._objects
            async with asyncio.timeout(900):
                while await reconciliations(operator) < served:  # noqa: ASYNC110 - a counter has no event
                    await asyncio.sleep(0.5)
            await settled(operator)
            found |= {"all reconciled s": time.monotonic() - began, "CPU s for all": operator.cpu()}
            found["writes"] = await operator.writes()
            cpu = operator.cpu()
            await asyncio.sleep(IDLE_SECONDS)
            idle = (operator.cpu() - cpu) / IDLE_SECONDS
            found["idle CPU %"] = idle * 100
            used = memory(operator.process.pid)
            found |= {"RSS MiB": used["Rss"], "peak MiB": used["Peak"]}
            found |= await self._events(operator, idle)
            found["writes after events"] = await operator.writes() - found["writes"]
        finally:
            applied.cancel()
            await operator.stop()
        return found

    async def _until_changed(self, path: str, name: str) -> float:
        async for moment, event in self._api.watch(path):
            if event["type"] == "MODIFIED" and event["object"]["metadata"]["name"] == name:
                return moment
        raise RuntimeError("the watch has ended")

    async def _events(self, operator: Operator, idle: float) -> dict[str, float]:
        """Change Pods of different objects, one after the other."""
        served = list(range(self._objects))
        events = min(EVENTS, len(served))
        chosen = [served[position * len(served) // events] for position in range(events)]
        pods = [next(item for kind, item in self.copies.copy(number) if kind == POD) for number in chosen]
        before, cpu, began = await reconciliations(operator), operator.cpu(), time.monotonic()
        for number, pod in enumerate(pods):
            pod["metadata"]["annotations"] = {"bench": str(number)}
            await asyncio.to_thread(self._put, pod)
            await asyncio.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.monotonic()))
        await settled(operator)
        spent = operator.cpu() - cpu - idle * (time.monotonic() - began)
        return {"ms for an event": spent / events * 1000, "reconciliations for it": (await reconciliations(operator) - before) / events}

    def _put(self, pod: Manifest) -> None:
        self._store.put("pods", pod)
        self._store.flush()


async def reconciliations(operator: Operator) -> float:
    """How many have been completed."""
    return await _sum_of(operator, "vllm_operator_reconcile_total")


async def settled(operator: Operator) -> None:
    """Wait until no key waits, and none has been reconciled for three seconds."""
    before = -1.0
    async with asyncio.timeout(900):
        while before != (before := await reconciliations(operator)) or await _sum_of(operator, "vllm_operator_queue_depth"):  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(3)


async def _sum_of(operator: Operator, metric: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{operator.port}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{metric}{{", f"{metric} ")))


async def serve(numbers: Sequence[int]) -> None:
    copies = await Copies.make()
    with Environment() as environment:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
            scale = Scale(environment, Api(environment, session), copies)
            await scale.prepare()
            for position, number in enumerate(numbers):
                await asyncio.to_thread(scale.grow, number)
                found = await scale.measure()
                if not position:
                    print("objects", "nodes", "Pods", *found, sep=" | ")
                sizes = (number, number * PODS // 10, number * PODS)
                print(*sizes, *(f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in found.values()), sep=" | ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", type=int, nargs="*", default=[100, 500, 1000, 2000, 5000])
    options = parser.parse_args()
    asyncio.run(serve(options.objects))


if __name__ == "__main__":
    main()
