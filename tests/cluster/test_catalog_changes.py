"""Another catalog, by a newer operator or by rules of the cluster's owner, changes nothing that runs until it is asked to."""

import asyncio
import os
import sys

import pytest

from support.cluster import Cluster, Manifest, Simulator
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.own_knowledge import ATTENTION_RULE, config_map
from support.verdicts import has_plan, plan_verdict
from vllm_operator.api.labels import REPLAN_ANNOTATION

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


async def attention(cluster: Cluster, resource: Manifest) -> str:
    plan = await pinned_plan(cluster, resource)
    return next(str(choice["backend"]) for choice in plan["backends"] if choice["component"] == "Attention")


async def running(cluster: Cluster) -> Manifest:
    """The Deployment and its Pods as far as a change of the plan would change them."""
    deployment = await cluster.get("Deployment", "llama")
    pods = sorted(pod["metadata"]["uid"] for pod in await cluster.list_all("Pod"))
    return {"version": deployment["metadata"]["resourceVersion"], "spec": deployment["spec"], "pods": pods}


async def plan_diff(cluster: Cluster) -> tuple[int, str]:
    """Exit status and page of `vllm-operator plan NAME --diff`."""
    command = (sys.executable, "-m", "vllm_operator", "plan", "--diff", "-n", cluster.namespace, "llama")
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    page, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, page.decode()


async def test_another_catalog_after_a_restart_is_reported_and_applied_only_when_asked(served: Cluster, sim: Simulator) -> None:
    await sim.script(path="ok", pull="0")
    async with OperatorProcess(served.kubeconfig, served.namespace) as operator:
        await operator.until_ready(within=60)
        await served.create(llama(served.namespace))
        resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
        planned_with = (await pinned_plan(served, resource))["catalogVersion"]
        assert await attention(served, resource) == "FLASH_ATTN"
        assert await operator.stop() == 0
    before = await running(served)
    arguments = before["spec"]["template"]["spec"]["containers"][0]["args"]

    await served.create(config_map("rules", served.namespace, ATTENTION_RULE))
    async with OperatorProcess(served.kubeconfig, served.namespace, rules_config_map=f"{served.namespace}/rules") as operator:
        await operator.until_ready(within=60)
        resource = await served.wait_for("VLLMDeployment", "llama", has_plan("True", "PlanDrifted"), within=60)
        message = plan_verdict(resource).message
        assert "The backend of Attention would change from FLASH_ATTN to FLASHINFER." in message
        assert REPLAN_ANNOTATION in message
        assert await attention(served, resource) == "FLASH_ATTN"
        assert (await pinned_plan(served, resource))["catalogVersion"] == planned_with
        assert condition(resource, "Ready")["status"] == "True"
        assert await running(served) == before

        await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}}, subresource="scale")
        resource = await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"].get("readyReplicas") == 2, within=60)
        assert await attention(served, resource) == "FLASH_ATTN"  # what an autoscaler starts is like what is there
        assert (await running(served))["spec"]["template"]["spec"]["containers"][0]["args"] == arguments
        assert (await plan_diff(served))[0] == 0  # the command knows what ships with it, and that is what was planned with

        await served.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
        resource = await served.wait_for("VLLMDeployment", "llama", has_plan("True", "Planned"), within=60)
        assert await attention(served, resource) == "FLASHINFER"
        assert (await pinned_plan(served, resource))["catalogVersion"].startswith(f"{planned_with}.")

        def changed(deployment: Manifest) -> bool:
            return "--attention-backend" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]

        await served.wait_for("Deployment", "llama", changed, within=60)
        status, page = await plan_diff(served)
        assert status == 1
        assert page.index("backend of Attention") < page.index("We have measured it.") < page.index("FLASH_ATTN")
        assert "Traceback" not in operator.log, operator.log


async def test_a_rule_is_picked_up_while_the_operator_runs_and_a_broken_one_harms_nothing(served: Cluster, sim: Simulator) -> None:
    await sim.script(path="ok", pull="0")
    name = f"{served.namespace}/rules"
    async with OperatorProcess(served.kubeconfig, served.namespace, rules_config_map=name) as operator:
        await operator.until_ready(within=60)
        await served.create(llama(served.namespace))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
        before = await running(served)
        await served.create(
            config_map("rules", served.namespace, {**ATTENTION_RULE, "when": {"moon": "full"}}, ATTENTION_RULE | {"id": "second"})
        )
        await served.wait_for("VLLMDeployment", "llama", has_plan("True", "PlanDrifted"), within=60)
        await operator.until_says("rule our-attention: when: 'moon' is not a field", within=60)
        assert await running(served) == before
        assert (await operator.fetch("/readyz"))[0] == 200
        event = await served.wait_for_event("rules", "RuleIgnored")
        assert event["type"] == "Warning"
        await served.delete("ConfigMap", "rules")
        await served.wait_for("VLLMDeployment", "llama", has_plan("True", "Planned"), within=60)
        assert await running(served) == before
        assert "Traceback" not in operator.log, operator.log
