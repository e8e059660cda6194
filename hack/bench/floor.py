"""The floor of the comparison: a client that applies a Deployment and a Service for each VLLMDeployment, and does nothing else.

It plans nothing, reports nothing, and corrects nothing. No operator that creates these two objects can be much faster on the same machine.
"""

import asyncio
import json
import os
import ssl
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
import yaml

AGENT = "bench-floor"
WORKERS = 24
"""As many as the operator has."""
OBJECTS = "/apis/vllm-operator.dev/v1alpha1/vllmdeployments"


class Floor:
    """The file of templates has a JSON list of manifests, with NAME, UID and VERSION in them."""

    def __init__(self, kubeconfig: Path, templates: Path, session: aiohttp.ClientSession) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server, self._session = cluster["server"], session
        self._ssl = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}", "User-Agent": AGENT}
        self._templates = [json.dumps(template) for template in json.loads(templates.read_text())]
        self._waiting: OrderedDict[str, Any] = OrderedDict()
        self._done: dict[str, Any] = {}
        self._news = asyncio.Condition()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            for _ in range(WORKERS):
                tasks.create_task(self._work())

    async def _watch(self) -> None:
        """List and watch; list again when the API server was away or has forgotten the version."""
        while True:
            try:
                version = await self._list()
                print("serving", file=sys.stderr, flush=True)
                while version:
                    version = await self._follow(version)
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)

    async def _list(self) -> str:
        """Take all objects; return the version of the list, empty if the API server refuses."""
        async with self._open("GET", OBJECTS) as response:
            listed = await response.json()
        for item in listed.get("items", ()):
            await self._add(item)
        return str(listed["metadata"].get("resourceVersion", ""))

    async def _follow(self, version: str) -> str:
        """Take the events of one watch; return the version where the next one begins, empty if it must be a list."""
        async with self._open("GET", OBJECTS, watch="1", resourceVersion=version) as response:
            if response.status != 200:
                return ""
            rest = b""
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return ""
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED"):
                        await self._add(event["object"])
        return version

    async def _add(self, item: Any) -> None:
        metadata = item["metadata"]
        if self._done.get(metadata["uid"]) != metadata["generation"] and not metadata.get("deletionTimestamp"):
            self._done[metadata["uid"]] = metadata["generation"]
            async with self._news:
                self._waiting[metadata["name"]] = item
                self._news.notify()

    async def _work(self) -> None:
        while True:
            async with self._news:
                await self._news.wait_for(lambda: self._waiting)
                name, item = self._waiting.popitem(last=False)
            await asyncio.gather(*(self._apply(template, name, item) for template in self._templates))

    async def _apply(self, template: str, name: str, item: Any) -> None:
        version = item["spec"]["engine"]["version"]
        text = template.replace("NAME", name).replace("VERSION", version).replace("UID", item["metadata"]["uid"])
        kind, namespace = json.loads(text)["kind"], item["metadata"]["namespace"]
        base = "/apis/apps/v1" if kind == "Deployment" else "/api/v1"
        path = f"{base}/namespaces/{namespace}/{kind.lower()}s/{name}"
        while True:
            try:
                kind = "application/apply-patch+yaml"
                async with self._open("PATCH", path, text, kind, fieldManager=AGENT, force="true") as response:
                    await response.read()
                    if response.status < 500:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)

    def _open(self, method: str, path: str, body: str | None = None, kind: str = "application/json", **query: str) -> Any:
        headers = {**self._headers, "Content-Type": kind}
        timeout = aiohttp.ClientTimeout(total=None)
        return self._session.request(method, self._server + path, data=body, headers=headers, params=query, ssl=self._ssl, timeout=timeout)


async def main() -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
        await Floor(Path(os.environ["KUBECONFIG"]), Path(sys.argv[1]), session).run()


if __name__ == "__main__":
    uvloop.run(main())
