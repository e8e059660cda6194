"""The Pod template of a replica.

The engine's container and volumes are rendered and merged with the user's `spec.podTemplate`. Features then add init containers, in this
order. They run in the engine's image and as its user, as merged, but without its GPUs. A container of the user with the same name replaces
a feature's.

In the merge, the user's values take precedence. Objects are merged field by field. Lists of containers, volumes, variables and so on are
merged entry by entry, with the keys that Kubernetes uses. Tolerations are appended. All other lists are replaced. A null removes a rendered
field. Entries that have one of several kinds (a volume, a variable, a port) are replaced as a whole, because the API server refuses an
entry of two kinds. The labels that select Pods keep their values.

`prepare-cache` marks the cache directory as the operator's. The cleaning Job deletes only marked directories (`tools/clean_caches.py`). The
marker is an empty file whose name contains the name of the directory, so a copy of the directory under another name is not marked. Its
modification time is the last use of the directory, even on a file system without access times. A start continues without a marker.

`fetch-caches` fills an empty cache directory from a registry, and `fetch-adapters` downloads LoRA adapters from the model hub to the volume
of the weights. They are the only containers that mount the Secrets for the registry and for adapters. They depend only on the spec and the
plan, so a publication replaces no Pod.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import mapping
from vllm_operator.api.resource import Role, VLLMDeployment, labels_of
from vllm_operator.api.spec import AdapterSpec
from vllm_operator.caches.address import FETCH_CACHES_CONTAINER, FETCH_VARIABLE, cache_address, is_read_only, volume_at
from vllm_operator.caches.artifacts import hub_variables, portability_settings, proxies_of
from vllm_operator.caches.prefetching import OFFLINE_VARIABLE
from vllm_operator.catalog.caches import ADAPTER_TOKEN_ROOT, ARTIFACT_SECRET_ROOT, CACHE_ROOT, TOKEN_FILE, TOKEN_ROOT, WEIGHTS_ROOT
from vllm_operator.planning.engine.adapters import adapter_path
from vllm_operator.planning.engine.serving import grace_seconds
from vllm_operator.planning.placement.targets import DEFAULT_TOLERATIONS
from vllm_operator.planning.pod_template import HANDLERS, PLAIN, POD_TEMPLATE, SELECTOR_LABELS, MergeRules, check_pod_template, identify
from vllm_operator.pods.tools import CHECK_PROGRAM, TOOLS_MOUNT, tool_command, with_tools
from vllm_operator.rendering.container import CLAIM_REQUEST, render_container, render_follower
from vllm_operator.rendering.resource_claim import render_resource_claim_template
from vllm_operator.rendering.volumes import render_volumes

FILE_SYSTEM_GROUP = 2000
"""Group that owns the volumes, so that users other than root can write to them. It is the group of the user vllm in vLLM's images."""
TERMINATION_SECONDS = 60
"""Time in seconds to stop a Pod that does not drain."""
MARKER_CONTAINER, ADAPTER_CONTAINER = "prepare-cache", "fetch-adapters"
MARKER_PREFIX = ".vllm-operator-"
SECRET_VOLUME = "artifact-secret"
FETCH_SECONDS = 110
"""Maximum seconds of a fetch at a start. After that the start is cold, or the container restarts if the artifact is required."""
_MARK = 'touch -- "$1" || true'
_INHERITED = ("image", "imagePullPolicy", "securityContext")
_NODE_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


def render_pod_template(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the Pod template with `spec.podTemplate` merged over it. Raises SpecError if it cannot be merged.

    The result depends only on inputs that justify a rollout, because each change replaces the Pods.
    """
    rendered = {"metadata": {"labels": labels_of(resource, Role.ENGINE)}, "spec": _pod_spec(resource, plan)}
    merged = merge_pod_template(rendered, resource.spec.pod_template)
    pod = PodBuilder(merged["spec"], plan.tools_image)
    add_probe_program(pod)
    add_cache_marker(pod, plan)
    add_cache_fetcher(pod, resource, plan)
    add_adapter_fetcher(pod, resource)
    return {**merged, "spec": pod.spec}


def render_follower_template(leader: Mapping[str, Any], resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the Pod template of the followers from the leader's."""
    template: dict[str, Any] = copy.deepcopy(dict(leader))
    template["metadata"]["labels"][COMPONENT_LABEL] = Role.FOLLOWER.value
    spec = template["spec"]
    spec["containers"] = [render_follower(each, resource, plan) if each["name"] == CONTAINER else each for each in spec["containers"]]
    return template


def _pod_spec(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    grace = grace_seconds(plan.drain_seconds, plan.endpoint_seconds) if plan.drain_seconds else TERMINATION_SECONDS
    spec: dict[str, Any] = {
        "containers": [render_container(resource, plan)],
        "volumes": render_volumes(resource, plan),
        "tolerations": [dict(toleration) for toleration in DEFAULT_TOLERATIONS],
        # A Service named vllm would set VLLM_PORT=tcp://..., on which vLLM crashes.
        "enableServiceLinks": False,
        # The engine never calls the Kubernetes API.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace,
        # The image sets the user (root in vLLM's images), or podTemplate does.
        "securityContext": {
            "fsGroup": FILE_SYSTEM_GROUP,
            # Changing the owner of a million cached files takes minutes, so it is not repeated at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if plan.node_requirements:
        term = {"matchExpressions": [requirement.to_json() for requirement in plan.node_requirements]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    if (template := render_resource_claim_template(resource, plan)) is not None:
        spec["resourceClaims"] = [{"name": CLAIM_REQUEST, "resourceClaimTemplateName": template["metadata"]["name"]}]
    if resource.spec.accelerator and resource.spec.accelerator.runtime_class_name:
        spec["runtimeClassName"] = resource.spec.accelerator.runtime_class_name
    return spec


class PodBuilder:
    """A Pod spec to which features add init containers with their volumes."""

    def __init__(self, spec: Mapping[str, Any], tools_image: str) -> None:
        self.spec = dict(spec)
        self.engine: Mapping[str, Any] = reading.named(spec, CONTAINER, "containers", key="name")
        self._tools_image = tools_image

    def has(self, name: str) -> bool:
        """Return whether there is an init container of this name."""
        return bool(reading.named(self.spec, name, "initContainers", key="name"))

    def mounts_at(self, *paths: str) -> list[Mapping[str, Any]]:
        """Return the engine's mounts at these paths."""
        return [mount for mount in reading.objects(self.engine, "volumeMounts") if mount["mountPath"] in paths]

    def add_tools_to_engine(self) -> None:
        """Mount the operator's programs in the engine container."""
        self.engine = {**self.engine, "volumeMounts": [*reading.objects(self.engine, "volumeMounts"), dict(TOOLS_MOUNT)]}
        containers = [self.engine if each.get("name") == CONTAINER else each for each in self.spec["containers"]]
        self.spec = with_tools({**self.spec, "containers": containers}, self._tools_image)

    def add_init_container(
        self, name: str, command: Sequence[str], mounts: Sequence[Mapping[str, Any]], env: Sequence[Mapping[str, Any]] = (), **more: Any
    ) -> None:
        """Add an init container that can run wherever the engine can."""
        asked = self.engine.get("resources", {})
        amounts = {kind: {k: v for k, v in (asked.get(kind) or {}).items() if k in _NODE_RESOURCES} for kind in ("limits", "requests")}
        resources = {kind: given for kind, given in amounts.items() if given}
        container = {
            "name": name,
            **{field: copy.deepcopy(self.engine[field]) for field in _INHERITED if field in self.engine},
            "command": list(command),
            **({"env": [dict(entry) for entry in env]} if env else {}),
            **({"resources": resources} if resources else {}),
            **more,
            "volumeMounts": [dict(copy.deepcopy(mount)) for mount in mounts],
        }
        self.spec["initContainers"] = [*(self.spec.get("initContainers") or ()), container]

    def add_program(
        self,
        name: str,
        settings: Mapping[str, Any],
        mounts: Sequence[Mapping[str, Any]],
        env: Sequence[Mapping[str, Any]],
        volumes: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add an init container that runs the program of this name with these settings (variable and value) before `env`.

        The last lines of its log become its termination message if it fails.
        """
        variables = [{"name": key, "value": json.dumps(value, sort_keys=True)} for key, value in settings.items()]
        more = {"terminationMessagePolicy": "FallbackToLogsOnError"}
        self.add_init_container(name, tool_command(name), [*mounts, TOOLS_MOUNT], [*variables, *env, *proxies_of(self.engine)], **more)
        self.spec["volumes"] = [*(self.spec.get("volumes") or ()), *volumes]
        self.spec = with_tools(self.spec, self._tools_image)


def add_probe_program(pod: PodBuilder) -> None:
    """Mount the program of the readiness probe (`tools/check_engine.py`), unless the user has replaced the probe."""
    if CHECK_PROGRAM in (reading.mapping(pod.engine, "readinessProbe", "exec").get("command") or ()):
        pod.add_tools_to_engine()


def add_cache_marker(pod: PodBuilder, plan: Plan) -> None:
    """Add the init container `prepare-cache` if the cache directory is on a PVC."""
    address = cache_address(pod.spec)
    if pod.has(MARKER_CONTAINER) or address is None or address.key != plan.cache_key or is_read_only(pod.spec, CACHE_ROOT):
        return
    command = ["sh", "-c", _MARK, "mark", f"{CACHE_ROOT}/{MARKER_PREFIX}{plan.cache_key}"]
    pod.add_init_container(MARKER_CONTAINER, command, pod.mounts_at(CACHE_ROOT)[:1])


def add_cache_fetcher(pod: PodBuilder, resource: VLLMDeployment, plan: Plan) -> None:
    """Add the init container `fetch-caches` if the spec names an artifact and the caches are on a writable volume."""
    artifact = resource.spec.cache.artifact if resource.spec.cache else None
    if artifact is None or plan.cache_artifact is None or pod.has(FETCH_CACHES_CONTAINER):
        return
    if not volume_at(pod.spec, CACHE_ROOT) or is_read_only(pod.spec, CACHE_ROOT):
        return
    secret, mounts, volumes = artifact.pull_secret_ref, pod.mounts_at(CACHE_ROOT), []
    settings: dict[str, Any] = {
        **portability_settings(resource, plan, pod.engine),
        "root": CACHE_ROOT,
        "folders": plan.cache_artifact.folders,
        "deadline": FETCH_SECONDS,
        **({"reference": artifact.reference} if artifact.reference else {}),
        **({"required": True} if artifact.policy == "Required" else {}),
        **({"rejected": plan.cache_artifact.rejected} if plan.cache_artifact.rejected else {}),
        **({"secret": ARTIFACT_SECRET_ROOT} if secret else {}),
    }
    if secret:
        mounts.append({"name": SECRET_VOLUME, "mountPath": ARTIFACT_SECRET_ROOT, "readOnly": True})
        # a Pod starts without the Secret, and the program reports that it is missing
        volumes.append({"name": SECRET_VOLUME, "secret": {"secretName": secret.name, "optional": True}})
    pod.add_program(FETCH_CACHES_CONTAINER, {FETCH_VARIABLE: settings}, mounts, (), volumes)


def add_adapter_fetcher(pod: PodBuilder, resource: VLLMDeployment) -> None:
    """Add the init container `fetch-adapters` if an adapter is on the hub."""
    wanted = sorted((each for each in resource.spec.adapters or () if each.uri.startswith("hf://")), key=lambda each: each.name)
    if not wanted or pod.has(ADAPTER_CONTAINER):
        return
    volumes = {each.name: _token_volume(each) for each in wanted if each.token_secret_ref}
    mounts = pod.mounts_at(WEIGHTS_ROOT, TOKEN_ROOT, "/tmp")
    mounts += [{"name": volume["name"], "mountPath": f"{ADAPTER_TOKEN_ROOT}/{name}", "readOnly": True} for name, volume in volumes.items()]
    # with prefetched weights engines are offline, but adapters are still downloaded
    is_offline = resource.spec.weights is not None and resource.spec.weights.prefetch == "BeforeStart"
    hub = [variable for variable in hub_variables(pod.engine) if not is_offline or variable["name"] != OFFLINE_VARIABLE]
    pod.add_program(ADAPTER_CONTAINER, {"ADAPTERS": [_adapter_settings(each) for each in wanted]}, mounts, hub, list(volumes.values()))


def _adapter_settings(adapter: AdapterSpec) -> dict[str, str]:
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
    items = [{"key": adapter.token_secret_ref.key, "path": TOKEN_FILE}]
    name = f"adapter-token-{adapter_path(adapter).rpartition('-')[2]}"
    return {"name": name, "secret": {"secretName": adapter.token_secret_ref.name, "items": items}}


def merge_pod_template(rendered: Mapping[str, Any], template: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the rendered Pod template with the user's template merged over it. Raises SpecError."""
    check_pod_template(template)
    merged = _merge_object(rendered, _without_empty_parts(template or {}), POD_TEMPLATE)
    kept = {label: value for label, value in mapping(rendered, "metadata", "labels").items() if label in SELECTOR_LABELS}
    merged["metadata"] = {**merged["metadata"], "labels": {**merged["metadata"]["labels"], **kept}}
    return merged


def _without_empty_parts(template: Mapping[str, Any]) -> dict[str, Any]:
    """Drop nulls where a Pod template requires an object. In YAML, `spec:` without content is null."""
    given = {name: value for name, value in template.items() if value is not None}
    for name, part in (("metadata", "labels"), ("spec", "containers")):
        if name in given:
            given[name] = {key: value for key, value in given[name].items() if key != part or value is not None}
    return given


def _merge_object(ours: Mapping[str, Any], theirs: Mapping[str, Any], rules: MergeRules) -> dict[str, Any]:
    replaced = HANDLERS if any(theirs.get(handler) is not None for handler in HANDLERS) else ()
    merged = {name: value for name, value in ours.items() if name not in replaced or name in theirs}
    for name, value in theirs.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_field(name, merged.get(name), value, rules)
    return merged


def _merge_field(name: str, ours: Any, theirs: Any, rules: MergeRules) -> Any:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _merge_object(ours, theirs, rules.objects.get(name, PLAIN))
    if isinstance(theirs, list) and isinstance(ours, list):
        if name in rules.lists:
            return _merge_list(ours, theirs, rules.lists[name], rules.entries.get(name))
        if name in rules.added_to:
            return [*ours, *(entry for entry in _without_nulls(theirs) if entry not in ours)]
    return _without_nulls(theirs)


def _merge_list(ours: list[Any], theirs: list[Any], keys: tuple[str, ...], entry_rules: MergeRules | None) -> list[Any]:
    """Merge lists by entry. Entries without merge rules are replaced as a whole."""
    given = {identify(entry, keys): entry for entry in theirs}
    merged = []
    for entry in ours:
        replacement = given.pop(identify(entry, keys), None)
        if replacement is not None:
            entry = _merge_object(entry, replacement, entry_rules) if entry_rules else _without_nulls(replacement)
        merged.append(entry)
    return [*merged, *map(_without_nulls, given.values())]


def _without_nulls(value: Any) -> Any:
    """Drop null fields: there is no rendered field that they could remove."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
