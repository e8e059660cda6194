"""The real API server, as tests see it: a namespace of their own, a thin client, and a hand on the simulated Pods."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from testenv import Environment
from testenv.binaries import kubernetes_minor
from testenv.components import POLICIES_SINCE
from testenv.controlplane import BaseEnvironment
from testenv.cri import LogWriter
from testenv.replay import Replay, read_recording
from testenv.stages import ANNOTATION_PREFIX

Manifest = dict[str, Any]

# kind: group and version, resource, whether it is in a namespace
_KINDS: dict[str, tuple[str, str, bool]] = {
    "ControllerRevision": ("apps/v1", "controllerrevisions", True),
    "ConfigMap": ("v1", "configmaps", True),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "Deployment": ("apps/v1", "deployments", True),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices", True),
    "Event": ("v1", "events", True),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers", True),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes", True),
    "InferencePool": ("inference.networking.k8s.io/v1", "inferencepools", True),
    "Job": ("batch/v1", "jobs", True),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets", True),
    "Lease": ("coordination.k8s.io/v1", "leases", True),
    "Namespace": ("v1", "namespaces", False),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
    "Node": ("v1", "nodes", False),
    "NodePool": ("karpenter.sh/v1", "nodepools", False),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims", True),
    "PersistentVolume": ("v1", "persistentvolumes", False),
    "Pod": ("v1", "pods", True),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets", True),
    "PodMetrics": ("metrics.k8s.io/v1beta1", "pods", True),
    "ReplicaSet": ("apps/v1", "replicasets", True),
    "ResourceQuota": ("v1", "resourcequotas", True),
    "DeviceClass": ("resource.k8s.io/v1", "deviceclasses", False),
    "ResourceClaim": ("resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "resourceclaimtemplates", True),
    "ResourceSlice": ("resource.k8s.io/v1", "resourceslices", False),
    "ScaledObject": ("keda.sh/v1alpha1", "scaledobjects", True),
    "Secret": ("v1", "secrets", True),
    "Service": ("v1", "services", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "StatefulSet": ("apps/v1", "statefulsets", True),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ClusterVLLMPreset": ("vllm-operator.dev/v1alpha1", "clustervllmpresets", False),
    "VLLMPreset": ("vllm-operator.dev/v1alpha1", "vllmpresets", True),
    "VLLMDeployment": ("vllm-operator.dev/v1alpha1", "vllmdeployments", True),
}
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"


CLAIMS_SINCE = 34
"""The minor version of Kubernetes that serves resource.k8s.io/v1."""
PATIENCE = 60.0
"""For how many seconds what must come is waited for: a busy machine is no failure."""


def skip_before(minor: int, what: str) -> None:
    """Skips a test that uses what only a newer control plane offers."""
    if kubernetes_minor() < minor:
        pytest.skip(f"Kubernetes 1.{kubernetes_minor()} does not offer {what}; 1.{minor} does")


class RefusedError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, text: str) -> None:
        try:
            message = json.loads(text)["message"]
        except (ValueError, KeyError, TypeError):
            message = text
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = str(message)


class Cluster:
    """One namespace of an environment that this test run started; it talks to no other server.

    Methods name objects by kind, in the namespace of the test unless told otherwise.
    """

    def __init__(self, environment: BaseEnvironment, session: aiohttp.ClientSession, namespace: str) -> None:
        if not environment.control_plane.processes.is_alive("etcd"):
            raise RuntimeError("Tests run only against a control plane that they started themselves.")
        self.environment = environment
        self.namespace = namespace
        self.kubeconfig: Path = environment.kubeconfig
        self._session = session
        self._ssl = ssl.create_default_context(cafile=str(environment.control_plane.authority))

    @property
    def simulated(self) -> Environment:
        """The environment, where its nodes are simulated."""
        assert isinstance(self.environment, Environment), "these nodes are real"
        return self.environment

    async def get(self, kind: str, name: str, *, namespace: str | None = None) -> Manifest:
        answer: Manifest = await self.request("GET", self._path(kind, name, namespace))
        return answer

    async def list_all(self, kind: str, *, namespace: str | None = None, selector: str = "") -> list[Manifest]:
        found = await self.request("GET", self._path(kind, "", namespace), params={"labelSelector": selector} if selector else None)
        items: list[Manifest] = found["items"]
        return items

    async def create(self, manifest: Manifest) -> Manifest:
        answer: Manifest = await self.request("POST", self._path_of(manifest), body=manifest)
        return answer

    async def create_text(self, manifest: Manifest, replaced: Mapping[str, str]) -> None:
        """Create what a text says that no value here can be: `replaced` in the JSON of the manifest."""
        text = json.dumps(manifest)
        for old, new in replaced.items():
            text = text.replace(old, new)
        async with self._open("POST", self._path_of(manifest), data=text) as response:
            await response.read()

    async def apply(self, manifest: Manifest, *, manager: str = "test", force: bool = True) -> Manifest:
        path = f"{self._path_of(manifest)}/{manifest['metadata']['name']}"
        params = {"fieldManager": manager, "force": str(force).lower()}
        answer: Manifest = await self.request("PATCH", path, body=manifest, content_type=_APPLY, params=params)
        return answer

    async def patch(
        self, kind: str, name: str, patch: Manifest, *, subresource: str = "", namespace: str | None = None, manager: str = "test"
    ) -> Manifest:
        path = self._path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        answer: Manifest = await self.request("PATCH", path, body=patch, content_type=_MERGE, params={"fieldManager": manager})
        return answer

    async def annotate(self, kind: str, name: str, **annotations: str | None) -> Manifest:
        """Sets the simulator's annotations, written with underscores: `crash_after="1"`."""
        return await self.patch(kind, name, {"metadata": {"annotations": simulated(**annotations)}})

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status."""
        path = f"{self._path_of(manifest)}/{manifest['metadata']['name']}/status"
        answer: Manifest = await self.request(
            "PATCH", path, body=manifest, content_type=_APPLY, params={"fieldManager": manager, "force": "true"}
        )
        return answer

    async def delete(self, kind: str, name: str, *, namespace: str | None = None, propagation: str | None = None) -> None:
        params = {"propagationPolicy": propagation} if propagation else None
        await self.request("DELETE", self._path(kind, name, namespace), params=params)

    async def evict(self, pod: str) -> int:
        """Requests the eviction of a Pod, and returns the answer: 201, or 429 if a PodDisruptionBudget forbids it for now."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        try:
            async with self._open("POST", f"{self._path('Pod', pod, None)}/eviction", data=json.dumps(eviction)) as response:
                return response.status
        except RefusedError as refused:
            return refused.status

    async def exists(self, kind: str, name: str) -> bool:
        try:
            await self.get(kind, name)
        except RefusedError as refused:
            if refused.status == 404:
                return False
            raise
        return True

    async def wait_for(
        self, kind: str, name: str, predicate: Callable[[Manifest], object], *, within: float = PATIENCE, namespace: str | None = None
    ) -> Manifest:
        """Watches an object until `predicate` holds, over outages of the server, and returns it as it then is.

        Raises:
            AssertionError: it did not hold in time; shows the object as it was last seen.
        """
        last: list[Manifest] = []
        try:
            async with asyncio.timeout(within):
                async for seen in self.watch(kind, name, namespace=namespace):
                    last[:] = [seen]
                    if predicate(seen):
                        return seen
        except TimeoutError:
            pass
        picture = yaml.safe_dump(_without_managed_fields(last[0])) if last else "it does not exist"
        raise AssertionError(f"{kind} {name} did not become what was expected within {within:g} s. Last seen:\n{picture}")

    async def wait_for_pods(self, number: int = 1, *, selector: str = "", but: Collection[str] = (), within: float = PATIENCE) -> list[str]:
        """Returns the names of the Pods that are not being deleted and not in `but`, once there are just so many.

        The Pods themselves are asked: what a Deployment counts of them comes a moment later.
        """
        async with asyncio.timeout(within):
            while True:
                pods = [pod["metadata"] for pod in await self.list_all("Pod", selector=selector)]
                names = sorted(pod["name"] for pod in pods if "deletionTimestamp" not in pod and pod["name"] not in but)
                if len(names) == number:
                    return names
                await asyncio.sleep(0.05)

    async def wait_until_runs(self, pod: str) -> None:
        """Waits until the first container of a Pod runs."""
        await self.wait_for("Pod", pod, lambda it: (it["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("running"))

    async def wait_until_gone(self, kind: str, name: str, *, within: float = PATIENCE) -> None:
        async with asyncio.timeout(within):
            while True:
                if not await self.exists(kind, name):
                    return
                await asyncio.sleep(0.05)

    async def watch(self, kind: str, name: str, *, namespace: str | None = None) -> AsyncIterator[Manifest]:
        """Yields an object as it is now and after each change, for ever; nothing while it does not exist."""
        path, params = self._path(kind, "", namespace), {"fieldSelector": f"metadata.name={name}"}
        while True:
            try:
                listing = await self.request("GET", path, params=params)
                for item in listing["items"]:
                    yield item
                version = listing["metadata"]["resourceVersion"]
                async with self._open("GET", path, params=params | {"watch": "1", "resourceVersion": version}) as response:
                    while line := await response.content.readuntil(b"\n"):
                        event = json.loads(line)
                        if event["type"] in ("ADDED", "MODIFIED"):
                            yield event["object"]
            except (aiohttp.ClientError, asyncio.IncompleteReadError, ConnectionError, ValueError):
                await asyncio.sleep(0.05)
            except RefusedError as refused:
                if refused.status not in (404, 410, 429, 500, 503):
                    raise
                await asyncio.sleep(0.05)

    async def read(self, path: str, **params: str) -> str:
        """Returns an answer that is no JSON."""
        async with self._open("GET", path, params=params) as response:
            return (await response.read()).decode(errors="replace")

    async def read_log(self, pod: str, **params: str) -> str:
        return await self.read(self._path("Pod", pod, None) + "/log", **params)

    async def follow_log(self, pod: str, **params: str) -> AsyncIterator[bytes]:
        """Yields what the log stream brings, as it comes, until it ends."""
        async with self._open("GET", self._path("Pod", pod, None) + "/log", params={"follow": "true"} | params) as response:
            async for data in response.content.iter_any():
                yield data

    async def events(self, *, name: str = "") -> list[Manifest]:
        """Returns the namespace's Events, or those about one object, oldest first."""
        found = [event for event in await self.list_all("Event") if not name or event["involvedObject"]["name"] == name]
        return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))

    async def wait_for_event(self, name: str, reason: str, *, within: float = PATIENCE) -> Manifest:
        """Returns the only Event about an object with this reason, once there is one: Events are written after the status.

        Raises:
            AssertionError: There are several, or there is none in time.
        """
        events: list[Manifest] = []
        try:
            async with asyncio.timeout(within):
                while not (events := [event for event in await self.events(name=name) if event["reason"] == reason]):  # noqa: ASYNC110 - they are in the API server
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no Event {reason} about {name}: {await self.events(name=name)}") from None
        assert len(events) == 1, events
        return events[0]

    async def act_as(self, account: str, path: Path) -> Path:
        """Writes a kubeconfig that acts as a service account of the namespace, which is made if it is not there.

        The account may do nothing until a role is bound to it: `system:serviceaccount:NAMESPACE:ACCOUNT`.
        """
        if not await self.exists("ServiceAccount", account):
            await self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        granted = await self.request("POST", self._path("ServiceAccount", account, None) + "/token", body=wanted)
        self.environment.control_plane.write_kubeconfig(path, token=granted["status"]["token"], user=account)
        return path

    async def request(
        self, method: str, path: str, *, body: object = None, content_type: str = "application/json", params: dict[str, str] | None = None
    ) -> Any:
        data = None if body is None else json.dumps(body)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with self._open(method, path, data=data, content_type=content_type, params=params) as response:
                        return await response.json()
                except RefusedError as refused:
                    if refused.status != 429:  # the storage of a CRD that was just changed begins anew
                        raise
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        *,
        data: str | None = None,
        content_type: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        plane = self.environment.control_plane
        headers = {"Authorization": f"Bearer {plane.token}", "Content-Type": content_type}
        url = plane.server + path
        async with self._session.request(method, url, data=data, headers=headers, params=params or {}, ssl=self._ssl) as response:
            if response.status >= 400:
                raise RefusedError(response.status, await response.text())
            yield response

    def _path(self, kind: str, name: str, namespace: str | None) -> str:
        version, resource, namespaced = _KINDS[kind]
        if version == "resource.k8s.io/v1":
            skip_before(CLAIMS_SINCE, version)
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        scope = f"/namespaces/{namespace or self.namespace}" if namespaced else ""
        return f"{root}{scope}/{resource}" + (f"/{name}" if name else "")

    def _path_of(self, manifest: Manifest) -> str:
        return self._path(manifest["kind"], "", manifest["metadata"].get("namespace"))


async def the_pod(cluster: Cluster, *, selector: str = "", but: Collection[str] = ()) -> str:
    """The name of the only Pod, once it is there."""
    [pod] = await cluster.wait_for_pods(selector=selector, but=but)
    return pod


class Simulator:
    """A hand on the simulated Pods of one namespace: how they start, what they log, how their kubelet fails."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def script(self, **annotations: str | None) -> None:
        """Says how Pods that are created in the namespace from now on behave: `path="crash", crash_after="0.5"`.

        Where the API server cannot hand that on to the Pods, the test is skipped.
        """
        skip_before(POLICIES_SINCE, "a MutatingAdmissionPolicy, which hands that on")
        await self._cluster.annotate("Namespace", self._cluster.namespace, **annotations)

    async def change(self, pod: str, **annotations: str | None) -> None:
        """Changes how an existing Pod goes on."""
        await self._cluster.annotate("Pod", pod, **annotations)

    def log(self, pod: str, *, container: str = "vllm", run: int = 0) -> LogWriter:
        """Opens the log of one run of a container, as the container runtime would."""
        return LogWriter(self._folder(pod, container) / f"{run}.log")

    def replay(self, pod: str, recording: Path, *, speed: float = 20.0, container: str = "vllm", run: int = 0) -> Replay:
        """Returns a run of a container that prints a recording; `await replay.play(exits=...)` lets it."""
        return Replay(read_recording(recording), self.log(pod, container=container, run=run), speed=speed)

    def fail_logs(self, pod: str, fault: str, *, container: str = "vllm", previous: bool = False) -> None:
        """Lets log requests fail (`500`, `reset`, `hang`, `unavailable`), or work again (``)."""
        path = self._folder(pod, container) / ("FAULT-PREVIOUS" if previous else "FAULT")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fault)

    def _folder(self, pod: str, container: str) -> Path:
        return self._cluster.simulated.log_root / self._cluster.namespace / pod / container


def simulated(**annotations: str | None) -> dict[str, str | None]:
    """Returns the simulator's annotations under their full names: `crash_after` becomes `sim.vllm-operator.dev/crash-after`."""
    return {ANNOTATION_PREFIX + name.replace("_", "-"): value for name, value in annotations.items()}


def is_ready(pod: Manifest) -> bool:
    """Whether a Pod (or a Node) has the condition Ready."""
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in pod.get("status", {}).get("conditions", []))


def _without_managed_fields(manifest: Manifest) -> Manifest:
    return manifest | {"metadata": {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}}
