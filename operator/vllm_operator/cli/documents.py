"""Reading Kubernetes objects from files: YAML or JSON, several documents, lists, or standard input."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vllm_operator.catalog.resources import YAML_LOADER

STANDARD_INPUT = "-"
DEPTH_LIMIT = 200
"""Levels of lists and mappings: no object of Kubernetes has as many, and a parser that goes down for ever ends in a crash."""
VALUES_LIMIT = 20_000_000
"""Values in a file, each as often as an alias repeats it."""
SIZE_LIMIT = 256 * 1024 * 1024
"""Bytes; the nodes of a very large cluster fit, a wrong file that never ends does not."""


class InputError(Exception):
    """A file cannot be read or holds something else than expected. The message says which file and where."""


def read_objects(path: str) -> list[dict[str, Any]]:
    """Read all objects of a file, those inside lists too, in their order; `-` is standard input.

    Raises:
        InputError: The file cannot be read, is no YAML, or holds something that is no object.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    try:
        text = _read_text(path, name)
        _check(text)
        documents = list(yaml.load_all(text, Loader=YAML_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
        raise InputError(f"{where}: this is not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: this is not valid YAML: {' '.join(str(error).split())}") from error
    return [entry for number, document in enumerate(documents, 1) if document is not None for entry in _flatten(document, name, number)]


def name_of(manifest: Mapping[str, Any]) -> str:
    """What an object is called, in words that fit into a message."""
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "without a name")) if isinstance(metadata, Mapping) else "without a name"


def _read_text(path: str, name: str) -> str:
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(SIZE_LIMIT + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    if len(data) > SIZE_LIMIT:
        raise InputError(f"{name} is larger than {SIZE_LIMIT // (1024 * 1024)} MiB; this cannot be what was meant")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not a text file (byte {error.start} is not UTF-8)") from error


def _check(text: str) -> None:
    """Refuse what would take for ever to go through, or crash the parser. Raises ValueError."""
    sizes: dict[str, int] = {}
    within: list[tuple[str | None, int]] = []  # the anchor of each level, and how many values it has
    total = 0
    for event in yaml.parse(text, Loader=YAML_LOADER):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = within.pop()
            sizes |= {anchor: size} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in within):
                raise ValueError(f"*{event.anchor} stands within what it repeats")
            size = sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        if within:
            within[-1] = within[-1][0], within[-1][1] + size
        else:
            total += size
        if len(within) > DEPTH_LIMIT:
            raise ValueError(f"it is nested deeper than {DEPTH_LIMIT}")
        if total + (within[-1][1] if within else 0) > VALUES_LIMIT:
            raise ValueError(f"it has more than {VALUES_LIMIT} values, with all aliases written out")


def _flatten(document: Any, name: str, number: int) -> Iterator[dict[str, Any]]:
    if isinstance(document, list):
        for entry in document:
            yield from _flatten(entry, name, number)
    elif not isinstance(document, dict):
        raise InputError(f"{name}: document {number} is {_kind(document)}, not a Kubernetes object")
    elif isinstance(document.get("items"), list) and str(document.get("kind", "List")).endswith("List"):
        for entry in document["items"]:
            # Items of a typed list (NodeList) come without a kind of their own.
            kind = str(document.get("kind", "List")).removesuffix("List")
            yield from _flatten({"kind": kind, **entry} if kind and isinstance(entry, dict) else entry, name, number)
    else:
        yield document


def _kind(value: Any) -> str:
    return "a text" if isinstance(value, str) else f"a {type(value).__name__}"
