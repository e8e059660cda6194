"""The test environment itself: what other tests take for granted is true of it."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.audit import AuditTrail
from support.cluster import Cluster, Manifest, RefusedError, Simulator, is_ready, simulated
from testenv import ControlPlane, ControlPlaneError
from testenv.api import ApiError, client_of

pytestmark = pytest.mark.cluster

Nodes = Callable[..., list[str]]
CORPUS = Path(__file__).parents[1] / "corpus" / "h200"


def pod(
    name: str = "server", *, resource: str = "nvidia.com/gpu", selector: dict[str, str] | None = None, **annotations: str
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": simulated(**annotations)},
        "spec": {
            "nodeSelector": selector or {},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.20.1", "resources": {"limits": {resource: "1"}}}],
        },
    }


def first_container(manifest: dict[str, Any]) -> dict[str, Any]:
    statuses = manifest["status"].get("containerStatuses", [{}])
    return dict(statuses[0])


async def test_a_pod_lands_on_the_node_whose_labels_it_asks_for_and_becomes_ready(cluster: Cluster, gpu_nodes: Nodes) -> None:
    gpu_nodes("h100-sxm", "gb10", "cpu")
    await cluster.create(pod(selector={"nvidia.com/gpu.compute.major": "12"}))
    ready = await cluster.wait_for("Pod", "server", is_ready)
    assert ready["spec"]["nodeName"] == "gpu-gb10-0"


async def test_a_mig_slice_is_a_resource_of_its_own(cluster: Cluster, gpu_nodes: Nodes) -> None:
    gpu_nodes("h100-mig-mixed")
    await cluster.create(pod(resource="nvidia.com/mig-3g.40gb"))
    await cluster.wait_for("Pod", "server", is_ready)


async def test_a_followed_log_brings_lines_as_they_are_written_and_ends_when_the_container_does(
    cluster: Cluster, gpu_nodes: Nodes, sim: Simulator
) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod(path="ok", pull="0", load="hold"))
    await cluster.wait_for("Pod", "server", lambda seen: first_container(seen).get("state", {}).get("running"))
    log = sim.log("server")
    log.write(b"first\n")
    received = b""
    async for data in cluster.follow_log("server"):
        received += data
        if received == b"first\n":
            log.write(b"\r10%\r20%")
            log.exit()
    assert received == b"first\n\r10%\r20%"


async def test_a_crash_ends_the_log_stream_of_its_run(cluster: Cluster, gpu_nodes: Nodes, sim: Simulator) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod(path="crash", pull="0", crash_after="hold"))
    await cluster.wait_for("Pod", "server", lambda seen: first_container(seen).get("state", {}).get("running"))
    sim.log("server").write(b"last words\n")
    received = b""
    async for data in cluster.follow_log("server"):
        received += data
        await sim.change("server", crash_after="0")
    assert received == b"last words\n"


async def test_a_recorded_start_is_followed_to_its_end(cluster: Cluster, gpu_nodes: Nodes, sim: Simulator) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod(path="ok", pull="0", load="hold"))
    await cluster.wait_for("Pod", "server", lambda seen: first_container(seen).get("state", {}).get("running"))
    recording = CORPUS / "llama-bf16-warm.log"
    playing = asyncio.create_task(sim.replay("server", recording, speed=50).play(exits=True))
    received = b"".join([data async for data in cluster.follow_log("server")])
    await playing
    assert received.endswith(b"Application startup complete.\n")
    assert recording.read_bytes().startswith(received)


async def test_a_log_before_the_container_runs_is_refused_in_the_kubelets_words(cluster: Cluster, gpu_nodes: Nodes) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod(path="ok", pull="60"))
    await cluster.wait_for("Pod", "server", lambda seen: first_container(seen).get("state", {}).get("waiting"))
    with pytest.raises(RefusedError, match='container "vllm" in pod "server" is waiting to start: ContainerCreating') as refused:
        await cluster.read_log("server")
    assert refused.value.status == 400


async def test_the_previous_run_of_a_crashed_container_can_be_read(cluster: Cluster, gpu_nodes: Nodes, sim: Simulator) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod())
    for run, text in enumerate((b"boom\n", b"again\n")):
        log = sim.log("server", run=run)
        log.write(text)
        log.exit()
    await cluster.wait_for("Pod", "server", is_ready)
    assert await cluster.read_log("server", previous="true") == "boom\n"
    assert await cluster.read_log("server") == "again\n"


async def test_a_crash_loop_shows_restarts_back_off_and_the_last_words(cluster: Cluster, gpu_nodes: Nodes) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod(path="crash", pull="0", crash_after="0.1", backoff="0.2", exit_code="3", message='it said "no"'))
    seen = await cluster.wait_for("Pod", "server", lambda seen: first_container(seen).get("restartCount", 0) >= 3)
    terminated = first_container(seen)["lastState"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (3, "Error", 'it said "no"')
    assert not is_ready(seen)
    await cluster.wait_for(
        "Pod", "server", lambda seen: first_container(seen)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )


async def test_a_pod_that_crashes_twice_becomes_ready_after_all(cluster: Cluster, gpu_nodes: Nodes) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod(path="oom", pull="0", crash_after="0.1", crash_times="2", backoff="0.1", load="0.1"))
    ready = await cluster.wait_for("Pod", "server", is_ready)
    assert first_container(ready)["restartCount"] == 2
    assert first_container(ready)["lastState"]["terminated"]["reason"] == "OOMKilled"


async def test_pods_take_over_the_script_of_their_namespace(cluster: Cluster, gpu_nodes: Nodes, sim: Simulator) -> None:
    gpu_nodes("h100-sxm")
    await sim.script(path="imagepull", pull="0")
    await cluster.create(pod())
    seen = await cluster.wait_for(
        "Pod", "server", lambda seen: first_container(seen).get("state", {}).get("waiting", {}).get("reason") == "ImagePullBackOff"
    )
    assert "vllm/vllm-openai:v0.20.1" in first_container(seen)["state"]["waiting"]["message"]


async def test_a_ready_pod_can_be_made_to_crash(cluster: Cluster, gpu_nodes: Nodes, sim: Simulator) -> None:
    gpu_nodes("h100-sxm")
    await cluster.create(pod())
    await cluster.wait_for("Pod", "server", is_ready)
    await sim.change("server", path="crash", crash_phase="ready", crash_after="0")
    await cluster.wait_for("Pod", "server", lambda seen: first_container(seen)["restartCount"] >= 1)


async def test_a_claim_is_bound_unless_its_class_does_not_exist(cluster: Cluster) -> None:
    for name, extra in (("cache", {}), ("stuck", {"storageClassName": "no-such-class"})):
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}} | extra
        await cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
    await cluster.wait_for("PersistentVolumeClaim", "cache", lambda claim: claim["status"].get("phase") == "Bound")
    assert (await cluster.get("PersistentVolumeClaim", "stuck"))["status"]["phase"] == "Pending"


async def test_a_node_goes_down_and_comes_back(cluster: Cluster, gpu_nodes: Nodes) -> None:
    (node,) = gpu_nodes("h100-sxm")
    await cluster.annotate("Node", node, node="down")
    await cluster.wait_for("Node", node, lambda seen: not is_ready(seen))
    await cluster.annotate("Node", node, node=None)
    await cluster.wait_for("Node", node, is_ready)


async def test_a_mig_reconfiguration_takes_the_gpus_away_and_brings_slices(cluster: Cluster, gpu_nodes: Nodes) -> None:
    (node,) = gpu_nodes("h100-sxm")
    annotations = simulated(mig="simulate", mig_seconds="0.3")
    await cluster.patch("Node", node, {"metadata": {"annotations": annotations, "labels": {"nvidia.com/mig.config": "all-1g.10gb"}}})
    pending = await cluster.wait_for("Node", node, lambda seen: seen["status"]["allocatable"]["nvidia.com/gpu"] == "0")
    assert pending["metadata"]["labels"]["nvidia.com/mig.config.state"] == "pending"
    done = await cluster.wait_for("Node", node, lambda seen: seen["metadata"]["labels"]["nvidia.com/mig.config.state"] == "success")
    assert done["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert done["status"]["allocatable"]["nvidia.com/gpu"] == "56"


async def test_cel_rules_of_a_definition_refuse_what_they_should(cluster: Cluster) -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {"least": {"type": "integer"}, "most": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.least <= self.most", "message": "least must not be above most"}],
            }
        },
    }
    names = {"plural": "ranges", "singular": "range", "kind": "Range"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition: Manifest = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ranges.test.vllm-operator.dev"},
        "spec": {"group": "test.vllm-operator.dev", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    await cluster.create(definition)
    name = str(definition["metadata"]["name"])
    await cluster.wait_for(
        "CustomResourceDefinition",
        name,
        lambda seen: any(c["type"] == "Established" and c["status"] == "True" for c in seen["status"]["conditions"] or []),
    )
    path = f"/apis/test.vllm-operator.dev/v1/namespaces/{cluster.namespace}/ranges"
    body = {"apiVersion": "test.vllm-operator.dev/v1", "kind": "Range", "metadata": {"name": "a"}, "spec": {"least": 2, "most": 1}}
    with pytest.raises(RefusedError, match="least must not be above most"):
        await cluster.request("POST", path, body=body)
    await cluster.delete("CustomResourceDefinition", name)


async def test_an_outage_of_the_api_server_loses_nothing(cluster: Cluster) -> None:
    plane = cluster.environment.control_plane
    await cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}})
    server = plane.server
    await asyncio.to_thread(plane.stop_component, "kube-apiserver")
    assert not plane.is_ready()
    await asyncio.to_thread(plane.start_component, "kube-apiserver")
    assert plane.server == server
    assert (await cluster.wait_for("ConfigMap", "kept", bool))["metadata"]["name"] == "kept"


async def test_a_watch_from_a_revision_that_is_gone_is_refused_as_such(cluster: Cluster) -> None:
    plane = cluster.environment.control_plane
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    old = (await cluster.request("GET", path))["metadata"]["resourceVersion"]
    await cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}})
    assert await asyncio.to_thread(plane.compact_history) > int(old)
    await asyncio.to_thread(plane.stop_component, "kube-apiserver", kill=True)
    await asyncio.to_thread(plane.start_component, "kube-apiserver")
    said = await cluster.read(path, watch="1", resourceVersion=old, timeoutSeconds="1")
    assert '"code":410' in said


async def test_a_frozen_api_server_answers_once_it_goes_on(cluster: Cluster) -> None:
    plane = cluster.environment.control_plane
    plane.pause_component("kube-apiserver")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await cluster.list_all("ConfigMap")
    plane.resume_component("kube-apiserver")
    assert await cluster.list_all("ConfigMap")


async def test_an_account_may_do_what_is_bound_to_it_and_every_request_is_on_record(
    cluster: Cluster, audit: AuditTrail, tmp_path: Path
) -> None:
    user = f"system:serviceaccount:{cluster.namespace}:limited"
    client = client_of(await cluster.act_as("limited", tmp_path / "kubeconfig"))
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    with pytest.raises(ApiError, match="forbidden"):
        client.request("GET", path)
    with pytest.raises(ApiError, match="forbidden"):
        client.request("POST", path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    assert [(it.verb, it.resource, it.status) for it in audit.requests(user=user)] == [
        ("list", "configmaps", 403),
        ("create", "configmaps", 403),
    ]
    assert [it.verb for it in audit.writes(user=user)] == ["create"]


def test_a_second_control_plane_runs_beside_the_first_and_ends_neither_it_nor_a_stranger(cluster: Cluster, tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        register = {"etcd": {"pid": stranger.pid, "started": "another boot/1"}, "kube-apiserver": {"pid": 999_999_999, "started": "x"}}
        (tmp_path / "processes.json").write_text(json.dumps(register))
        with ControlPlane(tmp_path) as other:
            assert other.server != cluster.environment.control_plane.server
            names = [item["metadata"]["name"] for item in other.client().request("GET", "/api/v1/namespaces")["items"]]
            assert "default" in names
            assert cluster.namespace not in names
        assert stranger.poll() is None
        assert cluster.environment.control_plane.is_ready()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_folder_in_use_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ControlPlaneError, match="already runs from"):
        ControlPlane(cluster.environment.control_plane.folder).start()
    assert cluster.environment.control_plane.is_ready()
