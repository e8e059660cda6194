"""A log that is a document of JSON over several lines: what log stores answer, what their pages export, or a list of lines.

Loki answers with pairs of a time and a line for each stream, Elasticsearch with hits, CloudWatch with events; all of them give
the newest first unless they are asked not to. What is found is put into the order in which it was logged.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

TEXTS = ("message", "msg", "log", "event", "text", "line", "textPayload", "MESSAGE", "body", "_raw")
"""Members of an object that is an entry of a log, with its text."""
TIMES = ("asctime", "time", "timestamp", "ts", "@timestamp")
"""Members with its time."""
_INNER = ("jsonPayload", "attributes", "_source")
"""Members of an entry that are objects with its text."""
_DEEP = 8
"""Levels of objects and lists in which entries are looked for."""


class _Entry(NamedTuple):
    """An entry as one line. `time` is as it is there, empty if unknown."""

    line: str
    time: str = ""


def unfolded(data: bytes) -> bytes:
    """The entries of such a document, one in a line; any other text as it is."""
    if data.lstrip()[:1] not in (b"[", b"{"):
        return data
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    entries = list(_entries(document, _DEEP)) or [_as_line(document)]
    return "".join(f"{entry.line}\n" for entry in _in_order(entries)).encode("utf-8", "replace")


def _entries(node: object, levels: int) -> Iterator[_Entry]:
    if not levels:
        return
    if isinstance(node, str):
        yield _Entry(node)
    elif isinstance(node, list):
        if _is_pair(node):
            yield _Entry(node[1], node[0])
        else:
            for each in node:
                yield from list(_entries(each, levels - 1)) or ([_as_line(each)] if isinstance(each, dict) else [])
    elif isinstance(node, dict) and any(isinstance(node.get(key), str) for key in TEXTS):
        yield _as_line(node)
    elif isinstance(node, dict):
        inner = [value for key in _INNER if isinstance(value := node.get(key), dict)]
        if inner:
            yield _as_line({**inner[0], **{key: value for key, value in node.items() if key in TIMES}})
        else:
            # What is said about the entries stands beside them.
            for value in node.values():
                if isinstance(value, dict | list):
                    yield from _entries(value, levels - 1)


def _is_pair(node: list[object]) -> bool:
    """Whether this is how Loki writes an entry: nanoseconds and a line; labels may follow."""
    return len(node) in (2, 3) and isinstance(node[0], str) and node[0].isdecimal() and len(node[0]) == 19 and isinstance(node[1], str)


def _as_line(entry: object) -> _Entry:
    time = next((str(entry[key]) for key in TIMES if entry.get(key)), "") if isinstance(entry, dict) else ""
    return _Entry(json.dumps(entry, ensure_ascii=False), time)


def _in_order(entries: list[_Entry]) -> list[_Entry]:
    """Those that begin with the newest are turned round, those of several streams are put together by time."""
    if "" not in (entries[0].time, entries[-1].time) and entries[0].time > entries[-1].time:
        entries = entries[::-1]
    return sorted(entries, key=lambda entry: int(entry.time)) if all(entry.time.isdecimal() for entry in entries) else entries
