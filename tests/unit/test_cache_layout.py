"""Whether caches are kept as files or packed, from what was measured to the Pod template and the status."""

import json
from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.caches.address import cache_address
from vllm_operator.cluster.client import POD
from vllm_operator.startup.state import CacheEvidence, Stage, StartupState

PACKED = {"layout": "Packed"}


def ended(fleet: Fleet, pod: str, *containers: tuple[str, dict[str, Any]]) -> None:
    """Init containers of a Pod have ended with these reports."""
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": 0, "message": json.dumps(report)}}, "ready": True}
        for name, report in containers
    ]
    fleet.bench.cluster.edit(POD, "default", pod, {"status": {"initContainerStatuses": statuses}})


def pod_spec(fleet: Fleet) -> Any:
    return (fleet.deployment() or {})["spec"]["template"]["spec"]


def names(fleet: Fleet, kind: str) -> list[str]:
    return [container["name"] for container in pod_spec(fleet).get(kind) or ()]


async def test_the_engine_works_on_a_copy_and_the_volume_is_mounted_beside_it(fleet: Fleet) -> None:
    await fleet.serve(cache=PACKED)
    spec = pod_spec(fleet)
    engine, keeper = spec["containers"]
    mark, unpack = spec["initContainers"]
    assert (mark["name"], unpack["name"], keeper["name"]) == ("mark-cache", "unpack-caches", "pack-caches")
    template = (fleet.deployment() or {})["spec"]["template"]
    assert template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "vllm"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = {mount["mountPath"]: mount for mount in engine["volumeMounts"]}
    assert volumes[mounted["/cache"]["name"]] == {"name": "unpacked-caches", "emptyDir": {}}
    on_volume = {"name": "cache", "mountPath": "/var/lib/vllm-operator/caches", "subPath": fleet.key()}
    for container in (unpack, keeper):
        assert container["image"] == engine["image"]
        assert container["volumeMounts"] == [mounted["/cache"], on_volume]
    assert mark["volumeMounts"] == [{**on_volume, "mountPath": "/cache"}]
    address = cache_address(spec)
    assert address is not None
    assert (address.claim, address.key) == ("llama-cache", fleet.key())


RESOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {"requests": {"cpu": "10m", "memory": "64Mi"}}),
    "requests": ({"requests": {"cpu": "4", "memory": "32Gi"}}, {"requests": {"cpu": "10m", "memory": "64Mi"}}),
    "a limit of memory": (
        {"limits": {"memory": "64Gi"}, "requests": {"memory": "32Gi"}},
        {"limits": {"memory": "512Mi"}, "requests": {"cpu": "10m", "memory": "64Mi"}},
    ),
    "guaranteed": (
        {"limits": {"cpu": "4", "memory": "64Gi"}},
        {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "1", "memory": "512Mi"}},
    ),
}


@pytest.mark.parametrize(("engine", "keeper"), RESOURCES.values(), ids=RESOURCES)
async def test_the_container_beside_the_engine_keeps_quotas_and_the_quality_of_service(
    fleet: Fleet, engine: dict[str, Any], keeper: dict[str, Any]
) -> None:
    await fleet.serve(cache=PACKED, podTemplate={"spec": {"containers": [{"name": "vllm", "resources": engine}]}})
    assert pod_spec(fleet)["containers"][1]["resources"] == keeper


async def test_packed_caches_are_primed_and_recorded_like_files(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(replicas=4, engine={"version": "0.16.0"}, cache={**PACKED, "volume": {"accessMode": "ReadWriteMany"}})
    assert fleet.replicas() == 1
    fleet.ready(fleet.start())
    await fleet.settle()
    assert fleet.replicas() == 4
    assert f"primed.vllm-operator.dev/{fleet.key()}" in fleet.annotations()
    assert bench.cache().layout == "Packed"


@pytest.mark.parametrize(
    ("measured", "cache", "is_packed"),
    [
        (40, {}, False),
        (1999, {}, False),
        (12_800, {}, True),
        (12_800, {"layout": "Auto"}, True),
        (12_800, {"layout": "Files"}, False),
        (12_800, {"storage": "EmptyDir"}, False),
        (12_800, {"artifact": {"repository": "r.example/a"}}, False),
        (40, {"layout": "Packed"}, True),
    ],
)
async def test_a_new_plan_follows_what_was_measured_and_what_the_spec_forces(
    fleet: Fleet, bench: Bench, measured: int, cache: dict[str, Any], is_packed: bool
) -> None:
    await fleet.serve(cache=cache)
    before = pod_spec(fleet)
    ended(fleet, fleet.start(), ("mark-cache", {"fileMicroseconds": measured}))
    await fleet.settle()
    assert pod_spec(fleet) == before  # nobody asked for other Pods
    assert bench.cache().file_microseconds == (measured if measured >= 1000 else None)
    await fleet.change(engine={"version": "0.20.1", "args": [{"name": "max-num-seqs", "value": "8"}]})
    assert ("unpack-caches" in names(fleet, "initContainers")) is is_packed


async def test_auto_returns_to_files_only_when_the_volume_is_clearly_fast(fleet: Fleet) -> None:
    await fleet.serve()
    pod = fleet.start()
    for number, (measured, is_packed) in enumerate([(5000, True), (1500, True), (900, False), (1500, False)]):
        ended(fleet, pod, ("mark-cache", {"fileMicroseconds": measured}))
        await fleet.settle()
        await fleet.change(engine={"version": "0.20.1", "args": [{"name": "max-num-seqs", "value": str(number + 8)}]})
        assert ("unpack-caches" in names(fleet, "initContainers")) is is_packed, measured


async def test_a_slow_volume_is_told_with_what_to_do(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve()
    pod = fleet.start()
    ended(fleet, pod, ("mark-cache", {"fileMicroseconds": 12_800}))
    fleet.ready(pod)
    bench.logs.told[(fleet.uid(pod), 0)] = StartupState(stage=Stage.READY, cache=CacheEvidence(hits=3), last_line_at=bench.now)
    await fleet.settle()
    assert bench.message("CacheWarm").endswith(
        " To write and read a small file on this volume takes 12.8 ms, and a warm start reads thousands. The next plan keeps the caches as "
        "one packed file; set spec.cache.layout to Packed to do so now, or to Files to keep files."
    )
    writes = len(bench.cluster.writes)
    await fleet.settle()
    assert len(bench.cluster.writes) == writes


REPORTS = {
    "Fetched": ({"seconds": 1.2}, "These caches were unpacked from one file on the volume in 2 s."),
    "NotFound": ({}, "No packed caches were on the volume; they are packed when the engine is ready."),
    "Rejected": (
        {"message": "The layer is damaged."},
        "The packed caches were not used: The layer is damaged. They are packed again when the engine is ready.",
    ),
}


@pytest.mark.parametrize(("result", "report", "text"), [(name, *entry) for name, entry in REPORTS.items()], ids=REPORTS)
async def test_the_condition_says_what_was_unpacked(fleet: Fleet, bench: Bench, result: str, report: dict[str, Any], text: str) -> None:
    await fleet.serve(cache=PACKED)
    pod = fleet.start()
    ended(fleet, pod, ("unpack-caches", {"result": result, **report}))
    fleet.ready(pod)
    bench.logs.told[(fleet.uid(pod), 0)] = StartupState(stage=Stage.READY, cache=CacheEvidence(hits=3), last_line_at=bench.now)
    await fleet.settle()
    assert bench.message("CacheWarm").endswith(text)
    assert bench.cache().unpack == result
    bench.restart()
    await fleet.settle()
    assert bench.cache().unpack == result


@pytest.mark.parametrize("message", ["", "no JSON", "[]", '{"fileMicroseconds": -1}', '{"fileMicroseconds": "x"}', "[" * 4000])
async def test_any_message_of_the_init_containers_is_survived(fleet: Fleet, bench: Bench, message: str) -> None:
    await fleet.serve(cache=PACKED)
    pod = fleet.start()
    statuses = [{"name": name, "state": {"terminated": {"exitCode": 0, "message": message}}} for name in ("mark-cache", "unpack-caches")]
    bench.cluster.edit(POD, "default", pod, {"status": {"initContainerStatuses": statuses}})
    await fleet.settle()
    assert bench.cache().file_microseconds is None
