"""Reading the data files of the catalog, which ship inside the package."""

import hashlib
import json
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML and makes no objects of its own; the one in C reads a megabyte in a tenth of the time of the other."""


def read_data(name: str) -> Any:
    """Read `catalog/data/<name>` as YAML or JSON, by its suffix.

    Raises:
        FileNotFoundError: There is no such file.
    """
    text = resources.files("vllm_operator.catalog").joinpath("data", *name.split("/")).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.load(text, Loader=YAML_LOADER)


def list_data(folder: str) -> tuple[str, ...]:
    """List the data files in a folder of `catalog/data`, as names for `read_data`, sorted."""
    entries = resources.files("vllm_operator.catalog").joinpath("data", folder).iterdir()
    return tuple(sorted(f"{folder}/{entry.name}" for entry in entries if entry.name.endswith((".yaml", ".json"))))


def data_digest() -> str:
    """Return a digest of all data files: it changes if, and only if, what is known changes."""
    total = hashlib.sha256()
    root = resources.files("vllm_operator.catalog").joinpath("data")
    for name, entry in sorted(_walk(root, ""), key=lambda item: item[0]):
        total.update(f"{name} {hashlib.sha256(entry.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".yaml", ".json")):
            yield f"{prefix}{entry.name}", entry
