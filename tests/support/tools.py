"""The file with the programs for Pods, built as for the operator's image, and commands that run one of them."""

import atexit
import shutil
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import build_tools
from vllm_operator.pods.tools import tool_command


@cache
def archive() -> Path:
    """Build the file once for all tests of a process, and unpack it next to it."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-operator-tools-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = build_tools.build(folder / "tools.pyz")
    with zipfile.ZipFile(made) as opened:
        opened.extractall(folder)
    return made


def command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program with this Python, as in a Pod."""
    root = archive().parent
    words = [word.replace("pycache_prefix=", f"pycache_prefix={root}") for word in tool_command(program, root=str(root))]
    return [sys.executable, *words[1:], *arguments]
