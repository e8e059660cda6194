"""Ownership of objects.

Labels and owner references alone are no proof: `kubectl get -o yaml | kubectl apply` copies them with an object, under another name.

* An object that has the name of a desired child is the operator's if this VLLMDeployment controls it, or if `metadata.managedFields`, which
  the API server keeps, says that the operator has applied it.
* An object that is not desired is deleted only if the operator has applied it, and this VLLMDeployment controls it. The exception is an
  orphaned primer, which has no owner.
"""

from collections.abc import Iterable

from vllm_operator.api import labels, reading
from vllm_operator.api.reading import controller_of
from vllm_operator.api.resource import is_workload, primer_name
from vllm_operator.caches import claims
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, Kind, Manifest
from vllm_operator.kube.managed_fields import find_applied


def is_controlled_by(child: Manifest, owner: Manifest) -> bool:
    """Return whether an object, by its uid, is the controlling owner of a child."""
    return bool(controller_of(child).get("uid") == owner["metadata"]["uid"])


def find_child(children: Iterable[Manifest], kind: Kind, name: str) -> Manifest | None:
    """Return the object with this kind and name, whoever owns it; None if there is none."""
    return next((child for child in children if (child["kind"], child["metadata"]["name"]) == (kind.kind, name)), None)


def find_workload(children: Iterable[Manifest], name: str) -> Manifest | None:
    """Return the object with this name that runs the replicas, whoever owns it; None if there is none.

    While one replaces the other, because the number of nodes has changed, it is the one with the newer plan: the one to be applied last.
    """
    found = [child for child in children if is_workload(child) and child["metadata"]["name"] == name]
    return max(found, key=lambda child: reading.text(child, "metadata", "creationTimestamp") or "9", default=None)


def is_of_another(child: Manifest, name: str) -> bool:
    """Return whether the owner of a child is a VLLMDeployment of another name, regardless of labels."""
    owners = [ref.get("name") for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and name not in owners


def is_of_earlier(child: Manifest, owner: Manifest) -> bool:
    """Return whether the owner of a child is an earlier VLLMDeployment of the same name. Such a child is being deleted."""
    owners = [ref["uid"] for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and owner["metadata"]["uid"] not in owners


def is_created_by_operator(child: Manifest, owner: Manifest) -> bool:
    """Return whether the operator created an object with the name of a desired child. The operator adopts an orphaned object again."""
    if child["kind"] == CLAIM.kind:
        return claims.is_claim_of_operator(child)
    return is_controlled_by(child, owner) or find_applied(child) is not None


def may_delete(child: Manifest, owner: Manifest) -> bool:
    """Return whether the operator may delete a child that is not desired. It may not delete a copy that kept the owner reference.

    Nothing else would delete the orphaned primer of an earlier VLLMDeployment.
    """
    named = (child["kind"], child["metadata"]["name"]) == (DEPLOYMENT.kind, primer_name(owner["metadata"]["name"]))
    is_orphan = named and not child["metadata"].get("ownerReferences")
    return find_applied(child) is not None and (is_controlled_by(child, owner) or is_orphan)
