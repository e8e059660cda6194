"""Software in the engine's image: a fingerprint for the key of an artifact, and facts that identify differences.

The fingerprint is independent of tags, mirrors and earlier starts. It covers the RECORD of each installed package (which has the digest of
each file), Python, the CUDA version, and the newest modification time of FlashInfer's sources, because ninja compares times.
"""

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from contextlib import suppress
from typing import Any

from vllm_operator.tools.artifact import LABEL

ENGINES = ("vllm-", "nvllm-")
"""Prefixes of the names of vLLM's packages."""
CUDA_VERSIONS = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")
DRIVER = "/proc/driver/nvidia/version"
NAMED_PACKAGES = ("vllm", "nvllm", "torch", "triton", "flashinfer_python", "flashinfer_cubin", "flashinfer_jit_cache", "deep_gemm")
"""Packages whose versions are recorded with an artifact."""
FACTS_LABEL = f"{LABEL}made-with"
"""Label with the inputs of an artifact: JSON, name to value."""
MAX_FACTS = 200
PLAIN_FACT = re.compile(r"[\w.+:/() -]{1,64}", re.ASCII)


def build_fingerprint(image: str) -> str:
    """Return the fingerprint of the software in this container. Without vLLM's packages, it includes the name of the image."""
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
    """Return the package folders: those of this Python, and of the Python that runs `vllm`."""
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
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def newest_source(top: str) -> int:
    """Return the newest modification time of the files in a folder, in seconds; 0 without files."""
    walk = ((folder, names) for folder, _, names in os.walk(top) if "__pycache__" not in folder.split("/"))
    return max((int(os.lstat(os.path.join(folder, name)).st_mtime) for folder, names in walk for name in names), default=0)


def describe_build(settings: dict[str, Any]) -> dict[str, str]:
    """Return the inputs of caches by name: versions, the driver, the parts of the key, and digests of the engine's settings."""
    facts = {}
    for folder in package_folders():
        for path in glob.glob(os.path.join(glob.escape(folder), "*.dist-info")):
            name, _, version = os.path.basename(path).removesuffix(".dist-info").partition("-")
            if name.lower() in NAMED_PACKAGES:
                facts[name.lower().replace("_", "-")] = version
    facts["Python"] = platform.python_version()
    for name, path, pattern in (
        ("CUDA", CUDA_VERSIONS[0], r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([^"]+)"'),
        ("driver", DRIVER, r"Kernel Module(?: for \S+)?\s+([0-9]+\.[0-9.]+)"),
    ):
        with suppress(OSError, ValueError), open(path) as file:
            if found := re.search(pattern, file.read(65536)):
                facts[name] = found[1]
    parts = {name: str(value) for name, value in dict(settings.get("parts") or {}).items() if name not in ("version", "distribution")}
    return {**facts, **parts, **(settings.get("named") or {})}


def differences(here: dict[str, str], text: str) -> str:
    """Compare this build with the label of an artifact; return the differences, empty if there are none or no label.

    Values of settings are digests, so only their names are reported.
    """
    try:
        made = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return ""
    if not isinstance(made, dict) or not made:
        return ""
    there = {name: value for name, value in list(made.items())[:MAX_FACTS] if is_plain(name) and is_plain(value)}
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    settings = [name for name in differing if name == "model" or name.startswith(("--", "VLLM_"))]
    named = [f"{name} {there.get(name, 'none')} instead of {here.get(name, 'none')}" for name in differing if name not in settings]
    return "; ".join([*named, *([f"other values of {', '.join(settings)}"] if settings else [])])


def is_plain(value: Any) -> bool:
    """Return whether a label value may be shown."""
    return isinstance(value, str) and PLAIN_FACT.fullmatch(value) is not None
