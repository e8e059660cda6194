"""Pods that keep a PersistentVolumeClaim which is being deleted, and which of them the operator removes.

Kubernetes keeps such a claim for as long as a Pod with a node mentions it, even a Pod that has finished (controller
`pvc-protection`). A Job keeps its finished Pod until its TTL is over, and an evicted Pod of a Deployment stays until somebody
deletes it. The operator removes both: it is the only one who knows that nobody needs them any more.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL
from vllm_operator.api.resource import Role
from vllm_operator.caches.address import claims_of
from vllm_operator.pods import reading
from vllm_operator.pods.owner import controller_of, instance_of

_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """A Pod that keeps a claim.

    Attributes:
        pod: Its name.
        instance: The VLLMDeployment that it belongs to; None if it belongs to none.
        is_removable: Whether it belongs to a VLLMDeployment whose operator removes it: it has finished, or cleans the claim.
    """

    pod: str
    instance: str | None
    is_removable: bool


def is_terminating(claim: Mapping[str, Any] | None) -> bool:
    """Whether a claim is being deleted."""
    return bool(reading.text(claim, "metadata", "deletionTimestamp"))


def find_holders(claim: str, pods: Iterable[Mapping[str, Any]]) -> tuple[ClaimHolder, ...]:
    """The Pods that keep a claim, by name. `pods` are all Pods of its namespace."""
    holders = (
        ClaimHolder(reading.text(pod, "metadata", "name"), instance_of(pod), _is_removable(pod))
        for pod in pods
        if claim in claims_of(pod.get("spec")) and reading.text(pod, "spec", "nodeName")
    )
    return tuple(sorted(holders, key=lambda holder: holder.pod))


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to be deleted so that a Pod keeps `claims` no longer: its Job, or the Pod itself."""

    is_job: bool
    name: str
    uid: str
    claims: frozenset[str]


def find_removals(pods: Iterable[Mapping[str, Any]]) -> Iterator[Removal]:
    """What can be deleted to set claims free. `pods` are those of one VLLMDeployment."""
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
    is_cleaning = reading.text(pod, "metadata", "labels", COMPONENT_LABEL) == Role.CLEANING.value
    return is_cleaning or reading.text(pod, "status", "phase") in _OVER
