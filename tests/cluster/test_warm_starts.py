"""Caches on a real API server: filled by one Pod, kept, shared, repaired, made room in."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.account import ACCOUNT
from support.cluster import Cluster, Manifest, Simulator, simulated, the_pod
from support.operator_process import OperatorProcess, condition, has, llama
from support.tools import command
from support.verdicts import cache_verdict, has_cache

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

RACES = {"version": "0.16.0"}
"""A version that is known to race: one Pod goes first."""
MANY = {"volume": {"accessMode": "ReadWriteMany"}}


def of(component: str, name: str = "llama") -> str:
    """Selects the Pods of one component of a VLLMDeployment."""
    return f"app.kubernetes.io/instance={name},app.kubernetes.io/component={component}"


async def pods(cluster: Cluster, component: str = "engine") -> list[Manifest]:
    return [pod for pod in await cluster.list_all("Pod", selector=of(component)) if not pod["metadata"].get("deletionTimestamp")]


def replicas(number: int) -> Callable[[Manifest], bool]:
    return lambda deployment: bool(deployment["spec"]["replicas"] == number)


def annotations(claim: Manifest, prefix: str) -> dict[str, str]:
    found = claim["metadata"].get("annotations") or {}
    return {name.removeprefix(f"{prefix}.vllm-operator.dev/"): value for name, value in found.items() if name.startswith(prefix + ".")}


async def finish(cluster: Cluster, sim: Simulator, pod: str) -> None:
    """The first start ends well, and later ones are quick."""
    await sim.script(load="0")
    await sim.change(pod, load="0")


async def priming(cluster: Cluster, sim: Simulator, **spec: Any) -> str:
    """Three replicas on an empty cache: the name of the Pod that goes first."""
    await sim.script(path="ok", pull="0", load="hold")
    await cluster.create(llama(cluster.namespace, replicas=3, engine=RACES, **{"cache": MANY, **spec}))
    await cluster.wait_for("VLLMDeployment", "llama", has_cache("Compiling"))
    await cluster.wait_for("Deployment", "llama", replicas(1))
    return await the_pod(cluster, selector=of("engine"))


async def all_serve(cluster: Cluster) -> Manifest:
    return await cluster.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and r["status"].get("readyReplicas") == 3)


async def test_one_fills_the_cache_then_all_start(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    first = await priming(served, sim)
    assert len(await pods(served)) == 1
    await finish(served, sim, first)
    done = await all_serve(served)
    key = done["status"]["cache"]["key"]
    claim = await served.get("PersistentVolumeClaim", "llama-cache")
    assert (list(annotations(claim, "primed")), annotations(claim, "priming")) == ([key], {})
    assert done["status"]["cache"]["state"] == "Filled"


async def test_a_restart_of_the_operator_while_one_fills_the_cache(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    first = await priming(served, sim)
    await operator.kill()
    await finish(served, sim, first)
    await served.wait_for("Pod", first, lambda pod: pod["status"]["containerStatuses"][0]["ready"])
    assert len(await pods(served)) == 1
    await operator.start()
    await all_serve(served)


async def test_an_eviction_while_one_fills_the_cache(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    first = await priming(served, sim)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first, "namespace": served.namespace}}
    await served.request("POST", f"/api/v1/namespaces/{served.namespace}/pods/{first}/eviction", body=eviction)
    await served.wait_until_gone("Pod", first)
    second = await the_pod(served, selector=of("engine"))
    assert second != first
    assert annotations(await served.get("PersistentVolumeClaim", "llama-cache"), "primed") == {}
    assert (await served.get("Deployment", "llama"))["spec"]["replicas"] == 1
    await finish(served, sim, second)
    await all_serve(served)


async def test_the_node_goes_away_while_one_fills_the_cache(
    served: Cluster, gpu_nodes: Callable[..., list[str]], sim: Simulator, operator: OperatorProcess
) -> None:
    gpu_nodes("h100-sxm", name="spare")
    first = await priming(served, sim)
    node = (await served.wait_for("Pod", first, lambda pod: pod["spec"].get("nodeName")))["spec"]["nodeName"]
    await served.patch("Node", node, {"metadata": {"annotations": simulated(node="down")}})
    await served.delete("Node", node)
    # what the garbage collection of Pods does with Pods of nodes that are gone, a minute later
    await served.request("DELETE", f"/api/v1/namespaces/{served.namespace}/pods/{first}", params={"gracePeriodSeconds": "0"})
    await served.wait_until_gone("Pod", first)
    second = await the_pod(served, selector=of("engine"))
    assert (await served.get("Deployment", "llama"))["spec"]["replicas"] == 1
    await finish(served, sim, second)
    await all_serve(served)


async def shared_claim(cluster: Cluster) -> dict[str, str]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": spec})
    return {"claimName": "shared"}


async def test_two_share_a_claim_and_one_fills_it(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    cache = await shared_claim(served)
    first = await priming(served, sim, cache=cache)
    await served.create(llama(served.namespace, "other", engine=RACES, cache=cache))
    waiting = await served.wait_for("VLLMDeployment", "other", has("Ready", "False", "WaitingForCaches"))
    assert "VLLMDeployment llama is compiling kernels" in cache_verdict(waiting).message
    assert (await served.get("Deployment", "other"))["spec"]["replicas"] == 0
    await finish(served, sim, first)
    await all_serve(served)
    await served.wait_for("VLLMDeployment", "other", has("Ready", "True"), within=30)


async def test_the_other_takes_over_from_one_that_is_deleted(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    cache = await shared_claim(served)
    await priming(served, sim, cache=cache)
    await served.create(llama(served.namespace, "other", engine=RACES, cache=cache))
    await served.wait_for("VLLMDeployment", "other", has("Ready", "False", "WaitingForCaches"))
    await sim.script(load="0")
    await served.delete("VLLMDeployment", "llama")
    await served.wait_for("VLLMDeployment", "other", has("Ready", "True"), within=30)


async def test_a_kept_claim_is_warm_for_the_next_object(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await finish(served, sim, await priming(served, sim))
    await all_serve(served)
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama")
    await sim.script(load="hold")
    await served.create(llama(served.namespace, replicas=3, engine=RACES, cache=MANY))
    await served.wait_for("Deployment", "llama", replicas(3))
    again = await served.wait_for("VLLMDeployment", "llama", lambda r: r.get("status", {}).get("cache"))
    assert again["status"]["cache"]["state"] == "Filled"


async def test_the_digest_of_an_image_gets_known_and_moves_nothing(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    claim = await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda claim: annotations(claim, "image"))
    [(directory, image)] = annotations(claim, "image").items()
    assert "@sha256:" in image
    assert (await served.get("VLLMDeployment", "llama"))["status"]["cache"]["key"] == directory
    assert (await served.get("Deployment", "llama"))["metadata"]["generation"] == 1
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"image": image}}})
    pinned = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"]["observedGeneration"] == r["metadata"]["generation"])
    assert pinned["status"]["cache"]["key"] == directory, "what the tag has filled is found by the digest, too"
    assert not await served.exists("Deployment", "llama.primer")


async def test_a_new_image_fills_its_cache_while_the_old_one_serves(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace, cache=MANY))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    before = await served.get("Deployment", "llama")
    await sim.script(load="hold")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    primer = await the_pod(served, selector=of("primer"))
    held = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "RollingOut"))
    assert held["status"]["readyReplicas"] == 1
    assert (await served.get("Deployment", "llama"))["spec"] == before["spec"]
    slices = [item for item in await served.list_all("EndpointSlice") if item["metadata"]["name"].startswith("llama")]
    assert [len(item.get("endpoints") or []) for item in slices] == [1]
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}})
    scaled = await served.wait_for("Deployment", "llama", replicas(2))
    assert scaled["spec"]["template"] == before["spec"]["template"], "load does not wait for the rollout, and begins none"
    await finish(served, sim, primer)
    await served.wait_until_gone("Deployment", "llama.primer")
    await served.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and "vLLM 0.24.0" in r["status"]["plan"], within=30)


async def test_without_a_gpu_to_spare_the_rollout_goes_on(served: Cluster, sim: Simulator) -> None:
    async with OperatorProcess(served.kubeconfig, served.namespace, priming_patience_seconds="1") as operator:
        await operator.until_ready()
        await sim.script(path="ok", pull="0", load="0")
        await served.create(llama(served.namespace, cache=MANY, parallelism={"tensor": 8}))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
        done = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("cache", {}).get("primingSkipped"), within=30)
        assert done["status"]["cache"]["primingSkipped"] == "the helper Pod found no GPU within 1 s."
        await served.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and r["status"]["observedGeneration"] == 2)


async def test_a_cache_is_filled_ahead_of_traffic(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace, replicas=0, cache={"priming": "Always"}))
    await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda claim: annotations(claim, "primed"))
    await served.wait_until_gone("Deployment", "llama.primer")
    assert (await served.get("Deployment", "llama"))["spec"]["replicas"] == 0


async def crashing(cluster: Cluster, sim: Simulator, line: bytes, *, backoff: str = "10") -> str:
    """A Pod that has served and then dies of what its log says."""
    await sim.script(path="ok", pull="0", load="0", backoff=backoff)
    await cluster.create(llama(cluster.namespace))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await cluster.wait_for("PersistentVolumeClaim", "llama-cache", lambda claim: annotations(claim, "primed"))
    pod = await the_pod(cluster, selector=of("engine"))
    sim.log(pod).write(b"INFO 11-21 12:00:00 [core.py:97] Initializing a V1 LLM engine (v0.20.1) with config\n" + line)
    await sim.change(pod, path="crash", crash_phase="ready", crash_after="0", load="hold")
    return pod


async def test_damaged_caches_are_quarantined(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await crashing(served, sim, b"RuntimeError: Triton Error [CUDA]: device kernel image is invalid\n")
    repaired = await served.wait_for(
        "VLLMDeployment",
        "llama",
        lambda r: r["status"].get("cache", {}).get("generation") == 1 and has("Ready", "True")(r),
        within=40,
    )
    [left] = repaired["status"]["cache"]["quarantined"]
    assert left["signature"] == "TritonKernelImageInvalid"
    assert repaired["status"]["cache"]["key"] != left["key"]
    claim = await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda c: annotations(c, "quarantined"))
    assert list(annotations(claim, "quarantined")) == [left["key"]]
    assert left["key"] not in annotations(claim, "primed")


def run_on(volume: Path, pod: Manifest) -> Manifest:
    """Run the program of a Job, with its own variables, on a volume on this machine."""
    [container] = pod["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    *_, program = container["command"]
    here = {"CLEAN_ROOT": str(volume), "CLEAN_GRACE": "0", "CLEAN_SHARE": "100", "CLEAN_REPORT": str(volume.parent / "report")}
    subprocess.run(command(program), env=variables | here, check=True)
    told: Manifest = json.loads((volume.parent / "report").read_text())
    return told


def mark(volume: Path, pod: Manifest) -> Path:
    """Let the init container of a Pod mark its directory, used for the last time a month ago; return the directory."""
    [marker] = [container for container in pod["spec"]["initContainers"] if container["name"] == "prepare-cache"]
    mount = next(mount for mount in marker["volumeMounts"] if mount["mountPath"] == "/cache")
    folder: Path = volume / mount["subPath"]
    folder.mkdir(parents=True)
    subprocess.run([part.replace("/cache/", f"{folder}/") for part in marker["command"]], check=True)
    forget_use(folder)
    return folder


def forget_use(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - 30 * 86400,) * 2)


async def test_only_what_the_claim_records_and_pods_have_marked_is_removed(
    served: Cluster, sim: Simulator, operator: OperatorProcess, tmp_path: Path
) -> None:
    """From the first start with an image, through a rollout to another, to a full volume: the Job's program on a real disk."""
    volume = tmp_path / "volume"
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace, cache={**MANY, "priming": "Never"}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    former = mark(volume, await served.get("Pod", await the_pod(served, selector=of("engine"))))
    for name in ("v2-export-20240115", former.name + ".bak"):
        shutil.copytree(former, volume / name)
    forget_use(former)
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    done = await served.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and r["status"]["observedGeneration"] == 2)
    await served.wait_for("Deployment", "llama", lambda d: d["metadata"]["generation"] > 1 and d["status"].get("updatedReplicas") == 1)
    present = done["status"]["cache"]["key"]
    claim = await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda c: len(annotations(c, "used")) == 2)
    assert set(annotations(claim, "used")) == {former.name, present}
    pod = await the_pod(served, selector=of("engine"))
    current = mark(volume, await served.get("Pod", pod))
    first = b"INFO 11-21 12:00:00 [core.py:97] Initializing a V1 LLM engine (v0.24.0) with config\n"
    sim.log(pod).write(first + b"OSError: [Errno 28] No space left on device: '/cache/vllm/torch_compile_cache/a'\n")
    await sim.change(pod, path="crash", crash_phase="ready", crash_after="0", load="hold")
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "DiskFull"))
    cleaner = await served.wait_for_pods(selector=of("cleaning"))
    told = run_on(volume, await served.get("Pod", cleaner[0]))
    assert (told["removed"], told["others"]) == ([former.name], 2)
    assert {path.name for path in volume.iterdir()} == {current.name, "v2-export-20240115", former.name + ".bak"}


async def test_room_is_made_on_a_full_volume(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    pod = await crashing(served, sim, b"OSError: [Errno 28] No space left on device: '/cache/vllm/torch_compile_cache/a'\n", backoff="8")
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "DiskFull"))
    cleaners: list[Manifest] = []
    while not cleaners:
        await served.wait_for("VLLMDeployment", "llama", lambda r: "volume is full" in cache_verdict(r).message)
        cleaners = await pods(served, component="cleaning")
    name = cleaners[0]["metadata"]["name"]
    claims = [volume["persistentVolumeClaim"] for volume in cleaners[0]["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert [claim["claimName"] for claim in claims] == ["llama-cache"]
    # the simulated Pod completes without a word; what the program would have reported is put in here
    await served.wait_for("Pod", name, lambda p: p.get("status", {}).get("phase") == "Succeeded")
    result = json.dumps({"removed": ["v0.16.0-sm90-h100-tp1-00000001"], "freedBytes": 2**30})
    ended = {
        "exitCode": 0,
        "reason": "Completed",
        "message": result,
        "finishedAt": "2099-01-01T00:00:00Z",
        "startedAt": "2026-01-01T00:00:00Z",
    }
    status = cleaners[0]["spec"]["containers"][0]
    container = {
        "name": "clean",
        "image": status["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    await served.patch("Pod", name, {"status": {"phase": "Succeeded", "containerStatuses": [container]}}, subresource="status")
    await served.wait_for("VLLMDeployment", "llama", lambda r: "removed 1 unused directory (1.0 GiB)" in cache_verdict(r).message)
    await sim.change(pod, path="ok", load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)


async def test_a_job_that_may_not_be_created_is_reported(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    role = await served.get("Role", ACCOUNT)
    await served.patch("Role", ACCOUNT, {"rules": [rule for rule in role["rules"] if "jobs" not in rule["resources"]]})
    await crashing(served, sim, b"OSError: [Errno 28] No space left on device: '/cache/vllm/torch_compile_cache/a'\n")
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: "cannot be created" in cache_verdict(r).message, within=40)
    said = cache_verdict(told).message
    assert "jobs.batch is forbidden" in said
    assert "is removing unused caches" not in said
    assert await pods(served, component="cleaning") == []


async def test_weights_have_a_claim_with_a_life_of_its_own(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, weights={"onDelete": "Delete"}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    claims = {name: await served.get("PersistentVolumeClaim", name) for name in ("llama-cache", "llama-weights")}
    sizes = {name: claim["spec"]["resources"]["requests"]["storage"] for name, claim in claims.items()}
    assert sizes == {"llama-cache": "20Gi", "llama-weights": "30Gi"}
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("PersistentVolumeClaim", "llama-weights", within=40)
    assert await served.exists("PersistentVolumeClaim", "llama-cache")


async def test_each_replica_has_claims_of_its_own(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, replicas=3, cache={"storage": "ClaimPerReplica"}))
    await all_serve(served)
    names = {pod["metadata"]["name"] for pod in await pods(served)}
    claims = {claim["metadata"]["name"] for claim in await served.list_all("PersistentVolumeClaim")}
    assert claims == {f"{name}-{volume}" for name in names for volume in ("cache", "weights")}
    gone = min(names)
    await served.delete("Pod", gone)
    await served.wait_until_gone("PersistentVolumeClaim", f"{gone}-cache", within=40)
    await all_serve(served)


async def test_replicas_that_a_claim_for_one_node_would_hang_are_reported(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, replicas=3, parallelism={"tensor": 4}))
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: "does not start" in cache_verdict(r).message)
    said = cache_verdict(told).message
    assert "no node has GPUs for more than 2 replicas" in said
    assert "set spec.cache.storage to HostPath or ClaimPerReplica, or name a ReadWriteMany PVC in spec.cache.claimName" in said


async def test_a_claim_grows_where_its_class_allows_it(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.patch("VLLMDeployment", "llama", {"spec": {"cache": {"volume": {"size": "40Gi"}}}})
    await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda c: c["spec"]["resources"]["requests"]["storage"] == "40Gi")
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"]["observedGeneration"] == 2)
    assert condition(told, "Ready")["status"] == "True"


async def test_a_claim_of_a_class_that_cannot_grow_keeps_its_size(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    storage_class = "/apis/storage.k8s.io/v1/storageclasses/sim-volume"
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    merge = "application/merge-patch+json"
    await served.request("PATCH", storage_class, body={"allowVolumeExpansion": False}, content_type=merge)
    try:
        await served.patch("VLLMDeployment", "llama", {"spec": {"cache": {"volume": {"size": "40Gi"}}}})
        told = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"]["observedGeneration"] == 2)
        assert "llama-cache keeps its size" in cache_verdict(told).message
        assert condition(told, "Ready")["status"] == "True"
    finally:
        await served.request("PATCH", storage_class, body={"allowVolumeExpansion": True}, content_type=merge)
