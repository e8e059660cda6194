"""What becomes of the fields of other tools' objects: the tables in `catalog/data/imports.yaml`, which explains them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from vllm_operator.api.reading import Manifest
from vllm_operator.catalog.entry import Sourced, load_file
from vllm_operator.cli.imports.engine import put


def _flat(written: Any) -> Any:
    """Join the keys of nested mappings: `{spec: {paused: no}}` is `{spec.paused: no}`."""
    if not isinstance(written, dict):
        return written
    flat: dict[str, Any] = {}
    for name, value in written.items():
        inner = _flat(value)
        flat |= {f"{name}.{rest}": text for rest, text in inner.items()} if isinstance(inner, dict) else {name: inner}
    return flat


Fields = Annotated[Mapping[str, str], BeforeValidator(_flat), Field(default_factory=dict)]


class Table(Sourced):
    """The fields of one kind of objects, by what becomes of them."""

    kept: tuple[str, ...] = ()
    becomes: Fields
    dropped: Fields
    ignored: tuple[str, ...] = ()
    parts: Fields

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
