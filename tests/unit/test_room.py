"""Room for the Pods of a plan: which devices of which nodes count, and which of them are free."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from support.gpus import device, inventory_of, node_pool, real_node, resource_slice
from support.plans import deployment, known
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import template_spec
from vllm_operator.inventory.pools import Room, find_room
from vllm_operator.planning.planner import plan as make_plan
from vllm_operator.rendering.manifests import render_deployment

QWEN = "hf://Qwen/Qwen3-8B"
H100, OTHER, H200 = real_node("h100-sxm", "h100"), real_node("h100-sxm", "other"), real_node("h200", "h200")
DEDICATED = {"key": "team", "value": "a", "effect": "NoSchedule"}


def tainted(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "spec": {"taints": [DEDICATED]}}


def labelled(node: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {**node, "metadata": {**node["metadata"], "labels": {**node["metadata"]["labels"], **labels}}}


def pod_template(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


def required(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [each]} for each in expressions]}
    return pod_template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def room_of(
    *nodes: dict[str, Any], used: Mapping[str, int] | None = None, pools: tuple[Any, ...] = (), tensor: int = 1, **spec: Any
) -> Room | None:
    """The room for Pods that were planned for an H100, with devices in use by node."""
    wanted: dict[str, Any] = {"accelerator": {"products": ["NVIDIA-H100-80GB-HBM3"]}, "parallelism": {"tensor": tensor}}
    made: Plan | None = make_plan(deployment(QWEN, **wanted), inventory_of(H100), known()).plan
    assert made is not None
    inventory = inventory_of(*nodes, node_pools=pools)
    counted = {(node, "nvidia.com/gpu"): number for node, number in used.items()} if used is not None else None
    rendered = render_deployment(deployment(QWEN, **wanted, **spec), made)
    return find_room(made, template_spec(rendered), replace(inventory, used=counted))


@pytest.mark.parametrize(
    ("nodes", "spec", "want"),
    [
        pytest.param([H100, OTHER, H200], {}, {"h100": 8, "other": 8}, id="nodes with the GPU of the plan"),
        pytest.param([real_node("h100-sxm", "h100", cordoned=True), OTHER], {}, {"other": 8}, id="a cordoned node"),
        pytest.param(
            [real_node("h100-sxm", "h100", conditions=[{"type": "Ready", "status": "Unknown"}]), OTHER],
            {},
            {"other": 8},
            id="a node that has stopped reporting",
        ),
        pytest.param([tainted(H100), OTHER], {}, {"other": 8}, id="a taint"),
        pytest.param([tainted(H100)], pod_template(tolerations=[{"key": "team", "operator": "Exists"}]), {"h100": 8}, id="a toleration"),
        pytest.param([labelled(H100, zone="a"), OTHER], pod_template(nodeSelector={"zone": "a"}), {"h100": 8}, id="a node selector"),
        pytest.param([H200], {}, {}, id="no node"),
    ],
)
def test_which_nodes_have_room(nodes: list[dict[str, Any]], spec: dict[str, Any], want: dict[str, int]) -> None:
    found = room_of(*nodes, used={}, **spec)
    assert found is not None
    assert {node: number for node, number in found.total.items() if number} == want


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ({"key": "zone", "operator": "In", "values": ["a"]}, ["h100"]),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, ["other"]),
        ({"key": "zone", "operator": "Exists"}, ["h100"]),
        ({"key": "zone", "operator": "DoesNotExist"}, ["other"]),
        ({"key": "zone", "operator": "Gt", "values": ["1"]}, ["h100", "other"]),
    ],
    ids=lambda value: value["operator"] if isinstance(value, dict) else "",
)
def test_node_affinity_of_the_user_counts(expression: dict[str, Any], want: list[str]) -> None:
    found = room_of(labelled(H100, zone="a"), OTHER, used={}, **required(expression))
    assert found is not None
    assert sorted(found.total) == want


@pytest.mark.parametrize(
    ("used", "tensor", "want"),
    [
        ({}, 1, 16),
        ({"h100": 8}, 1, 8),
        ({"h100": 7, "other": 7}, 1, 2),
        ({"h100": 7, "other": 7}, 2, 0),  # on two nodes, not on one
        ({"h100": 3, "other": 0}, 4, 3),
        ({"h100": 64}, 8, 1),  # more than there are, by a device plugin that was restarted
        (None, 1, None),
    ],
)
def test_how_many_pods_have_room(used: Mapping[str, int] | None, tensor: int, want: int | None) -> None:
    found = room_of(H100, OTHER, used=used, tensor=tensor)
    assert found is not None
    assert found.pods() == want


def test_nodes_that_an_autoscaler_would_add_have_unknown_room() -> None:
    wanted: dict[str, Any] = {"accelerator": {"products": ["NVIDIA-L40S"]}}
    inventory = inventory_of(H100, node_pools=(node_pool(gpu_name=["l40s"]),))
    made = make_plan(deployment(QWEN, **wanted), inventory, known()).plan
    assert made is not None
    assert made.provisioner is not None
    rendered = render_deployment(deployment(QWEN, **wanted), made)
    assert find_room(made, template_spec(rendered), replace(inventory, used={})) is None


def test_devices_for_resource_claims_are_free_unless_a_claim_holds_them() -> None:
    wanted: dict[str, Any] = {"accelerator": {"allocation": "DRA"}}
    slices = (resource_slice("h100", {**device(), "name": "gpu-0"}, {**device(), "name": "gpu-1"}),)
    for entry in slices:
        entry["spec"]["pool"] = {"name": "h100"}
    inventory = inventory_of(real_node("h100-sxm", "h100", allocatable={"nvidia.com/gpu": "0"}), slices=slices)
    made = make_plan(deployment(QWEN, **wanted), inventory, known()).plan
    assert made is not None
    rendered = template_spec(render_deployment(deployment(QWEN, **wanted), made))
    free = find_room(made, rendered, replace(inventory, allocated=frozenset()))
    taken = find_room(made, rendered, replace(inventory, allocated=frozenset({"h100/gpu-0"})))
    assert free is not None
    assert taken is not None
    assert (free.pods(), taken.pods()) == (2, 1)
