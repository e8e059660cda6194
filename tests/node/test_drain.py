"""Answers in progress while Pods are replaced, removed and evicted: a steady load through the Service loses none."""

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from support.cluster import Cluster, Manifest
from support.engines import ENGINE, ENGINE_IMAGE, eventually, model, until_ready
from support.kubectl import Kubectl
from support.operator_process import condition, has

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

COMPLETE = "complete"
IN_PROGRESS = 50
"""More answers than are ever in progress: an answer takes 20 s, and a request is sent every half of a second."""
DRAIN_SECONDS = 40
LEFT = r"Pod llama-\S+ is draining, \d+ requests left"
LOAD = """
import http.client, json, os, sys, threading, time

def say(outcome):
    os.write(1, f"{outcome}\\n".encode())  # one write, so that the lines of threads do not mix

def ask():
    try:
        connection = http.client.HTTPConnection(sys.argv[1], 8000, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": 200, "stream": True}))
        text = connection.getresponse().read().rstrip()
        words = text.count(b"word")
        say("complete" if text.endswith(b"[DONE]") else f"cut off after {words} words" if words else "empty")
    except (OSError, http.client.HTTPException) as error:
        say(type(error).__name__)

while True:
    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.5)
"""
"""Asks a Service again and again, with a connection for each request, and prints how each answer ended."""


class Load:
    """A load on the Service of the engines, by a Pod in the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def begin(self) -> None:
        """Begin, and wait until the first answers are there."""
        address = (await self._cluster.get("Service", "llama"))["spec"]["clusterIP"]
        container = {"name": "load", "image": ENGINE_IMAGE, "imagePullPolicy": "Never", "command": ["python3", "-c", LOAD, address]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        await self._cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "load"}, "spec": spec})
        await eventually(self._outcomes, within=60)

    async def finish(self) -> Counter[str]:
        """Wait until all requests of this moment are answered; return how the answers ended."""
        enough = (await self._outcomes()).total() + IN_PROGRESS

        async def all_answered() -> Counter[str] | None:
            outcomes = await self._outcomes()
            return outcomes if outcomes.total() >= enough else None

        found: Counter[str] = await eventually(all_answered, within=90)
        return found

    async def _outcomes(self) -> Counter[str]:
        return Counter((await self._cluster.read_log("load")).splitlines())


async def pods_of(cluster: Cluster) -> list[Manifest]:
    return await cluster.list_all("Pod", selector=ENGINE)


async def serve(cluster: Cluster, drain_seconds: int) -> None:
    rollout = {"drainSeconds": drain_seconds, "strategy": "RollingUpdate"}
    await cluster.create(model(cluster, speed="200", spec={"replicas": 2, "rollout": rollout}))
    await until_ready(cluster)


async def scale_down(cluster: Cluster) -> None:
    """Scale to one replica, and wait until the Pod of the other one is gone."""

    async def is_done() -> bool:
        pods: list[Any] = await pods_of(cluster)
        return len(pods) == 1

    await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1}})
    await eventually(is_done, within=90)


async def test_no_answer_is_lost_in_a_rollout_and_a_scale_down(cluster: Cluster) -> None:
    await serve(cluster, drain_seconds=DRAIN_SECONDS)
    load = Load(cluster)
    await load.begin()
    before = {pod["metadata"]["name"] for pod in await pods_of(cluster)}
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": {"metadata": {"annotations": {"example.com/round": "2"}}}}})
    for name in before:
        await cluster.wait_until_gone("Pod", name, within=180)
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)

    await scale_down(cluster)
    outcomes = await load.finish()
    assert outcomes.keys() == {COMPLETE}, outcomes


async def test_no_answer_is_lost_while_a_node_is_drained(cluster: Cluster, kubectl: Kubectl) -> None:
    """`kubectl drain` asks the eviction API. There is one node, so the first replica comes back only when the node is free again, and until
    then the other one stays."""
    await serve(cluster, drain_seconds=DRAIN_SECONDS)
    load = Load(cluster)
    await load.begin()
    before = {pod["metadata"]["name"] for pod in await pods_of(cluster)}
    [node] = await cluster.list_all("Node")
    name = node["metadata"]["name"]
    await cluster.wait_for("PodDisruptionBudget", "llama", lambda it: it.get("status", {}).get("disruptionsAllowed") == 1)
    options = (f"--pod-selector={ENGINE}", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=400s")
    drain = asyncio.create_task(kubectl.run("drain", name, *options))
    try:
        # the log of the Pod says how many answers are in progress
        await cluster.wait_for("VLLMDeployment", "llama", lambda it: re.search(LEFT, condition(it, "Ready")["message"]))
        gone = await eventually(lambda: first_gone(cluster, before), within=120)
        [other] = before - {gone}
        staying = await cluster.get("Pod", other)
        assert "deletionTimestamp" not in staying["metadata"], "it is the last replica that serves"
    finally:
        await kubectl.run("uncordon", name)
    await drain
    assert not before & {pod["metadata"]["name"] for pod in await pods_of(cluster)}
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=120)
    outcomes = await load.finish()
    assert outcomes.keys() == {COMPLETE}, outcomes


async def first_gone(cluster: Cluster, before: set[str]) -> str | None:
    """The name of the first of these Pods that is gone; None while all are there."""
    return next(iter(before - {pod["metadata"]["name"] for pod in await pods_of(cluster)}), None)


async def test_without_draining_answers_are_cut_off(cluster: Cluster) -> None:
    """Shows that the test above can fail."""
    await serve(cluster, drain_seconds=0)
    load = Load(cluster)
    await load.begin()
    await scale_down(cluster)
    outcomes = await load.finish()
    assert outcomes[COMPLETE]
    assert any(outcome.startswith("cut off") for outcome in outcomes), outcomes
