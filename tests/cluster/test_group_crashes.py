"""Crashes of replicas on several nodes, with the real controller of LeaderWorkerSet: told once, counted over recreations, and over."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, Simulator
from support.leader_worker_sets import LeaderWorkerSets
from support.operator_process import OperatorProcess, condition, has, llama
from testenv import Environment

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

LEADER, FOLLOWER = "llama-0", "llama-0-1"
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


async def fail(cluster: Cluster, sim: Simulator, *, recreated: tuple[str, ...] = ()) -> None:
    """The follower finds no model and ends, and the leader waits for it. As with a kubelet, the Pods are not gone at once."""
    for name in (LEADER, FOLLOWER):
        await cluster.wait_for("Pod", name, lambda it: it["metadata"]["uid"] not in recreated and it["status"].get("phase") == "Running")
        await cluster.patch("Pod", name, {"metadata": {"finalizers": [HELD]}})
        shutil.rmtree(cluster.simulated.log_root / cluster.namespace / name, ignore_errors=True)
    sim.log(LEADER).write((NODES / "h100-follower-model-missing-rank0.log").read_bytes())
    log = sim.log(FOLLOWER)
    log.write((NODES / "h100-follower-model-missing-rank1.log").read_bytes())
    log.exit()
    await sim.change(FOLLOWER, crash_after="0")
    for name in (LEADER, FOLLOWER):
        await cluster.wait_for("Pod", name, lambda it: "deletionTimestamp" in it["metadata"])


async def release(cluster: Cluster) -> tuple[str, ...]:
    """Let the Pods go; return their UIDs."""
    uids = [(await cluster.get("Pod", name))["metadata"]["uid"] for name in (LEADER, FOLLOWER)]
    for name in (FOLLOWER, LEADER):
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
    assert f"Pod {FOLLOWER} crashed with exit code 1 (HfRepoNotFound). Rank 1 of 2 on node " in text
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
