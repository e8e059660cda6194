"""The configuration and the manifest of an artifact: an ordinary image with one layer."""

import hashlib
import json
from typing import Any

from vllm_operator.tools.artifact import CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER_NAME, DESCRIPTION_NAME = "layer", "image.json"
"""Files in the folder that the packing container shares with the publisher: the layer, and JSON with `config` (text), `files` and
`bytes`. The description is written last.
"""


def describe_image(labels: dict[str, str], *, layer: tuple[str, int, str], machine: str) -> tuple[bytes, bytes]:
    """Return the configuration and the manifest of an image with one layer (digest, size, digest of the archive)."""
    digest, size, plain = layer
    config = encode(
        {
            "architecture": MACHINES.get(machine, machine),
            "os": "linux",
            "config": {"Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [plain]},
            "history": [{"created_by": "vllm-operator"}],
        }
    )
    return config, encode_manifest(config, digest, size)


def encode_manifest(config: bytes, layer_digest: str, layer_size: int) -> bytes:
    """Return the manifest of an image with one layer."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": LAYER_TYPE, "digest": layer_digest, "size": layer_size}],
    }
    return encode(manifest)


def digest_of(content: bytes) -> str:
    """Return the digest of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def encode(value: Any) -> bytes:
    """Encode JSON deterministically."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
