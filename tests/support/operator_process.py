"""The operator as a process of its own, against the test's control plane, serving the test's namespace only."""

import asyncio
import os
import re
import signal
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from support.cluster import Cluster

Manifest = dict[str, Any]

_PORT = re.compile(rb"probes and metrics on port (\d+)")
_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class OperatorProcess:
    """Starts on entry, is asked to stop on exit; `kill` and `start` in between as often as a test wants."""

    def __init__(self, kubeconfig: Path | str, namespace: str = "", **settings: str) -> None:
        """`settings` are the operator's, in lower case: `log_level="DEBUG"`."""
        given = {
            "http_host": "127.0.0.1",
            "http_port": "0",
            "hub_endpoint": "",
            # as of one Pod: it is started again as the container of the same Pod is, and holds the Lease again at once
            "lease": f"{namespace or 'default'}/vllm-operator",
            "identity": f"operator_{uuid.uuid4()}",
            **({"namespaces": namespace} if namespace else {}),
            **settings,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_OPERATOR_", "KUBERNETES_"))}
        self._environment = inherited | {f"VLLM_OPERATOR_{name.upper()}": value for name, value in given.items()}
        self._environment["KUBECONFIG"] = str(kubeconfig)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._port: asyncio.Future[int] | None = None
        self._said = asyncio.Event()
        self.log = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    def set(self, **environment: str | None) -> None:
        """Change the environment of the next start; None removes a variable."""
        for name, value in environment.items():
            self._environment.pop(name, None)
            if value is not None:
                self._environment[name] = value

    async def start(self) -> None:
        """Start, without waiting for anything."""
        command = [sys.executable, "-m", "vllm_operator", "run"]
        self._process = await asyncio.create_subprocess_exec(*command, env=self._environment, stderr=asyncio.subprocess.PIPE)
        self._port = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        assert self._port is not None
        async for line in self.process.stderr:
            self.log += line.decode("utf-8", "replace")
            self._said.set()
            if (found := _PORT.search(line)) and not self._port.done():
                self._port.set_result(int(found[1]))

    async def kill(self) -> None:
        """SIGKILL: no chance to finish anything."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM; return the exit status."""
        return await self._end(signal.SIGTERM)

    async def ended(self, *, within: float = 60.0) -> int:
        """Wait until it ends by itself; return the exit status."""
        async with asyncio.timeout(within):
            status = await self.process.wait()
            assert self._reader is not None
            await self._reader
        return status

    async def _end(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def port(self) -> int:
        """The port of its HTTP server, once it listens."""
        assert self._port is not None
        async with asyncio.timeout(60):
            return await asyncio.shield(self._port)

    async def fetch(self, path: str) -> tuple[int, str]:
        """GET a path of the operator's HTTP server."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{await self.port()}{path}") as response:
            return response.status, await response.text()

    async def until_ready(self, *, within: float = 60.0) -> None:
        """Wait until it serves."""
        await self.until_says("serving", within=within)

    async def until_says(self, words: str, *, times: int = 1, within: float = 60.0) -> None:
        """Wait until its log holds these words."""
        try:
            async with asyncio.timeout(within):
                while self.log.count(words) < times:
                    self._said.clear()
                    await self._said.wait()
        except TimeoutError:
            raise AssertionError(f"the operator did not say {words!r} within {within:g} s; it said:\n{self.log}") from None

    async def writes(self) -> int:
        """How much it has written to the API server since it started."""
        return int(sum(value for name, _, value in await self._series() if name == "vllm_operator_writes_total"))

    async def until_quiet(self, *, seconds: float = 2.0, within: float = 60.0) -> None:
        """Wait until it has written nothing for so long: it has no more to say about what there is."""
        async with asyncio.timeout(within):
            before = await self.writes()
            while True:
                await asyncio.sleep(seconds)
                now = await self.writes()
                if now == before:
                    return
                before = now

    async def reconciles(self) -> Mapping[str, int]:
        """Reconciliations since it started, by result."""
        found = [series for series in await self._series() if series[0] == "vllm_operator_reconcile_total"]
        return {labels.partition('"')[2].rstrip('"'): int(value) for _, labels, value in found}

    async def _series(self) -> list[tuple[str, str, float]]:
        _, text = await self.fetch("/metrics")
        return [(name, labels, float(value)) for name, labels, value in _SERIES.findall(text)]


def llama(namespace: str, name: str = "llama", **spec: Any) -> Manifest:
    """A VLLMDeployment that fits on an H100."""
    content = {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"}, "engine": {"version": "0.20.1"}, "replicas": 1, **spec}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "metadata": metadata, "spec": content}


async def pinned_plan(cluster: Cluster, resource: Manifest) -> Manifest:
    """The whole current plan, from the ControllerRevision that the status names."""
    plan: Manifest = (await cluster.get("ControllerRevision", resource["status"]["revision"]))["data"]
    return plan


def condition(resource: Manifest, type: str) -> Manifest:
    """A condition of an object; empty if it has none of the type."""
    conditions = (resource.get("status") or {}).get("conditions") or []
    return next((found for found in conditions if found["type"] == type), {})


def problem(resource: Manifest) -> str:
    """The message of the condition that Ready refers to, which says all of it, else the one of Ready."""
    said: str = condition(resource, "Ready").get("message", "")
    see = re.search(r" See condition (\w+)\.", said)
    found: str = condition(resource, see[1]).get("message", "") if see else ""
    return found or said


def serves_its_spec(resource: Manifest) -> bool:
    """Whether all replicas serve the present spec, by the status, which is about the spec before until the operator has seen a change."""
    is_current = resource.get("status", {}).get("observedGeneration") == resource["metadata"]["generation"]
    return is_current and bool(has("Ready", "True", "Serving")(resource))


def has(type: str, status: str, reason: str = "") -> Any:
    """A predicate for `wait_for`: the object has this condition."""

    def check(resource: Manifest) -> bool:
        found = condition(resource, type)
        return found.get("status") == status and reason in ("", found.get("reason"))

    return check
