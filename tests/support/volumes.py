"""Volumes with directories of caches, and the program of the Job that makes room on them."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from support.tools import command

OLD, OLDER, USED, GENERATION = (
    "v0.16.0-sm90-h100-tp1-00000001",
    "v0.15.0-sm90-h100-tp1-00000002",
    "v0.20.1-sm90-h100-tp1-g1-00000003",
    "v0.20.1-sm90-h100-tp1-00000004",
)


def make(root: Path, name: str, *, days: float, size: int = 10, marked: bool = True) -> None:
    (root / name / "triton").mkdir(parents=True)
    (root / name / "triton" / "kernel.cubin").write_bytes(b"x" * size)
    if marked:
        (root / name / f".vllm-operator-{name}").touch()
    age(root / name, days=days)


def age(path: Path, *, days: float = 30) -> None:
    when = time.time() - days * 86400
    for found in (*path.rglob("*"), path):
        os.utime(found, (when, when), follow_symlinks=False)


RECORDED = [OLD, OLDER, USED, GENERATION]


def clean(
    root: Path, *, keep: list[str], doomed: list[str] | None = None, share: int = 100, recorded: list[str] | None = None
) -> dict[str, Any]:
    """Run the program of the Job; a share of 100 is never reached, so all that may go goes."""
    variables = {
        "CLEAN_ROOT": str(root),
        "CLEAN_RECORDED": json.dumps(RECORDED if recorded is None else recorded),
        "CLEAN_KEEP": json.dumps(keep),
        "CLEAN_DOOMED": json.dumps(doomed or []),
        "CLEAN_SHARE": str(share),
        "CLEAN_GRACE": "0",
    }
    report = root.parent / "report"
    done = subprocess.run(
        command("clean-caches"),
        env={**variables, "CLEAN_REPORT": str(report)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(report.read_text())
    assert json.loads(done.stdout) == found
    return found
