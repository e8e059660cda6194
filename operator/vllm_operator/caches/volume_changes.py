"""Which claims the operator may write to, and what of a changed spec such a claim can follow.

The operator writes to a claim that it has created, and to no other. Labels and annotations do not tell them apart: a user
can copy both, and earlier versions labelled claims that they had merely found. `metadata.managedFields` does: the API
server keeps it, and the access modes of a claim belong to whoever created it, because nobody can change them later.

Of a claim only its size can change, only upwards, and only once it is bound; the API server refuses everything else,
and then nothing else of the spec would be applied. So a wish that cannot come true is not sent, but said.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.labels import FIELD_MANAGER
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.volumes import weights_claim_name
from vllm_operator.pods import reading
from vllm_operator.pods.quantities import read_bytes

_CLAIM = "PersistentVolumeClaim"
_FIXED = (("accessModes", "access mode"), ("storageClassName", "storage class"))


def is_created_by_operator(claim: Mapping[str, Any]) -> bool:
    """Whether the operator has created a claim: it applied the access modes, and nobody else has set them.

    This holds for claims of earlier versions, and for those that `kubectl delete --cascade=orphan` has left.
    """
    is_ours = False
    for entry in reading.objects(claim, "metadata", "managedFields"):
        if "f:accessModes" not in reading.mapping(entry, "fieldsV1", "f:spec"):
            continue
        if (entry.get("manager"), entry.get("operation")) != (FIELD_MANAGER, "Apply"):
            return False
        is_ours = True
    return is_ours


def foreign_claims(manifests: Sequence[Mapping[str, Any]], context: CacheContext) -> tuple[str, ...]:
    """Names of the claims to apply that exist already and that the operator did not create."""
    names = [str(manifest["metadata"]["name"]) for manifest in manifests if manifest["kind"] == _CLAIM]
    return tuple(name for name in names if (live := context.claims.get(name)) is not None and not is_created_by_operator(live))


def fit_claims(manifests: Sequence[dict[str, Any]], context: CacheContext) -> tuple[list[dict[str, Any]], str | None]:
    """Return the manifests with the claims as they can be applied, and what they cannot follow; None if they follow."""
    result, notes = [], []
    for manifest in manifests:
        live = context.claims.get(manifest["metadata"]["name"]) if manifest["kind"] == _CLAIM else None
        if live is not None:
            spec, note = _fit(manifest["spec"], live, is_asked=_gives_size(context.resource, manifest))
            manifest = {**manifest, "spec": spec}
            notes.append(note)
        result.append(manifest)
    return result, " ".join(note for note in notes if note) or None


def _gives_size(resource: VLLMDeployment, claim: Mapping[str, Any]) -> bool:
    """Whether the size is the user's wish. A default or an estimate that is less than what there is, is no news."""
    spec = resource.spec.weights if claim["metadata"]["name"] == weights_claim_name(resource) else resource.spec.cache
    return spec is not None and spec.volume is not None and spec.volume.size is not None


def _fit(desired: Mapping[str, Any], live: Mapping[str, Any], *, is_asked: bool) -> tuple[dict[str, Any], str | None]:
    name, present = reading.text(live, "metadata", "name"), reading.mapping(live, "spec")
    spec = dict(desired)
    changed = [(field, word) for field, word in _FIXED if field in desired and desired[field] != present.get(field)]
    for field, _ in changed:
        spec[field] = present.get(field)
    spec = {field: value for field, value in spec.items() if value is not None}
    size, is_size = desired["resources"]["requests"]["storage"], reading.text(present, "resources", "requests", "storage")
    difference = (read_bytes(size) or 0) - (read_bytes(is_size) or 0) if is_size else 0
    bound = reading.text(live, "status", "phase") == "Bound"
    if difference < 0 or (difference and not bound):
        spec["resources"] = {"requests": {"storage": is_size}}
    if changed:
        words = " and ".join(word for _, word in changed)
        return spec, (
            f"Kubernetes cannot change the {words} of PersistentVolumeClaim {name}, so it stays as it is. To replace it, set spec.replicas "
            f"to 0 and delete the PVC, which deletes its data."
        )
    if difference < 0:
        return spec, None if not is_asked else f"PersistentVolumeClaim {name} has {is_size} and cannot shrink. It keeps its size."
    if difference and not bound:
        return spec, f"PersistentVolumeClaim {name} is resized to {size} when it is bound."
    return spec, None
