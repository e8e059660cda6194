"""Free GPUs: a plan prefers GPUs that are free, says which were not, and stays when they come and go."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gpus import bare_node, device, inventory_of, node_pool, real_node, resource_slice
from support.operators import Bench, controlled_by_deployment, llama
from support.plans import deployment, known
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment, selector_of
from vllm_operator.api.spec import SizingSpec
from vllm_operator.controller.inventory_reader import NODE_LISTS, InventoryCache
from vllm_operator.inventory.devices import read_used
from vllm_operator.kube.client import POD, RESOURCE_CLAIM, Forbidden
from vllm_operator.planning.pinning import Standing
from vllm_operator.planning.planner import plan as make_plan

QWEN = "hf://Qwen/Qwen3-8B"
DEDICATED = {"key": "team", "value": "a", "effect": "NoSchedule"}


def pod(node: str, gpus: int, name: str = "other", resource: str = "nvidia.com/gpu", **labels: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {resource: str(gpus)}}}
    metadata = {"name": f"{name}-on-{node}", "namespace": "default", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def planned(
    resource: VLLMDeployment, *nodes: dict[str, Any], used: tuple[dict[str, Any], ...] = (), pools: tuple[Any, ...] = (), pinned: Any = None
) -> Plan:
    inventory = replace(inventory_of(*nodes, node_pools=pools), used=read_used(used).without(("default", "demo")))
    made = make_plan(resource, inventory, known(), pinned=pinned).plan
    assert made is not None
    return made


def full(*nodes: str) -> tuple[dict[str, Any], ...]:
    return tuple(pod(node, 64) for node in nodes)


def verdicts(plan: Plan) -> dict[str, str]:
    return {each.gpu: each.verdict for each in plan.candidates or ()}


L40S, H100, B200 = real_node("l40s", "l40s"), real_node("h100-sxm", "h100"), real_node("b200", "b200")


def test_the_next_larger_gpu_is_used_if_the_smallest_is_not_free_and_the_plan_says_so() -> None:
    assert planned(deployment(QWEN), L40S, H100, B200).product == "NVIDIA-L40S"
    made = planned(deployment(QWEN), L40S, H100, B200, used=(*full("l40s"), pod("h100", 5)))
    assert made.product == "NVIDIA-H100-80GB-HBM3"
    assert made.notes[0] == (
        "Uses NVIDIA H100 80GB (sm_90), because no NVIDIA L40S (sm_89) was free when this plan was made. To wait for NVIDIA L40S (sm_89) "
        "instead, set spec.accelerator.products to [NVIDIA-L40S]."
    )
    assert verdicts(made)["1 x NVIDIA L40S (sm_89)"] == "fits, but none was free"


def test_what_the_note_says_is_a_spec_that_waits() -> None:
    made = planned(deployment(QWEN, accelerator={"products": ["NVIDIA-L40S"]}), L40S, H100, used=full("l40s"))
    assert made.product == "NVIDIA-L40S"
    assert made.notes[0] == (
        "Pods wait until there are enough GPUs: no NVIDIA L40S (sm_89) was free when this plan was made. Add nodes, or scale down what "
        "uses these GPUs."
    )


def test_if_nothing_is_free_the_smallest_is_waited_for() -> None:
    made = planned(deployment(QWEN), L40S, H100, B200, used=full("l40s", "h100", "b200"))
    assert made.product == "NVIDIA-L40S"
    assert made.notes[0] == (
        "Pods wait until there are enough GPUs: no NVIDIA L40S (sm_89) was free when this plan was made, and no other GPU that fits was. "
        "Until the first Pod has a node, the operator takes another GPU that fits as soon as one is free. Add nodes, or scale down what "
        "uses these GPUs."
    )


def test_all_replicas_need_a_free_gpu() -> None:
    made = planned(deployment(QWEN, replicas=4), L40S, H100, used=(pod("l40s", 2),))
    assert made.product == "NVIDIA-H100-80GB-HBM3"
    assert verdicts(made)["1 x NVIDIA L40S (sm_89)"] == "fits, but was free for only 2 of 4 replicas"
    assert planned(deployment(QWEN, replicas=2), L40S, H100, used=(pod("l40s", 2),)).product == "NVIDIA-L40S"
    assert planned(deployment(QWEN, replicas=0), L40S, H100, used=full("l40s")).product == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(("gpus", "product"), [(4, "NVIDIA-H100-80GB-HBM3"), (5, "NVIDIA-B200")])
def test_each_pod_of_a_replica_needs_a_node_of_its_own(gpus: int, product: str) -> None:
    nodes = [real_node(kind, f"{kind}-{number}") for kind in ("h100-sxm", "b200") for number in (1, 2)]
    resource = deployment(QWEN, parallelism={"tensor": 4, "nodes": 2}, cache={"storage": "EmptyDir"})
    assert planned(resource, *nodes, used=(pod("h100-sxm-1", gpus),)).product == product


def test_devices_of_a_replica_must_be_free_on_one_node() -> None:
    nodes = [real_node("h100-sxm", f"h100-{number}") for number in range(4)]
    model = deployment("hf://meta-llama/Llama-3.3-70B-Instruct")
    assert (made := planned(model, *nodes, B200, used=full("b200"))).count == 4, made.product
    one_each = tuple(pod(f"h100-{number}", 7) for number in range(4))
    assert planned(model, *nodes, B200, used=one_each).product == "NVIDIA-B200"
    waiting = planned(model, *nodes, B200, used=(*one_each, *full("b200")))
    assert waiting.product == "NVIDIA-B200"


def test_several_gpus_that_are_free_come_before_one_that_is_not() -> None:
    made = planned(deployment("hf://meta-llama/Llama-3.3-70B-Instruct"), H100, B200, used=full("b200"))
    assert (made.product, made.count) == ("NVIDIA-H100-80GB-HBM3", 4)
    said = "Uses NVIDIA H100 80GB (sm_90), because no NVIDIA B200 (sm_100) was free when this plan was made."
    assert any(note.startswith(said) for note in made.notes)


def test_nodes_of_one_product_count_together_because_the_affinity_does_not_tell_them_apart() -> None:
    small = real_node("l40s", "small", labels={"nvidia.com/gpu.count": "1"}, allocatable={"nvidia.com/gpu": "1"})
    made = planned(deployment(QWEN, replicas=2), L40S, small, H100, used=(pod("l40s", 3),))
    assert made.product == "NVIDIA-L40S"


def test_a_node_whose_taint_the_pods_do_not_tolerate_has_nothing_free() -> None:
    closed = {**H100, "spec": {"taints": [DEDICATED]}}
    assert planned(deployment(QWEN), L40S, closed, used=full("l40s")).product == "NVIDIA-L40S"
    template = {"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}}
    assert planned(deployment(QWEN, podTemplate=template), L40S, closed, used=full("l40s")).product == "NVIDIA-H100-80GB-HBM3"


def test_a_node_selector_limits_what_counts_as_free() -> None:
    other = real_node("l40s", "other", labels={"zone": "b"})
    template = {"spec": {"nodeSelector": {"zone": "b"}}}
    here = {**H100, "metadata": {**H100["metadata"], "labels": {**H100["metadata"]["labels"], "zone": "b"}}}
    made = planned(deployment(QWEN, podTemplate=template), L40S, other, here, used=full("other"))
    assert made.product == "NVIDIA-H100-80GB-HBM3"


def test_the_order_of_the_spec_holds_among_those_that_are_free() -> None:
    wanted = {"products": ["NVIDIA-B200", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"]}
    made = planned(deployment(QWEN, accelerator=wanted), L40S, H100, B200, used=full("b200"))
    assert made.product == "NVIDIA-H100-80GB-HBM3"
    assert made.notes[0].startswith("Uses NVIDIA H100 80GB (sm_90), because no NVIDIA B200 (sm_100) was free")


@pytest.mark.parametrize("policy", ["SmallestThatFits", "MostCapable"])
def test_every_policy_prefers_what_is_free(policy: str) -> None:
    request = deployment(QWEN, accelerator={"policy": policy})
    free = planned(request, L40S, H100, B200)
    node = {"NVIDIA-L40S": "l40s", "NVIDIA-B200": "b200"}[str(free.product)]
    assert planned(request, L40S, H100, B200, used=full(node)).product != free.product


def test_a_new_node_comes_before_waiting_for_an_equal_gpu_but_not_a_larger_one() -> None:
    def added(gpu: str) -> tuple[Any, ...]:
        return (node_pool("spot", gpu_name=[gpu], gpu_count=["1"]),)

    made = planned(deployment(QWEN), L40S, used=full("l40s"), pools=added("l40s"))
    assert made.provisioner == "NodePool spot"
    assert made.notes[0] == (
        "The plan is for a node that NodePool spot would add, because no NVIDIA L40S (sm_89) was free when this plan was made."
    )
    assert planned(deployment(QWEN), L40S, used=(), pools=added("l40s")).provisioner is None
    made = planned(deployment(QWEN), L40S, used=full("l40s"), pools=added("b200"))
    assert (made.product, made.provisioner) == ("NVIDIA-L40S", None)
    assert made.notes[0].endswith("or set spec.accelerator.products to [NVIDIA-B200], of which NodePool spot would add a node.")


@pytest.mark.parametrize("managed_by", ["vllm-operator", "Helm"])
def test_a_new_plan_keeps_the_gpu_in_use_whatever_is_free_and_its_own_pods_do_not_count(managed_by: str) -> None:
    """`podTemplate` may set the label `managed-by`; the controller says whose a Pod is."""
    own = pod("l40s", 4, "demo")
    own["metadata"] |= controlled_by_deployment("demo", selector_of(deployment(QWEN)) | {"app.kubernetes.io/managed-by": managed_by})
    assert planned(deployment(QWEN), L40S, H100, used=(own,)).product == "NVIDIA-L40S"
    pinned = planned(deployment(QWEN), L40S, H100, used=full("l40s"))
    edited = deployment(QWEN, generation=2, backends={"attention": "TRITON_ATTN"})
    made = planned(edited, L40S, H100, pinned=pinned)
    assert made.product == pinned.product == "NVIDIA-H100-80GB-HBM3"
    asked = deployment(QWEN, annotations={"vllm-operator.dev/replan": "now"})
    assert planned(asked, L40S, H100, pinned=pinned).product == "NVIDIA-L40S"


def test_a_plan_for_a_whole_gpu_and_one_for_a_shared_gpu_of_the_same_product_stay_what_they_are() -> None:
    small, shared = deployment("hf://Qwen/Qwen3-0.6B"), real_node("h100-time-sliced", "shared")
    inventory = inventory_of(H100, shared)
    for first in (H100, shared):
        pinned = planned(small, first)
        outcome = make_plan(small, inventory, known(), pinned=pinned)
        assert (outcome.plan, outcome.drift) == (pinned, ())
        edited = deployment("hf://Qwen/Qwen3-0.6B", generation=2, backends={"attention": "TRITON_ATTN"})
        assert planned(edited, H100, shared, pinned=pinned).time_slices == pinned.time_slices


def test_a_model_of_unknown_size_takes_a_free_gpu_but_never_one_that_is_too_small() -> None:
    any_gpu = deployment("hf://acme/unheard-of", accelerator={"policy": "MostCapable"})
    assert planned(any_gpu, L40S, B200, used=full("b200")).product == "NVIDIA-L40S"
    weighed = deployment("hf://acme/unheard-of", model={"facts": {"weightSize": "60Gi"}}, parallelism={"tensor": 1})
    assert planned(weighed, L40S, B200, used=full("b200")).product == "NVIDIA-B200"


def claim(device: str, *, node: str = "l40s", pod_uid: str = "other", driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    """A ResourceClaim that holds a device of a node."""
    results = [{"request": "gpu", "driver": driver, "pool": node, "device": device}]
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod_uid}]
    metadata = {"name": f"{pod_uid}-{device}", "namespace": "default", "ownerReferences": owners}
    manifest = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    return {**manifest, "spec": {}, "status": {"allocation": {"devices": {"results": results}}}}


def with_devices() -> tuple[dict[str, Any], ...]:
    """ResourceSlices of two nodes: two L40S, one H100."""
    l40s = [{**device("NVIDIA L40S", capability="8.9.0", memory="46068Mi"), "name": f"gpu-{number}"} for number in range(2)]
    slices = resource_slice("l40s", *l40s), resource_slice("h100", device())
    for entry in slices:
        entry["spec"]["pool"] = {"name": entry["spec"]["nodeName"]}
    return slices


@pytest.mark.parametrize(
    ("claims", "product"),
    [
        ([], "NVIDIA-L40S"),
        ([claim("gpu-0")], "NVIDIA-L40S"),
        ([claim("gpu-0"), claim("gpu-1")], "NVIDIA-H100-80GB-HBM3"),
        ([claim("gpu-0"), claim("gpu-1", driver="gpu.example.com")], "NVIDIA-L40S"),
        ([claim("gpu-0"), claim("gpu-1", pod_uid="own")], "NVIDIA-L40S"),
    ],
)
def test_devices_that_claims_of_others_hold_are_not_free(claims: list[Any], product: str) -> None:
    nodes = [bare_node("l40s"), bare_node("h100")]
    held = read_used([], claims)
    inventory = replace(inventory_of(*nodes, slices=with_devices()), used={}, allocated=held.claimed_by_others({"own"}))
    made = make_plan(deployment(QWEN, accelerator={"allocation": "DRA"}), inventory, known()).plan
    assert made is not None
    assert made.product == product


async def test_claims_are_listed_where_there_are_devices_for_them() -> None:
    bench = Bench(bare_node("l40s"), bare_node("h100"))
    for number, entry in enumerate(with_devices()):
        bench.cluster.put({"apiVersion": "resource.k8s.io/v1", "metadata": {"name": f"s{number}"}, **entry})
    bench.cluster.put(claim("gpu-0"))
    bench.cluster.put(claim("gpu-1"))
    bench.cluster.put(llama(accelerator={"allocation": "DRA"}))
    await bench.settle()
    assert bench.plan().product == "NVIDIA-H100-80GB-HBM3"
    assert any("no NVIDIA L40S (sm_89) was free" in note for note in bench.plan().notes)
    bench.cluster.fail("find", RESOURCE_CLAIM, Forbidden("no", verb="list", resource="resourceclaims"), times=9)
    bench.cluster.put(llama("second", accelerator={"allocation": "DRA"}))
    await bench.settle(("default", "second"))
    assert bench.plan("second").product == "NVIDIA-L40S"


HOSTILE = st.recursive(
    st.none() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner)
)


@given(st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), HOSTILE)), HOSTILE)
def test_no_claim_makes_counting_fail(claims: list[dict[str, Any]], results: Any) -> None:
    read_used([], [*claims, {"status": {"allocation": {"devices": {"results": results}}}, "metadata": {"ownerReferences": results}}])


async def test_the_pods_of_others_that_come_and_go_change_no_plan() -> None:
    bench = Bench(L40S, H100)
    bench.cluster.put(pod("l40s", 4))
    bench.cluster.put(llama())
    await bench.settle()
    assert bench.plan().product == "NVIDIA-H100-80GB-HBM3"
    revision = bench.status().plan
    bench.cluster.remove(POD, "default", "other-on-l40s")
    bench.cluster.put(pod("h100", 7))
    writes = len(bench.cluster.writes)
    await bench.settle()
    assert bench.status().plan == revision
    assert len(bench.cluster.writes) == writes


async def test_a_plan_that_is_not_pinned_yet_does_not_change_with_the_pods_of_others() -> None:
    bench = Bench(L40S, H100)
    inventory = await bench.inventory.read()
    resource = VLLMDeployment.parse({**llama(), "metadata": {**llama()["metadata"], "uid": "1", "generation": 1}})
    first = await bench.inventory.count_free(resource, inventory, [], Standing.NEW, now=bench.now)
    bench.cluster.put(pod("l40s", 4))
    assert await bench.inventory.count_free(resource, inventory, [], Standing.NEW, now=bench.now) is first
    # an edited preset changes the spec of the same generation
    changed = resource.model_copy(update={"spec": resource.spec.model_copy(update={"sizing": SizingSpec(concurrency=2)})})
    assert (await bench.inventory.count_free(changed, inventory, [], Standing.NEW, now=bench.now)).used == {("l40s", "nvidia.com/gpu"): 4}


async def test_a_cluster_with_one_kind_of_gpu_lists_no_pods() -> None:
    bench = Bench(real_node("h200", "a"), real_node("h200", "b"))
    bench.cluster.put(llama())
    asked = []
    bench.inventory.used_devices = lambda **_: asked.append(1)  # type: ignore[assignment,method-assign]
    await bench.settle()
    assert (bench.plan().product, asked) == ("NVIDIA-H200", [])


@pytest.mark.parametrize(("nodes", "lists", "pages"), [(NODE_LISTS, NODE_LISTS, 0), (NODE_LISTS + 1, 1, 2), (200, 1, 2)])
async def test_the_number_of_requests_does_not_grow_with_the_nodes(nodes: int, lists: int, pages: int) -> None:
    bench = Bench(*(real_node("h200", f"n{number}") for number in range(nodes)))
    for number in range(250):
        bench.cluster.put(pod(f"n{number % nodes}", 1, f"p{number}"))
    bench.cluster.put(pod("", 1, "pending"))
    await bench.inventory.read()
    before = dict(bench.cluster.calls)
    held = await bench.inventory.used_devices()
    assert held is not None
    assert sum(held.all.values()) == 250
    assert bench.cluster.calls["find"] - before["find"] == lists
    assert bench.cluster.calls["page"] - before.get("page", 0) == pages


async def test_many_plans_at_a_time_share_one_list_of_the_pods() -> None:
    import asyncio

    bench = Bench(L40S, H100)
    bench.cluster.put(pod("l40s", 1))
    await bench.inventory.read()
    before = bench.cluster.calls["find"]
    first, *others = await asyncio.gather(*(bench.inventory.used_devices() for _ in range(50)))
    assert all(other is first for other in others)
    assert bench.cluster.calls["find"] - before <= 4


async def test_an_operator_for_some_namespaces_lists_no_pods_unless_the_policy_needs_them() -> None:
    bench = Bench(L40S, H100)
    inventory = InventoryCache(bench.cluster, bench.read_inventory, sees_all_pods=False, clock=lambda: 0.0)
    assert await inventory.used_devices(insist=False) is None
    assert await inventory.used_devices() is not None
