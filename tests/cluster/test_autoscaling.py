"""A HorizontalPodAutoscaler on the scale subresource, with the real controller."""

from pathlib import Path

import pytest
import yaml

from support.cluster import Cluster
from support.operator_process import OperatorProcess, has, llama

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-autoscaler.yaml"


async def test_the_replicas_of_an_autoscaler_stay_and_reach_the_deployment(served: Cluster, operator: OperatorProcess) -> None:
    manifest = llama(served.namespace, "llama-own-scaled", cache={"volume": {"accessMode": "ReadWriteMany"}})
    manifest["spec"].pop("replicas", None)
    await served.create(manifest)
    await served.wait_for("VLLMDeployment", "llama-own-scaled", has("Ready", "True"))
    autoscaler = next(it for it in yaml.safe_load_all(EXAMPLE.read_text("utf-8")) if it["kind"] == "HorizontalPodAutoscaler")
    autoscaler["metadata"]["namespace"] = served.namespace
    # without an adapter it only keeps within its bounds, and that is enough here
    await served.request("POST", f"/apis/autoscaling/v2/namespaces/{served.namespace}/horizontalpodautoscalers", body=autoscaler)
    await served.wait_for("VLLMDeployment", "llama-own-scaled", lambda it: it["spec"]["replicas"] == 2)
    await served.wait_for("Deployment", "llama-own-scaled", lambda it: it["spec"]["replicas"] == 2)
    scaled = await served.wait_for("VLLMDeployment", "llama-own-scaled", has("Ready", "True"))
    revision = scaled["status"]["revision"]
    await served.wait_for("VLLMDeployment", "llama-own-scaled", lambda it: it["status"].get("readyReplicas") == 2)
    kept = await served.get("VLLMDeployment", "llama-own-scaled")
    assert (kept["spec"]["replicas"], kept["status"]["revision"]) == (2, revision)
