"""Reading the data files of the catalog, which ship inside the package."""

import gc
import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML and creates plain values only. The loader in C takes a tenth of the time of the other."""
_TEXT, _PREFIX = "tag:yaml.org,2002:str", "tag:yaml.org,2002:"
_MAY_BE_NO_TEXT = frozenset("0123456789+-.~nNyYtTfFoO=<")
"""First characters of a scalar without quotes that may be a number, true, false, null or <<."""


class _DataLoader(YAML_LOADER):  # type: ignore[misc]  # its base is chosen at run time
    """Reads the plain values of our own files, in 60 % of the time of its base: most of them are text."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and (not implicit[0] or (value and value[0] not in _MAY_BE_NO_TEXT)):
            return _TEXT
        return super().resolve(kind, value, implicit)

    def get_single_data(self) -> Any:
        return _plain(self.get_single_node())


def _plain(node: Any) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(inner) for inner in node.value]
    if isinstance(node, yaml.MappingNode):
        merged = {}
        for key, value in node.value:
            if key.tag == f"{_PREFIX}merge":
                merged = _plain(value)
        return merged | {_plain(key): _plain(value) for key, value in node.value if key.tag != f"{_PREFIX}merge"}
    return node.value if node.tag == _TEXT else _scalar(node.tag.removeprefix(_PREFIX), node.value)


def _scalar(kind: str, text: str) -> Any:
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() in ("true", "yes", "on")
        case "int":
            return int(text)
        case "float":
            return float(text)
    raise ValueError(f"{text!r} is read as {kind}; put it in quotes")


class EntryError(ValueError):
    """An entry that cannot be used. The message names the field, what is wrong, and what to write instead."""


@contextmanager
def without_collecting() -> Iterator[None]:
    """Do not collect garbage meanwhile: data that is read has none, and looking for it takes a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def read_data(name: str) -> Any:
    """Read `catalog/data/<name>` as YAML or JSON, by its suffix.

    Raises:
        FileNotFoundError: There is no such file.
    """
    text = resources.files("vllm_operator.catalog").joinpath("data", *name.split("/")).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.load(text, Loader=_DataLoader)


Constructed = TypeVar("Constructed")


def construct(kind: type[Constructed], written: Any) -> Constructed:
    """Build a dataclass from an entry of our own, without pydantic: what reads logs starts in half the time without it.

    The tests validate these entries with `vllm_operator.catalog.entry.parse_dataclass`.

    Raises:
        KeyError: There is no such field.
        TypeError: A field is missing.
    """
    return cast("Constructed", _builder(cast("Hashable", kind))(written))


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {camel_case(each.name): (each.name, _builder(hints[each.name])) for each in fields(kind)}
        create = cast("Callable[..., Any]", kind)
        return lambda written: create(**{known[key][0]: known[key][1](value) for key, value in written.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        element = _builder(arguments[0])
        return lambda written: tuple(map(element, written))
    if origin is Mapping:
        content = _builder(arguments[1])
        return lambda written: {key: content(value) for key, value in written.items()}
    if origin is UnionType:
        return _builder(next(each for each in arguments if each is not type(None)))
    return kind if isinstance(kind, type) and issubclass(kind, Enum) else lambda written: written


def camel_case(name: str) -> str:
    """Return the name of a field as it is written in YAML."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


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
