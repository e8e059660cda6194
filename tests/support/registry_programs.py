"""The programs that publish and fetch caches, run in processes of their own, as in Pods."""

import json
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from support.artifacts import EXCLUDED, FOLDERS
from support.registry import Registry
from support.tools import command

REPOSITORY = "team/caches"
LEFT_OUT = ("cache_key_factors.json", ".lock", "grammar.db")


class Programs:
    """Runs the programs with nothing but their settings."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry, self._folder = registry, folder
        self.log_in(registry.account())

    def log_in(self, secret: dict[str, str]) -> None:
        """Replace the content of the mounted Secret."""
        (self._folder / "secret").mkdir(exist_ok=True)
        for name in (".dockerconfigjson", "ca.crt"):
            (self._folder / "secret" / name).unlink(missing_ok=True)
        for name, content in secret.items():
            (self._folder / "secret" / name).write_text(content)

    def log_in_at(self, host: str) -> None:
        """Use the account of the registry for another address."""
        secret = self.registry.account()
        self.log_in({**secret, ".dockerconfigjson": secret[".dockerconfigjson"].replace(self.registry.host, host)})

    def start(self, name: str, root: Path, *, settings: str, prefix: tuple[str, ...] = (), **more: Any) -> "subprocess.Popen[str]":
        """Start a program: `fetch` or `publish`, on a root of caches."""
        root.mkdir(exist_ok=True)
        given = {
            "repository": f"{self.registry.host}/{REPOSITORY}",
            "readable": "v0.20.1-sm90",
            "parts": {"product": "H200"},
            "settings": settings,
            "folders": list(FOLDERS),
            "secret": str(self._folder / "secret"),
            "root": str(root),
            "excluded": list(EXCLUDED),
            "whole": ["bytecode"],
            "architecture": "sm_90",
            "mounts": [],
            **more,
        }
        given["output"] = tempfile.mkdtemp(prefix="packed-", dir=self._folder)
        variables = dict.fromkeys(("CACHE_ARTIFACT", "PACK_ARTIFACT", "PUBLISH_ARTIFACT"), json.dumps(given))
        environment = {**variables, "ARTIFACT_REPORT": "/dev/null", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        program = [*prefix, *command(f"{name}-caches")]
        if name == "publish":  # as the Job does: what the init container has packed is pushed
            program = [*prefix, "sh", "-c", f"{shlex.join(command('pack-caches'))} && exec {shlex.join(command('publish-caches'))}"]
        return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def end(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any]]:
        """Wait for a program; return its status and its report, which is empty if it was killed."""
        printed, errors = process.communicate(timeout=100)
        reports = [line for line in printed.splitlines() if line.startswith("{") and '"Packed"' not in line]
        assert "Traceback" not in errors, errors
        return process.returncode, json.loads(reports[-1]) if reports else {}

    def run(self, name: str, root: Path, *, settings: str, **more: Any) -> tuple[int, dict[str, Any]]:
        """Run a program to its end."""
        return self.end(self.start(name, root, settings=settings, **more))


def files_of(root: Path) -> dict[str, bytes]:
    """Return the files in the directories of a root."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.parent != root}
