"""`make demo`, faster: what the README promises is shown, and the demo itself notices if it is not."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from support.new_machine import new_machine, pack, served
from testenv import Environment
from testenv.releases import DATA

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
SPEED = "25"
LINES = {"deepseek": 74, "deepseek-again": 74, "llama": 60, "tinyllama": 80, "mistral": 100}
"""Lines of `kubectl describe`, at most. While the Pod of a crash starts again, the page also has that start."""
STATUS_LINES = 62
"""Lines of its status, at most. Each of the five conditions that are always set takes six, and a rollback shows the last crash too."""


async def run_demo(*arguments: str, checkout: Path = ROOT, environment: Mapping[str, str] = os.environ) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "demo", "--speed", SPEED, *arguments),
        cwd=checkout,
        env={**environment, "PYTHONPATH": "hack", "COLUMNS": "200", "TERM": "dumb"},
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
        "RolledBack",
        "all five situations are as they should be",
    ):
        assert words in output
    assert re.search(r"^NAME +MODEL +GPU +DESIRED +READY +STATUS +STAGE +URL +AGE$", output, re.MULTILINE), output
    row = r"^deepseek +pvc://models/dsv3-fp8 +NVIDIA-H200 +1 +1 +Serving +http://deepseek\.demo\.svc:8000 "
    assert re.search(row, output, re.MULTILINE)
    described = r"^kubectl -n demo describe vllm (\S+) ─+\n(Name: .*?)\n\n"
    pages = dict(re.findall(described, output, re.MULTILINE | re.DOTALL))
    assert pages.keys() == LINES.keys()
    for name, page in pages.items():
        assert len(page.splitlines()) <= LINES[name], page
        status = page.partition("\nStatus:\n")[2].partition("\nEvents:")[0]
        assert 0 < len(status.splitlines()) <= STATUS_LINES, page


@pytest.mark.extended
@pytest.mark.timeout(240)
async def test_the_demo_needs_no_go_and_nothing_in_a_cache(environment: Environment, tmp_path: Path) -> None:
    """With release binaries from a server of this machine: only their checksums differ from those of the official ones."""
    document = await asyncio.to_thread(pack, tmp_path / "mirror")
    checkout = tmp_path / "checkout"
    for part in ("hack", "crds", "tests/corpus/h200"):
        shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / DATA.relative_to(ROOT)).write_text(yaml.safe_dump(document), "utf-8")
    with served(tmp_path / "mirror") as mirror:
        machine = new_machine(tmp_path / "machine", mirror)
        assert not [name for name in ("go", "kubectl", "kube-apiserver", "etcd") if shutil.which(name, path=machine["PATH"])]
        status, output = await run_demo(checkout=checkout, environment=machine)
    assert status == 0, output
    downloaded = [f"{', '.join(entry['members'])} {entry['version']}" for entry in document["releases"]]
    assert re.findall(r"^downloading (.+)$", output, re.MULTILINE) == downloaded
    assert not re.search(r"^(building|not downloaded|No Go toolchain)", output, re.MULTILINE)
    assert not list((tmp_path / "machine" / "cache").rglob("bin/go"))
