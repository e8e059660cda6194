"""The init container that marks the directory of the caches as the operator's.

The Job that makes room deletes only what is marked (`caches/scripts/clean_caches.py`). The marker is an empty file whose name
holds the name of the directory: a copy under another name is not marked. Each start touches it, which tells when the directory was
last used, also on a file system that does not record when files are read. That it cannot be written stops no start.
"""

import copy
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.status import Plan
from vllm_operator.caches.address import cache_address, is_read_only
from vllm_operator.catalog.paths import CACHE_ROOT

MARKER_CONTAINER = "mark-cache"
MARKER_PREFIX = ".vllm-operator-"
_INHERITED = ("image", "imagePullPolicy", "securityContext")
_NODE_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


def with_marker(template: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return a Pod template with the init container, where the caches of the plan are on a claim and the plan marks them."""
    spec = template["spec"]
    address = cache_address(spec)
    present = spec.get("initContainers") or []
    named = any(container.get("name") == MARKER_CONTAINER for container in present)
    if plan.cache_marker is None or named or address is None or address.key != plan.cache_key or is_read_only(spec, CACHE_ROOT):
        return template
    engine = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    return {**template, "spec": {**spec, "initContainers": [*present, _container(engine, plan.cache_key)]}}


def _container(engine: Mapping[str, Any], key: str) -> dict[str, Any]:
    """As the engine, so that it runs where the engine runs: same user, same image, no GPU."""
    mount = next(mount for mount in engine["volumeMounts"] if mount["mountPath"] == CACHE_ROOT)
    resources = {
        kind: kept
        for kind in ("limits", "requests")
        if (kept := {name: value for name, value in (engine.get("resources", {}).get(kind) or {}).items() if name in _NODE_RESOURCES})
    }
    return {
        "name": MARKER_CONTAINER,
        **{name: copy.deepcopy(engine[name]) for name in _INHERITED if name in engine},
        "command": ["sh", "-c", 'touch -- "$1" || true', "mark", f"{CACHE_ROOT}/{MARKER_PREFIX}{key}"],
        **({"resources": resources} if resources else {}),
        "volumeMounts": [copy.deepcopy(mount)],
    }
