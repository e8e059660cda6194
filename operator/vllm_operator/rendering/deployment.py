"""The Deployment of the replicas."""

from typing import Any

from vllm_operator.api.metadata import metadata_of, selector_of
from vllm_operator.api.operation import RolloutSpec, RolloutStrategy
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import Plan
from vllm_operator.planning.engine.deadline import deadline_seconds
from vllm_operator.rendering.pod import render_pod_template

IMAGE_PULL_SECONDS = 3600
"""What a node may take to be found and to pull an image of 10 to 25 GB, before a start begins."""
REVISIONS = 3


def render_deployment(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the Deployment, named as the VLLMDeployment.

    Raises:
        PodTemplateError: The user's Pod template cannot be merged.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata_of(resource, resource.metadata.name),
        "spec": {
            "replicas": resource.spec.replicas,
            "selector": {"matchLabels": selector_of(resource)},
            "strategy": _strategy(resource.spec),
            "revisionHistoryLimit": REVISIONS,
            # Longer than a start may take: until then the startup probe decides, and says why.
            "progressDeadlineSeconds": deadline_seconds(resource.spec) + IMAGE_PULL_SECONDS,
            "template": render_pod_template(resource, plan),
        },
    }


def _strategy(spec: VLLMDeploymentSpec) -> dict[str, Any]:
    """Replace Pods without a spare GPU, unless the user has one: a surge Pod would wait for the GPU that the old one holds."""
    rollout = spec.rollout or RolloutSpec()
    strategy = rollout.strategy or RolloutStrategy.AUTO
    is_tuned = rollout.max_surge is not None or rollout.max_unavailable is not None
    if strategy is RolloutStrategy.AUTO:
        strategy = RolloutStrategy.ROLLING_UPDATE if spec.replicas > 1 or is_tuned else RolloutStrategy.RECREATE
    if strategy is RolloutStrategy.RECREATE:
        return {"type": strategy.value}
    surge = rollout.max_surge or 0
    unavailable = rollout.max_unavailable if rollout.max_unavailable is not None else int(surge == 0)
    return {"type": strategy.value, "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
