"""Pushes an artifact that another container has packed (`pack.py`).

Runs in the operator's image, so no code of an engine's image can read the Secret for pushing. Only this container mounts the Secret, and it
does not mount the caches.

    PUBLISH_ARTIFACT   JSON, see `publish_when_ready`

The first writer of a tag wins. The packed files come from an engine and are untrusted: only two regular files are read, within limits, and
the key, the digests and the manifest are computed here. Only the fingerprint of the engine's image is taken from them.

With the setting `ready`, the program runs in a Pod with an engine, and waits until the engine is ready and its caches are packed.
"""

import hashlib
import io
import json
import os
import time
from typing import Any, NamedTuple

from vllm_operator.tools import artifact
from vllm_operator.tools.artifact import ArtifactError
from vllm_operator.tools.registry import DIGEST, Registry, if_found, read_limited, read_manifest

PUBLISH_SECONDS = 840


def main() -> int:
    """Publish the artifact; return the exit status."""
    good = ("Published", "AlreadyPublished")
    return artifact.run_with_report("PUBLISH_ARTIFACT", publish_when_ready, deadline=PUBLISH_SECONDS, good=good)


def publish_when_ready(settings: dict[str, Any]) -> dict[str, Any]:
    """Push the artifact in the folder `output`, after the engine in the same Pod, if any, is ready."""
    artifact.wait_for_engine(settings, PUBLISH_SECONDS)
    registry = Registry(settings["repository"], settings.get("secret", ""), settings.get("scheme", "https"), push=True)
    with artifact.opened_root(settings["output"]) as folder:
        while settings.get("ready") and artifact.DESCRIPTION_NAME not in os.listdir(folder):  # the packing container still packs
            time.sleep(float(settings.get("pause", artifact.ENGINE_PAUSE_SECONDS)))
        described = read_description(folder, settings)
        if (there := find_present(registry, described.tag, described.base)) is not None:
            return {"result": "AlreadyPublished", "tag": described.tag, "digest": there}
        with artifact.open_regular(folder, artifact.LAYER_NAME) as layer:
            return push(registry, described, layer, int(settings.get("maxBytes") or artifact.MAX_BYTES))


class Description(NamedTuple):
    """The packing program's description of the layer, with the key of the artifact: the tag of the base, and the tag."""

    base: str
    tag: str
    config: bytes
    files: int
    size: int


def read_description(folder: int, settings: dict[str, Any]) -> Description:
    """Read the packed artifact in an open folder. Raises ArtifactError if it is not an artifact with this key."""
    with artifact.open_regular(folder, artifact.DESCRIPTION_NAME) as file:
        content = read_limited(file, 2 * artifact.MAX_JSON)
    try:
        packed = json.loads(content)
        text, files, size = packed["config"], packed["files"], packed["bytes"]
        config = json.loads(text)
        labels, (plain,) = config["config"]["Labels"], config["rootfs"]["diff_ids"]
        is_sound = (
            all(isinstance(value, str) for value in labels.values())
            and DIGEST.fullmatch(plain)
            and (type(files), type(size)) == (int, int)
            and 0 < files <= artifact.MAX_FILES
            and 0 <= size < 2**53
            and DIGEST.fullmatch(f"sha256:{packed['fingerprint']}")
        )
        base, tag = artifact.portability_key(settings, packed["fingerprint"])
        kept = tuple(labels.get(f"{artifact.LABEL}{name}") for name in ("format", "base", "tag"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArtifactError("Rejected", "What was packed is not an artifact.") from None
    if not is_sound or kept != (artifact.FORMAT, base, tag) or len(text.encode()) > artifact.MAX_JSON:
        raise ArtifactError("Rejected", "What was packed is not the artifact of this engine.")
    return Description(base, tag, text.encode(), files, size)


def push(registry: Registry, described: Description, layer: io.BufferedReader, limit: int) -> dict[str, Any]:
    """Push the blobs, and then the missing tags."""
    base, tag = described.base, described.tag
    size = os.fstat(layer.fileno()).st_size
    if size > limit:
        raise ArtifactError("TooLarge", f"The layer has more than {limit} bytes.")
    digest = f"sha256:{hashlib.file_digest(layer, 'sha256').hexdigest()}"
    manifest = artifact.encode_manifest(described.config, digest, size)
    registry.push_blob(artifact.sha256_of(described.config), io.BytesIO(described.config), len(described.config))
    registry.push_blob(digest, layer, size)
    if (there := find_present(registry, tag, base)) is not None:
        return {"result": "AlreadyPublished", "tag": tag, "digest": there}
    registry.push_manifest(tag, manifest)
    if not registry.has(f"manifests/{base}"):
        registry.push_manifest(base, manifest)
    sizes = {"files": described.files, "bytes": described.size}
    return {"result": "Published", "tag": tag, "digest": artifact.sha256_of(manifest), **sizes}


def find_present(registry: Registry, tag: str, base: str) -> str | None:
    """Return the digest of the artifact of an existing tag; None without one."""
    if (manifest := if_found(lambda: registry.manifest(tag))) is None:
        return None
    content, digest = manifest
    try:
        read_manifest(registry, content, base)
    except ArtifactError as error:
        raise ArtifactError("TagTaken", f"The tag {tag} has something else, {digest}: {error}") from None
    return digest
