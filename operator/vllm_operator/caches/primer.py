"""The primer: one Pod beside the replicas that fills an empty cache, and goes once it is Ready.

It is a Deployment of one Pod with the template of the replicas, so that an eviction, a lost node or a crash is
made good as for any other Pod. Its component label differs: neither the Service nor the Deployment of the replicas
takes the Pod for one of theirs.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, INSTANCE_LABEL
from vllm_operator.api.resource import Role, primer_name
from vllm_operator.caches.activity import PrimingStep
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.priming import PrimingDecision
from vllm_operator.pods import reading

HOST_LABEL = "kubernetes.io/hostname"


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
        labels[COMPONENT_LABEL] = Role.PRIMER.value
    spec |= {"replicas": 1, "strategy": {"type": "Recreate"}, "revisionHistoryLimit": 0}
    if beside_replicas:
        _stay_beside(template["spec"], instance)
    return primer


def _stay_beside(pod_spec: dict[str, Any], instance: str) -> None:
    term = {
        "topologyKey": HOST_LABEL,
        "labelSelector": {"matchLabels": {INSTANCE_LABEL: instance, COMPONENT_LABEL: Role.ENGINE.value}},
    }
    affinity = pod_spec.setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)


_DEPLOYMENT = "Deployment"


def apply_priming(manifests: Sequence[dict[str, Any]], priming: PrimingDecision, context: CacheContext) -> list[dict[str, Any]]:
    """Return the manifests as they are to be applied now.

    A Deployment that is held is left out; it must not be deleted for that.
    """
    result: list[dict[str, Any]] = []
    for manifest in manifests:
        if manifest["kind"] != _DEPLOYMENT:
            result.append(manifest)
            continue
        if priming.activity.step is PrimingStep.PRIMER:
            beside = context.is_bound_to_node and priming.activity.held
            result.append(render_primer(manifest, beside_replicas=beside))
        if not priming.activity.held:
            result.append(_with_replicas(manifest, priming.replicas))
    return result


def held_replicas(priming: PrimingDecision, context: CacheContext) -> int | None:
    """How many replicas a Deployment that is held is to have; None if none is held.

    What serves with caches of its own is scaled as wished: load does not wait for a rollout. What would start with the
    very directory that another one fills is only scaled down.
    """
    wanted = reading.integer(context.desired, "spec", "replicas")
    if not priming.activity.held or wanted is None:
        return None
    present = reading.integer(context.deployment, "spec", "replicas") or 0
    return min(present, wanted) if context.present_address == context.address else wanted


def _with_replicas(deployment: dict[str, Any], replicas: int | None) -> dict[str, Any]:
    if replicas is None:
        return deployment
    return {**deployment, "spec": {**deployment["spec"], "replicas": replicas}}
