"""Read a VLLMDeployment, its children and its Pods.

Each reconciliation reads all of it, regardless of the watch event. The client may read from memory (`object_cache`).

Children are found by label. Tools and webhooks change labels, so the Deployments and the Service are also found by name and owner.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.resource import primer_name
from vllm_operator.caches.context import is_primer
from vllm_operator.controller.ownership import is_controlled_by
from vllm_operator.kube.client import (
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
    children_of,
)
from vllm_operator.pods.owner import instance_of


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A VLLMDeployment, its children, Pods and ControllerRevisions, as read from the API server. The last may lack their data."""

    resource: Manifest
    children: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    revisions: tuple[Manifest, ...] = ()

    def child(self, kind: Kind) -> Manifest | None:
        """Return the object of a kind with the operator's labels and the name of the VLLMDeployment; None if there is none.

        It may have another owner: check with `is_controlled_by`.
        """
        name = self.resource["metadata"]["name"]
        return next((child for child in self.children if (child["kind"], child["metadata"]["name"]) == (kind.kind, name)), None)


async def observe(client: ClusterClient, namespace: str, name: str, *, has_claim_templates: bool = False) -> Snapshot | None:
    """Read a VLLMDeployment, its children and its Pods; None if it is gone or being deleted.

    `has_claim_templates` says whether it may have ResourceClaimTemplates, which are not watched.

    Raises:
        ClusterError: They cannot be read.
    """
    try:
        resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
    except NotFound:
        return None
    if resource["metadata"].get("deletionTimestamp"):
        return None
    kinds = [DEPLOYMENT, SERVICE, CLAIM, *((CLAIM_TEMPLATE,) if has_claim_templates else ())]
    # Sequentially: almost always from memory, where tasks would take longer than the reads.
    pods, revisions = await find_pods(client, namespace, name), await _find_revisions(client, namespace, name)
    found = [child for kind in kinds for child in await client.find(kind, namespace, labels=children_of(kind, name))]
    children = [child for child in found if not _is_of_another(child, name)]
    children += await _find_relabeled(client, resource, children, has_primer=any(is_primer(pod) for pod in pods))
    return Snapshot(resource, tuple(children), pods, tuple(item for item in revisions if is_controlled_by(item, resource)))


async def find_pods(client: ClusterClient, namespace: str, name: str) -> tuple[Manifest, ...]:
    """Return the Pods of a VLLMDeployment, including those of its primer and Jobs. Raises ClusterError."""
    found = await client.find(POD, namespace, labels=children_of(POD, name))
    return tuple(pod for pod in found if instance_of(pod) == name)


async def _find_revisions(client: ClusterClient, namespace: str, name: str) -> Sequence[Manifest]:
    """Return the ControllerRevisions with the labels of a VLLMDeployment; none without the permission to list them."""
    try:
        return await client.find(REVISION, namespace, labels=children_of(REVISION, name))
    except Forbidden:
        return ()


async def _find_relabeled(client: ClusterClient, resource: Manifest, found: Sequence[Manifest], *, has_primer: bool) -> list[Manifest]:
    """Return the Deployments and the Service that have lost the operator's labels."""
    if not reading.mapping(resource, "status", "pinnedPlan"):
        return []  # nothing was applied yet
    metadata = resource["metadata"]
    wanted = [(DEPLOYMENT, metadata["name"]), (SERVICE, metadata["name"])]
    if has_primer:
        wanted.append((DEPLOYMENT, primer_name(metadata["name"])))
    known = {(child["kind"], child["metadata"]["name"]) for child in found}
    missing = [(kind, name) for kind, name in wanted if (kind.kind, name) not in known]
    if not missing:
        return []
    found_by_name = await asyncio.gather(*(_get(client, kind, name, metadata["namespace"]) for kind, name in missing))
    return [child for child in found_by_name if child is not None and is_controlled_by(child, resource)]


async def _get(client: ClusterClient, kind: Kind, name: str, namespace: str) -> Manifest | None:
    try:
        return await client.get(kind, name, namespace)
    except NotFound:
        return None


def is_claim_template_in_use(snapshot: Snapshot, child: Manifest) -> bool:
    """Return whether a child is a ResourceClaimTemplate that a Pod may still use for its claim.

    If a Pod of an old ReplicaSet is evicted during a rollout, its replacement has the template of the old ReplicaSet.
    """
    if child["kind"] != CLAIM_TEMPLATE.kind:
        return False
    deployments = [it for it in snapshot.children if it["kind"] == DEPLOYMENT.kind]
    return any(child["metadata"]["name"] in _claim_templates_of(pod) for pod in snapshot.pods) or not all(map(_is_complete, deployments))


def _claim_templates_of(pod: Manifest) -> set[str]:
    if reading.text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return set()
    return {reading.text(claim, "resourceClaimTemplateName") for claim in reading.objects(pod, "spec", "resourceClaims")}


def _is_complete(deployment: Manifest) -> bool:
    """Return whether a rollout is complete, like `kubectl rollout status`: no old ReplicaSet has replicas."""
    wanted = reading.integer(deployment, "spec", "replicas")
    fields = ("updatedReplicas", "replicas", "availableReplicas")
    seen = reading.integer(deployment, "status", "observedGeneration") == reading.integer(deployment, "metadata", "generation")
    return seen and all((reading.integer(deployment, "status", field) or 0) == wanted for field in fields)


async def read_claims(client: ClusterClient, snapshot: Snapshot, *claim_names: str | None) -> list[Manifest | None]:
    """Return the PersistentVolumeClaims with these names (children, or named in the spec); None for each missing claim or name.

    They are read concurrently, because the claims of a new object are not cached.
    """
    children = {child["metadata"]["name"]: child for child in snapshot.children if child["kind"] == CLAIM.kind}
    absent = list({name for name in claim_names if name is not None and name not in children})
    namespace = snapshot.resource["metadata"]["namespace"]
    read = await asyncio.gather(*(_get(client, CLAIM, name, namespace) for name in absent)) if absent else ()
    found = children | dict(zip(absent, read, strict=True))
    return [found[name] if name is not None else None for name in claim_names]


def _is_of_another(child: Manifest, name: str) -> bool:
    """Return whether the owner of a child is a VLLMDeployment of another name, regardless of labels."""
    owners = [ref.get("name") for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and name not in owners


def is_ready(pod: Manifest) -> bool:
    """Return whether a Pod is Ready and not being deleted."""
    conditions: list[Any] = (pod.get("status") or {}).get("conditions") or []
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
