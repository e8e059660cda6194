"""Fills an empty cache directory from an artifact in one file, which it reads from standard input. The report goes to standard error.

    IMPORT_ARTIFACT   JSON, the settings of the program that fetches

The directory gets the same as if a Pod had fetched the artifact from a registry, and the same record of it: later Pods fetch nothing.
"""

import json
import os
import sys
import tempfile
import time
from typing import Any

from vllm_operator.caches.scripts.artifact import ArtifactError, elapsed, start_deadline, stop_deadline, travel_key
from vllm_operator.caches.scripts.build import build_fingerprint
from vllm_operator.caches.scripts.fetch import fetch_found, filled, read_state, remove_stale
from vllm_operator.caches.scripts.layout_file import LayoutFile, copy_limited


def run_import() -> int:
    """Import; return the exit status."""
    settings: dict[str, Any] = json.loads(os.environ["IMPORT_ARTIFACT"])
    since = time.monotonic()
    result: dict[str, Any] = {}
    try:
        start_deadline(float(settings.get("deadline", 840)))
        with tempfile.TemporaryFile() as file:
            copy_limited(sys.stdin.buffer, file)
            result = import_file(settings, LayoutFile(file))
    except ArtifactError as error:
        result = {"result": error.reason, "message": str(error)}
    except Exception as error:  # reported like everything else
        result = {"result": "Failed", "message": f"{type(error).__name__}: {error}"}
    finally:
        stop_deadline()
    print(json.dumps({**result, "seconds": elapsed(since)}), file=sys.stderr, flush=True)
    return int(result["result"] not in ("Fetched", "PartlyFetched"))


def import_file(settings: dict[str, Any], layout: LayoutFile) -> dict[str, Any]:
    """Fill the directory.

    Raises:
        ArtifactError: It was not filled.
        OSError: It cannot be written.
    """
    root, folders = settings["root"], set(settings["folders"])
    remove_stale(root)
    before = read_state(root)
    if before.get("state") == "Installed":
        raise ArtifactError("Present", f"The directory already has the caches of {before.get('tag') or 'an artifact'}.")
    if not before and (found := filled(root, folders)):
        raise ArtifactError("Present", f"The directory already has {', '.join(found[:8])}.")
    keys = travel_key(settings["readable"], settings["parts"], settings["settings"], build_fingerprint(settings.get("image", "")))
    content, digest, tag = layout.find_manifest()
    return fetch_found(settings, layout, content, {"digest": digest, "tag": tag}, keys)  # type: ignore[arg-type]  # it asks for blobs only
