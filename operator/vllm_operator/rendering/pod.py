"""The Pod template of a replica."""

from typing import Any

from vllm_operator.api.metadata import Role, labels_of
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import NodeRequirement, Plan
from vllm_operator.rendering.container import CLAIM_REQUEST, render_container
from vllm_operator.rendering.marker import with_marker
from vllm_operator.rendering.pod_template import merge_pod_template
from vllm_operator.rendering.resource_claim import template_name, uses_claims
from vllm_operator.rendering.volumes import render_volumes

FILE_SYSTEM_GROUP = 2000
"""Group that owns the volumes, so that a user other than root can write there; the ID of vllm in vLLM's own images."""
GPU_TAINT = "nvidia.com/gpu"
TERMINATION_SECONDS = 60
"""Time to finish requests that are being answered when a Pod is stopped."""


def render_pod_template(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the Pod template, the user's own merged over it.

    Nothing is in here that may change without a reason to replace the Pods.

    Raises:
        PodTemplateError: The user's template cannot be merged.
    """
    rendered = {"metadata": {"labels": labels_of(resource, Role.ENGINE)}, "spec": _pod_spec(resource, plan)}
    return with_marker(merge_pod_template(rendered, resource.spec.pod_template), plan)


def _pod_spec(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [render_container(resource, plan)],
        "volumes": render_volumes(resource, plan),
        # Clouds taint their GPU nodes with this; the value differs from one to the next.
        "tolerations": [{"key": GPU_TAINT, "operator": "Exists"}],
        # A Service called vllm would put VLLM_PORT=tcp://... into the environment, and vLLM crashes on it.
        "enableServiceLinks": False,
        # The engine never calls the Kubernetes API.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": TERMINATION_SECONDS,
        # The user is the image's own: root in vLLM's images, another one through podTemplate.
        "securityContext": {
            "fsGroup": FILE_SYSTEM_GROUP,
            # Changing the owner of a million cached files at each start takes minutes.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if plan.node_requirements:
        spec["affinity"] = {"nodeAffinity": _node_affinity(plan.node_requirements)}
    if uses_claims(resource):
        spec["resourceClaims"] = [{"name": CLAIM_REQUEST, "resourceClaimTemplateName": template_name(resource, plan)}]
    if resource.spec.accelerator and resource.spec.accelerator.runtime_class_name:
        spec["runtimeClassName"] = resource.spec.accelerator.runtime_class_name
    return spec


def _node_affinity(requirements: list[NodeRequirement]) -> dict[str, Any]:
    term = {"matchExpressions": [requirement.to_json() for requirement in requirements]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
