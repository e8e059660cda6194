"""Crashes on a real API server: by name, counted, aggregated, and over once a start succeeds."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama, problem
from support.own_knowledge import LICENCE_SIGNATURE, config_map
from support.stories import LOADING, RUNNING, TOO_LONG, in_order, own_events, story, wait_for_story
from testenv import Environment

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


def has_crashed(restarts: int) -> Callable[[Manifest], bool]:
    """A predicate: the last crash that is told is that of this run, or of a later one."""

    def check(resource: Manifest) -> bool:
        last = (resource.get("status") or {}).get("lastCrash") or {}
        return bool(last.get("restarts", -1) >= restarts)

    return check


def fail(sim: Simulator, pod: str, *, run: int = 0, last: bytes = TOO_LONG) -> None:
    """Writes the whole log of a run that fails."""
    log = sim.log(pod, run=run)
    log.write(RUNNING + LOADING + last)
    log.exit()


async def test_a_crash_is_named_with_its_cause_and_what_to_do(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    fail(sim, pod)
    await sim.change(pod, crash_after="0")
    told = await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "MaxModelLenExceedsKvCache"), within=30)
    assert told["status"]["lastCrash"]["signature"] == "MaxModelLenExceedsKvCache"
    assert "estimated maximum model length" in told["status"]["lastCrash"]["excerpt"]
    page = await wait_for_story(
        served,
        "Ready=False MaxModelLenExceedsKvCache",
        "16.00 GiB",
        "0.68 GiB",
        "at most 5568",
        "The command is in status.lastCrash.command.",
    )
    assert in_order(page, "Crashed=True", "Warning MaxModelLenExceedsKvCache x1")


async def test_a_crash_whose_log_cannot_be_read_says_so_until_it_can(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="120")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    for previous in (False, True):
        sim.fail_logs(pod, "500", previous=previous)
    fail(sim, pod)
    await sim.change(pod, crash_after="0")
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "UnknownCrash"), within=60)
    await wait_for_story(served, "its log could not be read", "Check node")
    for previous in (False, True):
        sim.fail_logs(pod, "", previous=previous)
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "MaxModelLenExceedsKvCache"), within=90)


async def test_a_log_on_a_node_whose_kubelet_cannot_be_reached_is_read_when_it_can_be(
    environment: Environment, served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="120")
    environment.control_plane.stop_component("log-endpoint", kill=True)
    try:
        await served.create(llama(served.namespace))
        pod = await the_pod(served)
        fail(sim, pod)
        await sim.change(pod, crash_after="0")
        told = await served.wait_for(
            "VLLMDeployment", "llama", lambda it: "could not be read" in condition(it, "Crashed").get("message", "")
        )
        assert "its log could not be read (dial tcp " in condition(told, "Crashed")["message"]
    finally:
        environment.start_log_endpoint()
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "MaxModelLenExceedsKvCache"), within=90)


async def lose_the_licence_server(cluster: Cluster, sim: Simulator) -> None:
    """A crash that no signature of ours knows."""
    await cluster.create(llama(cluster.namespace))
    pod = await the_pod(cluster)
    fail(sim, pod, last=b"RuntimeError: licence server lic-7 did not answer\n")
    await sim.change(pod, crash_after="0")


def quotes_the_licence_server(resource: Manifest) -> bool:
    """Whether the log was read: before, only the exit code is known."""
    return "lic-7" in (resource.get("status", {}).get("lastCrash") or {}).get("excerpt", "")


async def test_a_crash_that_only_the_owner_of_the_cluster_knows_is_named_as_he_says(served: Cluster, sim: Simulator) -> None:
    await served.create(config_map("crashes", served.namespace, {"id": "Broken"}, LICENCE_SIGNATURE))
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60")
    async with OperatorProcess(served.kubeconfig, served.namespace, signatures_config_map=f"{served.namespace}/crashes") as operator:
        await operator.until_ready(within=60)
        await lose_the_licence_server(served, sim)
        await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "LicenceServerAway"), within=60)
        await served.wait_for_event("llama", "LicenceServerAway")
        page = await story(served)
        told = "The licence server lic-7 did not answer. What to do: Start it, or set OUR_LICENCE_HOST."
        assert in_order(page, told, "Warning LicenceServerAway x1")
        event = await served.wait_for_event("crashes", "SignatureIgnored")
        assert "signature Broken: severity is missing" in event["message"]
        assert "Traceback" not in operator.log, operator.log


async def test_the_crash_that_one_has_before_him_is_named_once_its_signature_is_added(served: Cluster, sim: Simulator) -> None:
    await served.create(config_map("crashes", served.namespace))
    # one crash only: a second one would be told by its own event
    await sim.script(path="crash", pull="0", crash_after="hold", crash_times="1", load="hold")
    async with OperatorProcess(served.kubeconfig, served.namespace, signatures_config_map=f"{served.namespace}/crashes") as operator:
        await operator.until_ready(within=60)
        await lose_the_licence_server(served, sim)
        await served.wait_for("VLLMDeployment", "llama", quotes_the_licence_server, within=60)
        assert has("Crashed", "True", "UnknownCrash")(await served.get("VLLMDeployment", "llama"))
        await served.patch("ConfigMap", "crashes", {"data": config_map("crashes", served.namespace, LICENCE_SIGNATURE)["data"]})
        await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "LicenceServerAway"), within=60)
        assert (await own_events(served)).get("LicenceServerAway", 0) == 0, "it is the same crash, told already"
        assert "Traceback" not in operator.log, operator.log


async def test_a_crash_loop_is_one_event_that_counts_over_a_restart_of_the_operator(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="1")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    for run in range(9):
        fail(sim, pod, run=run)
    await sim.change(pod, crash_after="0.5")
    await served.wait_for("VLLMDeployment", "llama", has_crashed(2), within=60)
    await sim.change(pod, crash_after="hold")
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2, within=40)
    before = sum((await own_events(served)).values())
    await sim.change(pod, crash_after="0.5")
    told = await served.wait_for("VLLMDeployment", "llama", has_crashed(3), within=60)
    await sim.change(pod, crash_after="hold")
    times = told["status"]["lastCrash"].get("restarts", 0) + 1
    await served.wait_for("VLLMDeployment", "llama", lambda r: f"crashed {times} times" in condition(r, "Crashed")["message"])
    assert f"crashed {times} times, last with exit code 1" in await story(served)
    assert sum((await own_events(served)).values()) > before
    mine = await served.wait_for_event("llama", "MaxModelLenExceedsKvCache")
    assert 3 <= mine["count"] <= times, "a run may end while nobody looks"
    assert f"Pod {pod} crashed" in mine["message"]
    assert mine["firstTimestamp"] < mine["lastTimestamp"]


async def test_a_container_killed_for_memory_is_named_so(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="oom", pull="0", crash_after="hold", backoff="60")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    fail(sim, pod, last=b"")
    await sim.change(pod, crash_after="0")
    told = await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True"), within=30)
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: "OOMKilled" in condition(r, "Crashed").get("reason", ""), within=30)
    assert "with exit code 137" in condition(told, "Crashed")["message"]
    await wait_for_story(served, "Ready=False OOMKilled", "memory", "What to do:", "Warning OOMKilled")


async def test_one_crash_among_four_replicas_is_reported_and_the_others_serve(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", crash_times="1")
    await served.create(llama(served.namespace, replicas=4, cache={"volume": {"accessMode": "ReadWriteMany"}}))
    names = await served.wait_for_pods(4)
    for name in names[1:]:
        await sim.change(name, path="ok", load="0")
    await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("readyReplicas") == 3, within=30)
    fail(sim, names[0])
    await sim.change(names[0], crash_after="0", load="hold")
    told = await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "MaxModelLenExceedsKvCache"), within=30)
    assert told["status"]["readyReplicas"] == 3
    await wait_for_story(served, f"Ready=False MaxModelLenExceedsKvCache: 3 of 4 replicas are ready. Pod {names[0]} ")
    await sim.change(names[0], path="ok", load="0")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=30)
    assert condition(told, "Crashed") == {}
    assert told["status"]["lastCrash"]["signature"] == "MaxModelLenExceedsKvCache"
    await wait_for_story(served, "Ready=True Serving", "Warning MaxModelLenExceedsKvCache x1", "Normal Started x1")


async def test_a_crash_that_a_quick_restart_makes_good_stays_in_the_status(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", crash_times="1", load="0")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    fail(sim, pod, last=b"RuntimeError: the flux capacitor is empty\n")  # a name that is not known takes longest

    def is_over(resource: Manifest) -> bool:
        last = (resource.get("status") or {}).get("lastCrash")
        return bool(last and has("Ready", "True")(resource) and "the flux capacitor is empty" in last.get("cause", ""))

    await sim.change(pod, crash_after="0")
    told = await served.wait_for("VLLMDeployment", "llama", is_over, within=60)
    assert condition(told, "Crashed") == {}
    assert told["status"]["lastCrash"]["signature"] == "Unknown"


async def test_a_lost_node_is_reported(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=30)
    pod = await the_pod(served)
    node = (await served.get("Pod", pod))["spec"]["nodeName"]
    # what the node controller does to the Pods of a node that has fallen silent
    now = (await served.get("Pod", pod))["status"]
    stamp = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    gone = [c | {"status": "False", "lastTransitionTime": stamp} if c["type"] == "Ready" else c for c in now["conditions"]]
    await served.patch("Pod", pod, {"status": {"conditions": gone}}, subresource="status")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "NodeLost"), within=30)
    assert f"Node {node} does not respond (noticed at " in problem(told)


async def test_an_evicted_pod_is_reported_and_replaced(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    # what is simulated would go over it otherwise
    await served.wait_for("Pod", pod, lambda it: it["status"]["phase"] == "Running")
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    await served.patch("Pod", pod, {"status": status}, subresource="status")
    told = await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "Evicted"), within=30)
    assert "ephemeral-storage" in condition(told, "Crashed")["message"]
    await wait_for_story(served, "Crashed=True Evicted", "ephemeral-storage", "What to do:", "Warning Evicted x1")
    await sim.change(await the_pod(served, but={pod}), load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=30)
