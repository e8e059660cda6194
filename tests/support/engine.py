"""Starts of the stand-in engine in containers made of directories: a volume that stays, and a disk that does not."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine.caches
from vllm_operator.catalog.caches import CACHE_ROOT

PROGRAM = Path(str(engine.caches.__file__)).parent / "__main__.py"


@dataclass(frozen=True)
class Start:
    """How a start went. `paid` are seconds of the real engine by cache."""

    status: int
    log: str
    paid: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.paid.values())


class Node:
    """Runs containers whose `/cache` is a folder of a volume."""

    def __init__(self, volume: Path, *, speed: float = 5000, quota: int = 0) -> None:
        self.volume = volume
        self._settings = {"ENGINE_SPEED": str(speed), "ENGINE_QUOTA": str(quota), "ENGINE_VOLUME": str(volume)}

    def run_first(self, container: Mapping[str, Any]) -> None:
        """Run an init container of the volume to its end. One that only copies the operator's tools has nothing to do here."""
        [mount] = container["volumeMounts"]
        if "subPath" not in mount:
            return
        root = self.volume / mount["subPath"]
        root.mkdir(parents=True, exist_ok=True)
        command = [part.replace(mount["mountPath"] + "/", f"{root}/") for part in container["command"]]
        subprocess.run(command, check=True)

    def run(
        self, environment: Mapping[str, str], folder: str = "key", *, kill_after_lines: int = 0, kill_at: str = "", within: float = 60
    ) -> Start:
        """Run a container from its start to its end, or kill it after some lines of its log, or at certain words."""
        root = self.volume / folder
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as disk:
            report = Path(disk) / "report"
            # what is not on the volume is lost with the container: the image's home and /tmp
            inside = {"HOME": f"{disk}/root", "TMPDIR": f"{disk}/tmp", **environment}
            moved = {
                name: value.replace(CACHE_ROOT, str(root), 1) if value.startswith(CACHE_ROOT) else value for name, value in inside.items()
            }
            moved |= self._settings | {"ENGINE_REPORT": str(report), "PATH": os.environ["PATH"]}
            # -B: on this volume is what the engine that is played has written, and nothing of this Python's own
            with subprocess.Popen(
                [sys.executable, "-B", str(PROGRAM)], env=moved, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process:
                assert process.stdout is not None
                lines: list[str] = []
                for line in process.stdout:
                    lines.append(line)
                    if (kill_after_lines and len(lines) >= kill_after_lines) or (kill_at and kill_at in line):
                        process.kill()
                        break
                status = process.wait(within)
            return Start(status, "".join(lines), json.loads(report.read_text()))
