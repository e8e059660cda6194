"""Reading the rules that the owner of a cluster added, as the operator does."""

import sys
from collections.abc import Mapping

import yaml

from vllm_operator.catalog.loader import Catalog, load_catalog, with_user_rules
from vllm_operator.cli.documents import InputError, name_of, read_objects

HELP = "file with the cluster's own rules: their ConfigMap (- is standard input), or a list of rules"


def catalog_with(path: str | None) -> Catalog:
    """What is known, with the rules in a file; what is broken in them is named on standard error.

    Raises:
        InputError: The file cannot be read or holds no rules.
    """
    if path is None:
        return load_catalog()
    catalog, read = with_user_rules(load_catalog(), _texts(path))
    for problem in read.problems:
        print(f"Warning: {problem}", file=sys.stderr)
    return catalog


def _texts(path: str) -> Mapping[str, str]:
    objects = read_objects(path)
    maps = [entry for entry in objects if entry.get("kind") == "ConfigMap"]
    if maps:
        return {f"{name_of(entry)}/{name}": str(text) for entry in maps for name, text in (entry.get("data") or {}).items()}
    if not objects or any("kind" in entry and "apiVersion" in entry for entry in objects):
        raise InputError(f"{path} holds neither a ConfigMap nor a list of rules")
    return {path: yaml.safe_dump(objects, sort_keys=False)}
