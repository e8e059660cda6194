"""The Jobs that clean, fetch and publish: their common form, their Pods, and the reports of the programs in them."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL
from vllm_operator.api.resource import Role, VLLMDeployment, job_prefix, labels_of, metadata_of
from vllm_operator.pods.tools import TOOLS_MOUNT, tool_command, with_tools

INHERITED = ("securityContext", "tolerations", "imagePullSecrets", "runtimeClassName")
"""Fields of the engine's Pod that a Pod of a Job has too."""
MAX_TEXT = 600


def render_job(
    resource: VLLMDeployment, occasion: str, role: Role, pod_spec: Mapping[str, Any], *, attempts: int, deadline: int, kept: int
) -> dict[str, Any]:
    """Render the Job of an occasion. `deadline` and `kept` are seconds: the maximum duration, and how long the finished Job is kept."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_of(resource, job_prefix(resource.metadata.name, role) + occasion, role),
        "spec": {
            "backoffLimit": attempts,
            "activeDeadlineSeconds": deadline,
            "ttlSecondsAfterFinished": kept,
            "template": {"metadata": {"labels": labels_of(resource, role)}, "spec": dict(pod_spec)},
        },
    }


def render_pod_spec(
    template: Mapping[str, Any], tools_image: str, fields: Mapping[str, Any], inherited: Sequence[str] = INHERITED
) -> dict[str, Any]:
    """Render the Pod spec of a Job with these fields. `template` is the Pod spec of the engine."""
    spec = {
        **{name: copy.deepcopy(template[name]) for name in inherited if name in template},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **fields,
    }
    return with_tools(spec, tools_image)


def render_program(
    engine: Mapping[str, Any],
    name: str,
    program: str,
    *,
    env: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
    requests: Mapping[str, str],
    **more: Any,
) -> dict[str, Any]:
    """Render a container that runs a program in the engine's image, as its user, with a read-only root file system."""
    return {
        "name": name,
        **{field: engine[field] for field in ("image", "imagePullPolicy") if field in engine},
        "command": tool_command(program),
        "env": list(env),
        **more,
        "resources": {"requests": dict(requests)},
        "securityContext": copy.deepcopy(dict(engine.get("securityContext") or {})) | {"readOnlyRootFilesystem": True},
        "volumeMounts": [*(copy.deepcopy(dict(mount)) for mount in mounts), dict(TOOLS_MOUNT)],
    }


def has_role(pod: Any, *roles: Role) -> bool:
    """Return whether a Pod has one of these roles."""
    return reading.text(pod, "metadata", "labels", COMPONENT_LABEL) in roles


def pods_with(role: Role, pods: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Return the Pods with a role."""
    return (pod for pod in pods if has_role(pod, role))


def read_report(container: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return how the last run of a container ended (None if it has not), and the untrusted JSON in its termination message, or nothing."""
    ended = reading.mapping(container, "state", "terminated") or reading.mapping(container, "lastState", "terminated")
    if not ended:
        return None
    try:
        found = json.loads(reading.text(ended, "message"))
    except (ValueError, RecursionError):
        found = {}
    return ended, found if isinstance(found, Mapping) else {}


def end_without_report(ended: Any) -> str:
    """Return why a container ended that reports nothing, from its status."""
    reason = reading.text(ended, "reason")
    return "it ended without a report" if reason == "Completed" else reason
