"""Fills an empty cache directory from an artifact before the engine starts. Runs in an init container of the engine's image.

    CACHE_ARTIFACT   JSON, see `fetch`

A directory that already has caches is kept. Everything is unpacked into a staging folder inside the directory, and each folder that does
not exist yet is renamed into place, so of two Pods one wins each rename. A file `.vllm-operator-artifact` says what was installed; while it
says `Installing`, the next Pod completes the work. After a failure the status is 0 and the engine starts without the artifact, unless it is
required.
"""

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vllm_operator.tools.artifact import (
    COLD_LABEL,
    FOLDER_FLAGS,
    LABEL,
    MAX_BYTES,
    ArtifactError,
    open_below,
    open_regular,
    opened_root,
    portability_key,
    run_with_report,
)
from vllm_operator.tools.build import FACTS_LABEL, build_fingerprint, describe_build, differences
from vllm_operator.tools.registry import Artifact, Registry, if_found, read_manifest
from vllm_operator.tools.unpack import unpack_layer

STATE = ".vllm-operator-artifact"
STAGING = ".vllm-operator-staging-"
STALE_SECONDS = 900
"""Age of a staging folder whose Pod was killed. It exceeds every deadline."""


def main() -> int:
    """Fill the directory; return the exit status."""
    return run_with_report("CACHE_ARTIFACT", fetch, deadline=110, good=("Fetched", "PartlyFetched", "Present"), is_optional=True)


def fetch(settings: dict[str, Any]) -> dict[str, Any]:
    """Fill the directory, and return a report.

    Raises:
        ArtifactError: The directory was not filled.
        OSError: The directory cannot be written.
    """
    root, folders = settings["root"], set(settings["folders"])
    remove_stale(root)
    before = read_state(root)
    if before.get("state") == "Installed":
        return {"result": "Present", "digest": before.get("digest", ""), "tag": before.get("tag", "")}
    if not before and (there := filled(root, folders)):
        return {"result": "Present", "message": f"The directory already has {', '.join(there[:8])}."}
    base, tag = portability_key(settings["readable"], settings["parts"], settings["settings"], build_fingerprint(settings.get("image", "")))
    reference = settings.get("reference") or ""
    repository, _, pinned = reference.partition("@") if reference else (settings["repository"], "", "")
    registry = Registry(repository, settings.get("secret", ""), settings.get("scheme", "https"))
    found_tag, content, digest = find_manifest(registry, pinned, (tag, base))
    try:
        if digest in (settings.get("rejected") or ()):
            raise ArtifactError("Rejected", f"{digest} was rejected after an earlier start.")
        here = describe_build(settings)
        artifact = read_manifest(registry, content, base, here)
        files, size = fill(settings, registry, artifact, {"digest": digest, "tag": found_tag})
    except ArtifactError as error:
        error.facts["tag"] = found_tag
        raise
    cold = artifact.labels.get(COLD_LABEL, "")
    return {
        "result": "Fetched" if artifact.labels.get(f"{LABEL}tag") == tag else "PartlyFetched",
        "files": files,
        "bytes": size,
        "digest": digest,
        "tag": found_tag,
        "differs": differences(here, artifact.labels.get(FACTS_LABEL, "")),
        **({"coldSeconds": int(cold)} if cold.isdecimal() and len(cold) < 7 else {}),
    }


def fill(settings: dict[str, Any], registry: Registry, artifact: Artifact, source_of: dict[str, str]) -> tuple[int, int]:
    """Fill the directory from an artifact, and return the number of files and their bytes. `source_of` are its digest and tag.

    Raises:
        ArtifactError: The directory was not filled.
        OSError: The directory cannot be written.
    """
    root, told = settings["root"], artifact.labels.get("cache.vllm.image/cache-size-bytes", "")
    check_space(root, int(told) if told.isdecimal() and len(told) < 16 else 0)
    staging = tempfile.mkdtemp(prefix=STAGING, dir=root)
    try:
        with opened_root(root) as top, opened_folder(top, os.path.basename(staging)) as opened, registry.blob(artifact.digest) as source:
            files, size = unpack_layer(
                source,
                opened,
                set(settings["folders"]),
                digest=artifact.digest,
                plain_digest=artifact.plain_digest,
                size=artifact.size,
                max_bytes=int(settings.get("maxBytes") or MAX_BYTES),
            )
            if str(size) != told:
                raise ArtifactError("Rejected", f"The artifact has {size} bytes of caches, and its label says another number.")
            write_state(root, {"state": "Installing", **source_of})
            install(opened, top)
            write_state(root, {"state": "Installed", **source_of})
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArtifactError("Rejected", f"The archive contains a file in place of a directory: {error.filename}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return files, size


def find_manifest(registry: Registry, pinned: str, tags: tuple[str, str]) -> tuple[str, bytes, str]:
    """Return the matching tag (empty for the pinned manifest), the manifest and its digest: pinned, or of the first existing tag."""
    if pinned:
        return "", *registry.manifest(pinned)
    for tag in tags:
        if (manifest := if_found(lambda: registry.manifest(tag))) is not None:  # noqa: B023 - called at once
            return tag, *manifest
    raise ArtifactError("NotFound", f"{registry.host}/{registry.name} has neither the tag {tags[0]} nor {tags[1]}.")


def read_state(root: str) -> dict[str, Any]:
    """Return the state that the last Pod wrote; empty without one."""
    try:
        with opened_root(root) as top, open_regular(top, STATE) as file:
            found = json.loads(file.read(4096))
    except (OSError, ValueError, RecursionError, ArtifactError):
        return {}
    return found if isinstance(found, dict) else {}


def write_state(root: str, state: dict[str, Any]) -> None:
    """Replace the state atomically."""
    descriptor, path = tempfile.mkstemp(prefix=STAGING, dir=root)
    with open(descriptor, "w") as file:
        json.dump(state, file)
    os.replace(path, os.path.join(root, STATE))


def filled(root: str, folders: set[str]) -> list[str]:
    """Return the folders with content."""
    found = []
    with opened_root(root) as top:
        for name in sorted(folders):
            with suppress(OSError), opened_folder(top, name) as folder:
                if os.listdir(folder):
                    found.append(name)
    return found


@contextmanager
def opened_folder(top: int, name: str) -> Iterator[int]:
    """Open a folder. Engines of other Pods may write to the same directory, so a link is refused."""
    folder = open_below(top, name, FOLDER_FLAGS)
    try:
        yield folder
    finally:
        os.close(folder)


def install(staging: int, top: int) -> None:
    """Rename each folder into place that does not exist, or is empty. Another Pod may do the same."""
    for name in sorted(os.listdir(staging)):
        try:
            os.rename(name, name, src_dir_fd=staging, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def remove_stale(root: str) -> None:
    """Remove the staging folders of Pods that were killed. Another Pod may do the same."""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        with suppress(OSError):
            if not name.startswith(STAGING) or os.path.islink(path) or time.time() - os.lstat(path).st_mtime < STALE_SECONDS:
                continue
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)


def check_space(root: str, size: int) -> None:
    """Raise ArtifactError if this many bytes do not fit on the volume."""
    volume = os.statvfs(root)
    free = volume.f_bavail * volume.f_frsize
    if size > free:
        raise ArtifactError("NoSpace", f"The caches need {size} bytes, and the volume has {free}.")
