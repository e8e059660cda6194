"""Packs a filled cache directory as an ordinary image with one layer, in the layout that GKM and KServe read.

Runs in the engine's image, with the directory mounted read-only, and no Secret.

    PACK_ARTIFACT   JSON, see `pack_when_ready`

The artifact is written to a folder that the container shares with the publisher (`publish.py`). With the setting `ready`, the program runs
in a Pod with an engine: it waits until the engine is ready, and afterwards until the Pod ends, because the kubelet would restart it. Files
may change while they are read, because an engine uses them. Then everything is packed again.

Equal files give equal bytes: sorted, owned by 0, with normal modes, and with modification times in whole seconds, rounded down. ninja
compares these times, so their order must not change. Symbolic links are omitted, because FlashInfer recreates them. Files outside the
allowed folders and excluded names are omitted too.
"""

import errno
import fnmatch
import gzip
import hashlib
import io
import json
import os
import platform
import re
import signal
import stat
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from vllm_operator.tools import artifact
from vllm_operator.tools.artifact import ArtifactError
from vllm_operator.tools.build import FACTS_LABEL, build_fingerprint, describe_build

LEVEL = 3
"""A third of the time of level 6, for 7 % more bytes."""
TOKENS = re.compile(
    rb"\bhf_[A-Za-z0-9]{34}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{60,}|\bglpat-[A-Za-z0-9_-]{20}\b|\bAKIA[A-Z0-9]{16}\b"
)
"""Forms of tokens. Bytecode is not searched for them, because libraries contain examples."""
BYTECODE = "bytecode"
MAX_LEVELS = 28
"""Maximum depth of directories. Programs that fetch accept some more levels. Each level holds a descriptor while it is read."""
REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for files that vanished or became symbolic links."""
RANK = re.compile(r"rank_\d+_\d+")
PACK_SECONDS = 840
QUIET_SECONDS = 10
PAUSE_SECONDS = 5
PACK_ATTEMPTS = 20
SECRETS = "SECRET_"
"""Prefix of the variables with values that must not be published."""
MIN_SECRET = 8
"""Minimum length of a secret. Shorter values occur by chance."""


class Entry(NamedTuple):
    """A file or directory below the root of the caches."""

    path: str
    is_folder: bool
    size: int
    mtime_ns: int
    executable: bool


class Packed(NamedTuple):
    """A packed directory: the layer as a file, the configuration of its image, and the files in it with their bytes."""

    layer_digest: str
    layer_size: int
    config: bytes
    files: int
    size: int


def take_inventory(root: str, folders: Iterable[str], excluded: Iterable[str], whole: Iterable[str] = ()) -> list[Entry]:
    """Return the entries of these folders of the root, sorted by path. Names of `excluded` patterns are omitted, unless in `whole` ones.

    Raises:
        ArtifactError: Changing: a file vanished or was replaced meanwhile. TooLarge: there are too many files or directories.
    """
    patterns, found = tuple(excluded), list[Entry]()
    with artifact.opened_root(root) as top:
        for name in sorted(folders):
            try:
                folder = artifact.open_below(top, name, artifact.FOLDER_FLAGS)
            except OSError as error:
                if error.errno in REPLACED:
                    continue
                raise
            walk(folder, name, () if name in whole else patterns, found)
    return sorted(found)


def walk(folder: int, path: str, patterns: tuple[str, ...], found: list[Entry]) -> None:
    """Add an open directory and its content, and close it. No path is used: the engine may replace a directory by a link at any time."""
    try:
        if path.count("/") >= MAX_LEVELS:
            raise ArtifactError("TooLarge", f"There are more than {MAX_LEVELS} directories in each other.")
        found.append(Entry(path, True, 0, os.fstat(folder).st_mtime_ns, True))
        for name in sorted(os.listdir(folder)):
            inner = f"{path}/{name}"
            is_excluded = any(fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(inner, pattern) for pattern in patterns)
            if is_excluded or not name.isprintable():
                continue
            with unchanged(inner):
                at = os.stat(name, dir_fd=folder, follow_symlinks=False)
                opened = os.open(name, artifact.FOLDER_FLAGS, dir_fd=folder) if stat.S_ISDIR(at.st_mode) else None
            if opened is not None:
                walk(opened, inner, patterns, found)
            elif stat.S_ISREG(at.st_mode):
                found.append(Entry(inner, False, at.st_size, at.st_mtime_ns, bool(at.st_mode & stat.S_IXUSR)))
            if len(found) > artifact.MAX_FILES:
                raise ArtifactError("TooLarge", f"There are more than {artifact.MAX_FILES} files.")
    finally:
        os.close(folder)


@contextmanager
def unchanged(path: str) -> Iterator[None]:
    """Raise ArtifactError if an existing file vanishes or becomes a link."""
    try:
        yield
    except OSError as error:
        if error.errno in REPLACED:
            raise ArtifactError("Changing", f"{path} vanished or was replaced.") from None
        raise


class Digesting:
    """Counts and digests the bytes written to a file."""

    def __init__(self, file: Any) -> None:
        self._file, self._sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Write to the file."""
        self._sha256.update(data)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    @property
    def digest(self) -> str:
        """Digest of the written bytes."""
        return f"sha256:{self._sha256.hexdigest()}"


def write_layer(root: int, inventory: list[Entry], file: IO[bytes], *, index: bytes, secrets: tuple[bytes, ...]) -> tuple[str, int, str]:
    """Write the layer to a file; return its digest, its size, and the digest of the archive.

    `index` is the content of `io.vllm.manifest/manifest.json`. Raises ArtifactError for a file with one of the secrets (SecretsFound), or
    that differs from the inventory (Changing).
    """
    packed = Digesting(file)
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=LEVEL, mtime=0) as squeezed:  # type: ignore[call-overload]
        plain = Digesting(squeezed)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.GNU_FORMAT) as archive:  # type: ignore[call-overload]
            add(archive, Entry(artifact.CACHE_PREFIX, True, 0, 0, True))
            others, is_added = f"{artifact.CACHE_PREFIX}/{artifact.OTHERS}", False
            for entry in inventory:
                if entry.path == artifact.VLLM_FOLDER:
                    continue
                top, _, rest = entry.path.partition("/")
                name = f"{artifact.CACHE_PREFIX}/{rest}" if top == artifact.VLLM_FOLDER else f"{others}/{entry.path}"
                if not is_added and name.startswith(f"{others}/"):
                    add(archive, Entry(others, True, 0, 0, True))
                    is_added = True
                packed_as = Entry(name, *entry[1:])
                if entry.is_folder:
                    add(archive, packed_as)
                    continue
                with open_unchanged(root, entry) as source:
                    add(archive, packed_as, Scanned(source, entry, secrets))
            add(archive, Entry(artifact.MANIFEST_PREFIX, True, 0, 0, True))
            add(archive, Entry(f"{artifact.MANIFEST_PREFIX}/manifest.json", False, len(index), 0, False), io.BytesIO(index))
    return packed.digest, packed.size, plain.digest


def add(archive: tarfile.TarFile, entry: Entry, source: Any = None) -> None:
    """Add a directory, or a file with its content."""
    info = tarfile.TarInfo(entry.path)
    info.type = tarfile.DIRTYPE if entry.is_folder else tarfile.REGTYPE
    info.size, info.mtime = (0 if entry.is_folder else entry.size), max(0, entry.mtime_ns // 10**9)
    info.mode = 0o755 if entry.executable else 0o644
    try:
        archive.addfile(info, source)
    except OSError as error:
        raise ArtifactError("Changing", f"{entry.path} became shorter while it was read: {error}") from None


def open_unchanged(root: int, entry: Entry) -> IO[bytes]:
    """Open a file. Raise ArtifactError if it differs from the inventory."""
    with unchanged(entry.path):
        descriptor = artifact.open_below(root, entry.path, artifact.FILE_FLAGS)
    at = os.fstat(descriptor)
    if (at.st_size, at.st_mtime_ns) != (entry.size, entry.mtime_ns) or not stat.S_ISREG(at.st_mode):
        os.close(descriptor)
        raise ArtifactError("Changing", f"{entry.path} changed.")
    return os.fdopen(descriptor, "rb")


class Scanned:
    """Reads a file, and raises ArtifactError where it contains a secret."""

    def __init__(self, source: IO[bytes], entry: Entry, secrets: tuple[bytes, ...]) -> None:
        self._source, self._entry, self._secrets = source, entry, secrets
        self._has_tokens = entry.path.partition("/")[0] != BYTECODE
        self._overlap = max([100, *map(len, secrets)])
        self._tail = b""

    def read(self, count: int) -> bytes:
        """Read some bytes."""
        data = self._source.read(count)
        text = self._tail + data
        if any(secret in text for secret in self._secrets) or (self._has_tokens and TOKENS.search(text)):
            raise ArtifactError("SecretsFound", f"{self._entry.path} contains a secret of the Pod, or something in the form of a token.")
        self._tail = text[-self._overlap :]
        return data


def describe(
    inventory: list[Entry], *, root: str, labels: dict[str, str], architecture: str, mounts: list[dict[str, Any]]
) -> tuple[dict[str, str], bytes]:
    """Return the labels of the image and the content of `manifest.json`, as GKM has them (mcv/docs/spec-compat.md, pkg/cache/vllm.go)."""
    entries = index_entries(inventory)
    hashes = list(dict.fromkeys(entry["vllmHash"] for entry in entries))
    formats = [name for name in ("aot_compile", "binary") if any(entry["cacheFormat"] == name for entry in entries)]
    target = {"backend": "cuda", "arch": architecture, "warp_size": 32}
    all_labels = {
        "cache.vllm.image/entry-count": str(max(1, len(entries))),
        "cache.vllm.image/summary": json.dumps({"targets": [target]}, separators=(",", ":")),
        "cache.vllm.image/cache-size-bytes": str(sum(entry.size for entry in inventory)),
        "cache.vllm.image/format": ",".join(formats) or "unpacked",
        "io.kserve.km/framework": "vllm",
        "io.kserve.km/cache-type": "torch-compile",
        "io.kserve.km/split-cache-capture": "true",
        "io.kserve.km/cache-mounts": json.dumps(mounts, separators=(",", ":"), sort_keys=True),
        "io.kserve.km/cache-root-env": f"VLLM_CACHE_ROOT={root}/{artifact.VLLM_FOLDER}",
        f"{artifact.LABEL}format": artifact.FORMAT,
        **labels,
    }
    if hashes:
        folder = "torch_compile_cache"
        all_labels["io.kserve.km/cache-hash"] = ",".join(hashes)
        all_labels["io.kserve.km/cache-mount-subpath"] = f"{folder}/torch_aot_compile" if "aot_compile" in formats else folder
    return all_labels, json.dumps({"vllm": entries}, separators=(",", ":"), sort_keys=True).encode()


def index_entries(inventory: list[Entry]) -> list[dict[str, Any]]:
    """Return the compiled graphs in GKM's format, without their environment, which may contain secrets."""
    binary: dict[str, dict[tuple[str, str], list[str]]] = {}
    whole: dict[str, list[dict[str, Any]]] = {}
    for entry in inventory:
        parts = entry.path.split("/")
        if entry.is_folder or parts[:2] != [artifact.VLLM_FOLDER, "torch_compile_cache"]:
            continue
        if len(parts) == 6 and parts[2] == "torch_aot_compile" and parts[5] == "model" and RANK.fullmatch(parts[4]):
            whole.setdefault(parts[3], []).append({"hash": parts[3], "rank": parts[4], "model_file": "model", "file_size": entry.size})
        elif len(parts) == 6 and RANK.fullmatch(parts[3]) and parts[5].startswith("artifact_compile_range_"):
            binary.setdefault(parts[2], {}).setdefault((parts[3], parts[4]), []).append(parts[5])
    found = [{"vllmHash": name, "cacheFormat": "aot_compile", "aot_compile": models} for name, models in sorted(whole.items())]
    for name, ranks in sorted(binary.items()):
        listed = [
            {"rank": rank, "prefix": prefix, "artifact_count": len(names), "artifact_names": names, "target_device": "cuda"}
            for (rank, prefix), names in sorted(ranks.items())
        ]
        found.append({"vllmHash": name, "cacheFormat": "binary", "binary": listed})
    return found


def pack(
    root: str,
    inventory: list[Entry],
    file: IO[bytes],
    *,
    labels: dict[str, str],
    architecture: str,
    machine: str,
    mounts: list[dict[str, Any]],
    secrets: tuple[bytes, ...] = (),
) -> Packed:
    """Write the layer of an artifact to a file, and return its description. Raises ArtifactError: Changing, SecretsFound or Empty."""
    files = [entry for entry in inventory if not entry.is_folder]
    if not files:
        raise ArtifactError("Empty", "The directory has no caches.")
    all_labels, index = describe(inventory, root="/cache", labels=labels, architecture=architecture, mounts=mounts)
    with artifact.opened_root(root) as top:
        digest, size, plain = write_layer(top, inventory, file, index=index, secrets=secrets)
    config = artifact.describe_image(all_labels, plain_digest=plain, machine=machine)
    return Packed(digest, size, config, len(files), sum(entry.size for entry in files))


def main() -> int:
    """Pack the caches; return the exit status."""
    status = artifact.run_with_report("PACK_ARTIFACT", pack_when_ready, deadline=PACK_SECONDS, good=("Packed",))
    if status == 0 and json.loads(os.environ["PACK_ARTIFACT"]).get("ready"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            signal.pause()
    return status


def pack_when_ready(settings: dict[str, Any]) -> dict[str, Any]:
    """Pack the directory `root` into the folder `output`, after the engine in the same Pod, if any, is ready."""
    artifact.wait_for_engine(settings, PACK_SECONDS)
    fingerprint = build_fingerprint(settings.get("image", ""))
    base, tag = artifact.portability_key(settings, fingerprint)
    cold = {artifact.COLD_LABEL: str(settings["coldSeconds"])} if settings.get("coldSeconds") else {}
    facts = json.dumps(describe_build(settings), sort_keys=True)
    labels = {f"{artifact.LABEL}base": base, f"{artifact.LABEL}tag": tag, FACTS_LABEL: facts, **cold}
    output = settings["output"]
    for name in os.listdir(output):  # leftovers of a container that was killed
        os.unlink(os.path.join(output, name))
    with open(os.path.join(output, artifact.LAYER_NAME), "x+b") as file:
        packed = pack_unchanged(settings, file, labels)
    if packed.size > int(settings.get("maxBytes") or artifact.MAX_BYTES):
        raise ArtifactError("TooLarge", f"The caches have {packed.size} bytes.")
    part = os.path.join(output, f"{artifact.DESCRIPTION_NAME}.part")
    with open(part, "x") as description:
        json.dump({"fingerprint": fingerprint, "config": packed.config.decode(), "files": packed.files, "bytes": packed.size}, description)
    os.rename(part, os.path.join(output, artifact.DESCRIPTION_NAME))
    return {"result": "Packed"}


def pack_unchanged(settings: dict[str, Any], file: Any, labels: dict[str, str]) -> Packed:
    """Pack the directory while its content is unchanged."""
    root, folders, excluded, whole = settings["root"], settings["folders"], settings["excluded"], settings["whole"]
    values = (value.strip() for name, value in os.environ.items() if name.startswith(SECRETS))
    secrets = tuple({value.encode() for value in values if len(value) >= MIN_SECRET})
    for _ in range(PACK_ATTEMPTS):
        try:
            inventory = take_inventory(root, folders, excluded, whole)
            if is_quiet(inventory, float(settings.get("quiet", QUIET_SECONDS))):
                file.seek(0)
                file.truncate()
                target = {"architecture": settings["architecture"], "machine": platform.machine(), "mounts": settings["mounts"]}
                packed = pack(root, inventory, file, labels=labels, secrets=secrets, **target)
                if take_inventory(root, folders, excluded, whole) == inventory:
                    return packed
        except ArtifactError as error:
            if error.reason != "Changing":
                raise
            print(f"{error}; once more", flush=True)
        time.sleep(float(settings.get("pause", PAUSE_SECONDS)))
    raise ArtifactError("Changing", "The engine kept changing its caches.")


def is_quiet(inventory: list[Entry], seconds: float) -> bool:
    """Return whether no file was written for this time. A time in the future counts as long ago."""
    now = time.time()
    return not any(0 <= now - entry.mtime_ns / 1e9 < seconds for entry in inventory)
