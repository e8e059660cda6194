"""Upgrades that fail, on a real API server and Deployment controller: one comes back by itself, one is held, one is edited meanwhile."""

from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama
from support.stories import LOADING, RUNNING, TOO_LONG, own_events

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

OLD, NEW, NEWER = "0.20.1", "0.24.0", "0.26.0"


async def serve_and_upgrade(cluster: Cluster, sim: Simulator, **rollout: Any) -> str:
    """A replica serves, and the first Pod of its new version crashes, because the context does not fit; return the Pod that serves."""
    await sim.script(path="ok", load="0", pull="0")
    surge = {"strategy": "RollingUpdate", "maxSurge": 1, **rollout}
    await cluster.create(llama(cluster.namespace, engine={"version": OLD}, cache={"storage": "EmptyDir"}, rollout=surge))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    serving = await the_pod(cluster)
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60")
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": NEW}}})
    failing = await the_pod(cluster, but=(serving,))
    await cluster.wait_until_runs(failing)
    log = sim.log(failing)
    log.write(RUNNING + LOADING + TOO_LONG)
    log.exit()
    await sim.script(path="ok", load="0", pull="0")
    await sim.change(failing, crash_after="0")
    return serving


async def versions(cluster: Cluster) -> list[str]:
    """The versions of the Pods that exist and are not being deleted."""
    pods = [pod for pod in await cluster.list_all("Pod") if not pod["metadata"].get("deletionTimestamp")]
    return sorted(image(pod).partition(":v")[2].partition("-")[0] for pod in pods)


def image(pod: Manifest) -> str:
    return str(next(each["image"] for each in pod["spec"]["containers"] if each["name"] == "vllm"))


async def test_an_upgrade_that_fails_comes_back_and_outlasts_the_operator(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    serving = await serve_and_upgrade(served, sim)
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolledBack"), within=60)
    assert await the_pod(served) == serving, "the Pod that served was never replaced"
    message = condition(told, "RolledBack")["message"]
    assert message.startswith("Revision 2 failed, so the operator went back to revision 1.")
    assert (condition(told, "Available")["status"], condition(told, "Stalled")["status"]) == ("True", "True")
    assert "max-model-len" in told["status"]["rollback"]["command"]
    assert told["spec"]["engine"]["version"] == NEW
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    assert (await served.get("VLLMDeployment", "llama"))["status"] == told["status"]
    assert (await own_events(served))["RolledBack"] == 1
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": NEWER}}})
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    assert (condition(told, "RolledBack"), await versions(served)) == ({}, [NEWER])


async def test_an_old_replica_stays_until_its_successor_has_proved_itself(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", load="0", pull="0")
    surge = {"strategy": "RollingUpdate", "maxSurge": 1, "proveSeconds": 8}
    await served.create(llama(served.namespace, engine={"version": OLD}, cache={"storage": "EmptyDir"}, rollout=surge))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": NEW}}})
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"].get("readyReplicas") == 2, within=60)
    assert (await versions(served), has("Ready", "False", "RollingOut")(told)) == ([OLD, NEW], True)
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    assert await versions(served) == [NEW]


async def test_an_upgrade_that_fails_is_only_reported_with_hold(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await serve_and_upgrade(served, sim, onFailure="Hold")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "MaxModelLenExceedsKvCache"), within=60)
    said = (
        "Revision 2 failed. The operator does not go back, because spec.rollout.onFailure is Hold. To go back, run `kubectl vllm rollback"
    )
    assert said in condition(told, "Ready")["message"]
    assert (await versions(served), condition(told, "RolledBack")) == ([OLD, NEW], {})
    assert (await own_events(served))["RevisionFailed"] == 1
    await served.patch("VLLMDeployment", "llama", {"spec": {"rollout": {"onFailure": "RollBack"}}})
    await served.wait_for("VLLMDeployment", "llama", has("RolledBack", "True"), within=60)


async def test_an_edit_while_an_upgrade_fails_counts_and_costs_no_replica(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    serving = await serve_and_upgrade(served, sim)
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": NEWER}}})
    told = await served.wait_for(
        "VLLMDeployment", "llama", lambda it: has("Ready", "True")(it) and it["status"]["observedGeneration"] == 3, within=60
    )
    assert f"vLLM {NEWER}" in told["status"]["plan"]
    assert (condition(told, "RolledBack"), await versions(served)) == ({}, [NEWER])
    assert serving not in [pod["metadata"]["name"] for pod in await served.list_all("Pod")]
