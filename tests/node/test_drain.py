"""Answers in progress while Pods are replaced, removed and evicted: a steady load through the Service loses none."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from support.cluster import Cluster, Manifest
from support.engines import ENGINE, eventually, model, until_ready
from support.operator_process import has

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

WORDS = 60
"""Words of an answer, of which the engine says ten a second."""
EVERY_SECONDS = 0.25
COMPLETE = "complete"


class Load:
    """Asks the Service again and again, and counts how the answers end."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._session = session
        self._url = url
        self._requests: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            request = asyncio.create_task(self._ask())
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
            await asyncio.sleep(EVERY_SECONDS)

    async def finish(self) -> None:
        """Wait for the answers in progress."""
        await asyncio.gather(*self._requests)

    async def answer(self) -> None:
        """Wait until a request that begins now is answered."""
        before = self.outcomes.total() + len(self._requests)
        while self.outcomes.total() <= before:  # noqa: ASYNC110 - the answers have no event
            await asyncio.sleep(0.1)

    async def _ask(self) -> None:
        try:
            async with self._session.post(self._url, json={"max_tokens": WORDS}) as response:
                text = await response.text()
            self.outcomes[COMPLETE if text.endswith("[DONE]") else f"cut off after {text.count('word')} words"] += 1
        except aiohttp.ClientError as error:
            self.outcomes[type(error).__name__] += 1


@asynccontextmanager
async def load_on(cluster: Cluster) -> AsyncIterator[Load]:
    service = await cluster.get("Service", "llama")
    # each request has a connection of its own, which the node gives to one of the endpoints
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        load = Load(session, f"http://{service['spec']['clusterIP']}:8000/v1/completions")
        task = asyncio.create_task(load.run())
        try:
            await load.answer()
            yield load
            await load.answer()
        finally:
            task.cancel()
            await load.finish()


async def pods_of(cluster: Cluster) -> list[Manifest]:
    return await cluster.list_all("Pod", selector=ENGINE)


async def only_present(cluster: Cluster, number: int) -> bool:
    pods = await pods_of(cluster)
    return len(pods) == number and not any(pod["metadata"].get("deletionTimestamp") for pod in pods)


async def serve(cluster: Cluster, **spec: Any) -> None:
    await cluster.create(
        model(cluster, speed="200", spec={"replicas": 2, "rollout": {"drainSeconds": 20, "strategy": "RollingUpdate"}} | spec)
    )
    await until_ready(cluster)


async def test_no_answer_is_lost_in_an_eviction_a_rollout_and_a_scale_down(cluster: Cluster) -> None:
    await serve(cluster)
    async with load_on(cluster) as load:
        evicted = (await pods_of(cluster))[0]["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": evicted, "namespace": cluster.namespace}}
        await cluster.request("POST", f"/api/v1/namespaces/{cluster.namespace}/pods/{evicted}/eviction", body=eviction)
        await cluster.wait_until_gone("Pod", evicted, within=60)
        await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)

        before = {pod["metadata"]["name"] for pod in await pods_of(cluster)}
        await cluster.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": {"metadata": {"annotations": {"example.com/round": "2"}}}}})
        for name in before:
            await cluster.wait_until_gone("Pod", name, within=120)
        await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)

        await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1}})
        await eventually(lambda: only_present(cluster, 1), within=60)
    assert load.outcomes.keys() == {COMPLETE}, load.outcomes


async def test_without_draining_answers_are_cut_off(cluster: Cluster) -> None:
    """Shows that the test above can fail."""
    await serve(cluster, rollout={"drainSeconds": 0, "strategy": "RollingUpdate"})
    async with load_on(cluster) as load:
        await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1}})
        await eventually(lambda: only_present(cluster, 1), within=60)
    assert load.outcomes.keys() > {COMPLETE}, load.outcomes
