"""The table of a build of vLLM that the program `read-build` (`tools/vllm_build.py`) made from an image or a wheel. It is untrusted."""

import base64
import json
import re
import zlib
from functools import lru_cache
from itertools import chain
from typing import Any

from vllm_operator.catalog.entry import EntryError, parse_entry
from vllm_operator.catalog.versions import VersionTable, parse_release

MARK = "vllm-operator-build "
PACKED_LIMIT, TABLE_LIMIT, TEXT_LIMIT = 128 * 1024, 256 * 1024, 512
"""Maximum characters of a packed table, bytes of the JSON in it, and characters of a name or value (the longest of vLLM has 109)."""


def find_packed(output: str) -> str:
    """Return the packed table in the output of the program. Raises EntryError if there is none."""
    found = re.search(rf"{MARK}([A-Za-z0-9+/=]{{1,{PACKED_LIMIT}}})\s*$", output, re.MULTILINE)
    if found is None:
        raise EntryError("the program that reads the image wrote no table")
    return found[1]


def unpack(packed: str) -> Any:
    """Return the JSON of a packed table. Raises EntryError."""
    try:
        written = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), TABLE_LIMIT)
        return json.loads(written)  # what is longer than the limit is no JSON
    except (ValueError, zlib.error, RecursionError) as error:
        raise EntryError(f"it is not the table of a vLLM version: {error!s:.100}") from None


@lru_cache(maxsize=64)
def read_packed(packed: str) -> VersionTable:
    """Return a packed table. Raises EntryError."""
    return read_table(unpack(packed))


def read_table(written: Any) -> VersionTable:
    """Return a table from its JSON. Raises EntryError if a field is wrong, or a text is too long or cannot be printed."""
    table = parse_entry(VersionTable, written)
    if parse_release(table.version) is None:
        raise EntryError(f"{table.version[:50]!r} is not a version")
    names = chain(table.flags, table.variables, table.backends, table.configs, *table.backends.values(), *table.configs.values())
    values = chain.from_iterable((known.default or "", *known.values) for known in table.variables.values())
    for text in chain([table.version], map(str, table.bundle.model_dump().values()), names, values):
        if len(text) > TEXT_LIMIT or not text.isprintable():
            raise EntryError(f"it contains {text[:50]!r}, which is no name or value of vLLM")
    return table
