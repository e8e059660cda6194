"""Read everything that concerns one VLLMDeployment: the object, its children, what is said about them.

All of it, each time, whatever the event was that led here: an event only says that something happened. The client may
answer from memory what watches keep up to date (`vllm_operator.cluster.mirror`).
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import labels
from vllm_operator.cluster.client import (
    CLAIM,
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    POD,
    SERVICE,
    VLLM_DEPLOYMENT,
    ClusterClient,
    Kind,
    Manifest,
    NotFound,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A VLLMDeployment as the API server has it, and its children, found by label."""

    resource: Manifest
    children: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]

    def child(self, kind: Kind) -> Manifest | None:
        """The child of a kind; where there are several, the one that is named like the object comes first."""
        found = [child for child in self.children if child["kind"] == kind.kind]
        name = self.resource["metadata"]["name"]
        return next((child for child in found if child["metadata"]["name"] == name), found[0] if found else None)


async def observe(client: ClusterClient, namespace: str, name: str) -> Snapshot | None:
    """Read a VLLMDeployment and its children; None if it is gone or on its way out.

    Raises:
        ClusterError: The API server cannot be read.
    """
    try:
        resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
    except NotFound:
        return None
    if resource["metadata"].get("deletionTimestamp"):
        return None
    selector = {labels.MANAGED_BY_LABEL: labels.MANAGED_BY, labels.INSTANCE_LABEL: name}
    kinds = [DEPLOYMENT, SERVICE, CLAIM, POD]
    if _has_device_claims(resource):
        kinds.append(CLAIM_TEMPLATE)
    found = await asyncio.gather(*(client.find(kind, namespace, labels=selector) for kind in kinds))
    by_kind = dict(zip(kinds, found, strict=True))
    if CLAIM_TEMPLATE not in by_kind and any(_asks_for_devices(deployment) for deployment in by_kind[DEPLOYMENT]):
        # a rollout that was held back for longer than the plan of its claims
        by_kind[CLAIM_TEMPLATE] = await client.find(CLAIM_TEMPLATE, namespace, labels=selector)
    pods = tuple(by_kind.pop(POD))
    return Snapshot(resource, tuple(child for children in by_kind.values() for child in children), pods)


def _has_device_claims(resource: Manifest) -> bool:
    """Whether there may be templates of device claims: the spec wants them, or the plan before it did.

    A plan names what is asked for: an extended resource has a domain before a slash, a class of devices has none.
    """
    wanted = ((resource.get("spec") or {}).get("accelerator") or {}).get("allocation") == "DRA"
    planned = ((resource.get("status") or {}).get("plan") or {}).get("resource") or "/"
    return wanted or "/" not in planned


def _asks_for_devices(deployment: Manifest) -> bool:
    pod = (((deployment.get("spec") or {}).get("template") or {}).get("spec")) or {}
    return any(claim.get("resourceClaimTemplateName") for claim in pod.get("resourceClaims") or ())


async def read_claim(client: ClusterClient, snapshot: Snapshot, claim_name: str | None) -> Manifest | None:
    """The claim of the caches: among the children, or named in the spec; None if it does not exist."""
    if claim_name is None:
        return None
    for child in snapshot.children:
        if child["kind"] == CLAIM.kind and child["metadata"]["name"] == claim_name:
            return child
    try:
        return await client.get(CLAIM, claim_name, snapshot.resource["metadata"]["namespace"])
    except NotFound:
        return None


def is_of_earlier(child: Manifest, owner: Manifest) -> bool:
    """Whether a child belongs to an earlier object of the same name: it goes, and says nothing about this one."""
    owners = [ref["uid"] for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and owner["metadata"]["uid"] not in owners


def is_ready(pod: Manifest) -> bool:
    """Whether a Pod is Ready and not being deleted."""
    conditions: list[Any] = (pod.get("status") or {}).get("conditions") or []
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
