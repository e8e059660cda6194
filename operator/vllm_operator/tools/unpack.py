"""Unpack the layer of an artifact. Its content is untrusted until its digest is checked.

Only regular files and directories are accepted, with plain relative paths, each once. They are written to a private staging folder first,
and renamed if the digest matches. Modification times are restored, because otherwise ninja would rebuild everything.
"""

import hashlib
import http.client
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

from vllm_operator.tools.artifact import (
    CACHE_PREFIX,
    MANIFEST_PREFIX,
    MAX_BYTES,
    MAX_FILES,
    OTHERS,
    VLLM_FOLDER,
    ArtifactError,
    open_below,
    opened_parent,
)

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
        """Return the next compressed bytes."""
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
    source: Any, staging: int, folders: set[str], *, digest: str, plain_digest: str, size: int, max_bytes: int = MAX_BYTES
) -> tuple[int, int]:
    """Unpack a layer into an empty folder, and return the number of files and their bytes.

    Args:
        source: The compressed bytes, with `read`.
        staging: The open folder. After an error its content is undefined.
        folders: Folders of the cache root that may be written.
        digest: Digest of the compressed layer.
        plain_digest: Digest of the archive.
        size: Bytes of the compressed layer.
        max_bytes: Limit of the unpacked size.

    Raises:
        ArtifactError: The layer is not accepted.
        OSError: It cannot be written.
    """
    layer = Layer(source, size, max_bytes + MAX_FILES * BLOCK * 4)
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
        if len(seen) > MAX_FILES:
            raise ArtifactError("TooLarge", f"The layer has more than {MAX_FILES} entries.")
        if total > max_bytes:
            raise ArtifactError("TooLarge", f"The files have more than {max_bytes} bytes.")
        if not path or path.startswith(MANIFEST_PREFIX):  # the index for other readers
            for _ in layer.content(entry.size):
                pass
            continue
        parent = os.path.dirname(path)
        if parent == VLLM_FOLDER and parent not in parents:  # its content is at the top of the archive
            os.mkdir(parent, dir_fd=staging)
            parents.add(parent)
        if parent not in parents:
            raise rejected(f"The archive contains {path[:200]!r} without its directory.")
        if entry.isdir():
            with opened_parent(staging, path) as (at, last):
                os.mkdir(last, dir_fd=at)
            parents.add(path)
            times.append((path, int(entry.mtime)))
        else:
            write_file(layer, open_below(staging, path, NEW_FILE, 0o777 if entry.mode & stat.S_IXUSR else 0o666), entry)
            files += 1
            size_of_files += entry.size
    layer.finish(digest, plain_digest)
    for path, mtime in reversed(times):
        with opened_parent(staging, path) as (at, last):
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
        case [top] if top == CACHE_PREFIX and is_folder:
            return ""
        case [top, *rest] if top == MANIFEST_PREFIX and (len(rest), is_folder) in ((0, True), (1, False)):
            return "/".join(parts)
        case [top, others] if top == CACHE_PREFIX and others == OTHERS and is_folder:
            return f"{MANIFEST_PREFIX}/{OTHERS}"
        case [top, others, folder, *rest] if top == CACHE_PREFIX and others == OTHERS:
            if folder in folders and folder != VLLM_FOLDER and (rest or is_folder):
                return "/".join([folder, *rest])
        case [top, first, *rest] if top == CACHE_PREFIX and first != OTHERS and VLLM_FOLDER in folders:
            return "/".join([VLLM_FOLDER, first, *rest])
    raise rejected(f"The archive contains the path {'/'.join(parts)[:200]!r}.")


def write_file(layer: Layer, descriptor: int, entry: tarfile.TarInfo) -> None:
    """Write the content and the modification time of a new file."""
    with open(descriptor, "wb") as file:
        for block in layer.content(entry.size):
            file.write(block)
        file.flush()
        os.utime(descriptor, (entry.mtime, entry.mtime))
