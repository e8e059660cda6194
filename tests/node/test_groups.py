"""Replicas on two real nodes, with the real controller and webhooks of LeaderWorkerSet: from the first start to the last Pod."""

import asyncio
from collections.abc import Mapping

import pytest

from nodeenv import NodeEnvironment
from support.cluster import Cluster, Manifest
from support.engines import ENGINE_IMAGE
from support.groups import (
    FOLLOWER,
    LEADER,
    SERVING,
    Orders,
    group,
    told,
    uids,
    until_crashed,
    until_nothing_is_left,
    until_replaced,
    until_serving,
)
from support.kubectl import Kubectl
from support.leader_worker_sets import LeaderWorkerSets
from support.operator_process import condition, has, problem

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

SECOND = "node-2"


def another_round(number: int) -> Manifest:
    """A part of a Pod template that replaces all Pods."""
    return {"metadata": {"annotations": {"example.com/round": str(number)}}}


async def until_all_serve(cluster: Cluster, replicas: int) -> Manifest:
    return await cluster.wait_for(
        "VLLMDeployment", "llama", lambda it: SERVING(it) and it["status"].get("readyReplicas") == replicas, within=120
    )


async def node_of(cluster: Cluster, pod: str) -> str:
    return str((await cluster.get("Pod", pod))["spec"]["nodeName"])


async def test_a_start_over_two_nodes_names_the_slowest_rank(
    cluster: Cluster, orders: Orders, environment: NodeEnvironment, kubectl: Kubectl
) -> None:
    # one node has the image
    late = "docker.io/library/vllm-engine:late"
    environment.images.tag(ENGINE_IMAGE, late)
    environment.load_image(late)
    await cluster.create(group(cluster, orders, image=late))

    def is_told(it: Manifest) -> bool:
        return (
            SECOND in problem(it)
            and late in problem(it)
            and any(pod.get("stage") == "DistributedInit" for pod in (it["status"].get("startup") or {}).get("pods", ()))
        )

    waits = problem(await cluster.wait_for("VLLMDeployment", "llama", is_told, within=90))
    ranks = {await node_of(cluster, pod): (rank, pod) for rank, pod in enumerate((LEADER, FOLLOWER))}
    rank, pod = ranks[SECOND]
    assert f"It is rank {rank} (of 0 to 1), on node {SECOND}." in waits
    assert late in waits
    assert pod in await kubectl.run("describe", "vllm", "llama")
    environment.load_image(late, environment.second)
    done = await until_serving(cluster)
    assert (done["status"]["replicas"], done["status"]["readyReplicas"], condition(done, "Crashed")) == (1, 1, {})
    assert await told(cluster, "Started") == 1


async def test_the_crash_of_a_rank_is_told_once_and_its_group_is_created_again(cluster: Cluster, orders: Orders) -> None:
    await cluster.create(group(cluster, orders, speed="100"))
    await until_serving(cluster)

    # rank 1 is killed while it serves, of which nothing is in the log of the leader
    before = await uids(cluster)
    node = await node_of(cluster, FOLLOWER)
    orders.end(FOLLOWER, 137)
    crash = await until_crashed(cluster, "RankLost")
    assert f"Pod {FOLLOWER}" in crash
    assert f"Rank 1 (of 0 to 1) on node {node}" in crash
    await until_replaced(cluster, before)
    await until_serving(cluster)

    # then rank 0
    before = await uids(cluster)
    node = await node_of(cluster, LEADER)
    orders.end(LEADER, 1)
    crash = await until_crashed(cluster, "RankLost", f"Pod {LEADER} ")
    assert f"Rank 0 (of 0 to 1) on node {node}" in crash
    await until_replaced(cluster, before)
    await until_serving(cluster)

    # and rank 1 fails at its starts, until there is a model
    orders.fail()
    before = await uids(cluster)
    orders.end(FOLLOWER, 137)
    # how often depends on which of its ends comes before LeaderWorkerSet has deleted the Pod
    await until_crashed(cluster, "HfRepoNotFound", f"Pod {FOLLOWER} crashed ", " times", within=120)
    assert await told(cluster, "HfRepoNotFound") == 1
    orders.succeed()
    done = await until_serving(cluster)
    assert done["status"]["lastCrash"]["signature"] == "HfRepoNotFound"
    assert condition(done, "Crashed").get("status") != "True"


async def test_groups_are_added_replaced_and_removed(cluster: Cluster, orders: Orders, sets: LeaderWorkerSets) -> None:
    # both nodes have room for two groups
    await cluster.create(group(cluster, orders, gpus=4, speed="100"))
    await until_serving(cluster)
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}}, subresource="scale")
    await until_all_serve(cluster, 2)
    assert sorted(await uids(cluster)) == ["llama-0", "llama-0-1", "llama-1", "llama-1-1"]
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1}}, subresource="scale")
    await cluster.wait_until_gone("Pod", "llama-1-1")
    await cluster.wait_until_gone("Pod", "llama-1")

    # without spare nodes: the group is stopped first
    before = await uids(cluster)
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": another_round(2)}})
    await until_replaced(cluster, before)
    await until_serving(cluster)

    # with spare nodes: the new group serves before the old one is stopped
    before = await uids(cluster)
    changed = {"podTemplate": another_round(3), "rollout": {"maxSurge": 1, "maxUnavailable": 0}}
    lowest: list[int] = []

    def note(it: Manifest) -> bool:
        lowest.append(it["status"].get("readyReplicas") or 0)
        return False

    watching = asyncio.create_task(cluster.wait_for("VLLMDeployment", "llama", note, within=600))
    await cluster.patch("VLLMDeployment", "llama", {"spec": changed})
    await until_replaced(cluster, before)
    await until_serving(cluster)
    watching.cancel()
    assert min(lowest) == 1

    await cluster.delete("VLLMDeployment", "llama")
    await until_nothing_is_left(cluster)


async def change(cluster: Cluster, env: Mapping[str, str]) -> None:
    """Make a new revision, with these variables of the engine."""
    before = (await cluster.get("VLLMDeployment", "llama"))["spec"]["engine"]["env"]
    values = {**{it["name"]: it["value"] for it in before}, "CHANGED": "yes", **env}
    await cluster.patch(
        "VLLMDeployment", "llama", {"spec": {"engine": {"env": [{"name": name, "value": value} for name, value in values.items()]}}}
    )


async def until_back(cluster: Cluster, *words: str) -> Manifest:
    """Wait until revision 2 was given up for a reason with these words, and revision 1 serves again."""
    told_back = await cluster.wait_for("VLLMDeployment", "llama", has("RolledBack", "True"), within=150)
    message = condition(told_back, "RolledBack")["message"]
    assert message.startswith("Revision 2 failed, so the operator went back to revision 1.")
    assert all(word in message for word in words), message
    done = await cluster.wait_for("VLLMDeployment", "llama", lambda it: "backSeconds" in it["status"].get("rollback", {}), within=120)
    assert has("Ready", "False", "RolledBack")(done)
    assert (done["status"]["readyReplicas"], await told(cluster, "RolledBack")) == (1, 1)
    assert not [it for it in await cluster.list_all("Pod") if "CHANGED" in str(it["spec"]) and "deletionTimestamp" not in it["metadata"]]
    return done


@pytest.mark.parametrize("way", ["crashes", "crashes with spare nodes", "starts too slowly"])
async def test_a_revision_that_fails_goes_back_to_the_one_that_served(cluster: Cluster, orders: Orders, way: str) -> None:
    # the leader gives up before the test does, and both nodes have room for two groups
    impatient = {"startupProbe": {"failureThreshold": 12, "periodSeconds": 5}}
    spare: Manifest = {"gpus": 4, "rollout": {"maxSurge": 1, "maxUnavailable": 0}} if "spare" in way else {}
    first = group(cluster, orders, speed="100", **spare)
    first["spec"]["podTemplate"]["spec"]["containers"][0] |= impatient
    await cluster.create(first)
    await until_serving(cluster)
    before = await uids(cluster)
    crashes = {"ENGINE_RANKS": "h100-follower-model-missing", "ENGINE_EXIT": "1"}
    await change(cluster, {"ENGINE_SPEED": "0.1"} if "slowly" in way else crashes)
    done = await until_back(cluster, *(["startup probe"] if "slowly" in way else []))
    assert done["status"]["lastCrash"]["signature"] == ("StartupProbeFailed" if "slowly" in way else "HfRepoNotFound")
    if spare:
        assert await uids(cluster) == before, "the old group served all the time"


async def test_a_group_that_hangs_is_created_again_and_its_new_revision_goes_back(cluster: Cluster, orders: Orders) -> None:
    caches = orders.folder / "caches"
    await cluster.create(group(cluster, orders, speed="100", cache={"storage": "HostPath", "hostPath": str(caches)}))
    await until_serving(cluster)
    first = await uids(cluster)
    await change(cluster, {})
    await until_replaced(cluster, first)
    await until_serving(cluster)

    before = await uids(cluster)
    orders.hang(LEADER)
    hangs = await cluster.wait_for("VLLMDeployment", "llama", has("Hung", "True", "EngineHung"), within=150)
    message = condition(hangs, "Hung")["message"]
    assert f"The engine of Pod {LEADER} hangs (noticed at " in message
    assert "): 3 requests are running, no token since " in message
    assert "VLLM::EngineCore: suspended. Kubernetes sends it no requests. At " in message
    assert "UTC the engine is killed, and all Pods of its replica are created again" in message
    assert await uids(cluster) == before
    crashed = await cluster.wait_for("VLLMDeployment", "llama", lambda it: "lastCrash" in it["status"], within=150)
    orders.succeed()
    crash = crashed["status"]["lastCrash"]
    assert (crash["signature"], crash["pod"]) == ("EngineHung", LEADER)
    done = await until_back(cluster, "3 requests are running")
    await until_replaced(cluster, before)
    assert "VLLM::EngineCore: suspended" in str(done["status"]["lastCrash"]) + str(done["status"]["conditions"])
    assert await told(cluster, "EngineHung") == 2, "the hang, and its restart as a crash"
    [evidence] = caches.rglob("hangs/*")
    assert {"what.txt", "metrics.txt", "processes.txt"} <= {each.name for each in evidence.iterdir()}


async def test_the_drain_of_a_node_costs_one_group_at_a_time(cluster: Cluster, orders: Orders, kubectl: Kubectl) -> None:
    await cluster.create(group(cluster, orders, gpus=4, speed="100", replicas=2))
    await until_all_serve(cluster, 2)
    before = await uids(cluster)
    await cluster.wait_for("PodDisruptionBudget", "llama", lambda it: it.get("status", {}).get("disruptionsAllowed") == 1)
    options = ("--pod-selector=app.kubernetes.io/name=vllm", "--delete-emptydir-data", "--force", "--timeout=300s")
    drain = asyncio.create_task(kubectl.run("drain", SECOND, *options))
    try:
        waits = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Unschedulable"), within=90)
        assert (waits["status"]["readyReplicas"], condition(waits, "Crashed")) == (1, {})
        left = {name for name, uid in (await uids(cluster)).items() if before.get(name) == uid}
        assert left in ({"llama-0", "llama-0-1"}, {"llama-1", "llama-1-1"})
    finally:
        await kubectl.run("uncordon", SECOND)
    await drain
    await until_replaced(cluster, before)
    done = await until_all_serve(cluster, 2)
    assert condition(done, "Crashed") == {}
    await cluster.delete("VLLMDeployment", "llama")
    await until_nothing_is_left(cluster)
