"""Fills an empty cache directory from an artifact before the engine starts. Runs in an init container of the engine's image.

    CACHE_ARTIFACT   JSON, see `fetch`

A directory that already has caches is kept. Everything is unpacked into a staging folder inside the directory, and each folder that does
not exist yet is renamed into place, so of two Pods one wins each rename. A file `.vllm-operator-artifact` says what was installed; while it
says `Installing`, the next Pod completes the work. After a failure the status is 0 and the engine starts without the artifact, unless it is
required.

The content of a layer is untrusted until its digest is checked. Only regular files and directories are accepted, with plain relative paths,
each once. Modification times are restored, because otherwise ninja would rebuild everything.
"""

import errno
import hashlib
import http.client
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from vllm_operator.tools import artifact
from vllm_operator.tools.artifact import ArtifactError
from vllm_operator.tools.build import FACTS_LABEL, build_fingerprint, describe_build, differences
from vllm_operator.tools.registry import Artifact, Registry, if_found, read_manifest

STATE = ".vllm-operator-artifact"
STAGING = ".vllm-operator-staging-"
STALE_SECONDS = 900
"""Age of a staging folder whose Pod was killed. It exceeds every deadline."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
BLOCK = tarfile.BLOCKSIZE
READ_BYTES = 2**18
MAX_DEPTH = 32
MAX_PATH = 1024
MAX_RATIO = 50
FREE_RATIO_BYTES = 64 * 2**20
"""Maximum size up to which the compression ratio is not limited."""
PLAIN = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")
FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def main() -> int:
    """Fill the directory; return the exit status."""
    return artifact.run_with_report("CACHE_ARTIFACT", fetch, deadline=110, good=("Fetched", "PartlyFetched", "Present"), is_optional=True)


def fetch(settings: dict[str, Any]) -> dict[str, Any]:
    """Fill the directory, and return a report. Raises ArtifactError if it was not filled, and OSError if it cannot be written."""
    root, folders = settings["root"], set(settings["folders"])
    remove_stale(root)
    before = read_state(root)
    if before.get("state") == "Installed":
        return {"result": "Present", "digest": before.get("digest", ""), "tag": before.get("tag", "")}
    if not before and (there := filled(root, folders)):
        return {"result": "Present", "message": f"The directory already has {', '.join(there[:8])}."}
    base, tag = artifact.portability_key(settings, build_fingerprint(settings.get("image", "")))
    reference = settings.get("reference") or ""
    repository, _, pinned = reference.partition("@") if reference else (settings["repository"], "", "")
    registry = Registry(repository, settings.get("secret", ""), settings.get("scheme", "https"))
    found_tag, content, digest = find_manifest(registry, pinned, (tag, base))
    try:
        if digest in (settings.get("rejected") or ()):
            raise ArtifactError("Rejected", f"{digest} was rejected after an earlier start.")
        here = describe_build(settings)
        found = read_manifest(registry, content, base, here)
        files, size = fill(settings, registry, found, {"digest": digest, "tag": found_tag})
    except ArtifactError as error:
        error.facts["tag"] = found_tag
        raise
    cold = found.labels.get(artifact.COLD_LABEL, "")
    return {
        "result": "Fetched" if found.labels.get(f"{artifact.LABEL}tag") == tag else "PartlyFetched",
        "files": files,
        "bytes": size,
        "digest": digest,
        "tag": found_tag,
        "differs": differences(here, found.labels.get(FACTS_LABEL, "")),
        **({"coldSeconds": int(cold)} if cold.isdecimal() and len(cold) < 7 else {}),
    }


def fill(settings: dict[str, Any], registry: Registry, found: Artifact, source_of: dict[str, str]) -> tuple[int, int]:
    """Fill the directory from an artifact, and return the number of files and their bytes. `source_of` are its digest and tag."""
    root, told = settings["root"], found.labels.get("cache.vllm.image/cache-size-bytes", "")
    volume = os.statvfs(root)
    needed, free = int(told) if told.isdecimal() and len(told) < 16 else 0, volume.f_bavail * volume.f_frsize
    if needed > free:
        raise ArtifactError("NoSpace", f"The caches need {needed} bytes, and the volume has {free}.")
    staging = tempfile.mkdtemp(prefix=STAGING, dir=root)
    try:
        with (
            artifact.opened_root(root) as top,
            artifact.opened_folder(top, os.path.basename(staging)) as opened,
            registry.blob(found.digest) as source,
        ):
            files, size = unpack_layer(
                source,
                opened,
                set(settings["folders"]),
                digest=found.digest,
                plain_digest=found.plain_digest,
                size=found.size,
                max_bytes=int(settings.get("maxBytes") or artifact.MAX_BYTES),
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
        with artifact.opened_root(root) as top, artifact.open_regular(top, STATE) as file:
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
    with artifact.opened_root(root) as top:
        for name in sorted(folders):
            with suppress(OSError), artifact.opened_folder(top, name) as folder:
                if os.listdir(folder):
                    found.append(name)
    return found


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


def rejected(message: str) -> ArtifactError:
    """Return the error for a layer that is not accepted."""
    return ArtifactError("Rejected", message)


class Layer:
    """The uncompressed bytes of a layer, with limits and digests."""

    def __init__(self, source: Any, size: int, limit: int) -> None:
        self._source, self._size, self._limit = source, size, limit
        self._inflate = zlib.decompressobj(31)
        self._compressed, self._plain = hashlib.sha256(), hashlib.sha256()
        self._read = self._written = 0
        self._buffer = bytearray()

    def take(self, count: int) -> bytes:
        """Return exactly this many bytes."""
        while len(self._buffer) < count:
            if not self._fill():
                raise rejected("The layer is truncated.")
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def content(self, length: int) -> Iterator[bytes]:
        """Return the content of an entry in blocks, and skip its padding."""
        for start in range(0, length, READ_BYTES):
            yield self.take(min(length - start, READ_BYTES))
        self.take(-length % BLOCK)

    def _fill(self) -> bool:
        """Add bytes to the buffer; return False at the end."""
        if self._inflate.eof:
            return False
        pending = self._inflate.unconsumed_tail or self._receive()
        try:
            plain = self._inflate.decompress(pending, READ_BYTES)
        except zlib.error as error:
            raise rejected(f"The layer is damaged: {error}") from None
        if self._inflate.unused_data:
            raise rejected("Something follows the end of the layer.")
        self._written += len(plain)
        if self._written > self._limit:
            raise ArtifactError("TooLarge", f"The layer has more than {self._limit} bytes.")
        if self._written > max(FREE_RATIO_BYTES, MAX_RATIO * self._read):
            raise ArtifactError("TooLarge", f"The layer is compressed more than {MAX_RATIO} times.")
        self._plain.update(plain)
        self._buffer += plain
        return True

    def _receive(self) -> bytes:
        try:
            received: bytes = self._source.read(READ_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ArtifactError("Unreachable", f"The transfer broke off: {error}") from None
        self._read += len(received)
        self._compressed.update(received)
        if self._read > self._size:
            raise rejected(f"The layer has more than the {self._size} bytes of its manifest.")
        if not received and self._read < self._size:
            raise ArtifactError("Unreachable", f"The transfer broke off after {self._read} of {self._size} bytes.")
        if not received:
            raise rejected("The layer is truncated.")
        return received

    def finish(self, digest: str, plain_digest: str) -> None:
        """Read to the end, which must be empty, and check the digests."""
        more = True
        while more:
            if self._buffer.strip(b"\0"):
                raise rejected("Something follows the end of the archive.")
            self._buffer.clear()
            more = self._fill()
        if self._source.read(1) or self._read != self._size:
            raise rejected(f"The layer has not the {self._size} bytes of its manifest.")
        if f"sha256:{self._compressed.hexdigest()}" != digest or f"sha256:{self._plain.hexdigest()}" != plain_digest:
            raise rejected(f"The content of the layer is not {digest}.")


def unpack_layer(
    source: Any, staging: int, folders: set[str], *, digest: str, plain_digest: str, size: int, max_bytes: int = artifact.MAX_BYTES
) -> tuple[int, int]:
    """Unpack a layer into an empty open folder, and return the number of files and their bytes. Raises ArtifactError for hostile content.

    `source` has the compressed bytes, `size` their number, and `digest` their digest; `plain_digest` is that of the archive. Only these
    folders of the cache root may be written.
    """
    layer = Layer(source, size, max_bytes + artifact.MAX_FILES * BLOCK * 4)
    seen: set[str] = set()
    parents = {""}
    times: list[tuple[str, int]] = []
    files = total = size_of_files = 0
    for entry, parts in read_entries(layer):
        path = target_of(parts, folders, is_folder=entry.isdir())
        if path in seen:
            raise rejected(f"{path} occurs twice.")
        seen.add(path)
        total += entry.size
        if len(seen) > artifact.MAX_FILES:
            raise ArtifactError("TooLarge", f"The layer has more than {artifact.MAX_FILES} entries.")
        if total > max_bytes:
            raise ArtifactError("TooLarge", f"The files have more than {max_bytes} bytes.")
        if not path or path.startswith(artifact.MANIFEST_PREFIX):  # the index for other readers
            for _ in layer.content(entry.size):
                pass
            continue
        parent = os.path.dirname(path)
        if parent == artifact.VLLM_FOLDER and parent not in parents:  # its content is at the top of the archive
            os.mkdir(parent, dir_fd=staging)
            parents.add(parent)
        if parent not in parents:
            raise rejected(f"The archive contains {path[:200]!r} without its directory.")
        if entry.isdir():
            with artifact.opened_parent(staging, path) as (at, last):
                os.mkdir(last, dir_fd=at)
            parents.add(path)
            times.append((path, int(entry.mtime)))
        else:
            write_file(layer, artifact.open_below(staging, path, NEW_FILE, 0o777 if entry.mode & stat.S_IXUSR else 0o666), entry)
            files += 1
            size_of_files += entry.size
    layer.finish(digest, plain_digest)
    for path, mtime in reversed(times):
        with artifact.opened_parent(staging, path) as (at, last):
            os.utime(last, (mtime, mtime), dir_fd=at, follow_symlinks=False)
    return files, size_of_files


def read_entries(layer: Layer) -> Iterator[tuple[tarfile.TarInfo, list[str]]]:
    """Return the files and directories of the archive with the parts of their paths. The caller takes the content of each."""
    long_name = b""
    while (header := layer.take(BLOCK)).strip(b"\0"):
        entry = read_header(header)
        if entry.type == tarfile.GNUTYPE_LONGNAME:
            if long_name or not 0 < entry.size <= MAX_PATH + 1:
                raise rejected("A long name of the archive is damaged.")
            long_name = b"".join(layer.content(entry.size)).rstrip(b"\0")
            if not long_name:
                raise rejected("A long name of the archive is empty.")
            continue
        try:
            name = (long_name or entry.name.encode("utf-8", "surrogateescape")).decode()
        except UnicodeDecodeError:
            raise rejected("A name in the archive is not UTF-8.") from None
        yield entry, read_path(name, is_folder=entry.isdir())
        long_name = b""
    if layer.take(BLOCK).strip(b"\0") or long_name:
        raise rejected("The end of the archive is damaged.")


def read_header(header: bytes) -> tarfile.TarInfo:
    """Return the entry of a header."""
    try:
        entry = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")  # the header of a long name has the half of a character
    except tarfile.HeaderError:
        raise rejected("A header of the archive is damaged.") from None
    if header[257:262] != b"ustar" or not 0 <= entry.size < 8**12 or not 0 <= entry.mtime < 8**12:
        raise rejected("A header of the archive is damaged.")
    if entry.type not in (*FILE_TYPES, tarfile.GNUTYPE_LONGNAME) or entry.linkname:
        raise rejected(f"The archive contains an entry of kind {entry.type!r}, which is neither a file nor a directory.")
    if entry.isdir() and entry.size:
        raise rejected("A directory of the archive has content.")
    return entry


def read_path(name: str, *, is_folder: bool) -> list[str]:
    """Return the parts of a path. All must be plain names."""
    parts = (name.removesuffix("/") if is_folder else name).split("/")
    if len(name) > MAX_PATH or len(parts) > MAX_DEPTH or any(not PLAIN.fullmatch(part) or part in (".", "..") for part in parts):
        raise rejected(f"The archive contains the path {name[:200]!r}.")
    return parts


def target_of(parts: list[str], folders: set[str], *, is_folder: bool) -> str:
    """Return the path below the cache root; empty for a directory outside its folders."""
    match parts:
        case [top] if top == artifact.CACHE_PREFIX and is_folder:
            return ""
        case [top, *rest] if top == artifact.MANIFEST_PREFIX and (len(rest), is_folder) in ((0, True), (1, False)):
            return "/".join(parts)
        case [top, others] if top == artifact.CACHE_PREFIX and others == artifact.OTHERS and is_folder:
            return f"{artifact.MANIFEST_PREFIX}/{artifact.OTHERS}"
        case [top, others, folder, *rest] if top == artifact.CACHE_PREFIX and others == artifact.OTHERS:
            if folder in folders and folder != artifact.VLLM_FOLDER and (rest or is_folder):
                return "/".join([folder, *rest])
        case [top, first, *rest] if top == artifact.CACHE_PREFIX and first != artifact.OTHERS and artifact.VLLM_FOLDER in folders:
            return "/".join([artifact.VLLM_FOLDER, first, *rest])
    raise rejected(f"The archive contains the path {'/'.join(parts)[:200]!r}.")


def write_file(layer: Layer, descriptor: int, entry: tarfile.TarInfo) -> None:
    """Write the content and the modification time of a new file."""
    with open(descriptor, "wb") as file:
        for block in layer.content(entry.size):
            file.write(block)
        file.flush()
        os.utime(descriptor, (entry.mtime, entry.mtime))
