"""Packs and unpacks artifacts without a registry and without Kubernetes, with the same code.

    python3 -m vllm_operator.caches.scripts.by_hand pack DIRECTORY LAYOUT     (DIRECTORY is the root of the caches)
    python3 -m vllm_operator.caches.scripts.by_hand unpack LAYOUT DIRECTORY
    python3 -m vllm_operator.caches.scripts.by_hand fingerprint

LAYOUT is a folder in the form of an OCI image layout. It needs nothing but Python 3.10.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from typing import Any

from vllm_operator.caches.scripts.artifact import LABEL, ArtifactError, elapsed, travel_key
from vllm_operator.caches.scripts.build import build_fingerprint
from vllm_operator.caches.scripts.fetch import STAGING, install
from vllm_operator.caches.scripts.pack import pack, take_inventory, write_layout
from vllm_operator.caches.scripts.unpack import remove_tree, unpack_layer

DEFAULT_EXCLUDED = (
    "cache_key_factors.json",
    "gpu_p2p_access_cache_for_*",
    "flashinfer_jit.log",
    "*.lock",
    "lock",
    "*.tmp",
    "tmp",
    ".config",
    "huggingface",
)
DEFAULT_WHOLE = ("bytecode",)
NEVER = ("outlines", "models", "lost+found", ".cache", ".config")


def main(arguments: list[str]) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(prog="by_hand", description="Pack and unpack artifacts of caches.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("pack")
    one.add_argument("directory")
    one.add_argument("layout")
    one.add_argument("--key", default="by-hand", help="readable part of the tag")
    one.add_argument("--architecture", default="sm_90")
    other = commands.add_parser("unpack")
    other.add_argument("layout")
    other.add_argument("directory")
    commands.add_parser("fingerprint")
    given = parser.parse_args(arguments)
    since = time.monotonic()
    try:
        if given.command == "fingerprint":
            result: dict[str, Any] = {"fingerprint": build_fingerprint("")}
        elif given.command == "pack":
            result = pack_layout(given.directory, given.layout, given.key, given.architecture)
        else:
            result = unpack_layout(given.layout, given.directory)
    except ArtifactError as error:
        result = {"result": error.reason, "message": str(error)}
    print(json.dumps({**result, "seconds": elapsed(since), "cpuSeconds": round(time.process_time(), 1)}))
    return 1 if "message" in result else 0


def pack_layout(root: str, layout: str, key: str, architecture: str) -> dict[str, Any]:
    """Pack all folders of a directory into a layout."""
    base, tag = travel_key(key, {}, "0" * 12, build_fingerprint(""))
    folders = [name for name in sorted(os.listdir(root)) if name not in NEVER and not name.startswith(".vllm-operator")]
    inventory = take_inventory(root, folders, DEFAULT_EXCLUDED, DEFAULT_WHOLE)
    os.makedirs(layout, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=layout, delete=False) as file:
        labels = {f"{LABEL}base": base, f"{LABEL}tag": tag}
        packed = pack(root, inventory, file, labels=labels, architecture=architecture, machine=platform.machine(), mounts=[])
    write_layout(layout, packed, file.name, tag)
    return {"digest": packed.digest, "tag": tag, "files": packed.files, "bytes": packed.size, "packedBytes": packed.layer_size}


def unpack_layout(layout: str, root: str) -> dict[str, Any]:
    """Unpack a layout into a directory, which keeps the folders that it has."""
    manifest = json.loads(read_blob(layout, json.loads(read(layout, "index.json"))["manifests"][0]["digest"]))
    config = json.loads(read_blob(layout, manifest["config"]["digest"]))
    layer = manifest["layers"][0]
    os.makedirs(root, exist_ok=True)
    staging = tempfile.mkdtemp(prefix=STAGING, dir=root)
    try:
        folders = set(json.loads(config["config"]["Labels"].get(f"{LABEL}folders", "[]"))) or AnyFolder()
        with open(os.path.join(layout, "blobs", "sha256", layer["digest"].partition(":")[2]), "rb") as source:
            plain = config["rootfs"]["diff_ids"][0]
            files, size = unpack_layer(source, staging, folders, digest=layer["digest"], plain_digest=plain, size=layer["size"])
        install(staging, root)
    finally:
        remove_tree(staging)
    return {"digest": layer["digest"], "files": files, "bytes": size}


class AnyFolder(set[str]):
    """Every folder of the root: who unpacks by hand has packed by hand."""

    def __contains__(self, name: object) -> bool:
        return True


def read(layout: str, *path: str) -> bytes:
    """Read a file of a layout."""
    with open(os.path.join(layout, *path), "rb") as file:
        return file.read()


def read_blob(layout: str, digest: str) -> bytes:
    """Read a blob of a layout.

    Raises:
        ArtifactError: Its content is not that of its name.
    """
    content = read(layout, "blobs", "sha256", digest.partition(":")[2])
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise ArtifactError("Rejected", f"The content of {digest} is another one.")
    return content


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
