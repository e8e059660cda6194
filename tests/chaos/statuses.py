"""What a status must be: complete, in documented words, about the present spec, and true of the real Pods."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from support.cluster import Manifest, is_ready
from vllm_operator.api import labels
from vllm_operator.api.conditions import ALWAYS, AVAILABLE, CRASHED, ORDER, READY, WHILE_TRUE, Reason, without_link
from vllm_operator.catalog.startup import load_startup
from vllm_operator.status.knowledge import load_knowledge

LONGEST_MESSAGE = 500
_PARTS = (Reason.NOT_ISOLATED, Reason.NOT_EXPOSED, Reason.NOT_AUTOSCALED, Reason.NOT_PROTECTED, Reason.NOT_PUBLISHED)


@cache
def documented_reasons() -> frozenset[str]:
    """Reasons that the reference names: those of the operator, and names of known crashes."""
    own = {value for name, value in vars(Reason).items() if name.isupper()}
    ends = load_knowledge().terminations
    return frozenset(own | {signature.id for signature in load_startup().signatures} | {rule.id for rule in (*ends.containers, *ends.pods)})


def unexplained(resource: Manifest) -> list[str]:
    """What is wrong with a status at any moment, whatever it is about."""
    name = resource["metadata"]["name"]
    return [f"status of {name}: {text}" for text in _unexplained(resource)]


def _unexplained(resource: Manifest) -> Iterator[str]:
    status, generation = resource.get("status") or {}, resource["metadata"]["generation"]
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or []
    if not conditions:
        return
    types = [condition["type"] for condition in conditions]
    if types != [type for type in ORDER if type in types] or not set(ALWAYS) <= set(types):
        yield f"conditions are {types}"
    if (status.get("observedGeneration") or 0) > generation:
        yield f"it is about generation {status['observedGeneration']}, the newest is {generation}"
    for condition in conditions:
        reason, message = condition["reason"], condition["message"]
        what = f"{condition['type']}={condition['status']} {reason}"
        if reason == Reason.OPERATOR_FAILED:
            yield f"{what}: {message}"
        if reason not in documented_reasons():
            yield f"{what}: no such reason is documented"
        if not 0 < len(without_link(message)) <= LONGEST_MESSAGE or not message.isprintable():
            yield f"{what}: the message is {message!r}"


def untrue(resource: Manifest, pods: Sequence[Manifest]) -> list[str]:
    """What is wrong with a status once everything has settled. `pods` are those of the VLLMDeployment that serve requests."""
    name = resource["metadata"]["name"]
    return [f"status of {name}: {text}" for text in _untrue(resource, pods)]


def _untrue(resource: Manifest, pods: Sequence[Manifest]) -> Iterator[str]:
    status, generation = resource.get("status") or {}, resource["metadata"]["generation"]
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    if not conditions:
        yield "there is none"
        return

    def is_condition(type: str, status: str) -> bool:
        return type in conditions and conditions[type]["status"] == status

    if status.get("observedGeneration") != generation:
        yield f"it is about generation {status.get('observedGeneration')}, the newest is {generation}"
    serving = sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    if (status.get("readyReplicas") or 0) != serving:
        yield f"it tells of {status.get('readyReplicas')} ready replicas, {serving} Pods are Ready"
    wanted = resource["spec"].get("replicas", 1)
    may_be_ready, lacks_a_part = serving == wanted, conditions[READY]["reason"] in _PARTS
    if (conditions[READY]["status"] == "True" or lacks_a_part) != may_be_ready:
        yield f"Ready is {conditions[READY]['status']} with {serving} of {wanted} Pods Ready"
    if is_condition(AVAILABLE, "True") != (serving > 0):
        yield f"Available is {conditions[AVAILABLE]['status']} with {serving} Pods Ready"
    if serving == wanted and is_condition(CRASHED, "True"):
        yield f"a crash is told although all Pods are Ready: {conditions[CRASHED]['message']}"
    for type in WHILE_TRUE:
        if type in conditions and not is_condition(type, "True"):
            yield f"{type} is {conditions[type]['status']}: it is set only while it is True"


def serves_for(resource: Manifest, pods: Sequence[Manifest]) -> list[Manifest]:
    """The Pods that belong to a VLLMDeployment and are there to serve: those of its Deployment's ReplicaSets."""
    name = resource["metadata"]["name"]
    selector = {labels.NAME_LABEL: labels.NAME, labels.INSTANCE_LABEL: name, labels.COMPONENT_LABEL: "engine"}
    return [pod for pod in pods if selector.items() <= pod["metadata"].get("labels", {}).items() and pod["metadata"].get("ownerReferences")]
