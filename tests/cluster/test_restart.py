"""Killed at any moment and started again: nothing is lost, nothing is done twice, nothing is written without need."""

import asyncio
import collections
import json
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, has, llama
from support.verdicts import plan_verdict
from vllm_operator.kube.events import COMPONENT

pytestmark = pytest.mark.cluster

MODEL_LOAD = b"INFO 11-21 12:00:00 [gpu_model_runner.py:3000] Starting to load model meta-llama/Llama-3.1-8B-Instruct...\n"


async def versions(cluster: Cluster) -> dict[str, str]:
    """The resourceVersion of everything that the operator writes to."""
    kinds = ("VLLMDeployment", "Deployment", "Service", "PersistentVolumeClaim", "Event", "ReplicaSet")
    found = [item for kind in kinds for item in await cluster.list_all(kind)]
    found = [item for item in found if item.get("reportingComponent", COMPONENT) == COMPONENT]  # no events of the scheduler
    return {f"{item['metadata']['name']} {item['metadata']['uid']}": item["metadata"]["resourceVersion"] for item in found}


async def events(cluster: Cluster) -> collections.Counter[tuple[str, str]]:
    """The operator's events by reason and message."""
    return collections.Counter((event["reason"], event["message"]) for event in await cluster.events(name="llama"))


async def quiet(operator: OperatorProcess) -> None:
    """Wait until the operator has looked at what there is, and has nothing left to do."""
    async with asyncio.timeout(60):
        while True:
            before = await operator.reconciles()
            _, text = await operator.fetch("/metrics")
            if before.get("success") and "vllm_operator_queue_depth 0.0" in text:
                await asyncio.sleep(0.5)
                if await operator.reconciles() == before:
                    return
            await asyncio.sleep(0.1)


async def test_a_restart_with_nothing_to_do_writes_nothing(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await quiet(operator)
    before = await versions(served)
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    await quiet(operator)
    assert await operator.writes() == 0
    assert await versions(served) == before


async def test_a_restart_during_a_start_reports_the_same(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    sim.log(await the_pod(served)).write(MODEL_LOAD)
    await served.wait_for("VLLMDeployment", "llama", lambda r: r.get("status", {}).get("startup", {}).get("stage") == "WeightLoad")
    await quiet(operator)
    before, told = await versions(served), (await served.get("VLLMDeployment", "llama"))["status"]
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    await quiet(operator)
    assert (await served.get("VLLMDeployment", "llama"))["status"] == told
    assert await operator.writes() == 0
    assert await versions(served) == before


async def test_a_crash_while_the_operator_is_away_is_reported_when_it_is_back(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    log = sim.log(pod)
    log.write(MODEL_LOAD)
    await served.wait_for("VLLMDeployment", "llama", lambda r: r.get("status", {}).get("startup", {}).get("stage") == "WeightLoad")
    await operator.kill()
    log.write(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n")
    log.exit()
    sim.log(pod, run=1)
    await sim.change(pod, crash_after="0", crash_times="1")
    await served.wait_for("Pod", pod, lambda p: p["status"]["containerStatuses"][0]["restartCount"] == 1)
    await operator.start()
    # an operator that is slow to start names the crash first by its exit code, then by its log
    seen = await served.wait_for("VLLMDeployment", "llama", lambda r: "memory" in str((r.get("status") or {}).get("lastCrash")).lower())
    assert seen["status"]["lastCrash"]["signature"] == "CudaOutOfMemory"


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 6])
async def test_killed_after_so_many_writes_it_loses_and_repeats_nothing(served: Cluster, operator: OperatorProcess, calls: int) -> None:
    await operator.kill()
    await served.create(llama(served.namespace))
    await operator.start()
    await until_written(served, operator, calls)
    await operator.kill()
    await operator.start()
    ready = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await quiet(operator)
    again = await events(served)
    assert max(again.values()) == 1, again
    assert "Started" in {reason for reason, _ in again}
    assert len(await served.list_all("ReplicaSet")) == 1
    assert (await served.get("Deployment", "llama"))["metadata"]["generation"] == 1
    assert plan_verdict(ready).status == "True"


async def until_written(cluster: Cluster, operator: OperatorProcess, number: int) -> None:
    """Wait until so many of the operator's writes are in the audit log; then it is wherever it is."""
    async with asyncio.timeout(60):
        while len(await asyncio.to_thread(writes_of, cluster)) < number:
            pass


def writes_of(cluster: Cluster) -> list[Manifest]:
    """The operator's writes in the namespace of the test, as the API server has recorded them."""
    found: list[Any] = []
    for line in cluster.environment.control_plane.audit_log.read_text().splitlines():
        if cluster.namespace in line and "vllm-operator/" in line:
            entry = json.loads(line)
            is_write = entry.get("verb") in ("create", "update", "patch", "delete") and entry["objectRef"]["resource"] != "leases"
            if is_write and entry.get("stage") == "ResponseComplete":
                found.append(entry)
    return found


async def test_killed_again_and_again_during_a_start_it_ends_up_right(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    log = sim.log(pod)
    for number, text in enumerate((MODEL_LOAD, b"INFO 11-21 12:00:09 [backends.py:643] Using cache directory: /cache\n", b"")):
        log.write(text)
        await asyncio.sleep(0.1 * number)
        await operator.kill()
        await operator.start()
    await sim.change(pod, load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await quiet(operator)
    assert max((await events(served)).values()) == 1
    assert [p["metadata"]["name"] for p in await served.list_all("Pod")] == [pod]
