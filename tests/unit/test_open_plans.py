"""Plans with which no engine has run: they take another GPU that is free. Those that have run stay, and the status says what is free."""

from dataclasses import replace
from typing import Any

import pytest

from support.fleet import Fleet
from support.gpus import bare_node, device, inventory_of, real_node, resource_slice
from support.operators import Bench
from support.plans import deployment, known
from vllm_operator.api.labels import RAN_ANNOTATION, REPLAN_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.plan import ModelFact, Plan
from vllm_operator.cli.plan import causes
from vllm_operator.controller.plan_store import OLD_REVISIONS
from vllm_operator.inventory.devices import UsedDevices, read_used
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import EVENT, POD, REVISION, VLLM_DEPLOYMENT, Forbidden
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.pinning import Standing, gpu_in_use
from vllm_operator.planning.placement.promises import Promise, with_usage
from vllm_operator.planning.planner import plan as make_plan

QWEN = "hf://Qwen/Qwen3-8B"
H100, H200, L40S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-L40S"
NO_GPU = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."


def other_pod(node: str, gpus: int) -> dict[str, Any]:
    """A Pod of somebody else that holds GPUs of a node."""
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    metadata = {"name": f"other-on-{node}", "namespace": "default"}
    spec = {"nodeName": node, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


class World:
    """A node of H100 and one of H200. `fill` and `free` are done by somebody else."""

    def __init__(self) -> None:
        self.bench = Bench(real_node("h100-sxm", "h100"), real_node("h200", "h200"))
        self.fleet = Fleet(self.bench)

    def fill(self, node: str, gpus: int = 8) -> None:
        self.bench.cluster.put(other_pod(node, gpus))

    def free(self, node: str) -> None:
        self.bench.cluster.remove(POD, "default", f"other-on-{node}")

    async def create(self, name: str = "llama", **spec: Any) -> None:
        await self.fleet.serve(name, **spec)

    async def look_again(self, name: str = "llama") -> None:
        self.bench.pass_time(5)
        await self.fleet.settle(name)

    async def start_and_stop_serving(self) -> None:
        """A Pod of a new object serves, and is gone."""
        await self.create()
        pod = self.fleet.start()
        self.fleet.ready(pod)
        await self.look_again()
        self.fleet.gone(pod)

    def wait_for_node(self, name: str = "llama") -> str:
        """A Pod of the current Deployment for which there is no GPU."""
        pod = self.fleet.start(name)
        self.fleet.unschedulable(pod)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}
        self.fleet.show(pod, condition, phase="Pending")
        return pod

    def product(self, name: str = "llama") -> str | None:
        return self.bench.plan(name).product

    def revisions(self, name: str = "llama") -> list[dict[str, Any]]:
        found = [each for each in self.bench.cluster.all(REVISION) if each["metadata"]["name"].startswith(f"{name}-")]
        return sorted(found, key=lambda each: each["revision"])

    def records(self, name: str = "llama") -> set[str]:
        """What is recorded on the newest revision."""
        return set(self.revisions(name)[-1]["metadata"].get("annotations") or ())

    def events(self) -> list[str]:
        return [each["message"] for each in self.bench.cluster.all(EVENT) if each["reason"] == "Planned"]


@pytest.fixture
def world() -> World:
    return World()


async def waiting(world: World) -> str:
    """A plan for an H100, made while every GPU was in use; its Pod waits."""
    world.fill("h100")
    world.fill("h200")
    await world.create()
    assert world.product() == H100
    pod = world.wait_for_node()
    await world.look_again()
    return pod


async def test_a_plan_with_which_no_engine_has_run_takes_another_gpu_that_becomes_free(world: World) -> None:
    await waiting(world)
    assert "As soon as another GPU that fits is free, the operator takes it." in world.bench.message("Ready")
    world.free("h200")
    await world.look_again()
    assert world.product() == H200
    why = (
        "No Pod of the previous plan had run, too few NVIDIA H100 80GB (sm_90) were free at 2026-11-21 12:00 UTC, and enough NVIDIA H200 "
        "141GB (sm_90) were."
    )
    assert world.bench.plan().chosen_again == why
    assert [message.startswith(f"{why} Planned for NVIDIA H200 141GB (sm_90)") for message in world.events()] == [True]
    before, now = (Plan.model_validate(each["data"]) for each in world.revisions())
    assert why in causes(before, now)


async def test_nothing_is_written_while_what_is_free_stays_the_same(world: World) -> None:
    await waiting(world)
    writes = len(world.bench.cluster.writes)
    for _ in range(5):
        await world.look_again()
    assert len(world.bench.cluster.writes) == writes
    world.free("h200")
    await world.look_again()
    writes, revisions = len(world.bench.cluster.writes), len(world.revisions())
    world.free("h100")  # what came first is free again, but the plan has a GPU
    for _ in range(5):
        await world.look_again()
    assert (len(world.bench.cluster.writes), len(world.revisions())) == (writes, revisions)


async def test_the_operator_looks_again_in_time_although_nobody_tells_it(world: World) -> None:
    await waiting(world)
    result = await world.bench.reconciler.reconcile(("default", "llama"))
    assert result.requeue_seconds is not None
    assert result.requeue_seconds <= 10


async def test_a_plan_whose_pod_has_a_node_stays(world: World) -> None:
    await waiting(world)
    for pod in world.fleet.pods():
        if pod.startswith("llama-"):
            world.fleet.gone(pod)
    pod = world.fleet.start()
    world.fleet.show(pod, {"type": "PodScheduled", "status": "True"}, phase="Pending")
    world.free("h200")
    await world.look_again()
    assert world.product() == H100


async def served_and_lost(world: World) -> None:
    """An H100 serves, its node is lost, and the next Pod finds the other GPUs taken."""
    await world.start_and_stop_serving()
    world.fill("h100")
    world.wait_for_node()
    await world.look_again()


async def test_a_plan_that_has_served_stays_and_the_status_says_how_to_get_what_is_free(world: World) -> None:
    await served_and_lost(world)
    assert world.product() == H100
    message = world.bench.message("Ready")
    assert f"The plan is for {H100}, and {H200} is free now." in message
    assert "kubectl annotate vllm llama -n default --overwrite vllm-operator.dev/replan=$(date +%s)" in message
    planned = world.bench.plan_verdict()
    assert planned.reason == "PlanDrifted"
    assert f"The GPU would change from {H100} (sm_90) to {H200} (sm_90)." in planned.message
    world.fill("h200")
    await world.look_again()
    assert (
        f"It starts by itself when a node that it may use has 1 GPU free ({H100}); `kubectl vllm gpus` shows who uses them."
        in world.bench.message("Ready")
    )
    assert world.bench.plan_verdict().reason == "Planned"
    world.free("h200")
    world.bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
    await world.look_again()
    assert world.product() == H200


async def test_that_a_plan_has_run_and_served_is_recorded_once_and_survives_pods_and_operators(world: World) -> None:
    await world.create()
    assert not world.records() & {RAN_ANNOTATION, SERVED_ANNOTATION}
    pod = world.fleet.start()
    await world.look_again()
    assert world.records() & {RAN_ANNOTATION, SERVED_ANNOTATION} == {RAN_ANNOTATION}
    world.fleet.ready(pod)
    await world.look_again()
    assert world.records() >= {RAN_ANNOTATION, SERVED_ANNOTATION}
    assert [write.verb for write in world.bench.cluster.writes if write.kind == "ControllerRevision"] == ["create", "patch", "patch"]
    world.fleet.gone(pod)
    world.bench.restart()
    world.fill("h100")
    world.wait_for_node()
    await world.look_again()
    assert world.product() == H100, "it has run, although no Pod and no memory says so"


async def test_a_container_that_could_not_be_started_is_no_run(world: World) -> None:
    await world.create()
    pod = world.fleet.start()
    ended = {"terminated": {"exitCode": 128, "reason": "StartError", "finishedAt": world.fleet.time()}}
    world.fleet.show(pod, {"type": "Ready", "status": "False"}, state=ended)
    await world.look_again()
    assert RAN_ANNOTATION not in world.records()


async def test_an_operator_that_may_not_record_it_goes_on(world: World) -> None:
    await world.create()
    world.bench.cluster.fail("patch", REVISION, Forbidden("no", verb="patch", resource="controllerrevisions"), times=99)
    pod = world.fleet.start()
    world.fleet.ready(pod)
    await world.look_again()
    assert world.bench.status().ready_replicas == 1
    assert RAN_ANNOTATION not in world.records()


async def test_the_last_plan_that_served_is_kept_however_many_follow(world: World) -> None:
    await world.start_and_stop_serving()
    [served] = [each["metadata"]["name"] for each in world.revisions()]
    for number in range(OLD_REVISIONS + 5):
        world.bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: str(number)}}})
        await world.fleet.settle()
    names = [each["metadata"]["name"] for each in world.revisions()]
    assert served in names
    assert len(names) <= OLD_REVISIONS + 3


async def test_a_spec_that_names_the_gpu_stays_and_the_status_lists_what_it_does_not_allow(world: World) -> None:
    world.fill("h100")
    await world.create(accelerator={"products": [H100]})
    world.wait_for_node()
    await world.look_again()
    assert world.product() == H100
    message = world.bench.message("Ready")
    assert (
        f"It starts by itself when a node that it may use has 1 GPU free ({H100}); `kubectl vllm gpus` shows who uses them. "
        f"Free now, but not allowed by the spec: {H200}." in message
    )
    assert "or allow other GPUs in spec.accelerator." in message
    assert "As soon as another" not in message


async def test_without_limits_in_the_spec_nobody_is_told_to_allow_other_gpus(world: World) -> None:
    await waiting(world)
    assert "spec.accelerator" not in world.bench.message("Ready")


async def test_plans_that_are_made_in_a_row_do_not_get_the_same_last_gpu(world: World) -> None:
    """None of them has a Pod yet: the operator itself knows what it has promised."""
    world.fill("h100", 7)
    world.fill("h200", 6)
    for number in range(5):
        await world.create(f"m{number}")
    assert [world.product(f"m{number}") for number in range(5)] == [H100, H200, H200, H100, H100]
    assert (
        "no NVIDIA H100 80GB (sm_90) was free at 2026-11-21 12:00 UTC, and no other GPU that fits was."
        in world.bench.plan_verdict("m3").message
    )


async def test_what_was_promised_is_free_again_when_the_object_is_gone(world: World) -> None:
    world.fill("h100", 7)
    await world.create("first")
    world.bench.cluster.remove(VLLM_DEPLOYMENT, "default", "first")
    await world.fleet.settle("first")
    await world.create("second")
    assert world.product("second") == H100


async def test_a_rolling_update_on_a_volume_for_one_node_is_promised_gpus_of_that_node_only() -> None:
    world = World()
    world.bench.cluster.put({"apiVersion": "v1", "kind": "Node", **real_node("h100-sxm", "other")})
    world.fill("h200")
    world.fill("h100", 6)
    await world.create("first", replicas=2, cache={"priming": "Never"}, accelerator={"products": [H100]})
    for pod in [world.fleet.start("first", node="h100") for _ in range(2)]:
        world.fleet.ready(pod)
    await world.look_again("first")
    await world.fleet.change("first", engine={"version": "0.24.0"}, replicas=3)
    await world.create("second", parallelism={"tensor": 8})
    assert world.product("second") == H100
    assert not [note for note in world.bench.plan("second").notes if "wait until" in note]


async def test_pods_that_wait_for_something_else_than_a_gpu_are_promised_none(world: World) -> None:
    world.fill("h100", 7)
    await world.create("first")
    pod = world.fleet.start("first")
    world.fleet.unschedulable(pod)
    unbound = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    world.fleet.show(pod, {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unbound}, phase="Pending")
    await world.look_again("first")
    await world.create("second")
    assert world.product("second") == H100


def used_inventory(*full: str) -> Inventory:
    pods = [other_pod(node, 8) for node in full]
    return replace(inventory_of(real_node("h100-sxm", "h100"), real_node("h200", "h200")), used=read_used(pods).all)


def kept(resource: Any, inventory: Inventory, pinned: Plan, standing: Standing, **options: Any) -> Outcome:
    return make_plan(resource, inventory, known(), pinned=pinned, standing=standing, **options)


@pytest.mark.parametrize(
    ("full", "standing", "product", "today"),
    [
        (("h100",), Standing.OPEN, H200, None),
        (("h100",), Standing.WAITING, H100, H200),
        (("h100",), Standing.SETTLED, H100, H100),
        (("h100", "h200"), Standing.OPEN, H100, H100),
        ((), Standing.OPEN, H100, H100),
    ],
)
def test_which_plan_is_in_force_and_which_one_is_new(full: tuple[str, ...], standing: Standing, product: str, today: str | None) -> None:
    pinned = make_plan(deployment(QWEN), used_inventory(), known()).plan
    assert pinned is not None
    outcome = kept(deployment(QWEN), used_inventory(*full), pinned, standing)
    assert outcome.plan is not None
    assert outcome.plan.product == product
    assert (outcome.fresh.plan.product if outcome.fresh and outcome.fresh.plan else None) == today


def test_a_plan_that_chooses_its_gpu_again_is_compared_with_the_one_in_force() -> None:
    pinned = make_plan(deployment(QWEN), used_inventory(), known()).plan
    assert pinned is not None
    outcome = kept(deployment(QWEN), used_inventory("h100"), pinned, Standing.SETTLED, chooses_gpu_again=True)
    assert [found.plan.product if found and found.plan else None for found in (outcome, outcome.fresh)] == [H100, H200]


@pytest.mark.parametrize(("own", "others"), [({}, (H200,)), ({("h200", "nvidia.com/gpu"): 8}, ())])
def test_gpus_of_own_pods_with_an_earlier_plan_are_not_said_to_be_free(own: dict[tuple[str, str], int], others: tuple[str, ...]) -> None:
    resource = deployment(QWEN, accelerator={"products": [H100]})
    made = make_plan(resource, used_inventory(), known()).plan
    assert made is not None
    outcome = kept(resource, replace(used_inventory("h100"), own=own), made, Standing.WAITING)
    assert outcome.free is not None
    assert outcome.free.others == others


def test_a_gpu_that_is_free_for_some_replicas_comes_before_one_that_is_free_for_none() -> None:
    resource = deployment(QWEN, replicas=3)
    pinned = make_plan(resource, used_inventory(), known()).plan
    assert pinned is not None
    inventory = replace(used_inventory("h100"), used={("h100", "nvidia.com/gpu"): 8, ("h200", "nvidia.com/gpu"): 6})
    plan = kept(resource, inventory, pinned, Standing.OPEN).plan
    assert plan is not None
    assert (plan.product, "some NVIDIA H200" in (plan.chosen_again or "")) == (H200, True)
    stays = replace(inventory, used={("h100", "nvidia.com/gpu"): 7, ("h200", "nvidia.com/gpu"): 6})
    assert kept(resource, stays, pinned, Standing.OPEN).plan == pinned


def test_a_plan_that_knows_the_files_of_the_model_is_not_replaced_by_one_that_does_not() -> None:
    pinned = make_plan(deployment(QWEN), used_inventory(), known()).plan
    assert pinned is not None
    read = pinned.model_copy(update={"model_facts": [ModelFact(name="experts", value="0", source="config.json")]})
    assert kept(deployment(QWEN), used_inventory("h100"), read, Standing.OPEN).plan == read


def claimed_nodes() -> Inventory:
    """Two L40S for ResourceClaims."""
    devices = [{**device("NVIDIA L40S", capability="8.9.0", memory="46068Mi"), "name": f"gpu-{number}"} for number in range(2)]
    entry = resource_slice("l40s", *devices)
    entry["spec"]["pool"] = {"name": "l40s"}
    return inventory_of(bare_node("l40s"), slices=(entry,))


def test_devices_for_resource_claims_are_promised_too() -> None:
    inventory = claimed_nodes()
    made = make_plan(deployment(QWEN, accelerator={"allocation": "DRA"}), inventory, known()).plan
    assert made is not None
    promise = Promise(gpu_in_use(made), made.resource, made.count, 1)
    held = UsedDevices(claimed={})
    free = with_usage(inventory, held, ("default", "second"), (), {("default", "first"): promise})
    assert len(free.allocated or ()) == 1
    has_pod = replace(promise, pods=frozenset({"uid"}))
    held = UsedDevices(claimed={"uid": frozenset({"l40s/gpu-1"})})
    free = with_usage(inventory, held, ("default", "second"), (), {("default", "first"): has_pod})
    assert free.allocated == frozenset({"l40s/gpu-1"})


def test_a_promise_takes_no_node_that_is_needed_whole_and_none_where_there_is_no_place() -> None:
    inventory = inventory_of(real_node("h100-sxm", "a"), real_node("h100-sxm", "b"))
    made = make_plan(deployment(QWEN), inventory, known()).plan
    assert made is not None
    held = read_used([other_pod("a", 6)])
    small = Promise(gpu_in_use(made), made.resource, 1, 1)
    used = with_usage(inventory, held, ("default", "x"), (), {("default", "first"): small}).used
    assert used == {("a", "nvidia.com/gpu"): 7}
    large = replace(small, count=8, replicas=3)
    used = with_usage(inventory, held, ("default", "x"), (), {("default", "first"): large}).used
    assert used == {("a", "nvidia.com/gpu"): 6, ("b", "nvidia.com/gpu"): 8}
    bound = replace(small, replicas=3, nodes={"a"})
    used = with_usage(inventory, held, ("default", "x"), (), {("default", "first"): bound}).used
    assert used == {("a", "nvidia.com/gpu"): 8}
