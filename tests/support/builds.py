"""Builds of vLLM that are in no table, and what the Job prints that reads them from an image."""

import base64
import json
import zlib
from typing import Any

from vllm_operator.catalog.builds import MARK
from vllm_operator.catalog.entry import list_data, load_file

IMAGE = "registry.example/team/vllm:nightly"
"""An image whose tag names no release."""
OWN_FLAG = "--flag-of-the-team"


def build_table(**changes: Any) -> dict[str, Any]:
    """The table of a build after the newest release, with a flag of its own."""
    table = load_file(dict[str, Any], list_data("versions")[-1])
    return {**table, "version": "0.34.0.dev7", "flags": {**table["flags"], OWN_FLAG: []}, **changes}


def pack(content: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(content).encode(), 9)).decode()


def printed(content: object) -> str:
    """What the Job prints about this content."""
    return f"{MARK}{pack(content)}\n"
