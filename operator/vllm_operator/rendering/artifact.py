"""The init container `fetch-caches`, which fills an empty cache directory from a registry before the engine starts.

It works with every kind of volume at the path of the caches. It runs in the engine's image and as its user, and is the only container that
mounts the Secret for the registry. It depends only on the spec and the plan, so a publication replaces no Pod.
"""

import json
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.operation import ArtifactPolicy, ArtifactSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.address import FETCH_CONTAINER, FETCH_VARIABLE, is_read_only, volume_at
from vllm_operator.caches.artifacts import portability_settings, proxies_of
from vllm_operator.catalog.paths import ARTIFACT_SECRET_ROOT, CACHE_ROOT
from vllm_operator.pods.tools import TOOLS_MOUNT, tool_command, with_tools
from vllm_operator.rendering.init_container import render_init_container

SECRET_VOLUME = "artifact-secret"
DEADLINE_SECONDS = 110
"""Maximum seconds of a fetch at a start. After that the start is cold, or the container restarts if the artifact is required."""


def with_artifact(template: dict[str, Any], resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Return the Pod template, with the init container if the spec names an artifact and the caches are on a writable volume."""
    artifact = resource.spec.cache.artifact if resource.spec.cache else None
    spec = template["spec"]
    present = spec.get("initContainers") or []
    named = any(container.get("name") == FETCH_CONTAINER for container in present)
    if artifact is None or plan.cache_artifact is None or named or not volume_at(spec, CACHE_ROOT) or is_read_only(spec, CACHE_ROOT):
        return template
    engine = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    volumes = list(spec.get("volumes") or ())
    if artifact.pull_secret_ref:
        volumes.append(render_secret_volume(artifact.pull_secret_ref.name))
    container = _container(resource, plan, engine, artifact)
    return {**template, "spec": with_tools({**spec, "initContainers": [*present, container], "volumes": volumes}, plan.tools_image)}


def render_secret_volume(name: str) -> dict[str, Any]:
    """Render the volume of a Secret for the registry. A Pod starts without the Secret, and the program reports that it is missing."""
    return {"name": SECRET_VOLUME, "secret": {"secretName": name, "optional": True}}


def _container(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any], artifact: ArtifactSpec) -> dict[str, Any]:
    assert plan.cache_artifact is not None
    settings: dict[str, Any] = {
        **portability_settings(resource, plan, engine),
        "root": CACHE_ROOT,
        "folders": plan.cache_artifact.folders,
        "deadline": DEADLINE_SECONDS,
        **({"reference": artifact.reference} if artifact.reference else {}),
        **({"required": True} if artifact.policy is ArtifactPolicy.REQUIRED else {}),
        **({"rejected": plan.cache_artifact.rejected} if plan.cache_artifact.rejected else {}),
        **({"secret": ARTIFACT_SECRET_ROOT} if artifact.pull_secret_ref else {}),
    }
    mounts = [mount for mount in engine["volumeMounts"] if mount["mountPath"] == CACHE_ROOT]
    if artifact.pull_secret_ref:
        mounts.append({"name": SECRET_VOLUME, "mountPath": ARTIFACT_SECRET_ROOT, "readOnly": True})
    mounts.append(TOOLS_MOUNT)
    env = [{"name": FETCH_VARIABLE, "value": json.dumps(settings, sort_keys=True)}, *proxies_of(engine)]
    return render_init_container(engine, FETCH_CONTAINER, tool_command("fetch-caches"), mounts, env, reports=True)
