"""Which VLLMDeployment a Pod belongs to.

A Pod is known by the labels that its Deployment selects it by, and by its controller. A Pod without one of these labels is
released by its ReplicaSet, so every Pod of ours has them; `spec.podTemplate` cannot change them. All other labels, such as
`app.kubernetes.io/managed-by`, may be anything.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, INSTANCE_LABEL, NAME, NAME_LABEL
from vllm_operator.api.resource import Role, cleaning_prefix, primer_name
from vllm_operator.pods.reading import mapping, read_text, sequence

HASH_LABEL = "pod-template-hash"
"""Set by the Deployment controller, which names a ReplicaSet after the Deployment and this hash."""


def instance_of(pod: Mapping[str, Any]) -> str | None:
    """Name of the VLLMDeployment that a Pod belongs to, in the namespace of the Pod; None if it belongs to none. Takes any object."""
    labels = mapping(pod, "metadata", "labels")
    name = read_text(labels.get(INSTANCE_LABEL))
    if name is None or labels.get(NAME_LABEL) != NAME:
        return None
    controller = controller_of(pod)
    kind, owner = controller.get("kind"), controller.get("name")
    suffix = read_text(labels.get(HASH_LABEL))
    match labels.get(COMPONENT_LABEL):
        case Role.ENGINE:
            is_ours = kind == "ReplicaSet" and owner == f"{name}-{suffix}"
        case Role.PRIMER:
            is_ours = kind == "ReplicaSet" and owner == f"{primer_name(name)}-{suffix}"
        case Role.CLEANING:
            is_ours = kind == "Job" and isinstance(owner, str) and owner.startswith(cleaning_prefix(name))
        case _:
            is_ours = False
    return name if is_ours else None


def controller_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The owner that an object is controlled by; empty if there is none."""
    owners = (mapping(owner) for owner in sequence(mapping(manifest, "metadata").get("ownerReferences")))
    return next((owner for owner in owners if owner.get("controller") is True), {})
