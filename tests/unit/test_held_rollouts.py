"""A rollout that would stop serving Pods waits until there is room for the new ones, says so, and goes on by itself."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from support.fleet import Fleet
from support.gpus import real_node
from support.operators import Bench
from vllm_operator.api.conditions import without_link
from vllm_operator.kube.client import DEPLOYMENT, EVENT, NODE, POD, Unavailable

H100, H200 = {"products": ["NVIDIA-H100-80GB-HBM3"]}, {"products": ["NVIDIA-H200"]}
MANY = {"volume": {"accessMode": "ReadWriteMany"}}
NEVER = {**MANY, "priming": "Never"}
"""Caches for several nodes that no primer fills: only the rollout itself decides."""
SMALL = {"nvidia.com/gpu": "1"}


@pytest.fixture
def bench() -> Bench:
    return Bench(real_node("h100-sxm", "h100"), real_node("h200", "h200"))


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench)


def take(bench: Bench, gpus: int, node: str = "h200") -> None:
    """Somebody else uses GPUs of a node."""
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"nodeName": node, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"other-on-{node}", "namespace": "elsewhere"}, "spec": spec}
    bench.cluster.put({**pod, "status": {"phase": "Running"}})


async def serve(fleet: Fleet, *, replicas: int = 1, node: str = "h100", **spec: Any) -> list[str]:
    """Replicas serve on a node; return their names."""
    await fleet.serve(**{"accelerator": H100, "cache": NEVER, "replicas": replicas, **spec})
    pods = [fleet.start(node=node) for _ in range(replicas)]
    for pod in pods:
        fleet.ready(pod)
    await fleet.settle()
    return pods


def product(fleet: Fleet) -> str:
    """The GPU for which the Deployment is now."""
    affinity = (fleet.deployment() or {})["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return next(str(each["values"][0]) for each in term["matchExpressions"] if each["key"] == "nvidia.com/gpu.product")


def events(bench: Bench, reason: str) -> list[str]:
    return [without_link(event["message"]) for event in bench.cluster.all(EVENT) if event["reason"] == reason]


async def test_a_rollout_without_room_leaves_the_serving_pod_alone_and_begins_when_there_is_room(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    ready = bench.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "RolloutHeld")
    assert ready.message == (
        "The rollout has not begun: 1 new Pod needs 1 NVIDIA H200 141GB (sm_90), and none is free for it. 1 replica keeps serving the "
        "previous spec. The rollout begins by itself when there is room (`kubectl vllm gpus`). To cancel it, undo the change of the spec. "
        "spec.rollout.onUnschedulable: Proceed begins it now, but then serving Pods stop before there are GPUs for new ones."
    )
    assert events(bench, "RolloutHeld") == [bench.message("Ready")]
    assert bench.status().ready_replicas == 1
    take(bench, 7)
    result = await bench.settle()
    assert product(fleet) == "NVIDIA-H200"
    assert result.requeue_seconds is None or result.requeue_seconds > 0


async def test_it_does_not_begin_for_a_node_that_was_just_lost(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    bench.cluster.remove(POD, "elsewhere", "other-on-h200")
    bench.cluster.remove(NODE, None, "h200")
    bench.pass_time(2)  # the nodes were read more recently than a plan in force needs
    await bench.settle()
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    assert bench.condition("Ready").reason == "RolloutHeld"


async def test_it_takes_no_gpu_that_another_rollout_needs_for_its_next_pod(bench: Bench, fleet: Fleet) -> None:
    take(bench, 6)
    await fleet.serve("first", accelerator=H100, cache=NEVER, replicas=2)
    for pod in [fleet.start("first", node="h100") for _ in range(2)]:
        fleet.ready(pod)
    await fleet.settle("first")
    await serve(fleet)
    await fleet.change("first", accelerator=H200)
    fleet.start("first", node="h200")  # the second one follows when it is Ready
    await fleet.change(accelerator=H200)
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    assert bench.condition("Ready").reason == "RolloutHeld"
    fleet.start("first", node="h200")
    take(bench, 5)
    bench.pass_time(8)
    await bench.settle()
    assert product(fleet) == "NVIDIA-H200"


async def test_while_it_waits_it_looks_again_and_writes_nothing(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    before = len(bench.cluster.writes)
    bench.pass_time(60)
    result = await bench.reconciler.reconcile(("default", "llama"))
    assert len(bench.cluster.writes) == before
    assert result.requeue_seconds == 8
    bench.restart()
    await bench.reconciler.reconcile(("default", "llama"))
    assert len(bench.cluster.writes) == before
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("name", "nodes", "taken", "served", "changed", "begins"),
    [
        ("the only GPU of the cluster, for another version", [("h100-sxm", SMALL)], {}, {}, {"engine": {"version": "0.24.0"}}, True),
        ("all GPUs of the node, for another version", [("h100-sxm", {})], {"h100-sxm": 7}, {}, {"engine": {"version": "0.24.0"}}, True),
        ("two GPUs, one of them its own", [("h100-sxm", {})], {"h100-sxm": 6}, {}, {"parallelism": {"tensor": 2}}, True),
        ("two GPUs, where only its own is free", [("h100-sxm", {})], {"h100-sxm": 7}, {}, {"parallelism": {"tensor": 2}}, False),
        ("a free GPU of another kind", [("h100-sxm", {}), ("h200", {})], {"h200": 7}, {}, {"accelerator": H200}, True),
        ("a GPU of another kind that is taken", [("h100-sxm", {}), ("h200", {})], {"h200": 8}, {}, {"accelerator": H200}, False),
        (
            "a surge Pod, which stops nobody",
            [("h100-sxm", SMALL)],
            {},
            {"rollout": {"maxSurge": 1}},
            {"engine": {"version": "0.24.0"}},
            True,
        ),
        (
            "the user insists",
            [("h100-sxm", {}), ("h200", {})],
            {"h200": 8},
            {},
            {"accelerator": H200, "rollout": {"onUnschedulable": "Proceed"}},
            True,
        ),
        (
            "three replicas, where there is room for two",
            [("h100-sxm", {}), ("h200", {})],
            {"h200": 6},
            {"replicas": 3},
            {"accelerator": H200},
            False,
        ),
        (
            "fewer replicas than before, and room for them",
            [("h100-sxm", {}), ("h200", {})],
            {"h200": 6},
            {"replicas": 3},
            {"accelerator": H200, "replicas": 2},
            True,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_when_it_begins(
    name: str,
    nodes: list[tuple[str, Mapping[str, str]]],
    taken: Mapping[str, int],
    served: Mapping[str, Any],
    changed: Mapping[str, Any],
    begins: bool,
) -> None:
    bench = Bench(*(real_node(kind, kind, allocatable=amounts) for kind, amounts in nodes))
    fleet = Fleet(bench)
    await serve(fleet, node="h100-sxm", **served)
    for node, gpus in taken.items():
        take(bench, gpus, node)
    before = (fleet.deployment() or {})["spec"]["template"]
    await fleet.change(**changed)
    assert ((fleet.deployment() or {})["spec"]["template"] != before) == begins, name
    assert (bench.condition("Ready").reason != "RolloutHeld") == begins


async def test_a_change_that_replaces_no_pod_is_not_a_rollout(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    bench.cluster.edit(NODE, None, "h100", {"spec": {"unschedulable": True}})
    await fleet.change(service={"port": 9000})
    assert bench.condition("Ready").reason == "Serving"


async def test_a_rollout_waits_for_a_node_that_is_cordoned(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    bench.cluster.edit(NODE, None, "h100", {"spec": {"unschedulable": True}})
    bench.pass_time(60)
    await fleet.change(engine={"version": "0.24.0"})
    assert bench.condition("Ready").reason in ("RolloutHeld", "NoMatchingGPU")
    bench.cluster.edit(NODE, None, "h100", {"spec": {"unschedulable": False}})
    bench.pass_time(60)
    await fleet.settle()
    assert "0.24.0" in (fleet.deployment() or {})["spec"]["template"]["spec"]["containers"][0]["image"]


async def test_proceed_makes_no_new_plan_and_begins_at_once(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    planned = bench.status().revision
    await fleet.change(rollout={"onUnschedulable": "Proceed"})
    assert product(fleet) == "NVIDIA-H200"
    assert bench.status().revision == planned is not None


async def test_changing_back_ends_the_wait(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    before = (fleet.deployment() or {})["spec"]
    take(bench, 8)
    await fleet.change(accelerator=H200)
    await fleet.change(accelerator=H100)
    assert bench.condition("Ready").reason == "Serving"
    assert (fleet.deployment() or {})["spec"] == before


async def test_replicas_change_while_a_rollout_waits(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet, replicas=2)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    await fleet.change(replicas=3)
    assert (fleet.replicas(), product(fleet)) == (3, "NVIDIA-H100-80GB-HBM3")


async def test_a_serving_pod_that_is_replaced_meanwhile_is_replaced_by_one_like_it(bench: Bench, fleet: Fleet) -> None:
    [pod] = await serve(fleet)
    progress = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    bench.cluster.edit(DEPLOYMENT, "default", "llama", {"status": {"conditions": [progress]}})
    take(bench, 8)
    await fleet.change(accelerator=H200)
    fleet.gone(pod)
    await fleet.settle()
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    second = fleet.start(node="h100")
    await fleet.settle()
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    fleet.unschedulable(second)
    await fleet.settle()
    assert product(fleet) == "NVIDIA-H200", "neither can start, so the new spec waits for GPUs"


async def test_a_pod_that_never_served_is_replaced_at_once(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(accelerator=H100, cache=NEVER)
    fleet.start(node="h100")
    await fleet.settle()
    take(bench, 8)
    await fleet.change(accelerator=H200)
    assert product(fleet) == "NVIDIA-H200"


async def test_nothing_begins_while_the_pods_of_the_cluster_cannot_be_listed(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    bench.pass_time(60)
    for verb, kind in (("find", POD), ("find", NODE)):
        bench.cluster.fail(verb, kind, Unavailable("overloaded"), times=3)
        for _ in range(3):
            with suppress(Unavailable):
                await bench.reconciler.reconcile(("default", "llama"))
        bench.cluster.heal()
        assert product(fleet) == "NVIDIA-H100-80GB-HBM3"


# with caches that a helper Pod fills before the rollout


async def test_the_helper_pod_waits_as_long_as_the_rollout(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet, cache=MANY)
    take(bench, 8)
    await fleet.change(accelerator=H200)
    helper = fleet.start("llama.primer")
    fleet.unschedulable(helper)
    bench.pass_time(3600)
    await fleet.settle()
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    assert fleet.deployment("llama.primer") is not None
    assert bench.condition("Ready").reason == "RolloutHeld"
    assert "the rollout starts without" not in bench.cache_verdict().message
    assert bench.cache().priming_skipped is None


async def test_the_promise_names_what_happens_without_a_gpu_for_the_helper_pod(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet, cache=MANY)
    await fleet.change(engine={"version": "0.24.0"})
    fleet.unschedulable(fleet.start("llama.primer"))
    await fleet.settle()
    assert "The current replicas keep serving." in bench.cache_verdict().message
    assert "At 12:01:00 UTC the rollout starts without compiled kernels: the serving Pod stops first." in bench.cache_verdict().message
    bench.pass_time(60)
    await fleet.settle()
    assert events(bench, "CachesNotCompiled") == ["Rolled out without compiled kernels: the helper Pod found no GPU within 60 s."]


async def test_no_helper_pod_is_made_where_it_cannot_mount_the_volume(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet, cache={})
    await fleet.change(accelerator=H200)
    assert fleet.deployment("llama.primer") is None
    assert product(fleet) == "NVIDIA-H200", "one replica stops first, and its volume moves with it"
    assert events(bench, "CachesNotCompiled") == [
        "Rolled out without compiled kernels: PVC llama-cache can be mounted on node h100 only (ReadWriteOnce), which has no NVIDIA H200 "
        "141GB (sm_90)."
    ]


async def test_no_helper_pod_is_made_where_the_replica_has_all_gpus() -> None:
    bench = Bench(real_node("h100-sxm", "h100", allocatable=SMALL), real_node("h100-sxm", "other"))
    fleet = Fleet(bench)
    await serve(fleet, cache={})
    await fleet.change(engine={"version": "0.24.0"})
    assert fleet.deployment("llama.primer") is None
    assert "which has too few GPUs for another Pod" in bench.cache_verdict().message


async def test_a_rolling_update_does_not_leave_the_node_of_the_volume(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet, replicas=2, cache={})
    await fleet.change(accelerator=H200)
    assert product(fleet) == "NVIDIA-H100-80GB-HBM3"
    assert bench.message("Ready") == (
        "The rollout has not begun: the new Pods need NVIDIA H200 141GB (sm_90), which node h100 does not have. PersistentVolumeClaim "
        "llama-cache can be mounted on one node only (ReadWriteOnce), and the serving Pods use it there. 2 replicas keep serving "
        "the previous "
        "spec. To move, set spec.rollout.strategy to Recreate: all replicas stop before new ones start, so nothing serves meanwhile. "
        "Or use a ReadWriteMany PVC."
    )
    await fleet.change(rollout={"strategy": "Recreate"})
    assert product(fleet) == "NVIDIA-H200"


# a volume for one node, and more replicas than its node has GPUs for


async def test_a_replica_that_could_not_mount_the_volume_is_not_started(bench: Bench) -> None:
    bench = Bench(real_node("h100-sxm", "h100", allocatable=SMALL), real_node("h100-sxm", "other"))
    fleet = Fleet(bench)
    await serve(fleet, cache={})
    await fleet.change(replicas=2)
    assert fleet.replicas() == 1
    ready = bench.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "Unschedulable")
    said = "1 of 2 replicas is ready, and the node of their volume has too few free GPUs for another one."
    assert ready.message == (
        f"{said} PersistentVolumeClaim llama-cache can be mounted on one node only (ReadWriteOnce). Lower spec.replicas to 1, or use "
        "several nodes: set spec.cache.storage to ClaimPerReplica or HostPath, or name a ReadWriteMany PVC in spec.cache.claimName."
    )
    bench.cluster.edit(NODE, None, "h100", {"status": {"allocatable": {"nvidia.com/gpu": "2"}}})
    bench.pass_time(60)
    await fleet.settle()
    assert fleet.replicas() == 2


async def test_the_node_of_the_volume_may_be_newer_than_what_is_known_of_the_nodes(bench: Bench) -> None:
    bench = Bench(real_node("h100-sxm", "other"))
    fleet = Fleet(bench)
    await fleet.serve(accelerator=H100, cache={})
    bench.cluster.put({"apiVersion": "v1", "kind": "Node", **real_node("h100-sxm", "h100", allocatable=SMALL)})
    fleet.ready(fleet.start(node="h100"))
    bench.pass_time(6)
    await fleet.change(replicas=2)
    assert fleet.replicas() == 1


async def test_a_replica_for_which_the_node_has_a_gpu_is_started_there(bench: Bench, fleet: Fleet) -> None:
    await serve(fleet, cache={})
    await fleet.change(replicas=2)
    assert fleet.replicas() == 2
    affinity = (fleet.deployment() or {})["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
