"""A rollout that is measured, and a race, on a real node: each engine runs for real, and the program measures it over HTTP."""

from collections.abc import Callable

import pytest

from support.cluster import Cluster, Manifest, is_ready
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


async def kill_at_each_step(cluster: Cluster, is_over: Callable[[Manifest], bool]) -> set[str]:
    """Kill the operator whenever the helper Pod of a measurement does something else, until it is over. Return the runs."""
    runs, steps = set[str](), set[str]()

    async def step() -> str:
        if is_over(await cluster.get("VLLMDeployment", "llama")):
            return "over"
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

    while "over" not in steps:
        steps.add(str(await eventually(next_step, within=200)))
        await kill_operator(cluster)
    return runs


@pytest.mark.extended
async def test_the_operator_is_killed_at_each_step_and_the_measurement_goes_on(cluster: Cluster) -> None:
    given = {"rollout": {"gate": "Measure", "workload": LOAD}, "cache": {"storage": "EmptyDir"}}
    await cluster.create(model(cluster, spec=given, speed="200", token_seconds="0.02"))
    await until_ready(cluster)
    serving = await the_engine(cluster)
    await cluster.patch("VLLMDeployment", "llama", {"spec": spec("0.03")})
    runs = await kill_at_each_step(cluster, has("Ready", "False", "RolloutHeld"))
    held = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RolloutHeld"), within=60)
    assert "ms per token with 4 clients" in condition(held, "Ready")["message"]
    assert len(runs) in (4, 6, 8), runs
    assert (await the_engine(cluster))["metadata"]["uid"] == serving["metadata"]["uid"]
    assert (await told_once(cluster)).count("RolloutHeld") == 1


@pytest.mark.extended
async def test_the_operator_is_killed_at_each_step_of_a_race_and_the_fastest_backend_is_rolled_out(cluster: Cluster) -> None:
    given = {
        "backends": {"tuning": "Measure", "maxCandidates": 2},
        "rollout": {"workload": LOAD},
        "cache": {"storage": "EmptyDir"},
    }
    await cluster.create(model(cluster, spec=given, speed="200", token_seconds="0.02", token_seconds_flashinfer="0.01"))
    await until_ready(cluster)
    runs = await kill_at_each_step(cluster, lambda found: "is the fastest backend" in found["status"].get("race", ""))
    assert len(runs) in (4, 6, 8), runs
    await cluster.wait_for("VLLMDeployment", "llama", lambda found: "Attention FLASHINFER" in found["status"]["plan"], within=60)
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=120)
    [engine] = [it for it in (await the_engine(cluster))["spec"]["containers"] if it["name"] == "vllm"]
    assert engine["args"][engine["args"].index("--attention-backend") + 1] == "FLASHINFER", engine["args"]
    assert [event["reason"] for event in await cluster.events(name="llama")].count("Raced") == 1
