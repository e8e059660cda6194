"""Images without a registry: built by buildah in a store of our own, and a stand-in for the public Python image.

The stand-in is a small Debian with its own Python, made by debootstrap once and kept in the cache. It is what
`FROM python:3.13-slim` means on a machine that cannot, or shall not, reach a registry.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nodeenv.configuration import SANDBOX_IMAGE
from nodeenv.node import NodeError
from testenv.binaries import cache_root

ROOT = Path(__file__).parent.parent.parent
BASE = "docker.io/library/python:3.13-slim"
_SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
_PACKAGES = "ca-certificates,python3,python3-venv,python3-pip"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNNEEDED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


class ImageStore:
    """The images of the node suite, in the cache: what was built once is built again from its layers."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_root() / "images"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.buildah = f"buildah --root {self.folder}/root --runroot {self.folder}/run --storage-driver overlay"

    def ensure_base(self) -> None:
        """Make the stand-in for the base image, and the image of the sandboxes; minutes the first time. Raises NodeError."""
        if not self._has(BASE):
            self._make_base()
        if not self._has(SANDBOX_IMAGE):
            container = self._run("from", "--pull-never", BASE)
            self._run("config", "--entrypoint", '["/usr/bin/sleep", "infinity"]', "--cmd", "", container)
            self._run("commit", "--quiet", "--rm", "--format", "docker", container, SANDBOX_IMAGE)

    def build_operator(self, tag: str) -> None:
        arguments = "--pull-never --isolation chroot --network host"
        environment = {"BUILDER": self.buildah, "BASE": BASE, "IMAGE_ARGUMENTS": arguments}
        _check([str(ROOT / "hack" / "image.sh"), tag], environment)

    def build(self, tag: str, folder: Path) -> None:
        self._run("bud", "--quiet", "--layers", "--pull-never", "--isolation", "chroot", "--format", "docker", "--tag", tag, str(folder))

    def tag(self, tag: str, other: str) -> None:
        self._run("tag", tag, other)

    def save(self, tag: str, archive: Path) -> None:
        archive.unlink(missing_ok=True)
        self._run("push", "--quiet", tag, f"docker-archive:{archive}:{tag}")

    def _make_base(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            root = Path(scratch) / "root"
            _check(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(root), _MIRROR], {})
            for name in _UNNEEDED:
                shutil.rmtree(root / name, ignore_errors=True)
            for name in ("python", "python3"):
                (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
            container = self._run("from", "scratch")
            self._run("add", "--quiet", container, str(root), "/")
            self._run("config", "--cmd", "python3", "--env", f"PATH={_PATH}", container)
            self._run("commit", "--quiet", "--rm", "--format", "docker", container, BASE)

    def _has(self, tag: str) -> bool:
        return bool(self._run("images", "--quiet", "--filter", f"reference={tag}"))

    def _run(self, *arguments: str) -> str:
        return _check([*self.buildah.split(), *arguments], {})


def _check(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise NodeError(f"{command[0]} failed:\n{words}")
    return done.stdout.strip()
