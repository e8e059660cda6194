"""Artifacts in a folder of a volume, with the interface of `Registry`: a file for each blob and each tag.

Every file is written under a temporary name, checked and renamed, and a blob has its digest in its name. So a reader finds complete files
only, while another Pod replaces them.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from typing import IO, Any

from vllm_operator.caches.scripts.artifact import MAX_JSON, ArtifactError
from vllm_operator.caches.scripts.registry import DIGEST, Registry, read_limited

UNUSED_SECONDS = 900
"""Age of a blob without a tag that is removed: a Pod that started before may still read it."""
TEMPORARY = "tmp-"


class Folder(Registry):
    """A folder. Only files below it are read and written."""

    def __init__(self, path: str) -> None:
        """Use a folder, which is created if it does not exist.

        Raises:
            OSError: It cannot be created.
        """
        self.host, self.name = path, "tags"
        self.path = path
        for kind in ("blobs", "tags"):
            os.makedirs(os.path.join(path, kind), exist_ok=True)

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """Return the manifest with a tag, and its digest."""
        with self._open("tags", reference) as file:
            content = read_limited(file, MAX_JSON)
        return content, f"sha256:{hashlib.sha256(content).hexdigest()}"

    def blob(self, digest: str) -> Any:
        """Open a blob. The content is not checked."""
        if not DIGEST.fullmatch(digest):
            raise ArtifactError("Rejected", f"{digest[:80]} is no digest.")
        return self._open("blobs", digest)

    def has(self, path: str) -> bool:
        """Return whether a blob (`blobs/DIGEST`) or manifest (`manifests/TAG`) exists."""
        kind, _, name = path.partition("/")
        return os.path.isfile(self._place("blobs" if kind == "blobs" else "tags", name))

    def push_blob(self, digest: str, file: IO[bytes], size: int) -> None:
        """Write a blob, unless it exists, and read it back."""
        if self.has(f"blobs/{digest}"):
            return
        file.seek(0)
        descriptor, path = tempfile.mkstemp(prefix=TEMPORARY, dir=self.path)
        try:
            with open(descriptor, "w+b") as written:
                shutil.copyfileobj(file, written, 2**20)
                written.flush()
                os.fsync(descriptor)
            with open(path, "rb") as written:
                found = hashlib.sha256()
                while block := written.read(2**20):
                    found.update(block)
            if f"sha256:{found.hexdigest()}" != digest:
                raise ArtifactError("Failed", f"The volume returned something else than the {size} bytes that were written to it.")
            os.replace(path, self._place("blobs", digest))
        finally:
            if os.path.exists(path):
                os.unlink(path)

    def push_manifest(self, reference: str, content: bytes) -> None:
        """Write a tag, in place of the one before."""
        descriptor, path = tempfile.mkstemp(prefix=TEMPORARY, dir=self.path)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(path, self._place("tags", reference))

    def remove_tag(self, reference: str) -> None:
        """Remove a tag whose content is damaged, so that the caches are packed again."""
        os.unlink(self._place("tags", reference))

    def remove_unused(self) -> None:
        """Remove blobs that no tag has, and what killed Pods have left, after a while. Another Pod may do the same."""
        used = set()
        for tag in os.listdir(os.path.join(self.path, "tags")):
            try:
                manifest = json.loads(self.manifest(tag)[0])
                used |= {str(entry["digest"]) for entry in (manifest["config"], *manifest["layers"])}
            except (ArtifactError, OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
        blobs = os.path.join(self.path, "blobs")
        places = [os.path.join(blobs, name) for name in os.listdir(blobs) if name.replace("-", ":", 1) not in used]
        places += [os.path.join(self.path, name) for name in os.listdir(self.path) if name.startswith(TEMPORARY)]
        for place in places:
            try:
                if time.time() - os.lstat(place).st_mtime > UNUSED_SECONDS:
                    os.unlink(place)
            except OSError:
                continue

    def _open(self, kind: str, name: str) -> IO[bytes]:
        try:
            return os.fdopen(os.open(self._place(kind, name), os.O_RDONLY | os.O_NOFOLLOW), "rb")
        except FileNotFoundError:
            raise ArtifactError("NotFound", f"{self.path} has no {name}.") from None

    def _place(self, kind: str, name: str) -> str:
        return os.path.join(self.path, kind, name.replace(":", "-", 1).replace("/", "-"))
