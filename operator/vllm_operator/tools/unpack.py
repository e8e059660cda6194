"""Unpack the layer of an artifact. Its content is untrusted until its digest is checked.

Only regular files and directories are accepted, with plain relative paths, each once. They are written to a private staging folder first,
and renamed if the digest matches. Modification times are restored, because otherwise ninja would rebuild everything.
"""

import hashlib
import http.client
import os
import re
import stat
import zlib
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
BLOCK = 512
READ_BYTES = 2**18
MAX_DEPTH = 32
MAX_PATH = 1024
MAX_RATIO = 50
FREE_RATIO_BYTES = 64 * 2**20
"""Maximum size up to which the compression ratio is not limited."""
PLAIN = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")


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
                raise ArtifactError("Rejected", "The layer is truncated.")
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _fill(self) -> bool:
        """Add bytes to the buffer; return False at the end."""
        pending = self._inflate.unconsumed_tail
        if self._inflate.eof:
            return False
        if not pending:
            try:
                pending = self._source.read(READ_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise ArtifactError("Unreachable", f"The transfer broke off: {error}") from None
            self._read += len(pending)
            self._compressed.update(pending)
            if self._read > self._size:
                raise ArtifactError("Rejected", f"The layer has more than the {self._size} bytes of its manifest.")
            if not pending and self._read < self._size:
                raise ArtifactError("Unreachable", f"The transfer broke off after {self._read} of {self._size} bytes.")
            if not pending:
                raise ArtifactError("Rejected", "The layer is truncated.")
        try:
            plain = self._inflate.decompress(pending, READ_BYTES)
        except zlib.error as error:
            raise ArtifactError("Rejected", f"The layer is damaged: {error}") from None
        if self._inflate.unused_data:
            raise ArtifactError("Rejected", "Something follows the end of the layer.")
        self._written += len(plain)
        if self._written > self._limit:
            raise ArtifactError("TooLarge", f"The layer has more than {self._limit} bytes.")
        if self._written > max(FREE_RATIO_BYTES, MAX_RATIO * self._read):
            raise ArtifactError("TooLarge", f"The layer is compressed more than {MAX_RATIO} times.")
        self._plain.update(plain)
        self._buffer += plain
        return True

    def finish(self, digest: str, plain_digest: str) -> None:
        """Read to the end, which must be empty, and check the digests."""
        while True:
            if self._buffer.strip(b"\0"):
                raise ArtifactError("Rejected", "Something follows the end of the archive.")
            self._buffer.clear()
            if not self._fill():
                break
        if self._source.read(1) or self._read != self._size:
            raise ArtifactError("Rejected", f"The layer has not the {self._size} bytes of its manifest.")
        if f"sha256:{self._compressed.hexdigest()}" != digest or f"sha256:{self._plain.hexdigest()}" != plain_digest:
            raise ArtifactError("Rejected", f"The content of the layer is not {digest}.")


def unpack_layer(  # noqa: PLR0915 - one check for each kind of entry
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
    long_name = b""
    while True:
        header = layer.take(BLOCK)
        if not header.strip(b"\0"):
            if layer.take(BLOCK).strip(b"\0") or long_name:
                raise ArtifactError("Rejected", "The end of the archive is damaged.")
            break
        kind, name, length, mtime, mode = read_header(header)
        if kind == b"L":
            if long_name or not 0 < length <= MAX_PATH + 1:
                raise ArtifactError("Rejected", "A long name of the archive is damaged.")
            long_name = layer.take(padded(length))[:length].rstrip(b"\0")
            if not long_name:
                raise ArtifactError("Rejected", "A long name of the archive is empty.")
            continue
        path = target_of(read_path(long_name or name, is_folder=kind == b"5"), folders, is_folder=kind == b"5")
        long_name = b""
        if path in seen:
            raise ArtifactError("Rejected", f"{path} occurs twice.")
        seen.add(path)
        if len(seen) > MAX_FILES:
            raise ArtifactError("TooLarge", f"The layer has more than {MAX_FILES} entries.")
        total += length
        if total > max_bytes:
            raise ArtifactError("TooLarge", f"The files have more than {max_bytes} bytes.")
        if not path or path.startswith(MANIFEST_PREFIX):  # the index for other readers
            skip(layer, length)
            continue
        parent = os.path.dirname(path)
        if parent == VLLM_FOLDER and parent not in parents:  # its content is at the top of the archive
            os.mkdir(parent, dir_fd=staging)
            parents.add(parent)
        if parent not in parents:
            raise ArtifactError("Rejected", f"The archive contains {path[:200]!r} without its directory.")
        if kind == b"5":
            with opened_parent(staging, path) as (at, last):
                os.mkdir(last, dir_fd=at)
            parents.add(path)
            times.append((path, mtime))
        else:
            write_file(layer, open_below(staging, path, NEW_FILE, 0o777 if mode & stat.S_IXUSR else 0o666), length, mtime)
            files += 1
            size_of_files += length
    layer.finish(digest, plain_digest)
    for path, mtime in reversed(times):
        with opened_parent(staging, path) as (at, last):
            os.utime(last, (mtime, mtime), dir_fd=at, follow_symlinks=False)
    return files, size_of_files


def read_header(header: bytes) -> tuple[bytes, bytes, int, int, int]:
    """Return kind, name, size, time and mode of an entry."""
    kind = header[156:157]
    checksum = sum(header[:148]) + sum(header[156:]) + 8 * 32
    if header[257:262] != b"ustar" or checksum != octal(header[148:156]):
        raise ArtifactError("Rejected", "A header of the archive is damaged.")
    if kind not in (b"0", b"\0", b"5", b"L") or header[157:257].strip(b"\0"):
        raise ArtifactError("Rejected", f"The archive contains an entry of kind {kind!r}, which is neither a file nor a directory.")
    name = header[:100].split(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].split(b"\0")[0] + b"/" + name
    length = octal(header[124:136])
    if kind == b"5" and length:
        raise ArtifactError("Rejected", "A directory of the archive has content.")
    return kind, name, length, octal(header[136:148]), octal(header[100:108])


def octal(field: bytes) -> int:
    """Return an octal number of a header."""
    text = field.strip(b"\0 ")
    if not re.fullmatch(rb"[0-7]{0,12}", text):
        raise ArtifactError("Rejected", "A number in the archive is damaged or too large.")
    return int(text or b"0", 8)


def read_path(name: bytes, *, is_folder: bool) -> list[str]:
    """Return the parts of a path. All must be plain names."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise ArtifactError("Rejected", "A name in the archive is not UTF-8.") from None
    parts = (text[:-1] if is_folder and text.endswith("/") else text).split("/")
    if len(text) > MAX_PATH or len(parts) > MAX_DEPTH or any(not PLAIN.fullmatch(part) or part in (".", "..") for part in parts):
        raise ArtifactError("Rejected", f"The archive contains the path {text[:200]!r}.")
    return parts


def target_of(parts: list[str], folders: set[str], *, is_folder: bool) -> str:
    """Return the path below the cache root; empty for a directory outside its folders."""
    top = parts[0]
    if top == MANIFEST_PREFIX and (len(parts), is_folder) in ((1, True), (2, False)):
        return "/".join(parts)
    if top == CACHE_PREFIX and len(parts) == 1 and is_folder:
        return ""
    if top == CACHE_PREFIX and parts[1:2] == [OTHERS]:
        if len(parts) == 2 and is_folder:
            return MANIFEST_PREFIX + "/" + OTHERS
        inner = parts[2:]
        if inner and inner[0] in folders and inner[0] != VLLM_FOLDER and (len(inner) > 1 or is_folder):
            return "/".join(inner)
    elif top == CACHE_PREFIX and len(parts) > 1 and VLLM_FOLDER in folders:
        return "/".join([VLLM_FOLDER, *parts[1:]])
    raise ArtifactError("Rejected", f"The archive contains the path {'/'.join(parts)[:200]!r}.")


def padded(length: int) -> int:
    """Return the size of the blocks that hold this many bytes."""
    return -(-length // BLOCK) * BLOCK


def skip(layer: Layer, length: int) -> None:
    """Skip bytes of the layer."""
    left = padded(length)
    while left:
        left -= len(layer.take(min(left, READ_BYTES)))


def write_file(layer: Layer, descriptor: int, length: int, mtime: int) -> None:
    """Write the content and the modification time of a new file."""
    with open(descriptor, "wb") as file:
        left = length
        while left:
            block = layer.take(min(left, READ_BYTES))
            file.write(block)
            left -= len(block)
        file.flush()
        os.utime(descriptor, (mtime, mtime))
    if rest := padded(length) - length:
        layer.take(rest)
