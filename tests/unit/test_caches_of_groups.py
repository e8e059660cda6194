"""Caches of replicas on several nodes: filled, published, fetched and repaired as one."""

import json
from typing import Any

import pytest

from support.fetches import ARTIFACT, FETCHED
from support.fleet import Fleet
from support.gpus import real_node
from support.operators import Bench
from vllm_operator.api.labels import PRIME_ANNOTATION, PRIMED_ANNOTATION_PREFIX
from vllm_operator.kube.client import DEPLOYMENT, JOB, LEADER_WORKER_SET, POD, VLLM_DEPLOYMENT
from vllm_operator.logs.state import CacheEvidence, Crash, Membership, Stage, StartupState

TWO_NODES: dict[str, Any] = {"parallelism": {"tensor": 8, "nodes": 2}, "engine": {"version": "0.33.0"}}
SHARED: dict[str, Any] = {"volume": {"accessMode": "ReadWriteMany"}}
OWN: dict[str, Any] = {"storage": "EmptyDir"}
PUBLISHED = {**ARTIFACT, "publish": "WhenPrimed"}
WARM, COLD = CacheEvidence(hits=2), CacheEvidence(misses=2)
DAMAGED = Crash(
    "TritonKernelImageInvalid", "A compiled kernel cannot be loaded.", "Empty the caches.", None, "device kernel image is invalid"
)
LOST = Crash("DistributedTimeout", "A process did not respond.", "Look at the others.", None, "closed by peer")


@pytest.fixture
def bench() -> Bench:
    return Bench(real_node("h100-sxm", "node-1"), real_node("h100-sxm", "node-2"))


def log(fleet: Fleet, pod: str, stage: Stage, cache: CacheEvidence, crash: Crash | None = None) -> None:
    """What the log of a Pod says."""
    now, rank = fleet.bench.now, int(pod.endswith("-1"))
    state = StartupState(
        stage=stage, cache=cache, crash=crash, last_line_at=now, membership=Membership(rank, 2), is_final=crash is not None
    )
    fleet.bench.logs.told[(fleet.uid(pod), 0)] = state


def end(fleet: Fleet, pod: str) -> None:
    ended = {"exitCode": 1, "reason": "Error", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended})


def settings_of(fleet: Fleet, role: str) -> dict[str, Any]:
    """What the init container of a role fetches."""
    [workload] = fleet.bench.cluster.all(LEADER_WORKER_SET)
    [container] = [it for it in workload["spec"]["leaderWorkerTemplate"][role]["spec"]["initContainers"] if it["name"] == "fetch-caches"]
    found: dict[str, Any] = json.loads(container["env"][0]["value"])
    return found


def reported(fleet: Fleet, pod: str, result: dict[str, Any]) -> None:
    """The init container of a Pod has ended."""
    ended = {"exitCode": 0, "finishedAt": fleet.time(), "message": json.dumps(result)}
    fleet.bench.cluster.edit(
        POD, "default", pod, {"status": {"initContainerStatuses": [{"name": "fetch-caches", "state": {"terminated": ended}}]}}
    )


async def test_the_directory_is_filled_when_all_ranks_have_compiled_and_that_is_when_the_leader_is_ready(
    fleet: Fleet, bench: Bench
) -> None:
    await fleet.serve(cache=SHARED, **TWO_NODES)
    leader, follower = fleet.start_group()
    await fleet.settle()
    primed = PRIMED_ANNOTATION_PREFIX + fleet.key()
    assert primed not in fleet.annotations()  # the follower is Ready at once, and that says nothing
    log(fleet, leader, Stage.READY, WARM)
    log(fleet, follower, Stage.READY, COLD)
    fleet.ready(leader)
    await fleet.settle()
    assert primed in fleet.annotations()
    cache = bench.status().cache
    assert cache is not None
    assert (cache.reason, cache.warm_start_seconds) == ("PartialHit", None)  # one rank has compiled, so the start was not warm


async def test_engines_on_one_node_and_on_several_do_not_share_a_directory(fleet: Fleet) -> None:
    await fleet.serve(cache=SHARED, **{**TWO_NODES, "parallelism": {"tensor": 8, "pipeline": 1, "nodes": 2}})
    assert "-tp8-n2-" in fleet.key()


@pytest.mark.parametrize("cache", [SHARED, OWN], ids=["a shared volume", "a volume of each Pod"])
async def test_all_ranks_fetch_the_artifact_of_their_group(fleet: Fleet, cache: dict[str, Any]) -> None:
    await fleet.serve(cache={**cache, "artifact": ARTIFACT}, **TWO_NODES)
    assert settings_of(fleet, "leaderTemplate") == settings_of(fleet, "workerTemplate")


async def test_the_artifact_of_a_group_does_not_depend_on_its_storage_and_its_time_limits(fleet: Fleet) -> None:
    await fleet.serve(cache={**SHARED, "artifact": ARTIFACT}, **TWO_NODES)
    before = settings_of(fleet, "leaderTemplate")
    await fleet.change(cache={**OWN, "volume": None, "artifact": ARTIFACT})
    assert settings_of(fleet, "leaderTemplate")["settings"] == before["settings"]


async def test_a_rank_that_fetched_nothing_is_told_although_the_leader_did(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={**OWN, "artifact": ARTIFACT}, **TWO_NODES)
    leader, follower = fleet.start_group()
    reported(fleet, leader, FETCHED)
    reported(fleet, follower, FETCHED)
    await fleet.settle()
    assert "fetched from the registry" in bench.cache_verdict().message
    reported(fleet, follower, {"result": "Unreachable", "message": "connection refused"})
    await fleet.settle()
    assert "connection refused" in bench.cache_verdict().message


async def test_the_caches_of_all_ranks_are_published_by_a_job_where_they_share_a_volume(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={**SHARED, "artifact": PUBLISHED}, **TWO_NODES)
    leader, _ = fleet.start_group()
    fleet.ready(leader)
    for _ in range(3):
        await fleet.settle()
        bench.pass_time(31)
    [job] = bench.cluster.all(JOB)
    assert job["spec"]["template"]["spec"]["nodeName"] == "node-1"


async def test_caches_in_parts_cannot_be_published_and_the_condition_says_what_can(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={**OWN, "artifact": PUBLISHED}, **TWO_NODES)
    leader, _ = fleet.start_group()
    fleet.ready(leader)
    await fleet.settle()
    published = bench.condition("CachePublished")
    assert published.reason == "NotPublishable"
    assert "each node of a replica has only those of its own ranks" in published.message
    assert "cache.volume.accessMode ReadWriteMany, and fetch them here" in published.message
    assert bench.cluster.all(DEPLOYMENT) == []  # no helper Pod


async def test_a_request_for_a_helper_pod_says_why_there_is_none(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache=SHARED, replicas=0, **TWO_NODES)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {PRIME_ANNOTATION: "true"}}})
    await fleet.settle()
    assert bench.cluster.all(DEPLOYMENT) == []
    assert "helper Pod has one node, and a replica needs several" in bench.cache_verdict().message


@pytest.mark.parametrize("warm", ["llama-0", "llama-0-1"])
async def test_a_damaged_cache_of_a_follower_is_replaced_for_the_whole_group(fleet: Fleet, bench: Bench, warm: str) -> None:
    await fleet.serve(cache=SHARED, **TWO_NODES)
    leader, follower = fleet.start_group()
    await fleet.settle()
    damaged = fleet.key()
    log(fleet, leader, Stage.TORCH_COMPILE, WARM if leader == warm else COLD, LOST)
    log(fleet, follower, Stage.TORCH_COMPILE, WARM if follower == warm else COLD, DAMAGED)
    end(fleet, leader)
    end(fleet, follower)
    await fleet.settle()
    cache = bench.status().cache
    assert cache is not None
    assert [(entry.key, entry.signature) for entry in cache.quarantined or ()] == [(damaged, "TritonKernelImageInvalid")]
    [workload] = bench.cluster.all(LEADER_WORKER_SET)
    for role in ("leaderTemplate", "workerTemplate"):
        [container] = workload["spec"]["leaderWorkerTemplate"][role]["spec"]["containers"]
        [mount] = [it for it in container["volumeMounts"] if it["mountPath"] == "/cache"]
        assert mount["subPath"] == fleet.key() != damaged


async def test_a_crash_of_a_rank_with_empty_caches_is_not_blamed_on_them_before_it_comes_back(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache=SHARED, **TWO_NODES)
    key = fleet.key()
    for attempt in range(2):
        leader, follower = fleet.start_group()
        await fleet.settle()
        log(fleet, leader, Stage.TORCH_COMPILE, COLD)
        log(fleet, follower, Stage.TORCH_COMPILE, COLD, DAMAGED)
        bench.pass_time(20)
        end(fleet, follower)
        await fleet.settle()
        assert (fleet.key() == key) is (attempt == 0)
        for pod in (follower, leader):
            fleet.gone(pod)
        bench.pass_time(20)
        await fleet.settle()
