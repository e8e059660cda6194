"""Byte code for an operator that is measured: its image has it, and a checkout on a machine that writes none compiles at each start."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def with_byte_code(environment: Mapping[str, str], python: str = sys.executable) -> dict[str, str]:
    """Complete the environment of an operator so that Python finds its byte code. It is compiled now, by importing the operator once."""
    folder = Path(tempfile.gettempdir()) / f"vllm-operator-byte-code-{os.getuid()}"
    complete = {**environment, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}
    subprocess.run([python, "-c", "import vllm_operator.controller.app"], env=complete, check=True)
    return complete
