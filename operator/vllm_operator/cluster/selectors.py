"""The labels by which objects of the operator are listed and watched.

Pods are selected by a label that their Deployment selects them by too: `spec.podTemplate` and tools that label Pods cannot take
it away. It is common, so whose a Pod is follows from `vllm_operator.pods.owner`.
"""

from vllm_operator.api import labels
from vllm_operator.cluster.client import POD, VLLM_DEPLOYMENT, Kind


def selector_of(kind: Kind) -> dict[str, str]:
    """The labels of all objects of a kind that may be the operator's; empty for all of the kind."""
    if kind == VLLM_DEPLOYMENT:
        return {}
    return {labels.NAME_LABEL: labels.NAME} if kind == POD else {labels.MANAGED_BY_LABEL: labels.MANAGED_BY}


def children_of(kind: Kind, name: str) -> dict[str, str]:
    """The labels of the children of this kind that one VLLMDeployment has."""
    return selector_of(kind) | {labels.INSTANCE_LABEL: name}
