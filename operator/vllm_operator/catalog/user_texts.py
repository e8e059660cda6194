"""YAML that the cluster's owner writes, read into plain values: mappings, lists, texts, numbers, true, false and null.

The text may be anything. It is read from the parser's events, because PyYAML's own constructor ends the process where lists are
nested some ten thousand deep, takes minutes for a long sexagesimal number, and lets ten lines with aliases stand for a billion
values. What is wrong inside of an entry costs that entry.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from vllm_operator.catalog.resources import YAML_LOADER

EVENTS_LIMIT = 50_000
"""Values, and beginnings and ends of lists and mappings, that are read of one text; half a second's work."""
DEPTH_LIMIT = 20
"""Deepest nesting of an entry."""
NESTING_LIMIT = 500
"""Deepest nesting of a text: what the parser takes for each level grows with the level."""
SIZE_LIMIT = 64 * 1024
"""Characters of an entry with all its aliases written out; a value counts as one more."""

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


class TextError(ValueError):
    """A text that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry that cannot be used, and why. `name` is its id, if it has one."""

    reason: str
    name: str | None = None


@dataclass(slots=True)
class _Value:
    """A value, its size with all that is in it, and what is wrong with it."""

    content: Any
    size: int = 1
    wrong: str | None = None

    def take(self, inner: "_Value") -> None:
        """Have another value inside."""
        self.size += inner.size
        self.wrong = self.wrong or inner.wrong


def read_entries(text: str, what: str) -> list[Any] | None:
    """Read the entries of a list, or of a mapping whose only key is `what`; None if the text is neither.

    Returns:
        Plain values, and a Broken for each entry that cannot be used.

    Raises:
        TextError: The text is not YAML, or has more in it than is read.
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
                    raise TextError("there is more than one document in it (---)")
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
            raise TextError(f"there are more than {EVENTS_LIMIT} values in it")
        if isinstance(event, yaml.CollectionStartEvent):
            self._nesting += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            self._nesting -= 1
        if self._nesting > NESTING_LIMIT:
            raise TextError(f"it is nested deeper than {NESTING_LIMIT}")
        return event

    def _skip(self, first: Any) -> None:
        """Read to the end of a value of which the beginning has been read."""
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
            value.wrong = value.wrong or f"it is larger than {SIZE_LIMIT} characters, aliases written out"
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
                    value.wrong = value.wrong or f"{key.value[:40]} is written twice"
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
        value.wrong = f"it has the control character {_CONTROL.search(text)[0]!r}"  # type: ignore[index]  # it was found
    if event.tag not in (None, "!", *_TAGS):
        value.wrong = f"the tag {event.tag[:60]} is not known"
    elif event.implicit[0] or event.tag in _TAGS[1:]:
        value.content = _resolved(text)
    return value


def _resolved(text: str) -> Any:
    """What a text without quotes stands for. Dates, times and numbers that are not decimal are texts."""
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
