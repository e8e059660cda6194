"""Volumes of the Pod, their mounts, and the PVCs that the operator creates.

The engine writes only to volumes: caches and weights to the storage of the spec, everything else to memory or to the disk of the node,
with a size limit. So it runs with a read-only root file system and with any user ID.
"""

from collections.abc import Iterable
from typing import Any

from vllm_operator.api.crd import DEFAULT_CACHE_SIZE
from vllm_operator.api.operation import ClaimVolume, StorageSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role, VLLMDeployment, metadata_of
from vllm_operator.caches import claims
from vllm_operator.caches.claims import storage_of, weights_storage
from vllm_operator.catalog.caches import ADAPTER_CLAIM_ROOT, CACHE_ROOT, MODEL_ROOT, TOKEN_FILE, TOKEN_ROOT, WEIGHTS_ROOT, WEIGHTS_SUBPATH
from vllm_operator.planning.pod_template import run_as_user

MODEL_VOLUME = "model"
ADAPTER_VOLUME = "adapters"
SHARED_MEMORY_VOLUME = "shared-memory"
TEMPORARY_VOLUME = "temporary"
TOKEN_VOLUME = "hub-token"
TEMPORARY_SIZE = "16Gi"
"""Limit for temporary files of compilers, which take megabytes to a few gigabytes. A Pod above the limit is evicted."""
_PVC_SCHEME = "pvc://"


def _claims_of_user(resource: VLLMDeployment) -> list[tuple[str, str, str]]:
    """Return the PVCs with the model and adapters: name of the volume, of the PVC, and path of the mount."""

    def names(uris: Iterable[str]) -> list[str]:
        return sorted({uri.removeprefix(_PVC_SCHEME).partition("/")[0] for uri in uris if uri.startswith(_PVC_SCHEME)})

    adapters = names(adapter.uri for adapter in resource.spec.adapters or ())
    return [
        *((MODEL_VOLUME, claim, MODEL_ROOT) for claim in names([resource.spec.model.uri])),
        *((f"{ADAPTER_VOLUME}-{number}", claim, f"{ADAPTER_CLAIM_ROOT}/{claim}") for number, claim in enumerate(adapters)),
    ]


def render_volumes(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
    """Render the volumes of the Pod."""
    # The default limit of 64 MiB of /dev/shm is too small for NCCL, and each additional GPU needs more buffers.
    shared_memory = {"medium": "Memory", "sizeLimit": f"{4 + 2 * max(plan.count - 1, 0)}Gi"}
    volumes = [
        *_kept(resource, plan),
        {"name": SHARED_MEMORY_VOLUME, "emptyDir": shared_memory},
        {"name": TEMPORARY_VOLUME, "emptyDir": {"sizeLimit": TEMPORARY_SIZE}},
    ]
    for name, claim, _ in _claims_of_user(resource):
        if _volume_of_claim(volumes, claim) is None:
            volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    if token := resource.spec.model.token_secret_ref:
        items = [{"key": token.key, "path": TOKEN_FILE}]
        volumes.append({"name": TOKEN_VOLUME, "secret": {"secretName": token.name, "items": items}})
    return volumes


def render_mounts(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
    """Render the mounts of the engine container."""
    user = run_as_user(resource.spec.pod_template)  # other users cannot write to a directory of root
    weights_directory = WEIGHTS_SUBPATH if user is None else f"{WEIGHTS_SUBPATH}-u{user}"
    volumes = render_volumes(resource, plan)
    mounts: list[dict[str, Any]] = [
        {"name": claims.CACHE_VOLUME, "mountPath": CACHE_ROOT, "subPath": plan.cache_key},
        {"name": _kept(resource, plan)[-1]["name"], "mountPath": WEIGHTS_ROOT, "subPath": weights_directory},
        {"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"},
        {"name": TEMPORARY_VOLUME, "mountPath": "/tmp"},
        *({"name": _volume_of_claim(volumes, claim), "mountPath": path, "readOnly": True} for _, claim, path in _claims_of_user(resource)),
    ]
    if resource.spec.model.token_secret_ref:
        mounts.append({"name": TOKEN_VOLUME, "mountPath": TOKEN_ROOT, "readOnly": True})
    return mounts


def _kept(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
    """Return the volume of the caches, and the volume of the weights if it is a different one."""
    volumes = [_volume(claims.CACHE_VOLUME, resource.spec.cache, claims.cache_claim_name(resource))]
    weights = weights_storage(resource.spec, plan.weights)
    if weights is not None:
        volume = _volume(claims.WEIGHTS_VOLUME, weights, claims.weights_claim_name(resource))
        if "persistentVolumeClaim" not in volume or volume["persistentVolumeClaim"] != volumes[0].get("persistentVolumeClaim"):
            volumes.append(volume)
    return volumes


def _volume(name: str, spec: StorageSpec | None, claim: str) -> dict[str, Any]:
    match storage_of(spec):
        case "SharedClaim":
            return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
        case "ClaimPerReplica":
            return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": _claim_spec(spec)}}}
        case "HostPath":
            path = (spec and spec.host_path) or claims.DEFAULT_HOST_PATH
            return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        case "EmptyDir":
            return {"name": name, "emptyDir": {}}


def _volume_of_claim(volumes: list[dict[str, Any]], claim: str) -> str | None:
    """Return the name of the volume of a PVC. A Pod with two volumes of one PVC never starts (kubernetes#132921)."""
    return next((str(v["name"]) for v in volumes if (v.get("persistentVolumeClaim") or {}).get("claimName") == claim), None)


def render_claims(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
    """Render the PVCs that the operator creates: for SharedClaim storage without an existing PVC in the spec.

    With `onDelete: Retain` a PVC has no owner reference, and a later VLLMDeployment of the same name uses it again.
    """
    weights = weights_storage(resource.spec, plan.weights)
    desired: list[tuple[StorageSpec | None, str, Role]] = [(resource.spec.cache, claims.cache_claim_name(resource), Role.CACHE)]
    if weights is not None:
        desired.append((weights, claims.weights_claim_name(resource), Role.WEIGHTS))
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata_of(resource, name, component, owned=spec is not None and spec.on_delete == "Delete"),
            "spec": _claim_spec(spec),
        }
        for spec, name, component in desired
        if storage_of(spec) == "SharedClaim" and not (spec and spec.claim_name)
    ]


def _claim_spec(storage: StorageSpec | None) -> dict[str, Any]:
    volume = (storage and storage.volume) or ClaimVolume()
    spec: dict[str, Any] = {
        "accessModes": [volume.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": volume.size or DEFAULT_CACHE_SIZE}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return spec
