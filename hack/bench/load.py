"""The load of the comparison: a client for the API server, the namespace, and the objects."""

import asyncio
import json
import re
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from testenv import Environment

ROOT = Path(__file__).parent.parent.parent
GROUP = "/apis/vllm-operator.dev/v1alpha1"
NAMESPACE = "bench"
AGENT = "bench-load"
VERSIONS = ("0.20.1", "0.26.0")
"""The version of the engine that objects are created with, and the one that they are updated to."""


class Api:
    def __init__(self, environment: Environment, session: aiohttp.ClientSession) -> None:
        self._plane = environment.control_plane
        self._session = session
        self._ssl = ssl.create_default_context(cafile=str(self._plane.authority))

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        headers = {"Authorization": f"Bearer {self._plane.token}", "Content-Type": kind, "User-Agent": AGENT}
        data = None if body is None else json.dumps(body)
        url, timeout = self._plane.server + path, aiohttp.ClientTimeout(total=None)
        async with self._session.request(method, url, data=data, headers=headers, params=query, ssl=self._ssl, timeout=timeout) as response:
            if response.content_type != "application/json":
                return {}  # 404 for a resource that is not served yet
            answer = await response.json()
            if response.status >= 400 and response.status not in (404, 409):
                raise RuntimeError(f"{method} {path}: {answer.get('message')}")
            return answer


def peak_memory(pid: int) -> float:
    """The peak of the RSS of a process in MiB."""
    found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def model(name: str) -> Any:
    """An object with caches on the node."""
    spec = {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
        "engine": {"version": VERSIONS[0]},
        "cache": {"hostPath": "/var/cache/vllm"},
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "metadata": metadata, "spec": spec}


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
    try:
        return "items" in await api.call("GET", f"{GROUP}/vllmdeployments")
    except RuntimeError:  # "storage is (re)initializing"
        return False
