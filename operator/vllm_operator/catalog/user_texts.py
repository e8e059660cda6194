"""User-defined rules and signatures as untrusted text: YAML, and regular expressions.

YAML is read into plain values: mappings, lists, text, numbers, true, false and null. It is read from the events of PyYAML's parser.
PyYAML's constructor would crash the process for lists that are nested some ten thousand levels deep, take minutes for a long sexagesimal
number, and expand ten lines with aliases to a billion values. An invalid entry is left out; the others are read.

Regular expressions are matched with RE2, whose time is linear in the length of the line. With some patterns, Python's `re` takes
exponential time. RE2 has no look-around and no back-references.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar, cast

import yaml

from vllm_operator.catalog.resources import YAML_LOADER, EntryError

ENTRIES_LIMIT = 256
"""Maximum number of rules, or of signatures. Each plan evaluates all rules, and many log lines are matched with all signatures."""
EXPRESSIONS_LIMIT = 512
"""Maximum number of regular expressions of all rules, or of all signatures, because each uses memory."""
PATTERN_BYTES = 1 << 18
"""Maximum memory of a compiled pattern. The patterns that ship with the operator need less."""

EVENTS_LIMIT = 50_000
"""Maximum number of YAML events of a text. Reading them takes half a second."""
DEPTH_LIMIT = 20
"""Maximum nesting of an entry."""
NESTING_LIMIT = 500
"""Maximum nesting of a text. The parser's time per level grows with the level."""
SIZE_LIMIT = 64 * 1024
"""Maximum size of an entry in characters, with its aliases expanded. Each value adds one."""

_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9]{1,17}\.[0-9]{0,17}|\.[0-9]{1,17})([eE][-+][0-9]{1,2})?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_CORE = "tag:yaml.org,2002:"
_TAGS = tuple(f"{_CORE}{name}" for name in ("str", "null", "bool", "int", "float"))


class PatternError(ValueError):
    """A pattern is invalid. The message says why."""


class TextError(ValueError):
    """A text cannot be read. The message is a sentence without a period."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invalid entry, and the reason. `name` is its id, if it has one."""

    reason: str
    name: str | None = None


@dataclass(slots=True)
class _Value:
    """A value, its size including its content, and its first error."""

    content: Any
    size: int = 1
    wrong: str | None = None

    def take(self, inner: "_Value") -> None:
        """Add the size and the error of a value inside."""
        self.size += inner.size
        self.wrong = self.wrong or inner.wrong


@lru_cache(maxsize=1024)
def compile_linear(regex: str) -> re.Pattern[str]:
    """Compile a regular expression with RE2.

    Raises:
        PatternError: It is malformed, uses a feature that RE2 lacks, or needs too much memory.
    """
    import re2  # imported only if there are such patterns

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        # RE2's patterns have the methods that are used here, but no type information.
        return cast("re.Pattern[str]", re2.compile(regex, options))
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be read"
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None


def read_documents(texts: Mapping[str, str], what: str) -> tuple[list[Any], list[str]]:
    """Read rules or signatures from YAML texts by name. Each text is a list, as in the files of `catalog/data`.

    Args:
        texts: The texts.
        what: `rules` or `signatures`.

    Returns:
        The entries, with a Broken for each invalid one, and a sentence about each text that cannot be read.
    """
    documents: list[Any] = []
    problems: list[str] = []
    for name in sorted(texts):
        try:
            entries = read_entries(texts[name], what)
        except TextError as error:
            problems.append(f"{name}: this is not valid YAML: {error}. All {what} in it are ignored.")
            continue
        if entries is None:
            problems.append(f"{name}: this is not a list of {what}. It is ignored.")
        else:
            documents += entries
    if len(documents) > ENTRIES_LIMIT:
        problems.append(f"there are {len(documents)} {what}; only the first {ENTRIES_LIMIT} are used.")
    return documents[:ENTRIES_LIMIT], problems


class Named(Protocol):
    """A rule or a signature."""

    @property
    def id(self) -> str:
        """Its name."""


NamedType = TypeVar("NamedType", bound=Named)


@dataclass(frozen=True, slots=True)
class Collected(Generic[NamedType]):
    """The valid entries, their YAML values by id, and a sentence about each invalid entry."""

    entries: tuple[NamedType, ...]
    written: Mapping[str, Any]
    problems: tuple[str, ...]


def collect(
    documents: Iterable[Any],
    what: str,
    read: Callable[[Any, Sequence[NamedType]], NamedType],
    *,
    taken: Collection[str],
    count_expressions: Callable[[NamedType], int],
) -> Collected[NamedType]:
    """Read entries. An invalid entry does not affect the others.

    Args:
        documents: The entries, as values of YAML.
        what: `rule` or `signature`.
        read: Reads an entry, given those before it. Raises EntryError.
        taken: Names that already exist.
        count_expressions: Counts the regular expressions of an entry.
    """
    written: dict[str, Any] = {}
    entries: list[NamedType] = []
    problems: list[str] = []
    expressions = 0
    for document in documents:
        if not isinstance(document, dict | Broken):
            problems.append(f"{str(document)[:50]!r} is not a {what}. It is ignored.")
            continue
        try:
            if isinstance(document, Broken):
                raise EntryError(document.reason)
            entry = read(document, entries)
            if entry.id in taken or entry.id in written:
                raise EntryError(f"another {what} has this name")
            expressions += count_expressions(entry)
            if expressions > EXPRESSIONS_LIMIT:
                raise EntryError(f"the {what}s up to this one have more than {EXPRESSIONS_LIMIT} regular expressions")
        except Exception as error:  # an invalid entry must not affect the others
            reason = error if isinstance(error, EntryError) else f"it cannot be read ({type(error).__name__})"
            problems.append(f"{what} {_name_of(document)}: {reason}. The {what} is ignored.")
            continue
        entries.append(entry)
        written[entry.id] = document
    return Collected(tuple(entries), written, tuple(problems))


def _name_of(document: dict[Any, Any] | Broken) -> str:
    name = document.name if isinstance(document, Broken) else document.get("id")
    shown = str(name)[:63]
    return "without an id" if name is None else shown if shown.isprintable() else repr(shown)


def read_entries(text: str, what: str) -> list[Any] | None:
    """Read the entries of a list, or of a mapping whose only key is `what`. Return None if the text is neither.

    Returns:
        Plain values, and a Broken for each invalid entry.

    Raises:
        TextError: The text is not YAML, or exceeds a limit.
    """
    try:
        return _Reader(text).entries(what)
    except (yaml.YAMLError, ValueError) as error:
        raise TextError(" ".join(str(error).split())[:200]) from None


class _Reader:
    """Reads one text."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=YAML_LOADER))
        self._count = 0
        self._nesting = 0
        self._anchors: dict[str, _Value] = {}

    def entries(self, what: str) -> list[Any] | None:
        found: list[Any] | None = []
        documents = 0
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise TextError("it has more than one document (---)")
                found = self._root(self._next(), what)
        return found

    def _root(self, first: Any, what: str) -> list[Any] | None:
        if not isinstance(first, yaml.MappingStartEvent):
            return self._list(first)
        found, keys = None, 0
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            keys += 1
            if isinstance(key, yaml.ScalarEvent) and key.value == what and keys == 1:
                found = self._list(self._next())
            else:
                self._skip(key)
                self._skip(self._next())
        return found if keys == 1 else None

    def _list(self, first: Any) -> list[Any] | None:
        if not isinstance(first, yaml.SequenceStartEvent):
            self._skip(first)
            return [] if isinstance(first, yaml.ScalarEvent) and first.value in _NULLS and first.implicit[0] else None
        found: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            entry = self._value(event, 1)
            found.append(entry.content if entry.wrong is None else Broken(entry.wrong, _name(entry.content)))
        return found

    def _next(self) -> Any:
        event = next(self._events)
        self._count += 1
        if self._count > EVENTS_LIMIT:
            raise TextError(f"it has more than {EVENTS_LIMIT} values")
        if isinstance(event, yaml.CollectionStartEvent):
            self._nesting += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            self._nesting -= 1
        if self._nesting > NESTING_LIMIT:
            raise TextError(f"it is nested deeper than {NESTING_LIMIT}")
        return event

    def _skip(self, first: Any) -> None:
        """Read the rest of a value whose first event has been read."""
        end = self._nesting - 1
        if isinstance(first, yaml.CollectionStartEvent):
            while self._nesting > end:
                self._next()

    def _value(self, event: Any, depth: int) -> _Value:
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            return self._anchors.get(name) or _Value(None, wrong=f"the alias *{name[:40]} has no anchor before it")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif depth > DEPTH_LIMIT:
            self._skip(event)
            value = _Value(None, wrong=f"it is nested deeper than {DEPTH_LIMIT}")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(depth)
        else:
            value = self._mapping(depth)
        if not isinstance(event, yaml.ScalarEvent) and event.tag not in (None, "!", f"{_CORE}seq", f"{_CORE}map"):
            value.wrong = value.wrong or f"the tag {event.tag[:60]} is not known"
        if value.size > SIZE_LIMIT:
            value.wrong = value.wrong or f"it is larger than {SIZE_LIMIT} characters with its aliases expanded"
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _sequence(self, depth: int) -> _Value:
        value = _Value([])
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            value.take(inner := self._value(event, depth + 1))
            value.content.append(inner.content)
        return value

    def _mapping(self, depth: int) -> _Value:
        value, merged = _Value({}), []
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            inner = self._value_of(key, depth)
            value.take(inner)
            if not isinstance(key, yaml.ScalarEvent):
                value.wrong = value.wrong or "a key must be text"
            elif key.value == "<<" and key.implicit[0]:
                merged += inner.content if isinstance(inner.content, list) else [inner.content]
            else:
                value.size += len(key.value)
                if key.value in value.content:
                    value.wrong = value.wrong or f"{key.value[:40]} occurs twice"
                value.content[key.value] = inner.content
        if not all(isinstance(each, dict) for each in merged):
            value.wrong = value.wrong or "<< must be followed by mappings"
        elif value.size <= SIZE_LIMIT:
            for each in merged:
                value.content = {**each, **value.content}
        return value

    def _value_of(self, key: Any, depth: int) -> _Value:
        self._skip(key)
        return self._value(self._next(), depth + 1)


def _scalar(event: Any) -> _Value:
    text: str = event.value
    value = _Value(text, size=1 + len(text))
    if _CONTROL.search(text):
        value.wrong = f"it contains the control character {_CONTROL.search(text)[0]!r}"  # type: ignore[index]  # it was found
    if event.tag not in (None, "!", *_TAGS):
        value.wrong = f"the tag {event.tag[:60]} is not known"
    elif event.implicit[0] or event.tag in _TAGS[1:]:
        value.content = _resolved(text)
    return value


def _resolved(text: str) -> Any:
    """Return the value of text without quotes. Dates, times and numbers that are not decimal are text."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _name(content: Any) -> str | None:
    name = content.get("id") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None
