"""The Pod of a deployed engine: what belongs into the spec, into `spec.podTemplate`, and what the operator does itself."""

import posixpath
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import Manifest, mapping, objects, read_bytes, read_quantity, text
from vllm_operator.caches.claims import CACHE_VOLUME, WEIGHTS_VOLUME
from vllm_operator.catalog.gpus import Images
from vllm_operator.catalog.notes import say
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError
from vllm_operator.cli.imports.tables import load_tables
from vllm_operator.inventory.pools import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from vllm_operator.rendering.volumes import MODEL_VOLUME, SHARED_MEMORY_VOLUME, TEMPORARY_VOLUME, TOKEN_VOLUME

PRODUCT_LABEL = "nvidia.com/gpu.product"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_CACHE_PATHS = ("/root/.cache", "/.cache", "/home/vllm/.cache", "/root/.triton", "/tmp/.cache")
_OURS = (CACHE_VOLUME, WEIGHTS_VOLUME, MODEL_VOLUME, SHARED_MEMORY_VOLUME, TEMPORARY_VOLUME, TOKEN_VOLUME)
_FREE = {name: f"imported-{name}" for name in _OURS}
"""Other names for volumes: `spec.podTemplate` would replace the operator's."""


class PodParts:
    """Parts of a Pod: GPUs, `spec.accelerator` and `spec.podTemplate`. Raises ImportRefusedError for an engine without NVIDIA GPUs."""

    def __init__(self, engine: Engine, images: Images) -> None:
        pod, container = _with_names(engine.pod, _FREE), _with_names(engine.container, _FREE)
        self.report, self.metadata, self.images = engine.report, engine.metadata, images
        self.gpus = 0
        self.accelerator: dict[str, Any] = {}
        pod = {"serviceAccountName": pod.get("serviceAccount"), **pod}  # the old name
        self.pod, self.container = _kept(pod, load_tables()["Pod"].kept), _kept(container, load_tables()["container"].kept)
        self.mounts: list[Manifest] = []
        self.unneeded: list[Manifest] = []  # mounts of the model and of adapters, which the operator mounts itself
        self.added: list[dict[str, Any]] = []  # volumes that replace the operator's
        self.volumes = {name: each for each in objects(pod, "volumes") if (name := text(each, "name"))}
        unneeded = load_tables()["other containers"].dropped.items()
        others = [*objects(pod, "containers"), *objects(pod, "initContainers")]
        left_out = {text(each, "name"): why for each in others for part, why in unneeded if part in text(each, "image")}
        self.report.dropped += [f"The container {name}: {why}." for name, why in left_out.items()]
        self.sidecars = [each for each in objects(pod, "containers") if each.get("name") not in (container.get("name"), *left_out)]
        self._sort_selector(pod)
        first = [each for each in objects(pod, "initContainers") if each.get("name") not in left_out]
        self.first = [each for each in first if each.get("restartPolicy") != "Always"]
        self.pod |= {"initContainers": sidecars} if (sidecars := [each for each in first if each not in self.first]) else {}
        self._sort_resources(container)
        self._sort_mounts(container)
        self._report_dropped(pod, container)

    def claim_of(self, mount: Manifest) -> str:
        """Return the PersistentVolumeClaim that is mounted; empty for another volume."""
        return text(self.volumes.get(text(mount, "name"), {}), "persistentVolumeClaim", "claimName")

    def uri_of(self, path: str, *, on_any_volume: bool = False) -> str | None:
        """Return the URI of a path on a mounted PersistentVolumeClaim, or `on_any_volume`, which becomes the volume of the model."""
        for mount in sorted(self.mounts, key=lambda each: len(text(each, "mountPath")), reverse=True):
            mounted, name = text(mount, "mountPath").rstrip("/"), text(mount, "name")
            is_on = f"{path}/".startswith(f"{mounted}/")
            if is_on and (claim := self.claim_of(mount) or (name if on_any_volume and self._take(name) else "")):
                self.unneeded.append(mount)
                return "pvc://" + posixpath.join(claim, text(mount, "subPath"), path[len(mounted) :].strip("/")).rstrip("/")
        return None

    def _take(self, name: str) -> bool:
        """Give a volume the name of the model's volume, also in init containers that fill it. An empty one is of no use."""
        filling = [each for each in self.first if any(part.get("name") == name for part in objects(each, "volumeMounts"))]
        if name not in self.volumes or ("emptyDir" in self.volumes[name] and not filling):
            return False
        self.added.append({**self.volumes[name], "name": MODEL_VOLUME})
        self.first = [_with_names(each, {name: MODEL_VOLUME}) if each in filling else each for each in self.first]
        self.report.translated.append(say("model.volume", name=name.removeprefix("imported-")))
        return True

    def keep_used(self, model: str, words: Collection[str], directories: Collection[str]) -> None:
        """Keep a mount of the model's volume, which a Pod has once, if other words name files on it; drop one with caches alone."""
        for mount in list(self.mounts):
            path, claim = text(mount, "mountPath").rstrip("/"), self.claim_of(mount)
            whose = claim or text(mount, "name").removeprefix("imported-")
            files = ", ".join(sorted({word for word in words if f"{path}/" in word}))
            if mount not in self.unneeded:
                if not files and any(f"{directory}/".startswith(f"{path}/") for directory in directories):
                    self._drop_cache(mount, path, claim)
                    self.mounts.remove(mount)
            elif files and f"{model}/".startswith(f"pvc://{claim or text(mount, 'name')}/"):
                self.mounts[self.mounts.index(mount)] = {**mount, "name": MODEL_VOLUME}
            elif files:
                self.report.advice.append(say("files", volume=whose, path=path, files=files))

    def template(self) -> dict[str, Any]:
        """Return `spec.podTemplate`. The names of its parts go into the report."""
        mounts = [dict(mount) for mount in self.mounts if mount not in self.unneeded]
        names = {text(each, "name") for each in (*mounts, *self.added)}
        filling = [each for each in self.first if not names.isdisjoint(text(it, "name") for it in objects(each, "volumeMounts"))]
        self.pod |= {"initContainers": [*objects(self.pod, "initContainers"), *filling]} if filling else {}
        self.report.kept += [say("filled", name=text(each, "name")) for each in filling]
        self.report.dropped += [say("init", name=text(each, "name")) for each in self.first if each not in filling]
        kept = [f"{field.removesuffix('s')} {name}" for field, values in self.metadata.items() for name in values]
        kept += [*self.pod, *(f"{name} of the container" for name in self.container)]
        others = [*self.sidecars, *objects(self.pod, "initContainers")]
        taken = [each for each in others if any(port.get("containerPort") == 8000 for port in objects(each, "ports"))]
        self.report.advice += [say("port", name=text(each, "name")) for each in taken]
        mounted = {text(mount, "name") for mount in [*mounts, *(mount for each in others for mount in objects(each, "volumeMounts"))]}
        volumes = [dict(volume) for name, volume in self.volumes.items() if name in mounted]
        volumes += self.added
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
        self.pod |= {"nodeSelector": selector} if selector else {}
        if runtime := text(pod, "runtimeClassName"):
            self.accelerator["runtimeClassName"] = runtime
            self.report.translated.append("runtimeClassName is spec.accelerator.runtimeClassName.")

    def _sort_resources(self, container: Manifest) -> None:
        parts = load_tables()["parts of GPUs"].dropped
        for kind in ("requests", "limits"):
            for name, amount in mapping(container, "resources", kind).items():
                if (devices := self.images.devices_of(name)) is not None:
                    raise ImportRefusedError(f"the engine requests {name}, for {devices}. The operator supports NVIDIA GPUs only")
                if name == GPU_RESOURCE or name.startswith(MIG_RESOURCE_PREFIX):
                    self.gpus = ceil(asked := read_quantity(amount) or 0)
                    self.report.dropped += [say("gpu.part", name=name, amount=amount, gpus=self.gpus)] if asked != self.gpus else []
                if name.startswith(MIG_RESOURCE_PREFIX):
                    self.accelerator["mig"] = {"profile": name.removeprefix(MIG_RESOURCE_PREFIX)}
                elif name in parts:
                    self.report.dropped.append(f"{name} {amount}: {parts[name]}.")
                elif name not in (GPU_RESOURCE, f"{GPU_RESOURCE}.shared"):
                    self.container.setdefault("resources", {}).setdefault(kind, {})[name] = amount

    def _sort_mounts(self, container: Manifest) -> None:
        for mount in objects(container, "volumeMounts"):
            path, claim = text(mount, "mountPath").rstrip("/") or "/", self.claim_of(mount)
            if path == "/dev/shm":
                limit = text(self.volumes.get(text(mount, "name"), {}), "emptyDir", "sizeLimit")
                if (read_bytes(limit) or 0) > (4 + 2 * max(self.gpus - 1, 0)) * 2**30:
                    self.added.append({"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
                    self.report.translated.append(say("shared-memory", limit=limit, name=SHARED_MEMORY_VOLUME))
                else:
                    self.report.dropped.append("The volume at /dev/shm: the operator mounts shared memory of its own.")
            elif path.startswith(_CACHE_PATHS):
                self._drop_cache(mount, path, claim)
            else:
                self.mounts.append(mount)

    def _drop_cache(self, mount: Manifest, path: str, claim: str) -> None:
        whose = f"PersistentVolumeClaim {claim}" if claim else f"volume {text(mount, 'name').removeprefix('imported-')}"
        self.report.dropped.append(say("cache", volume=whose, path=path))
        self.report.advice += [say("cache.claim", claim=claim)] if claim else []

    def _report_dropped(self, pod: Manifest, container: Manifest) -> None:
        dropped = self.report.dropped
        if any(name in container for name in PROBES):
            dropped.append("Probes: those of the operator allow for long starts, until a deadline (spec.startup.deadlineSeconds).")
        if "lifecycle" in container or _kept(pod, ("terminationGracePeriodSeconds",)):
            dropped.append("Hooks and the grace period: the operator drains Pods (spec.rollout.drainSeconds).")
        if pod.get("resourceClaims") or mapping(container, "resources").get("claims"):
            dropped.append("Resource claims: the operator requests the GPUs itself.")
            self.report.advice.append(say("claims"))


def _with_names(source: Manifest, names: Mapping[str, str]) -> dict[str, Any]:
    """Rename volumes in a Pod or container."""
    renamed = dict(source)
    for part in ("volumes", "volumeMounts"):
        if listed := list(objects(source, part)):
            renamed[part] = [{**each, "name": names.get(text(each, "name"), each.get("name"))} for each in listed]
    for part in ("containers", "initContainers"):
        if listed := list(objects(source, part)):
            renamed[part] = [_with_names(each, names) for each in listed]
    return renamed


def _kept(source: Manifest, names: Sequence[str]) -> dict[str, Any]:
    given = {name: source[name] for name in names if source.get(name) not in (None, "", [], {})}
    return {name: value for name, value in given.items() if value != load_tables()["Pod"].defaults.get(name, False)}
