"""`make demo`, faster: what the README promises is shown, and the demo itself notices if it is not."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from testenv import Environment

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
SPEED = "25"
LINES = {"deepseek": 60, "deepseek-again": 60, "llama": 60, "tinyllama": 80}
"""Lines of `kubectl describe`, at most. While the Pod of a crash starts again, the page also has that start."""


async def run_demo(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "demo", "--speed", SPEED, *arguments),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "hack", "COLUMNS": "200", "TERM": "dumb"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.timeout(240)
async def test_the_demo_ends_as_described(environment: Environment) -> None:
    """Depends on the environment only so that what is missing has been built."""
    status, output = await run_demo()
    assert status == 0, output
    for words in (
        "$ kubectl apply -f hack/demo/manifests/a-first-start.yaml",
        "KernelWarmup",
        "kubectl -n demo get vllm",
        "kubectl -n demo describe vllm deepseek-again",
        "MigUuidNotInteger",
        "NoMatchingGPU",
        "all four situations are as they should be",
    ):
        assert words in output
    assert re.search(r"^NAME +MODEL +GPU +READY +STATUS +STAGE +URL +AGE$", output, re.MULTILINE), output
    assert re.search(r"^deepseek +pvc://models/dsv3-fp8 +sm_90 +1/1 +Serving +http://deepseek\.demo\.svc:8000 ", output, re.MULTILINE)
    described = r"^kubectl -n demo describe vllm (\S+) ─+\n(Name: .*?)\n\n"
    pages = dict(re.findall(described, output, re.MULTILINE | re.DOTALL))
    assert pages.keys() == LINES.keys()
    for name, page in pages.items():
        assert len(page.splitlines()) <= LINES[name], page
