"""JSON that is nested deeper than Python's decoder goes.

The API server stores fields without a schema, such as `spec.podTemplate`, with up to 10,000 levels; `json.loads` ends at some 950 with
a RecursionError. Whoever may create one object would end each list and each watch that it is in, for all namespaces.
"""

import json
import re
from typing import Any

DEPTH_LIMIT = 100
"""What lies deeper is read as null, where the decoder cannot read all of it. No object of Kubernetes is a quarter as deep."""
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)


class DeepDecoder(json.JSONDecoder):
    """Decodes what is nested too deep, too, without what lies deeper than the limit."""

    def decode(self, s: str, *arguments: Any) -> Any:
        """Decode a document."""
        try:
            return super().decode(s, *arguments)
        except RecursionError:
            return super().decode(cut(s), *arguments)


def cut(text: str, limit: int = DEPTH_LIMIT) -> str:
    """Write null for each object and list that lies deeper than the limit."""
    pieces, kept, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in "{[":
            depth += 1
            if depth == limit + 1:
                pieces.append(text[kept : token.start()])
        elif mark in "}]":
            if depth == limit + 1:
                pieces.append("null")
                kept = token.end()
            depth -= 1
    return "".join(pieces if depth > limit else (*pieces, text[kept:]))


def install() -> None:
    """Let every `json.loads` without options decode so: kopf's and aiohttp's calls offer no other way to say how."""
    json._default_decoder = DeepDecoder()  # type: ignore[attr-defined]  # the decoder that json.loads keeps for such calls
