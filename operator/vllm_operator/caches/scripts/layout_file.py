"""An artifact as one file: a tar of an OCI image layout, as `skopeo copy oci-archive:FILE` and `oras cp --from-oci-layout` read it.

Equal artifacts give equal files. Who reads one trusts nothing in it: only members with the names of a layout count, within limits, and each
blob is checked against its digest.
"""

import hashlib
import io
import json
import re
import tarfile
from contextlib import contextmanager
from typing import IO, Any

from vllm_operator.caches.scripts.artifact import MANIFEST_TYPE, MAX_BYTES, MAX_JSON, ArtifactError

INDEX, LAYOUT_VERSION = "index.json", "oci-layout"
REFERENCE = "org.opencontainers.image.ref.name"
MEMBER = re.compile(r"(?:\./)?(index\.json|oci-layout|blobs/sha256/[0-9a-f]{64})")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAR_BLOCK = 512
MAX_MEMBERS = 64
MAX_FILE_BYTES = MAX_BYTES + 2**24
"""A layer, and what describes it."""
COPY_BYTES = 2**20


def write_layout_file(
    out: IO[bytes], *, manifest: bytes, config: bytes, layer: IO[bytes], layer_digest: str, layer_size: int, tag: str
) -> None:
    """Write an artifact as one file. The layer is read from its beginning."""
    descriptor = {"mediaType": MANIFEST_TYPE, "digest": name_of(manifest), "size": len(manifest), "annotations": {REFERENCE: tag}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [descriptor]}
    small = {
        LAYOUT_VERSION: json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        INDEX: json.dumps(index, separators=(",", ":"), sort_keys=True).encode(),
        path_of(name_of(manifest)): manifest,
        path_of(name_of(config)): config,
    }
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in small.items():
            archive.addfile(member(name, len(content)), io.BytesIO(content))
        layer.seek(0)
        archive.addfile(member(path_of(layer_digest), layer_size), layer)


def member(name: str, size: int) -> tarfile.TarInfo:
    """Return the header of a file that has no time and no owner."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def name_of(content: bytes) -> str:
    """Return the digest of a content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def path_of(digest: str) -> str:
    """Return where a layout has a blob."""
    return f"blobs/{digest.replace(':', '/')}"


class LayoutFile:
    """A file with an artifact. It answers like a registry, so that the same code reads both.

    Raises:
        ArtifactError: The file is not a tar of an OCI image layout with one image.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members = find_members(file)

    def find_manifest(self) -> tuple[bytes, str, str]:
        """Return the manifest, its digest, and the tag in the index."""
        try:
            (descriptor,) = json.loads(self._content(INDEX))["manifests"]
            digest, size = str(descriptor["digest"]), int(descriptor["size"])
            tag = str((descriptor.get("annotations") or {}).get(REFERENCE, ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ArtifactError("Rejected", "The file has no index with one image.") from None
        return self.small_blob(digest, size), digest, tag[:128]

    def small_blob(self, digest: str, size: int) -> bytes:
        """Return a blob with JSON."""
        if not DIGEST.fullmatch(digest):
            raise ArtifactError("Rejected", "The file names a blob by something that is no digest.")
        content = self._content(path_of(digest))
        if len(content) != size or name_of(content) != digest:
            raise ArtifactError("Rejected", f"The content of {digest} is another one.")
        return content

    @contextmanager
    def blob(self, digest: str) -> Any:
        """Open a blob, whose digest the reader checks."""
        if path_of(digest) not in self._members:
            raise ArtifactError("Rejected", f"The file does not contain {digest[:80]}.")
        yield Part(self._file, *self._members[path_of(digest)])

    def _content(self, name: str) -> bytes:
        offset, size = self._members.get(name, (0, -1))
        if not 0 <= size <= MAX_JSON:
            raise ArtifactError("Rejected", f"The file has no {name[:80]} of a normal size.")
        self._file.seek(offset)
        return self._file.read(size)


class Part:
    """The bytes of a member, with `read`."""

    def __init__(self, file: IO[bytes], offset: int, size: int) -> None:
        self._file, self._left = file, size
        file.seek(offset)

    def read(self, count: int) -> bytes:
        """Read some bytes."""
        data = self._file.read(min(count, self._left))
        self._left -= len(data)
        return data


def find_members(file: IO[bytes]) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each file in a tar that belongs to a layout. Nothing else is looked at."""
    found: dict[str, tuple[int, int]] = {}
    end, position = file.seek(0, io.SEEK_END), 0
    for _ in range(MAX_MEMBERS):
        file.seek(position)
        header = file.read(TAR_BLOCK)
        if len(header) < TAR_BLOCK or not header.strip(b"\0"):
            return found
        size = re.fullmatch(rb"([0-7]{1,12})[\0 ]*", header[124:136].lstrip(b" "))
        is_sound = header[257:262] == b"ustar" and size is not None
        length = int(size[1], 8) if size is not None else 0
        if not is_sound or position + TAR_BLOCK + length > end:
            raise ArtifactError("Rejected", "The file is not a tar of an OCI image layout, or it is truncated.")
        name = MEMBER.fullmatch(header[:100].split(b"\0")[0].decode(errors="replace"))
        if name is not None and header[156:157] in (b"0", b"\0"):
            if name[1] in found:
                raise ArtifactError("Rejected", f"{name[1]} occurs twice.")
            found[name[1]] = (position + TAR_BLOCK, length)
        position += TAR_BLOCK + -(-length // TAR_BLOCK) * TAR_BLOCK
    raise ArtifactError("Rejected", f"The file has more than {MAX_MEMBERS} members.")


def copy_limited(source: IO[bytes], target: IO[bytes], limit: int = MAX_FILE_BYTES) -> int:
    """Copy a file of at most this many bytes; return how many it has."""
    total = 0
    while data := source.read(COPY_BYTES):
        total += len(data)
        if total > limit:
            raise ArtifactError("TooLarge", f"The file has more than {limit} bytes.")
        target.write(data)
    return total
