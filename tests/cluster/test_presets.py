"""Presets on a real API server: an edit rolls nothing, a new plan does, and the CRDs may be missing."""

from itertools import pairwise
from typing import Any

import pytest

from support.account import ACCOUNT, granted
from support.audit import AuditTrail
from support.cluster import Cluster, Manifest, RefusedError, Simulator, the_pod
from support.crd import install_preset_crds, remove_preset_crds
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.verdicts import has_plan, plan_verdict
from vllm_operator.api.labels import API_VERSION, REPLAN_ANNOTATION

pytestmark = pytest.mark.cluster

TOLERATION = {"key": "team", "operator": "Exists"}
NAME = {"name": "gpu-defaults"}


def preset(namespace: str, seed: str = "7", *, kind: str = "VLLMPreset", name: str = "gpu-defaults") -> Manifest:
    spec = {
        "engine": {"args": [{"name": "seed", "value": seed}]},
        "podTemplate": {"spec": {"tolerations": [TOLERATION], "imagePullSecrets": [{"name": "registry"}]}},
    }
    metadata = {"name": name} | ({"namespace": namespace} if kind == "VLLMPreset" else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def with_seed(value: str) -> Any:
    """Whether the engine of a Deployment gets this `--seed`."""

    def check(deployment: Manifest) -> bool:
        words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return value in [after for word, after in pairwise(words) if word == "--seed"]

    return check


def says(type: str, words: str) -> Any:
    return lambda resource: words in condition(resource, type).get("message", "")


async def test_a_preset_is_pinned_until_a_new_plan_is_requested(
    served: Cluster, sim: Simulator, operator: OperatorProcess, audit: AuditTrail
) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(preset(served.namespace))
    await served.create(llama(served.namespace, presetRef=NAME))
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert "with VLLMPreset gpu-defaults" in plan_verdict(resource).message
    plan = await pinned_plan(served, resource)
    assert "engine.args.seed" in plan["preset"]["fields"]
    deployment = await served.wait_for("Deployment", "llama", with_seed("7"))
    pod = deployment["spec"]["template"]["spec"]
    assert TOLERATION in pod["tolerations"]
    assert {"name": "registry"} in pod["imagePullSecrets"]
    running = await the_pod(served)

    # an edit is told and rolls nothing, also not after a restart, which writes nothing
    await served.patch("VLLMPreset", "gpu-defaults", {"spec": {"engine": {"args": [{"name": "seed", "value": "8"}]}}})
    await served.wait_for("VLLMDeployment", "llama", says("PlanDrifted", "VLLMPreset gpu-defaults has changed in engine.args."))
    assert await operator.stop() == 0
    before = await served.get("Deployment", "llama")
    await operator.start()
    await operator.until_says("serving", times=2)
    await operator.until_quiet()
    assert await operator.writes() == 0
    assert (await served.get("Deployment", "llama"))["metadata"]["generation"] == before["metadata"]["generation"]
    assert await the_pod(served) == running

    # a new plan takes it
    await served.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "new"}}})
    await served.wait_for("Deployment", "llama", with_seed("8"))
    await served.wait_until_gone("Pod", running)
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.wait_for("VLLMDeployment", "llama", has_plan("True", "Planned"))

    # without its preset it keeps serving
    running = await the_pod(served)
    await served.delete("VLLMPreset", "gpu-defaults")
    await served.wait_for("VLLMDeployment", "llama", says("PlanDrifted", "VLLMPreset gpu-defaults no longer exists."))
    assert await the_pod(served) == running
    assert has("Ready", "True")(await served.get("VLLMDeployment", "llama"))
    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    assert [it for it in requests if it.status in (401, 403)] == []


async def test_a_missing_preset_is_waited_for(served: Cluster, sim: Simulator, operator: OperatorProcess, audit: AuditTrail) -> None:
    for_all = {"kind": "ClusterVLLMPreset", "name": served.namespace}
    await sim.script(path="ok", pull="0", load="0")
    await served.create(preset(served.namespace, name="small"))
    await served.create(llama(served.namespace, presetRef=NAME))
    await served.create(llama(served.namespace, "for-all", presetRef=for_all))
    told = await served.wait_for("VLLMDeployment", "llama", has_plan("False", "PresetMissing"))
    assert "Existing presets of this kind: small." in plan_verdict(told).message
    await served.wait_for("VLLMDeployment", "for-all", has_plan("False", "PresetMissing"))
    await served.create(preset(served.namespace))
    await served.create(preset(served.namespace, kind="ClusterVLLMPreset", name=served.namespace))
    try:
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        await served.wait_for("VLLMDeployment", "for-all", has("Ready", "True"))
    finally:
        await served.delete("ClusterVLLMPreset", served.namespace)
    await operator.stop()  # the audit log has a watch when it ends
    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    of_presets = {right for right in granted(served.namespace) if right[1].endswith("presets")}
    used = {(it.group, it.resource, it.verb) for it in requests if it.resource.endswith("presets")}
    assert used <= of_presets, "lists come before the test"
    assert [it for it in requests if it.status in (401, 403)] == []


async def test_without_the_crds_others_are_served_and_the_condition_says_how_to_install_them(served: Cluster, sim: Simulator) -> None:
    await sim.script(path="ok", pull="0", load="0")
    async with OperatorProcess(served.kubeconfig, served.namespace) as operator:
        await operator.until_ready()
        await remove_preset_crds(served)
        try:
            assert await operator.ended() == 1, "it watches presets"
            await operator.start()  # as the kubelet does
            await served.create(llama(served.namespace, "other"))
            await served.wait_for("VLLMDeployment", "other", has("Ready", "True"))
            await served.create(llama(served.namespace, presetRef=NAME))
            told = await served.wait_for("VLLMDeployment", "llama", has_plan("False", "KindNotInstalled"))
            assert "The CRD vllmpresets.vllm-operator.dev" in plan_verdict(told).message
            assert "kubectl apply -f crds/" in plan_verdict(told).message
        finally:
            await install_preset_crds(served)
        await served.create(preset(served.namespace))
        # the operator looks for the CRD every minute; a change of the object makes it look now
        await served.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {"look": "again"}}})
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)


@pytest.mark.parametrize("kind", ["VLLMPreset", "ClusterVLLMPreset"])
async def test_the_api_server_checks_a_preset_as_it_checks_an_object(served: Cluster, kind: str) -> None:
    wrong = preset(served.namespace, kind=kind, name=served.namespace)
    wrong["spec"] = {"engine": {"args": [{"name": "model", "value": "other"}]}, "cache": {"claimName": "a", "volume": {"size": "1Gi"}}}
    with pytest.raises(RefusedError, match=r"use model\.uri") as refused:
        await served.create(wrong)
    assert "give claimName" in str(refused.value)
