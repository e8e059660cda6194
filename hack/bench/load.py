"""What the benchmarks of the running operator share: a client for the API server, a watch, the objects, and how times are summarized."""

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from testenv import Environment

ROOT = Path(__file__).parent.parent.parent
GROUP = "/apis/vllm-operator.dev/v1alpha1"
NAMESPACE = "bench"
AGENT = "bench-load"


class Api:
    """A client for the API server."""

    def __init__(self, environment: Environment, session: aiohttp.ClientSession) -> None:
        self._plane = environment.control_plane
        self._session = session
        self._ssl = ssl.create_default_context(cafile=str(self._plane.authority))

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        async with self._open(method, path, body, kind, **query) as response:
            if response.content_type != "application/json":
                return {}  # 404 for a resource that is not served yet
            answer = await response.json()
            if response.status >= 400 and response.status not in (404, 409):
                raise RuntimeError(f"{method} {path}: {answer.get('message')}")
            return answer

    @contextlib.asynccontextmanager
    async def _open(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        headers = {"Authorization": f"Bearer {self._plane.token}", "Content-Type": kind, "User-Agent": AGENT}
        data = None if body is None else json.dumps(body)
        url = self._plane.server + path
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(method, url, data=data, headers=headers, params=query, ssl=self._ssl, timeout=timeout) as response:
            yield response

    async def watch(self, path: str, version: str = "") -> AsyncIterator[tuple[float, Any]]:
        version = version or (await self.call("GET", path))["metadata"]["resourceVersion"]
        async with self._open("GET", path, watch="1", resourceVersion=version) as response:
            buffer = b""
            async for data in response.content.iter_any():
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    yield time.monotonic(), json.loads(line)


class Seen:
    """When a watch first showed each object as wanted, by name."""

    def __init__(self, api: Api, path: str, wanted: Any, version: str = "") -> None:
        """The watch begins at a resourceVersion, or now."""
        self.at: dict[str, float] = {}
        self._task = asyncio.create_task(self._watch(api, path, wanted, version))

    async def _watch(self, api: Api, path: str, wanted: Any, version: str) -> None:
        async for moment, event in api.watch(path, version):
            name = event["object"]["metadata"]["name"]
            if name not in self.at and wanted(event["object"]):
                self.at[name] = moment

    def stop(self) -> None:
        self._task.cancel()


def memory(pid: int | str = "self") -> dict[str, float]:
    """RSS, private dirty memory and the peak of the RSS of a process in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text() + Path(f"/proc/{pid}/status").read_text()
    names = {"Rss": "Rss", "Private_Dirty": "Private_Dirty", "Peak": "VmHWM"}
    found = {name: re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE) for name, field in names.items()}
    return {name: int(match[1]) / 1024 for name, match in found.items() if match}


def model(name: str, version: str = "0.20.1", **spec: Any) -> Any:
    spec = {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"}, "engine": {"version": version}, **spec}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "metadata": metadata, "spec": spec}


def spec_of(*, volumes: bool) -> dict[str, Any]:
    """Fields of all objects: with PersistentVolumeClaims, or with caches on the node."""
    return {} if volumes else {"cache": {"hostPath": "/var/cache/vllm"}}


async def prepare(api: Api, checkout: Path = ROOT, **annotations: str) -> None:
    """Install the CRD of a checkout, and create the namespace with these annotations."""
    for text in (checkout / "crds").glob("*.yaml"):
        crd = yaml.safe_load(text.read_text())
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        await api.call("PATCH", path, crd, "application/apply-patch+yaml", fieldManager="bench")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "annotations": annotations}}
    await api.call("POST", "/api/v1/namespaces", namespace)
    async with asyncio.timeout(20):
        while not await _is_served(api):  # noqa: ASYNC110 - good enough here
            await asyncio.sleep(0.1)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        while (await api.call("GET", account)).get("kind") != "ServiceAccount":  # noqa: ASYNC110 - good enough here
            await asyncio.sleep(0.1)


async def _is_served(api: Api) -> bool:
    """Whether the API server has begun to serve the CRD."""
    try:
        return "items" in await api.call("GET", f"{GROUP}/vllmdeployments")
    except RuntimeError:  # "storage is (re)initializing"
        return False
