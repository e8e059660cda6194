"""What the programs that fetch and publish caches have in common: the form of an artifact, its key, and their report.

Travel key. A tag names everything that decides whether caches can be used on another node:

    BASE = READABLE-MACHINE-DIGEST     parts of the operator's cache key that are known without the image, and the fingerprint
    TAG = BASE-SETTINGS                and the model and the settings of the engine

The fingerprint is computed inside the engine's image, so it is right for tags, mirrors and first starts: the RECORD of each installed
package (which has the digest of each file), Python, the CUDA version, and the newest modification time of FlashInfer's sources, because
ninja compares times.
"""

import glob
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import time
from typing import Any

FORMAT = "1"
CACHE_PREFIX, MANIFEST_PREFIX = "io.vllm.cache", "io.vllm.manifest"
OTHERS = "vllm-operator"
"""Directory in `io.vllm.cache` with all folders other than that of `VLLM_CACHE_ROOT`, whose content is at the top."""
VLLM_FOLDER = "vllm"
LABEL = "vllm-operator.dev/"
COLD_LABEL = f"{LABEL}cold-seconds"
"""Label with the duration of the cold start of the engine that published."""
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_TYPES = (LAYER_TYPE, "application/vnd.docker.image.rootfs.diff.tar.gzip")
MAX_BYTES = 4 * 2**30
MAX_FILES = 100_000
MAX_JSON = 2**20
ENGINES = ("vllm-", "nvllm-")
"""Beginnings of the names of vLLM's packages."""
CUDA_VERSIONS = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")


class ArtifactError(Exception):
    """Something went wrong. `reason` is one word for the operator."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def travel_key(readable: str, parts: Any, settings: str, fingerprint: str) -> tuple[str, str]:
    """Return the tag of the base and the full tag."""
    text = json.dumps([parts, platform.machine(), fingerprint], separators=(",", ":"), sort_keys=True)
    base = f"{readable[:80]}-{platform.machine().replace('_', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return base, f"{base}-{settings[:12]}"


def build_fingerprint(image: str) -> str:
    """Return the fingerprint of the software in this container. Where vLLM's packages are not found, it includes the name of the image."""
    folders = package_folders()
    records = [path for folder in folders for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")))]
    names = [os.path.basename(os.path.dirname(path)) for path in records]
    parts = [sys.implementation.cache_tag or "", platform.python_version()]
    parts += [f"{name} {file_digest(path)}" for name, path in zip(names, records)]  # noqa: B905  # equally long
    parts += [file_digest(path) for path in CUDA_VERSIONS if os.path.exists(path)]
    parts.append(str(max([newest_source(os.path.join(folder, "flashinfer")) for folder in folders], default=0)))
    if not any(name.lower().startswith(ENGINES) for name in names):
        parts.append(image)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def package_folders() -> list[str]:
    """Return where packages are: those of this Python, and of the one that runs `vllm`."""
    found = {os.path.realpath(entry) for entry in sys.path if entry}
    try:
        with open(shutil.which("vllm") or "", "rb") as file:
            line = file.readline(256).decode(errors="replace")
    except OSError:
        line = ""
    interpreter = line[2:].strip().split(" ")[0] if line.startswith("#!/") else ""
    if os.path.basename(interpreter).startswith("python"):
        top = glob.escape(os.path.dirname(os.path.dirname(interpreter)))
        found.update(os.path.realpath(path) for path in glob.glob(os.path.join(top, "lib", "python3*", "*-packages")))
    return sorted(found)


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def newest_source(top: str) -> int:
    """Return the newest modification time of the files in a folder, in seconds; 0 without files."""
    newest = 0
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            newest = max(newest, int(os.lstat(os.path.join(folder, name)).st_mtime))
    return newest


def report(result: dict[str, Any]) -> None:
    """Print the result, and write it where the kubelet finds it: the termination message, of up to 4096 bytes."""
    result = {name: value[:600] if isinstance(value, str) else value for name, value in result.items()}
    text = json.dumps(result)
    print(text, flush=True)
    try:
        with open(os.environ.get("ARTIFACT_REPORT", "/dev/termination-log"), "w") as file:
            file.write(text)
    except OSError as error:
        print(f"The result cannot be written: {error}", file=sys.stderr)


def start_deadline(seconds: float) -> None:
    """End whatever takes longer, by an exception in the main thread. SIGTERM ends it too."""

    def expire(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise ArtifactError("DeadlineExceeded", f"It took longer than {seconds:.0f} s.")

    def end(*_: object) -> None:
        raise ArtifactError("Interrupted", "The container was stopped.")

    signal.signal(signal.SIGALRM, expire)
    signal.signal(signal.SIGTERM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))


def stop_deadline() -> None:
    """End the deadline."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def elapsed(since: float) -> float:
    """Return the seconds since a time of `time.monotonic`."""
    return round(time.monotonic() - since, 1)
