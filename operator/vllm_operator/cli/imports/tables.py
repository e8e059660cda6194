"""What becomes of the fields of other tools' objects: the tables in `catalog/data/imports.yaml`, which explains them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from pydantic import Field

from vllm_operator.api.reading import Manifest, text
from vllm_operator.catalog.entry import Sourced, load_file
from vllm_operator.cli.imports.engine import put


class Table(Sourced):
    """The fields of one kind of objects, by what becomes of them. `templates` are where it has the template of the engine's Pods."""

    templates: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    becomes: Mapping[str, str] = Field(default_factory=dict)
    dropped: Mapping[str, str] = Field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    parts: Mapping[str, str] = Field(default_factory=dict)
    defaults: Mapping[str, Any] = Field(default_factory=dict)

    @cached_property
    def known(self) -> frozenset[str]:
        """All paths, each of which stands for all fields below it too."""
        return frozenset((*self.kept, *self.becomes, *self.dropped, *self.ignored))

    def place(self, source: Manifest, engine: dict[str, Any]) -> None:
        """Copy the fields that become a part of the engine: `container`, `pod` or `metadata`, which are in `engine`."""
        for path, place in self.becomes.items():
            value = next(_found(source, path), None)
            if place.partition(".")[0] in engine and value:
                put(engine, place, value)

    def dropped_from(self, source: Manifest, where: str = "") -> list[str]:
        """Return a sentence for each field that is dropped. `where` is the path of the source in what the user wrote, with a dot."""
        told = [f"{where}{path}: {why}." for path, why in self.dropped.items() if any(map(_is_on, _found(source, path)))]
        for path, name in self.parts.items():
            told += [sentence for part in _found(source, path) for sentence in load_tables()[name].dropped_from(part, f"{where}{path}.")]
        return told


QUEUES = "kueue.x-k8s.io/"
"""Prefix of labels that Kueue and KServe pass on from an object to its Pods."""


def name_of_table(manifest: Manifest) -> str:
    """Return the name of the table with the fields of an object; empty if there is none."""
    kind, tool = text(manifest, "kind"), load_tables()["tools"].becomes.get(text(manifest, "apiVersion").partition("/")[0], "")
    values = next((name for field, name in _VALUES.items() if field in manifest), "")
    return next((name for name in (f"{kind} of {tool}", kind.removeprefix("Cluster"), values) if name in load_tables()), "")


def find_unread(manifest: Manifest) -> list[str]:
    """Return the paths of the fields of an object that are in no table, with names for positions: `containers[server].ports`."""
    name, tables = name_of_table(manifest), load_tables()
    return list(_unread(manifest, ((tables[name], ""), (tables["every object"], "")), "")) if name else []


_VALUES = {"modelArtifacts": "values of llm-d", "servingEngineSpec": "values of the production stack"}


def _unread(value: Any, places: Sequence[tuple[Table, str]], where: str) -> Iterator[str]:
    """Find unread fields. `places` are tables that may have them, each with the path of the object that has them, with a dot."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _unread(each, places, f"{where.removesuffix('.')}[{text(each, 'name') or index}].")
    for name, part in value.items() if isinstance(value, dict) else ():
        paths = [(table, f"{at}{name}") for table, at in places]
        tools = (*load_tables()["tools"].ignored, QUEUES)
        is_of_tools = isinstance(part, dict) and all(str(key).startswith(tools) for key in part)
        if not _is_on(part) or is_of_tools or any(path in table.known for table, path in paths):
            continue
        within = [(load_tables()[table.parts[path]], "") for table, path in paths if path in table.parts]
        below = ((table, f"{path}.") for table, path in paths)
        within += [(table, at) for table, at in below if any(each.startswith(at) for each in (*table.known, *table.parts))]
        if within:
            yield from _unread(part, within, f"{where}{name}.")
        else:
            yield f"{where}{name}"


@cache
def load_tables() -> Mapping[str, Table]:
    """Read the tables that ship with the package."""
    return load_file(dict[str, Table], "imports.yaml")


def _found(source: Any, path: str) -> Iterator[Any]:
    """Find the values of a field, also in each object of lists on the way."""
    if not path:
        yield source
    elif isinstance(source, list):
        for each in source:
            yield from _found(each, path)
    elif isinstance(source, dict):
        name, _, rest = path.partition(".")
        if name in source:
            yield from _found(source[name], rest)


def _is_on(value: Any) -> bool:
    return value not in (None, "", [], {}, False) and not (isinstance(value, dict) and value.get("enabled") is False)
