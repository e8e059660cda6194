"""Keeps the caches of a directory as one packed file on the volume. On a slow volume, thousands of small files cost more than compiling.

The engine works on an `emptyDir`. Two programs run beside it, in its image, and get their settings from PACKED_CACHES (JSON, see `unpack`):

    unpack   in an init container: unpacks the packed file before the engine starts
    keep     in a container: packs again when the engine is ready and something was added, and waits until the Pod ends

The packed file is an artifact in a folder of the cache directory on the volume (`folder.py`). Caches that are there as files, from before,
are packed at the first start, and are neither changed nor removed.
"""

import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm_operator.caches.scripts.artifact import LABEL, ArtifactError, run_with_report, travel_key
from vllm_operator.caches.scripts.build import FACTS_LABEL, build_fingerprint, describe_build
from vllm_operator.caches.scripts.fetch import fetch_found, filled, find_manifest, read_state
from vllm_operator.caches.scripts.folder import Folder
from vllm_operator.caches.scripts.pack import Entry, take_inventory
from vllm_operator.caches.scripts.publish import pack_unchanged, push, wait_for_engine
from vllm_operator.caches.scripts.registry import read_manifest

PACKED = "packed"
"""Folder of the cache directory on the volume."""
CONTENT_LABEL = f"{LABEL}content"
"""Label with a digest of names, sizes and times of the files."""
WORKING = "working-"
"""Prefix of a file that says that a Pod is packing."""
WORKING_SECONDS = 120
PROBLEM = "problem"
"""File with the reason why the last Pod could not pack."""
PAUSE = 1.0
UNPACK_SECONDS = 110
KEEP_SECONDS = 8 * 86_400
"""An engine that takes longer to be ready is ended by its startup probe."""


def run_unpack() -> int:
    """Unpack before the engine starts; return the exit status."""
    return run_with_report("PACKED_CACHES", unpack, deadline=UNPACK_SECONDS, good=("Fetched", "PartlyFetched", "Present"), is_optional=True)


def run_keep() -> int:
    """Pack when the engine is ready, and wait until the Pod ends; return the exit status."""
    ends: list[bool] = []
    run_with_report("PACKED_CACHES", lambda settings: keep(settings, ends), deadline=KEEP_SECONDS, good=())
    signal.signal(signal.SIGTERM, lambda *_: ends.append(True))
    while not ends:
        time.sleep(PAUSE)
    return 0


def keys_of(settings: dict[str, Any]) -> tuple[str, str]:
    """Return the tag of the base, and the tag."""
    return travel_key(settings["readable"], settings["parts"], settings["settings"], build_fingerprint(settings.get("image", "")))


def unpack(settings: dict[str, Any]) -> dict[str, Any]:
    """Fill the directory `root` from the packed file on the volume `store`.

    Raises:
        ArtifactError: It was not filled.
        OSError: It cannot be written.
    """
    root, store, folders = settings["root"], settings["store"], set(settings["folders"])
    if read_state(root).get("state") == "Installed" or filled(root, folders):
        return {"result": "Present"}
    folder, keys = Folder(os.path.join(store, PACKED)), keys_of(settings)
    wait_for_packing(folder, keys)
    if not has_packed(folder, keys) and filled(store, folders):
        pack_into(folder, settings | {"root": store}, keys)
    content, digest, tag = find_manifest(folder, "", [keys[1], keys[0]])
    try:
        return fetch_found(settings, folder, content, {"digest": digest, "tag": tag}, keys)
    except ArtifactError as error:
        if error.reason in ("Rejected", "NotFound", "Mismatch"):
            folder.remove_tag(tag)
        raise


def has_packed(folder: Folder, keys: tuple[str, str]) -> bool:
    """Return whether there is a packed file."""
    return any(folder.has(f"manifests/{tag}") for tag in keys)


def wait_for_packing(folder: Folder, keys: tuple[str, str]) -> None:
    """Wait while another Pod packs what would be compiled here."""
    while not has_packed(folder, keys) and is_packing(folder):
        time.sleep(PAUSE)


def is_packing(folder: Folder) -> bool:
    """Return whether a Pod is packing, and was not killed meanwhile."""
    for name in os.listdir(folder.path):
        try:
            age = time.time() - os.lstat(os.path.join(folder.path, name)).st_mtime
        except OSError:
            continue
        if name.startswith(WORKING) and age < WORKING_SECONDS:
            return True
    return False


@contextmanager
def working(folder: Folder) -> Iterator[None]:
    """Show other Pods that this one is packing, and keep the reason if that fails."""
    path, problem = os.path.join(folder.path, f"{WORKING}{os.uname().nodename}"), os.path.join(folder.path, PROBLEM)
    with open(path, "w"):
        pass
    try:
        yield
    except Exception as error:
        with open(problem, "w") as file:
            file.write(str(error)[:600])
        raise
    else:
        if os.path.exists(problem):
            os.unlink(problem)
    finally:
        os.unlink(path)


def keep(settings: dict[str, Any], ends: list[bool]) -> dict[str, Any]:
    """Pack when the engine is ready, if something was added since the caches were unpacked.

    A primer is ended as soon as it is ready. Then this is done while its engine ends.
    """
    is_ready: list[bool] = []

    def end(*_: object) -> None:
        ends.append(True)
        settings["quiet"] = 0
        if not is_ready:
            raise ArtifactError("Interrupted", "The Pod ended before the engine was ready.")

    signal.signal(signal.SIGTERM, end)
    wait_for_engine(settings["ready"], pause=PAUSE)
    is_ready.append(True)
    folder = Folder(os.path.join(settings["store"], PACKED))
    with working(folder):
        return pack_into(folder, settings, keys_of(settings))


def pack_into(folder: Folder, settings: dict[str, Any], keys: tuple[str, str]) -> dict[str, Any]:
    """Pack the directory `root` into a folder, unless what is there has the same content.

    Raises:
        ArtifactError: It cannot be packed.
        OSError: The volume cannot be written.
    """
    base, tag = keys
    content = content_of(take_inventory(settings["root"], settings["folders"], settings["excluded"], settings["whole"]))
    if content == packed_content(folder, keys):
        return {"result": "Unchanged"}
    made_with = json.dumps(describe_build(settings), sort_keys=True)
    labels = {f"{LABEL}base": base, f"{LABEL}tag": tag, FACTS_LABEL: made_with, CONTENT_LABEL: content}
    with tempfile.TemporaryFile(dir=settings["work"]) as file:
        packed = pack_unchanged(settings, file, labels)
        push(folder, packed, file)
    folder.push_manifest(tag, packed.manifest)
    if not folder.has(f"manifests/{base}"):
        folder.push_manifest(base, packed.manifest)
    folder.remove_unused()
    return {"result": "Packed", "tag": tag, "files": packed.files, "bytes": packed.size, "packedBytes": packed.layer_size}


def packed_content(folder: Folder, keys: tuple[str, str]) -> str:
    """Return the digest of what is packed already; empty if there is nothing, or if it cannot be read."""
    base, tag = keys
    try:
        return read_manifest(folder, folder.manifest(tag)[0], base)[1].get(CONTENT_LABEL, "")
    except (ArtifactError, OSError):
        return ""


def content_of(inventory: list[Entry]) -> str:
    """Return a digest of the names, sizes and times, in seconds, of files."""
    lines = [f"{entry.path} {entry.size} {entry.mtime_ns // 10**9}" for entry in inventory if not entry.is_folder]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
