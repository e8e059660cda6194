"""Whose an object is.

Labels and owners prove nothing by themselves: `kubectl get -o yaml | kubectl apply` copies them with an object, under another name.

* An object that has the name of a desired child is the operator's if this VLLMDeployment controls it, or if `metadata.managedFields`, which
  the API server keeps, says that the operator has applied it.
* An object that is not desired is deleted only if the operator has applied it, and this VLLMDeployment controls it. The exception is an
  orphaned primer, which has no owner.
"""

from vllm_operator.api import labels
from vllm_operator.api.resource import primer_name
from vllm_operator.caches import volumes
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, Manifest
from vllm_operator.cluster.managed_fields import find_applied


def is_controlled_by(child: Manifest, owner: Manifest) -> bool:
    """Whether an object, by its uid, is the controlling owner of a child."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(ref.get("controller") is True and ref.get("uid") == owner["metadata"]["uid"] for ref in owners)


def is_of_earlier(child: Manifest, owner: Manifest) -> bool:
    """Whether the owner of a child is an earlier VLLMDeployment of the same name. Such a child is being deleted."""
    owners = [ref["uid"] for ref in child["metadata"].get("ownerReferences") or () if ref.get("kind") == labels.KIND]
    return bool(owners) and owner["metadata"]["uid"] not in owners


def is_created_by_operator(child: Manifest, owner: Manifest) -> bool:
    """Whether the operator created an object that has the name of a desired child. One that was orphaned is taken over again."""
    if child["kind"] == CLAIM.kind:
        return volumes.is_created_by_operator(child)
    return is_controlled_by(child, owner) or find_applied(child) is not None


def may_delete(child: Manifest, owner: Manifest) -> bool:
    """Whether a child that is not desired is the operator's to delete. A copy of a child that kept its owner is not."""
    return find_applied(child) is not None and (is_controlled_by(child, owner) or _is_orphaned_primer(child, owner))


def _is_orphaned_primer(child: Manifest, owner: Manifest) -> bool:
    """Whether a Deployment is the primer of an earlier VLLMDeployment that was deleted with `--cascade=orphan`. It would run for ever."""
    metadata = child["metadata"]
    named = (child["kind"], metadata["name"]) == (DEPLOYMENT.kind, primer_name(owner["metadata"]["name"]))
    return named and not metadata.get("ownerReferences")
