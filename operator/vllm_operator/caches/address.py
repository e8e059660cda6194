"""Where a Pod keeps its caches, read from its spec: rendered, merged with the user's template, or running."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.catalog.paths import CACHE_ROOT, WEIGHTS_ROOT


@dataclass(frozen=True, slots=True)
class CacheAddress:
    """A folder on a claim. Pods with equal addresses share their caches."""

    claim: str
    key: str


def cache_address(pod_spec: Any) -> CacheAddress | None:
    """Where the caches of a Pod are; None if they are on no claim (emptyDir, a host path, an ephemeral claim)."""
    claim = _claim_at(pod_spec, CACHE_ROOT)
    return CacheAddress(claim, folder_at(pod_spec, CACHE_ROOT)) if claim else None


def weights_claim(pod_spec: Any) -> str | None:
    """The claim of the weights of a Pod; None if they are on none."""
    return _claim_at(pod_spec, WEIGHTS_ROOT)


def folder_at(pod_spec: Any, path: str) -> str:
    """The folder of a volume that is mounted at a path of the engine; empty for the volume's root."""
    return str(_mount_at(pod_spec, path).get("subPath") or "")


def volume_at(pod_spec: Any, path: str) -> Mapping[str, Any]:
    """The volume that is mounted at a path of the engine; empty if none is."""
    mount = _mount_at(pod_spec, path)
    return next((v for v in _objects(pod_spec, "volumes") if v.get("name") == mount.get("name")), {})


def is_read_only(pod_spec: Any, path: str) -> bool:
    """Whether the Pod's spec itself mounts what is at a path of the engine for reading only."""
    claim = volume_at(pod_spec, path).get("persistentVolumeClaim")
    return _mount_at(pod_spec, path).get("readOnly") is True or (isinstance(claim, Mapping) and claim.get("readOnly") is True)


def _claim_at(pod_spec: Any, path: str) -> str | None:
    claim = volume_at(pod_spec, path).get("persistentVolumeClaim")
    return str(claim["claimName"]) if isinstance(claim, Mapping) and claim.get("claimName") else None


def _mount_at(pod_spec: Any, path: str) -> Mapping[str, Any]:
    container = next((c for c in _objects(pod_spec, "containers") if c.get("name") == CONTAINER), {})
    return next((m for m in _objects(container, "volumeMounts") if m.get("mountPath") == path), {})


def claims_of(pod_spec: Any) -> frozenset[str]:
    """Names of all claims that a Pod mounts."""
    claims = (volume.get("persistentVolumeClaim") for volume in _objects(pod_spec, "volumes"))
    return frozenset(str(claim["claimName"]) for claim in claims if isinstance(claim, Mapping) and claim.get("claimName"))


def folders_of(pod_spec: Any, claim: str) -> frozenset[str]:
    """First parts of the folders that the containers of a Pod use of a claim."""
    return frozenset(str(mount.get("subPath") or "").partition("/")[0] for mount in _mounts_of(pod_spec, claim)) - {""}


def mounts_whole(pod_spec: Any, claim: str) -> bool:
    """Whether a container of a Pod has all of a claim before it, or a folder whose name only the kubelet knows (`subPathExpr`)."""
    return any(not mount.get("subPath") for mount in _mounts_of(pod_spec, claim))


def _mounts_of(pod_spec: Any, claim: str) -> Iterator[Mapping[str, Any]]:
    volumes = {v.get("name") for v in _objects(pod_spec, "volumes") if (v.get("persistentVolumeClaim") or {}).get("claimName") == claim}
    for containers in ("initContainers", "containers", "ephemeralContainers"):
        for container in _objects(pod_spec, containers):
            yield from (mount for mount in _objects(container, "volumeMounts") if mount.get("name") in volumes)


def template_spec(deployment: Any) -> Any:
    """The Pod spec of a Deployment; an empty one where there is none."""
    spec = deployment.get("spec") if isinstance(deployment, Mapping) else None
    template = spec.get("template") if isinstance(spec, Mapping) else None
    return (template.get("spec") or {}) if isinstance(template, Mapping) else {}


def _objects(value: Any, field: str) -> Iterator[Mapping[str, Any]]:
    entries = value.get(field) if isinstance(value, dict) else None
    yield from (entry for entry in entries or () if isinstance(entry, dict))
