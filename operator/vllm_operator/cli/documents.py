"""Read files: Kubernetes objects in YAML or JSON, custom rules, and the model files in a checkpoint folder."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vllm_operator.api.labels import KIND
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.builds import read_table
from vllm_operator.catalog.loader import Catalog, load_catalog
from vllm_operator.catalog.user_entries import check_yaml, read_instance_types, with_user_rules
from vllm_operator.cli.inputs import InputError, invalid, name_of_file, read_text
from vllm_operator.sizing.formats import LENGTH_BYTES, TensorSizes, add_up, header_length, read_header
from vllm_operator.sizing.model_facts import ModelFiles

DEPTH_LIMIT = 200
"""Maximum nesting of lists and mappings. Kubernetes objects have less, and unlimited recursion would crash the parser."""
VALUES_LIMIT = 20_000_000
"""Maximum values in a file after the expansion of aliases."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The input of a plan.

    `resource` is the VLLMDeployment. `objects` are its ControllerRevisions and presets, nodes with GPUs, ResourceSlices, ResourceClaims and
    Karpenter's NodePools. `pods` are the Pods that hold GPUs; None if unknown. `texts` are the texts of the operator's ConfigMaps, by
    setting.
    """

    resource: dict[str, Any]
    objects: list[dict[str, Any]]
    pods: list[dict[str, Any]] | None
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_objects(path: str) -> list[dict[str, Any]]:
    """Read all objects of a file, including those in lists; `-` is standard input. Raises InputError if it contains anything else."""
    name = name_of_file(path)
    try:
        text = read_text(path)
        check_yaml(text, depth=DEPTH_LIMIT, values=VALUES_LIMIT)
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
        hint = ". Fill in the {{ }} of the template first (helm template)" if "{{" in text else ""
        raise InputError(f"{where}: this is not valid YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: this is not valid YAML: {' '.join(str(error).split())}") from error
    return [entry for number, document in enumerate(documents, 1) if document is not None for entry in _flatten(document, name, number)]


def parse_deployment(manifest: Mapping[str, Any]) -> VLLMDeployment:
    """Parse a VLLMDeployment. Raises InputError if the object does not match the schema. The message names the fields."""
    try:
        return VLLMDeployment.parse(manifest)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise invalid(f"the {KIND} {name_of(manifest)} is", problems) from error


def catalog_with(texts: Mapping[str, Mapping[str, str]], version_table: str | None = None) -> Catalog:
    """Load the catalog with the texts of ConfigMaps, by setting as in `ClusterObjects`, and with the table of a build in a file.

    Report invalid entries on standard error. Raises InputError if the file has no table.
    """
    catalog, problems = load_catalog(), list[str]()
    if version_table is not None:
        try:
            build = read_table(json.loads(read_text(version_table)))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name_of_file(version_table)} is not the table of a vLLM version: {error}") from None
        catalog = replace(catalog, versions=replace(catalog.versions, build=build))
    if rules := texts.get("rules"):
        catalog, read = with_user_rules(catalog, rules)
        problems += read.problems
    if pools := texts.get("instance_types"):
        types = read_instance_types(pools, catalog.gpus)
        catalog = replace(catalog, instance_types=types.entries)
        problems += types.problems
    for problem in problems:
        print(f"Warning: {problem}", file=sys.stderr)
    return catalog


def texts_in(rules: str | None, instance_types: str | None = None) -> dict[str, Mapping[str, str]]:
    """Read the texts for `catalog_with` from files. Raises InputError if a file cannot be read, or has the wrong content."""
    found: dict[str, Mapping[str, str]] = {}
    if rules is not None:
        objects = read_objects(rules)
        if maps := _config_maps(rules, objects):
            found["rules"] = {f"{of}/{name}": str(text) for of, data in maps for name, text in data.items()}
        elif not objects or any("kind" in entry and "apiVersion" in entry for entry in objects):
            raise InputError(f"{rules} contains neither a ConfigMap nor a list of rules")
        else:
            found["rules"] = {rules: json.dumps(objects, ensure_ascii=False, default=str)}
    if instance_types is not None:
        maps = _config_maps(instance_types, read_objects(instance_types))
        if not maps:
            raise InputError(f"{instance_types} contains no ConfigMap with node pools")
        found["instance_types"] = {name: text for _, data in maps for name, text in data.items() if isinstance(text, str)}
    return found


def _config_maps(path: str, objects: Sequence[dict[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    maps = [(name_of(entry), entry.get("data") or {}) for entry in of_kind(objects, "ConfigMap")]
    if any(not isinstance(data, Mapping) for _, data in maps):
        raise InputError(f"{path}: the data of a ConfigMap must be an object with fields")
    return maps


def of_kind(objects: Iterable[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    """Return the objects of these kinds."""
    return [entry for entry in objects if entry.get("kind") in kinds]


def read_deployment(paths: Sequence[str], name: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the VLLMDeployment with this name or the only one, and all objects. Raises InputError if there is none, or several."""
    objects, path = [entry for each in paths for entry in read_objects(each)], ", ".join(paths)
    found = of_kind(objects, KIND)
    named = [entry for entry in found if name is None or name_of(entry) == name]
    if len(named) == 1:
        return named[0], objects
    names = ", ".join(map(name_of, found))
    if not found:
        raise InputError(f"{path} contains no {KIND}")
    if name is not None:
        raise InputError(f"{path} contains {'several' if named else 'no'} {KIND}s with the name {name}, only {names}")
    raise InputError(f"{path} contains {len(found)} objects of kind {KIND} ({names}). Add the name of one of them")


def name_of(manifest: Mapping[str, Any]) -> str:
    """Return the name of an object for a message."""
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "(no name)")) if isinstance(metadata, Mapping) else "(no name)"


def _flatten(document: Any, name: str, number: int) -> Iterator[dict[str, Any]]:
    if isinstance(document, list):
        for entry in document:
            yield from _flatten(entry, name, number)
    elif not isinstance(document, dict):
        kind = "string" if isinstance(document, str) else type(document).__name__
        raise InputError(f"{name}: document {number} is a {kind}, not a Kubernetes object")
    elif isinstance(document.get("items"), list) and str(document.get("kind", "List")).endswith("List"):
        kind = str(document.get("kind", "List")).removesuffix("List")  # items of a typed list (NodeList) have no kind
        for entry in document["items"]:
            yield from _flatten({"kind": kind, **entry} if kind and isinstance(entry, dict) else entry, name, number)
    else:
        yield document


FILES_LIMIT = 1024
QUANTIZATION = "hf_quant_config.json"


def read_model_files(path: str) -> ModelFiles:
    """Read a config.json, or the folder of a checkpoint. Raises InputError if there is no config.json, or it is not a JSON object."""
    folder = Path(path)
    if not folder.is_dir():
        return ModelFiles(_read_object(path))
    config = _read_object(str(folder / "config.json"))
    if "quantization_config" not in config and (folder / QUANTIZATION).is_file():
        config = {**config, "quantization_config": _read_object(str(folder / QUANTIZATION))}
    tensors = _read_tensors(folder)
    return ModelFiles(config, tensors.total() if tensors is not None else None, tensors=tensors)


def _read_object(path: str) -> Mapping[str, Any]:
    found = read_objects(path)
    if len(found) != 1:
        raise InputError(f"{path} is not the config.json of a model, which is one JSON object")
    return found[0]


def _read_tensors(folder: Path) -> TensorSizes | None:
    """Return the sizes of the tensors in all files; None without such files, or if one of them has no header."""
    paths = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))[:FILES_LIMIT]
    found = []
    for path in paths:
        try:
            with path.open("rb") as file:
                length = header_length(file.read(LENGTH_BYTES))
                data = file.read(length) if length is not None else b""
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        header = read_header(data) if len(data) == length else None
        if header is None:
            return None
        found.append(add_up(header))
    return sum(found, TensorSizes()) if found else None
