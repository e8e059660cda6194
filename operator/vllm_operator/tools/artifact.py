"""Common parts of the programs that fetch and publish caches: the form of an artifact, its key, and their report.

Portability key. A tag names everything that decides whether caches can be used on another node:

    BASE = READABLE-MACHINE-DIGEST     parts of the operator's cache key that are known without the image, and the fingerprint
    TAG = BASE-SETTINGS                and the model and the settings of the engine

The fingerprint is computed inside the engine's image (`build.py`).
"""

import errno
import hashlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
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
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class ArtifactError(Exception):
    """An operation on an artifact failed. `reason` is one word for the operator, and `facts` are added to the report."""

    def __init__(self, reason: str, message: str, **facts: str) -> None:
        super().__init__(message)
        self.reason, self.facts = reason, facts


def portability_key(readable: str, parts: Any, settings: str, fingerprint: str) -> tuple[str, str]:
    """Return the tag of the base and the full tag."""
    text = json.dumps([parts, platform.machine(), fingerprint], separators=(",", ":"), sort_keys=True)
    base = f"{readable[:80]}-{platform.machine().replace('_', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return base, f"{base}-{settings[:12]}"


def run_with_report(
    variable: str, act: Callable[[dict[str, Any]], dict[str, Any]], *, deadline: float, good: tuple[str, ...], is_optional: bool = False
) -> int:
    """Run a program with the settings in an environment variable, report the result, and return the exit status.

    Args:
        variable: Name of the variable, with JSON.
        act: The program, which returns a result. It may raise any exception.
        deadline: Default deadline in seconds. The settings may override it.
        good: Results that are not failures.
        is_optional: Whether the status is 0 even after a failure, unless the settings have `required`.
    """
    settings: dict[str, Any] = json.loads(os.environ[variable])
    since = time.monotonic()
    result: dict[str, Any] = {}
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
        stop_deadline()
    is_failed = result["result"] not in good
    if is_failed and settings.get("required"):
        result["message"] = f"No caches could be fetched, and they are required: {result.get('message', '')}"
    result["seconds"] = elapsed(since)
    report(result)
    return int(is_failed and (not is_optional or bool(settings.get("required"))))


def report(result: dict[str, Any]) -> None:
    """Print the result, and write it to the termination message, of up to 4096 bytes."""
    result = {name: value[:600] if isinstance(value, str) else value for name, value in result.items()}
    text = json.dumps(result)
    print(text, flush=True)
    try:
        with open(os.environ.get("ARTIFACT_REPORT", "/dev/termination-log"), "w") as file:
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


def stop_deadline() -> None:
    """Cancel the deadline."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def elapsed(since: float) -> float:
    """Return the seconds since a time of `time.monotonic`."""
    return round(time.monotonic() - since, 1)
