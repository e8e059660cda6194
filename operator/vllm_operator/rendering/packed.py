"""Caches as one packed file on the volume: the engine works on a copy, which an init container unpacks and another container packs again.

Both containers run in the engine's image and as its user, without its GPUs. They depend on the spec and the plan only.
"""

import json
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.address import UNPACK_CONTAINER, cache_address, is_read_only
from vllm_operator.caches.artifacts import readiness_request, run_program, travel_settings
from vllm_operator.catalog.paths import CACHE_ROOT, PACKED_ROOT
from vllm_operator.rendering.init_container import render_init_container

KEEP_CONTAINER = "pack-caches"
UNPACKED_VOLUME = "unpacked-caches"
VARIABLE = "PACKED_CACHES"
DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""The container that `kubectl logs` and `kubectl exec` take."""
_REQUESTS = {"cpu": "10m", "memory": "64Mi"}
_LIMITS = {"cpu": "1", "memory": "512Mi"}
"""For an engine with limits: a quota may require them of every container, and the quality of service of the Pod stays."""


def with_packing(template: dict[str, Any], resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Return the Pod template with the containers that unpack and pack, if the plan packs and the caches are on a writable PVC."""
    spec = template["spec"]
    engine = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    request = readiness_request(engine)
    address = cache_address(spec)
    is_ours = address is not None and address.key == plan.cache_key and not is_read_only(spec, CACHE_ROOT)
    if plan.cache_packing is None or not is_ours or not request:
        return template
    mount = next(mount for mount in engine["volumeMounts"] if mount["mountPath"] == CACHE_ROOT)
    copied = {"name": UNPACKED_VOLUME, "mountPath": CACHE_ROOT}
    mounts = [copied, {**mount, "mountPath": PACKED_ROOT}]
    env = [{"name": VARIABLE, "value": json.dumps(_settings(resource, plan, engine, request), sort_keys=True)}]
    unpack = render_init_container(engine, UNPACK_CONTAINER, run_program("unpack"), mounts, env, reports=True)
    keep = render_init_container(engine, KEEP_CONTAINER, run_program("keep"), mounts, env, reports=True)
    changed = {**engine, "volumeMounts": [copied if it is mount else it for it in engine["volumeMounts"]]}
    containers = [changed if it is engine else it for it in spec["containers"]]
    metadata = template["metadata"]
    annotations = {DEFAULT_CONTAINER_ANNOTATION: CONTAINER, **(metadata.get("annotations") or {})}
    return {
        **template,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {
            **spec,
            "initContainers": [*(spec.get("initContainers") or ()), unpack],
            "containers": [*containers, {**keep, "resources": _resources(engine)}],
            "volumes": [*spec["volumes"], {"name": UNPACKED_VOLUME, "emptyDir": {}}],
        },
    }


def _settings(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    assert plan.cache_packing is not None
    return {
        **travel_settings(resource, plan, engine),
        "root": CACHE_ROOT,
        "work": CACHE_ROOT,
        "store": PACKED_ROOT,
        "folders": plan.cache_packing.folders,
        "excluded": plan.cache_packing.excluded,
        "whole": plan.cache_packing.whole,
        "architecture": plan.architecture or "",
        "mounts": [],
        "scans": False,
        "ready": dict(request),
    }


def _resources(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Little, with limits where the engine has some, and guaranteed where those of the engine are."""
    limits, requests = (engine.get("resources", {}).get(kind) or {} for kind in ("limits", "requests"))
    limited = {name: value for name, value in _LIMITS.items() if name in limits}
    guaranteed = {name: value for name, value in limited.items() if requests.get(name, limits[name]) == limits[name]}
    return {"requests": _REQUESTS | guaranteed, **({"limits": limited} if limited else {})}
