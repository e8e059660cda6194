"""Pods that keep a PersistentVolumeClaim which is being deleted, and which of them the operator deletes.

Kubernetes keeps such a PVC while a Pod with a node refers to it, even a finished Pod (controller `pvc-protection`). A Job keeps its
finished Pod until its TTL has passed, and an evicted Pod of a Deployment stays until it is deleted. Only the operator knows that neither is
needed, so it deletes both. A Job that was orphaned when its VLLMDeployment was deleted (`--cascade=orphan`) and its Pods belong to the
user.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL
from vllm_operator.api.reading import controller_of
from vllm_operator.api.resource import Role
from vllm_operator.caches.address import claims_of
from vllm_operator.pods.owner import instance_of

_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """A Pod that keeps a PVC.

    Attributes:
        pod: Name of the Pod.
        instance: The VLLMDeployment that it belongs to; None if it belongs to none, or to an orphaned Job.
        is_removable: Whether the operator deletes it: it belongs to a VLLMDeployment and has finished, or it cleans the PVC.
    """

    pod: str
    instance: str | None
    is_removable: bool


def is_terminating(claim: Mapping[str, Any] | None) -> bool:
    """Return whether a PVC is being deleted."""
    return bool(reading.text(claim, "metadata", "deletionTimestamp"))


def find_holders(claim: str, pods: Iterable[Mapping[str, Any]], orphaned: Collection[str] = ()) -> tuple[ClaimHolder, ...]:
    """Return the Pods that keep a PVC, sorted by name. `pods` are all Pods of its namespace, `orphaned` uids of Jobs without an owner."""
    holders = (_holder(pod, orphaned) for pod in _users(claim, pods))
    return tuple(sorted(holders, key=lambda holder: holder.pod))


def find_jobs(claim: str, pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the Jobs whose Pods keep a PVC and look like Jobs of a VLLMDeployment."""
    owners = (controller_of(pod) for pod in _users(claim, pods) if instance_of(pod) is not None)
    return frozenset(reading.text(owner, "name") for owner in owners if owner.get("kind") == "Job")


def _users(claim: str, pods: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (pod for pod in pods if claim in claims_of(pod.get("spec")) and reading.text(pod, "spec", "nodeName"))


def _holder(pod: Mapping[str, Any], orphaned: Collection[str]) -> ClaimHolder:
    is_orphaned = reading.text(controller_of(pod), "uid") in orphaned
    instance = None if is_orphaned else instance_of(pod)
    return ClaimHolder(reading.text(pod, "metadata", "name"), instance, not is_orphaned and _is_removable(pod))


@dataclass(frozen=True, slots=True)
class Removal:
    """The Job or Pod to delete so that `claims` are released."""

    is_job: bool
    name: str
    uid: str
    claims: frozenset[str]


def find_removals(pods: Iterable[Mapping[str, Any]]) -> Iterator[Removal]:
    """Return the objects to delete to release PVCs. `pods` are the Pods of one VLLMDeployment."""
    for pod in pods:
        claims = claims_of(pod.get("spec"))
        if not claims or not _is_removable(pod):
            continue
        owner = controller_of(pod)
        is_job = owner.get("kind") == "Job"
        target: Any = owner if is_job else pod.get("metadata")
        yield Removal(is_job, reading.text(target, "name"), reading.text(target, "uid"), claims)


def _is_removable(pod: Mapping[str, Any]) -> bool:
    if instance_of(pod) is None:
        return False
    is_job = reading.text(pod, "metadata", "labels", COMPONENT_LABEL) in (Role.CLEANING.value, Role.PUBLISHING.value, Role.FETCHING.value)
    return is_job or reading.text(pod, "status", "phase") in _OVER
