"""The Deployment: how many Pods exist, whether they run the current spec, and whether it can create them."""

from vllm_operator.api import reading
from vllm_operator.api.reading import Manifest
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.status.observation.observation import ObservedState


def replicas(observed: ObservedState) -> int:
    """Return the number of Pods, without terminating and failed ones. The Deployment's count follows a moment later."""
    return sum(view.phase not in (Phase.TERMINATING, Phase.FAILED) for view in observed.pods)


def updated_replicas(observed: ObservedState) -> int | None:
    """Return how many Pods run the current spec; None if the Deployment does not report it."""
    return reading.integer(observed.observation.deployment, "status", "updatedReplicas")


def is_rolled_out(observed: ObservedState) -> bool:
    """Return whether all Pods run the current spec, according to the Deployment."""
    deployment = observed.observation.deployment
    observed_generation = reading.integer(deployment, "status", "observedGeneration")
    if observed_generation is None:
        return True
    updated, counted = updated_replicas(observed) or 0, reading.integer(deployment, "status", "replicas") or 0
    current = observed_generation >= (reading.integer(deployment, "metadata", "generation") or 0)
    return current and updated >= observed.observation.wanted and counted <= updated


def paused(observed: ObservedState) -> str:
    """Return the name of the Deployment if it is paused, else an empty text."""
    deployment = observed.observation.deployment
    return reading.text(deployment, "metadata", "name") if reading.mapping(deployment, "spec").get("paused") is True else ""


def is_current(observed: ObservedState, view: PodView) -> bool:
    """Return whether a Pod has the current Pod template, according to the Deployment.

    The Deployment counts such Pods. They are the Pods of the ReplicaSet that created the newest Pod.
    """
    deployment = observed.observation.deployment
    observed_generation = reading.integer(deployment, "status", "observedGeneration")
    if observed_generation is None:
        return True
    if observed_generation < (reading.integer(deployment, "metadata", "generation") or 0) or not updated_replicas(observed):
        return False
    pods = {reading.text(pod, "metadata", "name"): pod for pod in observed.observation.pods}
    newest = max(pods.values(), key=lambda pod: reading.text(pod, "metadata", "creationTimestamp"), default=None)
    return _template(pods.get(view.name)) == _template(newest)


def _template(pod: Manifest | None) -> str:
    return reading.text(pod, "metadata", "labels", "pod-template-hash")


def creation_failure(observed: ObservedState) -> str | None:
    """Return why the Deployment cannot create Pods, for example because of a quota or an admission policy; None if it can."""
    failure = reading.named(observed.observation.deployment, "ReplicaFailure", "status", "conditions")
    return (reading.text(failure, "message") or "no reason given") if failure.get("status") == "True" else None


def selector(observed: ObservedState) -> str | None:
    """Return the label selector of the Pods, for the scale subresource."""
    chosen = reading.mapping(observed.observation.deployment, "spec", "selector", "matchLabels")
    pairs = sorted((key, value) for key, value in chosen.items() if isinstance(key, str) and isinstance(value, str))
    return ",".join(f"{key}={value}" for key, value in pairs)[:1024] or observed.observation.previous.selector
