"""Starts that go well, slowly, or not at all, on a real API server: each is told by its conditions and events."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama
from support.stories import LOADING, RUNNING, own_events, story, wait_for_story
from testenv.replay import read_recording

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(240)]

CORPUS = Path(__file__).parents[1] / "corpus" / "h200"
INDUCED = Path(__file__).parents[1] / "corpus" / "induced"


async def the_running_pod(cluster: Cluster) -> str:
    """The name of the only Pod, once its engine runs."""
    name = await the_pod(cluster)
    await cluster.wait_until_runs(name)
    return name


def shows(stage: str, completed: int | None = None) -> Callable[[Manifest], bool]:
    """Whether the status shows a stage, with so many completed steps."""

    def is_shown(resource: Manifest) -> bool:
        startup = resource.get("status", {}).get("startup") or {}
        return startup.get("stage") == stage and completed in (None, startup.get("completed"))

    return is_shown


async def test_compile_progress_is_reported_from_the_first_kernel_to_serving(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    pod = await the_running_pod(served)
    log, outputs = sim.log(pod), iter(read_recording(CORPUS / "dsv3-fp8-cold-full-newline-bars.log"))
    for last, stage, completed in (
        (b"Starting to load model", "WeightLoad", None),
        (b" 43/1735 ", "KernelWarmup", 43),
        (b" 752/1735 ", "KernelWarmup", 752),
        (b" 1522/1735 ", "KernelWarmup", 1522),
        (b"Capturing CUDA graphs (mixed", "CUDAGraphCapture", None),
        (b"Application startup complete", "Ready", None),
    ):
        for output in outputs:
            log.write(output.data)
            if last in output.data:
                break
        await served.wait_for("VLLMDeployment", "llama", shows(stage, completed))
    await sim.change(pod, load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await wait_for_story(served, "Available=True Serving: The replica serves model", "Started x1: The replica is ready")


async def test_a_silent_compilation_is_inferred_said_to_be_and_reported_once_when_it_is_over(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, backends={"attention": "FLASHINFER"}))
    pod = await the_running_pod(served)
    log, recording = sim.log(pod), read_recording(INDUCED / "good-flashinfer.log")
    [compiles] = [number for number, output in enumerate(recording) if b"Warming up FlashInfer attention" in output.data]
    began = datetime.now(UTC) - timedelta(seconds=recording[compiles].seconds + 90)
    for output in recording[: compiles + 1]:
        log.write(output.data, at=began + timedelta(seconds=output.seconds))
    told = await served.wait_for(
        "VLLMDeployment", "llama", lambda r: "has logged nothing since" in condition(r, "Ready").get("message", "")
    )
    assert told["status"]["startup"]["stage"] == "FlashInferWarmup"
    page = await story(served)
    silent = "warming up FlashInfer attention. It has logged nothing since "
    assert f"Ready=False Starting: Pod {pod}: {silent}" in page
    assert "NoProgress" not in await own_events(served)

    for output in recording[compiles + 1 :]:
        log.write(output.data)
    await served.wait_for("VLLMDeployment", "llama", shows("Ready"))  # the log of a Pod that serves is not read to its end
    await sim.change(pod, load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    await operator.until_quiet()
    events = await own_events(served)
    assert events["Started"] == 1
    await wait_for_story(served, "Normal Started x1")


async def test_an_image_that_cannot_be_pulled_is_named(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="imagepull", pull="0")
    await served.create(llama(served.namespace))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ImagePullFailed"))
    assert condition(told, "Ready")["reason"] == "ImagePullFailed"
    await wait_for_story(
        served,
        "Ready=False ImagePullFailed",
        "cannot pull image vllm/vllm-openai:v0.20.1",
        "spec.engine.image",
        "Warning ImagePullFailed x1",
    )


async def test_no_room_for_a_pod_is_reported_in_the_words_of_the_scheduler(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, replicas=9, cache={"volume": {"accessMode": "ReadWriteMany"}}))
    await served.wait_for("VLLMDeployment", "llama", lambda it: "8 of 9 replicas are ready" in condition(it, "Ready").get("message", ""))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Unschedulable"))
    assert "Insufficient nvidia.com/gpu" in condition(told, "Ready")["message"]
    await wait_for_story(
        served, "8 of 9 replicas are ready", "waits for a node", "It starts by itself", "Scale something down", "Warning Unschedulable x1"
    )
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 8}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


async def test_a_stalled_start_is_reported_and_left_alone(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await stalled(served, sim, {"stallTimeoutSeconds": 30})
    await wait_for_story(
        served,
        "Ready=False NoProgress",
        "is stuck in its start (waiting for the readiness probe)",
        "`kubectl delete pod",
        "Warning NoProgress x1",
    )
    assert len(await served.list_all("Pod")) == 1


async def test_a_stalled_start_is_restarted_where_that_is_wished_and_not_for_ever(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    first = await stalled(served, sim, {"stallTimeoutSeconds": 30, "onStall": "Restart", "maxStallRestarts": 1})
    await served.wait_until_gone("Pod", first)
    second = await the_running_pod(served)
    assert second != first
    await wait_for_story(served, "Warning NoProgress x1", "The operator deletes the Pod", "Warning RestartedStalled x1")
    status = (await served.get("VLLMDeployment", "llama"))["status"]
    assert status["remediation"]["stalledPods"] == [first]
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Starting"))
    told = await until_stalled(served, sim, second)
    assert "The operator does not restart it: spec.startup.maxStallRestarts is reached" in condition(told, "Ready")["message"]
    assert await served.exists("Pod", second)


async def serve_without_answering(sim: Simulator, pod: str) -> None:
    """An engine that says that it serves, and whose probe never succeeds; one of its processes is waited for, for ever."""
    log = sim.log(pod)
    log.write(RUNNING + LOADING + b"INFO:     Application startup complete.\n")
    while True:
        await asyncio.sleep(3)
        log.write(b"DEBUG 11-21 14:00:10 [utils.py:1035] Waiting for 1 local, 0 remote core engine proc(s) to start.\n")


async def until_stalled(served: Cluster, sim: Simulator, pod: str) -> Manifest:
    """Lets the start of a Pod stall; its limit is 30 seconds."""
    serving = asyncio.create_task(serve_without_answering(sim, pod))
    try:
        return await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "NoProgress"), within=120)
    finally:
        serving.cancel()


async def stalled(served: Cluster, sim: Simulator, startup: dict[str, object]) -> str:
    """Lets a start stall; returns its Pod."""
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, startup=startup))
    pod = await the_running_pod(served)
    await until_stalled(served, sim, pod)
    return pod
