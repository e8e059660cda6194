"""The primer: one Pod beside the replicas that fills an empty cache, and goes once it is Ready.

It is a Deployment of one Pod with the template of the replicas, so that an eviction, a lost node or a crash is
made good as for any other Pod. Its component label differs: neither the Service nor the Deployment of the replicas
takes the Pod for one of theirs.
"""

import copy
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, INSTANCE_LABEL
from vllm_operator.rendering.metadata import Component

HOST_LABEL = "kubernetes.io/hostname"


def primer_name(name: str) -> str:
    """Name of the primer of a VLLMDeployment."""
    return f"{name}-primer"


def render_primer(deployment: Mapping[str, Any], *, beside_replicas: bool) -> dict[str, Any]:
    """Render the primer that goes with a Deployment of replicas.

    Args:
        deployment: The rendered Deployment of the replicas.
        beside_replicas: Whether it must run on a node with a replica, because the claim can be mounted on one node only.
    """
    primer: dict[str, Any] = copy.deepcopy(dict(deployment))
    instance = primer["metadata"]["labels"][INSTANCE_LABEL]
    primer["metadata"]["name"] = primer_name(primer["metadata"]["name"])
    spec, template = primer["spec"], primer["spec"]["template"]
    for labels in (primer["metadata"]["labels"], spec["selector"]["matchLabels"], template["metadata"]["labels"]):
        labels[COMPONENT_LABEL] = Component.PRIMER.value
    spec |= {"replicas": 1, "strategy": {"type": "Recreate"}, "revisionHistoryLimit": 0}
    if beside_replicas:
        _stay_beside(template["spec"], instance)
    return primer


def _stay_beside(pod_spec: dict[str, Any], instance: str) -> None:
    term = {
        "topologyKey": HOST_LABEL,
        "labelSelector": {"matchLabels": {INSTANCE_LABEL: instance, COMPONENT_LABEL: Component.ENGINE.value}},
    }
    affinity = pod_spec.setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
