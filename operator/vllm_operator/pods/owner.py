"""The VLLMDeployment that a Pod belongs to, and label selectors.

A Pod is identified by the labels in the selector of its Deployment, and by its controller. A ReplicaSet releases a Pod that loses one of
these labels, so every Pod of the operator has them, and `spec.podTemplate` cannot change them. All other labels, such as
`app.kubernetes.io/managed-by`, may have any value. For a LeaderWorkerSet, a StatefulSet of its name controls the leaders, and for each
group a StatefulSet with the name of the leader controls the followers.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, GROUP_INDEX_LABEL, INSTANCE_LABEL, NAME, NAME_LABEL, WORKER_INDEX_LABEL
from vllm_operator.api.reading import controller_of, mapping, objects, read_text, sequence, text
from vllm_operator.api.resource import JOB_PURPOSES, Role, job_prefix, primer_name

HASH_LABEL = "pod-template-hash"
"""Label of the Deployment controller. The name of a ReplicaSet consists of the name of the Deployment and this hash."""


def instance_of(pod: Mapping[str, Any]) -> str | None:
    """Return the name of the VLLMDeployment that a Pod belongs to; None if it belongs to none. Accepts any object."""
    labels = mapping(pod, "metadata", "labels")
    name = read_text(labels.get(INSTANCE_LABEL))
    if name is None or labels.get(NAME_LABEL) != NAME:
        return None
    controller = controller_of(pod)
    kind, owner = controller.get("kind"), controller.get("name")
    suffix = read_text(labels.get(HASH_LABEL))
    match labels.get(COMPONENT_LABEL):
        case Role.ENGINE:
            is_owned = (kind, owner) in (("ReplicaSet", f"{name}-{suffix}"), ("StatefulSet", name))
        case Role.FOLLOWER:
            is_owned = kind == "StatefulSet" and owner == f"{name}-{read_text(labels.get(GROUP_INDEX_LABEL))}"
        case Role.PRIMER:
            is_owned = kind == "ReplicaSet" and owner == f"{primer_name(name)}-{suffix}"
        case role if role in JOB_PURPOSES:
            is_owned = kind == "Job" and isinstance(owner, str) and owner.startswith(job_prefix(name, Role(role)))
        case _:
            is_owned = False
    return name if is_owned else None


def place_of(pod: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the number of the group of a Pod and its number within the group; None if it belongs to no group."""
    group, worker = (text(pod, "metadata", "labels", label) for label in (GROUP_INDEX_LABEL, WORKER_INDEX_LABEL))
    numbers = group.isascii() and group.isdigit() and worker.isascii() and worker.isdigit() and len(group + worker) < 10
    return (int(group), int(worker)) if numbers else None


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects an object with these labels. None and an invalid one select nothing, an empty one all."""
    if selector is None:
        return False
    if any(labels.get(name) != value for name, value in mapping(selector, "matchLabels").items()):
        return False
    return all(meets(labels, requirement) is True for requirement in objects(selector, "matchExpressions"))


def meets(labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool | None:
    """Return whether labels meet a requirement of a selector for objects or nodes; None for an operator that only nodes have."""
    name, values = text(requirement, "key"), sequence(requirement.get("values"))
    match requirement.get("operator"):
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case _:
            return None
