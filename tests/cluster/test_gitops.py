"""What scripts and GitOps tools wait for, with kubectl itself and with the rules of kstatus."""

import asyncio

import pytest

from support import kstatus
from support.cluster import Cluster
from support.kubectl import Kubectl, KubectlError
from support.operator_process import OperatorProcess, llama
from support.verdicts import has_plan

pytestmark = pytest.mark.cluster


async def test_kubectl_wait_and_kstatus_tell_when_the_current_spec_is_served(served: Cluster, operator: OperatorProcess) -> None:
    kubectl = Kubectl(served.kubeconfig, served.namespace)
    created = await served.create(llama(served.namespace))
    assert kstatus.compute(created)[0] == kstatus.IN_PROGRESS
    await kubectl.run("wait", "vllm/llama", "--for=condition=Ready", "--timeout=60s")
    ready = await served.get("VLLMDeployment", "llama")
    assert kstatus.compute(ready)[0] == kstatus.CURRENT

    # A node autoscaler may add the missing GPU, so this is no failure. The condition Ready of the old spec counts no more.
    await served.patch("VLLMDeployment", "llama", {"spec": {"accelerator": {"products": ["NVIDIA-B200"]}}})
    with pytest.raises(KubectlError, match="timed out"):
        await kubectl.run("wait", "vllm/llama", "--for=condition=Ready", "--timeout=2s")
    waits = await served.wait_for("VLLMDeployment", "llama", has_plan("False", "NoMatchingGPU"))
    assert kstatus.compute(waits)[0] == kstatus.IN_PROGRESS


async def test_what_no_wait_cures_is_a_failure_until_the_spec_changes(served: Cluster, operator: OperatorProcess) -> None:
    kubectl = Kubectl(served.kubeconfig, served.namespace)
    shortened = {"version": "0.20.1", "args": [{"name": "tensor-parallel", "value": "1"}]}
    await served.create(llama(served.namespace, engine=shortened))
    await kubectl.run("wait", "vllm/llama", "--for=condition=Stalled", "--timeout=60s")
    refused = await served.get("VLLMDeployment", "llama")
    assert kstatus.compute(refused)[0] == kstatus.FAILED
    waiting = asyncio.create_task(kubectl.run("wait", "vllm/llama", "--for=condition=Ready", "--timeout=60s"))
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"args": [{"name": "seed", "value": "7"}]}}})
    await waiting
    await served.wait_for("VLLMDeployment", "llama", lambda it: kstatus.compute(it)[0] == kstatus.CURRENT)
