"""A status that tells all: parts that are not in effect, volumes that do not exist, edits that are undone, events of this object."""

import re
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, Simulator, the_pod
from support.kubectl import Kubectl, KubectlError
from support.operator_process import OperatorProcess, condition, has, llama
from support.stories import LOADING, RUNNING
from support.verdicts import cache_verdict
from vllm_operator.cli.status import read_object
from vllm_operator.kube.api_client import KubeClient
from vllm_operator.kube.connection import load_configuration

pytestmark = pytest.mark.cluster

GATEWAY = {"parentRefs": [{"name": "public"}]}


async def test_a_gateway_that_is_not_in_effect_is_named_and_ready_waits_for_it(served: Cluster, operator: OperatorProcess) -> None:
    kubectl = Kubectl(served.kubeconfig, served.namespace)
    await served.create(llama(served.namespace, gateway=GATEWAY))
    await kubectl.run("wait", "vllm/llama", "--for=condition=Available", "--timeout=60s")
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "NotExposed"))
    assert condition(told, "Exposed")["reason"] == "IntegrationDisabled"
    assert condition(told, "Ready")["message"].startswith(
        "The replica serves, but not everything in the spec is in effect. See condition Exposed."
    )
    header, row = (line.split() for line in (await kubectl.run("get", "vllm", "llama")).splitlines())
    shown = dict(zip(header, row, strict=False))
    assert (shown["READY"], shown["STATUS"]) == ("1", "NotExposed")
    with pytest.raises(KubectlError, match="timed out"):
        await kubectl.run("wait", "vllm/llama", "--for=condition=Ready", "--timeout=1s")
    await served.patch("VLLMDeployment", "llama", {"spec": {"gateway": None}})
    await kubectl.run("wait", "vllm/llama", "--for=condition=Ready", "--timeout=30s")


async def test_a_volume_of_the_model_that_does_not_exist_is_an_error(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, model={"uri": "pvc://modelz/llama"}))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ClaimMissing"))
    progress = condition(told, "Ready")
    assert (progress["status"], progress["reason"]) == ("False", "ClaimMissing")
    assert "PersistentVolumeClaim modelz (spec.model.uri) does not exist" in progress["message"]
    _, metrics = await operator.fetch("/metrics")
    assert "vllm_operator_start_late_after_seconds{" not in metrics


async def test_a_storage_class_that_does_not_exist_is_an_error(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache={"volume": {"storageClassName": "fastt"}}))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "StorageClassMissing"), within=40)
    assert "Correct spec.cache.volume.storageClassName, then delete the PVC" in cache_verdict(told).message
    assert condition(told, "Ready")["status"] == "False"


async def test_an_edit_that_is_undone_is_told_with_its_author(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    kubectl = Kubectl(served.kubeconfig, served.namespace)
    for _ in range(2):
        await kubectl.run("patch", "deployment", "llama", "--patch", '{"spec": {"replicas": 3}}')
        await served.wait_for("Deployment", "llama", lambda d: d["spec"]["replicas"] == 1)
    event = await served.wait_for_event("llama", "Restored")
    pattern = r"Restored spec\.replicas of Deployment llama, which kubectl-patch changed at [-0-9]+ [:0-9]+ UTC\. Change spec"
    assert re.match(pattern, event["message"]), event["message"]
    assert event.get("count", 1) == 1, "once an hour"


async def test_events_of_an_earlier_object_are_not_shown(served: Cluster, operator: OperatorProcess, tmp_path: Path) -> None:
    await served.create(llama(served.namespace, backends={"attention": "NO_SUCH_BACKEND"}))
    await served.wait_for_event("llama", "Unsupported")
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("VLLMDeployment", "llama")
    await served.create(llama(served.namespace))
    await the_pod(served)
    client = KubeClient(await load_configuration({"KUBECONFIG": str(served.kubeconfig)}))
    try:
        _, events = await read_object(client, "llama", served.namespace)
    finally:
        await client.close()
    assert "Unsupported" in {event["reason"] for event in await served.events(name="llama")}
    assert "Unsupported" not in {event["reason"] for event in events}


TOO_LONG = (
    b"ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger "
    b"than the available KV cache memory (0.68 GiB). Based on the available memory, the estimated maximum model length is 5568. Try "
    b"increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n"
)
LINES = {"serving": 45, "starting": 50, "crashed": 60}
"""Lines of the page of `kubectl describe` above the events, at most, with the spec of the quick start."""
OF_TEN_LINES = {
    "sizing": {"contextLength": 8192, "concurrency": 4},
    "rollout": {"onFailure": "RollBack", "proveSeconds": 600},
}
"""What makes the spec of the quick start one of ten lines in YAML."""


def most(situation: str, spec: dict[str, Any]) -> int:
    """Each further line of the spec takes one line: nothing else is said again because of it."""
    return LINES[situation] + sum(1 + len(part) for part in spec.values())


async def page(served: Cluster, operator: OperatorProcess) -> list[str]:
    """What kubectl shows of the object, above its events, when nothing changes any more."""
    await operator.until_quiet()
    lines = (await Kubectl(served.kubeconfig, served.namespace).run("describe", "vllm", "llama")).splitlines()
    return lines[: next(number for number, line in enumerate(lines) if line.startswith("Events:"))]


@pytest.mark.parametrize("spec", [{}, OF_TEN_LINES], ids=["of the quick start", "of ten lines"])
async def test_kubectl_describe_fits_on_a_screen(served: Cluster, sim: Simulator, operator: OperatorProcess, spec: dict[str, Any]) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, **spec))
    pod = await the_pod(served)
    await served.wait_until_runs(pod)
    log = sim.log(pod)
    log.write(b"INFO 11-21 12:00:00 [gpu_model_runner.py:3000] Starting to load model meta-llama/Llama-3.1-8B-Instruct...\n")
    await served.wait_for("VLLMDeployment", "llama", lambda r: r.get("status", {}).get("startup", {}).get("stage") == "WeightLoad")
    starting = await page(served, operator)
    assert len(starting) <= most("starting", spec), "\n".join(starting)
    await sim.change(pod, load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    serving = await page(served, operator)
    assert len(serving) <= most("serving", spec), "\n".join(serving)


@pytest.mark.parametrize(
    ("last", "signature"),
    [(b"", "UnknownCrash"), (TOO_LONG, "MaxModelLenExceedsKvCache")],
    ids=["of unknown cause", "that ends the revision"],
)
async def test_kubectl_describe_of_a_crash_fits_on_a_screen(
    served: Cluster, sim: Simulator, operator: OperatorProcess, last: bytes, signature: str
) -> None:
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="120")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    log = sim.log(pod)
    log.write(RUNNING + LOADING + last)
    log.exit()
    await sim.change(pod, crash_after="0")
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", signature), within=60)
    crashed = await page(served, operator)
    assert len(crashed) <= LINES["crashed"], "\n".join(crashed)
