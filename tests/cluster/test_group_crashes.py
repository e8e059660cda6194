"""Crashes and hangs of replicas on several nodes, with the real controller of LeaderWorkerSet: told, counted, over, and the way back."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator
from support.leader_worker_sets import LeaderWorkerSets
from support.observations import HANG
from support.operator_process import OperatorProcess, condition, has, llama, serves_its_spec
from support.probes import now, record, record_failed_probe, set_ready
from support.stories import in_order, own_events
from testenv import Environment
from vllm_operator.pods.view import is_ready

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(300)]

LEADER, FOLLOWER = "llama-0", "llama-0-1"
SURGE = ("llama-1", "llama-1-1")
NODES = Path(__file__).parents[1] / "corpus" / "nodes"
TWO_NODES: dict[str, Any] = {"parallelism": {"tensor": 8, "nodes": 2}, "cache": {"storage": "EmptyDir"}}
NO_MODEL = has("Crashed", "True", "HfRepoNotFound")
HELD = "vllm-operator.dev/test"


@pytest.fixture
def sets(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaderWorkerSets]:
    made = LeaderWorkerSets(environment.control_plane, tmp_path_factory.mktemp("lws"))
    made.install()
    made.start()
    yield made
    made.remove()


async def fail(cluster: Cluster, sim: Simulator, *, recreated: tuple[str, ...] = (), group: tuple[str, str] = (LEADER, FOLLOWER)) -> None:
    """The follower finds no model and ends, and the leader waits for it. As with a kubelet, the Pods are not gone at once."""
    leader, follower = group
    for name in group:
        await cluster.wait_for(
            "Pod", name, lambda it: it["metadata"]["uid"] not in recreated and it["status"].get("phase") == "Running", within=120
        )
        await cluster.patch("Pod", name, {"metadata": {"finalizers": [HELD]}})
        shutil.rmtree(cluster.simulated.log_root / cluster.namespace / name, ignore_errors=True)
    sim.log(leader).write((NODES / "h100-follower-model-missing-rank0.log").read_bytes())
    log = sim.log(follower)
    log.write((NODES / "h100-follower-model-missing-rank1.log").read_bytes())
    log.exit()
    await sim.change(follower, crash_after="0")
    for name in group:
        await cluster.wait_for("Pod", name, lambda it: "deletionTimestamp" in it["metadata"])


async def until_taken_back(cluster: Cluster) -> None:
    """All controllers have seen the earlier revision.

    It is applied after it is told. Pods that are released before are created again from the template that was given up, which does not
    fail here by itself: then they become Ready, and LeaderWorkerSet goes on with the rollout.
    """

    def is_taken_back(it: Manifest) -> bool:
        return "CHANGED" not in str(it["spec"]) and bool(it["status"].get("observedGeneration") == it["metadata"]["generation"])

    for kind in ("LeaderWorkerSet", "StatefulSet"):
        await cluster.wait_for(kind, "llama", is_taken_back)


async def release(cluster: Cluster, group: tuple[str, str] = (LEADER, FOLLOWER)) -> tuple[str, ...]:
    """Let the Pods go; return their UIDs."""
    uids = [(await cluster.get("Pod", name))["metadata"]["uid"] for name in group]
    for name in reversed(group):
        await cluster.patch("Pod", name, {"metadata": {"finalizers": None}})
    return tuple(uids)


async def test_the_crash_of_a_follower_is_told_once_and_counted_until_the_group_serves(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, sim: Simulator, gpu_nodes: Callable[..., list[str]]
) -> None:
    gpu_nodes("h100-sxm", name="second")
    await sim.script(path="crash", pull="0", crash_after="hold", load="hold")
    await served.create(llama(served.namespace, **TWO_NODES))
    await fail(served, sim)
    told = await served.wait_for("VLLMDeployment", "llama", NO_MODEL, within=60)
    text = condition(told, "Crashed")["message"]
    assert f"Pod {FOLLOWER} crashed with exit code 1 (HfRepoNotFound). Rank 1 (of 0 to 1) on node " in text
    assert told["status"]["lastCrash"]["pod"] == FOLLOWER

    # the group is created again, and the crash stays in force; an operator that is killed tells the same
    old = await release(served)
    await operator.kill()
    await served.wait_for("Pod", FOLLOWER, lambda it: it["metadata"]["uid"] not in old)
    await operator.start()
    await fail(served, sim, recreated=old)
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"]["lastCrash"].get("restarts") == 1, within=60)
    assert f"Pod {FOLLOWER} crashed 2 times, last with exit code 1 (HfRepoNotFound)" in condition(told, "Crashed")["message"]
    old = (*old, *await release(served))

    # it serves in the end
    await sim.script(path="ok", pull="0", load="0", crash_after=None)
    for name in (LEADER, FOLLOWER):
        await served.wait_for("Pod", name, lambda it: it["metadata"]["uid"] not in old)
        await sim.change(name, path="ok", load="0")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True", "Serving"), within=60)
    assert not [it for it in told["status"]["conditions"] if it["type"] == "Crashed"]
    assert told["status"]["lastCrash"]["signature"] == "HfRepoNotFound"


async def serve(cluster: Cluster, sim: Simulator, **rollout: Any) -> tuple[str, ...]:
    """A group serves; return the UIDs of its Pods."""
    await sim.script(path="ok", pull="0", load="0")
    await cluster.create(llama(cluster.namespace, **TWO_NODES, **rollout))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True", "Serving"), within=120)
    return tuple([(await cluster.get("Pod", name))["metadata"]["uid"] for name in (LEADER, FOLLOWER)])


async def miss_the_deadline(cluster: Cluster) -> None:
    """The kubelet ends the leader, which does not become Ready in time, and starts it again; LeaderWorkerSet deletes its Pods."""
    for name in (FOLLOWER, LEADER):
        leader = await cluster.wait_for("Pod", name, lambda it: changed(it) and it["status"].get("phase") == "Running", within=120)
    await record(cluster, leader, "Killing", "Container vllm failed startup probe, will be restarted")
    await end_leader(cluster, "")


async def until_hung(cluster: Cluster) -> str:
    """The leader hangs; return the message about it."""
    leader = await cluster.get("Pod", LEADER)
    await set_ready(cluster, leader, False)
    await record_failed_probe(cluster, leader, HANG)
    told = await cluster.wait_for("VLLMDeployment", "llama", has("Hung", "True", "EngineHung"), within=60)
    message = str(condition(told, "Hung")["message"])
    assert in_order(message, f"The engine of Pod {LEADER} hangs", "3 requests are running, no token since 14:02:10 UTC")
    return message


async def hang(cluster: Cluster) -> None:
    """The leader hangs, and after a minute its probe ends it. LeaderWorkerSet deletes its Pods, which are not gone at once."""
    await until_hung(cluster)
    await end_leader(cluster, HANG)


async def end_leader(cluster: Cluster, message: str) -> None:
    """The leader's container is killed, with this termination message, and starts again."""
    for name in (LEADER, FOLLOWER):
        await cluster.patch("Pod", name, {"metadata": {"finalizers": [HELD]}})
    leader = await cluster.get("Pod", LEADER)
    ended = {"exitCode": 137, "reason": "Error", "message": message, "startedAt": leader["status"]["startTime"], "finishedAt": now()}
    await set_ready(
        cluster, leader, False, started=False, restartCount=1, lastState={"terminated": ended}, state={"running": {"startedAt": now()}}
    )
    for name in (LEADER, FOLLOWER):
        await cluster.wait_for("Pod", name, lambda it: "deletionTimestamp" in it["metadata"])


async def test_a_leader_that_hangs_costs_its_group_once_and_is_told(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, sim: Simulator, gpu_nodes: Callable[..., list[str]]
) -> None:
    gpu_nodes("h100-sxm", name="second")
    await serve(served, sim)
    generation = (await served.get("LeaderWorkerSet", "llama"))["metadata"]["generation"]
    await hang(served)
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: "lastCrash" in it["status"], within=60)
    crash = told["status"]["lastCrash"]
    assert (crash["signature"], crash["pod"]) == ("EngineHung", LEADER)
    said = condition(told, "Crashed")["message"]
    assert "with exit code 137 (EngineHung)" in said
    assert "3 requests are running, no token since 14:02:10 UTC" in said
    old = await release(served)
    for name in (LEADER, FOLLOWER):
        await served.wait_for("Pod", name, lambda it: it["metadata"]["uid"] not in old)
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True", "Serving"), within=120)
    new = tuple([(await served.get("Pod", name))["metadata"]["uid"] for name in (LEADER, FOLLOWER)])
    assert (condition(told, "Hung"), told["status"]["lastCrash"]["signature"]) == ({}, "EngineHung")
    assert (await own_events(served))["EngineHung"] == 2, "the hang, and its restart as a crash"
    assert tuple([(await served.get("Pod", name))["metadata"]["uid"] for name in (LEADER, FOLLOWER)]) == new, "created again once"
    assert (await served.get("LeaderWorkerSet", "llama"))["metadata"]["generation"] == generation


async def test_with_report_a_hang_restarts_nothing_but_ends_a_new_revision(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, sim: Simulator, gpu_nodes: Callable[..., list[str]]
) -> None:
    gpu_nodes("h100-sxm", name="second")
    first = await serve(served, sim, remediation={"onHang": "Report"})
    assert "To restart all Pods of its replica: `kubectl delete pod llama-0 -n " in await until_hung(served)
    await set_ready(served, await served.get("Pod", LEADER), True)
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True", "Serving"), within=60)
    assert tuple([(await served.get("Pod", name))["metadata"]["uid"] for name in (LEADER, FOLLOWER)]) == first

    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}})
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
    await until_hung(served)
    told = await served.wait_for("VLLMDeployment", "llama", has("RolledBack", "True"), within=60)
    assert "so the operator went back to revision 1" in condition(told, "RolledBack")["message"]
    for name in (LEADER, FOLLOWER):
        await served.wait_for("Pod", name, lambda it: not changed(it) and is_ready(it), within=60)


@pytest.mark.parametrize("way", ["crashes", "hangs", "starts too slowly"])
async def test_a_revision_of_a_group_that_fails_is_given_up_and_the_last_one_that_served_comes_back(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, sim: Simulator, gpu_nodes: Callable[..., list[str]], way: str
) -> None:
    gpu_nodes("h100-sxm", name="second")
    old = await serve(served, sim)
    if way != "hangs":
        await sim.script(path="crash", pull="0", crash_after="hold", load="hold")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}})
    if way == "crashes":
        await fail(served, sim, recreated=old)
    elif way == "starts too slowly":
        await miss_the_deadline(served)
    else:
        await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
        await hang(served)
    told = await served.wait_for("VLLMDeployment", "llama", has("RolledBack", "True"), within=60)
    message = condition(told, "RolledBack")["message"]
    assert message.startswith("Revision 2 failed, so the operator went back to revision 1.")
    assert ("startup probe" in message) == (way == "starts too slowly")
    await until_taken_back(served)
    await sim.script(path="ok", pull="0", load="0", crash_after=None)
    failed = await release(served)
    for name in (LEADER, FOLLOWER):
        await served.wait_for("Pod", name, lambda it: it["metadata"]["uid"] not in (*old, *failed) and not changed(it))
        await sim.change(name, path="ok", load="0")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolledBack"), within=120)
    assert has("Available", "True")(told)
    assert (await own_events(served))["RolledBack"] == 1
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": [{"name": "CHANGED", "value": "again"}]}}})
    told = await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
    assert condition(told, "RolledBack") == {}
    await served.wait_for("Pod", FOLLOWER, lambda it: changed(it) == "again")


def changed(pod: dict[str, Any]) -> str | None:
    variables = pod["spec"]["containers"][0]["env"]
    return next((each["value"] for each in variables if each["name"] == "CHANGED"), None)


async def test_with_spare_nodes_the_old_group_serves_while_a_revision_fails_and_comes_back(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, sim: Simulator, gpu_nodes: Callable[..., list[str]]
) -> None:
    for name in ("second", "third", "fourth"):
        gpu_nodes("h100-sxm", name=name)
    first = await serve(served, sim, rollout={"maxSurge": 1, "maxUnavailable": 0})
    await sim.script(path="crash", pull="0", crash_after="hold", load="hold")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}})
    await fail(served, sim, group=SURGE)
    told = await served.wait_for("VLLMDeployment", "llama", has("RolledBack", "True"), within=60)
    assert "so the operator went back to revision 1" in condition(told, "RolledBack")["message"]
    await until_taken_back(served)
    await sim.script(path="ok", pull="0", load="0", crash_after=None)
    await release(served, SURGE)
    for name in SURGE:
        await served.wait_until_gone("Pod", name)
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: "backSeconds" in it["status"].get("rollback", {}), within=60)
    assert (told["status"]["readyReplicas"], condition(told, "Available")["status"]) == (1, "True")
    assert tuple([(await served.get("Pod", name))["metadata"]["uid"] for name in (LEADER, FOLLOWER)]) == first
