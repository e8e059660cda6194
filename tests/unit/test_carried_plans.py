"""The plan in the annotation of a Deployment: found again, repaired, and never trusted."""

import base64
import hashlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import observations as o
from support.fake_cluster import FakeCluster
from support.fleet import Fleet
from support.operators import KEY, Bench, llama
from vllm_operator.api import labels
from vllm_operator.api.labels import PLAN_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cluster.client import DEPLOYMENT, REVISION, VLLM_DEPLOYMENT, Unavailable
from vllm_operator.rendering import carried_plan
from vllm_operator.rendering.carried_plan import VALUE_LIMIT, carried_name, carry, read_carried
from vllm_operator.rendering.revision import RevisionError, render_revision, revision_name

Manifest = dict[str, Any]
RESOURCE = o.resource()
NAME = revision_name(RESOURCE, o.plan())


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench)


def in_force(bench: Bench) -> str:
    summary = bench.status().pinned_plan
    assert summary is not None
    return summary.revision


def annotation(bench: Bench) -> str | None:
    value: str | None = bench.deployment()["metadata"]["annotations"].get(PLAN_ANNOTATION)
    return value


def writes(bench: Bench) -> list[str]:
    return [write.kind for write in bench.cluster.writes]


async def restart_with(bench: Bench, value: str | None) -> None:
    """Somebody writes another annotation while the operator is down."""
    annotate(bench, value)
    bench.restart()
    bench.cluster.writes.clear()
    await bench.settle()


def annotate(bench: Bench, value: str | None) -> None:
    bench.cluster.edit(DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {PLAN_ANNOTATION: value}}})


def carrying(value: Any, resource: VLLMDeployment = RESOURCE) -> Manifest:
    return {"kind": "Deployment", "metadata": {"name": resource.metadata.name, "annotations": {PLAN_ANNOTATION: value}}}


async def test_the_deployment_carries_its_plan_and_a_restart_reads_nothing(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    resource, plan = VLLMDeployment.parse(bench.resource()), bench.plan()
    assert carried_name(resource, bench.deployment()) == in_force(bench)
    assert bench.cluster.all(REVISION) == []
    assert PLAN_ANNOTATION not in str(bench.deployment()["spec"])
    bench.restart()
    bench.cluster.writes.clear()
    read = bench.cluster.calls["get"]
    await bench.reconciler.reconcile(KEY)
    assert (bench.cluster.writes, bench.cluster.calls["get"] - read) == ([], 1), "the object"
    assert bench.plan() == plan


@pytest.mark.parametrize("changed", [None, "", "garbage", "0123456789.1.eA=="])
async def test_a_changed_annotation_is_repaired_without_a_rollout(bench: Bench, fleet: Fleet, changed: str | None) -> None:
    await fleet.serve()
    before, spec = annotation(bench), bench.deployment()["spec"]
    bench.cluster.writes.clear()
    annotate(bench, changed)
    await bench.settle()
    assert (annotation(bench), bench.deployment()["spec"]) == (before, spec)
    assert writes(bench) == ["Deployment"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "Deployment llama does not carry the pinned plan"),
        ("", "Deployment llama does not carry the pinned plan"),
        ("{name}", "cannot be read"),
        ("{name}.1.!", "cannot be read"),
        ("{name}.2.eA==", "cannot be read"),
        ("{name}.1.{other}", "has another content than its name says"),
    ],
)
async def test_without_the_plan_in_force_what_runs_keeps_running(bench: Bench, fleet: Fleet, value: str | None, said: str) -> None:
    await fleet.serve()
    before, cache = bench.deployment(), bench.cache()
    other = str(carry("llama-0123456789", bench.plan().model_copy(update={"image": "evil/miner:latest"}))).partition(".1.")[2]
    await restart_with(bench, value and value.format(name=in_force(bench).rpartition("-")[2], other=other))
    planned = bench.condition("Planned")
    assert (planned.status, planned.reason) == ("False", "RevisionUnusable")
    assert said in planned.message
    assert f"ControllerRevision {in_force(bench)} does not exist" in planned.message
    assert REPLAN_ANNOTATION in planned.message
    assert bench.deployment()["spec"] == before["spec"]
    assert bench.cache() == cache
    assert set(writes(bench)) <= {"Event", "VLLMDeployment"}
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "now"}}})
    await bench.settle()
    assert bench.condition("Planned").reason == "Resolved"
    assert carried_name(VLLMDeployment.parse(bench.resource()), bench.deployment()) == in_force(bench)


async def test_without_the_deployment_a_new_plan_is_made(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before = bench.deployment()["spec"]
    bench.cluster.remove(DEPLOYMENT, "default", "llama")
    bench.restart()
    await bench.settle()
    assert (bench.condition("Planned").reason, bench.deployment()["spec"]) == ("Resolved", before)


async def test_a_deleted_deployment_comes_back_with_its_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before, name = annotation(bench), in_force(bench)
    bench.cluster.remove(DEPLOYMENT, "default", "llama")
    await bench.settle()
    assert (annotation(bench), in_force(bench)) == (before, name)


async def test_an_operator_that_ends_between_the_deployment_and_the_status_makes_the_same_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    first = in_force(bench)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    assert (await bench.reconciler.reconcile(KEY)).name == "waiting"
    applied = bench.deployment()
    assert in_force(bench) == first
    bench.restart()
    await bench.settle()
    assert bench.condition("Planned").reason == "Resolved"
    assert bench.deployment() == applied
    assert carried_name(VLLMDeployment.parse(bench.resource()), applied) == in_force(bench) != first


async def test_a_forged_plan_with_a_fitting_digest_never_comes_into_force(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before, resource = bench.deployment(), VLLMDeployment.parse(bench.resource())
    forged = bench.plan().model_copy(update={"image": "evil/miner:latest"})
    await restart_with(bench, carry(revision_name(resource, forged), forged))
    assert bench.deployment()["spec"] == before["spec"]
    assert "evil" not in str([bench.resource(), bench.cluster.all(REVISION)])
    assert bench.plan().image != "evil/miner:latest"


@pytest.mark.parametrize("is_down", [False, True])
async def test_an_undone_rollout_is_rolled_forward_again(bench: Bench, fleet: Fleet, is_down: bool) -> None:
    """`kubectl rollout undo` restores the Pod template and all annotations of the Deployment, as they were."""
    await fleet.serve()
    old = bench.deployment()
    await fleet.change(engine={"version": "0.26.0"})
    new = bench.deployment()
    annotations = {PLAN_ANNOTATION: old["metadata"]["annotations"][PLAN_ANNOTATION]}
    annotations[labels.APPLIED_ANNOTATION] = old["metadata"]["annotations"][labels.APPLIED_ANNOTATION]
    change = {"metadata": {"annotations": annotations}, "spec": {"template": old["spec"]["template"]}}
    bench.cluster.edit(DEPLOYMENT, "default", "llama", change)
    if is_down:
        bench.restart()
    await bench.settle()
    assert bench.deployment()["spec"] == new["spec"]
    assert carried_name(VLLMDeployment.parse(bench.resource()), bench.deployment()) == in_force(bench)
    assert bench.condition("Planned").reason == "Resolved"


async def test_the_deployment_of_an_orphan_gets_the_plan_of_the_new_object(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before = annotation(bench)
    orphan = [{"op": "remove", "path": "/metadata/ownerReferences"}]
    await bench.cluster.patch(DEPLOYMENT, "llama", "default", orphan, manager="kube-controller-manager")
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    bench.cluster.put(llama())
    bench.restart()
    await bench.settle()
    assert annotation(bench) != before
    assert carried_name(VLLMDeployment.parse(bench.resource()), bench.deployment()) == in_force(bench)
    assert bench.condition("Planned").reason == "Resolved"


async def test_a_plan_whose_annotation_is_not_kept_is_recorded(bench: Bench, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = FakeCluster.apply

    async def strip(cluster: FakeCluster, manifest: Manifest, **options: Any) -> Manifest:
        metadata = manifest["metadata"]
        kept = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != PLAN_ANNOTATION}
        return await apply(cluster, {**manifest, "metadata": {**metadata, "annotations": kept}}, **options)

    monkeypatch.setattr(FakeCluster, "apply", strip)
    await fleet.serve()
    [revision] = bench.cluster.all(REVISION)
    assert revision["metadata"]["name"] == in_force(bench)
    await fleet.change(engine={"version": "0.24.0"})
    assert sorted(each["revision"] for each in bench.cluster.all(REVISION)) == [1, 2]
    bench.restart()
    bench.cluster.writes.clear()
    await bench.settle()
    assert bench.cluster.writes == []


async def test_a_plan_that_is_too_large_for_an_annotation_is_recorded(bench: Bench, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried_plan, "VALUE_LIMIT", 20)
    await fleet.serve()
    [revision] = bench.cluster.all(REVISION)
    assert revision["metadata"]["name"] == in_force(bench)
    assert annotation(bench) is None


async def test_a_former_plan_is_recorded_again_after_a_failure(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    first = in_force(bench)
    bench.cluster.fail("create", REVISION, Unavailable("gone"), times=1)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    with pytest.raises(Unavailable):
        await bench.reconciler.reconcile(KEY)
    await bench.settle()
    assert [revision["metadata"]["name"] for revision in bench.cluster.all(REVISION)] == [first]


# ---- the annotation itself


def test_a_plan_comes_back_as_it_was_and_takes_few_characters() -> None:
    value = carry(NAME, o.plan())
    assert value is not None
    assert read_carried(RESOURCE, carrying(value)) == o.plan()
    assert carried_name(RESOURCE, carrying(value)) == NAME
    assert render_revision(RESOURCE, o.plan(), 1)["metadata"]["name"] == NAME


async def test_a_typical_plan_takes_less_than_a_kilobyte(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    assert len(str(annotation(bench))) < 1000
    assert len(json.dumps(bench.plan().to_json())) > 6000


def test_the_dictionary_of_carried_plans_never_changes() -> None:
    digest = hashlib.sha256(carried_plan._dictionary("1")).hexdigest()
    assert digest == "7b8378824db460282dee18a9bcb1c873c4005fbd074721fa8aae257403e8f6ba", (
        "plans in clusters could not be read any more; add a dictionary with the next number"
    )


def packed(text: bytes) -> str:
    compressor = zlib.compressobj(zdict=carried_plan._dictionary("1"))
    return base64.b64encode(compressor.compress(text) + compressor.flush()).decode()


DIGEST = NAME.rpartition("-")[2]
HOSTILE: dict[str, Any] = {
    "no string": 5,
    "a list": [NAME],
    "no digest": f"DIGEST.1.{packed(b'{}')}",
    "digest only": DIGEST,
    "an unknown dictionary": f"{DIGEST}.7.{packed(b'{}')}",
    "a path as the dictionary": f"{DIGEST}.../../x.{packed(b'{}')}",
    "no base64": f"{DIGEST}.1.%%%",
    "other characters": f"{DIGEST}.1.ää",
    "no deflate": f"{DIGEST}.1.{base64.b64encode(b'x' * 50).decode()}",
    "another dictionary": f"{DIGEST}.1.{base64.b64encode(zlib.compress(b'{}')).decode()}",
    "a bomb": f"{DIGEST}.1.{packed(b' ' * 50_000_000 + b'{}')[:VALUE_LIMIT]}",
    "a bomb in few characters": f"{DIGEST}.1.{packed(b' ' * 4_000_000 + b'{}')}",
    "a bomb in depth": f"{DIGEST}.1.{packed(b'[' * 200_000)}",
    "a large number": f"{DIGEST}.1.{packed(b'9' * 100_000)}",
    "no object": f"{DIGEST}.1.{packed(b'[]')}",
    "cut off": str(carry(NAME, o.plan()))[:-12],
    "something behind it": f"{DIGEST}.1.{base64.b64encode(base64.b64decode(packed(b'{}')) + b'x').decode()}",
    "too long": f"{DIGEST}.1.{'A' * 1_000_000}",
    "the plan of another object": carry(
        revision_name(
            VLLMDeployment.parse({"metadata": {"name": RESOURCE.metadata.name, "uid": "x"}, "spec": {"model": {"uri": "hf://a/b"}}}),
            o.plan(),
        ),
        o.plan(),
    ),
    "another plan under this name": carry(NAME, o.plan(image="evil/miner:latest")),
    "no plan": f"{DIGEST}.1.{packed(json.dumps({'image': 'evil/miner:latest'}).encode())}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_annotation_is_refused(name: str) -> None:
    with pytest.raises(RevisionError, match=PLAN_ANNOTATION):
        read_carried(RESOURCE, carrying(HOSTILE[name]))


@given(
    value=st.one_of(
        st.text(max_size=300),
        st.binary(max_size=300).map(lambda data: f"{DIGEST}.1.{base64.b64encode(data).decode()}"),
        st.binary(max_size=300).map(lambda data: f"{DIGEST}.1.{packed(data)}"),
        st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)).map(
            lambda content: f"{DIGEST}.1.{packed(json.dumps(content).encode())}"
        ),
    )
)
def test_any_annotation_is_a_plan_or_refused(value: str) -> None:
    with pytest.raises(RevisionError):
        read_carried(RESOURCE, carrying(value))


@given(position=st.integers(0), character=st.characters(min_codepoint=33, max_codepoint=126))
def test_a_changed_character_never_gives_another_plan(position: int, character: str) -> None:
    value = str(carry(NAME, o.plan()))
    place = position % len(value)
    try:
        plan: Plan = read_carried(RESOURCE, carrying(value[:place] + character + value[place + 1 :]))
    except RevisionError:
        return
    assert plan == o.plan()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=200), max_size=20), count=st.integers(0, 64))
def test_any_plan_comes_back(texts: list[str], count: int) -> None:
    plan = o.plan(notes=[text.encode("utf-8", "ignore").decode() for text in texts], count=count)
    name = revision_name(RESOURCE, plan)
    value = carry(name, plan)
    assert value is None or read_carried(RESOURCE, carrying(value)) == plan
