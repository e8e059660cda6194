"""The Pod template of a replica.

The init container `mark-cache` marks the cache directory as the operator's. The cleaning Job deletes only marked directories
(`tools/clean_caches.py`). The marker is an empty file whose name contains the name of the directory, so a copy of the directory under
another name is not marked. Each start touches the marker. Its modification time is the last use of the directory, even on a file system
without access times. A start continues if the marker cannot be written.
"""

from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import NodeRequirement, Plan
from vllm_operator.api.resource import Role, VLLMDeployment, labels_of
from vllm_operator.caches.address import cache_address, is_read_only
from vllm_operator.catalog.paths import CACHE_ROOT
from vllm_operator.planning.engine.serving import grace_seconds
from vllm_operator.planning.placement.targets import DEFAULT_TOLERATIONS
from vllm_operator.rendering.adapters import with_adapters
from vllm_operator.rendering.artifact import with_artifact
from vllm_operator.rendering.container import CLAIM_REQUEST, render_container
from vllm_operator.rendering.init_container import render_init_container
from vllm_operator.rendering.pod_template import merge_pod_template
from vllm_operator.rendering.resource_claim import template_name, uses_dra
from vllm_operator.rendering.volumes import render_volumes

FILE_SYSTEM_GROUP = 2000
"""Group that owns the volumes, so that users other than root can write to them. It is the group of the user vllm in vLLM's images."""
TERMINATION_SECONDS = 60
"""Time in seconds to stop a Pod that does not drain."""
MARKER_CONTAINER = "mark-cache"
MARKER_PREFIX = ".vllm-operator-"
_MARK = 'touch -- "$1" || true'


def render_pod_template(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the Pod template with `spec.podTemplate` merged over it.

    It depends only on inputs that justify a rollout, because each change replaces the Pods.

    Raises:
        PodTemplateError: `spec.podTemplate` cannot be merged.
    """
    rendered = {"metadata": {"labels": labels_of(resource, Role.ENGINE)}, "spec": _pod_spec(resource, plan)}
    merged = with_marker(merge_pod_template(rendered, resource.spec.pod_template), plan)
    return with_adapters(with_artifact(merged, resource, plan), resource, plan.tools_image)


def _grace_seconds(plan: Plan) -> int:
    return grace_seconds(plan.drain_seconds, plan.endpoint_seconds) if plan.drain_seconds else TERMINATION_SECONDS


def _pod_spec(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [render_container(resource, plan)],
        "volumes": render_volumes(resource, plan),
        "tolerations": [dict(toleration) for toleration in DEFAULT_TOLERATIONS],
        # A Service named vllm would set VLLM_PORT=tcp://..., on which vLLM crashes.
        "enableServiceLinks": False,
        # The engine never calls the Kubernetes API.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _grace_seconds(plan),
        # The image sets the user (root in vLLM's images), or podTemplate does.
        "securityContext": {
            "fsGroup": FILE_SYSTEM_GROUP,
            # Changing the owner of a million cached files takes minutes, so it is not repeated at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if plan.node_requirements:
        spec["affinity"] = {"nodeAffinity": _node_affinity(plan.node_requirements)}
    if uses_dra(resource):
        spec["resourceClaims"] = [{"name": CLAIM_REQUEST, "resourceClaimTemplateName": template_name(resource, plan)}]
    if resource.spec.accelerator and resource.spec.accelerator.runtime_class_name:
        spec["runtimeClassName"] = resource.spec.accelerator.runtime_class_name
    return spec


def _node_affinity(requirements: list[NodeRequirement]) -> dict[str, Any]:
    term = {"matchExpressions": [requirement.to_json() for requirement in requirements]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def with_marker(template: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the Pod template, with the init container `mark-cache` if the cache directory is on a PVC."""
    spec = template["spec"]
    address = cache_address(spec)
    present = spec.get("initContainers") or []
    named = any(container.get("name") == MARKER_CONTAINER for container in present)
    if named or address is None or address.key != plan.cache_key or is_read_only(spec, CACHE_ROOT):
        return template
    engine = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    command = ["sh", "-c", _MARK, "mark", f"{CACHE_ROOT}/{MARKER_PREFIX}{plan.cache_key}"]
    mount = next(mount for mount in engine["volumeMounts"] if mount["mountPath"] == CACHE_ROOT)
    container = render_init_container(engine, MARKER_CONTAINER, command, [mount])
    return {**template, "spec": {**spec, "initContainers": [*present, container]}}
