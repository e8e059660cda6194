"""Measure what the imports of the operator cost: CPU time and memory of each package, in a process without a cluster.

    python hack/bench/imports.py

RSS and PSS are from /proc/self/smaps_rollup. The difference between RSS and PSS are pages of libraries that other processes of the machine
use as well. Only the standard library is imported before the first row. All modules have byte code, as in the image.
"""

import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.byte_code import with_byte_code

STEPS = (
    ("asyncio, ssl, uvloop", "import asyncio, ssl, uvloop"),
    ("aiohttp and the Kubernetes client", "import kubernetes.aio, aiohttp.web"),
    ("pydantic", "import pydantic; from pydantic import BaseModel"),
    ("kopf", "import vllm_operator.runtime.watches"),
    ("the operator", "import vllm_operator.app"),
    ("the catalog", "from vllm_operator.catalog.loader import load_catalog; load_catalog()"),
    (
        "stages and signatures",
        "from vllm_operator.runtime.user_data import KnownCrashes; from vllm_operator.catalog.startup import"
        " load_startup; crashes = KnownCrashes.of(load_startup())",
    ),
)
"""What is imported in turn, in one process."""
MEMBERS = ("Rss", "Pss", "Private_Dirty")


def memory(pid: int | str = "self") -> dict[str, float]:
    """RSS, PSS and private dirty memory of a process in MiB, and the peak of its RSS."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    status = Path(f"/proc/{pid}/status").read_text()
    found = {name: re.search(rf"^{name}:\s+(\d+)", rollup, re.MULTILINE) for name in MEMBERS}
    found["Peak"] = re.search(r"^VmHWM:\s+(\d+)", status, re.MULTILINE)
    return {name: int(match[1]) / 1024 for name, match in found.items() if match}


def imports() -> None:
    """Print what each step of STEPS adds."""
    before = memory()
    print(f"{'':<34} {'CPU s':>6} {'RSS':>7} {'PSS':>7} {'private':>8}  MiB, in total")
    print(f"{'Python ' + sys.version.split()[0]:<34} {0:>6} {before['Rss']:>7.1f} {before['Pss']:>7.1f} {before['Private_Dirty']:>8.1f}")
    for name, code in STEPS:
        began = time.process_time()
        exec(code, {})
        spent, now = time.process_time() - began, memory()
        figures = f"{spent:>6.2f} {now['Rss']:>7.1f} {now['Pss']:>7.1f} {now['Private_Dirty']:>8.1f}"
        print(f"{name:<34} {figures} {now['Rss'] - before['Rss']:>+7.1f}")
        before = now


if __name__ == "__main__":
    if not sys.pycache_prefix:
        os.execve(sys.executable, [sys.executable, *sys.argv], with_byte_code(os.environ))
    imports()
