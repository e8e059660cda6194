"""The file with the programs for Pods, built as for the operator's image, and commands that run one of them."""

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import build_tools


@cache
def archive() -> Path:
    """Build the file once for all tests of a process."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-operator-tools-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build_tools.build(folder / "tools.pyz")


def command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program with this Python, as in a Pod."""
    return [sys.executable, "-I", "-B", str(archive()), program, *arguments]
