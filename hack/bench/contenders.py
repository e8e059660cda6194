"""What is compared: the operator of this checkout, the operator of another commit, and the floor; each as a process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import ROOT, VERSIONS, model

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Contender:
    """A program that serves VLLMDeployments. `agent` is how the API server names it."""

    name: str
    command: Sequence[str]
    checkout: Path
    agent: str
    environment: dict[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    port: int = 0
    _starts: int = 0
    _reader: asyncio.Task[None] | None = None

    @property
    def is_floor(self) -> bool:
        return self.agent == "bench-floor"

    async def start(self, kubeconfig: Path) -> None:
        """Start, and wait until it serves."""
        self._starts += 1
        if self._starts == 1 and not self.is_floor:
            self.environment = await asyncio.to_thread(_with_byte_code, os.environ | self.environment, self.command[0])
        environment = os.environ | self.environment | {"KUBECONFIG": str(kubeconfig)}
        self.process = await asyncio.create_subprocess_exec(*self.command, env=environment, stderr=asyncio.subprocess.PIPE)
        ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read(self.process, ready))
        async with asyncio.timeout(120):
            await ready.wait()
        if self.process.returncode is not None:
            raise RuntimeError(f"{self.name} ended at its start")

    async def _read(self, process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            if found := re.search(rb"metrics on port (\d+)", line):
                self.port = int(found[1])
            if b"serving" in line:
                ready.set()
            if b"Request attempt" not in line and (self.is_floor or b"ERROR" in line or b"Traceback" in line):
                print(f"{self.name}: {line.decode(errors='replace').rstrip()}", file=sys.stderr)
        await process.wait()
        ready.set()

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()

    async def count(self, metric: str) -> float:
        """The sum of a counter since it started; 0 for the floor."""
        if not self.port:
            return 0.0
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/metrics") as response:
            found = re.findall(rf"^vllm_operator_{metric}_total\S* (\S+)$", await response.text(), re.MULTILINE)
        return sum(map(float, found))

    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


def _with_byte_code(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """Complete the environment of an operator so that Python finds its byte code, as in an image. It is compiled now."""
    folder = Path(tempfile.gettempdir()) / f"vllm-operator-byte-code-{os.getuid()}"
    complete = {**environment, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}
    program = "import compileall; compileall.compile_path(quiet=2, maxlevels=9)"
    subprocess.run([python, "-c", program], env=complete, check=True)
    return complete


OPERATOR_ENVIRONMENT = {
    "VLLM_OPERATOR_HTTP_PORT": "0",
    "VLLM_OPERATOR_HTTP_HOST": "127.0.0.1",
    "VLLM_OPERATOR_HUB_ENDPOINT": "",
    "VLLM_OPERATOR_IDENTITY": "bench",
}


def this_checkout() -> Contender:
    """The operator as it is here, with changes that are not committed."""
    command = [sys.executable, "-m", "vllm_operator", "run"]
    return Contender("here", command, ROOT, "vllm-operator/", environment=OPERATOR_ENVIRONMENT)


@contextmanager
def other_commit(commit: str, folder: Path) -> Iterator[Contender]:
    """The operator of another commit, in a git worktree below the folder.

    It runs in a virtual environment of its own if that commit has locked other dependencies.
    """
    git = ["git", "-C", str(ROOT)]
    sha = subprocess.run([*git, "rev-parse", "--short", commit], check=True, capture_output=True, text=True).stdout.strip()
    checkout = folder / sha
    subprocess.run([*git, "worktree", "add", "--quiet", "--detach", "--force", str(checkout), sha], check=True)
    try:
        locked = Path("requirements/runtime.txt")
        python = sys.executable
        if (checkout / locked).read_bytes() != (ROOT / locked).read_bytes():
            subprocess.run([sys.executable, "-m", "venv", str(checkout / ".venv")], check=True)
            python = str(checkout / ".venv/bin/python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(checkout / locked)], check=True)
        environment = {**OPERATOR_ENVIRONMENT, "PYTHONPATH": str(checkout / "operator")}
        yield Contender(sha, [python, "-m", "vllm_operator", "run"], checkout, "vllm-operator/", environment=environment)
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(checkout)], check=True)


def floor(folder: Path, nodes: Sequence[Any]) -> Contender:
    """The floor, with the manifests that the operator of this checkout renders."""
    templates = folder / "templates.json"
    templates.write_text(json.dumps(floor_templates(folder, nodes)))
    command = [sys.executable, str(Path(__file__).parent / "floor.py"), str(templates)]
    return Contender("floor", command, ROOT, "bench-floor")


def floor_templates(folder: Path, nodes: Sequence[Any]) -> list[Any]:
    resource, items = folder / "object.yaml", folder / "nodes.yaml"
    resource.write_text(json.dumps(model("name-to-replace")))
    items.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(nodes)}))
    command = [sys.executable, "-m", "vllm_operator", "plan", "-f", str(resource), "--nodes", str(items), "-o", "json"]
    rendered = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    wanted = [manifest for manifest in rendered["manifests"] if manifest["kind"] in ("Deployment", "Service")]
    for manifest in wanted:
        # as the operator's: they go with the object
        owner = {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "name": "NAME", "uid": "UID", "controller": True}
        manifest["metadata"]["ownerReferences"] = [owner]
    text = json.dumps(wanted).replace("name-to-replace", "NAME").replace(VERSIONS[0], "VERSION")
    return list(json.loads(text))
