"""The init container `fetch-adapters`, which downloads LoRA adapters from the model hub before the engine starts.

It runs in the engine's image and as its user, with the volume of the weights. It has no GPU, and is the only container that mounts the
Secrets with tokens of adapters. It depends only on the spec and on the operator's image in the plan.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.operation import Prefetch
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AdapterSpec
from vllm_operator.caches.artifacts import hub_variables, proxies_of
from vllm_operator.caches.prefetching import OFFLINE_VARIABLE
from vllm_operator.catalog.paths import ADAPTER_TOKEN_ROOT, TOKEN_FILE, TOKEN_ROOT, WEIGHTS_ROOT
from vllm_operator.planning.engine.adapters import adapter_path
from vllm_operator.pods.tools import TOOLS_MOUNT, tool_command, with_tools
from vllm_operator.rendering.init_container import render_init_container

FETCH_CONTAINER = "fetch-adapters"
VARIABLE = "ADAPTERS"


def with_adapters(template: dict[str, Any], resource: VLLMDeployment, tools_image: str) -> dict[str, Any]:
    """Return the Pod template, with the init container if an adapter is on the hub."""
    wanted = sorted((each for each in resource.spec.adapters or () if each.uri.startswith("hf://")), key=lambda each: each.name)
    spec = template["spec"]
    present = spec.get("initContainers") or []
    if not wanted or any(container.get("name") == FETCH_CONTAINER for container in present):
        return template
    engine = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    volumes = [*(spec.get("volumes") or ()), *(_token_volume(each) for each in wanted if each.token_secret_ref)]
    container = _container(engine, wanted, _hub_variables(engine, resource))
    return {**template, "spec": with_tools({**spec, "initContainers": [*present, container], "volumes": volumes}, tools_image)}


def _container(engine: Mapping[str, Any], adapters: Sequence[AdapterSpec], hub: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [each for each in adapters if each.token_secret_ref]
    mounts = [mount for mount in engine["volumeMounts"] if mount["mountPath"] in (WEIGHTS_ROOT, TOKEN_ROOT, "/tmp")]
    mounts += [{"name": _token_volume(each)["name"], "mountPath": f"{ADAPTER_TOKEN_ROOT}/{each.name}", "readOnly": True} for each in own]
    mounts.append(TOOLS_MOUNT)
    settings = json.dumps([_settings(each) for each in adapters], sort_keys=True)
    env = [{"name": VARIABLE, "value": settings}, *hub, *proxies_of(engine)]
    return render_init_container(engine, FETCH_CONTAINER, tool_command("fetch-adapters"), mounts, env, reports=True)


def _hub_variables(engine: Mapping[str, Any], resource: VLLMDeployment) -> list[dict[str, Any]]:
    """Return the variables for the client of the hub. With prefetched weights engines are offline, but adapters are still downloaded."""
    weights = resource.spec.weights
    is_offline = weights is not None and weights.prefetch is Prefetch.BEFORE_START
    return [variable for variable in hub_variables(engine) if not is_offline or variable["name"] != OFFLINE_VARIABLE]


def _settings(adapter: AdapterSpec) -> dict[str, str]:
    return {
        "name": adapter.name,
        "uri": adapter.uri,
        "repository": adapter.uri.removeprefix("hf://"),
        "path": adapter_path(adapter),
        **({"revision": adapter.revision} if adapter.revision else {}),
        **({"token": f"{ADAPTER_TOKEN_ROOT}/{adapter.name}/{TOKEN_FILE}"} if adapter.token_secret_ref else {}),
    }


def _token_volume(adapter: AdapterSpec) -> dict[str, Any]:
    """Return the volume of the token, named after the path, because adapter names may be too long or have capitals."""
    assert adapter.token_secret_ref is not None
    reference = adapter.token_secret_ref
    items = [{"key": reference.key, "path": TOKEN_FILE}]
    name = f"adapter-token-{adapter_path(adapter).rpartition('-')[2]}"
    return {"name": name, "secret": {"secretName": reference.name, "items": items}}
