"""From a deployed engine to a VLLMDeployment, with a report."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.api.reading import mapping, objects, read_integer, text
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.cli.imports.engine import REFERENCE, CommandLine, Engine, ImportRefusedError, Report, read_command_line
from vllm_operator.cli.imports.pod import PodParts, read_pod
from vllm_operator.planning.engine.image import split_image, version_of_image
from vllm_operator.planning.engine.overrides import ENGINE_VARIABLE_PREFIX, UNRECORDED, instead_of

Manifest = dict[str, Any]

_SIZES = {
    **dict.fromkeys(("--tensor-parallel-size", "-tp"), "tensor"),
    **dict.fromkeys(("--pipeline-parallel-size", "-pp"), "pipeline"),
    **dict.fromkeys(("--data-parallel-size", "-dp"), "data"),
}
_BACKENDS = {
    **dict.fromkeys(("--attention-backend", "VLLM_ATTENTION_BACKEND"), "attention"),
    **dict.fromkeys(("--all2all-backend", "VLLM_ALL2ALL_BACKEND"), "allToAll"),
    "--moe-backend": "moe",
}
_MODEL_FLAGS = ("--model", "--model-tag", "--model-id", "--model-dir")
_NAME_FLAGS = ("--served-model-name", "--model-name")
_SECRET_FLAGS = ("--api-key", "--hf-token")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
_DROPPED = {
    **dict.fromkeys(("--host", "--port", "--uds"), "the engine listens on port 8000 of its Pod, the Service on spec.service.port."),
    "--download-dir": "the operator keeps the weights on a volume of its own (spec.weights).",
    **dict.fromkeys(_DEVICES, "a Pod sees exactly the GPUs that it requests."),
}
"""Flags and variables without a counterpart, with the reason."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_READABLE = re.compile(r"(hf|pvc)://\S+|(s3|gs|az)://[^/\s]+/\S+")
_STORES = ("s3", "gs", "az")
_OFFICIAL_IMAGES = ("vllm/vllm-openai", "docker.io/vllm/vllm-openai")


def translate(engine: Engine, catalog: Catalog, *, model: str | None = None) -> tuple[Manifest, Report]:
    """Write an engine as a VLLMDeployment for a version of the catalog. Raises ImportRefusedError if there is no way to write it.

    `model` is the URI of a model that the operator cannot read from where it is.
    """
    return _Translation(engine, catalog, model).result()


class _Translation:
    """The steps of one translation. Each fills in a part of the spec and of the report."""

    def __init__(self, engine: Engine, catalog: Catalog, model: str | None) -> None:
        self.engine = engine
        self.catalog = catalog
        self.given_model = model
        self.report = Report(dropped=list(engine.dropped), advice=list(engine.advice))
        self.spec: dict[str, Any] = {"model": {}, "engine": {}}
        self.table: VersionTable | None = None
        self.parts: PodParts = read_pod(engine, self.report)
        self.secrets: dict[str, tuple[str, str]] = {}

    def result(self) -> tuple[Manifest, Report]:
        engine = self.engine
        self._version()
        variables = list(objects(engine.container, "env"))
        references = ((text(each, "name"), mapping(each, "valueFrom", "secretKeyRef")) for each in variables)
        self.secrets = {name: (text(secret, "name"), text(secret, "key")) for name, secret in references if secret}
        values = {text(each, "name"): text(each, "value") for each in variables if "value" in each}
        line = read_command_line(engine.words, {**values, **{name: f"$({name})" for name in self.secrets}})
        self.report.dropped += [f"The command in the container's script: {_shortened(other)}" for other in line.others]
        only_for_flags = {value for flag, values in line.flags if flag in _SECRET_FLAGS for value in values}
        self._variables([each for each in variables if f"$({text(each, 'name')})" not in only_for_flags])
        self._adapters(engine.adapters)
        self._adapters(_modules(line.values_of(("--lora-modules",))), all_or_none="adapters" not in self.spec)
        sizes = self._flags(line)
        named = line.model or next(iter(line.values_of(_MODEL_FLAGS)), None)
        self._model(named, self._served_name(line.values_of(_NAME_FLAGS) or (engine.served_name,)))
        self._devices(sizes)
        self.parts.keep_used(text(self.spec, "model", "uri"), self._other_words(), self.report)
        if engine.replicas is not None:
            self.spec["replicas"] = engine.replicas
        template, kept = self.parts.template()
        self.spec |= {
            name: dict(part) for name, part in (("rollout", engine.rollout), ("service", engine.service), ("weights", engine.weights))
        }
        self.spec["podTemplate"] = template
        if kept:
            self.report.kept.append(f"In spec.podTemplate: {', '.join(kept)}.")
        metadata = {"name": _object_name(engine.name), **({"namespace": engine.namespace} if engine.namespace else {})}
        spec = {name: value for name, value in self.spec.items() if value not in ({}, [], None)}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}, self.report

    def _version(self) -> None:
        image, engine = self.engine.image, self.spec["engine"]
        version = version_of_image(image) if image else None
        repository = split_image(image)[0]
        if (devices := self.catalog.images.other_devices(image)) is not None:
            engine["version"] = version or self.catalog.versions.newest.version
            self.table = self.catalog.versions.resolve(engine["version"]).table
            self.report.dropped.append(f"The image {image}: it is for {devices}, and the operator runs engines on NVIDIA GPUs.")
            self.report.advice.append(f"spec.engine.version is {engine['version']}, in vLLM's image for NVIDIA GPUs. Check it.")
        elif version is not None:
            self.table = self.catalog.versions.resolve(version).table
            engine["version"] = version
            if repository in _OFFICIAL_IMAGES:
                self.report.translated.append(f"The image {image} is version {version}; the operator takes its variant for the GPU driver.")
            else:
                engine["image"] = image
                self.report.kept.append(f"The image {image}.")
                if not repository.endswith(_OFFICIAL_IMAGES):
                    self.report.advice.append(f"Check that the tag of the image {image} is the version of vLLM in it ({version}).")
        elif image and not repository.endswith(_OFFICIAL_IMAGES):
            engine["image"] = image
            self.report.advice.append(f"The tag of the image {image} is not a vLLM release. Set spec.engine.version to its version.")
        else:
            self.table = self.catalog.versions.newest
            engine["version"] = newest = self.table.version
            told = f"The image {image} does not say its version" if image else "The manifest does not say the version of vLLM"
            self.report.advice.append(f"{told}, so spec.engine.version is the newest that the operator knows, {newest}. Check it.")

    def _flags(self, line: CommandLine) -> dict[str, int]:
        """Sort the flags into fields of the spec and `engine.args`; return the parallel sizes."""
        sizes: dict[str, int] = {}
        args: dict[str, dict[str, Any]] = {}
        for written, values in line.flags:
            flag = self._renamed(written)
            value = values[0] if values else None
            if flag in _SIZES:
                sizes[_SIZES[flag]] = read_integer(value) or 1
                self.report.translated.append(f"{flag} {value} is spec.parallelism.{_SIZES[flag]}.")
            elif flag == "--enable-expert-parallel":
                self.spec.setdefault("parallelism", {})["expert"] = "Enabled"
                self.report.translated.append(f"{flag} is spec.parallelism.expert.")
            elif flag == "--revision":
                self.spec["model"]["revision"] = value
                self.report.translated.append(f"{flag} is spec.model.revision.")
            elif flag in _BACKENDS and value is not None:
                self._backend(flag, value)
            elif flag in _SECRET_FLAGS:
                self._secret(flag, value)
                if len(values) > 1:
                    self.report.dropped.append(f"{flag}: the values after the first. A VLLMDeployment has one key, which clients share.")
            elif flag in ("--enable-lora", "--lora-modules") and "adapters" in self.spec:
                self.report.translated.append(f"{flag} is spec.adapters.")
            elif flag in _DROPPED:
                self.report.dropped.append(f"{flag}: {_DROPPED[flag]}")
            elif flag not in (*_MODEL_FLAGS, *_NAME_FLAGS) and self._has_flag(flag):
                self._check_references(values)
                if flag in args:
                    self.report.dropped.append(f"{flag} {' '.join(args[flag].get('values', [args[flag].get('value', '')]))}: given twice.")
                given = {"value": value} if len(values) == 1 else {"values": list(values)} if values else {}
                args[flag] = {"name": flag.lstrip("-"), **given}
        if args:
            self.spec["engine"]["args"] = list(args.values())
            self.report.kept.append(f"Flags: {', '.join(args)}.")
        return sizes

    def _other_words(self) -> list[str]:
        """Return the values of flags and variables that stay."""
        args, env = (list(objects(self.spec, "engine", name)) for name in ("args", "env"))
        return [str(word) for each in (*args, *env) for word in (each.get("value", ""), *each.get("values", ()))]

    def _check_references(self, values: Sequence[str]) -> None:
        secret = next((found[1] for value in values for found in REFERENCE.finditer(value) if found[1] in self.secrets), None)
        if secret:
            raise ImportRefusedError(f"the command line uses the variable {secret}, whose value is not in the manifest. Write the value")

    def _secret(self, flag: str, value: str | None) -> None:
        """Name the Secret of a flag such as `--api-key $(KEY)`."""
        name, key = self.secrets.get((value or "").removeprefix("$(").removesuffix(")"), ("", ""))
        if flag == "--hf-token":
            self._token(flag, name, key)
        else:
            self._key(flag, name, key)

    def _key(self, source: str, name: str, key: str) -> None:
        if name:
            self.spec["auth"] = {"apiKeySecretRef": {"name": name, **({"key": key} if key else {})}}
            self.report.translated.append(f"{source} is spec.auth.apiKeySecretRef.")
        else:
            self.report.dropped.append(f"{source}: a key does not belong in a manifest.")
            self.report.advice.append("Put the API key into a Secret, and name it in spec.auth.apiKeySecretRef.")

    def _renamed(self, flag: str) -> str:
        """Return the flag, or `--no-enable-x` for a `--disable-x` that this version has only as its opposite."""
        opposite = flag.replace("--disable-", "--enable-", 1)
        if self.table is None or opposite == flag or self.table.knows_flag(flag) or not self.table.knows_flag(opposite):
            return flag
        renamed = opposite.replace("--", "--no-", 1)
        self.report.translated.append(f"{flag} is {renamed} in vLLM {self.table.version}.")
        return renamed

    def _has_flag(self, flag: str) -> bool:
        table = self.table
        if table is None or table.knows_flag(flag) or any(known.startswith(flag) for known in table.flags):
            return True
        return self._is_missing(flag, "have it", table, table.flags)

    def _has_variable(self, name: str) -> bool:
        table = self.table
        if not name or table is None or not name.startswith(ENGINE_VARIABLE_PREFIX) or name in UNRECORDED or table.knows_variable(name):
            return bool(name)
        return self._is_missing(name, "know it", table, table.variables)

    def _is_missing(self, name: str, verb: str, table: VersionTable, known: Collection[str]) -> bool:
        self.report.dropped.append(f"{name}: vLLM {table.version} does not {verb}.{instead_of(name, self.catalog.replacements, known)}")
        return False

    def _backend(self, source: str, value: str) -> None:
        self.spec.setdefault("backends", {})[_BACKENDS[source]] = value
        self.report.translated.append(f"{source} {value} is spec.backends.{_BACKENDS[source]}.")

    def _variables(self, variables: Sequence[Mapping[str, Any]]) -> None:
        caches = {name for cache in (*self.catalog.caches.compiled, self.catalog.caches.weights) for name in cache.written}
        env: dict[str, dict[str, Any]] = {}
        for variable in variables:
            name, value = text(variable, "name"), text(variable, "value")
            secret = mapping(variable, "valueFrom", "secretKeyRef")
            if name in _TOKENS:
                self._token(name, text(secret, "name"), text(secret, "key"))
            elif name == "VLLM_API_KEY":
                self._key(name, text(secret, "name"), text(secret, "key"))
            elif name in caches:
                self.report.dropped.append(f"{name}: the operator keeps all caches on a volume, and sets this variable itself.")
            elif name in _DROPPED:
                self.report.dropped.append(f"{name}: {_DROPPED[name]}")
            elif name in _BACKENDS and value:
                self._backend(name, value)
            elif name != "STORAGE_URI" and self._has_variable(name):  # the URI is the engine's `model`
                env[name] = {key: variable[key] for key in ("name", "value", "valueFrom") if key in variable}
        if self.engine.token:
            self._token("The token", *self.engine.token)
        if env:
            self.spec["engine"]["env"] = list(env.values())
            self.report.kept.append(f"Variables: {', '.join(env)}.")

    def _token(self, source: str, name: str, key: str) -> None:
        if name:
            self.spec["model"]["tokenSecretRef"] = {"name": name, "key": key or "token"}
            self.report.translated.append(f"{source} is spec.model.tokenSecretRef.")
        else:
            self.report.dropped.append(f"{source}: its value does not belong in a manifest.")
            self.report.advice.append("Put the token for the hub into a Secret, and name it in spec.model.tokenSecretRef.")

    def _served_name(self, names: Sequence[str]) -> str:
        """Return the first name for clients, by which vLLM also answers, and report the others."""
        if others := ", ".join(names[1:]):
            self.report.dropped.append(
                f"The names {others} of the model: a VLLMDeployment has one, spec.model.servedName. Requests for others get the answer 404."
            )
            self.report.advice.append(
                f"Before clients of {others} move over, change the name in their requests, or let the router or gateway before the engine "
                f"replace it by {names[0]}."
            )
        return names[0]

    def _model(self, named: str | None, served: str) -> None:
        location, revision = _apart(self.given_model or self._location(named))
        self.spec["model"] = {"uri": location, **({"revision": revision} if revision else {}), **self.spec["model"]}
        scheme, _, rest = location.partition("://")
        if scheme in _STORES:
            self.report.advice.append(
                f"The engine reads {location} with the account in its variables or of its service account. The operator does not read "
                "object stores: set spec.model.facts.weightSize. See the page about weights."
            )
        if served and served != rest:
            self.spec["model"]["servedName"] = served
            self.report.translated.append(f"The model's name for clients, {served}, is spec.model.servedName.")
        elif named and not served and named != rest:
            self.spec["model"]["servedName"] = named
            self.report.translated.append(f"Clients asked for the model by its path {named}, so it is spec.model.servedName.")

    def _adapters(self, given: Sequence[Mapping[str, Any]], *, all_or_none: bool = False) -> None:
        """Add adapters to the spec, or report them. With `all_or_none`, do nothing if one cannot be added: their flag stays."""
        found = [(each, text(each, "name"), self._uri(text(each, "uri"))) for each in given]
        if all_or_none and any(uri is None for _, _, uri in found):
            return
        for each, name, uri in found:
            if uri is None:
                self.report.dropped.append(f"The adapter {name} at {text(each, 'uri')}: it is neither on the hub nor on a mounted volume.")
                self.report.advice.append(f"Copy the adapter {name} to a PersistentVolumeClaim, and add it to spec.adapters.")
            else:
                location, revision = _apart(uri)
                adapter = {**each, "uri": location, **({"revision": revision} if revision else {})}
                self.spec.setdefault("adapters", []).append(adapter)
                self.report.translated.append(f"The adapter {name} is in spec.adapters.")

    def _uri(self, path: str) -> str | None:
        """Return the URI of a path on a mounted PersistentVolumeClaim, or of a name or URI on the hub; None for another place."""
        if path.startswith("/"):
            return self.parts.uri_of(path)
        if path.startswith(("hf://", "pvc://")):
            return path
        return f"hf://{path}" if _HUB.fullmatch(path) else None

    def _location(self, named: str | None) -> str:
        elsewhere = self.engine.model
        if _READABLE.fullmatch(elsewhere):
            return elsewhere
        path = named if named and not named.startswith("/mnt/models") else elsewhere or named
        if not path:
            raise ImportRefusedError("the manifest names no model. Add --model hf://organisation/name or --model pvc://claim/path")
        if _READABLE.fullmatch(path):
            return path
        if uri := self._uri(path):
            self.report.translated.append(f"The model {'at ' if path.startswith('/') else ''}{path} is {uri}.")
            return uri
        raise ImportRefusedError(
            f"the model is at {path}, which is neither on the model hub nor on a PersistentVolumeClaim of this manifest. Add "
            "--model hf://organisation/name, or copy it to a PersistentVolumeClaim and add --model pvc://claim/path"
        )

    def _devices(self, sizes: Mapping[str, int]) -> None:
        gpus, needed = self.parts.gpus, prod(sizes.values())
        accelerator = dict(self.parts.accelerator)
        parallelism = {**sizes, **self.spec.pop("parallelism", {})}
        if gpus == 0:
            self.report.advice.append("The manifest requests no GPU. An engine of the operator always runs on a GPU, and requests it.")
        elif gpus == 1 and needed == 1:
            parallelism = {name: value for name, value in parallelism.items() if name == "expert"}
            accelerator["count"] = 1
        elif needed == 1:
            parallelism = {"tensor": gpus, **{name: value for name, value in parallelism.items() if name != "tensor"}}
            self.report.translated.append(f"{gpus} GPUs without a parallel size are spec.parallelism.tensor {gpus}.")
        elif gpus != needed:
            self.report.advice.append(
                f"The manifest requests {gpus} GPUs, but its parallel sizes need {needed}. The operator requests {needed}."
            )
        if parallelism or "count" in accelerator:
            field = "spec.parallelism" if parallelism else "spec.accelerator.count"
            self.report.advice.append(f"Remove {field} to let the operator choose how many GPUs the model needs.")
        self.spec |= {"accelerator": accelerator, "parallelism": parallelism}


def _apart(uri: str) -> tuple[str, str]:
    """Split a URI of KServe into the URI and the revision on the hub: `hf://organisation/name:revision`."""
    location, _, revision = uri.removeprefix("hf://").partition(":")
    return (f"hf://{location}", revision) if uri.startswith("hf://") else (uri, "")


def _modules(values: Sequence[str]) -> list[dict[str, Any]]:
    """Read the values of `--lora-modules`: `name=path`, or JSON with a name and a path."""
    modules = []
    for value in values:
        name, _, path = value.partition("=")
        if value.startswith("{"):
            try:
                module = json.loads(value)
            except ValueError:
                module = {}
            name, path = text(module, "name"), text(module, "path")
        modules.append({"name": name, "uri": path})
    return modules


def _shortened(command: str) -> str:
    short = " ".join(command.split())
    return short if len(short) <= 80 else short[:79] + "…"


def _object_name(name: str) -> str:
    """Return a valid name of a VLLMDeployment, which is also the name of a Service."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower())[:52].strip("-")
    return plain if re.match(r"[a-z]", plain) else f"vllm-{plain}"[:52].strip("-")
