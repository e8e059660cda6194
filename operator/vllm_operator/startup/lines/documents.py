"""A log that is a document of JSON over several lines: what the tools of clouds export, or a list of lines."""

import json
from collections.abc import Iterator

_TEXTS = ("message", "msg", "log", "event", "text", "line", "textPayload", "jsonPayload", "body")
"""Members of an entry of a log: an object that has one of them is an entry, and no collection of entries."""


def unfolded(data: bytes) -> bytes:
    """The entries of such a document, one in a line; any other text as it is."""
    if data.lstrip()[:1] not in (b"[", b"{"):
        return data
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return "".join(f"{entry}\n" for entry in _entries(document)).encode("utf-8", "replace")


def _entries(document: object) -> Iterator[str]:
    if isinstance(document, dict) and not any(key in document for key in _TEXTS):
        # CloudWatch, Loki and others put the entries beside what they say about them.
        document = next((value for value in document.values() if isinstance(value, list) and value), document)
    for entry in document if isinstance(document, list) else [document]:
        yield entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)
