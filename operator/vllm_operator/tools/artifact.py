"""Common parts of the programs that fetch and publish caches: the form of an artifact, its key, their report, and safe access to files.

Portability key. A tag names everything that decides whether caches can be used on another node:

    BASE = READABLE-MACHINE-DIGEST     parts of the operator's cache key that are known without the image, and the fingerprint
    TAG = BASE-SETTINGS                and the model and the settings of the engine

The fingerprint is computed inside the engine's image (`build.py`).

Others may change a directory at any time. The kernel resolves a path at each use, so a directory that is checked and then opened by it
may have been replaced. Here, each directory is opened relative to its parent, and used by its descriptor. No symbolic link is followed.
"""

import errno
import hashlib
import http.client
import io
import json
import os
import platform
import signal
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER_NAME, DESCRIPTION_NAME = "layer", "image.json"
"""Files in the folder that the packing container shares with the publisher: the layer, and JSON with `config` (text), `files` and
`bytes`. The description is written last.
"""
MAX_BYTES = 4 * 2**30
MAX_FILES = 100_000
MAX_JSON = 2**20
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
ENGINE_SECONDS = 7 * 86_400
"""Maximum time for an engine to become ready. Its startup probe ends earlier."""
ENGINE_PAUSE_SECONDS = 5
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a named pipe does not block."""


class ArtifactError(Exception):
    """An operation on an artifact failed. `reason` is one word for the operator, and `facts` are added to the report."""

    def __init__(self, reason: str, message: str, **facts: str | int) -> None:
        super().__init__(message)
        self.reason, self.facts = reason, facts


def portability_key(settings: dict[str, Any], fingerprint: str) -> tuple[str, str]:
    """Return the tag of the base and the full tag."""
    text = json.dumps([settings["parts"], platform.machine(), fingerprint], separators=(",", ":"), sort_keys=True)
    base = f"{settings['readable'][:80]}-{platform.machine().replace('_', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return base, f"{base}-{settings['settings'][:12]}"


def describe_image(labels: dict[str, str], *, plain_digest: str, machine: str) -> bytes:
    """Return the configuration of an image with one layer, whose archive has this digest."""
    return encode(
        {
            "architecture": MACHINES.get(machine, machine),
            "os": "linux",
            "config": {"Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [plain_digest]},
            "history": [{"created_by": "vllm-operator"}],
        }
    )


def encode_manifest(config: bytes, layer_digest: str, layer_size: int) -> bytes:
    """Return the manifest of an image with one layer."""
    described = {"mediaType": CONFIG_TYPE, "digest": sha256_of(config), "size": len(config)}
    layers = [{"mediaType": LAYER_TYPE, "digest": layer_digest, "size": layer_size}]
    return encode({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described, "layers": layers})


def sha256_of(content: bytes) -> str:
    """Return the digest of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def encode(value: Any) -> bytes:
    """Encode JSON deterministically."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def run_with_report(
    variable: str, act: Callable[[dict[str, Any]], dict[str, Any]], *, deadline: float, good: tuple[str, ...], is_optional: bool = False
) -> int:
    """Run a program with the settings in an environment variable (JSON), report the result, and return the exit status.

    The settings may override the deadline, in seconds. Results other than `good` are failures. With `is_optional`, the status is 0 even
    after a failure, unless the settings have `required`.
    """
    settings: dict[str, Any] = json.loads(os.environ[variable])
    since = time.monotonic()
    try:
        start_deadline(float(settings.get("deadline", deadline)))
        result = act(settings)
    except ArtifactError as error:
        result = {"result": error.reason, "message": str(error), **error.facts}
    except OSError as error:
        reason = "NoSpace" if error.errno in DISK_ERRORS else "Failed"
        result = {"result": reason, "message": f"{error.filename or 'The caches'}: {error.strerror or error}."}
    except Exception as error:  # in every case of failure the engine can start without the artifact
        result = {"result": "Failed", "message": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    is_failed = result["result"] not in good
    if is_failed and settings.get("required"):
        result["message"] = f"No caches could be fetched, and they are required: {result.get('message', '')}"
    report({**result, "seconds": round(time.monotonic() - since, 1)})
    return int(is_failed and (not is_optional or bool(settings.get("required"))))


def report(result: dict[str, Any], variable: str = "ARTIFACT_REPORT") -> None:
    """Print the result, and write it to the termination message, of up to 4096 bytes."""
    text = json.dumps({name: value[:600] if isinstance(value, str) else value for name, value in result.items()})
    print(text, flush=True)
    try:
        with open(os.environ.get(variable, "/dev/termination-log"), "w") as file:
            file.write(text)
    except OSError as error:
        print(f"The result cannot be written: {error}", file=sys.stderr)


def start_deadline(seconds: float) -> None:
    """Raise an exception in the main thread after the deadline. SIGTERM also ends the program."""

    def expire(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise ArtifactError("DeadlineExceeded", f"It took longer than {seconds:.0f} s.")

    def end(*_: object) -> None:
        raise ArtifactError("Interrupted", "The container was stopped.")

    signal.signal(signal.SIGALRM, expire)
    signal.signal(signal.SIGTERM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))


def wait_for_engine(settings: dict[str, Any], deadline: float) -> None:
    """Wait until the engine in the same Pod, if any, is ready, and start the deadline then. The setting `ready` is its readiness probe."""
    if not settings.get("ready"):
        return
    start_deadline(ENGINE_SECONDS)
    while True:
        try:
            if is_ready(settings["ready"]):
                break
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        time.sleep(float(settings.get("pause", ENGINE_PAUSE_SECONDS)))
    start_deadline(float(settings.get("deadline", deadline)))


def is_ready(probe: dict[str, Any]) -> bool:
    """Return whether the engine's readiness probe succeeds."""
    connection = connect(probe, 10.0)
    try:
        connection.request("GET", probe["path"])
        return connection.getresponse().status == 200
    finally:
        connection.close()


def connect(probe: dict[str, Any], seconds: float) -> http.client.HTTPConnection:
    """Return a connection to the engine in the same Pod, with a limit for each answer. Like the kubelet, it does not check certificates."""
    if probe["scheme"] != "https":
        return http.client.HTTPConnection("127.0.0.1", probe["port"], timeout=seconds)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", probe["port"], timeout=seconds, context=context)


@contextmanager
def opened_root(path: str) -> Iterator[int]:
    """Open a directory that others cannot replace, such as a mount point; yields its descriptor."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)


@contextmanager
def opened_folder(root: int, path: str) -> Iterator[int]:
    """Open a directory below an open one. Raises OSError if a part of the path is no directory, such as a symbolic link."""
    folder = open_below(root, path, FOLDER_FLAGS)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def opened_parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory of a path below an open directory; yields its descriptor, and the last part. Raises as `opened_folder` does."""
    *folders, name = path.split("/")
    at = os.dup(root)
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER_FLAGS, dir_fd=at)
            os.close(at)
            at = inner
        yield at, name
    finally:
        os.close(at)


def open_below(root: int, path: str, flags: int, mode: int = 0o777) -> int:
    """Open a path below an open directory, and return its descriptor. Raises as `opened_folder` does."""
    with opened_parent(root, path) as (at, name):
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=at)


def open_regular(root: int, path: str) -> io.BufferedReader:
    """Open a regular file below an open directory. Raises ArtifactError (Rejected) if it is something else."""
    descriptor = open_below(root, path, FILE_FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError("Rejected", f"{path} is no regular file.")
    return os.fdopen(descriptor, "rb")
