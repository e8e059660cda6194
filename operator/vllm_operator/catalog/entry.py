"""Reading the catalog: its data files, the base class of their models, the types of their fields, and messages about mistakes.

Every file in `data/` is read by `yaml.CSafeLoader` (or as JSON) and validated by a pydantic model. The same model reads an entry in a
ConfigMap of a user. The latter is untrusted: an invalid entry raises an `EntryError` with one sentence of bounded length.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator, TypeAdapter, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from vllm_operator.text.wording import similar

SHOWN = 60
"""Maximum characters of a value or name in a message."""
PATTERN_LIMIT = 200
"""Maximum characters of an `Expression`."""
SPECIFIERS_LIMIT = 200
"""Maximum characters of a range of versions."""

Compile = Callable[[str], re.Pattern[str]]
"""Compiles a regular expression; raises ValueError or `re.error`."""


class EntryError(ValueError):
    """An unusable entry. The message names the field, the error, and a correct value."""


class Entry(BaseModel):
    """An entry, or a part of one: camelCase in YAML, immutable, without unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, written: Any) -> Any:
        known = field_names(cls)
        if isinstance(written, dict) and not written.keys() <= known:
            name = next(name for name in written if name not in known)
            raise ValueError(f"{quote(name)} is not a field{suggest(name, known)}")
        return written


class Sourced(Entry):
    """An entry that says where its facts are known from."""

    source: str


Parsed = TypeVar("Parsed")


@cache
def field_names(model: type[Entry]) -> frozenset[str]:
    """Return the names of a model's fields, as in YAML."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def parse_entry(kind: type[Parsed], written: Any, *, compile_pattern: Compile = re.compile) -> Parsed:
    """Read an entry, or a tuple of entries, from values of a YAML parser. Raises EntryError if it is malformed."""
    try:
        return TypeAdapter(kind).validate_python(written, context=compile_pattern, by_alias=True, by_name=False)
    except ValidationError as error:
        raise EntryError(explain(error)) from None


def load_file(kind: type[Parsed], name: str, key: str | None = None) -> Parsed:
    """Read a data file, or the part of it under a key. Raises EntryError if it is malformed; the message names it."""
    written = read_data(name)
    try:
        return parse_entry(kind, written if key is None else written[key])
    except EntryError as error:
        raise EntryError(f"{name}: {error}") from None


def loader(kind: type[Parsed], name: str) -> Callable[[], Parsed]:
    """Return a function that reads a data file once, when it is first called."""
    return cache(lambda: load_file(kind, name))


def read_data(name: str) -> Any:
    """Read `catalog/data/<name>` as YAML or JSON, by its suffix. Raises FileNotFoundError if there is no such file."""
    text = (_data() / name).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.load(text, Loader=yaml.CSafeLoader)


def list_data(folder: str) -> tuple[str, ...]:
    """List the data files in a folder of `catalog/data`, as names for `read_data`, sorted."""
    return tuple(sorted(f"{folder}/{entry.name}" for entry in (_data() / folder).iterdir() if entry.suffix in (".yaml", ".json")))


def data_digest() -> str:
    """Return a digest of all data files."""
    total = hashlib.sha256()
    files = {str(entry.relative_to(_data())): entry for entry in _data().rglob("*") if entry.suffix in (".yaml", ".json")}
    for name in sorted(files):
        total.update(f"{name} {hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _data() -> Path:
    return Path(str(resources.files("vllm_operator.catalog"))) / "data"


def read_text(value: Any, example: str) -> str:
    """Return text; refuse an unquoted number, such as version 0.20, which YAML reads as 0.2. Raises ValueError if the value is not text."""
    if isinstance(value, int | float):
        raise ValueError(f"{value} is not text; put it in quotes, such as '{example}'")
    if not isinstance(value, str):
        raise ValueError(f"write text, such as '{example}', not {describe(value)}")
    return value


def read_specifiers(value: Any) -> SpecifierSet:
    """Read versions (PEP 440), such as `>=0.14,<0.20`. Raises ValueError if the specifiers are invalid."""
    text = read_text(value, ">=0.20")
    if len(text) > SPECIFIERS_LIMIT:
        raise ValueError(f"a range of versions must be at most {SPECIFIERS_LIMIT} characters long")
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{quote(text)} is not a range of versions; one looks like '>=0.14,<0.20'") from None


def _check_specifiers(value: Any) -> str:
    read_specifiers(value)
    return str(value)


def _compile(value: Any, info: Any) -> re.Pattern[str]:
    text = read_text(value, "^fp8")
    if len(text) > PATTERN_LIMIT:
        raise ValueError(f"a regular expression must be at most {PATTERN_LIMIT} characters long")
    try:
        compiled: re.Pattern[str] = (info.context or re.compile)(text)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{quote(text)} is not a regular expression: {str(error)[:120]}") from None
    return compiled


Specifiers = Annotated[SpecifierSet, PlainValidator(read_specifiers)]
"""Version specifiers of PEP 440."""
SpecifierText = Annotated[str, PlainValidator(_check_specifiers)]
"""Version specifiers of PEP 440 as text."""
Expression = Annotated[re.Pattern[str], PlainValidator(_compile)]
"""A regular expression, compiled by the `compile_pattern` of `parse_entry`."""


def keyed_by(name: str) -> BeforeValidator:
    """Return a validator that turns a list of mappings into one mapping. Its keys are the values of a field, which each must have."""
    return BeforeValidator(lambda written: {entry[name]: entry for entry in written})


def matching(pattern: str, hint: str) -> Callable[[str], str]:
    """Return a check for text that must match a pattern completely. `hint` ends the error message."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{quote(text)} {hint}")
        return text

    return check


def explain(error: ValidationError) -> str:
    """Describe the first error in a sentence without a period."""
    first = error.errors(include_url=False)[0]
    where, kind, value, bounds = locate(first["loc"]), first["type"], first["input"], first.get("ctx", {})
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        return f"{where}: {bounds['error']}" if where else str(bounds["error"])
    if kind in ("enum", "literal_error"):
        choices = re.findall(r"'([^']*)'", bounds["expected"])
        return f"{where}: {quote(value)} does not exist{suggest(value, choices)}"
    if kind == "string_type" and isinstance(value, int | float):
        return f"{where} must be text: put {value} in quotes"
    if (words := read_data("words.yaml")["errors"].get(kind)) is not None:
        return f"{where or 'it'} {words.format(**bounds, value=describe(value))}"
    return f"{where}: {first['msg'][:120]}"


def locate(path: Iterable[int | str]) -> str:
    """Return the path of a field: `patterns[0].regex`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:SHOWN]}" for part in path if part != "[key]")
    return text.removeprefix(".")


def quote(value: Any) -> str:
    """Quote a value of a user, truncated to a bounded length."""
    return repr(value[:SHOWN] if isinstance(value, str) else str(value)[:SHOWN])


def describe(value: Any) -> str:
    """Describe a value: a mapping, a list, empty, or the value itself."""
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "empty" if value is None else quote(value)


def suggest(name: Any, known: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name: a similar name, or else all names."""
    near = similar(str(name), known)
    return f" (did you mean {near[0]}?)" if near else f"; use one of {', '.join(sorted(known))}"
