"""Which GPUs a replica gets, and what is said when it gets none."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from support.gpus import device, inventory_of, real_node, resource_slice
from support.plans import deployment, known, made, planned, refusal
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.resource_claim import render_resource_claim_template

SMALL = "hf://Qwen/Qwen3-0.6B"
MIG_UUID = "MIG-8949ea7d-9166-53ce-9bac-6c58262addf9"


def requirements(*args: Any, **options: Any) -> dict[str, tuple[str, list[str] | None]]:
    return {r.key: (r.operator, r.values) for r in made(*args, **options).node_requirements}


# The choice.


@pytest.mark.parametrize(
    ("accelerator", "kinds", "want"),
    [
        ({}, ("h200", "b200", "gb10"), "sm_90"),
        ({}, ("gb10", "l40s"), "sm_89"),
        ({}, ("a100", "rtx-pro-6000", "h100-sxm"), "sm_90"),
        ({"architectures": ["sm_90", "sm_100"]}, ("b200", "h200"), "sm_90"),
        ({"architectures": ["sm_100", "sm_90"]}, ("b200", "h200"), "sm_100"),
        ({"architectures": ["sm_100", "sm_90"]}, ("h200",), "sm_90"),
        ({"products": ["NVIDIA-L40S"]}, ("b200", "l40s"), "sm_89"),
        ({"products": ["NVIDIA-A100-SXM4-80GB", "NVIDIA-B200"]}, ("b200", "a100"), "sm_80"),
        ({"count": 8}, ("l40s", "a100"), "sm_80"),
    ],
)
def test_the_users_order_comes_first_then_the_smallest_gpu_that_fits(
    accelerator: dict[str, Any], kinds: tuple[str, ...], want: str
) -> None:
    assert made(deployment(accelerator=accelerator), *map(real_node, kinds)).architecture == want


def test_of_equal_architectures_the_smaller_one_that_fits_is_taken() -> None:
    nodes = real_node("h100-sxm"), real_node("h200")
    assert made(deployment(), *nodes).product == "NVIDIA-H100-80GB-HBM3"
    assert made(deployment("hf://Qwen/Qwen3-32B", parallelism={"tensor": 1}), *nodes).product == "NVIDIA-H200"


def test_of_a_model_of_unknown_size_the_most_capable_gpu_is_taken_only_on_request() -> None:
    nodes = real_node("l40s"), real_node("h200"), real_node("b200")
    assert made(deployment("hf://acme/unheard-of", accelerator={"policy": "MostCapable"}), *nodes).architecture == "sm_100"
    assert refusal(deployment("hf://acme/unheard-of"), *nodes)[0] == "ModelSizeUnknown"


def test_an_older_driver_names_leave_out_nvidia() -> None:
    old = real_node("a100", labels={"nvidia.com/gpu.product": "A100-SXM4-80GB"})
    plan = made(deployment(accelerator={"products": ["NVIDIA-A100-SXM4-80GB"]}), old)
    assert plan.product == "A100-SXM4-80GB"


def test_the_order_of_nodes_does_not_matter() -> None:
    nodes = [real_node(kind) for kind in ("h100-sxm", "h200", "b200", "gb10", "nfd-only")]
    plans = {made(deployment(), *order).model_dump_json() for order in itertools.permutations(nodes)}
    assert len(plans) == 1


def test_known_gpus_are_taken_before_unknown_ones() -> None:
    assert made(deployment(), real_node("nfd-only"), real_node("gb10")).architecture == "sm_121"


# Where the Pods may run.


def test_the_affinity_names_the_product_and_the_architecture_of_the_host() -> None:
    assert requirements(deployment(), real_node("h200")) == {
        "kubernetes.io/arch": ("In", ["amd64"]),
        "nvidia.com/gpu.product": ("In", ["NVIDIA-H200"]),
        "nvidia.com/gpu.slices.gi": ("DoesNotExist", None),
    }


def test_arm_machines_get_pods_for_arm() -> None:
    assert requirements(deployment(), real_node("gb200"))["kubernetes.io/arch"] == ("In", ["arm64"])


def test_without_a_product_the_affinity_names_the_compute_capability() -> None:
    got = requirements(deployment(), real_node("h200", labels={"nvidia.com/gpu.product": None}))
    assert got["nvidia.com/gpu.compute.major"] == ("In", ["9"])
    assert got["nvidia.com/gpu.compute.minor"] == ("In", ["0"])


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("gke-h100", "cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),
        ("eks-l40s", "karpenter.k8s.aws/instance-gpu-name", "l40s"),
        ("aks-a100", "node.kubernetes.io/instance-type", "Standard_NC24ads_A100_v4"),
        ("coreweave-h100", "gpu.nvidia.com/model", "H100_NVLINK_80GB"),
    ],
)
def test_where_a_cloud_tells_the_gpu_the_affinity_uses_its_label(kind: str, key: str, value: str) -> None:
    assert requirements(deployment(), real_node(kind))[key] == ("In", [value])


def test_nodes_whose_driver_is_too_old_for_the_image_are_kept_out() -> None:
    old = real_node(
        "b200", "old", labels={f"nvidia.com/cuda.runtime{v}.{p}": n for v in ("", "-version") for p, n in (("major", "12"), ("minor", "8"))}
    )
    got = requirements(deployment(), real_node("b200", "new"), old)
    assert got["nvidia.com/cuda.runtime-version.major"] == ("In", ["13"])


# Slices.


def test_a_slice_by_profile_under_both_strategies() -> None:
    request = deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb"}})
    single = made(request, real_node("h100-mig-single"))
    assert (single.resource, single.count, single.memory_mebibytes) == ("nvidia.com/gpu", 1, 9984)
    assert requirements(request, real_node("h100-mig-single"))["nvidia.com/gpu.product"] == ("In", ["NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"])
    mixed = made(request, real_node("h100-mig-mixed"))
    assert (mixed.resource, mixed.product) == ("nvidia.com/mig-1g.10gb", "NVIDIA-H100-80GB-HBM3")
    assert single.gpu == mixed.gpu == "MIG slice 1g.10gb of NVIDIA-H100-80GB-HBM3", "a list does not show a slice as a whole GPU"


def test_the_smallest_slice_on_which_the_model_fits_needs_no_request() -> None:
    mixed, single, whole = (real_node(kind) for kind in ("h100-mig-mixed", "h100-mig-single", "h100-sxm"))
    plan = made(deployment(SMALL), mixed, single, whole)
    assert (plan.resource, plan.mig_profile, plan.count) == ("nvidia.com/mig-1g.10gb", "1g.10gb", 1)
    alone = made(deployment(SMALL), single, whole)
    assert (alone.resource, alone.mig_profile, alone.resource_per_node) == ("nvidia.com/gpu", "1g.10gb", 56)
    assert requirements(deployment(SMALL), single, whole)["nvidia.com/gpu.product"] == ("In", ["NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"])
    assert made(deployment(), mixed, whole).resource == "nvidia.com/mig-3g.40gb"  # one of 20 GB holds the model, but no useful context
    assert made(deployment("hf://Qwen/Qwen3-32B"), mixed, whole).resource == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("spec", "resource"),
    [
        ({"accelerator": {"mig": {"mode": "Disabled"}}}, "nvidia.com/gpu"),
        ({"accelerator": {"mig": {"mode": "Enabled"}}}, "nvidia.com/mig-1g.10gb"),
        ({"accelerator": {"products": ["NVIDIA-H100-80GB-HBM3"]}}, "nvidia.com/gpu"),
        ({"accelerator": {"products": ["NVIDIA-H100-80GB-HBM3-MIG-2g.20gb"]}}, "nvidia.com/mig-2g.20gb"),
        ({"accelerator": {"policy": "MostCapable"}}, "nvidia.com/gpu"),
        ({"accelerator": {"count": 2}}, "nvidia.com/gpu"),
        ({"parallelism": {"tensor": 2}}, "nvidia.com/gpu"),
        ({"parallelism": {"data": 2}}, "nvidia.com/gpu"),
    ],
)
def test_what_keeps_a_model_on_whole_gpus_or_on_slices(spec: dict[str, Any], resource: str) -> None:
    plan = made(deployment(SMALL, **spec), real_node("h100-mig-mixed"), real_node("h100-sxm"))
    assert plan.resource == resource
    assert (plan.mig_profile is None) is (resource == "nvidia.com/gpu")


def test_a_model_of_unknown_size_gets_a_slice_only_where_there_is_no_whole_gpu() -> None:
    request = deployment("hf://acme/new-model", accelerator={"policy": "MostCapable"})
    assert made(request, real_node("h100-mig-mixed"), real_node("l4")).product == "NVIDIA-L4"
    assert made(request, real_node("h100-mig-mixed")).mig_profile == "3g.40gb"


def test_a_slice_of_unknown_memory_never_counts_as_large_enough() -> None:
    slices = real_node("gke-h100", labels={"cloud.google.com/gke-gpu-partition-size": "1g.10gb"})
    assert made(deployment(SMALL), slices, real_node("b200")).product == "NVIDIA-B200"
    assert made(deployment(SMALL), slices).mig_profile == "1g.10gb"


def test_a_plan_on_a_whole_gpu_stays_there_when_slices_appear() -> None:
    whole, mixed = real_node("h100-sxm"), real_node("h100-mig-mixed")
    before = planned(deployment(SMALL), whole).plan
    assert before is not None
    kept = planned(deployment(SMALL), whole, mixed, pinned=before)
    assert (kept.plan, kept.drift) == (before, ())
    changed = planned(deployment(SMALL, generation=2, replicas=2, service={"port": 81}), whole, mixed, pinned=before).plan
    assert changed is not None
    assert changed.mig_profile is None


def test_a_claim_for_slices_that_nobody_asked_for_names_their_profile() -> None:
    request = deployment(SMALL, accelerator={"allocation": "DRA"})
    plan = made(request, real_node("h100-mig-mixed"), slices=slices())
    assert (plan.resource, plan.mig_profile) == ("mig.nvidia.com", "1g.10gb")
    template = render_resource_claim_template(request, plan)
    assert "profile == '1g.10gb'" in str(template)


def test_where_only_whole_gpus_are_allowed_slices_are_named() -> None:
    request = deployment(accelerator={"mig": {"mode": "Disabled"}})
    reason, message = refusal(request, real_node("h100-mig-single"), real_node("h100-mig-mixed"))
    assert reason == "NoMatchingGPU"
    assert "Each replica needs 1 whole GPU, and no node has one." in message
    assert "MIG slices 56x 1g.10gb of NVIDIA H100 80GB (sm_90)" in message
    assert "Remove spec.accelerator.mig to use MIG slices too, or disable MIG on a node." in message
    _, message = refusal(deployment(accelerator={"products": ["NVIDIA-H100-80GB-HBM3"]}), real_node("h100-mig-mixed"))
    assert "(spec.accelerator.mig.profile: 2g.20gb)" in message  # the smallest on which the model fits
    _, message = refusal(deployment(parallelism={"tensor": 2}), real_node("h100-mig-mixed"))
    assert "A replica on 2 GPUs cannot use MIG slices. Disable MIG on a node, or add nodes with whole GPUs." in message


def test_a_profile_that_there_is_not_names_one_that_there_is() -> None:
    small = deployment("hf://Qwen/Qwen3-0.6B", accelerator={"mig": {"profile": "7g.80gb"}})
    _, message = refusal(small, real_node("h100-mig-single"))
    assert "1 MIG slice 7g.80gb" in message
    assert "spec.accelerator.mig.profile to one that nodes have (1g.10gb)" in message


def test_profiles_compare_as_labels_have_to_write_them() -> None:
    node = real_node("h100-mig-single", labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me"})
    assert made(deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb+me"}}), node).count == 1


def slices() -> tuple[dict[str, Any], ...]:
    fixed = device(profile="1g.10gb", memory="9984Mi", uuid=MIG_UUID, parent="GPU-1")
    return (resource_slice("h100-mig-mixed-0", device(uuid="GPU-1"), fixed),)


def test_a_mig_device_is_pinned_through_a_claim() -> None:
    request = deployment(SMALL, accelerator={"allocation": "DRA", "mig": {"uuids": [MIG_UUID]}})
    plan = made(request, real_node("h100-mig-mixed"), slices=slices())
    assert (plan.resource, plan.count, plan.memory_mebibytes) == ("mig.nvidia.com", 1, 9984)
    assert [r.key for r in plan.node_requirements] == ["kubernetes.io/arch"]


def test_a_uuid_that_no_slice_lists_is_refused() -> None:
    request = deployment(accelerator={"allocation": "DRA", "mig": {"uuids": ["MIG-gone"]}})
    _, message = refusal(request, real_node("h100-mig-mixed"), slices=slices())
    assert "MIG-gone" in message
    assert "Use the profile instead" in message


def test_a_product_that_no_node_has_is_answered_with_those_most_like_it() -> None:
    nodes = map(real_node, ("h200", "b200", "l40s", "h100-sxm", "gb10", "a100"))
    _, message = refusal(deployment(accelerator={"products": ["NVIDIA-H100"]}), *nodes)
    assert "(label nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3, NVIDIA-H200, " in message
    assert "gpu.product" not in refusal(deployment(accelerator={"products": ["H100"]}), real_node("nfd-only"))[1]


def test_weights_too_large_for_a_slice_call_for_a_larger_one() -> None:
    request = deployment(model={"uri": "hf://meta-llama/Llama-3.1-70B-Instruct"}, accelerator={"mig": {"profile": "1g.10gb"}})
    reason, message = refusal(request, real_node("h100-mig-mixed"))
    assert reason == "DoesNotFit"
    assert "does not fit on 1 MIG slice 1g.10gb of NVIDIA H100 80GB (sm_90). The weights take 131.4 GiB per device of 9.3 GiB." in message
    assert "tensor" not in message


def test_claims_without_the_driver_for_them() -> None:
    _, message = refusal(deployment(accelerator={"allocation": "DRA"}), real_node("h200"))
    assert "Each replica needs 1 GPU for dynamic resource allocation, and no node has one." in message
    assert "DRA driver" in message


# No match.


def test_what_was_asked_what_there_is_and_what_can_be_done() -> None:
    request = deployment(accelerator={"architectures": ["sm_100"]}, parallelism={"tensor": 4})
    _, message = refusal(request, real_node("h100-sxm", "a"), real_node("h100-sxm", "b"), real_node("h100-mig-invalid"))
    assert message == (
        "Each replica needs 4 whole GPUs of architecture sm_100 (Blackwell), and no node has them. "
        "The cluster has 2 nodes with 8x NVIDIA H100 80GB (sm_90); "
        "1 node with NVIDIA H100 80GB (sm_90), unavailable (its MIG layout is not uniform and its MIG layout is changing, state pending). "
        "Add sm_90 to spec.accelerator.architectures, remove that field, or add nodes with sm_100 GPUs."
    )


def test_what_would_serve_is_named_the_most_capable_first() -> None:
    nodes = map(real_node, ("rtx-pro-6000", "gb10", "h100-sxm", "b200", "h100-mig-single", "h100-time-sliced", "l40s"))
    _, message = refusal(deployment(accelerator={"architectures": ["sm_103"]}, parallelism={"tensor": 8}), *nodes)
    assert "Add sm_100, sm_90 or sm_120 to spec.accelerator.architectures" in message


def test_where_nothing_would_serve_only_new_nodes_help() -> None:
    _, message = refusal(deployment(accelerator={"architectures": ["sm_103"]}, parallelism={"tensor": 2}), real_node("h100-mig-single"))
    assert message.endswith("Add nodes with sm_103 GPUs.")


@pytest.mark.parametrize(
    ("spec", "kinds", "want"),
    [
        ({"accelerator": {"products": ["NVIDIA-H800"]}}, ("h200",), "nvidia.com/gpu.product"),
        ({"parallelism": {"tensor": 8}}, ("l40s",), "to 4 GPUs, or add nodes with 8 GPUs."),
        ({"parallelism": {"tensor": 2}}, ("h100-time-sliced",), "a replica could get the same one several times."),
        ({"accelerator": {"architectures": ["sm_90"]}}, ("nfd-only",), "vllm-operator.dev/gpu-architecture (for example sm_90)"),
        ({"accelerator": {"mig": {"profile": "1g.10gb"}}}, ("h200",), "enable MIG on a node"),
        ({"accelerator": {"mig": {"profile": "1g.10gb"}}}, ("rtx-5090",), "These GPUs do not support MIG."),
        ({"accelerator": {"mig": {"profile": "1g.10gb"}}}, ("rtx-5090", "h100-sxm"), "enable MIG on a node"),
    ],
)
def test_the_remedy_fits_what_came_nearest(spec: dict[str, Any], kinds: tuple[str, ...], want: str) -> None:
    reason, message = refusal(deployment(**spec), *map(real_node, kinds))
    assert reason == "NoMatchingGPU"
    assert want in message


def test_no_gpu_at_all() -> None:
    assert "GPU Operator" in refusal(deployment(), real_node("cpu"))[1]
    assert "knows of no NVIDIA GPU" in refusal(deployment())[1]


def test_a_node_that_cannot_be_used_now_is_worth_waiting_for() -> None:
    _, message = refusal(deployment(), real_node("h200", cordoned=True))
    assert "8x NVIDIA H200 141GB (sm_90), unavailable (it is cordoned)" in message
    assert "tries again automatically" in message


def test_the_list_of_what_there_is_stays_short() -> None:
    nodes = [
        real_node("l40s", f"n{n}", allocatable={"nvidia.com/gpu": str(n)}, labels={"nvidia.com/gpu.count": str(n)}) for n in range(1, 40)
    ]
    _, message = refusal(deployment(accelerator={"architectures": ["sm_100"]}), *nodes)
    assert "33 more kinds of nodes" in message
    assert len(message) < 1000


def test_a_shared_gpu_is_taken_when_it_is_named() -> None:
    named, model = {"products": ["NVIDIA-H100-80GB-HBM3-SHARED"]}, "hf://Qwen/Qwen3-0.6B"
    plan = made(deployment(model, accelerator=named), real_node("h100-time-sliced"))
    assert (plan.architecture, plan.resource) == ("sm_90", "nvidia.com/gpu")
    refused = planned(deployment(accelerator=named), real_node("h100-time-sliced")).planned
    assert (refused.reason, "Set --gpu-memory-utilization in spec.engine.args to a larger part" in refused.message) == ("DoesNotFit", True)
    args = [{"name": "--gpu-memory-utilization", "value": "0.5"}]
    assert made(deployment(accelerator=named, engine={"args": args}), real_node("h100-time-sliced")).count == 1


def test_unknown_gpus_are_used_and_the_kernels_left_to_vllm() -> None:
    outcome = planned(deployment(), real_node("nfd-only"))
    assert outcome.planned.reason == "GPUUnknown"
    assert outcome.plan is not None
    assert outcome.plan.architecture is None
    assert {choice.chosen_by for choice in outcome.plan.backends} <= {"Engine"}
    assert any("vllm-operator.dev/gpu-architecture" in note for note in outcome.plan.notes)


def test_fewer_slices_than_replicas_come_after_whole_gpus() -> None:
    nodes = real_node("h100-mig-mixed"), real_node("h100-sxm")
    assert made(deployment(replicas=1), *nodes).mig_profile == "3g.40gb"  # there is one
    plan = made(deployment(replicas=2), *nodes)
    assert plan.mig_profile is None
    assert "fits, but too few were free for all replicas" in [each.verdict for each in plan.candidates or ()]
    assert made(deployment(replicas=2), nodes[0]).mig_profile == "3g.40gb"


def test_slices_in_use_come_after_whole_gpus() -> None:
    mixed, whole = real_node("h100-mig-mixed"), real_node("h100-sxm")
    inventory = replace(inventory_of(mixed, whole), used={(mixed["metadata"]["name"], "nvidia.com/mig-3g.40gb"): 1})
    for seen in (inventory, replace(inventory, used=None, hidden=True)):
        outcome = plan(deployment(), seen, known())
        assert outcome.plan is not None
        assert outcome.plan.resource == "nvidia.com/gpu"


def test_gpus_that_pods_share_with_mps_are_taken_only_when_they_are_named() -> None:
    node = real_node("h100-time-sliced", labels={"nvidia.com/gpu.sharing-strategy": "mps"})
    reason, message = refusal(deployment("hf://Qwen/Qwen3-0.6B"), node)
    assert (reason, "set spec.accelerator.products to [NVIDIA-H100-80GB-HBM3-SHARED]" in message) == ("NoMatchingGPU", True)
    plan = made(deployment("hf://Qwen/Qwen3-0.6B", accelerator={"products": ["NVIDIA-H100-80GB-HBM3-SHARED"]}), node)
    assert "how much of its memory is left for the engine is unknown" in " ".join(plan.notes)
    assert "--gpu-memory-utilization" not in {argument.name for argument in plan.args}


def test_of_a_gpu_shared_by_time_slicing_the_engine_takes_its_part_after_all_whole_gpus() -> None:
    small = deployment("hf://Qwen/Qwen3-0.6B")
    alone = made(small, real_node("h100-time-sliced"))
    assert {a.name: a.value for a in alone.args}["--gpu-memory-utilization"] == "0.23"
    assert any("nothing isolates their memory" in note for note in alone.notes)
    for other in ("b200", "gb10", "h100-mig-single"):
        plan = made(small, real_node("h100-time-sliced"), real_node(other))
        assert "--gpu-memory-utilization" not in {argument.name for argument in plan.args}, other
        assert "1 x NVIDIA H100 80GB (sm_90), shared by 4 Pods" in {each.gpu for each in plan.candidates or ()}
