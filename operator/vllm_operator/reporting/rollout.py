"""The Deployment: how many Pods there are, whether they run the present spec, whether it can create them."""

from vllm_operator.reporting import reading
from vllm_operator.reporting.observation import Manifest
from vllm_operator.reporting.pods import Phase, PodView
from vllm_operator.reporting.scene import Scene


def replicas(scene: Scene) -> int:
    """How many Pods exist."""
    counted = reading.integer(scene.observation.deployment, "status", "replicas")
    living = sum(view.phase not in (Phase.TERMINATING, Phase.FAILED) for view in scene.pods)
    return max(0, counted) if counted is not None else living


def updated_replicas(scene: Scene) -> int | None:
    """How many Pods run the present spec; None if the Deployment does not say."""
    return reading.integer(scene.observation.deployment, "status", "updatedReplicas")


def is_rolled_out(scene: Scene) -> bool:
    """Whether all Pods run the present spec, as far as the Deployment says."""
    deployment = scene.observation.deployment
    observed = reading.integer(deployment, "status", "observedGeneration")
    if observed is None:
        return True
    updated = updated_replicas(scene) or 0
    current = observed >= (reading.integer(deployment, "metadata", "generation") or 0)
    return current and updated >= scene.observation.wanted and replicas(scene) <= updated


def paused(scene: Scene) -> str:
    """The name of the Deployment, if somebody has paused it; empty if nobody has."""
    deployment = scene.observation.deployment
    return reading.text(deployment, "metadata", "name") if reading.mapping(deployment, "spec").get("paused") is True else ""


def is_current(scene: Scene, view: PodView) -> bool:
    """Whether a Pod runs the present Pod template, as far as the Deployment says.

    The Deployment counts such Pods; they are those of the ReplicaSet that made the newest one.
    """
    deployment = scene.observation.deployment
    observed = reading.integer(deployment, "status", "observedGeneration")
    if observed is None:
        return True
    if observed < (reading.integer(deployment, "metadata", "generation") or 0) or not updated_replicas(scene):
        return False
    pods = {reading.text(pod, "metadata", "name"): pod for pod in scene.observation.pods}
    newest = max(pods.values(), key=lambda pod: reading.text(pod, "metadata", "creationTimestamp"), default=None)
    return _template(pods.get(view.name)) == _template(newest)


def _template(pod: Manifest | None) -> str:
    return reading.text(pod, "metadata", "labels", "pod-template-hash")


def creation_failure(scene: Scene) -> str | None:
    """Why the Deployment cannot create Pods (a quota, an admission policy); None if it can."""
    failure = reading.named(scene.observation.deployment, "ReplicaFailure", "status", "conditions")
    return (reading.text(failure, "message") or "no reason given") if failure.get("status") == "True" else None


def selector(scene: Scene) -> str | None:
    """The label selector of the Pods, for the scale subresource."""
    chosen = reading.mapping(scene.observation.deployment, "spec", "selector", "matchLabels")
    pairs = sorted((key, value) for key, value in chosen.items() if isinstance(key, str) and isinstance(value, str))
    return ",".join(f"{key}={value}" for key, value in pairs)[:1024] or scene.observation.previous.selector
