"""The API on a real API server: what it takes, what it refuses and in which words, and its subresources."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from support import kstatus
from support.cluster import Cluster, RefusedError
from support.crd import install_crd
from support.refusals import REFUSALS, Refusal, manifest
from testenv import Environment
from testenv.binaries import ensure_binaries

pytestmark = pytest.mark.cluster

EXAMPLES = {
    path.stem: list(yaml.safe_load_all(path.read_text("utf-8")))
    for path in sorted((Path(__file__).parent.parent.parent / "examples").glob("*.yaml"))
}
PATH = "/apis/vllm-operator.dev/v1alpha1/namespaces/{namespace}/vllmdeployments"


@pytest.fixture
async def api(environment: Environment) -> AsyncIterator[Cluster]:
    """A namespace in which VLLMDeployments can be created: one for all tests here, empty at the start of each."""
    async with aiohttp.ClientSession() as session:
        cluster = Cluster(environment, session, "test-api")
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cluster.namespace}})
        await install_crd(cluster)
        yield cluster
        await cluster.request("DELETE", PATH.format(namespace=cluster.namespace))


async def send(cluster: Cluster, method: str, body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """Create or replace as `kubectl apply` does: unknown fields are refused."""
    path = PATH.format(namespace=cluster.namespace) + (f"/{body['metadata']['name']}" if method == "PUT" else "")
    params = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    stored: dict[str, Any] = await cluster.request(method, path, body=body, params=params)
    return stored


async def kubectl(cluster: Cluster, *arguments: str) -> str:
    """What kubectl prints in the namespace of the test."""
    command = [str(ensure_binaries(["kubectl"])["kubectl"]), "--namespace", cluster.namespace, *arguments]
    # what kubectl remembers of a cluster goes into the environment's folder
    memory = cluster.environment.control_plane.folder / "kubectl"
    variables = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": str(memory)}
    process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
async def test_a_bad_spec_is_refused_with_words_that_help(api: Cluster, case: Refusal) -> None:
    bad = manifest("bad", case.spec, {"namespace": api.namespace, **case.metadata})
    method = "POST"
    if case.before is not None:
        stored = await send(api, "POST", manifest("bad", case.before, {"namespace": api.namespace}))
        bad["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        method = "PUT"
    with pytest.raises(RefusedError) as refused:
        await send(api, method, bad)
    for words in case.want:
        assert words in refused.value.message


CHANGES = [
    ("a claim may grow", {"cache": {"volume": {"size": "20Gi"}}}, {"cache": {"volume": {"size": "1Ti"}}}),
    ("a claim of the default size may grow", {}, {"cache": {"volume": {"size": "40Gi"}}}),
    ("a default may be written out", {}, {"cache": {"volume": {"size": "20Gi", "accessMode": "ReadWriteOnce"}}}),
    ("the user's own claim takes over", {"cache": {"volume": {"size": "40Gi"}}}, {"cache": {"claimName": "caches"}}),
    ("the user's own claim is left", {"cache": {"claimName": "caches"}}, {"cache": {"volume": {"accessMode": "ReadWriteMany"}}}),
    ("the storage class may be named later", {}, {"cache": {"volume": {"storageClassName": "fast"}}}),
    ("another model", {}, {"model": {"uri": "pvc://models"}}),
]


@pytest.mark.parametrize(("name", "before", "after"), CHANGES, ids=[name for name, _, _ in CHANGES])
async def test_a_change_that_can_work_is_taken(api: Cluster, name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    stored = await send(api, "POST", manifest("good", before, {"namespace": api.namespace}))
    changed = manifest("good", after, {"namespace": api.namespace, "resourceVersion": stored["metadata"]["resourceVersion"]})
    assert (await send(api, "PUT", changed))["metadata"]["generation"] == 2


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_is_taken(api: Cluster, name: str) -> None:
    for example in EXAMPLES[name]:
        if example["kind"] == "VLLMDeployment":
            stored = await send(api, "POST", example, dry_run=True)
            assert stored["spec"]["model"] == example["spec"]["model"]


async def test_absent_fields_stay_absent(api: Cluster) -> None:
    """A default that the API server writes could not change any more with a newer operator."""
    stored = await send(api, "POST", manifest("plain", {}, {"namespace": api.namespace}))
    assert stored["spec"] == {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"}, "replicas": 1}
    assert stored["status"] == {"observedGeneration": -1}


async def test_an_object_that_nobody_has_reconciled_is_in_progress(api: Cluster) -> None:
    await send(api, "POST", manifest("fresh", {}, {"namespace": api.namespace}))
    fresh = await api.request("GET", PATH.format(namespace=api.namespace) + "/fresh")
    assert fresh["status"] == {"observedGeneration": -1}
    assert kstatus.compute(fresh)[0] == kstatus.IN_PROGRESS


async def test_the_scale_subresource_moves_replicas_and_keeps_to_the_rules(api: Cluster) -> None:
    volume = {"cache": {"volume": {"accessMode": "ReadWriteOncePod"}}}
    await send(api, "POST", manifest("free", {}, {"namespace": api.namespace}))
    await send(api, "POST", manifest("bound", volume, {"namespace": api.namespace}))
    await api.patch("VLLMDeployment", "free", {"spec": {"replicas": 3}}, subresource="scale")
    assert (await api.get("VLLMDeployment", "free"))["spec"]["replicas"] == 3
    with pytest.raises(RefusedError, match="only one replica"):
        await api.patch("VLLMDeployment", "bound", {"spec": {"replicas": 3}}, subresource="scale")


async def test_the_spec_and_the_status_are_written_apart(api: Cluster) -> None:
    await send(api, "POST", manifest("two", {}, {"namespace": api.namespace}) | {"status": {"readyReplicas": 7}})
    assert (await api.get("VLLMDeployment", "two"))["status"] == {"observedGeneration": -1}
    await api.patch("VLLMDeployment", "two", {"spec": {"replicas": 5}, "status": {"readyReplicas": 1}}, subresource="status")
    stored = await api.get("VLLMDeployment", "two")
    assert (stored["spec"]["replicas"], stored["status"]) == (1, {"observedGeneration": -1, "readyReplicas": 1})


async def test_kubectl_get_shows_what_matters_in_one_line(api: Cluster) -> None:
    await send(api, "POST", manifest("shown", {"replicas": 2}, {"namespace": api.namespace}))
    ready = {"type": "Ready", "status": "False", "reason": "Starting", "message": "Compiles kernels."}
    url = f"http://shown.{api.namespace}.svc:8000"
    status = {"readyReplicas": 1, "conditions": [ready], "startup": {"stage": "KernelWarmup"}, "url": url}
    await api.patch("VLLMDeployment", "shown", {"status": status}, subresource="status")
    shown = await kubectl(api, "get", "vllm", "shown")
    header, line = (row.split() for row in shown.splitlines())
    assert header == ["NAME", "MODEL", "GPU", "DESIRED", "READY", "STATUS", "STAGE", "URL", "AGE"]
    assert line[:-1] == ["shown", "hf://meta-llama/Llama-3.1-8B-Instruct", "2", "1", "Starting", "KernelWarmup", url]


async def test_kubectl_explains_every_level_of_the_api(api: Cluster) -> None:
    explained = await kubectl(api, "explain", "vllm.spec.backends")
    assert "FIELD: backends" in explained
    assert "FLASHINFER_CUTLASS" in explained
