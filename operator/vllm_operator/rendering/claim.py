"""The PersistentVolumeClaim of caches and weights."""

from typing import Any

from vllm_operator.api.operation import AccessMode, CacheSpec, CacheVolume, OnDelete
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.rules import DEFAULT_CACHE_SIZE
from vllm_operator.rendering.metadata import Component, metadata_of


def claim_name(resource: VLLMDeployment) -> str:
    """Name of the claim: the user's own if one is named, else `<name>-cache`."""
    named = resource.spec.cache.claim_name if resource.spec.cache else None
    return named or f"{resource.metadata.name}-cache"


def render_claim(resource: VLLMDeployment) -> dict[str, Any] | None:
    """Render the claim, or None if the user named one.

    With `onDelete: Retain` it has no owner: it outlives the VLLMDeployment, and the next one of that name
    finds its caches there.
    """
    cache = resource.spec.cache or CacheSpec()
    if cache.claim_name:
        return None
    volume = cache.volume or CacheVolume()
    spec: dict[str, Any] = {
        "accessModes": [(volume.access_mode or AccessMode.READ_WRITE_ONCE).value],
        "resources": {"requests": {"storage": volume.size or DEFAULT_CACHE_SIZE}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    owned = cache.on_delete is OnDelete.DELETE
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata_of(resource, claim_name(resource), Component.CACHE, owned=owned),
        "spec": spec,
    }
