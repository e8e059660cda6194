"""Documents of log stores: JSON over several lines, CSV, and text with the newest line first.

Loki returns pairs of a time and a line for each stream, Elasticsearch hits, CloudWatch events. Their web pages also export text and CSV.
The entries are sorted into the order in which they were logged.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from vllm_operator.cli.paste.wrappings import STORED_TEXTS
from vllm_operator.startup.lines.framing import TIMES

_INNER = ("jsonPayload", "attributes", "_source")
"""Members of an entry that are objects and contain its text."""
_STAMP = re.compile(rb"[^\n]{0,80}?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")
"""The time that a log store writes before each line."""
_STAMPS = 8
"""Minimum number of lines, each older than the one before, in a text that is reversed."""
_COLUMN = re.compile(r"[@\w. ]{1,40}")
_TEXT_COLUMNS = frozenset({*(name.strip("_").lower() for name in STORED_TEXTS), "content", "logmessage"})
_TIME_COLUMNS = frozenset({*(name.strip("@") for name in TIMES), "date", "timegenerated"})
"""Columns of a table, without the characters that some stores write before their own columns."""
_DIGITS = 19
"""Digits of a time in nanoseconds."""
_DEPTH = 8
"""Depth of objects and lists that are searched for entries."""


class _Entry(NamedTuple):
    """An entry as one line. `time` is as written, empty if unknown."""

    line: str
    time: str = ""


def unfolded(data: bytes) -> bytes:
    """Return the entries of a document, one per line and the oldest first. Other text is returned as it is."""
    entries = _document(data) if data.lstrip()[:1] in (b"[", b"{") else _table(data)
    if not entries:
        return _oldest_first(data)
    return "".join(f"{entry.line}\n" for entry in _in_order(entries)).encode("utf-8", "replace")


def _document(data: bytes) -> list[_Entry]:
    try:
        document = json.loads(data)
        return list(_entries(document, _DEPTH)) or [_as_line(document)]
    except (ValueError, RecursionError):  # Python reads JSON that is nested deeper than what it can write
        return []


def _table(data: bytes) -> list[_Entry]:
    """Rows of CSV whose first line names the columns."""
    heading, _, rest = data[:2000].partition(b"\n")
    if b"," not in heading:
        return []
    names = [name.strip(' "\r') for name in heading.decode("utf-8-sig", "replace").split(",")]
    columns = [name.strip("@_").lower() for name in names]
    text = next((number for number, name in enumerate(columns) if name in _TEXT_COLUMNS), None)
    if text is None or not rest or not all(map(_COLUMN.fullmatch, names)):
        return []
    time = next((number for number, name in enumerate(columns) if name in _TIME_COLUMNS), None)
    rows = csv.reader(io.StringIO(data[len(heading) + 1 :].decode("utf-8", "replace"), newline=""))
    try:
        return [_Entry(row[text], "" if time is None else row[time]) for row in rows if len(row) == len(names)]
    except csv.Error:
        return []


def _oldest_first(data: bytes) -> bytes:
    """Reverse the text if all lines after a heading have a time and each is older than the one before."""
    last = _STAMP.match(data, data.rfind(b"\n", 0, -1) + 1)
    if last is None:
        return data
    first = next((found for line in data[:1000].split(b"\n") if (found := _STAMP.match(line))), None)
    if first is None or first[1] <= last[1]:
        return data
    lines = data.rstrip().splitlines()
    stamps = [found[1] for line in lines if (found := _STAMP.match(line))]
    if not _STAMPS <= len(stamps) >= len(lines) * 0.9 or any(newer < older for newer, older in pairwise(stamps)):
        return data
    return b"\n".join([*reversed(lines), b""])


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
    elif isinstance(node, dict) and any(isinstance(node.get(key), str) for key in STORED_TEXTS):
        yield _as_line(node)
    elif isinstance(node, dict):
        inner = [value for key in _INNER if isinstance(value := node.get(key), dict)]
        if inner:
            yield _as_line({**inner[0], **{key: value for key, value in node.items() if key in TIMES}})
        else:
            # Strings beside the entries are metadata.
            for value in node.values():
                if isinstance(value, dict | list):
                    yield from _entries(value, levels - 1)


def _is_pair(node: list[object]) -> bool:
    """Whether this is an entry of Loki: nanoseconds, a line, and possibly labels."""
    return len(node) in (2, 3) and isinstance(node[0], str) and node[0].isdecimal() and len(node[0]) == _DIGITS and isinstance(node[1], str)


def _as_line(entry: object) -> _Entry:
    time = next((str(entry[key]) for key in TIMES if entry.get(key)), "") if isinstance(entry, dict) else ""
    return _Entry(json.dumps(entry, ensure_ascii=False), time)


def _in_order(entries: list[_Entry]) -> list[_Entry]:
    """Reverse entries that begin with the newest, and merge several streams by time."""
    if "" not in (entries[0].time, entries[-1].time) and entries[0].time > entries[-1].time:
        entries = entries[::-1]
    # int() raises on numbers of thousands of digits.
    are_numbers = all(entry.time.isdecimal() and len(entry.time) <= _DIGITS for entry in entries)
    return sorted(entries, key=lambda entry: int(entry.time)) if are_numbers else entries
