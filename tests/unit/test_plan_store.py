"""Plans in ControllerRevisions: stored before they are applied, found again, repaired, and never taken from somebody else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import observations as o
from support.fleet import Fleet
from support.gpus import real_node
from support.operators import KEY, Bench, llama
from vllm_operator.api import labels
from vllm_operator.api.labels import API_VERSION, PLAN_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.controller.plan_store import OLD_REVISIONS
from vllm_operator.kube.client import DEPLOYMENT, PRESET, REVISION, VLLM_DEPLOYMENT, Forbidden, Unavailable
from vllm_operator.planning.pinning import planned_fields
from vllm_operator.rendering.revision import RevisionError, applied_revision, read_revision, render_revision, revision_name

Manifest = dict[str, Any]
RESOURCE = o.resource()
PUBLISHING: Manifest = {
    "cache": {"storage": "EmptyDir", "artifact": {"repository": "registry.example/team/caches", "publish": "WhenPrimed"}}
}
"""With it, a rollout waits for a primer, which publishes the caches."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench)


def revisions(bench: Bench) -> list[Manifest]:
    return sorted(bench.cluster.all(REVISION), key=lambda revision: int(revision["revision"]))


def names(bench: Bench) -> list[str]:
    return [revision["metadata"]["name"] for revision in revisions(bench)]


def in_force(bench: Bench) -> str:
    return bench.status().revision or ""


def applied(bench: Bench) -> str:
    """The name of the plan that the Deployment of the replicas was rendered from."""
    [deployment] = [item for item in bench.cluster.all(DEPLOYMENT) if item["metadata"]["name"] == "llama"]
    return applied_revision(deployment)


def writes(bench: Bench) -> list[tuple[str, str]]:
    return [(write.verb, write.kind) for write in bench.cluster.writes]


def annotate(bench: Bench, **annotations: str | None) -> None:
    values = {PLAN_ANNOTATION: annotations["plan"]} if "plan" in annotations else {REPLAN_ANNOTATION: annotations["replan"]}
    kind = DEPLOYMENT if "plan" in annotations else VLLM_DEPLOYMENT
    bench.cluster.edit(kind, "default", "llama", {"metadata": {"annotations": values}})


def edited(revision: Manifest, **changes: Any) -> Manifest:
    """A copy of a revision as somebody else could create it."""
    metadata = {name: revision["metadata"][name] for name in ("name", "namespace", "labels", "ownerReferences")}
    return {**{name: revision[name] for name in ("apiVersion", "kind", "revision", "data")}, "metadata": metadata, **changes}


async def restart(bench: Bench) -> None:
    bench.restart()
    bench.cluster.writes.clear()
    await bench.settle()


async def replace_revision(bench: Bench, manifest: Manifest | None) -> None:
    """The revision in force is replaced by this object, or is gone. The operator has been restarted since."""
    bench.cluster.remove(REVISION, "default", in_force(bench))
    if manifest is not None:
        bench.cluster.put(manifest)
    await restart(bench)


async def test_a_plan_is_one_revision_that_the_object_controls(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    [revision] = revisions(bench)
    resource = bench.resource()
    [owner] = revision["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (resource["metadata"]["uid"], True, True)
    assert revision["metadata"]["labels"]["app.kubernetes.io/instance"] == "llama"
    spec = planned_fields(VLLMDeployment.parse(resource).spec)
    assert (revision["revision"], revision["data"]) == (1, {**bench.plan().to_json(), "spec": spec})
    assert revision["metadata"]["name"] == in_force(bench) == applied(bench)
    assert "observed" not in str(revision["data"]["backends"])
    assert PLAN_ANNOTATION not in str(bench.deployment()["spec"])


async def test_a_restart_reads_the_plan_once_and_writes_nothing(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    plan = bench.plan()
    bench.restart()
    bench.cluster.writes.clear()
    for want in (2, 1):
        read = bench.cluster.calls["get"]
        await bench.reconciler.reconcile(KEY)
        assert (bench.cluster.writes, bench.cluster.calls["get"] - read) == ([], want), "the object, and at first its plan"
    assert bench.plan() == plan


async def test_scaling_keeps_the_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before = revisions(bench)
    await fleet.change(replicas=3)
    await restart(bench)
    assert revisions(bench) == before
    assert applied(bench) == in_force(bench)


async def test_replaced_plans_stay_in_the_history(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    [first] = revisions(bench)
    await fleet.change(engine={"version": "0.24.0"})
    second = in_force(bench)
    assert [first["metadata"]["name"], second] == names(bench)
    assert applied(bench) == second
    await fleet.change(engine={"version": "0.26.0"})
    assert [each["revision"] for each in revisions(bench)] == [1, 2, 3]
    assert revisions(bench)[0] == first


async def test_the_history_is_bounded_and_only_ours_is_deleted(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    mine = edited(revisions(bench)[0])
    bench.cluster.put({**mine, "metadata": {**mine["metadata"], "name": "llama-0123456789", "ownerReferences": []}})
    bench.cluster.put({**mine, "metadata": {**mine["metadata"], "name": "llama-backup"}})
    for number in range(OLD_REVISIONS + 3):
        annotate(bench, replan=str(number))
        await bench.settle()
    ours = [r for r in revisions(bench) if r["metadata"]["name"] not in ("llama-0123456789", "llama-backup")]
    assert [revision["revision"] for revision in ours] == list(range(4, OLD_REVISIONS + 5)), "the one in force, and those before it"
    assert len(revisions(bench)) == len(ours) + 2


async def test_a_deleted_revision_is_written_again_without_a_rollout(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    [revision], deployment = revisions(bench), bench.deployment()
    bench.cluster.remove(REVISION, "default", in_force(bench))
    bench.cluster.writes.clear()
    await bench.settle()
    assert writes(bench) == [("create", "ControllerRevision")]
    assert edited(revisions(bench)[0]) == edited(revision)
    assert bench.deployment() == deployment


def without_owner(revision: Manifest) -> Manifest:
    return edited(revision, metadata={**edited(revision)["metadata"], "ownerReferences": []})


def of_another(revision: Manifest) -> Manifest:
    metadata = edited(revision)["metadata"]
    [owner] = metadata["ownerReferences"]
    return edited(revision, metadata={**metadata, "ownerReferences": [{**owner, "uid": "of-another"}]})


UNUSABLE: dict[str, tuple[Any, str]] = {
    "is missing": (lambda revision: None, "does not exist"),
    "is controlled by nobody": (without_owner, "is not controlled by this VLLMDeployment"),
    "is controlled by another object": (of_another, "is not controlled by this VLLMDeployment"),
    "has another image": (lambda r: edited(r, data={**r["data"], "image": "evil/miner:latest"}), "does not match the digest in its name"),
    "has no data": (lambda r: edited(r, data=None), "does not match the digest in its name"),
    "has a list as data": (lambda r: edited(r, data=[1]), "does not match the digest in its name"),
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_an_unusable_revision_is_not_used_and_what_runs_keeps_running(name: str, bench: Bench, fleet: Fleet) -> None:
    make, why = UNUSABLE[name]
    await fleet.serve()
    [revision], deployment, cache = revisions(bench), bench.deployment(), bench.cache()
    await replace_revision(bench, make(revision))
    planned = bench.plan_verdict()
    assert (planned.status, planned.reason) == ("False", "RevisionUnusable")
    assert why in planned.message
    assert REPLAN_ANNOTATION in planned.message
    assert bench.condition("Ready").reason == "RevisionUnusable"
    assert bench.deployment() == deployment
    assert bench.cache() == cache
    assert {kind for verb, kind in writes(bench)} <= {"Event", "VLLMDeployment"}
    annotate(bench, replan="now")
    await bench.settle()
    assert bench.plan_verdict().reason == "Planned"
    assert revision["metadata"]["name"] != in_force(bench) == applied(bench)


async def test_remedies_stay_while_the_revision_is_unusable(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    change = {"kind": "Argument", "action": "Set", "name": "--max-model-len", "value": "5600"}
    remedies = [{"attempt": 1, "signature": "A", "changes": [change], "reason": "It crashed.", "since": "2026-11-21T14:10:00Z"}]
    remediation = {"observedGeneration": 1, "state": "Applied", "message": "Applied.", "applied": remedies}
    bench.cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", {**bench.resource()["status"], "remediation": remediation})
    await fleet.change(replicas=2)
    await replace_revision(bench, None)
    assert bench.resource()["metadata"]["generation"] == 2
    assert bench.plan_verdict().reason == "RevisionUnusable"
    assert bench.resource()["status"]["remediation"]["applied"] == remedies


async def test_without_a_revision_and_a_deployment_a_new_plan_is_made(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before = bench.deployment()["spec"]
    bench.cluster.remove(DEPLOYMENT, "default", "llama")
    await replace_revision(bench, None)
    assert (bench.plan_verdict().reason, bench.deployment()["spec"]) == ("Planned", before)
    assert [in_force(bench)] == names(bench) == [applied(bench)]


async def test_the_status_cannot_name_the_plan_of_another_object(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    bench.cluster.put(llama("other", engine={"version": "0.24.0"}))
    await bench.settle(("default", "other"))
    other = bench.status("other").revision
    assert other is not None
    before, status = bench.deployment()["spec"], bench.resource()["status"]
    named = {**status, "revision": other}
    for is_restarted in (False, True):
        bench.cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", named)
        if is_restarted:
            bench.restart()
        await bench.settle()
        assert bench.plan_verdict().reason == "RevisionUnusable"
        assert bench.deployment()["spec"] == before


# ---- a Deployment, and the plan that it was rendered from


@pytest.mark.parametrize("changed", [None, "", "garbage", "llama-0123456789"])
async def test_a_changed_annotation_is_repaired_without_a_rollout(bench: Bench, fleet: Fleet, changed: str | None) -> None:
    await fleet.serve()
    spec = bench.deployment()["spec"]
    for is_restarted in (False, True):
        annotate(bench, plan=changed)
        bench.cluster.writes.clear()
        if is_restarted:
            bench.restart()
        await bench.settle()
        assert (applied(bench), bench.deployment()["spec"]) == (in_force(bench), spec)
        assert [write for write in writes(bench) if write[1] != "Event"] == [("apply", "Deployment")]


async def test_a_deleted_deployment_comes_back_with_its_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    name, spec = in_force(bench), bench.deployment()["spec"]
    for is_restarted in (False, True):
        bench.cluster.remove(DEPLOYMENT, "default", "llama")
        if is_restarted:
            bench.restart()
        await bench.settle()
        assert (applied(bench), in_force(bench), bench.deployment()["spec"]) == (name, name, spec)


async def test_an_operator_that_ends_between_the_plan_and_the_deployment_makes_the_same_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    first = in_force(bench)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    bench.cluster.fail("apply", DEPLOYMENT, Unavailable("gone"), times=1)
    with pytest.raises(Unavailable):
        await bench.reconciler.reconcile(KEY)
    assert applied(bench) == first
    [_, second] = stored = revisions(bench)
    await restart(bench)
    assert revisions(bench) == stored
    assert in_force(bench) == applied(bench) == second["metadata"]["name"]


async def test_an_operator_that_ends_between_the_deployment_and_the_status_makes_the_same_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    first = in_force(bench)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    bench.cluster.fail("apply_status", VLLM_DEPLOYMENT, Unavailable("killed"))
    with pytest.raises(Unavailable):
        await bench.settle()
    deployment = bench.deployment()
    assert in_force(bench) == first
    await restart(bench)
    assert bench.plan_verdict().reason == "Planned"
    assert bench.deployment() == deployment
    assert in_force(bench) == applied(bench) != first


async def test_nodes_that_change_before_the_status_is_written_change_no_plan(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.reconciler.reconcile(KEY)
    first, deployment = applied(bench), bench.deployment()
    assert bench.status().plan is None
    bench.cluster.put({"apiVersion": "v1", "kind": "Node", **real_node("b300")})
    bench.pass_time(60)
    await bench.settle()
    assert (in_force(bench), bench.deployment()) == (first, deployment)
    assert len(revisions(bench)) == 1


async def test_a_forged_plan_with_a_fitting_digest_never_comes_into_force(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before, resource = bench.deployment()["spec"], VLLMDeployment.parse(bench.resource())
    forged = render_revision(resource, bench.plan().model_copy(update={"image": "evil/miner:latest"}), 7)
    bench.cluster.put(forged)
    annotate(bench, plan=forged["metadata"]["name"])
    await restart(bench)
    assert bench.deployment()["spec"] == before
    assert "evil" not in str(bench.resource())
    assert in_force(bench) == applied(bench) != forged["metadata"]["name"]


@pytest.mark.parametrize("is_down", [False, True])
async def test_an_undone_rollout_is_rolled_forward_again(bench: Bench, fleet: Fleet, is_down: bool) -> None:
    """`kubectl rollout undo` restores the Pod template and all annotations of the Deployment, as they were."""
    await fleet.serve()
    old = bench.deployment()
    await fleet.change(engine={"version": "0.26.0"})
    new = bench.deployment()
    annotations = {name: old["metadata"]["annotations"][name] for name in (PLAN_ANNOTATION, labels.APPLIED_ANNOTATION)}
    change = {"metadata": {"annotations": annotations}, "spec": {"template": old["spec"]["template"]}}
    bench.cluster.edit(DEPLOYMENT, "default", "llama", change)
    if is_down:
        bench.restart()
    await bench.settle()
    assert bench.deployment()["spec"] == new["spec"]
    assert applied(bench) == in_force(bench)
    assert bench.plan_verdict().reason == "Planned"


async def test_the_deployment_of_an_orphan_gets_the_plan_of_the_new_object(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before = applied(bench)
    orphan = [{"op": "remove", "path": "/metadata/ownerReferences"}]
    await bench.cluster.patch(DEPLOYMENT, "llama", "default", orphan, manager="kube-controller-manager")
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    bench.cluster.put(llama())
    await restart(bench)
    assert before != applied(bench) == in_force(bench)
    assert bench.plan_verdict().reason == "Planned"


# ---- rollouts that are held back, and plans that cannot be stored


async def serve_two(fleet: Fleet, **spec: Any) -> None:
    await fleet.serve(replicas=2, **PUBLISHING, **spec)
    for _ in range(2):
        fleet.ready(fleet.start())
    await fleet.settle()


async def hold_back(bench: Bench, fleet: Fleet, **spec: Any) -> None:
    """An object that serves gets another image. Its rollout is held back."""
    await serve_two(fleet, **spec)
    await fleet.change(engine={"version": "0.24.0"})
    assert applied(bench) != in_force(bench)


async def test_a_plan_whose_rollout_is_held_back_is_found_again(bench: Bench, fleet: Fleet) -> None:
    await hold_back(bench, fleet)
    running, stored = applied(bench), revisions(bench)
    assert [running, in_force(bench)] == names(bench)
    await restart(bench)
    assert (applied(bench), revisions(bench)) == (running, stored)
    assert in_force(bench) == names(bench)[1]


@pytest.mark.parametrize("spec", [{}, {"presetRef": {"name": "shared"}}], ids=["an object", "an object with a preset"])
async def test_a_reverted_spec_keeps_what_serves_although_a_new_plan_for_it_would_differ(
    bench: Bench, fleet: Fleet, spec: dict[str, Any]
) -> None:
    preset = {"engine": {"args": [{"name": "seed", "value": "7"}]}}
    bench.cluster.put(
        {"apiVersion": API_VERSION, "kind": PRESET.kind, "metadata": {"name": "shared", "namespace": "default"}, "spec": preset}
    )
    await hold_back(bench, fleet, **spec)
    serving, template = applied(bench), bench.deployment()["spec"]["template"]
    bench.tools_image = "registry.example/vllm-operator:next"
    await restart(bench)
    await fleet.change(engine=llama()["spec"]["engine"])
    assert (in_force(bench), applied(bench), bench.deployment()["spec"]["template"]) == (serving, serving, template)
    annotate(bench, replan="1")
    await bench.settle()
    assert in_force(bench) != serving, "a new plan that is requested is made"


async def test_the_plan_that_runs_stays_however_many_plans_are_held_back(bench: Bench, fleet: Fleet) -> None:
    await hold_back(bench, fleet)
    running = applied(bench)
    for number in range(OLD_REVISIONS + 3):
        annotate(bench, replan=str(number))
        await bench.settle()
    assert running == applied(bench) == names(bench)[0]
    assert in_force(bench) == names(bench)[-1]
    assert len(names(bench)) == OLD_REVISIONS + 2


@pytest.mark.parametrize("serve", [serve_two, Fleet.serve], ids=["a rollout that is held back", "a rollout"])
async def test_a_plan_that_cannot_be_stored_is_reported_and_not_applied(bench: Bench, fleet: Fleet, serve: Any) -> None:
    await serve(fleet)
    deployment, before = fleet.deployment(), revisions(bench)
    bench.cluster.fail("create", REVISION, Forbidden("exceeded quota: few-revisions"), times=100)
    await fleet.change(engine={"version": "0.24.0"})
    planned = bench.plan_verdict()
    assert (planned.status, planned.reason) == ("False", "RevisionRefused")
    assert "exceeded quota: few-revisions" in planned.message
    assert (fleet.deployment(), fleet.deployment("llama.primer"), revisions(bench)) == (deployment, None, before)
    bench.cluster.heal()
    await bench.settle()
    assert bench.plan_verdict().reason == "Planned"
    assert in_force(bench) == names(bench)[-1]


async def test_a_name_that_somebody_else_has_taken_is_reported_and_left_alone(bench: Bench, fleet: Fleet) -> None:
    await hold_back(bench, fleet)
    taken = without_owner(revisions(bench)[-1])
    bench.cluster.remove(REVISION, "default", in_force(bench))
    bench.cluster.put(taken)
    await bench.settle()
    planned = bench.plan_verdict()
    assert (planned.status, planned.reason) == ("False", "RevisionRefused")
    assert taken["metadata"]["name"] in planned.message
    assert edited(revisions(bench)[-1]) == edited(taken)


async def test_a_revision_that_has_lost_its_labels_is_still_the_plan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    [revision] = revisions(bench)
    bare = {**edited(revision), "metadata": {**edited(revision)["metadata"], "labels": {}}}
    await replace_revision(bench, bare)
    assert bench.plan_verdict().reason == "Planned"
    assert edited(revisions(bench)[0]) == edited(bare)


# ---- the revision itself


def test_the_name_follows_from_the_object_and_the_plan_alone() -> None:
    first, second = o.resource(), o.resource(replicas=4)
    assert revision_name(first, o.plan()) == revision_name(second, o.plan()) == render_revision(first, o.plan(), 7)["metadata"]["name"]
    assert revision_name(first, o.plan(count=4)) != revision_name(first, o.plan())
    other = VLLMDeployment.parse({"metadata": {"name": "vllm-a", "uid": "another"}, "spec": first.spec.to_json()})
    assert revision_name(other, o.plan()) != revision_name(first, o.plan())


@given(texts=st.lists(st.text(max_size=200), max_size=20), count=st.integers(0, 64))
def test_any_plan_comes_back(texts: list[str], count: int) -> None:
    plan = o.plan(notes=[text.encode("utf-8", "ignore").decode() for text in texts], count=count)
    assert read_revision(RESOURCE, render_revision(RESOURCE, plan, 1)) == plan


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)
)


@given(data=JSON)
def test_any_other_content_is_refused(data: Any) -> None:
    with pytest.raises(RevisionError, match="does not match the digest"):
        read_revision(RESOURCE, {**render_revision(RESOURCE, o.plan(), 1), "data": data})


def test_content_that_is_nested_too_deep_is_refused() -> None:
    data: Manifest = {}
    for _ in range(100_000):
        data = {"a": data}
    with pytest.raises(RevisionError, match="does not match the digest"):
        read_revision(RESOURCE, {**render_revision(RESOURCE, o.plan(), 1), "data": data})
