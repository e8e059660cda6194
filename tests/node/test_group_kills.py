"""The life of a group over two real nodes, while the operator or the controller of LeaderWorkerSet is killed at each step."""

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from nodeenv import NodeEnvironment
from support.cluster import Cluster
from support.engines import ENGINE_IMAGE, eventually
from support.groups import (
    FOLLOWER,
    SERVING,
    Orders,
    group,
    uids,
    until_crashed,
    until_nothing_is_left,
    until_replaced,
    until_serving,
)
from support.leader_worker_sets import LeaderWorkerSets
from support.operator_pods import kill_operator
from support.operator_process import has, problem

pytestmark = [pytest.mark.node, pytest.mark.extended, pytest.mark.timeout(1800)]

Kill = Callable[[], Awaitable[None]]
TOLD = {"ImagePullFailed", "Started", "HfRepoNotFound", "RevisionFailed", "RolledBack"}
"""What is told of the whole life, whoever is killed."""
PASSING = {"RankLost", "ApplyFailed"}
"""The end of rank 1 while it served, if it is read before its container, started again, finds no model; and a webhook that is away."""


@pytest.fixture(params=["nobody", "operator", "controller"])
def kill(request: pytest.FixtureRequest, cluster: Cluster, sets: LeaderWorkerSets) -> Kill:
    """Kills somebody, and waits until a successor works."""

    async def do() -> None:
        if request.param == "operator":
            await kill_operator(cluster)
        elif request.param == "controller":
            sets.kill()
            sets.start()

    return do


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, int]:
    """How often each reason was told when nobody was killed."""
    return {}


async def start(cluster: Cluster, orders: Orders, environment: NodeEnvironment, kill: Kill) -> None:
    """One node has the image later than the other."""
    late = f"docker.io/library/vllm-engine:{cluster.namespace}"
    environment.images.tag(ENGINE_IMAGE, late)
    environment.load_image(late)
    await cluster.create(group(cluster, orders, image=late, speed="50", gpus=4))
    await kill()
    says = (late, "The other Pods of the replica keep their GPUs, and wait for it.")
    await cluster.wait_for("VLLMDeployment", "llama", lambda it: all(words in problem(it) for words in says), within=90)
    await kill()
    environment.load_image(late, environment.second)
    await until_serving(cluster)
    before, generation = await uids(cluster), (await cluster.get("LeaderWorkerSet", "llama"))["metadata"]["generation"]
    await kill()
    await until_serving(cluster)
    assert await uids(cluster) == before
    assert (await cluster.get("LeaderWorkerSet", "llama"))["metadata"]["generation"] == generation


async def scale(cluster: Cluster, kill: Kill, replicas: int) -> None:
    """Add or remove groups."""
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": replicas}}, subresource="scale")
    await kill()
    await cluster.wait_for("VLLMDeployment", "llama", lambda it: SERVING(it) and it["status"]["readyReplicas"] == replicas, within=120)

    async def has_all_pods() -> bool:
        return len(await uids(cluster)) == 2 * replicas

    await eventually(has_all_pods, within=60)


async def crash(cluster: Cluster, orders: Orders, kill: Kill) -> None:
    """Rank 1 is killed, and finds no model at its next start; then it does."""
    before = await uids(cluster)
    orders.fail()
    orders.end(FOLLOWER, 137)
    await until_crashed(cluster, "HfRepoNotFound", within=120)
    await kill()
    await until_crashed(cluster, "HfRepoNotFound", f"Pod {FOLLOWER}", "Rank 1 (of 0 to 1) on node ", within=120)
    orders.succeed()
    await until_replaced(cluster, before)  # not the Pods that are there now: they may be those that find the model
    await kill()
    done = await until_serving(cluster)
    assert done["status"]["lastCrash"]["signature"] == "HfRepoNotFound"
    assert not has("Crashed", "True")(done)


async def roll_out(cluster: Cluster, kill: Kill) -> None:
    """Replace all Pods."""
    before = await uids(cluster)
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": {"metadata": {"annotations": {"example.com/round": "2"}}}}})

    async def is_stopped() -> bool:
        return (await uids(cluster)).get(FOLLOWER) != before[FOLLOWER]

    await eventually(is_stopped, within=120)
    await kill()
    await until_replaced(cluster, before)
    await until_serving(cluster)


async def roll_back(cluster: Cluster, kill: Kill) -> None:
    """A new revision finds no model."""
    variables = (await cluster.get("VLLMDeployment", "llama"))["spec"]["engine"]["env"]
    fails = [{"name": "ENGINE_RANKS", "value": "h100-follower-model-missing"}, {"name": "ENGINE_EXIT", "value": "1"}]
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": [*variables, *fails]}}})
    await kill()
    await cluster.wait_for("VLLMDeployment", "llama", has("RolledBack", "True"), within=120)
    await kill()
    done = await cluster.wait_for("VLLMDeployment", "llama", lambda it: "backSeconds" in it["status"].get("rollback", {}), within=120)
    assert has("RolledBack", "True")(done)


async def test_whoever_is_killed_at_whichever_step_nothing_is_lost_and_the_same_is_told(
    cluster: Cluster, orders: Orders, environment: NodeEnvironment, kill: Kill, undisturbed: dict[str, int]
) -> None:
    await start(cluster, orders, environment, kill)
    await scale(cluster, kill, 2)
    await scale(cluster, kill, 1)
    await crash(cluster, orders, kill)
    await roll_out(cluster, kill)
    await roll_back(cluster, kill)

    events = Counter(it["reason"] for it in await cluster.events(name="llama") if it["involvedObject"]["kind"] == "VLLMDeployment")
    told = {reason: count for reason, count in events.items() if reason not in PASSING}
    assert {*told} == TOLD
    assert told["RolledBack"] == 1
    undisturbed.update({} if undisturbed else told)
    assert told == undisturbed

    await cluster.delete("VLLMDeployment", "llama")
    await kill()
    await until_nothing_is_left(cluster)
