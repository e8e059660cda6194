"""Replicas that share no volume: before a rollout, a primer compiles and publishes the caches that the new replicas fetch."""

import json
from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import labels
from vllm_operator.catalog.caches import ARTIFACT_SECRET_ROOT
from vllm_operator.cli.requests import DONE_STATUS, prime
from vllm_operator.kube.client import DEPLOYMENT, POD, VLLM_DEPLOYMENT

DIGEST = f"sha256:{'1' * 64}"
ARTIFACT = {
    "repository": "registry.example/team/caches",
    "publish": "WhenPrimed",
    "pullSecretRef": {"name": "read"},
    "pushSecretRef": {"name": "write"},
}
CACHE = {"storage": "EmptyDir", "artifact": ARTIFACT}
NEW = {"version": "0.24.0"}
PUBLISHED = {"result": "Published", "tag": "tag-1", "digest": DIGEST}
STORAGES = [{"storage": "EmptyDir"}, {"storage": "ClaimPerReplica"}, {"hostPath": "/mnt/nvme"}]


async def serving(fleet: Fleet, replicas: int = 2, **spec: Any) -> None:
    await fleet.serve(**{"replicas": replicas, "cache": CACHE, **spec})
    for _ in range(replicas):
        fleet.ready(fleet.start())
    await fleet.settle()


async def rolling_out(fleet: Fleet, **spec: Any) -> tuple[Any, str]:
    """Replicas serve, and the version changes; return the Deployment that serves and the Pod of the primer."""
    await serving(fleet, **spec)
    before = fleet.deployment()
    await fleet.change(engine=NEW)
    return before, fleet.start("llama.primer")


def publisher_of(fleet: Fleet) -> dict[str, Any]:
    spec = (fleet.deployment("llama.primer") or {})["spec"]["template"]["spec"]
    return next(container for container in spec["containers"] if container["name"] == labels.PUBLISHER)


def report(fleet: Fleet, pod: str, result: dict[str, Any], *, restarts: int = 0, code: int = 0, container: str = labels.PUBLISHER) -> None:
    """The engine of the primer is ready, and a container beside it has ended."""
    fleet.ready(pod)
    status = next(item for item in fleet.bench.cluster.all(POD) if item["metadata"]["name"] == pod)["status"]
    ended = {"exitCode": code, "finishedAt": fleet.time(), "message": json.dumps(result)}
    beside = {"name": container, "ready": False, "restartCount": restarts, "state": {"terminated": ended}}
    conditions = [{**status["conditions"][0], "status": "False"}]
    containers = [*status["containerStatuses"], beside]
    fleet.bench.cluster.edit(POD, "default", pod, {"status": {"conditions": conditions, "containerStatuses": containers}})


@pytest.mark.parametrize("storage", STORAGES, ids=["EmptyDir", "ClaimPerReplica", "HostPath"])
async def test_the_rollout_begins_when_the_new_caches_are_published(fleet: Fleet, bench: Bench, storage: dict[str, Any]) -> None:
    before, primer = await rolling_out(fleet, cache={**storage, "artifact": ARTIFACT})
    await fleet.settle()
    assert fleet.deployment() == before
    assert bench.status().ready_replicas == 2
    assert bench.condition("CachePublished").reason == "Publishing"
    message = bench.cache_verdict().message
    assert "A helper Pod compiles kernels for vllm/vllm-openai:v0.24.0" in message
    assert "publishes them to registry.example/team/caches. The current replicas keep serving." in message
    fleet.ready(primer)
    await fleet.settle()
    assert fleet.deployment() == before, "a primer that is Ready has not published yet"
    report(fleet, primer, PUBLISHED)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert fleet.deployment() != before
    assert (bench.condition("CachePublished").status, bench.condition("CachePublished").reason) == ("True", "Published")
    assert "Crashed" not in {condition.type for condition in bench.status().conditions}, "a container that has done its work is no crash"
    fleet.gone(primer)
    bench.restart()
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert bench.condition("CachePublished").reason == "Published"


async def test_only_the_container_beside_the_engine_gets_the_secret_for_pushing(fleet: Fleet) -> None:
    await rolling_out(fleet, podTemplate={"spec": {"shareProcessNamespace": True}})
    deployment = fleet.deployment("llama.primer") or {}
    spec, container = deployment["spec"]["template"]["spec"], publisher_of(fleet)
    assert spec["shareProcessNamespace"] is False
    secret = next(volume["name"] for volume in spec["volumes"] if volume.get("secret", {}).get("secretName") == "write")
    mounting = [c["name"] for c in [*spec["initContainers"], *spec["containers"]] if secret in {m["name"] for m in c["volumeMounts"]}]
    assert mounting == [labels.PUBLISHER]
    packer = next(container for container in spec["containers"] if container["name"] == labels.PACKER)
    assert "/cache" not in {mount["mountPath"] for mount in container["volumeMounts"]}
    mounts = {mount["mountPath"]: mount for each in (packer, container) for mount in each["volumeMounts"]}
    assert mounts["/cache"] == {"name": "cache", "mountPath": "/cache", "subPath": fleet.key(), "readOnly": True}
    assert mounts[ARTIFACT_SECRET_ROOT]["readOnly"] is True
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}, "it requests no GPU"
    settings = json.loads(container["env"][0]["value"])
    assert settings["ready"] == {"scheme": "http", "port": 8000, "path": "/health"}
    assert '"write"' not in json.dumps(fleet.deployment())


async def test_caches_that_cannot_be_packed_do_not_hold_the_rollout(fleet: Fleet, bench: Bench) -> None:
    before, primer = await rolling_out(fleet)
    report(fleet, primer, {"result": "Packed"}, container=labels.PACKER)
    await fleet.settle()
    assert fleet.deployment() == before, "what is packed has to be pushed"
    report(fleet, primer, {"result": "SecretsFound", "message": "triton/x contains a secret."}, code=1, container=labels.PACKER)
    await fleet.settle()
    assert fleet.deployment() != before
    assert bench.condition("CachePublished").reason == "SecretsFound"


@pytest.mark.parametrize("word", ["Fetched"])
async def test_an_artifact_that_exists_needs_no_publication(fleet: Fleet, word: str) -> None:
    before, primer = await rolling_out(fleet)
    ended = {"exitCode": 0, "message": json.dumps({"result": word, "tag": "tag-1", "digest": DIGEST})}
    status = {"initContainerStatuses": [{"name": "fetch-caches", "ready": True, "state": {"terminated": ended}}]}
    fleet.bench.cluster.edit(POD, "default", primer, {"status": status})
    await fleet.settle()
    assert fleet.deployment() != before
    assert fleet.deployment("llama.primer") is None


async def test_without_a_free_gpu_the_rollout_begins_cold_and_says_so(fleet: Fleet, bench: Bench) -> None:
    before, primer = await rolling_out(fleet)
    fleet.unschedulable(primer)
    result = await bench.settle()
    assert "At 12:01:00 UTC the rollout starts without compiled kernels: the serving Pod stops first." in bench.cache_verdict().message
    assert fleet.deployment() == before
    assert result.requeue_seconds == pytest.approx(60, abs=1)
    bench.pass_time(61)
    await fleet.settle()
    assert fleet.deployment() != before
    fleet.gone(primer)
    bench.restart()
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert "the helper Pod found no GPU within 60 s" in bench.cache_verdict().message


async def test_a_quota_without_room_does_not_hold_the_rollout(fleet: Fleet, bench: Bench) -> None:
    await serving(fleet)
    before = fleet.deployment()
    await fleet.change(engine=NEW)
    failure = {"type": "ReplicaFailure", "status": "True", "message": "pods is forbidden: exceeded quota: gpus"}
    bench.cluster.edit(DEPLOYMENT, "default", "llama.primer", {"status": {"conditions": [failure]}})
    await fleet.settle()
    assert fleet.deployment() != before
    assert "exceeded quota" in bench.cache_verdict().message


async def test_a_primer_that_crashes_leaves_the_old_replicas_serving(fleet: Fleet, bench: Bench) -> None:
    before, primer = await rolling_out(fleet)
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": fleet.time(), "startedAt": fleet.time()}}
    fleet.show(primer, state=ended, restarts=3)
    bench.pass_time(3600)
    await fleet.settle()
    assert fleet.deployment() == before
    assert bench.condition("Crashed").status == "True"
    assert bench.status().ready_replicas == 2


@pytest.mark.parametrize(
    ("result", "restarts", "begins"),
    [
        pytest.param("Denied", 0, False, id="the first attempt"),
        pytest.param("Denied", 2, True, id="the third attempt"),
        pytest.param("SecretsFound", 0, True, id="a result that another attempt would not change"),
    ],
)
async def test_a_publication_that_fails_is_tried_three_times_and_then_the_rollout_begins(
    fleet: Fleet, bench: Bench, result: str, restarts: int, begins: bool
) -> None:
    before, primer = await rolling_out(fleet)
    report(fleet, primer, {"result": result, "message": "It does what it does."}, restarts=restarts, code=1)
    await fleet.settle()
    assert (fleet.deployment() != before) is begins
    assert (fleet.deployment("llama.primer") is None) is begins
    if begins:
        assert "were not compiled before the rollout: they could not be published: It does what it does." in bench.cache_verdict().message
        assert "tries again" not in bench.message("CachePublished")
        bench.restart()
        fleet.gone(primer)
        bench.pass_time(3600)
        await fleet.settle()
        assert fleet.deployment("llama.primer") is None


async def test_a_spec_that_changes_again_replaces_the_primer(fleet: Fleet, bench: Bench) -> None:
    before, primer = await rolling_out(fleet)
    await fleet.change(engine={"version": "0.26.0"})
    report(fleet, primer, PUBLISHED)
    await fleet.settle()
    assert fleet.deployment() == before, "what was published is of the version in between"
    image = (fleet.deployment("llama.primer") or {})["spec"]["template"]["spec"]["containers"][0]["image"]
    assert ":v0.26.0" in image
    report(fleet, fleet.start("llama.primer"), {**PUBLISHED, "tag": "tag-2"})
    await fleet.settle()
    assert fleet.deployment() != before
    assert "tag tag-2" in bench.message("CachePublished")


async def test_a_spec_that_is_changed_back_removes_the_primer(fleet: Fleet) -> None:
    before, _ = await rolling_out(fleet)
    await fleet.change(engine={"version": "0.20.1"})
    assert fleet.deployment("llama.primer") is None
    assert (fleet.deployment() or {})["spec"] == (before or {})["spec"]


async def test_a_new_operator_continues(fleet: Fleet, bench: Bench) -> None:
    before, primer = await rolling_out(fleet)
    await fleet.settle()
    writes = list(bench.cluster.writes)
    bench.restart()
    await bench.reconciler.reconcile(("default", "llama"))
    assert bench.cluster.writes == writes
    report(fleet, primer, PUBLISHED)
    bench.restart()
    await fleet.settle()
    assert fleet.deployment() != before


@pytest.mark.parametrize("wanted", [4, 1])
async def test_replicas_are_scaled_meanwhile(fleet: Fleet, wanted: int) -> None:
    before, _ = await rolling_out(fleet)
    await fleet.change(replicas=wanted)
    assert (fleet.deployment() or {})["spec"] == {**before["spec"], "replicas": wanted}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"cache": {**CACHE, "priming": "Never"}}, id="priming: Never"),
        pytest.param({"cache": {**CACHE, "artifact": {**ARTIFACT, "publish": "Never"}}}, id="publish: Never"),
        pytest.param({"cache": {**CACHE, "artifact": {**ARTIFACT, "reference": f"registry.example/team/caches@{DIGEST}"}}}, id="reference"),
        pytest.param({"cache": {"storage": "EmptyDir"}}, id="no artifact"),
    ],
)
async def test_where_there_is_no_primer(fleet: Fleet, change: dict[str, Any]) -> None:
    await serving(fleet, **change)
    before = fleet.deployment()
    await fleet.change(engine=NEW)
    assert fleet.deployment("llama.primer") is None
    assert fleet.deployment() != before


async def test_a_change_that_keeps_the_tag_needs_no_primer(fleet: Fleet) -> None:
    await serving(fleet)
    before = fleet.deployment()
    await fleet.change(rollout={"drainSeconds": 7})
    assert fleet.deployment() != before
    assert fleet.deployment("llama.primer") is None


async def test_before_the_first_rollout_a_primer_publishes_on_request(
    fleet: Fleet, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    await serving(fleet)
    assert fleet.deployment("llama.primer") is None
    assert "To publish them now: `kubectl vllm prime llama -n default`" in bench.message("CachePublished")
    assert await prime(bench.cluster, "default", "llama", timeout_seconds=0) == DONE_STATUS
    await fleet.settle()
    primer = fleet.start("llama.primer")
    report(fleet, primer, PUBLISHED)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    fleet.gone(primer)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert await prime(bench.cluster, "default", "llama", timeout_seconds=10) == DONE_STATUS
    annotations = next(item for item in bench.cluster.all(VLLM_DEPLOYMENT))["metadata"]["annotations"]
    assert annotations[labels.PRIME_ANNOTATION] == fleet.key()
    assert "are filled" in capsys.readouterr().out
