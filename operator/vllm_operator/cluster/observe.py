"""Read everything that concerns one VLLMDeployment: the object, its children, what is said about them.

All of it, each time, whatever the event was that led here: an event only says that something happened. The client may
answer from memory what watches keep up to date (`vllm_operator.cluster.mirror`).

Children are found by label. Tools and webhooks change labels of live objects, so the Deployments and the Service are also
looked for by name, and known by their owner.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import labels
from vllm_operator.api.resource import primer_name
from vllm_operator.caches.context import is_primer
from vllm_operator.cluster.client import (
    CLAIM,
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    POD,
    REVISION,
    SERVICE,
    VLLM_DEPLOYMENT,
    ClusterClient,
    Forbidden,
    Kind,
    Manifest,
    NotFound,
)
from vllm_operator.cluster.selectors import children_of
from vllm_operator.pods import reading
from vllm_operator.pods.owner import instance_of


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A VLLMDeployment as the API server has it, its children, its Pods, and its ControllerRevisions, which may lack their data."""

    resource: Manifest
    children: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    revisions: tuple[Manifest, ...] = ()

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
    kinds = [DEPLOYMENT, SERVICE, CLAIM, *((CLAIM_TEMPLATE,) if _has_device_claims(resource) else ())]
    pods, revisions, found = await asyncio.gather(
        find_pods(client, namespace, name),
        _find_revisions(client, namespace, name),
        asyncio.gather(*(client.find(kind, namespace, labels=children_of(kind, name)) for kind in kinds)),
    )
    children = [child for listed in found for child in listed if not _is_of_another(child, name)]
    children += await _relabelled(client, resource, children, has_primer=any(is_primer(pod) for pod in pods))
    if CLAIM_TEMPLATE not in kinds and any(_asks_for_devices(child) for child in children if child["kind"] == DEPLOYMENT.kind):
        # a rollout that was held back for longer than the plan of its claims
        children += await client.find(CLAIM_TEMPLATE, namespace, labels=children_of(CLAIM_TEMPLATE, name))
    return Snapshot(resource, tuple(children), pods, tuple(item for item in revisions if is_controlled_by(item, resource)))


async def find_pods(client: ClusterClient, namespace: str, name: str) -> tuple[Manifest, ...]:
    """The Pods of a VLLMDeployment, those of its primer and of its Jobs included. Raises ClusterError."""
    found = await client.find(POD, namespace, labels=children_of(POD, name))
    return tuple(pod for pod in found if instance_of(pod) == name)


async def _find_revisions(client: ClusterClient, namespace: str, name: str) -> Sequence[Manifest]:
    """The ControllerRevisions with the labels of a VLLMDeployment; none where they may not be listed."""
    try:
        return await client.find(REVISION, namespace, labels=children_of(REVISION, name))
    except Forbidden:
        return ()


async def _relabelled(client: ClusterClient, resource: Manifest, found: Sequence[Manifest], *, has_primer: bool) -> list[Manifest]:
    """The Deployments and the Service that exist and do not have our labels any more."""
    if not _plan_of(resource):
        return []  # nothing was applied yet
    metadata = resource["metadata"]
    wanted = [(DEPLOYMENT, metadata["name"]), (SERVICE, metadata["name"])]
    if has_primer:
        wanted.append((DEPLOYMENT, primer_name(metadata["name"])))
    known = {(child["kind"], child["metadata"]["name"]) for child in found}
    missing = [(kind, name) for kind, name in wanted if (kind.kind, name) not in known]
    looked = await asyncio.gather(*(_get(client, kind, name, metadata["namespace"]) for kind, name in missing))
    return [child for child in looked if child is not None and is_controlled_by(child, resource)]


async def _get(client: ClusterClient, kind: Kind, name: str, namespace: str) -> Manifest | None:
    try:
        return await client.get(kind, name, namespace)
    except NotFound:
        return None


def _has_device_claims(resource: Manifest) -> bool:
    """Whether there may be templates of device claims: the spec wants them, or the plan before it did.

    A plan names what is asked for: an extended resource has a domain before a slash, a class of devices has none.
    """
    wanted = ((resource.get("spec") or {}).get("accelerator") or {}).get("allocation") == "DRA"
    planned = _plan_of(resource).get("resource") or "/"
    return wanted or "/" not in str(planned)


def _plan_of(resource: Manifest) -> Mapping[str, Any]:
    """The plan in the status: its summary, or what an earlier version of the operator wrote; empty if there is none."""
    return reading.mapping(resource, "status", "pinnedPlan") or reading.mapping(resource, "status", "plan")


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
    return await _get(client, CLAIM, claim_name, snapshot.resource["metadata"]["namespace"])


def is_controlled_by(child: Manifest, owner: Manifest) -> bool:
    """Whether a child names an object, by its uid, as the owner that controls it."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(ref.get("controller") is True and ref.get("uid") == owner["metadata"]["uid"] for ref in owners)


def _is_of_another(child: Manifest, name: str) -> bool:
    """Whether a child belongs to a VLLMDeployment of another name, whatever its labels say."""
    owners = [ref.get("name") for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and name not in owners


def is_of_earlier(child: Manifest, owner: Manifest) -> bool:
    """Whether a child belongs to an earlier object of the same name: it goes, and says nothing about this one."""
    owners = [ref["uid"] for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and owner["metadata"]["uid"] not in owners


def is_ready(pod: Manifest) -> bool:
    """Whether a Pod is Ready and not being deleted."""
    conditions: list[Any] = (pod.get("status") or {}).get("conditions") or []
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
