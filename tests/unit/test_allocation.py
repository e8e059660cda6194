"""How GPUs are requested: from the device plugin where a node has one, else by claims for the devices in ResourceSlices."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.claims import in_dra_mode, uuid_of, with_uuids
from support.gpus import machines_of_the_examples, real_node
from support.plans import deployment, made, planned, refusal
from vllm_operator.api.labels import KIND
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.plan import merge_preset_of
from vllm_operator.rendering.manifests import render

Manifest = dict[str, Any]
SMALL = "hf://Qwen/Qwen3-0.6B"
PLUGIN, CLAIMS = "nvidia.com/gpu", "gpu.nvidia.com"
EXAMPLES = [
    (path.stem, list(yaml.safe_load_all(path.read_text("utf-8"))))
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
]
DEPLOYMENTS = [pytest.param(each, documents, id=name) for name, documents in EXAMPLES for each in documents if each["kind"] == KIND]
OF_THE_PLUGIN = ("qwen-thor", "time-sliced")
"""Examples about what only a device plugin offers: GPUs shared by time-slicing, and a board whose labels tell nothing about its GPU."""


def both(node: Manifest) -> tuple[Manifest, Manifest]:
    """A node with a device plugin and a driver, which know nothing of each other."""
    return node, in_dra_mode(node)[1]


def cluster(*machines: tuple[Manifest, Manifest | None]) -> tuple[list[Manifest], tuple[Manifest, ...]]:
    return [node for node, _ in machines], tuple(published for _, published in machines if published is not None)


H100, H200 = real_node("h100-sxm"), real_node("h200")
UUID = f"GPU-{uuid_of('h100-sxm-0gpu-3')}"
CASES: dict[str, tuple[tuple[tuple[Manifest, Manifest | None], ...], Manifest, str]] = {
    "a device plugin alone": (((H100, None),), {}, PLUGIN),
    "a driver alone": ((in_dra_mode(H100),), {}, CLAIMS),
    "both on one node": ((both(H100),), {}, PLUGIN),
    "one on each node, the GPU of the plugin": (((H100, None), in_dra_mode(H200)), {"products": ["NVIDIA-H100-80GB-HBM3"]}, PLUGIN),
    "one on each node, the GPU of the driver": (((H100, None), in_dra_mode(H200)), {"products": ["NVIDIA-H200"]}, CLAIMS),
    "the same GPU by both": (((real_node("h100-sxm", "other"), None), in_dra_mode(H100)), {}, PLUGIN),
    "both on one node, where the spec asks for claims": ((both(H100),), {"allocation": "DRA"}, CLAIMS),
    "both on one node, where the spec names a device": ((both(H100),), {"uuids": [UUID]}, CLAIMS),
    "a driver alone, and the spec names a device": ((in_dra_mode(H100),), {"uuids": [UUID]}, CLAIMS),
    "a driver alone, and the spec leaves it to the operator": ((in_dra_mode(H100),), {"allocation": "Auto"}, CLAIMS),
    "slices of a MIG layout": ((in_dra_mode(real_node("h100-mig-mixed")),), {"mig": {"profile": "1g.10gb"}}, "mig.nvidia.com"),
}


@pytest.mark.parametrize(("machines", "accelerator", "resource"), CASES.values(), ids=CASES.keys())
def test_gpus_are_requested_as_their_node_offers_them(
    machines: tuple[tuple[Manifest, Manifest | None], ...], accelerator: Manifest, resource: str
) -> None:
    nodes, slices = cluster(*machines)
    plan = made(deployment(SMALL, accelerator=accelerator), *nodes, slices=slices)
    assert plan.resource == resource
    is_said = resource != PLUGIN and not accelerator.keys() & {"uuids"} and accelerator.get("allocation") != "DRA"
    assert any("GPUs are requested by DRA: node" in note for note in plan.notes) is is_said


def test_the_plan_names_the_nodes_that_decide() -> None:
    nodes, slices = cluster(*(in_dra_mode(real_node("h100-sxm", f"gpu-{number}")) for number in range(5)))
    said = "GPUs are requested by DRA: nodes gpu-0, gpu-1, gpu-2 and 2 more have ResourceSlices and no device plugin."
    assert said in made(deployment(SMALL), *nodes, slices=slices).notes


def test_a_claim_avoids_nodes_whose_device_plugin_offers_the_same_gpus() -> None:
    nodes, slices = cluster(
        both(real_node("h100-sxm", "twice", labels={"kubernetes.io/hostname": "twice"})), in_dra_mode(H100), (H200, None)
    )
    full = deployment(SMALL, accelerator={"products": ["NVIDIA-H100-80GB-HBM3"], "count": 8}, parallelism={"tensor": 8})
    plan = made(full, *nodes, slices=slices)
    assert plan.resource == PLUGIN  # equal GPUs: the plugin first
    nodes[0]["spec"]["unschedulable"] = True
    plan = made(full, *nodes, slices=slices)
    assert plan.resource == CLAIMS
    assert ("kubernetes.io/hostname", "NotIn", ["twice"]) in [(each.key, each.operator, each.values) for each in plan.node_requirements]


@pytest.mark.parametrize(
    ("machine", "accelerator", "said"),
    [
        (in_dra_mode(H100), {"allocation": "DevicePlugin"}, "Set spec.accelerator.allocation to DRA"),
        ((H100, None), {"allocation": "DRA"}, "or remove spec.accelerator.allocation."),
        (
            (H100, None),
            {"uuids": [UUID]},
            "Install the NVIDIA DRA driver with GPU support, which needs Kubernetes 1.34, or remove spec.accelerator.uuids.",
        ),
    ],
)
def test_what_no_node_offers_is_refused_with_a_way_out(machine: tuple[Manifest, Manifest | None], accelerator: Manifest, said: str) -> None:
    nodes, slices = cluster(machine)
    assert said in refusal(deployment(SMALL, accelerator=accelerator), *nodes, slices=slices)[1]


@pytest.mark.parametrize(("manifest", "documents"), DEPLOYMENTS)
def test_every_example_has_the_same_plan_where_the_gpus_are_only_in_resource_slices(manifest: Manifest, documents: list[Manifest]) -> None:
    nodes = machines_of_the_examples()
    found = [in_dra_mode(node) if "nvidia.com/gpu.product" in node["metadata"]["labels"] else (node, None) for node in nodes]
    bare, slices = cluster(*found)
    resource = merge_preset_of(VLLMDeployment.parse(with_uuids(manifest, slices)), documents)
    assert isinstance(resource, VLLMDeployment)
    outcome = planned(resource, *bare, slices=slices)
    if manifest["metadata"]["name"] in OF_THE_PLUGIN:
        assert outcome.plan is None or outcome.plan.resource == PLUGIN
        return
    assert outcome.plan is not None, (outcome.accepted.message, outcome.planned.message)
    assert outcome.plan.resource in (CLAIMS, "mig.nvidia.com")
    assert "ResourceClaimTemplate" in [each["kind"] for each in render(resource, outcome.plan)]
    by_plugin = planned(resource, *nodes).plan
    if by_plugin is not None:  # none for UUIDs
        assert engine_of(outcome.plan) == engine_of(by_plugin)


def engine_of(plan: Plan) -> Manifest:
    """What does not depend on how the GPUs are requested."""
    names = ("architecture", "product", "memoryMebibytes", "count", "nodes", "image", "args", "env", "backends", "cacheKey", "requests")
    content = plan.to_json()
    return {name: content.get(name) for name in names}
