"""Packs a filled cache directory, and writes the artifact as one file to standard output. The report goes to standard error.

EXPORT_ARTIFACT   JSON, the settings of the program that publishes
"""

import json
import os
import sys
import tempfile
import time
from typing import IO, Any

from vllm_operator.caches.scripts.artifact import LABEL, MAX_BYTES, ArtifactError, elapsed, start_deadline, stop_deadline, travel_key
from vllm_operator.caches.scripts.build import FACTS_LABEL, build_fingerprint, describe_build
from vllm_operator.caches.scripts.layout_file import write_layout_file
from vllm_operator.caches.scripts.publish import pack_unchanged


def run_export() -> int:
    """Export; return the exit status."""
    settings: dict[str, Any] = json.loads(os.environ["EXPORT_ARTIFACT"])
    output, sys.stdout = sys.stdout.buffer, sys.stderr  # what is printed must not get into the file
    since = time.monotonic()
    result: dict[str, Any] = {}
    try:
        start_deadline(float(settings.get("deadline", 840)))
        result = export_file(settings, output)
    except ArtifactError as error:
        result = {"result": error.reason, "message": str(error)}
    except Exception as error:  # reported like everything else
        result = {"result": "Failed", "message": f"{type(error).__name__}: {error}"}
    finally:
        stop_deadline()
    print(json.dumps({**result, "seconds": elapsed(since)}), file=sys.stderr, flush=True)
    return int(result["result"] != "Exported")


def export_file(settings: dict[str, Any], output: IO[bytes]) -> dict[str, Any]:
    """Pack, and write the file.

    Raises:
        ArtifactError: It was not packed.
    """
    base, tag = travel_key(settings["readable"], settings["parts"], settings["settings"], build_fingerprint(settings.get("image", "")))
    with tempfile.TemporaryFile() as file:
        made_with = json.dumps(describe_build(settings), sort_keys=True)
        packed = pack_unchanged(settings, file, {f"{LABEL}base": base, f"{LABEL}tag": tag, FACTS_LABEL: made_with})
        if packed.size > int(settings.get("maxBytes") or MAX_BYTES):
            raise ArtifactError("TooLarge", f"The caches have {packed.size} bytes.")
        write_layout_file(
            output,
            manifest=packed.manifest,
            config=packed.config,
            layer=file,
            layer_digest=packed.layer_digest,
            layer_size=packed.layer_size,
            tag=tag,
        )
        output.flush()
    return {"result": "Exported", "tag": tag, "digest": packed.digest, "files": packed.files, "bytes": packed.size}
