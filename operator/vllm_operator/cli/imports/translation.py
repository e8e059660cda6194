"""From a deployed engine to a VLLMDeployment, with a report."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.api.reading import mapping, objects, read_integer, text
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.cli.imports.command_line import read_command_line
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, Report
from vllm_operator.cli.imports.pod import PodParts, read_pod
from vllm_operator.planning.engine.image import version_of_image
from vllm_operator.planning.engine.overrides import ENGINE_VARIABLE_PREFIX, UNRECORDED, instead_of

Flags = Sequence[tuple[str, Sequence[str]]]
Manifest = dict[str, Any]

_SIZES = {
    "--tensor-parallel-size": "tensor",
    "--pipeline-parallel-size": "pipeline",
    "--data-parallel-size": "data",
    "-tp": "tensor",
    "-pp": "pipeline",
    "-dp": "data",
}
_MODEL_FLAGS = ("--model", "--model-tag", "--model-id", "--model-dir")
_NAME_FLAGS = ("--served-model-name", "--model-name")
_ADDRESS_FLAGS = ("--host", "--port", "--uds")
_BACKEND_FLAGS = {"--attention-backend": "attention", "--moe-backend": "moe", "--all2all-backend": "allToAll"}
_BACKEND_VARIABLES = {"VLLM_ATTENTION_BACKEND": "attention", "VLLM_ALL2ALL_BACKEND": "allToAll"}
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_OWN_SERVER = ("vllm/vllm-openai", "docker.io/vllm/vllm-openai")


def translate(engine: Engine, catalog: Catalog, *, model: str | None = None) -> tuple[Manifest, Report]:
    """Write an engine as a VLLMDeployment.

    Args:
        engine: The engine.
        catalog: The catalog, for the flags and variables of its version.
        model: URI of the model, for a model that the operator cannot read from where it is.

    Raises:
        ImportRefusedError: There is no way to write it.
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

    def result(self) -> tuple[Manifest, Report]:
        self._version()
        variables = list(objects(self.engine.container, "env"))
        known = {text(each, "name"): text(each, "value") for each in variables if "value" in each}
        line = read_command_line(self.engine.words, known)
        self.report.dropped += [f"The command in the container's script: {clean_command(other)}" for other in line.others]
        self._variables(variables)
        sizes = self._flags(line.flags)
        self._model(line.model or self._value(line.flags, _MODEL_FLAGS), self._value(line.flags, _NAME_FLAGS))
        self._devices(sizes)
        self._rest()
        metadata = {"name": _object_name(self.engine.name), **({"namespace": self.engine.namespace} if self.engine.namespace else {})}
        spec = {name: value for name, value in self.spec.items() if value not in ({}, [], None)}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}, self.report

    # the steps

    def _version(self) -> None:
        image, engine = self.engine.image, self.spec["engine"]
        newest = self.catalog.versions.newest
        version = version_of_image(image) if image else None
        if version is not None:
            self.table = self.catalog.versions.resolve(version).table
            engine["version"] = version
            if image is not None and image.partition(":")[0] in _OWN_SERVER:
                self.report.translated.append(f"The image {image} is version {version}; the operator takes its variant for the GPU driver.")
            else:
                engine["image"] = image
                self.report.kept.append(f"The image {image}.")
        elif image is not None and not image.partition(":")[0].endswith(_OWN_SERVER):
            engine["image"] = image
            self.report.advice.append(f"The tag of the image {image} is not a vLLM release. Set spec.engine.version to its version.")
        else:
            self.table = newest
            engine["version"] = newest.version
            told = f"The image {image} does not say its version" if image else "The manifest does not say the version of vLLM"
            self.report.advice.append(f"{told}, so spec.engine.version is the newest that the operator knows, {newest.version}. Check it.")

    def _flags(self, flags: Flags) -> dict[str, int]:
        """Sort the flags into fields of the spec and `engine.args`; return the parallel sizes."""
        sizes: dict[str, int] = {}
        args: dict[str, dict[str, Any]] = {}
        for written, values in flags:
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
            elif flag in _BACKEND_FLAGS and value is not None:
                self._backend(_BACKEND_FLAGS[flag], value, flag)
            elif flag in _ADDRESS_FLAGS:
                self.report.dropped.append(f"{flag}: the engine listens on port 8000 of its Pod, the Service on spec.service.port.")
            elif flag == "--download-dir":
                self.report.dropped.append(f"{flag}: the operator keeps the weights on a volume of its own (spec.weights).")
            elif flag == "--api-key":
                self.report.dropped.append(f"{flag}: a key does not belong in a manifest.")
                self.report.advice.append("Put the API key into a Secret, and name it in spec.auth.apiKeySecretRef.")
            elif flag not in (*_MODEL_FLAGS, *_NAME_FLAGS) and self._has_flag(flag):
                if flag in args:
                    self.report.dropped.append(f"{flag} {' '.join(args[flag].get('values', [args[flag].get('value', '')]))}: given twice.")
                given = {"value": value} if len(values) == 1 else {"values": list(values)} if values else {}
                args[flag] = {"name": flag.lstrip("-"), **given}
        if args:
            self.spec["engine"]["args"] = list(args.values())
            self.report.kept.append(f"Flags: {', '.join(args)}.")
        return sizes

    def _renamed(self, flag: str) -> str:
        """The flag; for one that newer versions have only as its opposite (`--disable-x`), the negation of that (`--no-enable-x`)."""
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
        hint = instead_of(flag, self.catalog.replacements, table.flags)
        self.report.dropped.append(f"{flag}: vLLM {table.version} does not have it.{hint}")
        return False

    def _backend(self, component: str, value: str, source: str) -> None:
        self.spec.setdefault("backends", {})[component] = value
        self.report.translated.append(f"{source} {value} is spec.backends.{component}.")

    def _variables(self, variables: Sequence[Mapping[str, Any]]) -> None:
        caches = {name for cache in (*self.catalog.caches.compiled, self.catalog.caches.weights) for name in cache.written}
        env: dict[str, dict[str, Any]] = {}
        for variable in variables:
            name, value = text(variable, "name"), text(variable, "value")
            secret = mapping(variable, "valueFrom", "secretKeyRef")
            if name in _TOKENS:
                self._token(name, secret)
            elif name == "VLLM_API_KEY" and secret:
                self.spec["auth"] = {"apiKeySecretRef": {"name": text(secret, "name"), "key": text(secret, "key")}}
                self.report.translated.append(f"{name} is spec.auth.apiKeySecretRef.")
            elif name in caches:
                self.report.dropped.append(f"{name}: the operator keeps all caches on a volume, and sets this variable itself.")
            elif name == "STORAGE_URI":
                continue
            elif name in _DEVICES:
                self.report.dropped.append(f"{name}: a Pod sees exactly the GPUs that it requests.")
            elif name in _BACKEND_VARIABLES and value:
                self._backend(_BACKEND_VARIABLES[name], value, name)
            elif self._has_variable(name):
                env[name] = {key: variable[key] for key in ("name", "value", "valueFrom") if key in variable}
        if self.engine.token:
            self._token("The token", {"name": self.engine.token[0], "key": self.engine.token[1]})
        if env:
            self.spec["engine"]["env"] = list(env.values())
            self.report.kept.append(f"Variables: {', '.join(env)}.")

    def _token(self, source: str, secret: Mapping[str, Any]) -> None:
        if text(secret, "name"):
            self.spec["model"]["tokenSecretRef"] = {"name": text(secret, "name"), "key": text(secret, "key") or "token"}
            self.report.translated.append(f"{source} is spec.model.tokenSecretRef.")
        else:
            self.report.dropped.append(f"{source}: its value does not belong in a manifest.")
            self.report.advice.append("Put the token for the hub into a Secret, and name it in spec.model.tokenSecretRef.")

    def _has_variable(self, name: str) -> bool:
        table = self.table
        if not name or table is None or not name.startswith(ENGINE_VARIABLE_PREFIX) or name in UNRECORDED or table.knows_variable(name):
            return bool(name)
        hint = instead_of(name, self.catalog.replacements, table.variables)
        self.report.dropped.append(f"{name}: vLLM {table.version} does not know it.{hint}")
        return False

    def _model(self, named: str | None, served: str | None) -> None:
        location = self.given_model or self._location(named)
        self.spec["model"] = {"uri": location, **self.spec["model"]}
        name = served or self.engine.served_name
        rest = location.partition("://")[2]
        if name and name != rest:
            self.spec["model"]["servedName"] = name
            self.report.translated.append(f"The model's name for clients, {name}, is spec.model.servedName.")
        elif named and not name and named != rest:
            self.spec["model"]["servedName"] = named
            self.report.translated.append(f"Clients asked for the model by its path {named}, so it is spec.model.servedName.")

    def _location(self, named: str | None) -> str:
        elsewhere = self.engine.model
        if elsewhere and elsewhere.startswith(("hf://", "pvc://")):
            return elsewhere
        path = named if named and not named.startswith("/mnt/models") else elsewhere or named
        if not path:
            raise ImportRefusedError("the manifest names no model. Add --model hf://organisation/name or --model pvc://claim/path")
        if path.startswith("/"):
            uri = self.parts.uri_of(path)
            if uri is not None:
                self.report.translated.append(f"The model at {path} is {uri}.")
                return uri
        elif "://" not in path and _HUB.fullmatch(path):
            self.report.translated.append(f"The model {path} is hf://{path}.")
            return f"hf://{path}"
        raise ImportRefusedError(
            f"the model is at {path}, which is neither on the model hub nor on a PersistentVolumeClaim of this manifest. Add "
            "--model hf://organisation/name, or copy it to a PersistentVolumeClaim and add --model pvc://claim/path"
        )

    def _devices(self, sizes: Mapping[str, int]) -> None:
        parts, product = self.parts, 1
        for size in sizes.values():
            product *= size
        accelerator = dict(parts.accelerator)
        if parts.gpus == 0:
            self.report.advice.append("The manifest requests no GPU. An engine of the operator always runs on a GPU, and requests it.")
        parallelism = {**sizes, **self.spec.pop("parallelism", {})}
        if parts.gpus and product == 1 and parts.gpus > 1:
            parallelism = {"tensor": parts.gpus, **{name: value for name, value in parallelism.items() if name != "tensor"}}
            self.report.translated.append(f"{parts.gpus} GPUs without a parallel size are spec.parallelism.tensor {parts.gpus}.")
        elif parts.gpus == 1 and product == 1:
            parallelism = {name: value for name, value in parallelism.items() if name == "expert"}
            accelerator["count"] = 1
        elif parts.gpus and parts.gpus != product:
            self.report.advice.append(
                f"The manifest requests {parts.gpus} GPUs, but its parallel sizes need {product}. The operator requests {product}."
            )
        if parallelism or "count" in accelerator:
            field = "spec.parallelism" if parallelism else "spec.accelerator.count"
            self.report.advice.append(f"Remove {field} to let the operator choose how many GPUs the model needs.")
        self.spec["accelerator"], self.spec["parallelism"] = accelerator, parallelism

    def _rest(self) -> None:
        engine = self.engine
        if engine.replicas is not None:
            self.spec["replicas"] = engine.replicas
        self.spec["service"] = dict(engine.service)
        self.spec["weights"] = dict(engine.weights)
        self.spec["podTemplate"] = self.parts.template
        if self.parts.kept:
            self.report.kept.append(f"In spec.podTemplate: {', '.join(self.parts.kept)}.")

    @staticmethod
    def _value(flags: Flags, names: Sequence[str]) -> str | None:
        return next((values[0] for flag, values in flags if flag in names and values), None)


def clean_command(command: str) -> str:
    """A command of a script in at most 80 characters."""
    short = " ".join(command.split())
    return short if len(short) <= 80 else short[:79] + "…"


def _object_name(name: str) -> str:
    """The name as that of a VLLMDeployment, which is also the name of a Service."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower())[:52].strip("-")
    return plain if re.match(r"[a-z]", plain) else f"vllm-{plain}"[:52].strip("-")
