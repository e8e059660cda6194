"""The Pod of a deployed engine: what belongs into the spec, into `spec.podTemplate`, and what the operator does itself."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import mapping, objects, read_count, text
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, Report
from vllm_operator.inventory.pools import GPU_RESOURCE, MIG_RESOURCE_PREFIX

PRODUCT_LABEL = "nvidia.com/gpu.product"
_KEPT_OF_POD = (
    "serviceAccountName",
    "imagePullSecrets",
    "tolerations",
    "affinity",
    "priorityClassName",
    "topologySpreadConstraints",
    "securityContext",
    "hostNetwork",
    "hostIPC",
    "hostAliases",
    "dnsPolicy",
    "dnsConfig",
    "schedulerName",
    "automountServiceAccountToken",
)
_KEPT_OF_CONTAINER = ("securityContext", "imagePullPolicy", "envFrom", "workingDir")
_DEFAULTS: Mapping[str, Any] = {
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "imagePullPolicy": "IfNotPresent",
    "terminationGracePeriodSeconds": 30,
}
"""What the API server adds to every Pod template."""
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
POD_FIELDS = frozenset(
    (*_KEPT_OF_POD, "containers", "initContainers", "nodeSelector", "runtimeClassName", "terminationGracePeriodSeconds", "volumes")
)
"""Fields of a Pod about which the translation or the report says something."""
CONTAINER_FIELDS = frozenset(
    (*_KEPT_OF_CONTAINER, *_PROBES, "args", "command", "env", "image", "lifecycle", "name", "ports", "resources", "volumeMounts")
)
"""Fields of a container about which they do."""
_CACHE_PATHS = ("/root/.cache", "/.cache", "/home/vllm/.cache", "/root/.triton", "/tmp/.cache")
_ELSEWHERE = ("amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "google.com/tpu", "habana.ai/gaudi", "aws.amazon.com/neuron")


@dataclass(slots=True)
class PodParts:
    """Parts of a Pod, sorted. `claims` are mounted PersistentVolumeClaims: the path with the claim and the path on it."""

    gpus: int = 0
    accelerator: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    claims: dict[str, str] = field(default_factory=dict)
    used_claims: set[str] = field(default_factory=set)

    def uri_of(self, path: str) -> str | None:
        """The URI of a path on a mounted PersistentVolumeClaim. The mount is no longer needed then."""
        for mounted in sorted(self.claims, key=len, reverse=True):
            if path == mounted or path.startswith(f"{mounted.rstrip('/')}/"):
                rest = path[len(mounted.rstrip("/")) :].strip("/")
                self._unmount(mounted)
                return "pvc://" + posixpath.join(self.claims[mounted], rest).rstrip("/")
        return None

    def _unmount(self, path: str) -> None:
        spec = self.template.get("spec", {})
        engine: dict[str, Any] = next((each for each in spec.get("containers", []) if each["name"] == CONTAINER), {})
        mount = next((each for each in engine.get("volumeMounts", []) if each.get("mountPath") == path), None)
        if mount is None:
            return
        engine["volumeMounts"].remove(mount)
        spec["volumes"] = [each for each in spec["volumes"] if each.get("name") != mount.get("name")]
        for holder, name in ((engine, "volumeMounts"), (spec, "volumes")):
            if not holder[name]:
                del holder[name]
        if set(engine) == {"name"}:
            spec["containers"].remove(engine)
        if not spec.get("containers", True):
            del spec["containers"]
        if not spec:
            del self.template["spec"]
        label = f"volume {mount.get('name')}"
        if label in self.kept:
            self.kept.remove(label)


def read_pod(engine: Engine, report: Report) -> PodParts:
    """Sort the parts of the engine's Pod. What is dropped and translated goes into the report.

    Raises:
        ImportRefusedError: The engine does not use an NVIDIA GPU.
    """
    parts = PodParts()
    pod = _kept(engine.pod, _KEPT_OF_POD)
    container = _kept(engine.container, _KEPT_OF_CONTAINER)
    _selector(engine.pod, parts, pod, report)
    _resources(engine.container, parts, container)
    parts.kept += [*pod, *(f"{name} of the container" for name in container)]
    _volumes(engine, parts, pod, container, report)
    sidecars = [dict(each) for each in objects(engine.pod, "containers") if each.get("name") != engine.container.get("name")]
    parts.kept += [f"container {text(each, 'name')}" for each in sidecars]
    if container or sidecars:
        pod["containers"] = [*([{"name": CONTAINER, **container}] if container else []), *sidecars]
    if pod:
        parts.template["spec"] = pod
    _dropped(engine, report)
    return parts


def _kept(source: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: source[name] for name in names if source.get(name) and source[name] != _DEFAULTS.get(name)}


def _selector(source: Mapping[str, Any], parts: PodParts, pod: dict[str, Any], report: Report) -> None:
    selector = dict(mapping(source, "nodeSelector"))
    product = selector.pop(PRODUCT_LABEL, None)
    if product:
        parts.accelerator["products"] = [product]
        report.translated.append(f"The node selector {PRODUCT_LABEL} is spec.accelerator.products.")
    if selector:
        pod["nodeSelector"] = selector
    runtime = text(source, "runtimeClassName")
    if runtime:
        parts.accelerator["runtimeClassName"] = runtime
        report.translated.append("runtimeClassName is spec.accelerator.runtimeClassName.")


def _resources(source: Mapping[str, Any], parts: PodParts, container: dict[str, Any]) -> None:
    kept: dict[str, dict[str, Any]] = {}
    for kind in ("requests", "limits"):
        for name, amount in mapping(source, "resources", kind).items():
            if name == GPU_RESOURCE:
                parts.gpus = read_count(amount) or 0
            elif name.startswith(MIG_RESOURCE_PREFIX):
                parts.gpus = read_count(amount) or 0
                parts.accelerator["mig"] = {"profile": name.removeprefix(MIG_RESOURCE_PREFIX)}
            elif name in _ELSEWHERE:
                raise ImportRefusedError(f"the engine requests {name}. The operator supports NVIDIA GPUs only")
            elif name not in ("nvidia.com/gpu.shared",):
                kept.setdefault(kind, {})[name] = amount
    if kept:
        container["resources"] = kept


def _volumes(engine: Engine, parts: PodParts, pod: dict[str, Any], container: dict[str, Any], report: Report) -> None:
    volumes = {text(each, "name"): each for each in objects(engine.pod, "volumes")}
    used: list[Mapping[str, Any]] = []
    for mount in objects(engine.container, "volumeMounts"):
        path, name = text(mount, "mountPath").rstrip("/") or "/", text(mount, "name")
        volume = volumes.get(name, {})
        claim = text(volume, "persistentVolumeClaim", "claimName")
        if path == "/dev/shm":
            report.dropped.append("The volume at /dev/shm: the operator mounts shared memory of its own.")
        elif path.startswith(_CACHE_PATHS):
            whose = f"PersistentVolumeClaim {claim}" if claim else f"volume {name}"
            report.dropped.append(f"The {whose} at {path}: the operator keeps weights and compiled kernels on volumes of its own.")
            if claim:
                report.advice.append(f"To keep weights on the existing PersistentVolumeClaim, set spec.weights.claimName to {claim}.")
        else:
            used.append(mount)
            if claim:
                parts.claims[text(mount, "mountPath")] = posixpath.join(claim, text(mount, "subPath")).rstrip("/")
    if used:
        container["volumeMounts"] = [dict(mount) for mount in used]
    names = {text(mount, "name") for mount in used}
    for sidecar in objects(engine.pod, "containers"):
        if sidecar.get("name") != engine.container.get("name"):
            names |= {text(mount, "name") for mount in objects(sidecar, "volumeMounts")}
    kept = [dict(volume) for name, volume in volumes.items() if name in names]
    if kept:
        pod["volumes"] = kept
        parts.kept += [f"volume {volume['name']}" for volume in kept]


def _dropped(engine: Engine, report: Report) -> None:
    if any(name in engine.container for name in _PROBES):
        report.dropped.append("Probes: those of the operator allow for long starts, until a deadline (spec.startup.deadlineSeconds).")
    if "lifecycle" in engine.container or _kept(engine.pod, ("terminationGracePeriodSeconds",)):
        report.dropped.append("Hooks and the grace period: the operator drains Pods (spec.rollout.drainSeconds).")
    for each in objects(engine.pod, "initContainers"):
        report.dropped.append(
            f"The init container {text(each, 'name')}: the engine downloads its model itself. If it does something else, add it to "
            "spec.podTemplate."
        )
