"""A rollout that is measured, on a real node: each engine runs for real, and the program measures it over HTTP."""

import pytest

from support.cluster import Cluster, is_ready
from support.engines import eventually, model, the_engine, told_once, until_ready
from support.operator_pods import kill_operator
from support.operator_process import condition, has
from vllm_operator.api import reading
from vllm_operator.api.labels import MEASURER, RUN_ANNOTATION

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

PRIMER = "app.kubernetes.io/instance=llama,app.kubernetes.io/component=primer"
LOAD = {"inputTokens": 16, "outputTokens": 8, "concurrency": [1, 4], "seconds": 2}


def spec(token_seconds: str) -> dict[str, object]:
    return {"engine": {"env": [{"name": "ENGINE_SPEED", "value": "200"}, {"name": "ENGINE_TOKEN_SECONDS", "value": token_seconds}]}}


async def test_a_slower_plan_is_held_and_a_faster_one_is_rolled_out(cluster: Cluster) -> None:
    given = {"rollout": {"gate": "Measure", "workload": LOAD}, "cache": {"storage": "EmptyDir"}}
    await cluster.create(model(cluster, spec=given, speed="200", token_seconds="0.02"))
    await until_ready(cluster)
    await cluster.patch("VLLMDeployment", "llama", {"spec": spec("0.03")})
    held = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolloutHeld"), within=400)
    assert "ms per token with 4 clients" in condition(held, "Ready")["message"]
    assert held["status"]["readyReplicas"] == 1
    await cluster.patch("VLLMDeployment", "llama", {"spec": spec("0.015")})
    event = await cluster.wait_for_event("llama", "Measured", within=400)
    assert "not worse" in event["message"]
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)


@pytest.mark.extended
async def test_the_operator_is_killed_at_each_step_and_the_measurement_goes_on(cluster: Cluster) -> None:
    given = {"rollout": {"gate": "Measure", "workload": LOAD}, "cache": {"storage": "EmptyDir"}}
    await cluster.create(model(cluster, spec=given, speed="200", token_seconds="0.02"))
    await until_ready(cluster)
    serving = await the_engine(cluster)
    await cluster.patch("VLLMDeployment", "llama", {"spec": spec("0.03")})
    runs, steps = set[str](), set[str]()

    async def step() -> str:
        """Return what the helper Pod of the measurement does now, or that the rollout is held."""
        if has("Ready", "False", "RolloutHeld")(await cluster.get("VLLMDeployment", "llama")):
            return "held"
        for pod in await cluster.list_all("Pod", selector=PRIMER):
            run = pod["metadata"].get("annotations", {}).get(RUN_ANNOTATION, "")
            runs.add(run)
            measures = reading.named(pod, MEASURER, "status", "containerStatuses", key="name")
            ended = "terminated" in reading.mapping(measures, "state")
            return f"{run} {'ended' if ended else 'ready' if is_ready(pod) else pod['status'].get('phase')}"
        return "no Pod"

    async def next_step() -> str:
        found = await step()
        return found if found not in steps else ""

    while "held" not in steps:
        found = str(await eventually(next_step, within=200))
        steps.add(found)
        await kill_operator(cluster)
    held = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolloutHeld"), within=60)
    assert "ms per token with 4 clients" in condition(held, "Ready")["message"]
    assert len(runs) in (4, 6, 8), runs
    assert (await the_engine(cluster))["metadata"]["uid"] == serving["metadata"]["uid"]
    assert (await told_once(cluster)).count("RolloutHeld") == 1
