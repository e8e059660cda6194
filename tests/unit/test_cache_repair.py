"""Damaged caches are left behind, sound ones are not: on a cluster in memory, with the real planner and reporter."""

from dataclasses import replace
from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import KEY, Bench, known_catalog, llama
from vllm_operator.api import labels
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.key import key_with_image
from vllm_operator.controller.report import ACT_SECONDS
from vllm_operator.kube.client import DEPLOYMENT, VLLM_DEPLOYMENT
from vllm_operator.logs.state import CacheEvidence, Crash, Stage, StartupState
from vllm_operator.planning.planner import plan
from vllm_operator.status.cache_damage import PAUSE

POISON = Crash(
    signature="TritonKernelImageInvalid",
    cause="A compiled kernel cannot be loaded.",
    remedy="Empty the caches.",
    reference=None,
    line="RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
)
NOTHING, WARM, COLD = CacheEvidence(), CacheEvidence(hits=2), CacheEvidence(misses=2)


def crash(fleet: Fleet, pod: str, *, restarts: int = 0, evidence: CacheEvidence = NOTHING, signature: str = "") -> None:
    """The engine of a Pod crashes; its log says why."""
    found = POISON if not signature else Crash(signature=signature, cause="x", remedy=None, reference=None, line="x")
    ended = {"exitCode": 1, "reason": "Error", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended}, restarts=restarts)
    uid = fleet.uid(pod)
    fleet.bench.logs.told[(uid, restarts)] = StartupState(
        stage=Stage.TORCH_COMPILE, crash=found, cache=evidence, last_line_at=fleet.bench.now
    )


async def started(fleet: Fleet, **spec: Any) -> str:
    await fleet.serve(**spec)
    pod = fleet.start()
    await fleet.settle()
    return pod


def volume(fleet: Fleet) -> str:
    return next(str(mount["subPath"]) for mount in fleet.bench.container()["volumeMounts"] if mount["mountPath"] == "/cache")


async def test_a_damaged_cache_is_quarantined_and_the_next_start_is_clean(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    damaged = fleet.key()
    crash(fleet, pod, evidence=WARM)
    await fleet.settle()
    cache = bench.status().cache
    assert cache is not None
    assert (cache.generation, fleet.key() != damaged, volume(fleet)) == (1, True, fleet.key())
    assert [(entry.key, entry.signature) for entry in cache.quarantined or ()] == [(damaged, "TritonKernelImageInvalid")]
    assert fleet.annotations()[labels.QUARANTINED_ANNOTATION_PREFIX + damaged] == fleet.time()
    assert damaged in bench.cache_verdict().message
    fleet.gone(pod)
    fleet.ready(fleet.start())
    await fleet.settle()
    assert bench.message("Crashed") == ""
    assert bench.condition("Ready").status == "True"


async def test_a_crash_with_empty_caches_is_not_blamed_on_them(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    key = fleet.key()
    crash(fleet, pod, evidence=COLD)
    await fleet.settle()
    assert fleet.key() == key
    assert "empty caches, so they are not the cause" in bench.cache_verdict().message


async def test_bytecode_that_a_full_volume_truncates_in_each_new_directory_is_replaced_until_there_is_room(
    bench: Bench, fleet: Fleet
) -> None:
    pod = await started(fleet)
    directories = [fleet.key()]
    for _ in range(3):
        crash(fleet, pod, signature="DiskFull")
        await fleet.settle()
        crash(fleet, pod, restarts=1, signature="BytecodeCorrupt")
        await fleet.settle()
        directories.append(fleet.key())
        fleet.gone(pod)
        pod = fleet.start()
        await fleet.settle()
    assert len(set(directories)) == 4
    crash(fleet, pod, restarts=1, signature="BytecodeCorrupt")
    await fleet.settle()
    assert fleet.key() == directories[-1], "not at every restart: the volume is still full"
    bench.now += PAUSE
    crash(fleet, pod, restarts=2, signature="BytecodeCorrupt")
    await fleet.settle()
    assert fleet.key() not in directories
    fleet.gone(pod)
    fleet.ready(fleet.start())
    await fleet.settle()
    assert bench.condition("Ready").status == "True"


async def test_a_cache_that_once_was_filled_is_blamed_without_any_log(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    damaged = fleet.key()
    fleet.ready(pod)
    await fleet.settle()
    crash(fleet, pod)
    await fleet.settle()
    assert fleet.key() != damaged
    assert labels.PRIMED_ANNOTATION_PREFIX + damaged not in fleet.annotations()


async def test_a_second_death_of_the_same_is_blamed_on_what_the_first_left(fleet: Fleet) -> None:
    pod = await started(fleet)
    key = fleet.key()
    crash(fleet, pod)
    await fleet.settle()
    assert fleet.key() == key
    crash(fleet, pod, restarts=1)
    await fleet.settle()
    assert fleet.key() != key


async def test_the_same_crash_with_new_caches_is_the_drivers(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    crash(fleet, pod, evidence=WARM)
    await fleet.settle()
    fleet.gone(pod)
    clean = fleet.key()
    pod = fleet.start()
    for restarts in range(3):
        crash(fleet, pod, restarts=restarts, evidence=WARM if restarts else COLD)
        bench.pass_time(60)
        await fleet.settle()
    assert fleet.key() == clean
    assert "not the cause" in bench.cache_verdict().message


async def test_after_three_times_in_a_day_a_person_is_asked(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    for _ in range(4):
        fleet.ready(pod)
        await fleet.settle()
        bench.pass_time(3600)
        crash(fleet, pod)
        await fleet.settle()
        key = fleet.key()
        fleet.gone(pod)
        pod = fleet.start()
    cache = bench.status().cache
    assert cache is not None
    assert (cache.generation, len(cache.quarantined or ())) == (3, 3)
    fleet.ready(pod)
    await fleet.settle()
    crash(fleet, pod)
    await fleet.settle()
    assert fleet.key() == key
    assert "3 cache directories were quarantined as damaged within a day" in bench.cache_verdict().message
    bench.pass_time(24 * 3600)
    await fleet.settle()
    assert fleet.key() != key


async def test_another_crash_leaves_the_caches_alone(fleet: Fleet) -> None:
    pod = await started(fleet)
    key = fleet.key()
    crash(fleet, pod, evidence=WARM, signature="CudaOutOfMemory")
    await fleet.settle()
    assert fleet.key() == key


async def test_a_new_object_does_not_use_what_was_quarantined(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    damaged = fleet.key()
    crash(fleet, pod, evidence=WARM)
    await fleet.settle()
    clean = fleet.key()
    for kind in (VLLM_DEPLOYMENT, DEPLOYMENT):
        bench.cluster.remove(kind, "default", "llama")
    fleet.gone(pod)
    await fleet.serve()
    assert (fleet.key(), clean != damaged) == (clean, True)


async def test_caches_that_were_damaged_under_another_spec_replace_no_pod_after_a_revert(bench: Bench, fleet: Fleet) -> None:
    fleet.ready(await started(fleet, rollout={"strategy": "RollingUpdate", "maxSurge": 1}))
    await fleet.settle()
    sound, template = fleet.key(), bench.deployment()["spec"]["template"]
    await fleet.change(engine={"version": "0.24.0"})
    crash(fleet, fleet.start("llama.primer"), evidence=WARM)
    await fleet.settle()
    await fleet.change(engine=llama()["spec"]["engine"])
    assert [entry.key != sound for entry in bench.cache().quarantined or ()] == [True]
    assert (fleet.key(), bench.deployment()["spec"]["template"]) == (sound, template)


async def test_who_serves_with_what_another_quarantined_goes_on(bench: Bench, fleet: Fleet) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared", "namespace": "default"}}
    bench.cluster.put({**claim, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}})
    pods = {}
    for name in ("llama", "other"):
        await fleet.serve(name, cache={"claimName": "shared"})
        pods[name] = fleet.start(name)
        fleet.ready(pods[name])
        await fleet.settle(name)
    damaged = fleet.key("other")
    crash(fleet, pods["llama"], evidence=WARM)
    await fleet.settle("llama")
    await fleet.settle("other")
    assert (fleet.key("llama") != damaged, fleet.key("other")) == (True, damaged)
    crash(fleet, pods["other"], evidence=WARM)
    await fleet.settle("other")
    assert fleet.key("other") == fleet.key("llama")


async def test_a_report_that_leaves_caches_behind_settles(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    crash(fleet, pod, evidence=WARM)
    await fleet.settle()
    before = list(bench.cluster.writes)
    bench.restart()
    await bench.reconciler.reconcile(("default", "llama"))
    assert bench.cluster.writes == before


async def test_a_lock_that_nobody_holds_is_quarantined_with_its_caches(bench: Bench, fleet: Fleet) -> None:
    pod = await started(fleet)
    fleet.ready(pod)
    await fleet.settle()
    fleet.gone(pod)
    key, pod = fleet.key(), fleet.start()
    state = StartupState(stage=Stage.KERNEL_WARMUP, last_line_at=bench.now, started_at=bench.now, notices=("JitLockStale",))
    bench.logs.told[(fleet.uid(pod), 0)] = state
    await fleet.settle()
    assert fleet.key() == key
    bench.pass_time(2 * 3600)
    assert (await bench.reconciler.reconcile(KEY)).requeue_seconds == ACT_SECONDS, "no event of the cluster follows"
    await fleet.settle()
    assert fleet.key() != key
    assert "JitLockStale" in bench.cache_verdict().message


@pytest.mark.timeout(30)
async def test_a_plan_whose_key_has_no_generation_does_not_hang_on_a_quarantined_directory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No generation of such a plan leads out of a directory that is quarantined."""
    bench.cluster.put(llama())
    outcome = plan(VLLMDeployment.parse(bench.resource()), await bench.inventory.read(), known_catalog().shipped)
    assert outcome.plan is not None
    parts = [part for part in outcome.plan.cache_key_parts if part.name != "generation"]
    outcome = replace(outcome, plan=outcome.plan.model_copy(update={"cache_key_parts": parts}))
    assert outcome.plan is not None
    directory = key_with_image(outcome.plan, outcome.plan.image)
    assert directory != outcome.plan.cache_key
    annotations = {labels.QUARANTINED_ANNOTATION_PREFIX + directory: "2026-11-21T12:00:00Z"}
    metadata = {"name": "llama-cache", "namespace": "default", "annotations": annotations}
    bench.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}})
    monkeypatch.setattr("vllm_operator.controller.decide.plan", lambda *_, **__: outcome)
    await bench.reconciler.reconcile(KEY)
    assert bench.plan().cache_key == directory
