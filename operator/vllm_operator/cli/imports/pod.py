"""The Pod of a deployed engine: what belongs into the spec, into `spec.podTemplate`, and what the operator does itself."""

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import Manifest, mapping, objects, read_bytes, read_count, text
from vllm_operator.caches.claims import CACHE_VOLUME, WEIGHTS_VOLUME
from vllm_operator.catalog.gpus import Images
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError
from vllm_operator.cli.imports.tables import load_tables
from vllm_operator.inventory.pools import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from vllm_operator.rendering.volumes import MODEL_VOLUME, SHARED_MEMORY_VOLUME, TEMPORARY_VOLUME, TOKEN_VOLUME

PRODUCT_LABEL = "nvidia.com/gpu.product"
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
_CACHE_PATHS = ("/root/.cache", "/.cache", "/home/vllm/.cache", "/root/.triton", "/tmp/.cache")
_OUR_VOLUMES = (CACHE_VOLUME, WEIGHTS_VOLUME, MODEL_VOLUME, SHARED_MEMORY_VOLUME, TEMPORARY_VOLUME, TOKEN_VOLUME)


class PodParts:
    """Parts of a Pod: GPUs, `spec.accelerator` and `spec.podTemplate`. Raises ImportRefusedError for an engine without NVIDIA GPUs."""

    def __init__(self, engine: Engine, images: Images) -> None:
        pod, container = _with_free_names(engine.pod), _with_free_names(engine.container)
        self.report, self.metadata, self.images = engine.report, engine.metadata, images
        self.gpus = 0
        self.accelerator: dict[str, Any] = {}
        pod = {"serviceAccountName": pod.get("serviceAccount"), **pod}  # the old name
        self.pod, self.container = _kept(pod, load_tables()["Pod"].kept), _kept(container, load_tables()["container"].kept)
        self.mounts: list[Manifest] = []
        self.unneeded: list[Manifest] = []  # mounts of the model and of adapters, which the operator mounts itself
        self.shared_memory: dict[str, Any] = {}
        self.volumes = {name: each for each in objects(pod, "volumes") if (name := text(each, "name"))}
        self.sidecars = [each for each in objects(pod, "containers") if each.get("name") != container.get("name")]
        self._sort_selector(pod)
        first = list(objects(pod, "initContainers"))
        if sidecars := [each for each in first if each.get("restartPolicy") == "Always"]:
            self.pod["initContainers"] = sidecars
        self._sort_resources(container)
        self._sort_mounts(container)
        self._report_dropped(pod, container, [text(each, "name") for each in first if each not in sidecars])

    def claim_of(self, mount: Manifest) -> str:
        """Return the PersistentVolumeClaim that is mounted; empty for another volume."""
        return text(self.volumes.get(text(mount, "name"), {}), "persistentVolumeClaim", "claimName")

    def uri_of(self, path: str) -> str | None:
        """Return the URI of a path on a mounted PersistentVolumeClaim. The mount is no longer needed then."""
        for mount in sorted(self.mounts, key=lambda each: len(text(each, "mountPath")), reverse=True):
            claim, mounted = self.claim_of(mount), text(mount, "mountPath").rstrip("/")
            if claim and (path == mounted or path.startswith(f"{mounted}/")):
                self.unneeded.append(mount)
                return "pvc://" + posixpath.join(claim, text(mount, "subPath"), path[len(mounted) :].strip("/")).rstrip("/")
        return None

    def keep_used(self, model: str, words: Collection[str]) -> None:
        """Keep a mount of the model's claim if other words name files on it. A Pod cannot have a second volume of the same claim."""
        for mount in [each for each in self.mounts if each in self.unneeded]:
            path, claim = text(mount, "mountPath").rstrip("/"), self.claim_of(mount)
            files = ", ".join(sorted({word for word in words if f"{path}/" in word}))
            if files and f"{model}/".startswith(f"pvc://{claim}/"):
                self.mounts[self.mounts.index(mount)] = {**mount, "name": MODEL_VOLUME}
            elif files:
                self.report.advice.append(f"The PersistentVolumeClaim {claim} is no longer mounted at {path}. Change {files}.")

    def template(self) -> dict[str, Any]:
        """Return `spec.podTemplate`. The names of its parts go into the report."""
        kept = [f"{field.removesuffix('s')} {name}" for field, values in self.metadata.items() for name in values]
        kept += [*self.pod, *(f"{name} of the container" for name in self.container)]
        mounts = [dict(mount) for mount in self.mounts if mount not in self.unneeded]
        others = [*self.sidecars, *objects(self.pod, "initContainers")]
        mounted = {text(mount, "name") for mount in [*mounts, *(mount for each in others for mount in objects(each, "volumeMounts"))]}
        volumes = [dict(volume) for name, volume in self.volumes.items() if name in mounted]
        volumes += [self.shared_memory] if self.shared_memory else []
        container = self.container | ({"volumeMounts": mounts} if mounts else {})
        containers = [*([{"name": CONTAINER, **container}] if container else []), *map(dict, self.sidecars)]
        pod = self.pod | ({"volumes": volumes} if volumes else {}) | ({"containers": containers} if containers else {})
        kept += [f"volume {volume['name']}" for volume in volumes]
        kept += [f"container {text(each, 'name')}" for each in self.sidecars]
        if kept:
            self.report.kept.append(f"In spec.podTemplate: {', '.join(kept)}.")
        template = {"metadata": {field: dict(values) for field, values in self.metadata.items()}, "spec": pod}
        return {name: part for name, part in template.items() if part}

    def _sort_selector(self, pod: Manifest) -> None:
        selector = dict(mapping(pod, "nodeSelector"))
        if product := selector.pop(PRODUCT_LABEL, None):
            self.accelerator["products"] = [product]
            self.report.translated.append(f"The node selector {PRODUCT_LABEL} is spec.accelerator.products.")
        if selector:
            self.pod["nodeSelector"] = selector
        if runtime := text(pod, "runtimeClassName"):
            self.accelerator["runtimeClassName"] = runtime
            self.report.translated.append("runtimeClassName is spec.accelerator.runtimeClassName.")

    def _sort_resources(self, container: Manifest) -> None:
        for kind in ("requests", "limits"):
            for name, amount in mapping(container, "resources", kind).items():
                if (devices := self.images.devices_of(name)) is not None:
                    raise ImportRefusedError(f"the engine requests {name}, for {devices}. The operator supports NVIDIA GPUs only")
                if name == GPU_RESOURCE or name.startswith(MIG_RESOURCE_PREFIX):
                    self.gpus = read_count(amount) or 0
                if name.startswith(MIG_RESOURCE_PREFIX):
                    self.accelerator["mig"] = {"profile": name.removeprefix(MIG_RESOURCE_PREFIX)}
                elif name not in (GPU_RESOURCE, f"{GPU_RESOURCE}.shared"):
                    self.container.setdefault("resources", {}).setdefault(kind, {})[name] = amount

    def _sort_mounts(self, container: Manifest) -> None:
        for mount in objects(container, "volumeMounts"):
            path, claim = text(mount, "mountPath").rstrip("/") or "/", self.claim_of(mount)
            if path == "/dev/shm":
                self._keep_shared_memory(text(self.volumes.get(text(mount, "name"), {}), "emptyDir", "sizeLimit"))
            elif path.startswith(_CACHE_PATHS):
                whose = f"PersistentVolumeClaim {claim}" if claim else f"volume {text(mount, 'name').removeprefix('imported-')}"
                self.report.dropped.append(f"The {whose} at {path}: the operator keeps weights and compiled kernels on volumes of its own.")
                if claim:
                    told = f"To keep weights on the existing PersistentVolumeClaim, set spec.weights.claimName to {claim}."
                    self.report.advice.append(told)
            else:
                self.mounts.append(mount)

    def _keep_shared_memory(self, limit: str) -> None:
        if (read_bytes(limit) or 0) > (4 + 2 * max(self.gpus - 1, 0)) * 2**30:
            self.shared_memory = {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}
            told = f"The size of /dev/shm, {limit}, is that of the volume {SHARED_MEMORY_VOLUME} of spec.podTemplate."
            self.report.translated.append(told)
        else:
            self.report.dropped.append("The volume at /dev/shm: the operator mounts shared memory of its own.")

    def _report_dropped(self, pod: Manifest, container: Manifest, first: Iterable[str]) -> None:
        dropped = self.report.dropped
        if any(name in container for name in PROBES):
            dropped.append("Probes: those of the operator allow for long starts, until a deadline (spec.startup.deadlineSeconds).")
        if "lifecycle" in container or _kept(pod, ("terminationGracePeriodSeconds",)):
            dropped.append("Hooks and the grace period: the operator drains Pods (spec.rollout.drainSeconds).")
        if pod.get("resourceClaims") or mapping(container, "resources").get("claims"):
            dropped.append("Resource claims: the operator requests the GPUs itself.")
            way = "To request GPUs by ResourceClaims, set spec.accelerator.allocation to DRA."
            self.report.advice.append(f"{way} Add claims for other devices to spec.podTemplate.")
        for name in first:
            told = "the engine downloads its model itself. If it does something else, add it to spec.podTemplate."
            dropped.append(f"The init container {name}: {told}")


def _with_free_names(source: Manifest) -> dict[str, Any]:
    """Rename volumes with the name of one of the operator's, in a Pod or container: `spec.podTemplate` would replace the operator's."""
    renamed = dict(source)
    for part in ("volumes", "volumeMounts"):
        if listed := list(objects(source, part)):
            renamed[part] = [{**each, "name": f"imported-{each['name']}"} if each.get("name") in _OUR_VOLUMES else each for each in listed]
    for part in ("containers", "initContainers"):
        if listed := list(objects(source, part)):
            renamed[part] = [_with_free_names(each) for each in listed]
    return renamed


def _kept(source: Manifest, names: Sequence[str]) -> dict[str, Any]:
    given = {name: source[name] for name in names if source.get(name) not in (None, "", [], {})}
    return {name: value for name, value in given.items() if value != _DEFAULTS.get(name, False)}
