"""Engines that hang, on a real API server: what the kubelet writes about their readiness probe, and what the operator makes of it."""

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.observations import HANG
from support.operator_process import OperatorProcess, condition, has, llama
from support.probes import now, record_failed_probe, set_ready
from support.stories import own_events

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


async def serve(cluster: Cluster, sim: Simulator) -> Manifest:
    await sim.script(path="ok", load="0", pull="0")
    await cluster.create(llama(cluster.namespace))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    return await cluster.get("Pod", await the_pod(cluster))


async def test_a_hang_is_told_once_and_is_over_when_the_engine_goes_on(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    pod = await serve(served, sim)
    await set_ready(served, pod, False)
    await record_failed_probe(served, pod, HANG)  # a little later than the condition, as may happen
    told = await served.wait_for("VLLMDeployment", "llama", has("Hung", "True", "EngineHung"), within=60)
    assert "3 requests are running, no token since 14:02:10 UTC; /health answers 200" in condition(told, "Hung")["message"]
    assert condition(told, "Ready")["reason"] == "EngineHung"

    await operator.kill()
    await operator.start()
    await set_ready(served, await served.get("Pod", pod["metadata"]["name"]), True)
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    assert condition(told, "Hung") == {}
    assert (await own_events(served))["EngineHung"] == 1


async def test_a_restart_for_a_hang_is_a_crash_even_if_the_operator_was_away(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    pod = await serve(served, sim)
    await operator.kill()
    ended = {"exitCode": 0, "reason": "Completed", "message": HANG, "startedAt": pod["status"]["startTime"], "finishedAt": now()}
    await set_ready(served, pod, True, restartCount=1, lastState={"terminated": ended}, state={"running": {"startedAt": now()}})
    await operator.start()
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: "lastCrash" in it.get("status", {}), within=60)
    crash = told["status"]["lastCrash"]
    assert (crash["signature"], crash["exitCode"]) == ("EngineHung", 0)
    assert "3 requests are running" in crash["cause"]
    assert condition(told, "Ready")["status"] == "True"


async def test_the_pods_have_the_probe_and_its_program(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    pod = await serve(served, sim)
    engine = next(each for each in pod["spec"]["containers"] if each["name"] == "vllm")
    assert engine["readinessProbe"]["exec"]["command"][-1] == "Restart"
    assert "/tools" in [mount["mountPath"] for mount in engine["volumeMounts"]]
    assert pod["spec"]["initContainers"][0]["name"] == "copy-tools"
