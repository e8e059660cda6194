"""A rollout that is measured, on a real node: each engine runs for real, and the program measures it over HTTP."""

import pytest

from support.cluster import Cluster
from support.engines import model, until_ready
from support.operator_process import condition, has

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

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
