"""From a deployed engine to a VLLMDeployment, with a report."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.api.reading import Manifest, mapping, objects, read_integer, sequence, text
from vllm_operator.catalog.caches import model_argument
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import say
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.cli.imports.engine import REFERENCE, CommandLine, Engine, ImportRefusedError, Report, names_in, put, read_command_line
from vllm_operator.cli.imports.pod import PodParts
from vllm_operator.cli.imports.tables import load_tables
from vllm_operator.planning.engine.image import split_image, version_of_image
from vllm_operator.planning.engine.overrides import ENGINE_VARIABLE_PREFIX, UNRECORDED, instead_of
from vllm_operator.rendering.volumes import MODEL_VOLUME
from vllm_operator.text.wording import clean

_MODEL_FLAGS = ("--model", "--model-tag", "--model-id", "--model-dir")
_NAME_FLAGS = ("--served-model-name", "--model-name")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_READABLE = re.compile(r"(hf|pvc)://\S+|(s3|gs|az)://[^/\s]+/\S+")
_OFFICIAL_IMAGES = ("vllm/vllm-openai", "docker.io/vllm/vllm-openai")
_KSERVE_MODEL = "/mnt/models"
_CERTIFICATES = "/var/run/kserve/"
_FILLED_IN = re.compile(r"\{\{ *-? *[A-Z.]")  # of a Go template: KServe fills in the arguments of an LLMInferenceService
_DOWNLOAD = re.compile(r"(?:hf|-cli) +download +(?:--?\S+ +)*([\w.-]+/[\w.-]+)|snapshot_download\((?:repo_id *= *)?['\"]([\w.-]+/[\w.-]+)")


def translate(engine: Engine, catalog: Catalog, *, model: str | None = None) -> tuple[Manifest, Report]:
    """Write an engine as a VLLMDeployment, with the report. `model` replaces the URI of its model. Raises ImportRefusedError."""
    return _Translation(engine, catalog, model).result(), engine.report


class _Translation:
    def __init__(self, engine: Engine, catalog: Catalog, model: str | None) -> None:
        self.engine, self.catalog, self.given_model, self.report = engine, catalog, model, engine.report
        self.spec: dict[str, Any] = {"model": {}, "engine": {}}
        self.table: VersionTable | None = None
        self.parts = PodParts(engine, catalog.images)
        self.variables = list(objects(engine.container, "env"))
        references = ((text(each, "name"), mapping(each, "valueFrom", "secretKeyRef")) for each in self.variables)
        self.secrets = {name: secret for name, secret in references if secret}
        of_pod = {"fieldRef", "resourceFieldRef"}
        self.known_in_pod = {text(each, "name") for each in self.variables if mapping(each, "valueFrom").keys() & of_pod}
        self.downloaded: set[str] = set()
        caches = {name for cache in (*catalog.caches.compiled, catalog.caches.weights) for name in cache.written}
        self.known = load_tables()["flags and variables of vLLM"]
        self.of_secrets = {name for name, field in self.known.becomes.items() if field.endswith("SecretRef")}
        self.dropped = {**self.known.dropped, **dict.fromkeys(caches, say("caches"))}

    def result(self) -> Manifest:
        engine = self.engine
        self._version(text(engine.container, "image"))
        values = {"LWS_GROUP_SIZE": str(engine.nodes or 1), "LWS_WORKER_INDEX": "0"}
        values |= {text(each, "name"): text(each, "value") for each in self.variables if "value" in each}
        words = [str(word) for word in sequence(engine.container.get("args"))]
        line = read_command_line(words, {**values, **{name: f"$({name})" for name in (*self.secrets, *self.known_in_pod)}})
        values |= line.variables
        variables = [*self.variables, *({"name": name, "value": value} for name, value in line.variables.items())]
        programs = " ".join((*line.others, str(engine.pod.get("initContainers"))))
        self.downloaded = {match[1] or match[2] for match in _DOWNLOAD.finditer(programs)}
        self.report.dropped += [f"The command in the container's script: {clean(other, 80)}" for other in line.others]
        named = line.model or next(iter(line.values_of(_MODEL_FLAGS)), None)
        self._check_references([*([named] if named else []), *line.values_of(_NAME_FLAGS)])
        names = dict.fromkeys(name for name in line.values_of(_NAME_FLAGS) if not _FILLED_IN.search(name))
        served, *others = names or (engine.served_name,)  # answers contain the first
        if others:
            self._put(f"The other {'names' if len(others) > 1 else 'name'} {', '.join(others)} of the model", "model.aliases", others)
        self._model(named, served)
        if text(self.spec, "model", "uri").startswith("hf://"):
            self.dropped |= dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), say("offline"))
        only_for_flags = {value for flag, values in line.flags if flag in self.of_secrets for value in values}
        self._variables([each for each in variables if f"$({text(each, 'name')})" not in only_for_flags])
        self._adapters(engine.adapters)
        modules = _modules(line.values_of(("--lora-modules",)))
        if "adapters" in self.spec or all(self._uri(each["uri"]) for each in modules):  # else their flag stays
            self._adapters(modules)
        self._flags(line)
        self._devices()
        kept = [each for name in ("args", "env") for each in objects(self.spec, "engine", name)]
        words = [str(word) for each in kept for word in (each.get("value", ""), *each.get("values", ()))]
        directories = [value for name, value in values.items() if name in self.dropped] + [*line.values_of(("--download-dir",))]
        self.parts.keep_used(text(self.spec, "model", "uri"), words, directories)
        self.spec |= engine.spec
        self.spec["podTemplate"] = self.parts.template()
        metadata = {"name": valid_name(engine.name), **({"namespace": engine.namespace} if engine.namespace else {})}
        spec = {name: value for name, value in self.spec.items() if value not in ({}, [], None)}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}

    def _put(self, source: str, path: str, value: Any) -> None:
        put(self.spec, path, value)
        self.report.translated.append(f"{source} is spec.{path}.")

    def _version(self, image: str) -> None:
        """Write the version and the image: that of the vLLM project is left to the operator, which takes its variant for the driver."""
        engine, versions, report = self.spec["engine"], self.catalog.versions, self.report
        if "$" in image:
            raise ImportRefusedError(say("placeholder", image=image))
        if (devices := self.catalog.images.other_devices(image)) is not None:
            raise ImportRefusedError(f"the image {image} is for {devices}. The operator supports NVIDIA GPUs only")
        told, repository = version_of_image(image) or self.engine.version, split_image(image)[0]
        is_mirror = repository.endswith(_OFFICIAL_IMAGES)
        kept = {"image": image} if image and not (repository in _OFFICIAL_IMAGES if told else is_mirror) else {}
        if kept and not told:
            engine |= kept
            report.advice.append(say("release.unread", image=image))
            return
        version = versions.complete(told) or told or versions.newest.version
        self.table = versions.resolve(version).table
        engine |= {"version": version, **kept}
        report.kept += [f"The image {image}."] if kept else []
        if not told:
            report.advice.append(say("release.newest", image=image, version=version) if image else say("release.none", version=version))
        elif version in image and not is_mirror:
            report.advice.append(say("release.tag", image=image, version=version))
        elif version in image and not kept:
            report.translated.append(say("release.official", image=image, version=version))
        else:
            report.translated.append(say("release.known", version=version))

    def _flags(self, line: CommandLine) -> None:
        args: dict[str, dict[str, Any]] = {}
        for written, values in line.flags:
            flag, values = self._renamed(written), tuple(self._moved(written, value) for value in values)
            value = values[0] if values else ""
            if self.table is not None and flag.startswith("--enable-") and value.lower() in ("true", "false"):
                flag, values = flag if value.lower() == "true" else flag.replace("--", "--no-", 1), ()
                self.report.translated.append(f"{written}={value} is {flag}: newer versions of vLLM take no value for it.")
            if flag in ("--enable-lora", "--lora-modules") and "adapters" in self.spec:
                self.report.translated.append(f"{flag} is spec.adapters.")
            elif any(map(_FILLED_IN.search, values)):
                self.report.dropped.append(say("template", flag=flag))
            elif "ssl" in flag and any(_CERTIFICATES in word for _, words in line.flags for word in words):
                self.report.dropped.append(say("certificates", flag=flag))
            elif flag in (*_MODEL_FLAGS, *_NAME_FLAGS) or self._translate(flag, value, self._secret_of(value)):
                if len(values) > 1 and flag in self.of_secrets:
                    self.report.dropped.append(f"{flag}: the values after the first. A VLLMDeployment has one key, which clients share.")
            elif self._is_known(flag):
                self._check_references(values)
                if flag in args:
                    self.report.dropped.append(f"{flag} {' '.join(args[flag].get('values', [args[flag].get('value', '')]))}: given twice.")
                given = {"value": value} if len(values) == 1 else {"values": list(values)} if values else {}
                args[flag] = {"name": flag.lstrip("-"), **given}
        if args:
            self.spec["engine"]["args"] = list(args.values())
            self.report.kept.append(f"Flags: {', '.join(args)}.")

    def _moved(self, flag: str, value: str) -> str:
        """Return a value for this version of vLLM, and in the Pod of the operator, where KServe's path of the model is another."""
        path, uri, moved = value.removeprefix(_KSERVE_MODEL), text(self.spec, "model", "uri"), value
        is_in_model = value.startswith(_KSERVE_MODEL) and path[:1] in ("", "/") and flag not in _MODEL_FLAGS
        if flag == "--limit-mm-per-prompt" and (numbers := re.findall(r"(\w+)=(\d+)", value)):
            moved = json.dumps({name: int(number) for name, number in numbers})
        elif is_in_model and uri.startswith("pvc://"):
            moved = f"{model_argument(uri)}{path}"
        elif is_in_model:
            self.report.advice.append(say("model.file", flag=flag, path=value))
        self.report.translated += [f"{flag} {value} is {moved}."] if moved != value else []
        return moved

    def _variables(self, variables: Sequence[Manifest]) -> None:
        env: dict[str, dict[str, Any]] = {}
        for variable in variables:
            name, secret = text(variable, "name"), mapping(variable, "valueFrom", "secretKeyRef")
            if name in self.of_secrets and not variable.get("value", "valueFrom" in variable):
                continue
            if not self._translate(name, text(variable, "value"), secret) and name not in ("", "STORAGE_URI") and self._is_known(name):
                env[name] = {key: variable[key] for key in ("name", "value", "valueFrom") if key in variable}
        if env:
            self.spec["engine"]["env"] = list(env.values())
            self.report.kept.append(f"Variables: {', '.join(env)}.")

    def _translate(self, name: str, value: str, secret: Manifest) -> bool:
        """Translate or drop a flag or variable according to the tables. Return False if it is in none of them."""
        field = self.known.becomes.get(name)
        if field is not None and name in self.of_secrets:
            self._secret(name, field, secret)
        elif name in self.dropped:
            self.report.dropped.append(f"{name}: {self.dropped[name]}.")
        elif field == "parallelism.expert":
            self._put(name, field, "Enabled")
        elif field is not None and value:
            self._check_references([value])
            self._put(f"{name} {value}", field, (read_integer(value) or 1) if field.startswith("parallelism") else value)
        else:
            return False
        return True

    def _check_references(self, values: Sequence[str]) -> None:
        """Raise ImportRefusedError for a variable whose value is unknown. `$` in JSON is usually no variable."""
        env = {text(each, "name") for each in objects(self.engine.container, "env")}
        for value in values:
            for name in sorted(names_in(value)):
                if name not in self.known_in_pod and (name in env or not value.lstrip().startswith(("{", "["))):
                    raise ImportRefusedError(say("variable", name=name))

    def _secret_of(self, value: str) -> Manifest:
        """Return the Secret of a value such as `$(NAME)`: that of the variable, or the one whose keys are all variables."""
        if (found := REFERENCE.fullmatch(value)) is None:
            return {}
        whole = [name for each in objects(self.engine.container, "envFrom") if (name := text(each, "secretRef", "name"))]
        return self.secrets.get(found[1]) or ({"name": whole[0], "key": found[1]} if len(whole) == 1 else {})

    def _secret(self, source: str, field: str, secret: Manifest) -> None:
        """Name the Secret of the key for clients or of the token for the hub. A value is not written."""
        if name := text(secret, "name"):
            self._put(source, field, {part: value for part in ("name", "key") if (value := text(secret, part))})
            self.report.advice += [say("optional", name=name, field=field)] if secret.get("optional") else []
        else:
            self.report.dropped.append(
                f"{source}: its value does not belong in a manifest. Put it into a Secret, and name that in spec.{field}."
            )

    def _renamed(self, flag: str) -> str:
        """Return the flag, or `--no-enable-x` for a `--disable-x` that this version has only as its opposite."""
        opposite = flag.replace("--disable-", "--enable-", 1)
        if self.table is None or opposite == flag or self.table.knows_flag(flag) or not self.table.knows_flag(opposite):
            return flag
        renamed = opposite.replace("--", "--no-", 1)
        self.report.translated.append(f"{flag} is {renamed} in vLLM {self.table.version}.")
        return renamed

    def _is_known(self, name: str) -> bool:
        """Return whether this version may have a flag or variable. One that it does not have is reported."""
        table = self.table
        if table is None:
            return True
        if name.startswith("-"):
            is_known = table.knows_flag(name) or any(flag.startswith(name) for flag in table.flags)
        else:
            is_known = not name.startswith(ENGINE_VARIABLE_PREFIX) or name in UNRECORDED or table.knows_variable(name)
        if not is_known:
            way = instead_of(name, table.flags if name.startswith("-") else table.variables)
            self.report.dropped.append(f"{name}: vLLM {table.version} does not know it.{way}")
        return is_known

    def _model(self, named: str | None, served: str) -> None:
        self.spec["model"] = {**_apart(self.given_model or self._location(named)), **self.spec["model"]}
        location: str = self.spec["model"]["uri"]
        scheme, _, rest = location.partition("://")
        if scheme in ("s3", "gs", "az"):
            self.report.advice.append(say("store", location=location))
        if served and served != rest:
            self._put(f"The model's name for clients, {served},", "model.servedName", served)
        elif named and not served and named != rest:
            self._put(f"Clients asked for the model by its path {named}, so it", "model.servedName", named)

    def _adapters(self, given: Sequence[Manifest]) -> None:
        """Add adapters to the spec, or report them."""
        for each in given:
            name, uri = text(each, "name"), self._uri(text(each, "uri"))
            if uri is None:
                self.report.dropped.append(say("adapter", name=name, place=text(each, "uri")))
            else:
                self.spec.setdefault("adapters", []).append({**each, **_apart(uri)})
                self.report.translated.append(f"The adapter {name} is in spec.adapters.")

    def _uri(self, path: str) -> str | None:
        """Return the URI of a path on a mounted PersistentVolumeClaim, or of a name or URI on the hub; None for another place."""
        if path.startswith("/"):
            return self.parts.uri_of(path)
        if path.startswith(("hf://", "pvc://")):
            return path
        return f"hf://{path}" if _HUB.fullmatch(path) else None

    def _location(self, named: str | None) -> str:
        elsewhere, within = self.engine.model, (named or "").removeprefix(_KSERVE_MODEL).strip("/")
        if _READABLE.fullmatch(elsewhere):
            is_part = (named or "").startswith(f"{_KSERVE_MODEL}/") and within and not elsewhere.startswith("hf://")
            return f"{elsewhere.rstrip('/')}/{within}" if is_part else elsewhere
        path = named if named and not named.startswith(_KSERVE_MODEL) else elsewhere or named
        if not path:
            raise ImportRefusedError("the manifest names no model. Add --model hf://organisation/name or --model pvc://claim/path")
        if path.startswith("oci://"):
            self.parts.added.append({"name": MODEL_VOLUME, "image": {"reference": path.removeprefix("oci://")}})
            self.report.translated.append(say("model.image", image=path.removeprefix("oci://")))
            return "pvc://image/models"
        if _READABLE.fullmatch(path):
            return path
        if uri := self._uri(path):
            self.report.translated.append(f"The model {'at ' if path.startswith('/') else ''}{path} is {uri}.")
            return uri
        if len(self.downloaded) == 1:
            [repository] = self.downloaded
            self.report.translated.append(say("model.downloaded", path=path, repository=repository))
            return f"hf://{repository}"
        if path.startswith("/") and (uri := self.parts.uri_of(path, on_any_volume=True)):
            return uri
        raise ImportRefusedError(say("model", path=path))

    def _devices(self) -> None:
        sizes, nodes, accelerator = self.spec.pop("parallelism", {}), self.engine.nodes or 1, self.parts.accelerator
        gpus = self.parts.gpus * nodes
        expert = {name: sizes.pop(name) for name in ("expert",) if name in sizes}
        needed = prod(sizes.values())
        if gpus == 0:
            self.report.advice.append("The manifest requests no GPU. An engine of the operator always runs on a GPU, and requests it.")
        elif gpus == 1 and needed == 1:
            sizes = {}
            accelerator["count"] = 1
        elif not sizes:
            sizes = {"tensor": self.parts.gpus}
            self.report.translated.append(f"{gpus} GPUs without a parallel size are spec.parallelism.tensor {self.parts.gpus}.")
        elif gpus != needed:
            self.report.advice.append(say("gpus", gpus=gpus, needed=needed))
        sizes |= {"nodes": nodes} if nodes > 1 else {}
        if sizes or expert or "count" in accelerator:
            field = "spec.parallelism" if sizes or expert else "spec.accelerator.count"
            self.report.advice.append(f"Remove {field} to let the operator choose how many GPUs the model needs.")
        self.spec |= {"accelerator": accelerator, "parallelism": sizes | expert}


def _apart(uri: str) -> dict[str, str]:
    """Split a URI of KServe into the URI and the revision on the hub: `hf://organisation/name:revision`."""
    location, _, revision = uri.removeprefix("hf://").partition(":")
    return {"uri": f"hf://{location}", "revision": revision} if uri.startswith("hf://") and revision else {"uri": uri}


def _modules(values: Sequence[str]) -> list[dict[str, Any]]:
    """Read the values of `--lora-modules`: `name=path`, or JSON with a name and a path."""
    modules = []
    for value in values:
        name, _, path = value.partition("=")
        if value.startswith("{"):
            with suppress(ValueError):
                name, path = (text(json.loads(value), field) for field in ("name", "path"))
        modules.append({"name": name, "uri": path})
    return modules


def valid_name(name: str) -> str:
    """Return a valid name of a VLLMDeployment, which is also the name of a Service."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower())[:52].strip("-")
    return plain if re.match(r"[a-z]", plain) else f"vllm-{plain}"[:52].strip("-")
