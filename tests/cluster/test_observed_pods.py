"""Observe mode on a real API server: Pods of other tools get the diagnosis of ours, as events, and nothing else is written.

The operator serves one namespace, and has in the other one only the chart's ClusterRole for observe mode.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.account import ACCOUNT, make_account, remove_account
from support.audit import AuditTrail, Request
from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.engines import eventually
from support.operator_process import OperatorProcess, has, llama
from support.peers import COMPLETE, PEERS, STILL
from support.sessions import own_namespace
from support.stories import LOADING, RUNNING, TOO_LONG
from testenv import Environment

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(400)]

TOOLS = ("kserve", "llm-d", "production-stack", "dynamo", "kaito", "deployment")
BUILT = b"INFO 11-21 12:00:30 [backends.py:376] Cache the graph of compile range (1, 8192) for later use\n"
ROUNDS = 3


@pytest.fixture
async def peers(environment: Environment, served: Cluster) -> AsyncIterator[Cluster]:
    """A namespace of other tools."""
    async with own_namespace(environment) as own:
        yield own
    environment.clear_logs_of(own.namespace)


@pytest.fixture
async def observer(served: Cluster, peers: Cluster, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    """The operator, with the rights that the chart gives to it."""
    observe = {"enabled": True, "namespaces": [peers.namespace]}
    kubeconfig = await make_account(served, tmp_path / "operator.kubeconfig", observe=observe)
    async with OperatorProcess(kubeconfig, served.namespace, observe="true", observe_namespaces=peers.namespace) as process:
        await process.until_ready()
        yield process
    await remove_account(served)
    await served.delete("ClusterRole", f"{served.namespace}-vllm-operator-observe")
    assert "Traceback" not in process.log, process.log
    assert "cannot be observed" not in process.log, process.log


async def make_pods(cluster: Cluster, *tools: str) -> None:
    for tool in tools:
        engine, template = PEERS[tool]
        # the simulator plays the first container
        containers = sorted(template["spec"]["containers"], key=lambda it: it["name"] != engine)
        spec = {**template["spec"], "containers": containers, "tolerations": [{"operator": "Exists"}]}
        await cluster.create({**template, "metadata": {**template["metadata"], "name": tool}, "spec": spec})
        await cluster.wait_until_runs(tool)


async def versions(cluster: Cluster) -> dict[str, str]:
    """The version of each event that the operator has written, by name."""
    found = [event for event in await cluster.events() if event["source"].get("component") == ACCOUNT]
    return {event["metadata"]["name"]: event["metadata"]["resourceVersion"] for event in found}


async def wait_for_rounds(audit: AuditTrail, cluster: Cluster) -> list[Request]:
    """Wait until the operator has looked at the Pods some times more; return all that it has asked in their namespace since then."""
    audit.mark()

    async def looked() -> list[Request]:
        found = audit.requests(user=f":{ACCOUNT}", namespace=cluster.namespace)
        return found if sum(it.verb == "list" and it.resource == "pods" for it in found) > ROUNDS else []

    answer: list[Request] = await eventually(looked, within=120)
    return answer


def changes(requests: list[Request]) -> set[tuple[str, str]]:
    """What the requests have changed: verbs and resources."""
    return {(it.verb, it.resource) for it in requests if it.verb not in ("get", "list", "watch") and it.status < 400}


async def told(cluster: Cluster, reason: str, *pods: str) -> dict[str, Manifest]:
    events = await asyncio.gather(*(cluster.wait_for_event(pod, reason, within=90) for pod in pods))
    return dict(zip(pods, events, strict=True))


async def test_pods_of_other_tools_get_the_diagnosis_of_ours_once_and_nothing_else_is_written(
    served: Cluster, peers: Cluster, observer: OperatorProcess, audit: AuditTrail
) -> None:
    scripts: dict[str, Any] = {"path": "crash", "pull": "0", "crash_after": "hold", "backoff": "600", "crash_times": "1"}
    places = [(served, Simulator(served)), (peers, Simulator(peers))]
    for _, sim in places:
        await sim.script(**scripts, load="hold")
    audit.mark()
    await served.create(llama(served.namespace))
    own = await the_pod(served)
    await make_pods(peers, *TOOLS)
    logs = [places[0][1].log(own), *(places[1][1].log(tool, container=PEERS[tool][0]) for tool in TOOLS)]
    for log in logs:
        log.write(RUNNING + LOADING)
    starting = await told(peers, "Starting", *TOOLS)
    assert {"loading weights" in event["message"] for event in starting.values()} == {True}
    for log in logs:
        log.write(TOO_LONG)
        log.exit()
    await places[0][1].change(own, crash_after="0")
    for tool in TOOLS:
        await places[1][1].change(tool, crash_after="0")

    crash = (await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "MaxModelLenExceedsKvCache")))["status"]["lastCrash"]
    cause = "at most 5568"
    for tool, event in (await told(peers, "MaxModelLenExceedsKvCache", *TOOLS)).items():
        assert (event["type"], event["count"], event["involvedObject"]["kind"]) == ("Warning", 1, "Pod"), tool
        assert cause in event["message"]
        assert "What to do: " in event["message"]
    assert crash["signature"] == "MaxModelLenExceedsKvCache"
    assert [event["reason"] for event in await served.events(name=own) if event["source"].get("component") == ACCOUNT] == []

    everything = audit.requests(user=f":{ACCOUNT}", namespace=peers.namespace)
    assert changes(everything) <= {("create", "events"), ("patch", "events")}
    assert [it for it in everything if it.status in (401, 403)] == []
    before = await versions(peers)
    assert changes(await wait_for_rounds(audit, peers)) == set(), "nothing has changed"
    await observer.kill()
    await observer.start()
    await observer.until_says("serving", times=2)
    assert changes(await wait_for_rounds(audit, peers)) == set(), "what was told is not told again"
    assert await versions(peers) == before
    assert 'reason="MaxModelLenExceedsKvCache"' in (await observer.fetch("/metrics"))[1]


async def test_cold_caches_and_an_engine_that_stands_still_are_told(peers: Cluster, observer: OperatorProcess) -> None:
    sim = Simulator(peers)
    await sim.script(path="ok", pull="0", load="hold")
    await make_pods(peers, "llm-d", "dynamo")
    for tool in ("llm-d", "dynamo"):
        sim.log(tool, container=PEERS[tool][0]).write(RUNNING + LOADING + BUILT + COMPLETE + (STILL if tool == "dynamo" else b""))
        await sim.change(tool, load="0")
    cold = await told(peers, "CachesCold", "llm-d", "dynamo")
    assert {"It found no cache, and compiled 1 graph" in event["message"] for event in cold.values()} == {True}
    hung = await told(peers, "EngineHung", "dynamo")
    assert "stands still" in hung["dynamo"]["message"]
    assert {event["reason"] for event in await peers.events(name="llm-d") if event["source"].get("component") == ACCOUNT} <= {
        "CachesCold",
        "Starting",
    }
    metrics = (await observer.fetch("/metrics"))[1]
    assert 'vllm_operator_observed_pods{state="followed"} 2.0' in metrics
    assert 'vllm_operator_observed_pods{state="left_out"} 0.0' in metrics
