"""Names, labels and owners of what belongs to a VLLMDeployment."""

from enum import StrEnum
from typing import Any

from vllm_operator.api.labels import API_VERSION, COMPONENT_LABEL, INSTANCE_LABEL, KIND, MANAGED_BY, MANAGED_BY_LABEL, NAME, NAME_LABEL
from vllm_operator.api.resource import VLLMDeployment


class Role(StrEnum):
    """What an object is for; the value of the component label."""

    ENGINE = "engine"
    CACHE = "cache"
    WEIGHTS = "weights"
    PRIMER = "primer"
    CLEANING = "cleaning"


def selector_of(resource: VLLMDeployment) -> dict[str, str]:
    """Labels by which the Deployment and the Service find the Pods. Must never change: a selector is immutable."""
    return {NAME_LABEL: NAME, INSTANCE_LABEL: resource.metadata.name, COMPONENT_LABEL: Role.ENGINE.value}


def labels_of(resource: VLLMDeployment, component: Role) -> dict[str, str]:
    """Labels of an object that belongs to a VLLMDeployment."""
    return {**selector_of(resource), COMPONENT_LABEL: component.value, MANAGED_BY_LABEL: MANAGED_BY}


def metadata_of(resource: VLLMDeployment, name: str, component: Role = Role.ENGINE, *, owned: bool = True) -> dict[str, Any]:
    """Metadata of an object that belongs to a VLLMDeployment.

    Args:
        resource: The VLLMDeployment.
        name: Name of the object.
        component: What it is for.
        owned: Whether it goes when the VLLMDeployment goes.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": resource.metadata.namespace, "labels": labels_of(resource, component)}
    # A manifest that is only shown (a VLLMDeployment from a file) has no uid, and so no owner to point to.
    if owned and resource.metadata.uid:
        metadata["ownerReferences"] = [_owner_reference(resource)]
    return metadata


def _owner_reference(resource: VLLMDeployment) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def primer_name(name: str) -> str:
    """Name of the primer of a VLLMDeployment."""
    return f"{name}-primer"


def cleaning_prefix(name: str) -> str:
    """How the names of the Jobs of a VLLMDeployment begin."""
    return f"{name[:200]}-clean-"
