"""What people met first, on a real API server: the words of common crashes, versions in short, what is imported, and who is away."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster import Cluster, Simulator, the_pod
from support.kubectl_vllm import as_json, kubectl_vllm
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.stories import LOADING, RUNNING
from support.verdicts import has_plan
from vllm_operator.__main__ import kubectl_plugin

pytestmark = pytest.mark.cluster

OFFLINE = (
    b"huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the "
    b"local disk and outgoing traffic has been disabled. To enable repo look-ups and downloads online, set 'HF_HUB_OFFLINE=0' as "
    b"environment variable.\n"
)
NOT_INITIALIZED = (
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for "
    b"details)\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet initialized'\n"
)


@pytest.mark.parametrize(
    ("last", "signature", "words"),
    [(OFFLINE, "HfOfflineOrUnreachable", ("HF_HUB_OFFLINE", "spec.model.uri")), (NOT_INITIALIZED, "CudaSystemNotInitialized802", ("802",))],
    ids=["no hub", "no fabric manager"],
)
async def test_a_common_crash_is_named_and_nothing_that_the_operator_says_is_masked(
    served: Cluster, sim: Simulator, operator: OperatorProcess, last: bytes, signature: str, words: tuple[str, ...]
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    log = sim.log(pod)
    log.write(RUNNING + LOADING + last)
    log.exit()
    await sim.change(pod, crash_after="0")
    told = await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", signature), within=30)
    message = condition(told, "Crashed")["message"]
    assert all(word in message for word in words), message
    assert "***" not in message


async def test_a_version_without_its_last_number_is_the_newest_release_of_it(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, engine={"version": "0.33"}))
    told = await served.wait_for("VLLMDeployment", "llama", has_plan("True"))
    plan = await pinned_plan(served, told)
    assert plan["image"].startswith("vllm/vllm-openai:v0.33.0")
    assert any("0.33 is not the full number of a release" in note for note in plan["notes"])


async def create_imported(served: Cluster, folder: Path, text: str) -> dict[str, Any]:
    """Create what `import` makes of the object of another tool, and return it."""
    (folder / "old.yaml").write_text(text, "utf-8")
    status, said = await kubectl_vllm(served, "import", str(folder / "old.yaml"))
    assert status == 0, said
    made: dict[str, Any] = yaml.safe_load(said)
    await served.create({**made, "metadata": {**made["metadata"], "namespace": served.namespace}})
    return made


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.20.1
        args: ["--model", "Qwen/Qwen3-8B", "--api-key", "$(KEY)"]
        env: [{name: KEY, valueFrom: {secretKeyRef: {name: keys, key: api}}}]
"""


async def test_a_deployment_with_an_api_key_is_imported_without_the_key_and_planned(
    served: Cluster, operator: OperatorProcess, tmp_path: Path
) -> None:
    made = await create_imported(served, tmp_path, DEPLOYMENT)
    assert made["spec"]["auth"]["apiKeySecretRef"] == {"name": "keys", "key": "api"}
    await served.wait_for("VLLMDeployment", "llama", has_plan("True"))


STORED = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      storageUri: s3://bucket/models/qwen
      args: ["--max-model-len=8192"]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""


async def test_a_model_in_an_object_store_is_imported_and_streamed_from_there(
    served: Cluster, operator: OperatorProcess, tmp_path: Path
) -> None:
    await create_imported(served, tmp_path, STORED)
    deployment = await served.wait_for("Deployment", "llama", bool)
    [engine] = [each for each in deployment["spec"]["template"]["spec"]["containers"] if each["name"] == "vllm"]
    assert engine["command"] == ["vllm", "serve", "s3://bucket/models/qwen"]


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B", "Qwen3-8B"])
async def test_the_cluster_refuses_what_fit_refuses_however_the_model_is_spelled(
    served: Cluster, operator: OperatorProcess, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    kubectl_plugin(["fit", model, "--gpu", "H100", "--context", "1M", "-o", "json"])
    refused = {size["limit"] for size in json.loads(capsys.readouterr().out)["sizes"] if size["outcome"] == "refused"}
    spec: dict[str, Any] = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "engine": {"args": [{"name": "--max-model-len", "value": "1M"}]}}
    await served.create(llama(served.namespace, **spec))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "Unsupported"))
    assert [text for text in refused if text.rstrip(".") in condition(told, "Ready")["message"]], (refused, condition(told, "Ready"))


async def test_gpus_of_a_cordoned_node_are_not_free(served: Cluster, gpu_nodes: Callable[..., list[str]]) -> None:
    [node] = gpu_nodes("h200")
    [row] = [row for row in (await as_json(served, "gpus"))["devices"] if row["node"] == node]
    assert row["free"] == row["total"] == 8
    await served.patch("Node", node, {"spec": {"unschedulable": True}})
    said = " ".join((await kubectl_vllm(served, "gpus"))[1].split())
    assert f"Unavailable: {node} (it is cordoned). Ask who did it, and why. If it is healthy: `kubectl uncordon {node}`" in said


async def test_the_age_of_what_is_shown_is_told_while_no_operator_works(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    for command in (("status", "llama"), ("top", "--once")):
        assert "has not renewed its Lease" not in (await kubectl_vllm(served, *command))[1]
    await operator.kill()
    labels = {"app.kubernetes.io/name": "vllm-operator"}
    await served.patch("Lease", "vllm-operator", {"metadata": {"labels": labels}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    for command in (("status", "llama"), ("top", "--once")):
        assert "The operator has not renewed its Lease since 2026-01-01 00:00:00 UTC" in (await kubectl_vllm(served, *command))[1]
