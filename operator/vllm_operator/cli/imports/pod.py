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
    *("serviceAccountName", "imagePullSecrets", "tolerations", "affinity", "priorityClassName", "topologySpreadConstraints"),
    *("securityContext", "hostNetwork", "hostIPC", "hostAliases", "dnsPolicy", "dnsConfig", "schedulerName"),
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
    """Parts of a Pod, sorted: GPUs and `spec.accelerator`, and what goes into `spec.podTemplate`."""

    gpus: int = 0
    accelerator: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    mounts: list[Mapping[str, Any]] = field(default_factory=list)
    volumes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    sidecars: list[Mapping[str, Any]] = field(default_factory=list)

    def claim_of(self, mount: Mapping[str, Any]) -> str:
        """Return the PersistentVolumeClaim that is mounted; empty for another volume."""
        return text(self.volumes.get(text(mount, "name"), {}), "persistentVolumeClaim", "claimName")

    def uri_of(self, path: str) -> str | None:
        """Return the URI of a path on a mounted PersistentVolumeClaim. The mount is no longer needed then."""
        for mount in sorted(self.mounts, key=lambda each: len(text(each, "mountPath")), reverse=True):
            claim, mounted = self.claim_of(mount), text(mount, "mountPath").rstrip("/")
            if claim and (path == mounted or path.startswith(f"{mounted}/")):
                self.mounts.remove(mount)
                return "pvc://" + posixpath.join(claim, text(mount, "subPath"), path[len(mounted) :].strip("/")).rstrip("/")
        return None

    def template(self) -> tuple[dict[str, Any], list[str]]:
        """Return `spec.podTemplate`, and the names of its parts for the report."""
        kept = [*self.pod, *(f"{name} of the container" for name in self.container)]
        pod, container = dict(self.pod), dict(self.container)
        if self.mounts:
            container["volumeMounts"] = [dict(mount) for mount in self.mounts]
        mounts = [*self.mounts, *(mount for sidecar in self.sidecars for mount in objects(sidecar, "volumeMounts"))]
        names = {text(mount, "name") for mount in mounts}
        if volumes := [dict(volume) for name, volume in self.volumes.items() if name in names]:
            pod["volumes"] = volumes
        if container or self.sidecars:
            pod["containers"] = [*([{"name": CONTAINER, **container}] if container else []), *map(dict, self.sidecars)]
        kept += [f"volume {volume['name']}" for volume in volumes]
        kept += [f"container {text(each, 'name')}" for each in self.sidecars]
        return ({"spec": pod} if pod else {}), kept


def read_pod(engine: Engine, report: Report) -> PodParts:
    """Sort the parts of the engine's Pod. What is dropped and translated goes into the report.

    Raises ImportRefusedError if the engine does not use an NVIDIA GPU.
    """
    parts = PodParts(pod=_kept(engine.pod, _KEPT_OF_POD), container=_kept(engine.container, _KEPT_OF_CONTAINER))
    parts.volumes = {text(each, "name"): each for each in objects(engine.pod, "volumes")}
    parts.sidecars = [each for each in objects(engine.pod, "containers") if each.get("name") != engine.container.get("name")]
    _selector(engine.pod, parts, report)
    _resources(engine.container, parts)
    _mounts(engine.container, parts, report)
    _dropped(engine, report)
    return parts


def _kept(source: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: source[name] for name in names if source.get(name) and source[name] != _DEFAULTS.get(name)}


def _selector(source: Mapping[str, Any], parts: PodParts, report: Report) -> None:
    selector = dict(mapping(source, "nodeSelector"))
    if product := selector.pop(PRODUCT_LABEL, None):
        parts.accelerator["products"] = [product]
        report.translated.append(f"The node selector {PRODUCT_LABEL} is spec.accelerator.products.")
    if selector:
        parts.pod["nodeSelector"] = selector
    if runtime := text(source, "runtimeClassName"):
        parts.accelerator["runtimeClassName"] = runtime
        report.translated.append("runtimeClassName is spec.accelerator.runtimeClassName.")


def _resources(source: Mapping[str, Any], parts: PodParts) -> None:
    for kind in ("requests", "limits"):
        for name, amount in mapping(source, "resources", kind).items():
            if name == GPU_RESOURCE or name.startswith(MIG_RESOURCE_PREFIX):
                parts.gpus = read_count(amount) or 0
            if name.startswith(MIG_RESOURCE_PREFIX):
                parts.accelerator["mig"] = {"profile": name.removeprefix(MIG_RESOURCE_PREFIX)}
            elif name in _ELSEWHERE:
                raise ImportRefusedError(f"the engine requests {name}. The operator supports NVIDIA GPUs only")
            elif name not in (GPU_RESOURCE, f"{GPU_RESOURCE}.shared"):
                parts.container.setdefault("resources", {}).setdefault(kind, {})[name] = amount


def _mounts(container: Mapping[str, Any], parts: PodParts, report: Report) -> None:
    for mount in objects(container, "volumeMounts"):
        path, claim = text(mount, "mountPath").rstrip("/") or "/", parts.claim_of(mount)
        if path == "/dev/shm":
            report.dropped.append("The volume at /dev/shm: the operator mounts shared memory of its own.")
        elif path.startswith(_CACHE_PATHS):
            whose = f"PersistentVolumeClaim {claim}" if claim else f"volume {text(mount, 'name')}"
            report.dropped.append(f"The {whose} at {path}: the operator keeps weights and compiled kernels on volumes of its own.")
            if claim:
                report.advice.append(f"To keep weights on the existing PersistentVolumeClaim, set spec.weights.claimName to {claim}.")
        else:
            parts.mounts.append(mount)


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
