"""Objects of users beside those of the operator, and the proof that the operator left them alone.

Each is compared with what its owner made of it: same object, same spec, labels, annotations and owners, and no field of
it written by the operator. Names and labels look as much like the operator's as a user can make them.
"""

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

from chaos.client import EXISTS, PatientCluster
from support.cluster import Manifest, RefusedError, is_ready
from vllm_operator.api import labels

Identity = tuple[str, str]
OPERATOR = "vllm-operator"
_KEPT = ("uid", "labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp")


def labels_like(name: str, component: str) -> dict[str, str]:
    """The labels that the operator gives to objects of a VLLMDeployment."""
    return {
        labels.NAME_LABEL: labels.NAME,
        labels.INSTANCE_LABEL: name,
        labels.COMPONENT_LABEL: component,
        labels.MANAGED_BY_LABEL: labels.MANAGED_BY,
    }


def claim(name: str, **metadata: Any) -> Manifest:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, **metadata}, "spec": spec}


def look_alikes(name: str, taken: str, node: str) -> tuple[Manifest, ...]:
    """Objects that resemble those of the VLLMDeployment `name`, and a claim with the name that one for `taken` would get.

    Args:
        name: A VLLMDeployment that is served.
        taken: Another one.
        node: Where a Pod among them runs.
    """
    container = {"name": "vllm", "image": "example.com/vllm:1"}
    selector = {"example.com/app": "copy"}
    copied = {"metadata": {"labels": labels_like(name, "engine") | selector}, "spec": {"containers": [container]}}
    engine = labels_like(name, "engine")
    return (
        claim(f"{taken}-cache"),
        claim(
            f"{name}-cache-backup",
            labels=labels_like(name, "cache"),
            annotations={f"{labels.PRIMED_ANNOTATION_PREFIX}x": "2026-01-01T00:00:00Z"},
        ),
        claim(f"{name}-cache-2", annotations={f"{labels.USED_ANNOTATION_PREFIX}x": "2026-01-01T00:00:00Z"}),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-cache", "labels": labels_like(name, "cache")},
            "data": {"a": "b"},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": engine}, "stringData": {"token": "x"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{name}-metrics", "labels": engine},
            "spec": {"selector": selector, "ports": [{"name": "http", "port": 8000}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"{name}-copy", "labels": engine},
            "spec": {"replicas": 0, "selector": {"matchLabels": selector}, "template": copied},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"{taken}.primer"},
            "spec": {"replicas": 0, "selector": {"matchLabels": selector}, "template": copied},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{name}-clean-00000000", "labels": labels_like(name, "cleaning")},
            "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-debug", "labels": engine},
            "spec": {"nodeName": node, "containers": [container]},
        },
    )


def essence(manifest: Manifest) -> Manifest:
    """What an owner has made of an object, without what controllers and the API server keep in it."""
    content = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    return copy.deepcopy(content | {"metadata": {key: manifest["metadata"][key] for key in _KEPT if key in manifest["metadata"]}})


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """The fields in which two objects differ, each with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [found for key in keys for found in differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))]
    return [] if before == now else [f"{path}: {before!r} became {now!r}"]


def traces(manifest: Manifest) -> list[str]:
    """Field managers of the operator that have written to an object."""
    managers = (entry.get("manager", "") for entry in manifest["metadata"].get("managedFields") or ())
    return sorted({manager for manager in managers if manager.startswith(OPERATOR)})


class ForeignObjects:
    """The objects of users in the namespace, as their owners left them."""

    def __init__(self, client: PatientCluster) -> None:
        self._client = client
        self._expected: dict[Identity, Manifest] = {}

    def names(self) -> frozenset[Identity]:
        return frozenset(self._expected)

    async def create(self, manifest: Manifest) -> None:
        """Creates an object and waits until controllers have filled it in."""
        try:
            await self._client.create(manifest)
        except RefusedError as refused:
            if refused.status != EXISTS:
                raise
        name, kind = manifest["metadata"]["name"], manifest["kind"]
        self._expected[kind, name] = essence(await self._client.wait_for(kind, name, partial(_is_filled_in, kind), within=60))

    async def remove(self, kind: str, name: str) -> list[str]:
        """Deletes an object, as its owner does; returns what had happened to it until then."""
        found = await self._check((kind, name))
        del self._expected[kind, name]
        if await self._client.find(kind, name) is not None:
            await self._client.delete(kind, name)
            await self._client.wait_until_gone(kind, name, within=60)
        return found

    async def check(self, identities: Iterable[Identity] | None = None) -> list[str]:
        """Says what is not as its owner left it."""
        wanted = list(self._expected if identities is None else identities)
        return [found for identity in wanted for found in await self._check(identity)]

    async def _check(self, identity: Identity) -> list[str]:
        what = f"the user's {' '.join(identity)}"
        live = await self._client.find(*identity)
        if live is None:
            return [f"{what} is gone"]
        changed = differences(self._expected[identity], essence(live))
        written = traces(live)
        return ([f"{what} was changed: {'; '.join(changed)}"] if changed else []) + (
            [f"{what} has fields written by {', '.join(written)}"] if written else []
        )


def _is_filled_in(kind: str, manifest: Manifest) -> bool:
    status = manifest.get("status", {})
    match kind:
        case "PersistentVolumeClaim":
            return bool(status.get("phase") == "Bound")
        case "Deployment":
            return bool(status.get("observedGeneration") == manifest["metadata"]["generation"])
        case "Pod":
            return is_ready(manifest)
        case "Job":
            return bool(status.get("conditions"))
    return True
