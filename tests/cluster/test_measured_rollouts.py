"""A new plan is measured before its rollout, on a real API server, with an operator that is killed after each run."""

import json
import random
from collections.abc import Callable

import pytest

from support import speeds
from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.kubectl_vllm import kubectl_vllm
from support.operator_process import OperatorProcess, has, llama
from vllm_operator.api import reading
from vllm_operator.api.labels import MEASURER, RUN_ANNOTATION

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

PRIMER = "app.kubernetes.io/instance=llama,app.kubernetes.io/component=primer"


def serves(generation: int) -> Callable[[Manifest], bool]:
    """Return whether an object serves this generation of its spec."""
    return lambda found: has("Ready", "True")(found) and found["status"]["observedGeneration"] == generation


async def change_version(cluster: Cluster, sim: Simulator) -> None:
    """A replica serves, and the version changes. Starts of other Pods take no time."""
    await sim.script(path="ok", pull="0", load="0")
    await cluster.create(llama(cluster.namespace, rollout={"gate": "Measure"}, cache={"storage": "EmptyDir"}))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})


class Primer:
    """The helper Pods of a rollout, one for each run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._seen = cluster, list[str]()

    async def measure(self, number: int, figures: dict[str, object]) -> str:
        """Wait for the Pod of a run, and end the container that measures; return the image of its engine."""
        return reading.text(await self.run(str(number), figures), "image")

    async def run(self, number: str, figures: dict[str, object]) -> Manifest:
        """Wait for the Pod of a run, and end the container that measures; return the container of its engine."""
        name = await the_pod(self.cluster, selector=PRIMER, but=self._seen)
        self._seen.append(name)
        pod = await self.cluster.wait_for("Pod", name, has("Ready", "True"), within=60)
        assert pod["metadata"]["annotations"][RUN_ANNOTATION].endswith(f"/{number}")
        ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps({"result": "Measured", **figures})}
        statuses = [it | ({"state": {"terminated": ended}} if it["name"] == MEASURER else {}) for it in pod["status"]["containerStatuses"]]
        await self.cluster.patch("Pod", name, {"status": {"containerStatuses": statuses}}, subresource="status")
        return dict(reading.named(pod, "vllm", "spec", "containers", key="name"))


async def test_a_plan_that_is_as_good_is_rolled_out_although_the_operator_is_killed_after_each_run(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await change_version(served, sim)
    primer, chosen, images = Primer(served), random.Random(1), []
    for number in range(4):
        images.append(await primer.measure(number, speeds.run(chosen, noise=0.01).to_json()))
        await operator.kill()
        await operator.start()
    assert ["v0.24.0" in image for image in images] == [True, False, True, False]
    await served.wait_until_gone("Deployment", "llama.primer", within=60)
    done = await served.wait_for("VLLMDeployment", "llama", serves(2), within=60)
    assert "vLLM 0.24.0" in done["status"]["plan"]
    event = await served.wait_for_event("llama", "Measured")
    assert "not worse" in event["message"]


async def test_a_slower_plan_is_held_until_the_gate_is_removed(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await change_version(served, sim)
    primer, chosen = Primer(served), random.Random(1)
    for number in range(4):
        speed = 0.7 if number % 2 == 0 else 1.0
        await primer.measure(number, speeds.run(chosen, noise=0.01, speed=speed).to_json())
    held = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolloutHeld"), within=60)
    message = next(it["message"] for it in held["status"]["conditions"] if it["type"] == "Ready")
    assert "42% worse" in message
    assert held["status"]["readyReplicas"] == 1
    await served.wait_until_gone("Deployment", "llama.primer", within=60)
    await served.patch("VLLMDeployment", "llama", {"spec": {"rollout": {"gate": None}}})
    done = await served.wait_for("VLLMDeployment", "llama", serves(3), within=60)
    assert "vLLM 0.24.0" in done["status"]["plan"]


async def test_the_run_ends_with_its_object(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await change_version(served, sim)
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Measuring"), within=60)
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama.primer", within=60)


async def race(cluster: Cluster, operator: OperatorProcess, *, rival: float, **backends: str) -> list[bool]:
    """Two backends race while a replica serves, and the operator is killed after each run. Return which runs had another backend."""
    await cluster.create(llama(cluster.namespace, backends={"maxCandidates": 2, **backends}, cache={"storage": "EmptyDir"}))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    if not backends:
        assert (await kubectl_vllm(cluster, "race", "llama"))[0] == 0
    primer, chosen, others = Primer(cluster), random.Random(1), list[bool]()
    for number in range(4 if rival > 1 else 3):
        speed = rival if number % 2 else 1.0
        engine = await primer.run(f"race-{number}", speeds.run(chosen, noise=0.01, speed=speed).to_json())
        others.append("--attention-backend" in json.dumps(engine))
        await operator.kill()
        await operator.start()
    await cluster.wait_until_gone("Deployment", "llama.primer", within=60)
    return others


async def test_the_fastest_backend_of_a_race_is_rolled_out_although_the_operator_is_killed_after_each_run(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="0")
    assert await race(served, operator, rival=1.8, tuning="Measure") == [False, True, False, True]
    await served.wait_for("VLLMDeployment", "llama", lambda found: "Attention FLASHINFER" in found["status"].get("plan", ""), within=60)
    done = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    assert "FLASHINFER is the fastest backend measured, so the plan uses it (spec.backends.tuning). FLASHINFER: " in done["status"]["race"]
    event = await served.wait_for_event("llama", "Raced")
    assert "FLASHINFER is the fastest" in event["message"]
    status, said = await kubectl_vllm(served, "race", "export")
    assert (status, "backend: FLASHINFER" in said) == (0, True), said
    deployment = await served.get("Deployment", "llama")
    assert "--attention-backend" in json.dumps(deployment["spec"]["template"])


async def test_a_race_on_request_within_the_noise_changes_nothing(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    assert await race(served, operator, rival=1.0) == [False, True, False]
    done = await served.wait_for("VLLMDeployment", "llama", lambda found: "nothing changes" in found["status"].get("race", ""), within=60)
    assert has("Ready", "True")(done)
    deployment = await served.get("Deployment", "llama")
    assert "--attention-backend" not in json.dumps(deployment["spec"]["template"])
