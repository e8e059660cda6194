"""Where a Pod keeps its caches and weights, read from a Pod spec: rendered, merged with the user's template, or live.

Every function takes a value of any shape and never raises.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import Manifest
from vllm_operator.catalog.caches import CACHE_ROOT, WEIGHTS_ROOT

FETCH_CACHES_CONTAINER = "fetch-caches"
FETCH_VARIABLE = "CACHE_ARTIFACT"
"""The variable of this container with its settings."""
_DECIDE_THE_TAG = ("repository", "readable", "image", "parts", "settings")


@dataclass(frozen=True, slots=True)
class CacheAddress:
    """A directory on a PersistentVolumeClaim. Pods with equal addresses share their caches."""

    claim: str
    key: str


def cache_address(pod_spec: Any) -> CacheAddress | None:
    """Return the address of a Pod's caches; None if they are on no PVC (emptyDir, hostPath, ephemeral volume)."""
    mount = _mount_at(pod_spec, CACHE_ROOT)
    claim = _claim_name(reading.named(pod_spec, reading.text(mount, "name"), "volumes", key="name"))
    return CacheAddress(claim, reading.text(mount, "subPath")) if claim else None


def cache_key_of(pod_spec: Any) -> str:
    """Return the directory of a Pod's caches on their volume, of any kind; empty without one."""
    return reading.text(_mount_at(pod_spec, CACHE_ROOT), "subPath")


def weights_claim(pod_spec: Any) -> str | None:
    """Return the name of the PVC with the weights of a Pod; None if they are on no PVC."""
    return _claim_name(volume_at(pod_spec, WEIGHTS_ROOT)) or None


def reported_cache_claim(resource: Any) -> str:
    """Return the PVC of the caches according to status and spec; empty if they are on no shared PVC."""
    reported = reading.mapping(resource, "status", "cache").get("claimName")
    if isinstance(reported, str):
        return reported
    cache = reading.mapping(resource, "spec", "cache")
    if reading.text(cache, "storage") not in ("", "SharedClaim") or cache.get("hostPath"):
        return ""
    return reading.text(cache, "claimName") or f"{reading.text(resource, 'metadata', 'name')}-cache"


def read_portability_settings(pod_spec: Any) -> dict[str, Any] | None:
    """Return the settings of the artifact key in a Pod; None if the Pod fetches no artifact. Accepts any shape."""
    container = reading.named(pod_spec, FETCH_CACHES_CONTAINER, "initContainers", key="name")
    if not container:
        return None
    try:
        settings = json.loads(reading.text(reading.named(container, FETCH_VARIABLE, "env", key="name"), "value"))
    except (ValueError, RecursionError):
        return None
    return {name: settings.get(name) for name in _DECIDE_THE_TAG} if isinstance(settings, dict) else None


def volume_at(pod_spec: Any, path: str) -> Manifest:
    """Return the volume that container `vllm` mounts at a path; empty if there is none."""
    name = reading.text(_mount_at(pod_spec, path), "name")
    return reading.named(pod_spec, name, "volumes", key="name") if name else {}


def is_read_only(pod_spec: Any, path: str) -> bool:
    """Return whether the Pod spec itself mounts the volume at a path read-only."""
    return reading.flag(_mount_at(pod_spec, path), "readOnly") or reading.flag(
        volume_at(pod_spec, path), "persistentVolumeClaim", "readOnly"
    )


def claims_of(pod_spec: Any) -> frozenset[str]:
    """Return the names of all PVCs that a Pod mounts."""
    return frozenset(map(_claim_name, reading.objects(pod_spec, "volumes"))) - {""}


def folders_of(pod_spec: Any, claim: str) -> frozenset[str]:
    """Return the directories in the root of a PVC that the containers of a Pod mount, or mount a part of."""
    return frozenset(reading.text(mount, "subPath").partition("/")[0] for mount in _mounts_of(pod_spec, claim)) - {""}


def mounts_whole(pod_spec: Any, claim: str) -> bool:
    """Return whether a container of a Pod mounts a whole PVC, or a directory whose name only the kubelet resolves (`subPathExpr`)."""
    return any(not mount.get("subPath") for mount in _mounts_of(pod_spec, claim))


def _claim_name(volume: Manifest) -> str:
    return reading.text(volume, "persistentVolumeClaim", "claimName")


def _mount_at(pod_spec: Any, path: str) -> Manifest:
    return reading.named(reading.named(pod_spec, CONTAINER, "containers", key="name"), path, "volumeMounts", key="mountPath")


def _mounts_of(pod_spec: Any, claim: str) -> Iterator[Manifest]:
    volumes = {reading.text(volume, "name") for volume in reading.objects(pod_spec, "volumes") if _claim_name(volume) == claim} - {""}
    for containers in ("initContainers", "containers", "ephemeralContainers"):
        for container in reading.objects(pod_spec, containers):
            yield from (mount for mount in reading.objects(container, "volumeMounts") if reading.text(mount, "name") in volumes)
