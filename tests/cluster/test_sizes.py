"""Sizes on a real API server: a model that does not fit is refused with commands that work, and others get the GPUs that they need."""

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, llama, pinned_plan
from support.verdicts import has_plan, plan_verdict

pytestmark = pytest.mark.cluster

LLAMA_8B, LLAMA_70B = "hf://meta-llama/Llama-3.1-8B-Instruct", "hf://meta-llama/Llama-3.3-70B-Instruct"
DEEPSEEK, QWEN = "hf://deepseek-ai/DeepSeek-V3", "hf://Qwen/Qwen3-0.6B"
H100, GB10, T4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-GB10", "Tesla-T4"


def patch_of(resource: Manifest) -> dict[str, Any]:
    """The patch of the first command in the message of Planned."""
    commands = re.findall(r"`(kubectl patch [^`]*)`", plan_verdict(resource).message)
    words = shlex.split(commands[0])
    patch: dict[str, Any] = json.loads(words[words.index("-p") + 1])
    return patch


async def test_each_model_gets_what_it_needs_or_is_told_what_would_fit(
    served: Cluster, operator: OperatorProcess, gpu_nodes: Callable[..., list[str]]
) -> None:
    gpu_nodes("b200", "l40s", "gb10", "h100-mig-mixed")

    async def create(name: str, uri: str, *products: str, **spec: Any) -> None:
        accelerator = {"accelerator": {"products": list(products)}} if products else {}
        await served.create(llama(served.namespace, name, **{"model": {"uri": uri}, **accelerator, **spec}))

    async def refused(name: str, said: str) -> Manifest:
        resource = await served.wait_for("VLLMDeployment", name, has_plan("False", "DoesNotFit"), within=60)
        assert said in plan_verdict(resource).message
        return resource

    async def plan_of(name: str) -> Manifest:
        return await pinned_plan(served, await served.wait_for("VLLMDeployment", name, has_plan("True"), within=60))

    # a small model in a mixed fleet does not take the largest GPU, and any MIG slice on which it fits; a 70B model gets as many as it needs
    await create("small", QWEN, accelerator={"mig": {"mode": "Enabled"}})
    await create("whole", QWEN, accelerator={"mig": {"mode": "Disabled"}})
    await create("large", LLAMA_70B, H100)
    assert (await plan_of("small"))["resource"] == "nvidia.com/mig-1g.10gb"
    assert (await plan_of("whole"))["product"] == "NVIDIA-L40S"
    assert (await plan_of("large"))["count"] == 4
    deployment = await served.wait_for("Deployment", "large", lambda it: it["spec"]["replicas"] == 1)
    engine = deployment["spec"]["template"]["spec"]["containers"][0]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "4"
    deployment = await served.wait_for("Deployment", "small", lambda it: it["spec"]["replicas"] == 1)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    # what does not fit is refused before anything is downloaded
    gpu_nodes("t4")
    await create("spark", DEEPSEEK, GB10)
    await create("tight", LLAMA_8B, T4)
    await create("eight", DEEPSEEK, H100)
    await create("slice", LLAMA_8B, accelerator={"mig": {"profile": "1g.10gb"}})
    for name, said in (("spark", "does not fit on 1 NVIDIA GB10"), ("tight", "does not fit on 1 "), ("eight", "does not fit on 8 ")):
        await refused(name, said)
        assert not await served.exists("Deployment", name)
    # who does what the message says is served
    for name, said in (("slice", "does not fit on 1 MIG slice 1g.10gb"), ("spark", "Use 8 NVIDIA B200")):
        resource = await refused(name, said)
        await served.patch("VLLMDeployment", name, patch_of(resource))
        await served.wait_for("VLLMDeployment", name, has_plan("True"), within=60)
    assert (await plan_of("spark"))["product"] == "NVIDIA-B200"


async def test_what_vllm_would_refuse_is_refused_before_a_pod_starts(
    served: Cluster, operator: OperatorProcess, gpu_nodes: Callable[..., list[str]]
) -> None:
    gpu_nodes("b200")  # beside the H100 that every test has
    qwen = "hf://Qwen/Qwen3-8B"
    long = {"version": "0.20.1", "args": [{"name": "max-model-len", "value": "1M"}]}
    asked: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
        ("divided", LLAMA_70B, {"parallelism": {"tensor": 3}}, "64 attention heads cannot be divided by 3", {"parallelism": {"tensor": 4}}),
        ("flag", qwen, {"engine": long}, "1048576 tokens, since Qwen/Qwen3-8B has 40960", {"engine": {"args": None}}),
        ("context", qwen, {"sizing": {"contextLength": 262144}}, "262144 tokens", {"sizing": {"contextLength": 40960}}),
    ]
    for name, uri, spec, said, right in asked:
        await served.create(llama(served.namespace, name, **{"model": {"uri": uri}, **spec}))
        resource = await served.wait_for("VLLMDeployment", name, has_plan("False", "Unsupported"), within=60)
        assert said in plan_verdict(resource).message
        assert plan_verdict(resource).status != "True"
        assert not await served.exists("Deployment", name)
        await served.patch("VLLMDeployment", name, {"spec": right})
        await served.wait_for("VLLMDeployment", name, has_plan("True"), within=60)
    # requests that no GPU holds: the first command of the message works
    await served.create(llama(served.namespace, "many", model={"uri": qwen}, sizing={"concurrency": 10000}))
    resource = await served.wait_for("VLLMDeployment", "many", has_plan("False", "DoesNotFit"), within=60)
    assert "10000 requests of 32768 tokens" in plan_verdict(resource).message
    await served.patch("VLLMDeployment", "many", patch_of(resource))
    await served.wait_for("VLLMDeployment", "many", has_plan("True"), within=60)
    # a model of which nothing is known asks for its size, and takes no GPU by itself
    await served.create(llama(served.namespace, "unknown", model={"uri": "pvc://models/in-house"}))
    await served.wait_for("VLLMDeployment", "unknown", has_plan("False", "ModelSizeUnknown"), within=60)
    await served.patch("VLLMDeployment", "unknown", {"spec": {"model": {"facts": {"weightSize": "16Gi"}}}})
    resource = await served.wait_for("VLLMDeployment", "unknown", has_plan("True"), within=60)
    assert (await pinned_plan(served, resource))["product"] == H100


async def test_the_memory_that_a_start_measured_is_in_the_status(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    await served.wait_until_runs(pod)
    first = await served.wait_for("VLLMDeployment", "llama", has_plan("True"))
    predicted = (await pinned_plan(served, first))["memory"]
    assert "engine" not in first["status"]
    measured = {"weightsMebibytes": predicted["weightsMebibytes"] + 512, "kvCacheMebibytes": predicted["kvCacheMebibytes"] - 1024}
    log = sim.log(pod)
    for line in (
        f"gpu_model_runner.py:4879] Model loading took {measured['weightsMebibytes'] / 1024:.3f} GiB memory and 4.10 seconds",
        f"gpu_worker.py:436] Available KV cache memory: {measured['kvCacheMebibytes'] / 1024:.3f} GiB",
    ):
        log.write(f"(EngineCore pid=7) INFO {datetime.now(UTC):%m-%d %H:%M:%S} [{line}\n".encode())
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: "memory" in it["status"].get("engine", {}))
    weights, kv_cache = ((predicted[field] / 1024, measured[field] / 1024) for field in ("weightsMebibytes", "kvCacheMebibytes"))
    assert told["status"]["engine"]["memory"] == (
        f"weights: {weights[0]:.1f} GiB, measured {weights[1]:.1f}; KV cache: {kv_cache[0]:.1f} GiB, measured {kv_cache[1]:.1f}"
    )
    assert told["status"]["revision"] == first["status"]["revision"]
    assert [pod] == await served.wait_for_pods(), "nothing restarts because of it"
