"""Downloads official release binaries: seconds instead of minutes of compiling.

Nothing is used whose checksum is not the pinned one. A download that fails, stalls or is too slow costs only its time: the binary is built
then. TESTENV_RELEASES names a mirror (`http://mirror/` with the host and path of each URL below it), or is `none` to always build.
"""

import hashlib
import http.client
import os
import platform
import shutil
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data" / "releases.yaml"
MIRROR = "TESTENV_RELEASES"
NO_RELEASES = "none"
PLAIN_FILE = "."
STALL_SECONDS = 15.0
"""How long a connection may take, and a server may send nothing."""
SLOWEST_BYTES_PER_SECOND = 256 * 1024
PATIENCE_SECONDS = 20.0
"""After this time, the average speed counts."""
MOST_BYTES = 2**30
_CHUNK = 1 << 20
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_UNFINISHED = ".downloading-"


class ReleaseError(Exception):
    """A release could not be downloaded, or is not what was pinned; the message says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """One file to download: its checksum as `algorithm:hex`, and the binaries in it by their path (`.`: the file is the binary)."""

    module: str
    version: str
    url: str
    checksum: str
    members: Mapping[str, str]


def releases_of(document: Mapping[str, Any], system: str, machine: str) -> list[Release]:
    """The releases for a machine; none for systems other than Linux, and for machines without a checksum."""
    name = _MACHINES.get(machine.lower())
    if system != "Linux" or name is None:
        return []
    return [
        Release(
            module=entry["module"],
            version=entry["version"],
            url=entry["url"].replace("{machine}", name),
            checksum=entry["checksums"][name],
            members={binary: path.replace("{machine}", name) for binary, path in entry["members"].items()},
        )
        for entry in document["releases"]
        if name in entry["checksums"]
    ]


def known_releases() -> list[Release]:
    if os.environ.get(MIRROR) == NO_RELEASES:
        return []
    return releases_of(yaml.safe_load(DATA.read_text("utf-8")), platform.system(), platform.machine())


def download(
    release: Release, targets: Mapping[str, Path], *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE_SECONDS
) -> None:
    """Download a release and put binaries of it where `targets` says, each of them whole or not at all. Raises ReleaseError."""
    folder = next(iter(targets.values())).parent
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as scratch:
        file = Path(scratch) / "download"
        try:
            _fetch(_at_mirror(release.url), file, release.checksum, clock, patience)
            _unpack(file, {release.members[name]: Path(scratch) / name for name in targets})
        except (OSError, http.client.HTTPException, tarfile.TarError, EOFError) as error:
            raise ReleaseError(f"{release.url}: {error}") from error
        for name, target in targets.items():
            binary = Path(scratch) / name
            binary.chmod(0o755)
            binary.replace(target)


def checksum_of(file: Path, algorithm: str) -> str:
    with file.open("rb") as content:
        return f"{algorithm}:{hashlib.file_digest(content, algorithm).hexdigest()}"


def _at_mirror(url: str) -> str:
    mirror = os.environ.get(MIRROR)
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}" if mirror else url


def _fetch(url: str, target: Path, checksum: str, clock: Callable[[], float], patience: float) -> None:
    algorithm, _, wanted = checksum.partition(":")
    digest, size, began = hashlib.new(algorithm), 0, clock()
    with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response, target.open("wb") as file:
        while chunk := response.read1(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
            file.write(chunk)
            elapsed = clock() - began
            if elapsed > patience and size < SLOWEST_BYTES_PER_SECOND * elapsed:
                raise ReleaseError(f"{url}: too slow, {size / elapsed / 1024:.0f} KiB/s")
            if size > MOST_BYTES:
                raise ReleaseError(f"{url}: more than {MOST_BYTES >> 20} MiB")
    if digest.hexdigest() != wanted:
        raise ReleaseError(f"{url}: the checksum of {size} bytes is not the pinned one")


def _unpack(file: Path, targets: Mapping[str, Path]) -> None:
    if PLAIN_FILE in targets:
        shutil.copyfile(file, targets[PLAIN_FILE])
        return
    missing = dict(targets)
    with tarfile.open(file, "r:gz") as archive:
        for member in archive:
            target = missing.pop(member.name, None) if member.isreg() else None
            source = archive.extractfile(member) if target is not None else None
            if target is None or source is None:
                continue
            with source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
            if not missing:
                return
    raise ReleaseError(f"the archive has no {', '.join(missing)}")


def by_release(names: Iterable[str], releases: Iterable[Release]) -> list[tuple[Release, list[str]]]:
    wanted = list(names)
    found = [(release, [name for name in wanted if name in release.members]) for release in releases]
    return [(release, having) for release, having in found if having]
