"""Packs a filled cache directory as an artifact. Runs in the engine's image, with the directory mounted read-only, and no Secret.

    PACK_ARTIFACT   JSON, see `pack_when_ready`

The artifact is written to a folder that the container shares with the publisher (`publish.py`). With the setting `ready`, the program runs
in a Pod with an engine: it waits until the engine is ready, and afterwards until the Pod ends, because the kubelet would restart it.

Files may change while they are read, because an engine uses them. Then everything is packed again.
"""

import json
import os
import platform
import signal
import sys
import time
from typing import Any

from vllm_operator.tools.artifact import COLD_LABEL, LABEL, MAX_BYTES, ArtifactError, portability_key, run_with_report, start_deadline
from vllm_operator.tools.build import FACTS_LABEL, build_fingerprint, describe_build
from vllm_operator.tools.engine import ENGINE_PAUSE_SECONDS, ENGINE_SECONDS, wait_for_engine
from vllm_operator.tools.image import DESCRIPTION_NAME, LAYER_NAME
from vllm_operator.tools.pack import Entry, Packed, pack, take_inventory

PACK_SECONDS = 840
QUIET_SECONDS = 10
PAUSE_SECONDS = 5
PACK_ATTEMPTS = 20
SECRETS = "SECRET_"
"""Prefix of the variables with values that must not be published."""
MIN_SECRET = 8
"""Minimum length of a secret. Shorter values occur by chance."""


def main() -> int:
    """Pack the caches; return the exit status."""
    status = run_with_report("PACK_ARTIFACT", pack_when_ready, deadline=PACK_SECONDS, good=("Packed",))
    if status == 0 and json.loads(os.environ["PACK_ARTIFACT"]).get("ready"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            signal.pause()
    return status


def pack_when_ready(settings: dict[str, Any]) -> dict[str, Any]:
    """Pack the directory `root` into the folder `output`, after the engine in the same Pod, if any, is ready.

    Raises:
        ArtifactError: The directory was not packed.
        OSError: The folder cannot be written.
    """
    if settings.get("ready"):
        start_deadline(ENGINE_SECONDS)
        wait_for_engine(settings["ready"], pause=float(settings.get("pause", ENGINE_PAUSE_SECONDS)))
        start_deadline(float(settings.get("deadline", PACK_SECONDS)))
    fingerprint = build_fingerprint(settings.get("image", ""))
    base, tag = portability_key(settings["readable"], settings["parts"], settings["settings"], fingerprint)
    cold = {COLD_LABEL: str(settings["coldSeconds"])} if settings.get("coldSeconds") else {}
    labels = {f"{LABEL}base": base, f"{LABEL}tag": tag, FACTS_LABEL: json.dumps(describe_build(settings), sort_keys=True), **cold}
    output = settings["output"]
    for name in os.listdir(output):  # leftovers of a container that was killed
        os.unlink(os.path.join(output, name))
    with open(os.path.join(output, LAYER_NAME), "x+b") as file:
        packed = pack_unchanged(settings, file, labels)
    if packed.size > int(settings.get("maxBytes") or MAX_BYTES):
        raise ArtifactError("TooLarge", f"The caches have {packed.size} bytes.")
    part = os.path.join(output, f"{DESCRIPTION_NAME}.part")
    with open(part, "x") as description:
        found = {"fingerprint": fingerprint, "config": packed.config.decode(), "files": packed.files, "bytes": packed.size}
        json.dump(found, description)
    os.rename(part, os.path.join(output, DESCRIPTION_NAME))
    return {"result": "Packed"}


def pack_unchanged(settings: dict[str, Any], file: Any, labels: dict[str, str]) -> Packed:
    """Pack the directory while its content is unchanged."""
    root, folders, excluded, whole = settings["root"], settings["folders"], settings["excluded"], settings["whole"]
    values = (value.strip() for name, value in os.environ.items() if name.startswith(SECRETS))
    secrets = tuple({value.encode() for value in values if len(value) >= MIN_SECRET})
    for _ in range(PACK_ATTEMPTS):
        try:
            inventory = take_inventory(root, folders, excluded, whole)
            if is_quiet(inventory, float(settings.get("quiet", QUIET_SECONDS))):
                file.seek(0)
                file.truncate()
                packed = pack(
                    root,
                    inventory,
                    file,
                    labels=labels,
                    architecture=settings["architecture"],
                    machine=platform.machine(),
                    mounts=settings["mounts"],
                    secrets=secrets,
                )
                if take_inventory(root, folders, excluded, whole) == inventory:
                    return packed
        except ArtifactError as error:
            if error.reason != "Changing":
                raise
            print(f"{error}; once more", flush=True)
        time.sleep(float(settings.get("pause", PAUSE_SECONDS)))
    raise ArtifactError("Changing", "The engine kept changing its caches.")


def is_quiet(inventory: list[Entry], seconds: float) -> bool:
    """Return whether no file was written for this time. A time in the future counts as long ago."""
    now = time.time()
    return not any(0 <= now - entry.mtime_ns / 1e9 < seconds for entry in inventory)
