"""One Pod fills an empty cache before the others start: on a cluster in memory, with the real planner and reporter."""

from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import labels
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.kube.client import DEPLOYMENT, VLLM_DEPLOYMENT

MANY = {"accessMode": "ReadWriteMany"}
OLD = {"version": "0.16.0"}
"""A version that is known to race, so that Auto primes."""


def used(fleet: Fleet, name: str = "llama") -> str:
    return labels.USED_ANNOTATION_PREFIX + fleet.key(name)


def primed(fleet: Fleet, name: str = "llama") -> str:
    return labels.PRIMED_ANNOTATION_PREFIX + fleet.key(name)


def lease(fleet: Fleet, name: str = "llama") -> str:
    return labels.PRIMING_ANNOTATION_PREFIX + fleet.key(name)


async def test_one_replica_fills_the_cache_and_then_all_start(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=4, engine=OLD, cache={"volume": MANY})
    assert fleet.replicas() == 1
    assert bench.cache_verdict().reason == "Compiling"
    assert "The other 3 start after it" in bench.cache_verdict().message
    assert "writes compiled artifacts in place" in bench.cache_verdict().message
    assert fleet.annotations()[lease(fleet)].startswith("llama/")
    since = fleet.time()
    first = fleet.start()
    await fleet.settle()
    assert bench.cache().state == "Compiling"
    assert "The other 3 replicas start when it has compiled the kernels" in bench.message("Ready")
    fleet.ready(first)
    await fleet.settle()
    assert fleet.replicas() == 4
    assert fleet.annotations() == {primed(fleet): fleet.time(), used(fleet): since}
    assert bench.cache().state == "Filled"


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"engine": OLD, "cache": {"volume": MANY}}, 1, id="a version that races"),
        pytest.param({"cache": {"volume": MANY}}, 3, id="a version that does not race, on a shared claim"),
        pytest.param({}, 1, id="all on one node"),
        pytest.param({"cache": {"volume": MANY, "priming": "Always"}}, 1, id="always"),
        pytest.param({"engine": OLD, "cache": {"priming": "Never"}}, 3, id="never"),
        pytest.param({"engine": OLD, "podTemplate": {"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}}}, 3, id="on no claim"),
    ],
)
async def test_when_one_goes_first(fleet: Fleet, spec: dict[str, Any], want: int) -> None:
    await fleet.serve(replicas=3, **spec)
    assert fleet.replicas() == want


async def test_a_filled_cache_is_not_filled_again_by_a_new_object_of_that_name(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=4, engine=OLD)
    fleet.ready(fleet.start())
    await fleet.settle()
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    bench.cluster.remove(DEPLOYMENT, "default", "llama")
    await fleet.serve(replicas=4, engine=OLD)
    assert fleet.replicas() == 4


async def test_a_restart_of_the_operator_goes_on_with_priming(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=4, engine=OLD)
    first = fleet.start()
    await fleet.settle()
    before = list(bench.cluster.writes)
    bench.restart()
    await bench.reconciler.reconcile(("default", "llama"))
    assert bench.cluster.writes == before
    assert fleet.replicas() == 1
    fleet.ready(first)
    await fleet.settle()
    assert fleet.replicas() == 4


async def test_an_eviction_does_not_count_as_done(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=4, engine=OLD)
    first = fleet.start()
    await fleet.settle()
    fleet.gone(first)
    await fleet.settle()
    assert fleet.replicas() == 1
    assert primed(fleet) not in fleet.annotations()
    fleet.ready(fleet.start())
    await fleet.settle()
    assert fleet.replicas() == 4


async def test_replicas_that_were_started_already_are_not_taken_away(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=3, engine=OLD, cache={"priming": "Never"})
    fleet.start()
    await fleet.change(cache={"priming": "Auto"})
    assert fleet.replicas() == 3


async def test_scaling_while_a_cache_is_filled(fleet: Fleet) -> None:
    await fleet.serve(replicas=2, engine=OLD)
    first = fleet.start()
    await fleet.change(replicas=5)
    assert fleet.replicas() == 1
    fleet.ready(first)
    await fleet.settle()
    assert fleet.replicas() == 5


async def test_a_cache_is_filled_ahead_of_traffic(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0, cache={"priming": "Always"})
    assert (fleet.replicas(), fleet.replicas("llama.primer")) == (0, 1)
    primer = fleet.start("llama.primer")
    await fleet.settle()
    assert "A helper Pod compiles kernels" in bench.cache_verdict().message
    assert bench.status().ready_replicas == 0
    fleet.ready(primer)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert primed(fleet) in fleet.annotations()
    assert bench.status().ready_replicas == 0


async def test_a_cache_is_filled_when_asked_for_once(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0)
    assert fleet.deployment("llama.primer") is None
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {labels.PRIME_ANNOTATION: fleet.key()}}})
    await fleet.settle()
    assert fleet.replicas("llama.primer") == 1


async def serving(fleet: Fleet, **spec: Any) -> str:
    await fleet.serve(**spec)
    pod = fleet.start()
    fleet.ready(pod)
    await fleet.settle()
    return pod


async def test_a_new_image_fills_its_cache_while_the_old_one_serves(bench: Bench, fleet: Fleet) -> None:
    old = await serving(fleet, cache={"volume": MANY})
    before = fleet.deployment()
    await fleet.change(engine={"version": "0.24.0"})
    assert fleet.deployment() == before
    primer = fleet.start("llama.primer")
    await fleet.settle()
    assert bench.condition("Ready").reason == "RollingOut"
    assert bench.condition("Ready").status == "False"
    assert bench.status().ready_replicas == 1
    fleet.ready(primer)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert fleet.deployment() != before
    fleet.gone(old)
    fleet.gone(primer)
    fleet.ready(fleet.start())
    await fleet.settle()
    assert bench.cache().state == "Filled"


@pytest.mark.parametrize("wanted", [3, 1])
async def test_replicas_are_scaled_while_a_rollout_is_held(bench: Bench, fleet: Fleet, wanted: int) -> None:
    await fleet.serve(replicas=2, cache={"volume": MANY})
    for _ in range(2):
        fleet.ready(fleet.start())
    await fleet.settle()
    before = fleet.deployment()
    await fleet.change(engine={"version": "0.24.0"})
    fleet.start("llama.primer")
    await fleet.change(replicas=wanted)
    held = fleet.deployment()
    assert held is not None
    assert before is not None
    assert held["spec"] == {**before["spec"], "replicas": wanted}, "the former spec goes on serving, with as many replicas as are wanted"
    assert bench.cache_verdict().reason == "Compiling"


async def test_one_that_waits_for_another_to_fill_the_same_directory_is_only_scaled_down(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    await fleet.change("other", cache={"claimName": "shared", "priming": "Never"}, replicas=3)
    await fleet.change("other", cache={"claimName": "shared", "priming": "Always"}, replicas=5)
    assert (fleet.replicas("other"), bench.condition("Ready", "other").reason) == (3, "WaitingForCaches")
    await fleet.change("other", replicas=2)
    assert fleet.replicas("other") == 2


async def test_without_a_gpu_to_spare_the_rollout_goes_on_and_says_so(bench: Bench, fleet: Fleet) -> None:
    await serving(fleet, cache={"volume": MANY})
    before = fleet.deployment()
    await fleet.change(engine={"version": "0.24.0"})
    primer = fleet.start("llama.primer")
    fleet.unschedulable(primer)
    result = await bench.settle()
    assert "At 12:01:00 UTC the rollout starts without compiled kernels: the serving Pod stops first." in bench.cache_verdict().message
    assert fleet.deployment() == before
    assert result.requeue_seconds == pytest.approx(60, abs=1)
    bench.pass_time(61)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert fleet.deployment() != before
    fleet.gone(primer)
    bench.restart()
    await fleet.settle()
    assert "the helper Pod found no GPU within 60 s" in bench.cache_verdict().message
    assert fleet.deployment("llama.primer") is None


async def test_a_quota_without_room_for_one_more_does_not_hold_the_rollout(bench: Bench, fleet: Fleet) -> None:
    await serving(fleet, cache={"volume": MANY})
    before = fleet.deployment()
    await fleet.change(engine={"version": "0.24.0"})
    failure = {"type": "ReplicaFailure", "status": "True", "message": "pods is forbidden: exceeded quota: gpus"}
    bench.cluster.edit(DEPLOYMENT, "default", "llama.primer", {"status": {"conditions": [failure]}})
    await fleet.settle()
    assert fleet.deployment() != before
    assert "exceeded quota" in bench.cache_verdict().message


PASSED_DEADLINE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


@pytest.mark.parametrize(
    ("state", "want"),
    [
        pytest.param({"waiting": {"reason": "ContainerCreating"}}, True, id="its volume is not mounted"),
        pytest.param({"running": {"startedAt": "2026-11-21T12:00:00Z"}}, False, id="it starts, as the replicas would"),
        pytest.param({"waiting": {"reason": "ImagePullBackOff"}}, False, id="its image is not pulled, nor would it be for replicas"),
    ],
)
async def test_a_primer_that_does_not_start_holds_the_rollout_only_until_its_deadline(
    bench: Bench, fleet: Fleet, state: dict[str, Any], want: bool
) -> None:
    await serving(fleet, cache={"volume": MANY})
    before = fleet.deployment()
    await fleet.change(engine={"version": "0.24.0"})
    fleet.show(fleet.start("llama.primer"), state=state)
    await fleet.settle()
    assert fleet.deployment() == before
    generation = (fleet.deployment("llama.primer") or {})["metadata"].get("generation")
    status = {"observedGeneration": generation, "conditions": [PASSED_DEADLINE]}
    bench.cluster.edit(DEPLOYMENT, "default", "llama.primer", {"status": status})
    await fleet.settle()
    assert (fleet.deployment() != before) == want
    assert ("did not start before its deadline" in bench.cache_verdict().message) == want


async def test_a_primer_is_not_started_on_request_if_a_replica_has_its_claim_for_one_pod(bench: Bench, fleet: Fleet) -> None:
    artifact = {"repository": "registry.example/team/caches", "publish": "WhenPrimed"}
    weights = {"volume": {"accessMode": "ReadWriteOncePod"}}
    await serving(fleet, weights=weights, cache={"storage": "EmptyDir", "artifact": artifact})
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {labels.PRIME_ANNOTATION: "true"}}})
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None
    assert "ReadWriteOncePod" in bench.cache_verdict().message


async def test_a_new_image_that_crashes_leaves_the_old_one_serving(bench: Bench, fleet: Fleet) -> None:
    await serving(fleet, cache={"volume": MANY})
    before = fleet.deployment()
    await fleet.change(engine={"version": "0.24.0"})
    primer = fleet.start("llama.primer")
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": fleet.time(), "startedAt": fleet.time()}}
    fleet.show(primer, state=ended, restarts=3)
    bench.pass_time(30)
    await fleet.settle()
    assert fleet.deployment() == before
    assert bench.condition("Crashed").status == "True"
    assert bench.status().ready_replicas == 1


async def test_a_primer_beside_replicas_on_a_claim_of_one_node_runs_on_that_node(fleet: Fleet) -> None:
    await serving(fleet)
    await fleet.change(engine={"version": "0.24.0"})
    deployment = fleet.deployment("llama.primer")
    assert deployment is not None
    [term] = deployment["spec"]["template"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"][labels.COMPONENT_LABEL] == "engine"


async def test_a_claim_for_one_pod_is_not_filled_beside_it(bench: Bench, fleet: Fleet) -> None:
    await serving(fleet, cache={"volume": {"accessMode": "ReadWriteOncePod"}})
    await fleet.change(engine={"version": "0.24.0"})
    assert fleet.deployment("llama.primer") is None
    assert "ReadWriteOncePod" in bench.cache_verdict().message


async def shared(bench: Bench, fleet: Fleet) -> None:
    """Two objects on one claim and one key; the first fills it."""
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared", "namespace": "default"}}
    bench.cluster.put({**claim, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}})
    for name in ("llama", "other"):
        await fleet.serve(name, engine=OLD, cache={"claimName": "shared"})


async def test_of_two_that_share_a_cache_one_fills_it_and_the_other_waits(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    assert fleet.key("llama") == fleet.key("other")
    assert (fleet.replicas("llama"), fleet.replicas("other")) == (1, 0)
    assert "VLLMDeployment llama is compiling kernels" in bench.cache_verdict("other").message
    assert bench.condition("Ready", "other").reason == "WaitingForCaches"
    fleet.ready(fleet.start("llama"))
    await fleet.settle("llama")
    await fleet.settle("other")
    assert fleet.replicas("other") == 1
    assert fleet.annotations("shared") == {primed(fleet): fleet.time(), used(fleet): fleet.time()}


async def test_the_other_takes_over_when_the_first_is_deleted(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    await fleet.settle("other")
    assert fleet.replicas("other") == 1
    assert fleet.annotations("shared")[lease(fleet, "other")].startswith("other/")


async def test_the_other_takes_over_when_the_first_finds_no_gpu(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    pod = fleet.start("llama")
    fleet.unschedulable(pod)
    await fleet.settle("other")
    assert fleet.replicas("other") == 0
    bench.pass_time(61)
    await fleet.settle("other")
    assert fleet.replicas("other") == 1
    await fleet.settle("llama")
    assert "VLLMDeployment other is compiling" in bench.cache_verdict().message


async def test_the_other_waits_on_while_the_first_makes_progress(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    fleet.start("llama")
    bench.pass_time(3600)
    result = await bench.reconciler.reconcile(("default", "other"))
    assert fleet.replicas("other") == 0
    assert result.requeue_seconds == 15


async def test_the_other_takes_over_when_the_pod_of_the_first_is_not_created_for_an_hour(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    pod = fleet.start("llama", created=bench.now)
    fleet.show(pod, state={"waiting": {"reason": "ContainerCreating"}})
    bench.pass_time(1800)
    await fleet.settle("other")
    assert fleet.replicas("other") == 0
    bench.pass_time(1801)
    await fleet.settle("other")
    assert fleet.replicas("other") == 1


async def test_a_lease_from_the_future_is_not_waited_for(bench: Bench, fleet: Fleet) -> None:
    await shared(bench, fleet)
    holder = fleet.annotations("shared")[lease(fleet)].rpartition("/")[0]
    fleet.annotate({lease(fleet): f"{holder}/2099-01-01T00:00:00Z"}, claim="shared")
    bench.pass_time(3600)
    await fleet.settle("other")
    assert fleet.replicas("other") == 1


def test_every_rule_has_a_reason_and_a_source() -> None:
    rules = load_catalog().priming
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(rule.because.endswith(".") and rule.source for rule in rules)


def test_a_version_that_is_not_known_may_be_any() -> None:
    rule = next(rule for rule in load_catalog().priming if rule.id == "compile-cache-in-place")
    assert rule.applies(version=None, backends=(), one_node=False)
    assert not rule.applies(version="0.20.1", backends=(), one_node=False)
