"""The reconciler on a cluster in memory, with the real planner, renderer and reporter."""

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from support.fake_cluster import Write
from support.fleet import READY, Fleet
from support.gpus import real_node
from support.logs import RUNNING
from support.operators import KEY, Bench, content_of, llama
from vllm_operator.api.labels import FIELD_MANAGER
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.queue import WorkQueue
from vllm_operator.controller.reconciler import Workers
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import (
    CLAIM,
    DEPLOYMENT,
    EVENT,
    NODE,
    POD,
    SERVICE,
    VLLM_DEPLOYMENT,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    Manifest,
    Unavailable,
)
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.status.crashes import SETTLING_SECONDS

TEAM = {"key": "dedicated", "value": "team-a", "effect": "NoSchedule"}
POD_STATUS: dict[str, Any] = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [{"name": "vllm", "state": RUNNING, "lastState": {}, "restartCount": 0, "ready": False}],
}


async def test_a_new_object_becomes_a_plan_a_claim_a_deployment_a_service_and_a_status(bench: Bench) -> None:
    bench.cluster.put(llama())
    result = await bench.settle()
    assert list(dict.fromkeys((write.verb, write.kind) for write in bench.cluster.writes)) == [
        ("create", "ControllerRevision"),
        ("apply", "PersistentVolumeClaim"),
        ("apply", "Deployment"),
        ("patch", "PersistentVolumeClaim"),
        ("apply", "Service"),
        ("create", "Event"),
        ("apply_status", "VLLMDeployment"),
    ]
    assert result.name == "success"
    assert bench.plan_verdict().reason == "Planned"
    assert bench.status().plan is not None


async def test_a_second_look_writes_nothing(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    before = list(bench.cluster.writes)
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.writes == before


async def test_a_restart_writes_nothing(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    bench.add_pod(**POD_STATUS)
    await bench.settle()
    before = list(bench.cluster.writes)
    bench.restart()
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.writes == before


async def test_an_object_that_is_gone_is_forgotten(bench: Bench) -> None:
    result = await bench.reconciler.reconcile(KEY)
    assert (result.name, bench.logs.forgotten, bench.cluster.writes) == ("gone", [KEY], [])


async def test_an_object_on_its_way_out_is_left_alone(bench: Bench) -> None:
    manifest = llama()
    manifest["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    bench.cluster.put(manifest)
    assert (await bench.reconciler.reconcile(KEY)).name == "gone"
    assert bench.cluster.writes == []


async def test_a_change_of_the_spec_changes_only_what_follows_from_it(bench: Bench) -> None:
    bench.cluster.put(llama(cache={"priming": "Never"}))
    await bench.settle()
    bench.cluster.writes.clear()
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": 3}})
    await bench.settle()
    assert bench.deployment()["spec"]["replicas"] == 3
    assert {write.kind for write in bench.cluster.writes} - {"Event"} == {"Deployment", "PodDisruptionBudget", "VLLMDeployment"}


async def test_a_field_that_is_not_wished_any_more_goes(bench: Bench) -> None:
    bench.cluster.put(llama(engine={"version": "0.20.1", "env": [{"name": "MINE", "value": "1"}]}))
    await bench.settle()
    assert "MINE" in _env(bench)
    changed = llama()
    changed["metadata"] |= {"uid": bench.resource()["metadata"]["uid"]}
    bench.cluster.put({**changed, "status": bench.resource()["status"]})
    await bench.settle()
    assert "MINE" not in _env(bench)


def _env(bench: Bench) -> set[str]:
    return {item["name"] for item in bench.deployment()["spec"]["template"]["spec"]["containers"][0]["env"]}


async def test_what_the_api_server_refuses_is_said_in_its_words_and_the_rest_is_applied(bench: Bench) -> None:
    bench.cluster.fail("apply", SERVICE, Invalid('Service "llama" is invalid: spec.ports[0].port: Invalid value: 0'), times=100)
    bench.cluster.put(llama())
    result = await bench.settle()
    assert result.name == "refused"
    assert "spec.ports[0].port: Invalid value" in bench.condition("Ready").message
    assert bench.cluster.all(DEPLOYMENT)
    bench.cluster.heal()
    await bench.settle()
    assert bench.condition("Ready").reason != "ApplyFailed"


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        *((verb, Unavailable("connection refused")) for verb in ("get", "find", "apply", "create", "apply_status")),
        *((verb, Conflict("the object has been modified")) for verb in ("apply", "apply_status")),
    ],
)
async def test_a_failure_at_any_call_loses_nothing(bench: Bench, verb: str, error: ClusterError) -> None:
    bench.cluster.put(llama())
    healthy = Bench()
    healthy.cluster.put(llama())
    await healthy.settle()
    bench.cluster.fail(verb, None, error)
    with contextlib.suppress(type(error)):
        await bench.settle()
    await bench.settle()
    assert [_names(item) for item in bench.cluster.all(EVENT)] == [_names(item) for item in healthy.cluster.all(EVENT)]
    assert content_of(bench.deployment()) == content_of(healthy.deployment())
    assert bench.status().conditions == healthy.status().conditions


def _names(event: dict[str, Any]) -> tuple[str, str]:
    return event["reason"], event["message"]


async def test_an_operator_killed_between_its_writes_duplicates_no_event(bench: Bench) -> None:
    bench.cluster.put(llama())
    bench.cluster.fail("apply_status", VLLM_DEPLOYMENT, Unavailable("killed"))
    with pytest.raises(Unavailable):
        await bench.settle()
    events = len(bench.cluster.all(EVENT))
    assert events > 0
    bench.restart()
    bench.pass_time(30)
    await bench.settle()
    assert len(bench.cluster.all(EVENT)) == events


async def test_without_a_gpu_it_looks_at_the_nodes_again_within_a_minute(bench: Bench) -> None:
    bench.cluster.put(llama(accelerator={"architectures": ["sm_103"]}))
    await bench.reconciler.reconcile(KEY)
    result = await bench.reconciler.reconcile(KEY)
    assert bench.plan_verdict().reason == "NoMatchingGPU"
    assert result.requeue_seconds == 30
    bench.cluster.put({"apiVersion": "v1", "kind": "Node", **real_node("b300")})
    bench.restart()  # what it knew of the nodes is old by then
    await bench.settle()
    assert bench.plan_verdict().reason == "Planned"


async def test_fewer_replicas_follow_at_once_also_where_the_spec_cannot_be_planned(bench: Bench) -> None:
    bench.cluster.put(llama(replicas=3, cache={"priming": "Never"}))
    await bench.settle()
    before = bench.deployment()["spec"]
    for wanted, had in ((5, 3), (1, 1), (0, 0)):
        bench.cluster.edit(
            VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": wanted, "accelerator": {"architectures": ["sm_103"]}}}
        )
        await bench.settle()
        assert bench.plan_verdict().reason == "NoMatchingGPU"
        assert bench.deployment()["spec"] == {**before, "replicas": had}


async def test_without_the_right_to_list_nodes_the_condition_names_it_and_what_runs_keeps_running(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    before = bench.deployment()
    bench.restart()
    bench.cluster.fail("find", NODE, Forbidden("nodes is forbidden", verb="list", resource="nodes"), times=100)
    await bench.reconciler.reconcile(KEY)
    assert bench.plan_verdict().status == "True"
    assert "may not list nodes" in bench.plan_verdict().message
    assert bench.deployment() == before


async def test_a_spec_that_cannot_be_planned_leaves_running_what_runs(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    before = bench.deployment()
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"accelerator": {"architectures": ["sm_120"]}}})
    await bench.settle()
    assert bench.plan_verdict().reason == "NoMatchingGPU"
    assert bench.deployment() == before


async def test_a_spec_that_no_schema_has_checked_ends_in_a_condition(bench: Bench) -> None:
    bench.cluster.put(llama(replicas="many"))
    assert (await bench.reconciler.reconcile(KEY)).name == "refused"
    assert bench.condition("Ready").reason == "InvalidSpec"
    assert "spec.replicas" in bench.condition("Ready").message
    writes = len(bench.cluster.writes)
    await bench.reconciler.reconcile(KEY)
    assert len(bench.cluster.writes) == writes


async def test_nothing_is_reported_before_the_logs_have_shown_what_they_hold(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    bench.add_pod(**POD_STATUS)
    uid = bench.cluster.all(POD)[0]["metadata"]["uid"]
    bench.logs.told[(uid, 0)] = StartupState(stage=Stage.TORCH_COMPILE, lines=10)
    await bench.settle()
    before = bench.status()
    assert before.startup is not None
    assert before.startup.stage == "TorchCompile"
    bench.restart()
    bench.logs.told.clear()
    bench.logs.ready = False
    result = await bench.reconciler.reconcile(KEY)
    assert result.requeue_seconds is not None
    assert bench.status() == before


async def test_a_bug_ends_in_a_condition_and_another_try(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def broken(nodes: Sequence[Manifest], slices: Sequence[Manifest], *, node_pools: Sequence[Manifest]) -> Inventory:
        raise ZeroDivisionError("a bug")

    bench.inventory = InventoryCache(bench.cluster, broken)
    bench.reconciler = bench.make_reconciler()
    bench.cluster.put(llama())
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, bench.reconciler, bench.metrics, number=1, resync_seconds=600)
    queue.add(KEY)
    assert await queue.get() == KEY
    await workers._reconcile(KEY)
    queue.done(KEY)
    assert bench.condition("Ready").reason == "OperatorFailed"
    assert "ZeroDivisionError: a bug" in bench.condition("Ready").message
    assert "Traceback" in caplog.text
    assert queue.failures(KEY) == 1
    assert await queue.get() == KEY
    bench.restart()
    await bench.settle()
    assert bench.condition("Ready").reason != "OperatorFailed"


async def test_the_condition_about_a_bug_is_one_line_without_secrets(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    await bench.reconciler.report_bug(KEY, ValueError("cannot read\n\x1b[31mAuthorization: Bearer abcdef0123456789abcdef\x00"))
    message = bench.condition("Ready").message
    assert message.isprintable()
    assert "ValueError: cannot read" in message
    assert "abcdef0123456789" not in message


async def test_what_is_not_rendered_any_more_is_deleted_but_never_a_claim(bench: Bench) -> None:
    bench.cluster.put(llama(cache={"onDelete": "Delete"}))
    await bench.settle()
    for kind in (SERVICE, CLAIM):  # children that another version has rendered under another name
        child = bench.cluster.all(kind)[0]
        metadata = {
            name: child["metadata"][name] for name in ("namespace", "labels", "annotations", "ownerReferences") if name in child["metadata"]
        }
        await bench.cluster.apply({**child, "metadata": {**metadata, "name": "llama-former"}}, manager=FIELD_MANAGER)
    bench.restart()
    await bench.settle()
    assert [child["metadata"]["name"] for child in bench.cluster.all(SERVICE)] == ["llama"]
    assert "llama-former" in [child["metadata"]["name"] for child in bench.cluster.all(CLAIM)]
    assert Write("delete", "Service", "llama-former") in bench.cluster.writes


async def test_what_conflicts_with_the_desired_state_is_replaced_first(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    before = bench.cluster.all(SERVICE)[0]
    theirs = {"name": "http", "port": 9999, "protocol": "TCP"}
    live = bench.cluster._objects[("Service", "default", "llama")]
    live["spec"]["ports"] = [theirs]
    live["metadata"]["resourceVersion"] = "moved"
    for entry in live["metadata"]["managedFields"]:  # whoever replaces a port takes it from its owner
        entry["fieldsV1"].get("f:spec", {}).pop("f:ports", None)
    # a real API server refuses two ports of one name
    bench.cluster.fail("apply", SERVICE, Invalid('Service "llama" is invalid: spec.ports[1].name: Duplicate value: "http"'))
    await bench.settle()
    assert bench.cluster.all(SERVICE)[0]["spec"] == before["spec"]
    assert bench.condition("Ready").reason != "ApplyFailed"


async def test_the_taint_of_a_node_with_the_gpu_is_named_while_a_pod_waits_for_it() -> None:
    node = real_node("h100-sxm", "gpu-1")
    node["spec"] = {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, TEAM]}
    bench = Bench(node)
    bench.cluster.put(llama())
    await bench.settle()
    says = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}
    pod = bench.add_pod(phase="Pending", conditions=[waits])
    bench.cluster.put({**pod, "spec": bench.deployment()["spec"]["template"]["spec"]})
    await bench.settle()
    said = bench.condition("Ready").message
    assert "Node gpu-1 has the taint dedicated=team-a:NoSchedule. To start there, add {key: dedicated," in said


MAY_NOT_DELETE = Forbidden('services "llama-former" is forbidden: cannot delete resource "services"', verb="delete", resource="services")


async def _with_a_former_service(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    [service] = bench.cluster.all(SERVICE)
    metadata = {name: service["metadata"][name] for name in ("namespace", "labels", "ownerReferences")}
    await bench.cluster.apply({**service, "metadata": {**metadata, "name": "llama-former"}}, manager=FIELD_MANAGER)
    bench.cluster.writes.clear()


async def test_an_error_that_ends_applying_is_in_the_status_once_and_decides_about_the_retry(bench: Bench) -> None:
    await _with_a_former_service(bench)
    bench.cluster.fail("delete", SERVICE, MAY_NOT_DELETE, times=100)
    with pytest.raises(Forbidden):
        await bench.reconciler.reconcile(KEY)
    assert bench.condition("Ready").reason == "ApplyFailed"
    assert 'cannot delete resource "services"' in bench.condition("Ready").message
    bench.cluster.writes.clear()
    with pytest.raises(Forbidden):
        await bench.reconciler.reconcile(KEY)
    assert bench.cluster.writes == []
    bench.cluster.heal()
    await bench.settle()
    assert bench.condition("Ready").reason != "ApplyFailed"


async def test_the_status_follows_the_pods_while_applying_fails_again_and_again(bench: Bench) -> None:
    await _with_a_former_service(bench)
    bench.cluster.fail("delete", SERVICE, Conflict("the object has been modified"), times=100)
    bench.add_pod(**POD_STATUS)
    bench.logs.told[(bench.cluster.all(POD)[0]["metadata"]["uid"], 0)] = StartupState(stage=Stage.TORCH_COMPILE, lines=10)
    with pytest.raises(Conflict):
        await bench.reconciler.reconcile(KEY)
    startup = bench.status().startup
    assert startup is not None
    assert startup.stage == "TorchCompile"
    assert bench.condition("Ready").reason != "ApplyFailed"


async def test_a_status_that_cannot_be_written_does_not_hide_the_error_before_it(bench: Bench) -> None:
    await _with_a_former_service(bench)
    bench.cluster.fail("delete", SERVICE, MAY_NOT_DELETE)
    bench.cluster.fail("apply_status", VLLM_DEPLOYMENT, Conflict("the object has been modified"))
    with pytest.raises(Forbidden):
        await bench.reconciler.reconcile(KEY)


async def test_an_api_server_that_is_away_is_not_asked_to_take_a_status(bench: Bench) -> None:
    await _with_a_former_service(bench)
    bench.cluster.fail("delete", SERVICE, Unavailable("connection refused"))
    bench.add_pod(**POD_STATUS)
    calls = bench.cluster.calls["apply_status"]
    with pytest.raises(Unavailable):
        await bench.reconciler.reconcile(KEY)
    assert bench.cluster.calls["apply_status"] == calls


async def test_a_held_deployment_that_cannot_be_scaled_is_in_the_status(bench: Bench) -> None:
    bench.cluster.put(llama(replicas=3, cache={"priming": "Never"}))
    await bench.settle()
    bench.cluster.fail("patch", DEPLOYMENT, Invalid("spec.replicas: at most 2 are allowed"), times=100)
    unplanned = {"replicas": 1, "accelerator": {"architectures": ["sm_103"]}}
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": unplanned})
    with pytest.raises(Invalid):
        await bench.reconciler.reconcile(KEY)
    assert bench.plan_verdict().reason == "NoMatchingGPU"


async def test_the_log_of_a_crash_is_read_also_if_its_pod_is_ready_again_before_the_next_look(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    pod = fleet.start()
    fleet.show(pod, READY, restarts=1)
    container = bench.cluster.all(POD)[0]["status"]["containerStatuses"][0]
    crashed = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": fleet.time()}}
    bench.cluster.edit(POD, "default", pod, {"status": {"containerStatuses": [{**container, "lastState": crashed}]}})
    await bench.reconciler.reconcile(KEY)
    assert pod in bench.logs.starting
    bench.pass_time(SETTLING_SECONDS)
    await bench.settle()
    assert bench.status().last_crash is not None
    assert pod not in bench.logs.starting
