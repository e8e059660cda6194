"""Caches in a registry, from the spec to the status: on a cluster in memory, with the real planner and reporter."""

import json
from datetime import timedelta
from typing import Any

import pytest

from support.fetches import ARTIFACT, DIGEST, FETCHED, REPOSITORY, fetched
from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import labels
from vllm_operator.api.plan import PlannedArtifact
from vllm_operator.api.spec import Distribution
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.kube.client import JOB, POD
from vllm_operator.logs.state import CacheEvidence, Crash, Stage, StartupState
from vllm_operator.pods.tools import TOOLS_IMAGE

PUBLISHED = {**ARTIFACT, "publish": "WhenPrimed"}
REQUIRED = "No caches could be fetched, and they are required:"
OLD = {"version": "0.16.0"}
"""A version that is known to race, so that one Pod goes first."""


def crash(fleet: Fleet, pod: str) -> None:
    """The engine of a Pod crashes because of a damaged file."""
    found = Crash(signature="TritonKernelImageInvalid", cause="x", remedy=None, reference=None, line="device kernel image is invalid")
    ended = {"exitCode": 1, "reason": "Error", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended})
    state = StartupState(stage=Stage.TORCH_COMPILE, crash=found, cache=CacheEvidence(), last_line_at=fleet.bench.now)
    fleet.bench.logs.told[(fleet.uid(pod), 0)] = state


def jobs(fleet: Fleet) -> list[Any]:
    return fleet.bench.cluster.all(JOB)


def end_job(fleet: Fleet, result: dict[str, Any], name: str = "publisher") -> None:
    """The Pod of the publishing Job has ended."""
    (job,) = jobs(fleet)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": "job", "controller": True}
    metadata = {"name": name, "namespace": "default", "labels": job["spec"]["template"]["metadata"]["labels"], "ownerReferences": [owner]}
    ended = {"exitCode": 0, "finishedAt": fleet.time(), "message": json.dumps(result)}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "publish-caches", "state": {"terminated": ended}}]}
    spec = job["spec"]["template"]["spec"]
    fleet.bench.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})


async def test_a_directory_that_cannot_be_packed_is_reported_from_the_init_container(fleet: Fleet, bench: Bench) -> None:
    fleet.ready(await serve_and_publish(fleet))
    await settle_ready(fleet)
    end_job(fleet, {})
    message = json.dumps({"result": "SecretsFound", "message": "triton/x contains a secret of the Pod."})
    ended = {"exitCode": 1, "finishedAt": fleet.time(), "message": message}
    waiting = {"name": "publish-caches", "state": {"waiting": {"reason": "PodInitializing"}}}
    packing = {"name": "pack-caches", "state": {"terminated": ended}}
    status = {"phase": "Failed", "initContainerStatuses": [packing], "containerStatuses": [waiting]}
    bench.cluster.edit(POD, "default", "publisher", {"status": status})
    await fleet.settle()
    assert bench.condition("CachePublished").reason == "SecretsFound"
    assert "triton/x contains a secret of the Pod." in bench.message("CachePublished")


async def settle_ready(fleet: Fleet) -> None:
    """Reconcile when a Pod has been Ready for a while. The logs of these tests say nothing about the duration of its start."""
    await fleet.settle()
    fleet.bench.pass_time(31)
    await fleet.settle()


def init_containers(fleet: Fleet) -> dict[str, Any]:
    spec = (fleet.deployment() or {})["spec"]["template"]["spec"]
    return {container["name"]: container for container in spec.get("initContainers") or ()}


STORAGES = [
    pytest.param({}, id="the operator's claim"),
    pytest.param({"storage": "EmptyDir"}, id="EmptyDir"),
    pytest.param({"storage": "ClaimPerReplica"}, id="ClaimPerReplica"),
    pytest.param({"hostPath": "/mnt/nvme"}, id="HostPath"),
    pytest.param({"claimName": "shared"}, id="a named claim"),
]


@pytest.mark.parametrize("storage", STORAGES)
async def test_an_init_container_fetches_on_every_kind_of_storage(fleet: Fleet, storage: dict[str, Any]) -> None:
    await fleet.serve(cache={**storage, "artifact": ARTIFACT})
    container = init_containers(fleet)["fetch-caches"]
    engine = (fleet.deployment() or {})["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == engine["image"]
    assert container["command"] == ["python3", "-I", "-B", "/tools/tools.pyz", "fetch-caches"]
    assert "limits" not in container["resources"]  # no GPU
    settings = json.loads(container["env"][0]["value"])
    assert (settings["repository"], settings["root"], settings["secret"]) == (REPOSITORY, "/cache", "/etc/vllm-operator/artifact")
    assert settings["readable"] == "v0.20.1-sm90-h100-80gb-hbm3-tp1"
    assert {"image", "user", "generation"}.isdisjoint(settings["parts"])
    assert {"vllm", "flashinfer", "bytecode", ".triton"} <= set(settings["folders"])
    assert {"outlines", ".cache", "."}.isdisjoint(settings["folders"])
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/cache"] == next(mount for mount in engine["volumeMounts"] if mount["mountPath"] == "/cache")
    assert "/etc/vllm-operator/artifact" not in {mount["mountPath"] for mount in engine["volumeMounts"]}


async def test_the_secret_for_pushing_is_not_in_the_pods_of_the_engine(fleet: Fleet) -> None:
    await fleet.serve(cache={"artifact": PUBLISHED})
    assert '"write"' not in json.dumps(fleet.deployment())
    assert '{"secretName": "read", "optional": true}' in json.dumps(fleet.deployment())


async def test_without_an_artifact_nothing_is_different(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve()
    assert set(init_containers(fleet)) == {"copy-tools", "prepare-cache"}
    assert bench.plan().cache_artifact is None
    assert "CachePublished" not in {condition.type for condition in bench.status().conditions}


async def test_the_key_knows_the_model_and_the_settings_but_neither_secrets_nor_the_user(fleet: Fleet) -> None:
    async def key(name: str, **spec: Any) -> tuple[Any, Any]:
        await fleet.serve(name, cache={"storage": "EmptyDir", "artifact": ARTIFACT}, **spec)
        containers = (fleet.deployment(name) or {})["spec"]["template"]["spec"]["initContainers"]
        settings = json.loads(containers[-1]["env"][0]["value"])
        return (settings["readable"], settings["parts"]), settings["settings"]

    base, settings = await key("one")
    user = {"podTemplate": {"spec": {"securityContext": {"runAsUser": 1000}}}}
    assert await key("user", **user) == (base, settings)
    named = {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": "other"}}
    assert await key("named", **named) == (base, settings)
    secret = {
        "engine": {"version": "0.20.1", "args": [{"name": "api-key", "value": "abc"}], "env": [{"name": "VLLM_API_KEY", "value": "x"}]}
    }
    assert await key("secret", **secret) == (base, settings)
    other = await key("flag", engine={"version": "0.20.1", "args": [{"name": "max-num-seqs", "value": "8"}]})
    assert (other[0], other[1] != settings) == (base, True)
    assert (await key("model", model={"uri": "hf://org/other"}))[1] != settings
    assert (await key("version", engine={"version": "0.24.0"}))[0] != base


async def test_what_pods_fetch_and_jobs_publish_changes_no_pod_template(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={"artifact": PUBLISHED})
    before = (fleet.deployment() or {})["spec"]["template"]
    pod = fleet.start()
    fetched(fleet, pod, {"result": "NotFound", "message": "There is none."})
    await fleet.settle()
    fleet.ready(pod)
    await settle_ready(fleet)
    end_job(fleet, {"result": "Published", "tag": "tag-1", "digest": DIGEST})
    await fleet.settle()
    bench.restart()
    await fleet.settle()
    assert (fleet.deployment() or {})["spec"]["template"] == before


@pytest.mark.parametrize(
    "message", ["", "no JSON", "[]", '{"result": 1}', '{"result": "x y"}', "[" * 4000, '{"result": "Fetched", "seconds": -1}']
)
async def test_any_message_of_the_container_is_survived(fleet: Fleet, bench: Bench, message: str) -> None:
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": ARTIFACT})
    pod = fleet.start()
    ended = {"name": "fetch-caches", "state": {"terminated": {"exitCode": 0, "message": message}}}
    bench.cluster.edit(POD, "default", pod, {"status": {"initContainerStatuses": [ended]}})
    await fleet.settle()
    assert bench.cache().artifact is not None


async def test_a_directory_that_was_fetched_is_not_primed(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(replicas=4, engine=OLD, cache={"artifact": ARTIFACT, "volume": {"accessMode": "ReadWriteMany"}})
    assert fleet.replicas() == 1
    fetched(fleet, fleet.start(), FETCHED)
    await fleet.settle()
    assert fleet.replicas() == 4
    assert not [
        name for name in fleet.annotations() if name.startswith((labels.PRIMED_ANNOTATION_PREFIX, labels.PRIMING_ANNOTATION_PREFIX))
    ]


async def test_a_pod_that_found_no_artifact_fills_the_directory_first(fleet: Fleet) -> None:
    await fleet.serve(replicas=4, engine=OLD, cache={"artifact": ARTIFACT, "volume": {"accessMode": "ReadWriteMany"}})
    fetched(fleet, fleet.start(), {"result": "NotFound"})
    await fleet.settle()
    assert fleet.replicas() == 1


async def serve_and_publish(fleet: Fleet, **artifact: Any) -> str:
    await fleet.serve(cache={"artifact": {**PUBLISHED, **artifact}})
    pod = fleet.start()
    fetched(fleet, pod, {"result": "NotFound"})
    await fleet.settle()
    return pod


async def test_a_job_publishes_when_a_pod_is_ready(fleet: Fleet, bench: Bench) -> None:
    pod = await serve_and_publish(fleet)
    assert jobs(fleet) == []
    assert bench.condition("CachePublished").reason == "NotCompiled"
    fleet.ready(pod)
    await fleet.settle()
    assert jobs(fleet) == []
    await settle_ready(fleet)
    (job,) = jobs(fleet)
    spec = job["spec"]["template"]["spec"]
    (container,), (tools, packer) = spec["containers"], spec["initContainers"]
    engine = (fleet.deployment() or {})["spec"]["template"]["spec"]["containers"][0]
    assert (spec["nodeName"], packer["image"]) == ("node-1", engine["image"])
    assert container["image"] == tools["image"] == TOOLS_IMAGE
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert {volume["name"]: volume for volume in spec["volumes"]}["publish-account"]["secret"] == {"secretName": "write", "optional": True}
    mounts = {mount["mountPath"]: mount for mount in packer["volumeMounts"]}
    assert (mounts["/cache"]["subPath"], mounts["/cache"]["readOnly"]) == (fleet.key(), True)
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/packed", "/etc/vllm-operator/artifact"]
    settings, fetching = json.loads(packer["env"][0]["value"]), json.loads(init_containers(fleet)["fetch-caches"]["env"][0]["value"])
    for name in ("repository", "readable", "parts", "settings", "folders", "root"):
        assert settings[name] == fetching[name]
    assert bench.condition("CachePublished").reason == "Publishing"
    end_job(fleet, {"result": "Published", "tag": "tag-1", "digest": DIGEST})
    await fleet.settle()
    condition = bench.condition("CachePublished")
    assert (condition.status, condition.reason) == ("True", "Published")
    assert f"tag tag-1, digest {DIGEST}" in condition.message
    bench.cluster.remove(JOB, "default", job["metadata"]["name"])
    fleet.gone("publisher")
    bench.restart()
    bench.now += timedelta(days=1)
    await fleet.settle()
    assert jobs(fleet) == []
    assert bench.condition("CachePublished").reason == "Published"


@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_job_without_a_pod_says_why(fleet: Fleet, bench: Bench, has_failed: bool) -> None:
    fleet.ready(await serve_and_publish(fleet))
    await settle_ready(fleet)
    (job,) = jobs(fleet)
    if has_failed:
        failed = {"type": "Failed", "status": "True", "message": "Job was active longer than specified deadline"}
        bench.cluster.edit(JOB, "default", job["metadata"]["name"], {"status": {"conditions": [failed]}})
    else:
        fleet.tell(job, "FailedCreate", "pods is forbidden: exceeded quota: small")
    bench.restart()
    await fleet.settle()
    why = "Job was active longer than specified deadline." if has_failed else "pods is forbidden: exceeded quota: small."
    assert f"The Job waits: {why}" in bench.message("CachePublished")


@pytest.mark.parametrize(
    ("result", "reason", "again"),
    [
        ("Denied", "PushDenied", True),
        ("SecretMissing", "PushDenied", True),
        ("Unreachable", "RegistryUnreachable", True),
        ("DeadlineExceeded", "RegistryUnreachable", True),
        ("Changing", "PublishFailed", True),
        ("SecretsFound", "SecretsFound", False),
        ("TooLarge", "TooLarge", False),
        ("TagTaken", "TagTaken", False),
    ],
)
async def test_a_publication_that_fails_says_why_and_is_tried_again_where_that_helps(
    fleet: Fleet, bench: Bench, result: str, reason: str, again: bool
) -> None:
    fleet.ready(await serve_and_publish(fleet))
    await settle_ready(fleet)
    end_job(fleet, {"result": result, "message": "It does what it does."})
    await fleet.settle()
    condition = bench.condition("CachePublished")
    assert (condition.status, condition.reason) == ("False", reason)
    assert "It does what it does." in condition.message
    assert ("tries again" in condition.message) is again
    (job,) = jobs(fleet)
    bench.cluster.remove(JOB, "default", job["metadata"]["name"])
    fleet.gone("publisher")
    await fleet.settle()
    assert jobs(fleet) == []
    bench.now += timedelta(minutes=16)
    await fleet.settle()
    assert bool(jobs(fleet)) is again


async def test_caches_that_only_one_pod_can_mount_cannot_be_published(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={"volume": {"accessMode": "ReadWriteOncePod"}, "artifact": PUBLISHED})
    fleet.ready(fleet.start())
    await fleet.settle()
    assert bench.condition("CachePublished").reason == "NotPublishable"
    assert jobs(fleet) == []


async def test_the_job_looks_for_the_secrets_of_the_engine_without_the_operator_reading_them(fleet: Fleet) -> None:
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [
        {"name": "MY_SECRET", "valueFrom": reference},
        {"name": "OTHER_TOKEN", "value": "literal-token"},
        {"name": "PLAIN", "value": "x"},
    ]
    more = {"containers": [{"name": "vllm", "envFrom": [{"secretRef": {"name": "all"}}, {"configMapRef": {"name": "c"}}]}]}
    model = {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "tokenSecretRef": {"name": "hub"}}
    await fleet.serve(model=model, engine={"version": "0.20.1", "env": env}, podTemplate={"spec": more}, cache={"artifact": PUBLISHED})
    fleet.ready(fleet.start())
    await settle_ready(fleet)
    _, container = jobs(fleet)[0]["spec"]["template"]["spec"]["initContainers"]
    assert container["env"][1:] == [
        {"name": "SECRET_0", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        {"name": "SECRET_1", "value": "literal-token"},
        {"name": "SECRET_2", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}},
    ]
    assert container["envFrom"] == [{"prefix": "SECRET_FROM_0_", "secretRef": {"name": "all", "optional": True}}]


async def test_a_node_that_cannot_pull_the_operators_image_is_said(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": ARTIFACT})
    [tools, *_] = (fleet.deployment() or {})["spec"]["template"]["spec"]["initContainers"]
    pod = fleet.start()
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{TOOLS_IMAGE}"'}}
    waiting = {"name": tools["name"], "image": tools["image"], "state": waits, "ready": False, "restartCount": 0}
    bench.cluster.edit(POD, "default", pod, {"status": {"phase": "Pending", "initContainerStatuses": [waiting]}})
    await fleet.settle()
    message = bench.message("Ready")
    assert f"cannot pull image {TOOLS_IMAGE}" in message
    assert "programs from this image of the operator" in message
    assert "spec.engine.image" not in message


@pytest.mark.parametrize("storage", [{}, {"storage": "EmptyDir"}], ids=["on a claim", "EmptyDir"])
async def test_an_artifact_that_is_fatal_is_not_fetched_again(fleet: Fleet, bench: Bench, storage: dict[str, Any]) -> None:
    await fleet.serve(cache={**storage, "artifact": ARTIFACT})
    key, pod = fleet.key(), fleet.start()
    fetched(fleet, pod, FETCHED)
    await fleet.settle()
    crash(fleet, pod)
    await fleet.settle()
    status = bench.cache()
    assert ([entry.key for entry in status.quarantined or ()], status.generation) == ([key], 1)
    assert status.artifact is not None
    assert status.artifact.rejected == [DIGEST]
    assert fleet.key() != key
    assert json.loads(init_containers(fleet)["fetch-caches"]["env"][0]["value"])["rejected"] == [DIGEST]
    bench.restart()
    await fleet.settle()
    assert bench.plan().cache_artifact == PlannedArtifact(
        folders=list(load_catalog().caches.folders_of_artifact("0.20.1", Distribution.VLLM)), rejected=[DIGEST]
    )


async def test_a_required_artifact_that_cannot_be_fetched_is_said(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": {**ARTIFACT, "policy": "Required"}})
    settings = json.loads(init_containers(fleet)["fetch-caches"]["env"][0]["value"])
    assert settings["required"] is True
    pod = fleet.start()
    message = json.dumps({"result": "Denied", "message": f"{REQUIRED} registry.example refuses access (HTTP 403)."})
    ended = {"exitCode": 1, "message": message, "finishedAt": fleet.time(), "reason": "Error"}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    failed = {"name": "fetch-caches", "state": waits, "lastState": {"terminated": ended}, "restartCount": 1, "ready": False}
    engine = {"name": "vllm", "state": {"waiting": {"reason": "PodInitializing"}}, "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "initContainerStatuses": [failed], "containerStatuses": [engine]}
    bench.cluster.edit(POD, "default", pod, {"status": status})
    await fleet.settle()
    bench.pass_time(120)
    await fleet.settle()
    assert "refuses access (HTTP 403)" in bench.cache_verdict().message
    assert bench.condition("Crashed").reason == "CacheArtifactRequired"
    assert "refuses access (HTTP 403)" in bench.message("Crashed")
