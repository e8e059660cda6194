"""The Pod of a deployed engine: what belongs into the spec, into `spec.podTemplate`, and what the operator does itself."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import mapping, objects, read_bytes, read_count, text
from vllm_operator.caches.claims import CACHE_VOLUME, WEIGHTS_VOLUME
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, Report
from vllm_operator.inventory.pools import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from vllm_operator.rendering.volumes import MODEL_VOLUME, SHARED_MEMORY_VOLUME, TEMPORARY_VOLUME, TOKEN_VOLUME

PRODUCT_LABEL = "nvidia.com/gpu.product"
_KEPT_OF_POD = (
    *("serviceAccountName", "imagePullSecrets", "tolerations", "affinity", "priorityClassName", "topologySpreadConstraints"),
    *("securityContext", "hostNetwork", "hostIPC", "hostAliases", "dnsPolicy", "dnsConfig", "schedulerName"),
    *("automountServiceAccountToken", "enableServiceLinks", "hostPID", "hostUsers", "hostname", "nodeName", "overhead"),
    *("preemptionPolicy", "readinessGates", "schedulingGates", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain"),
)
_KEPT_OF_CONTAINER = ("securityContext", "imagePullPolicy", "envFrom", "workingDir", "stdin", "tty")
_DEFAULTS: Mapping[str, Any] = {
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "imagePullPolicy": "IfNotPresent",
    "terminationGracePeriodSeconds": 30,
    **dict.fromkeys(("automountServiceAccountToken", "enableServiceLinks", "hostUsers"), True),
    "preemptionPolicy": "PreemptLowerPriority",
}
"""What the API server adds to every Pod template, and what it means if a field is absent. The default of other fields is false or empty."""
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
POD_FIELDS = frozenset(
    (
        *(*_KEPT_OF_POD, "containers", "initContainers", "nodeSelector", "resourceClaims", "runtimeClassName"),
        *("terminationGracePeriodSeconds", "volumes"),
    )
)
"""Fields of a Pod about which the translation or the report says something."""
CONTAINER_FIELDS = frozenset(
    (*_KEPT_OF_CONTAINER, *PROBES, "args", "command", "env", "image", "lifecycle", "name", "ports", "resources", "volumeMounts")
)
"""Fields of a container about which they do."""
_CACHE_PATHS = ("/root/.cache", "/.cache", "/home/vllm/.cache", "/root/.triton", "/tmp/.cache")
_OUR_VOLUMES = (CACHE_VOLUME, WEIGHTS_VOLUME, MODEL_VOLUME, SHARED_MEMORY_VOLUME, TEMPORARY_VOLUME, TOKEN_VOLUME)
_ELSEWHERE = ("amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "google.com/tpu", "habana.ai/gaudi", "aws.amazon.com/neuron")


@dataclass(slots=True)
class PodParts:
    """Parts of a Pod, sorted: GPUs and `spec.accelerator`, and what goes into `spec.podTemplate`.

    `unneeded` are mounts of the model and of adapters, which the operator mounts itself.
    """

    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus: int = 0
    accelerator: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    mounts: list[Mapping[str, Any]] = field(default_factory=list)
    unneeded: list[Mapping[str, Any]] = field(default_factory=list)
    shared_memory: Mapping[str, Any] = field(default_factory=dict)
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
                if mount not in self.unneeded:
                    self.unneeded.append(mount)
                return "pvc://" + posixpath.join(claim, text(mount, "subPath"), path[len(mounted) :].strip("/")).rstrip("/")
        return None

    def keep_used(self, model: str, words: Iterable[str], report: Report) -> None:
        """Keep a mount of the model's claim if other words name files on it. A Pod cannot have a second volume of the same claim."""
        used = set(words)
        for mount in list(self.unneeded):
            path, claim = text(mount, "mountPath").rstrip("/"), self.claim_of(mount)
            files = [word for word in used if f"{path}/" in word]
            if files and f"{model}/".startswith(f"pvc://{claim}/"):
                self.unneeded.remove(mount)
                self.mounts[self.mounts.index(mount)] = {**mount, "name": MODEL_VOLUME}
            elif files:
                report.advice.append(
                    f"The PersistentVolumeClaim {claim} is no longer mounted at {path}. Change {', '.join(sorted(files))}."
                )

    def template(self) -> tuple[dict[str, Any], list[str]]:
        """Return `spec.podTemplate`, and the names of its parts for the report."""
        kept = [f"{kind.removesuffix('s')} {name}" for kind, values in self.metadata.items() for name in values]
        kept += [*self.pod, *(f"{name} of the container" for name in self.container)]
        pod, container = dict(self.pod), dict(self.container)
        mounts = [mount for mount in self.mounts if mount not in self.unneeded]
        if mounts:
            container["volumeMounts"] = [dict(mount) for mount in mounts]
        others = [*self.sidecars, *objects(pod, "initContainers")]
        names = {text(mount, "name") for mount in [*mounts, *(mount for each in others for mount in objects(each, "volumeMounts"))]}
        volumes = [dict(volume) for name, volume in self.volumes.items() if name in names]
        if shared := dict(self.shared_memory):
            volumes.append(shared)
        if volumes:
            pod["volumes"] = volumes
        if container or self.sidecars:
            pod["containers"] = [*([{"name": CONTAINER, **container}] if container else []), *map(dict, self.sidecars)]
        kept += [f"volume {volume['name']}" for volume in volumes]
        kept += [f"container {text(each, 'name')}" for each in self.sidecars]
        template = {"metadata": {kind: dict(values) for kind, values in self.metadata.items()}, "spec": pod}
        return {name: part for name, part in template.items() if part}, kept


def read_pod(engine: Engine, report: Report) -> PodParts:
    """Sort the parts of the engine's Pod. What is dropped and translated goes into the report.

    Raises ImportRefusedError if the engine does not use an NVIDIA GPU.
    """
    engine = replace(engine, pod=_with_free_names(engine.pod), container=_with_free_names(engine.container))
    parts = PodParts(engine.metadata, pod=_kept(engine.pod, _KEPT_OF_POD), container=_kept(engine.container, _KEPT_OF_CONTAINER))
    parts.volumes = {text(each, "name"): each for each in objects(engine.pod, "volumes")}
    parts.sidecars = [each for each in objects(engine.pod, "containers") if each.get("name") != engine.container.get("name")]
    _selector(engine.pod, parts, report)
    if sidecars := [each for each in objects(engine.pod, "initContainers") if each.get("restartPolicy") == "Always"]:
        parts.pod["initContainers"] = sidecars
    _resources(engine.container, parts)
    _mounts(engine.container, parts, report)
    _dropped(engine, report)
    return parts


def _with_free_names(source: Mapping[str, Any]) -> dict[str, Any]:
    """Rename volumes with the name of one of the operator's, in a Pod or container: `spec.podTemplate` would replace the operator's."""
    renamed = dict(source)
    for part in ("volumes", "volumeMounts"):
        if listed := list(objects(source, part)):
            renamed[part] = [{**each, "name": f"imported-{each['name']}"} if each.get("name") in _OUR_VOLUMES else each for each in listed]
    for part in ("containers", "initContainers"):
        if listed := list(objects(source, part)):
            renamed[part] = [_with_free_names(each) for each in listed]
    return renamed


def _kept(source: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    given = {name: source[name] for name in names if source.get(name) not in (None, "", [], {})}
    return {name: value for name, value in given.items() if value != _DEFAULTS.get(name, False)}


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
            _shared_memory(parts, text(mount, "name"), report)
        elif path.startswith(_CACHE_PATHS):
            whose = f"PersistentVolumeClaim {claim}" if claim else f"volume {text(mount, 'name').removeprefix('imported-')}"
            report.dropped.append(f"The {whose} at {path}: the operator keeps weights and compiled kernels on volumes of its own.")
            if claim:
                report.advice.append(f"To keep weights on the existing PersistentVolumeClaim, set spec.weights.claimName to {claim}.")
        else:
            parts.mounts.append(mount)


def _shared_memory(parts: PodParts, name: str, report: Report) -> None:
    """Keep shared memory that is larger than the operator's."""
    limit = text(parts.volumes.get(name, {}), "emptyDir", "sizeLimit")
    if (read_bytes(limit) or 0) > (4 + 2 * max(parts.gpus - 1, 0)) * 2**30:
        parts.shared_memory = {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}
        report.translated.append(f"The size of /dev/shm, {limit}, is that of the volume {SHARED_MEMORY_VOLUME} of spec.podTemplate.")
    else:
        report.dropped.append("The volume at /dev/shm: the operator mounts shared memory of its own.")


def _dropped(engine: Engine, report: Report) -> None:
    if any(name in engine.container for name in PROBES):
        report.dropped.append("Probes: those of the operator allow for long starts, until a deadline (spec.startup.deadlineSeconds).")
    if "lifecycle" in engine.container or _kept(engine.pod, ("terminationGracePeriodSeconds",)):
        report.dropped.append("Hooks and the grace period: the operator drains Pods (spec.rollout.drainSeconds).")
    if engine.pod.get("resourceClaims") or mapping(engine.container, "resources").get("claims"):
        report.dropped.append("Resource claims: the operator requests the GPUs itself.")
        report.advice.append(
            "To request GPUs by ResourceClaims, set spec.accelerator.allocation to DRA. Add claims for other devices to spec.podTemplate."
        )
    for each in objects(engine.pod, "initContainers"):
        if each.get("restartPolicy") == "Always":
            continue
        report.dropped.append(
            f"The init container {text(each, 'name')}: the engine downloads its model itself. If it does something else, add it to "
            "spec.podTemplate."
        )
