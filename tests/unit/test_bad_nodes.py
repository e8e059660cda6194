"""Nodes on which Pods crash for a reason that lies in the node: they are named, and new Pods avoid them if users want that."""

from collections.abc import Mapping
from typing import Any

import pytest

from support.upgrades import NEW, OLD, Upgrades
from vllm_operator.kube.client import NODE, POD

AVOID: dict[str, Any] = {"remediation": {"onBadNode": "Avoid"}}
HOSTNAME = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-0"]}


async def breaks(*, until: float = 1800, spec: Mapping[str, Any] = AVOID, bad: str = "node-0", nodes: int = 2, **options: Any) -> Upgrades:
    """Let replicas start, of which those on one node crash after a minute of service each time."""
    made = Upgrades(spec=spec, nodes=nodes, **options)
    made.bad.add(bad)
    await made.create(until=until)
    return made


def nodes(made: Upgrades) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in made.pods())


def requirements(made: Upgrades) -> list[dict[str, Any]]:
    affinity = made.bench.deployment()["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms: list[dict[str, Any]] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [each for term in terms for each in term["matchExpressions"]]


def restart(made: Upgrades, name: str) -> None:
    made.cluster.edit(NODE, None, name, {"status": {"nodeInfo": {"bootID": "another"}}})


async def test_new_pods_avoid_the_node_and_serve_elsewhere() -> None:
    made = await breaks()
    assert (nodes(made), made.serving) == (["node-1"], [OLD])
    assert HOSTNAME in requirements(made)
    assert made.condition("Ready") == ("True", "Serving")
    assert made.condition("RolledBack") is None
    [avoided] = made.bench.status().avoided_nodes or []
    assert (avoided.name, avoided.hostname) == ("node-0", None)
    assert made.events().count("NodeAvoided") == 1
    writes = len(made.cluster.writes)
    await made.wait(7200)
    assert len(made.cluster.writes) == writes, "it writes nothing while nothing changes"


async def test_the_crash_names_the_node_and_by_default_nothing_else_happens() -> None:
    made = await breaks(until=340, spec={})
    crash = made.bench.status().last_crash
    assert crash is not None
    assert (crash.signature, crash.node) == ("GpuHardwareFault", "node-0")
    assert "The cause lies in node node-0, not in the spec." in made.message("Crashed")
    await made.wait(3600)
    assert (nodes(made), made.bench.status().avoided_nodes) == (["node-0"], None)


async def test_a_node_is_not_avoided_where_no_other_one_has_gpus_for_all_replicas() -> None:
    made = await breaks(until=340, nodes=1)
    assert made.condition("Crashed") == ("True", "GpuHardwareFault")
    assert "No other nodes have enough GPUs, so without node node-0 nothing starts." in made.message("Crashed")
    assert HOSTNAME not in requirements(made)


async def test_a_first_crash_moves_nothing_because_a_restart_may_help() -> None:
    made = await breaks(until=125)
    assert made.condition("Crashed") == ("True", "GpuHardwareFault")
    assert made.bench.status().avoided_nodes is None


async def test_replicas_that_serve_are_replaced_one_at_a_time() -> None:
    made = Upgrades(spec=AVOID, nodes=3, replicas=9, surge=False)
    await made.create()
    assert nodes(made) == ["node-0"] * 8 + ["node-1"]
    made.bad.add("node-1")
    made.fewest = 9
    name = next(pod["metadata"]["name"] for pod in made.pods() if pod["spec"]["nodeName"] == "node-1")
    made.cluster.remove(POD, "default", name)
    made.wake()
    await made.wait(2400)
    assert nodes(made) == ["node-0"] * 8 + ["node-2"]
    assert (len(made.serving), made.fewest) == (9, 8)


@pytest.mark.parametrize("change", [{"engine": {"version": NEW}}, {"replicas": 2}])
async def test_a_node_that_was_restarted_is_used_again_with_the_next_plan(change: dict[str, Any]) -> None:
    made = await breaks()
    made.bad.clear()
    restart(made, "node-0")
    before = made.bench.deployment()["spec"]["template"]
    await made.wait(3600)
    assert made.bench.deployment()["spec"]["template"] == before, "replicas that serve are not replaced for this"
    made.change(**change)
    await made.wait(900)
    is_planned = "engine" in change
    assert (HOSTNAME in requirements(made)) != is_planned
    assert (made.bench.status().avoided_nodes is None) == is_planned
    assert made.images == ([OLD, NEW] if is_planned else [OLD])


async def test_a_new_plan_avoids_a_node_that_was_not_restarted() -> None:
    made = await breaks()
    await made.upgrade(until=1200)
    assert (nodes(made), made.serving, made.images) == (["node-1"], [NEW], [OLD, NEW])
    assert made.events().count("NodeAvoided") == 1


async def test_a_node_that_was_restarted_is_used_at_once_while_nothing_serves() -> None:
    made = await breaks()
    made.bad = {"node-0", "node-1"}
    await made.upgrade(until=900)
    assert made.condition("RolledBack") is None
    assert [each.name for each in made.bench.status().avoided_nodes or []] == ["node-0"], "node-1 is the last one"
    made.bad.discard("node-0")
    restart(made, "node-0")
    await made.wait(1800)
    assert (nodes(made), made.serving, made.bench.status().avoided_nodes) == (["node-0"], [NEW], None)


async def test_with_recreate_replicas_that_serve_are_not_stopped_for_the_one_that_crashes() -> None:
    recreate = {**AVOID, "rollout": {"strategy": "Recreate"}}
    made = await breaks(nodes=3, replicas=9, surge=False, spec=recreate, bad="node-1")
    assert "node-1" in nodes(made)
    assert made.bench.status().avoided_nodes is None


async def test_an_operator_that_is_killed_after_any_write_avoids_the_node_all_the_same() -> None:
    for number in range(1, 9):
        made = Upgrades(spec=AVOID, nodes=2)
        made.bad.add("node-0")
        await made.create(until=100)
        made.cluster.writes_left = number
        await made.wait(1800)
        assert (made.kills, nodes(made), made.serving) == (1, ["node-1"], [OLD]), number
        assert made.events().count("NodeAvoided") == 1
