"""The PersistentVolumeClaims that all replicas share: of the caches, of the weights, of the model."""

from typing import Any

from vllm_operator.api.metadata import Role, metadata_of
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.rules import DEFAULT_CACHE_SIZE
from vllm_operator.api.status import Plan
from vllm_operator.api.storage import AccessMode, ClaimVolume, OnDelete, Storage, StorageSpec
from vllm_operator.caches.volumes import cache_claim_name, storage_of, weights_claim_name, weights_storage


def render_claims(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
    """Render the claims that are the operator's: not those that the user named, and none where no claim is shared.

    With `onDelete: Retain` a claim has no owner: it outlives the VLLMDeployment, and the next one of that name
    finds there what it holds.
    """
    weights = weights_storage(resource.spec, plan.weights)
    wanted: list[tuple[StorageSpec | None, str, Role]] = [(resource.spec.cache, cache_claim_name(resource), Role.CACHE)]
    if weights is not None:
        wanted.append((weights, weights_claim_name(resource), Role.WEIGHTS))
    return [
        _claim(resource, spec or StorageSpec(), name, component)
        for spec, name, component in wanted
        if storage_of(spec) is Storage.SHARED_CLAIM and not (spec and spec.claim_name)
    ]


def claim_spec(volume: ClaimVolume | None) -> dict[str, Any]:
    """The spec of a claim as it is wished."""
    volume = volume or ClaimVolume()
    spec: dict[str, Any] = {
        "accessModes": [(volume.access_mode or AccessMode.READ_WRITE_ONCE).value],
        "resources": {"requests": {"storage": volume.size or DEFAULT_CACHE_SIZE}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return spec


def _claim(resource: VLLMDeployment, desired: StorageSpec, name: str, component: Role) -> dict[str, Any]:
    owned = desired.on_delete is OnDelete.DELETE
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata_of(resource, name, component, owned=owned),
        "spec": claim_spec(desired.volume),
    }
