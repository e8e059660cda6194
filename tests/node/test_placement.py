"""GPUs that a device plugin offers, and what keeps a Pod from them, in the words of a condition."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from nodeenv import NodeEnvironment
from nodeenv.deviceplugin import device_names
from nodeenv.environment import DEVICES
from support.cluster import Cluster
from support.engines import fetch, model, the_engine, until_ready
from support.operator_process import has, problem
from support.verdicts import has_plan
from testenv.nodes import gpu_node

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

GPU, SLICE = DEVICES
WHOLE_NODE = {"parallelism": {"tensor": DEVICES[GPU]}}
SMALL = {"model": {"uri": "hf://Qwen/Qwen3-0.6B"}}
BOTH_SLICES = {**SMALL, "accelerator": {"mig": {"profile": "1g.10gb"}, "count": DEVICES[SLICE]}}
ONE_SLICE = {**SMALL, "accelerator": {"mig": {"profile": "1g.10gb"}}}


async def devices_of(cluster: Cluster, name: str = "llama") -> set[str]:
    """The devices that a container was given, by its environment."""
    return set((await fetch(cluster, await the_engine(cluster, name), "/devices")).split(","))


SHORTAGES = {"GPUs": (WHOLE_NODE, {}, GPU), "slices": (BOTH_SLICES, ONE_SLICE, SLICE)}


@pytest.mark.parametrize(("everything", "one", "resource"), SHORTAGES.values(), ids=SHORTAGES.keys())
async def test_what_others_have_taken_is_missed_by_name(
    cluster: Cluster, everything: dict[str, Any], one: dict[str, Any], resource: str
) -> None:
    await cluster.create(model(cluster, speed="200", spec=everything))
    await until_ready(cluster)
    assert await devices_of(cluster) == set(device_names(resource, DEVICES[resource]))
    await cluster.create(model(cluster, name="second", speed="200", spec=one))
    told = await cluster.wait_for("VLLMDeployment", "second", has("Ready", "False", "Unschedulable"), within=60)
    assert f"Insufficient {resource}" in problem(told)
    await cluster.delete("VLLMDeployment", "llama")
    await until_ready(cluster, "second")
    assert len(await devices_of(cluster, "second")) == 1


@pytest.mark.parametrize(
    "wanted", [{"accelerator": {"mig": {"profile": "3g.40gb"}}}, {"parallelism": {"tensor": 16}}], ids=["slice", "size"]
)
async def test_what_no_node_offers_is_said_with_what_there_is(cluster: Cluster, wanted: dict[str, Any]) -> None:
    await cluster.create(model(cluster, spec=wanted))
    told = await cluster.wait_for("VLLMDeployment", "llama", has_plan("False", "NoMatchingGPU"), within=60)
    message = problem(told)
    assert all(words in message for words in ("8x NVIDIA H100", "2x 1g.10gb")), message


@pytest.fixture
async def taint(cluster: Cluster, environment: NodeEnvironment) -> AsyncIterator[Callable[..., Awaitable[object]]]:
    """Taints the node: `await taint(key="dedicated", value="team-a")`; without arguments the taint goes."""

    async def set_taint(**taint: str) -> object:
        taints = [{"effect": "NoSchedule", **taint}] if taint else None
        return await cluster.patch("Node", environment.node.name, {"spec": {"taints": taints}})

    yield set_taint
    await set_taint()


async def test_the_taint_of_gpu_nodes_is_tolerated(cluster: Cluster, taint: Callable[..., Awaitable[object]]) -> None:
    await taint(key="nvidia.com/gpu", value="present")
    await cluster.create(model(cluster, speed="200"))
    await until_ready(cluster)


async def test_a_taint_of_another_owner_is_reported(cluster: Cluster, taint: Callable[..., Awaitable[object]]) -> None:
    await taint(key="dedicated", value="team-a")
    await cluster.create(model(cluster, speed="200"))
    told = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Unschedulable"), within=60)
    assert "has the taint dedicated=team-a:NoSchedule. To start there, add" in problem(told)
    assert "{key: dedicated, operator: Equal, value: team-a, effect: NoSchedule}" in problem(told)
    tolerations = [{"key": "dedicated", "operator": "Equal", "value": "team-a", "effect": "NoSchedule"}]
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": {"spec": {"tolerations": tolerations}}}})
    await until_ready(cluster)


async def test_a_gpu_beside_another_processor_is_no_place_for_an_image_of_amd64(cluster: Cluster) -> None:
    await cluster.create(gpu_node("gb10"))  # only its description: nothing runs there
    try:
        amd64 = {"nodeSelector": {"kubernetes.io/arch": "amd64"}}
        await cluster.create(model(cluster, spec={"accelerator": {"architectures": ["sm_121"]}}, pod=amd64))
        told = await cluster.wait_for("VLLMDeployment", "llama", has_plan("False", "NoMatchingGPU"), within=60)
        assert "sm_121" in problem(told)
        assert "GB10" in problem(told)
    finally:
        await cluster.delete("Node", "gpu-gb10-0")
