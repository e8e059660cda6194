"""A Job reads the build of vLLM in an image of unknown version, on the real API server: the Job, its record, and the plans that follow."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

from support.builds import IMAGE, OWN_FLAG, build_table, printed
from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.stories import arguments

pytestmark = pytest.mark.cluster

SELECTOR = "app.kubernetes.io/component=reading"
OWN: Mapping[str, Any] = {"engine": {"image": IMAGE, "args": [{"name": OWN_FLAG, "value": "1"}]}, "cache": {"priming": "Never"}}


async def finish(sim: Simulator, pod: str, output: str) -> None:
    """The program prints this and ends."""
    log = sim.log(pod, container="read-image")
    log.write(output.encode())
    log.exit()
    await sim.change(pod, load="0")


async def jobs(cluster: Cluster) -> list[Manifest]:
    return await cluster.list_all("Job")


async def test_the_plan_waits_for_the_table_of_the_image_and_says_that_it_was_read(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, **OWN))
    pod = await the_pod(served, selector=SELECTOR)
    told = await served.wait_for("VLLMDeployment", "llama", has("ReadingImage", "True", "ReadingImage"))
    assert condition(told, "Ready")["reason"] == "ReadingImage"
    assert not await served.exists("Deployment", "llama")
    await operator.kill()
    await operator.start()
    await operator.until_ready()
    await operator.until_quiet()
    assert len(await jobs(served)) == 1, "a new operator finds the Job of the earlier one"
    await sim.script(load="0")
    table = build_table()
    table["flags"] |= {f"--{hashlib.sha256(bytes([number % 256, number // 256])).hexdigest()}": [] for number in range(400)}
    assert len(printed(table)) > 16_384, "the container runtime splits the line"
    await finish(sim, pod, printed(table))
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert OWN_FLAG in arguments(await served.get("Deployment", "llama"))
    plan = await pinned_plan(served, resource)
    assert plan["engineVersion"] == "0.34.0.dev7"
    assert "were read from the image, which contains vLLM 0.34.0.dev7" in json.dumps(plan["notes"])
    assert condition(resource, "ReadingImage") == {}

    await served.patch("VLLMDeployment", "llama", {"spec": {"sizing": {"contextLength": 8192}}})
    changed = await served.wait_for("Deployment", "llama", lambda d: "8192" in arguments(d))
    assert OWN_FLAG in arguments(changed)
    assert len(await jobs(served)) == 1, "the image is read once"

    await served.create(llama(served.namespace, "other", **OWN))
    second = await the_pod(served, selector=SELECTOR, but=[pod])
    assert second.startswith("other-read-"), "each object reads its image for itself"
    await served.delete("VLLMDeployment", "llama", propagation="Background")
    await served.wait_until_gone("Pod", pod, within=60)


async def test_hostile_output_leads_to_the_nearest_release_with_a_warning(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, engine={"image": IMAGE, "version": "0.34.0"}, cache={"priming": "Never"}))
    pod = await the_pod(served, selector=SELECTOR)
    await sim.script(load="0")
    await finish(sim, pod, printed(build_table(flags={"--a\x1b[31m": []})) + "\x1b[2J" + "x" * 100_000 + "\n")
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    warned = condition(resource, "ReadingImage")
    assert (warned["status"], warned["reason"]) == ("True", "ImageUnreadable")
    assert warned["message"].isprintable()
    plan = await pinned_plan(served, resource)
    assert "is newer than" in json.dumps(plan["notes"])
    event = await served.wait_for_event("llama", "ImageUnreadable")
    assert event["type"] == "Warning"
    await served.delete("Job", (await jobs(served))[0]["metadata"]["name"], propagation="Background")
    await served.wait_until_gone("Pod", pod)
    await operator.until_quiet()
    assert await jobs(served) == [], "what failed is not tried again for the same spec"
