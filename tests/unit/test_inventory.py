"""Reading the GPUs of a cluster: what real nodes say, and what broken ones say."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gpus import KINDS, bare_node, device, inventory_of, known_gpus, real_node, resource_slice
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.inventory.pools import Pool, Source, Taint

GFD, CLOUD = Source.GFD, Source.CLOUD


def only(*nodes: dict[str, Any], slices: tuple[dict[str, Any], ...] = ()) -> Pool:
    (pool,) = inventory_of(*nodes, slices=slices).pools
    return pool


@pytest.mark.parametrize(
    ("kind", "architecture", "product", "memory", "count", "host", "cuda", "source"),
    [
        ("a100", "sm_80", "NVIDIA-A100-SXM4-80GB", 81920, 8, "amd64", (12, 4), GFD),
        ("l40s", "sm_89", "NVIDIA-L40S", 46068, 4, "amd64", (12, 8), GFD),
        ("h100-sxm", "sm_90", "NVIDIA-H100-80GB-HBM3", 81559, 8, "amd64", (12, 8), GFD),
        ("h100-sxm-old-driver", "sm_90", "NVIDIA-H100-80GB-HBM3", 81559, 8, "amd64", (12, 2), GFD),
        ("h200", "sm_90", "NVIDIA-H200", 143771, 8, "amd64", (12, 8), GFD),
        ("gh200", "sm_90", "NVIDIA-GH200-480GB", 97871, 1, "arm64", (12, 8), GFD),
        ("b200", "sm_100", "NVIDIA-B200", 183359, 8, "amd64", (13, 0), GFD),
        ("gb200", "sm_100", "NVIDIA-GB200", 189471, 4, "arm64", (13, 0), GFD),
        ("b300", "sm_103", "NVIDIA-B300-SXM6-AC", 275040, 8, "amd64", (13, 0), GFD),
        ("rtx-pro-6000", "sm_120", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97887, 8, "amd64", (13, 0), GFD),
        ("rtx-5090", "sm_120", "NVIDIA-GeForce-RTX-5090", 32607, 2, "amd64", (13, 0), GFD),
        ("gb10", "sm_121", "NVIDIA-GB10", None, 1, "arm64", (13, 0), GFD),
        ("gke-h100", "sm_90", "NVIDIA-H100-80GB-HBM3", 81559, 8, "amd64", None, CLOUD),
        ("eks-l40s", "sm_89", "NVIDIA-L40S", 45776, 4, "amd64", None, CLOUD),
        ("aks-a100", "sm_80", "NVIDIA-A100-80GB-PCIe", 81920, 1, "amd64", None, CLOUD),
        ("coreweave-h100", "sm_90", "NVIDIA-H100-80GB-HBM3", 81559, 8, "amd64", None, CLOUD),
        ("nfd-only", None, None, None, 2, "amd64", None, Source.UNKNOWN),
    ],
)
def test_real_nodes_tell_what_they_have(
    kind: str,
    architecture: str | None,
    product: str | None,
    memory: int | None,
    count: int,
    host: str,
    cuda: tuple[int, int] | None,
    source: Source,
) -> None:
    pool = only(real_node(kind))
    assert (pool.architecture, pool.product, pool.memory_mebibytes, pool.count) == (architecture, product, memory, count)
    assert (pool.host, pool.cuda, pool.source, pool.resource) == (host, cuda, source, "nvidia.com/gpu")
    assert (pool.mig_profile, pool.shared, pool.problems) == (None, False, ())


@pytest.mark.parametrize(
    ("taint", "toleration", "want"),
    [
        (("a", "b", "NoSchedule"), {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}, True),
        (("a", "b", "NoSchedule"), {"key": "a", "value": "b"}, True),
        (("a", "b", "NoSchedule"), {"key": "a", "operator": "Exists"}, True),
        (("a", "b", "NoExecute"), {"operator": "Exists"}, True),
        (("a", "", "NoSchedule"), {"key": "a"}, True),
        (("a", "b", "NoSchedule"), {"key": "a", "value": "c"}, False),
        (("a", "b", "NoSchedule"), {"key": "a", "operator": "Exists", "effect": "NoExecute"}, False),
        (("a", "b", "NoSchedule"), {"key": "c", "operator": "Exists"}, False),
        (("a", "b", "NoSchedule"), {}, False),
        (("a", "b", "NoSchedule"), "nonsense", False),
    ],
)
def test_a_taint_is_tolerated_as_the_scheduler_understands_it(taint: tuple[str, str, str], toleration: Any, want: bool) -> None:
    assert Taint(*taint).is_tolerated([toleration]) is want


def test_the_taints_of_nodes_with_the_gpu_are_known() -> None:
    node = real_node("h100-sxm", "gpu-1")
    node["spec"] = {"taints": [{"key": "z", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}, {"key": 7}, "?"]}
    inventory = inventory_of(node, real_node("b200", "gpu-2"))
    assert inventory.taints_of("nvidia.com/gpu", "sm_90") == {"gpu-1": (Taint("z", "", "NoSchedule"),)}
    assert set(inventory.taints_of("nvidia.com/gpu", None)) == {"gpu-1", "gpu-2"}
    assert inventory.taints_of("nvidia.com/mig-1g.10gb", None) == {}


def test_a_machine_without_gpu_is_in_no_pool() -> None:
    inventory = inventory_of(real_node("cpu"))
    assert inventory.pools == ()


# Rule 1: the compute capability alone says what a GPU is.


@pytest.mark.parametrize("family", ["ampere", "undefined", "", "hopper"])
def test_the_family_label_is_not_believed(family: str) -> None:
    assert only(real_node("l40s", labels={"nvidia.com/gpu.family": family})).architecture == "sm_89"


def test_a_product_without_compute_capability_does_not_make_an_architecture() -> None:
    pool = only(real_node("h100-sxm", labels={"nvidia.com/gpu.compute.major": None, "nvidia.com/gpu.compute.minor": None}))
    assert (pool.architecture, pool.product, pool.source) == (None, "NVIDIA-H100-80GB-HBM3", Source.UNKNOWN)


def test_an_architecture_that_the_catalog_does_not_know_is_taken_as_it_is() -> None:
    labels = {"nvidia.com/gpu.compute.major": "13", "nvidia.com/gpu.compute.minor": "0", "nvidia.com/gpu.product": "NVIDIA-R100"}
    pool = only(real_node("b200", labels=labels))
    assert pool.architecture == "sm_130"


# Rule 2: a missing label is not a no; the next source in the chain is asked.


def test_the_owner_of_a_node_can_say_what_it_is() -> None:
    pool = only(real_node("nfd-only", labels={"vllm-operator.dev/gpu-architecture": "sm_90"}))
    assert (pool.architecture, pool.source) == ("sm_90", Source.USER)
    assert pool.labels == (("vllm-operator.dev/gpu-architecture", "sm_90"),)


def test_feature_discovery_beats_the_cloud_and_the_cloud_beats_the_owner() -> None:
    cloud = {"cloud.google.com/gke-accelerator": "nvidia-b200", "vllm-operator.dev/gpu-architecture": "sm_80"}
    assert only(real_node("h200", labels=cloud)).architecture == "sm_90"
    assert only(real_node("nfd-only", labels=cloud)).architecture == "sm_100"


def test_an_unknown_cloud_value_leaves_the_word_to_the_owner() -> None:
    labels = {"cloud.google.com/gke-accelerator": "nvidia-x999", "vllm-operator.dev/gpu-architecture": "sm_90"}
    assert only(real_node("nfd-only", labels=labels)).architecture == "sm_90"


def test_resource_slices_beat_labels() -> None:
    slices = (resource_slice("h100-sxm-0", *[device("NVIDIA H200", memory="143771Mi")] * 8),)
    plugin = next(p for p in inventory_of(real_node("h100-sxm"), slices=slices).pools if not p.claims)
    assert (plugin.architecture, plugin.memory_mebibytes, plugin.cuda, plugin.source) == ("sm_90", 143771, (13, 0), Source.RESOURCE_SLICE)


@pytest.mark.parametrize(
    ("instance", "architecture"),
    [
        ("a2-highgpu-1g", "sm_80"),
        ("g2-standard-48", "sm_89"),
        ("a3-megagpu-8g", "sm_90"),
        ("a3-ultragpu-8g", "sm_90"),
        ("a4-highgpu-8g", "sm_100"),
        ("a4x-highgpu-4g", "sm_100"),
        ("g4-standard-48", "sm_120"),
    ],
)
def test_machine_types_tell_the_gpu(instance: str, architecture: str) -> None:
    node = bare_node(labels={"node.kubernetes.io/instance-type": instance}, allocatable={"nvidia.com/gpu": "1"})
    assert only(node).architecture == architecture


# Rule 3: memory is optional, and means the slice under `single` and the whole GPU under `mixed`.


def test_slices_have_their_own_memory_under_both_strategies() -> None:
    single = only(real_node("h100-mig-single"))
    assert (single.resource, single.count, single.mig_profile, single.memory_mebibytes) == ("nvidia.com/gpu", 56, "1g.10gb", 9984)
    mixed = {pool.mig_profile: pool for pool in inventory_of(real_node("h100-mig-mixed")).pools}
    assert {profile: (pool.resource, pool.count, pool.memory_mebibytes) for profile, pool in mixed.items()} == {
        "1g.10gb": ("nvidia.com/mig-1g.10gb", 2, 9984),
        "2g.20gb": ("nvidia.com/mig-2g.20gb", 1, 20096),
        "3g.40gb": ("nvidia.com/mig-3g.40gb", 1, 40320),
    }


def test_whole_gpus_and_slices_of_one_node_are_two_pools() -> None:
    node = real_node(
        "h100-mig-mixed", allocatable={"nvidia.com/gpu": "4"}, labels={"nvidia.com/gpu.count": "5", "nvidia.com/gpu.replicas": "1"}
    )
    pools = inventory_of(node).pools
    assert {(p.resource, p.mig_profile, p.memory_mebibytes) for p in pools if p.mig_profile in (None, "1g.10gb")} == {
        ("nvidia.com/gpu", None, 81559),
        ("nvidia.com/mig-1g.10gb", "1g.10gb", 9984),
    }


# Rule 4: nodes that cannot be used, and why.


@pytest.mark.parametrize(
    ("node", "want"),
    [
        (real_node("h100-mig-invalid"), "MIG layout is not uniform"),
        (real_node("h100-mig-invalid"), "its MIG layout is changing, state pending"),
        (real_node("h100-mig-single", labels={"nvidia.com/mig.config.state": "rebooting"}), "state rebooting"),
        (real_node("h100-mig-single", labels={"nvidia.com/mig.config.state": "failed"}), "MIG layout failed"),
        (real_node("h200", labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"}), "driver is being upgraded"),
        (real_node("h200", labels={"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}), "upgrade of its GPU driver failed"),
        (real_node("h200", cordoned=True), "cordoned"),
        (real_node("h200", conditions=[{"type": "Ready", "status": "Unknown"}]), "not ready"),
        (real_node("h200", allocatable={"nvidia.com/gpu": "0"}), "check the device plugin"),
    ],
)
def test_a_node_that_cannot_be_used_says_why(node: dict[str, Any], want: str) -> None:
    assert want in "; ".join(only(node).problems)


@pytest.mark.parametrize(
    "node",
    [
        real_node("h200", labels={"nvidia.com/mig.config.state": None, "nvidia.com/gpu-driver-upgrade-state": None}),
        real_node("h200", labels={"nvidia.com/gpu-driver-upgrade-state": ""}),
        real_node("h200", conditions=[{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]),
    ],
)
def test_absent_states_are_no_problem(node: dict[str, Any]) -> None:
    assert only(node).problems == ()


@pytest.mark.parametrize(("amount", "count"), [("1k", 1000), ("100k", 100_000), ("2e3", 2000), ("8000m", 8), (8, 8), ("1Ki", 1024)])
def test_a_number_of_devices_is_a_quantity(amount: Any, count: int) -> None:
    inventory = inventory_of(real_node("gke-h100", allocatable={"nvidia.com/gpu": amount}))
    assert [pool.count for pool in inventory.pools] == [count]
    assert not inventory.notes


@pytest.mark.parametrize("amount", ["500m", "-1", "NaN", "1e999999999", "9" * 100_000, "1_000", True, None, {}])
def test_what_is_no_number_of_devices_is_reported(amount: Any) -> None:
    inventory = inventory_of(real_node("gke-h100", allocatable={"nvidia.com/gpu": amount}))
    assert any("the amount of nvidia.com/gpu has the invalid value" in note for note in inventory.notes)


@pytest.mark.parametrize(
    "node",
    [
        real_node("h100-time-sliced"),
        real_node(
            "h200", labels={"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}, allocatable={"nvidia.com/gpu": "32"}
        ),
        real_node("h200", labels={"nvidia.com/gpu.replicas": "2"}, allocatable={"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "16"}),
        real_node("gke-h100", labels={"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}),
        real_node("gke-h100", allocatable={"nvidia.com/gpu": "16"}),
    ],
)
def test_shared_gpus_are_distinguished(node: dict[str, Any]) -> None:
    assert only(node).shared


# Rule 11: several kinds of GPU in one node, of which GFD writes one.


def test_labels_that_describe_only_some_of_the_gpus_are_not_relied_on() -> None:
    inventory = inventory_of(real_node("h100-sxm", labels={"nvidia.com/gpu.count": "4"}))
    assert (inventory.pools[0].architecture, inventory.pools[0].labels) == (None, ())
    assert "describe only 4 of 8 GPUs" in inventory.notes[0]


def test_resource_slices_tell_the_devices_of_a_mixed_node_apart() -> None:
    slices = (resource_slice("mixed", device(), device(), device("NVIDIA A100-SXM4-80GB", capability="8.0.0", memory="81920Mi")),)
    pools = inventory_of(bare_node("mixed"), slices=slices).pools
    assert {(p.architecture, p.count, p.resource) for p in pools} == {("sm_90", 2, "gpu.nvidia.com"), ("sm_80", 1, "gpu.nvidia.com")}


# ResourceSlices.


def test_fixed_mig_devices_hide_the_gpu_that_they_are_cut_from() -> None:
    slices = (
        resource_slice(
            "n", device(uuid="GPU-1"), device(uuid="GPU-2"), device(profile="3g.40gb", memory="40320Mi", uuid="MIG-a", parent="GPU-1")
        ),
    )
    pools = inventory_of(bare_node("n"), slices=slices).pools
    assert {(p.resource, p.mig_profile, p.count, p.uuids) for p in pools} == {
        ("gpu.nvidia.com", None, 1, ("GPU-2",)),
        ("mig.nvidia.com", "3g.40gb", 1, ("MIG-a",)),
    }


def test_devices_without_memory_and_of_other_drivers_do_no_harm() -> None:
    slices = (
        resource_slice("n", device("NVIDIA GB10", capability="12.1.0", memory=None)),
        resource_slice("n", {"name": "channel-0", "attributes": {"type": {"string": "channel"}}}, driver="compute-domain.nvidia.com"),
        {"kind": "ResourceSlice", "spec": {"driver": "gpu.nvidia.com", "allNodes": True, "devices": [device()]}},
    )
    pool = only(bare_node("n"), slices=slices)
    assert (pool.architecture, pool.product, pool.memory_mebibytes) == ("sm_121", "NVIDIA-GB10", None)


def test_the_older_form_of_resource_slices_is_read_too() -> None:
    nested = {"name": "gpu-0", "basic": {key: value for key, value in device().items() if key != "name"}}
    assert only(bare_node("n"), slices=(resource_slice("n", nested),)).architecture == "sm_90"


# Grouping.


def test_equal_nodes_are_one_pool_whatever_the_order() -> None:
    nodes = [real_node(kind, f"{kind}-{index}") for kind in KINDS for index in range(3)]
    want = read_inventory(nodes, (), known_gpus())
    assert len(next(pool for pool in want.pools if pool.product == "NVIDIA-H200").nodes) == 3
    for seed in range(5):
        shuffled = list(nodes)
        random.Random(seed).shuffle(shuffled)
        assert read_inventory(shuffled, (), known_gpus()) == want


def test_a_node_file_without_status_is_read_by_its_labels() -> None:
    node = real_node("h200")
    del node["status"]
    assert (only(node).count, only(node).problems) == (8, ())


# Malformed input: labels are written by many tools, and by hand.

LABELS = (
    "nvidia.com/gpu.compute.major",
    "nvidia.com/gpu.compute.minor",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.product",
    "nvidia.com/mig.config.state",
    "nvidia.com/mig-1g.10gb.memory",
    "nvidia.com/cuda.runtime-version.major",
    "nvidia.com/cuda.driver-version.full",
    "vllm-operator.dev/gpu-architecture",
    "cloud.google.com/gke-accelerator",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/arch",
)


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        ({"nvidia.com/gpu.compute.major": "nine"}, "gpu.compute.major has the invalid value 'nine'"),
        ({"nvidia.com/gpu.compute.major": "900"}, "capability 900.0 in its labels is impossible"),
        ({"nvidia.com/gpu.memory": "80GB"}, "gpu.memory has the invalid value"),
        ({"nvidia.com/cuda.runtime-version.major": "v12"}, "cuda.runtime-version.major has the invalid value"),
        ({"nvidia.com/gpu.compute.major": "²"}, "has the invalid value"),
    ],
)
def test_a_value_that_cannot_be_read_is_noted(labels: dict[str, str], want: str) -> None:
    inventory = inventory_of(real_node("h200", labels=labels))
    assert inventory.pools[0].count == 8
    assert any(want in note for note in inventory.notes)


@given(
    labels=st.dictionaries(st.sampled_from(LABELS) | st.text(max_size=20), st.text(max_size=30) | st.integers() | st.none(), max_size=12),
    allocatable=st.dictionaries(
        st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "cpu"]) | st.text(max_size=10),
        st.text(max_size=8) | st.integers(),
        max_size=4,
    ),
)
def test_no_labels_make_reading_fail(labels: dict[str, Any], allocatable: dict[str, Any]) -> None:
    inventory = inventory_of(bare_node(labels=labels, allocatable=allocatable))
    assert all(pool.count >= 0 and len(pool.nodes) == 1 for pool in inventory.pools)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["spec", "devices", "attributes", "metadata", "name"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    nodes=st.lists(st.dictionaries(st.sampled_from(["metadata", "status", "spec"]), JSON, max_size=3), max_size=3),
    slices=st.lists(JSON, max_size=3),
)
def test_no_shape_of_objects_makes_reading_fail(nodes: list[dict[str, Any]], slices: list[Any]) -> None:
    assert len(read_inventory(nodes, slices, known_gpus()).boots) <= len(nodes)
