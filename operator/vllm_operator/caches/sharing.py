"""PersistentVolumeClaims that one VLLMDeployment created and others use.

A VLLMDeployment can use the PVC of another one: through `claimName`, a volume of `podTemplate`, a `pvc://` URI, or a preset with one of
these. Before its Pods use the PVC, it records itself there (`shared.vllm-operator.dev/UID`) and removes the owner reference of the other
one. So the way it names the PVC and the order of creation and deletion do not matter. The VLLMDeployment that created the PVC sets no owner
while the record of a user is valid, whatever `onDelete` says. Both report it.

The record of a VLLMDeployment that is deleted, or no longer names the PVC, is removed by the VLLMDeployment that created the PVC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import GROUP, KIND, SHARED_ANNOTATION_PREFIX
from vllm_operator.api.operation import OnDelete
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.address import claims_of, template_spec

GRACE = timedelta(minutes=10)
"""How long a record is valid before a Deployment of its VLLMDeployment mounts the PVC. A VLLMDeployment may name the PVC only through a
preset.
"""
MAX_USERS = 50
"""Maximum number of records to read from one PVC."""
_SUFFIXES = {"-cache": "cache", "-weights": "weights"}
"""Name suffixes of PVCs that the operator creates, and the spec field of each."""
_SCHEME = "pvc://"
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """A VLLMDeployment with a record on a PVC, and the time of the record; None if it cannot be read."""

    uid: str
    name: str
    since: datetime | None

    @property
    def annotation(self) -> str:
        """Name of the annotation with its record."""
        return SHARED_ANNOTATION_PREFIX + self.uid


def claims_of_others(pod_spec: Any, name: str) -> dict[str, str]:
    """Return the PVCs of a Pod that, by their names, another VLLMDeployment than `name` may have created, with that VLLMDeployment."""
    owners = {claim: claim.removesuffix(suffix) for claim in claims_of(pod_spec) for suffix in _SUFFIXES if claim.endswith(suffix)}
    return {claim: owner for claim, owner in sorted(owners.items()) if owner not in ("", name)}


def usage_by(resource: VLLMDeployment, claim: Mapping[str, Any], now: datetime) -> dict[str, str]:
    """Return the record that a VLLMDeployment uses the PVC of another one; empty if it exists."""
    name = SHARED_ANNOTATION_PREFIX + resource.metadata.uid
    if reading.text(claim, "metadata", "annotations", name).partition("/")[0] == resource.metadata.name:
        return {}
    return {name: f"{resource.metadata.name}/{reading.stamp(now)}"}


def find_other_owners(claim: Mapping[str, Any], uid: str) -> tuple[int, ...]:
    """Return the positions of the owner references of a PVC to VLLMDeployments with another uid."""
    owners = enumerate(reading.objects(claim, "metadata", "ownerReferences"))
    return tuple(position for position, owner in owners if _is_vllm_deployment(owner) and owner.get("uid") != uid)


def read_users(claim: Mapping[str, Any], uid: str) -> tuple[ClaimUser, ...]:
    """Return the VLLMDeployments with another uid that have recorded themselves on a PVC."""
    users = []
    for annotation, value in sorted(reading.mapping(claim, "metadata", "annotations").items()):
        user = str(annotation).removeprefix(SHARED_ANNOTATION_PREFIX)
        if user not in (annotation, uid):
            name, _, since = str(value).partition("/")
            users.append(ClaimUser(user, name, reading.moment(since)))
    return tuple(users[:MAX_USERS])


def is_recent(user: ClaimUser, now: datetime) -> bool:
    """Return whether a record is so recent that the Deployment of its VLLMDeployment may not exist yet."""
    return user.since is not None and now - user.since < GRACE


def mentions_claim(spec: Any, claim: str, depth: int = 0) -> bool:
    """Return whether any field of a spec names a PVC."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(spec, Mapping):
        return spec.get("claimName") == claim or any(mentions_claim(value, claim, depth + 1) for value in spec.values())
    if isinstance(spec, list):
        return any(mentions_claim(value, claim, depth + 1) for value in spec)
    return isinstance(spec, str) and spec.startswith(_SCHEME) and spec.removeprefix(_SCHEME).partition("/")[0] == claim


def mounts_claim(deployment: Any, claim: str) -> bool:
    """Return whether the Pods of a Deployment mount a PVC."""
    return claim in claims_of(template_spec(deployment))


def may_ask_for_deletion(resource: Mapping[str, Any], claim: str) -> bool:
    """Return whether a VLLMDeployment, or possibly its preset, asks to delete a PVC together with it."""
    field = next((field for suffix, field in _SUFFIXES.items() if claim.endswith(suffix)), "")
    asked = reading.text(resource, "spec", field, "onDelete")
    return asked == OnDelete.DELETE.value if asked else bool(reading.mapping(resource, "spec", "presetRef"))


def describe_users(claim: str, users: tuple[str, ...]) -> str:
    """Return a note that a PVC is not deleted with the VLLMDeployment that created it."""
    names = f"VLLMDeployment {users[0]} uses" if len(users) == 1 else f"VLLMDeployments {', '.join(users)} use"
    return (
        f"{names} PersistentVolumeClaim {claim} as well. While this is so, it is not deleted with this object, and onDelete: Delete "
        f"has no effect."
    )


def describe_lender(claim: str, lender: str) -> str:
    """Return a note that the PVC of another VLLMDeployment is not deleted with that VLLMDeployment."""
    return (
        f"PersistentVolumeClaim {claim} belongs to VLLMDeployment {lender}. While this object uses it, it is not deleted with {lender}, "
        f"and onDelete: Delete has no effect there."
    )


def describe_kept_owner(claim: str, lender: str = "this object") -> str:
    """Return a note that a PVC that several VLLMDeployments use is deleted with the VLLMDeployment that created it."""
    command = f"""kubectl patch pvc {claim} --type json -p '[{{"op": "remove", "path": "/metadata/ownerReferences"}}]'"""
    return (
        f"Several VLLMDeployments use PersistentVolumeClaim {claim}, but it is deleted with {lender}: the operator may not remove its "
        f"owner, because the API server demands the permission to delete it. Remove the owner yourself: {command}"
    )


def _is_vllm_deployment(owner: Mapping[str, Any]) -> bool:
    return owner.get("kind") == KIND and reading.text(owner, "apiVersion").partition("/")[0] == GROUP
