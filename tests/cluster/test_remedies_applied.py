"""Remedies on a real API server: a command that can be pasted, one that helps, one that does not, and GPUs given back."""

import asyncio
import json
import os
import shlex
import shutil

import pytest

from support.cluster import Cluster, Manifest, RefusedError, Simulator, the_pod
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.stories import LOADING, RUNNING, TOO_LONG, arguments, in_order, own_events, wait_for_story

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


async def crash(served: Cluster, sim: Simulator, *, but: tuple[str, ...] = ()) -> str:
    """Lets the newest Pod crash for want of KV cache; returns its name."""
    [pod] = await served.wait_for_pods(but=but, within=40)
    await served.wait_until_runs(pod)
    log = sim.log(pod)
    log.write(RUNNING + LOADING + TOO_LONG)
    log.exit()
    await sim.change(pod, crash_after="0")
    return pod


async def paste(cluster: Cluster, command: str) -> Manifest:
    """Runs the command in a shell; where there is no kubectl, does what it does."""
    if shutil.which("kubectl"):
        environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
        process = await asyncio.create_subprocess_shell(command, env=environment, stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        if process.returncode:
            raise RefusedError(422, said.decode())
        return await cluster.get("VLLMDeployment", "llama")
    *words, patch = shlex.split(command)
    assert words == ["kubectl", "patch", "vllm", "llama", "-n", cluster.namespace, "--type=json", "-p"]
    path = f"/apis/vllm-operator.dev/v1alpha1/namespaces/{cluster.namespace}/vllmdeployments/llama"
    changed: Manifest = await cluster.request("PATCH", path, body=json.loads(patch), content_type="application/json-patch+json")
    return changed


@pytest.mark.parametrize(
    "engine",
    [
        {"version": "0.20.1"},
        {"version": "0.20.1", "args": [{"name": "seed", "value": "1"}]},
        {"version": "0.20.1", "args": [{"name": "seed", "value": "1"}, {"name": "max-model-len", "value": "131072"}]},
    ],
    ids=["no list yet", "beside others", "in the place of the user's"],
)
async def test_the_suggested_command_does_what_it_says(
    served: Cluster, sim: Simulator, operator: OperatorProcess, engine: Manifest
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60", crash_times="1")
    await served.create(llama(served.namespace, engine=engine))
    await crash(served, sim)
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: (r["status"].get("lastCrash") or {}).get("command"), within=40)
    await wait_for_story(
        served,
        "Ready=False MaxModelLenExceedsKvCache",
        "What to do: Lower --max-model-len to at most 5568",
        "The command is in status.lastCrash.command.",
    )
    await sim.script(path="ok", load="0", pull="0")
    changed = await paste(served, told["status"]["lastCrash"]["command"])
    kept = [a for a in engine.get("args", []) if a["name"] != "max-model-len"]
    assert [a for a in changed["spec"]["engine"]["args"] if "max-model-len" not in a["name"]] == kept
    assert [a["value"] for a in changed["spec"]["engine"]["args"] if "max-model-len" in a["name"]] == ["5568"]
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=40)
    assert "remediation" not in told["status"]


async def test_a_command_that_is_pasted_too_late_is_refused(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60")
    await served.create(llama(served.namespace))
    await crash(served, sim)
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: (r["status"].get("lastCrash") or {}).get("command"), within=40)
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"args": [{"name": "seed", "value": "7"}]}}})
    with pytest.raises(RefusedError, match="422"):
        await paste(served, told["status"]["lastCrash"]["command"])


async def test_a_remedy_that_helps_is_applied_reported_and_undone_with_the_spec(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="60")
    await served.create(llama(served.namespace, remediation={"mode": "Auto"}))
    await served.wait_for("Deployment", "llama", lambda d: d.get("status", {}).get("replicas"))
    await sim.script(path="ok", load="0", pull="0")
    await crash(served, sim)
    deployment = await served.wait_for("Deployment", "llama", lambda d: "5568" in arguments(d), within=40)
    assert in_order(" ".join(arguments(deployment)), "--max-model-len 5568")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=40)
    [remedy] = told["status"]["remediation"]["applied"]
    assert (remedy["signature"], remedy["attempt"]) == ("MaxModelLenExceedsKvCache", 1)
    assert "args" not in (told["spec"].get("engine") or {})
    plan = await pinned_plan(served, told)
    assert all(argument["name"] != "--max-model-len" for argument in plan.get("args", []))
    await wait_for_story(served, "Ready=True Serving", "Normal RemedyApplied x1: Applied --max-model-len 5568")
    # the container may start and crash again before its Pod is replaced, and is then counted twice
    await wait_for_story(served, "Ready=True Serving", "Warning MaxModelLenExceedsKvCache x")
    generation = deployment["metadata"]["generation"]
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    await asyncio.sleep(2)
    assert (await served.get("Deployment", "llama"))["metadata"]["generation"] == generation
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"args": [{"name": "seed", "value": "7"}]}}})
    await served.wait_for("Deployment", "llama", lambda d: "5568" not in arguments(d) and "7" in arguments(d), within=40)
    told = await served.wait_for(
        "VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and r["status"]["observedGeneration"] == 2, within=40
    )
    assert "remediation" not in told["status"]
    assert (await own_events(served))["RemediesUndone"] == 1


async def test_a_remedy_that_does_not_help_is_not_tried_again(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="1")
    await served.create(llama(served.namespace, remediation={"mode": "Auto", "maxAttempts": 5}))
    await served.wait_for("Deployment", "llama", lambda d: d.get("status", {}).get("replicas"))
    first = await crash(served, sim)
    deployment = await served.wait_for("Deployment", "llama", lambda d: "5568" in arguments(d), within=40)
    await served.wait_until_gone("Pod", first, within=40)
    second = await crash(served, sim, but=(first,))
    told = await served.wait_for(
        "VLLMDeployment", "llama", lambda r: r["status"].get("remediation", {}).get("state") == "GaveUp", within=40
    )
    assert "did not help" in told["status"]["remediation"]["message"]
    assert "did not help" in condition(told, "Crashed")["message"]
    assert len(told["status"]["remediation"]["applied"]) == 1
    for run in (1, 2):
        log = sim.log(second, run=run)
        log.write(RUNNING + LOADING + TOO_LONG)
        log.exit()
    await served.wait_for("VLLMDeployment", "llama", lambda r: (r["status"].get("lastCrash") or {}).get("restarts") == 2, within=60)
    assert (await served.get("Deployment", "llama"))["metadata"]["generation"] == deployment["metadata"]["generation"]
    await wait_for_story(served, "Normal RemedyApplied x1", "Warning RemedyGaveUp x1")


async def test_a_hopeless_crash_gives_the_gpus_back_until_the_spec_changes(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="1")
    await served.create(llama(served.namespace, remediation={"onUnrecoverableCrash": "ScaleToZero"}))
    pod = await the_pod(served)
    for run in range(1, 6):
        log = sim.log(pod, run=run)
        log.write(RUNNING + LOADING + TOO_LONG)
        log.exit()
    await crash(served, sim)
    await served.wait_for("Deployment", "llama", lambda d: d["spec"]["replicas"] == 0, within=90)
    await served.wait_until_gone("Pod", pod)

    def is_stopped(resource: Manifest) -> bool:
        return bool(resource["status"].get("remediation", {}).get("state") == "Stopped")

    told = await served.wait_for("VLLMDeployment", "llama", is_stopped, within=30)
    assert condition(told, "Crashed")["reason"] == "MaxModelLenExceedsKvCache"
    await wait_for_story(
        served,
        "Ready=False MaxModelLenExceedsKvCache",
        "What to do:",
        "Warning Stopped x1: Scaled to zero after 5 crashes",
        "The GPUs are free",
    )
    await sim.script(path="ok", load="0", pull="0")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"args": [{"name": "max-model-len", "value": "5568"}]}}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=40)
