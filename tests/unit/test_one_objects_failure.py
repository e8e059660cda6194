"""The state of one object, and what cannot be read for one, changes no other object."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.fleet import Fleet
from support.operators import KEY, Bench, llama
from vllm_operator.kube.client import NODE, NODE_POOL, VLLM_DEPLOYMENT, ClusterError, Forbidden, Unavailable

FORBIDDEN = Forbidden("nodes is forbidden", verb="list", resource="nodes")
ERRORS = [FORBIDDEN, Unavailable("Too Many Requests", retry_after=1.0), Unavailable("timed out")]


@pytest.mark.parametrize("order", [("bad", "good"), ("good", "bad")])
async def test_objects_with_equal_specs_and_different_status_get_their_own_plans(order: tuple[str, str]) -> None:
    bench, digest = Bench(), f"sha256:{'0' * 64}"
    for name in order:
        bench.cluster.put(llama(name, cache={"artifact": {"repository": "registry.example/team/caches"}}))
        await bench.settle(("default", name))
    status = {**bench.resource("bad")["status"]}
    status["cache"] = {**status["cache"], "artifact": {"rejected": [digest]}}  # a start with this artifact has crashed
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "bad", {"status": status})
    for name in order:
        bench.cluster.edit(VLLM_DEPLOYMENT, "default", name, {"spec": {"engine": {"version": "0.24.0"}}})
    for name in order:
        await bench.settle(("default", name))
    rejected = {name: artifact.rejected for name in order if (artifact := bench.plan(name).cache_artifact) is not None}
    assert rejected == {"bad": [digest], "good": []}


def fail_to_list_nodes(bench: Bench, error: ClusterError) -> None:
    for verb in ("list", "find", "pages"):
        bench.cluster.fail(verb, NODE, error, times=9999)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Bench, Fleet]]:
    """An object that serves, and an operator that has just started."""
    bench = Bench()
    fleet = Fleet(bench)
    await fleet.serve(cache={"priming": "Never"})
    fleet.ready(fleet.start())
    await fleet.settle()
    assert bench.condition("Ready").status == "True"
    bench.restart()
    yield bench, fleet


@pytest.mark.parametrize("error", ERRORS, ids=["403", "429", "timeout"])
async def test_a_plan_in_force_needs_no_nodes(error: ClusterError) -> None:
    async with serving() as (bench, fleet):
        fail_to_list_nodes(bench, error)
        plan, template = bench.plan(), bench.deployment()["spec"]["template"]
        await fleet.settle()
        assert bench.condition("Ready").status == "True"
        planned = bench.plan_verdict()
        assert (planned.status, planned.reason) == ("True", "Planned")
        assert "The current plan stays. The" in planned.message
        bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": 3}})
        await fleet.settle()
        assert fleet.replicas() == 3
        assert bench.condition("Ready").reason == "ReplicasNotReady"
        assert (bench.plan(), bench.deployment()["spec"]["template"]) == (plan, template)


async def test_an_outage_of_the_list_of_nodes_writes_nothing_if_they_were_listed_before() -> None:
    async with serving() as (bench, fleet):
        await fleet.settle()
        fail_to_list_nodes(bench, Unavailable("timed out"))
        bench.pass_time(3600)
        writes = len(bench.cluster.writes)
        await fleet.settle()
        assert len(bench.cluster.writes) == writes


@pytest.mark.parametrize("error", ERRORS, ids=["403", "429", "timeout"])
async def test_a_new_object_says_that_it_waits_for_the_nodes(error: ClusterError) -> None:
    bench = Bench()
    fail_to_list_nodes(bench, error)
    bench.cluster.put(llama())
    result = await bench.settle()
    planned = bench.plan_verdict()
    assert (planned.status, planned.reason) == ("False", "PermissionMissing" if error is FORBIDDEN else "NodesUnreadable")
    assert ("allow it" if error is FORBIDDEN else f"the operator tries again. {error}") in planned.message
    assert result.requeue_seconds is not None
    assert result.requeue_seconds <= (30 if error is FORBIDDEN else 3)
    bench.cluster.heal()
    bench.pass_time(result.requeue_seconds)
    await bench.settle(KEY)
    assert bench.plan_verdict().status == "True"


async def test_a_broken_webhook_of_node_pools_stops_no_plan() -> None:
    bench = Bench()
    bench.cluster.fail("find", NODE_POOL, Unavailable("conversion webhook failed"), times=9999)
    bench.cluster.put(llama())
    await bench.settle()
    assert bench.plan_verdict().status == "True"
