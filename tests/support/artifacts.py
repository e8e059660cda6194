"""Cache directories, artifacts of them, and archives of any content."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import IO

from vllm_operator.tools.artifact import LABEL, opened_root
from vllm_operator.tools.fetch import unpack_layer
from vllm_operator.tools.pack import Packed, pack, take_inventory

FOLDERS = ("bytecode", "flashinfer", "triton", "vllm")
EXCLUDED = ("cache_key_factors.json", "*.lock", "tmp")
GRAPH = "vllm/torch_compile_cache/0123456789/rank_0_0/backbone/artifact_compile_range_1_8192_subgraph_0"
MODEL = f"vllm/torch_compile_cache/torch_aot_compile/{'ab' * 32}/rank_0_0/model"
FILES = {
    GRAPH: b"graph" * 100,
    MODEL: b"model" * 200,
    "vllm/torch_compile_cache/0123456789/rank_0_0/backbone/cache_key_factors.json": b'{"env": {"VLLM_API_KEY": "x"}}',
    "vllm/deep_gemm/cache/kernel.1/kernel.cubin": b"\x7fELF" + b"k" * 1020,
    "flashinfer/.cache/flashinfer/90a/cached_ops/op/build.ninja": b"rule cuda\n",
    "flashinfer/.cache/flashinfer/90a/cached_ops/op/op.so": b"\x7fELF" * 300,
    "flashinfer/.cache/flashinfer/90a/cached_ops/op/op.lock": b"",
    "triton/AAAA/kernel.json": b"{}",
    "bytecode/usr/lib/module.cpython-312.pyc": b"\xcb\r\r\n" * 50,
    "outlines/grammar.db": b"what users asked for",
}


def fill(root: Path, files: dict[str, bytes] | None = None) -> Path:
    """Make a directory of caches."""
    for name, content in (FILES if files is None else files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def pack_all(
    root: Path, file: IO[bytes] | None = None, *, secrets: tuple[bytes, ...] = (), base: str = "base", tag: str = "base-s"
) -> Packed:
    """Pack a directory."""
    labels = {f"{LABEL}base": base, f"{LABEL}tag": tag}
    inventory = take_inventory(str(root), FOLDERS, EXCLUDED)
    return pack(
        str(root), inventory, file or io.BytesIO(), labels=labels, architecture="sm_90", machine="x86_64", mounts=[], secrets=secrets
    )


def unpack(content: bytes, staging: Path, *, digest: str = "", plain: str = "", size: int | None = None, **limits: int) -> tuple[int, int]:
    """Unpack a layer whose digests are right, unless given."""
    if not plain:
        try:
            plain = f"sha256:{hashlib.sha256(gzip.decompress(content)).hexdigest()}"
        except (OSError, EOFError):
            plain = "sha256:0"
    staging.mkdir(exist_ok=True)
    with opened_root(str(staging)) as opened:
        return unpack_layer(
            io.BytesIO(content),
            opened,
            set(FOLDERS),
            digest=digest or f"sha256:{hashlib.sha256(content).hexdigest()}",
            plain_digest=plain,
            size=len(content) if size is None else size,
            **limits,
        )


def archive(*entries: tarfile.TarInfo | tuple[str, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    """Return a layer with these entries, each a header or a path with content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            tar.addfile(info, io.BytesIO(entry[1]))
    return gzip.compress(packed.getvalue(), mtime=0)


def header(name: str, kind: bytes, *, link: str = "", size: int = 0) -> tarfile.TarInfo:
    """Return the header of an entry."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info
