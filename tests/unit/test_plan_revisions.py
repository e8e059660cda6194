"""Plans in ControllerRevisions: the history, and the plans that earlier versions wrote. Never taken from somebody else."""

from typing import Any

import pytest

from support import observations as o
from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import labels
from vllm_operator.api.labels import PLAN_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cluster.client import DEPLOYMENT, REVISION, VLLM_DEPLOYMENT, Forbidden
from vllm_operator.rendering.carried_plan import carried_name
from vllm_operator.rendering.revision import OLD_REVISIONS, render_revision, revision_name

Manifest = dict[str, Any]
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


def in_force(bench: Bench) -> str:
    summary = bench.status().pinned_plan
    assert summary is not None
    return summary.revision


def carried(bench: Bench) -> str | None:
    [deployment] = [item for item in bench.cluster.all(DEPLOYMENT) if item["metadata"]["name"] == "llama"]
    return carried_name(VLLMDeployment.parse(bench.resource()), deployment)


def writes(bench: Bench) -> list[tuple[str, str]]:
    return [(write.verb, write.kind) for write in bench.cluster.writes]


async def lose(bench: Bench, manifest: Manifest | None = None) -> None:
    """The revision in force is replaced by this object, or is gone; the operator has been started anew since."""
    bench.cluster.remove(REVISION, "default", in_force(bench))
    if manifest is not None:
        bench.cluster.put(manifest)
    bench.restart()
    bench.cluster.writes.clear()
    await bench.settle()


def edited(revision: Manifest, **changes: Any) -> Manifest:
    """A copy of a revision as somebody else could create it."""
    metadata = {name: revision["metadata"][name] for name in ("name", "namespace", "labels", "ownerReferences")}
    return {**{name: revision[name] for name in ("apiVersion", "kind", "revision", "data")}, "metadata": metadata, **changes}


async def serve_as_recorded(bench: Bench, fleet: Fleet) -> Manifest:
    """An object that serves, whose plan an earlier version of the operator has written into a ControllerRevision; returns that."""
    await fleet.serve()
    bench.cluster.put(render_revision(VLLMDeployment.parse(bench.resource()), bench.plan(), 1))
    await bench.settle()
    assert PLAN_ANNOTATION not in bench.deployment()["metadata"]["annotations"]
    bench.restart()
    bench.cluster.writes.clear()
    [revision] = revisions(bench)
    return revision


async def test_a_recorded_plan_stays_where_it_is(bench: Bench, fleet: Fleet) -> None:
    revision = await serve_as_recorded(bench, fleet)
    await bench.settle()
    assert bench.cluster.writes == []
    await fleet.change(replicas=3)
    bench.restart()
    await bench.settle()
    assert revisions(bench) == [revision]
    assert PLAN_ANNOTATION not in bench.deployment()["metadata"]["annotations"]


async def test_a_recorded_plan_that_is_replaced_stays_in_the_history_and_the_next_one_is_carried(bench: Bench, fleet: Fleet) -> None:
    revision = await serve_as_recorded(bench, fleet)
    await fleet.change(engine={"version": "0.24.0"})
    assert revisions(bench) == [revision]
    assert in_force(bench) != revision["metadata"]["name"]
    assert in_force(bench) == carried(bench)


async def test_a_replaced_plan_is_written_into_a_revision_that_the_object_controls(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    assert revisions(bench) == []
    first, plan = in_force(bench), bench.plan()
    await fleet.change(engine={"version": "0.24.0"})
    [revision] = revisions(bench)
    resource = bench.resource()
    [owner] = revision["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (resource["metadata"]["uid"], True, True)
    assert revision["revision"] == 1
    assert revision["metadata"]["name"] == first != in_force(bench)
    assert revision["metadata"]["labels"]["app.kubernetes.io/instance"] == "llama"
    assert "plan" not in resource["status"]
    assert revision["data"] == plan.to_json()
    assert "observed" not in str(revision["data"]["backends"])
    await fleet.change(engine={"version": "0.26.0"})
    assert [each["revision"] for each in revisions(bench)] == [1, 2]


async def test_an_earlier_plan_that_is_made_again_is_the_revision_that_it_was(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    first = in_force(bench)
    await fleet.change(engine={"version": "0.24.0"})
    second = in_force(bench)
    await fleet.change(engine={"version": "0.20.1"})
    if in_force(bench) == first:  # the generation of the spec is part of a plan
        assert carried(bench) is None
    else:
        assert carried(bench) == in_force(bench)
    assert {first, second} <= {revision["metadata"]["name"] for revision in revisions(bench)}


async def test_the_history_is_bounded_and_only_ours_is_deleted(bench: Bench, fleet: Fleet) -> None:
    mine = edited(await serve_as_recorded(bench, fleet))
    foreign = {**mine, "metadata": {**mine["metadata"], "name": "llama-0123456789", "ownerReferences": []}}
    backup = {**mine, "metadata": {**mine["metadata"], "name": "llama-backup"}}
    bench.cluster.put(foreign)
    bench.cluster.put(backup)
    for number in range(OLD_REVISIONS + 3):
        bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: str(number)}}})
        await bench.settle()
    ours = [r for r in revisions(bench) if r["metadata"]["name"] not in ("llama-0123456789", "llama-backup")]
    assert [revision["revision"] for revision in ours] == list(range(4, OLD_REVISIONS + 4)), "the Deployment carries the one in force"
    assert len(revisions(bench)) == len(ours) + 2


async def test_the_deployment_carries_a_plan_whose_revision_was_deleted(bench: Bench, fleet: Fleet) -> None:
    revision = await serve_as_recorded(bench, fleet)
    await bench.settle()
    template = bench.deployment()["spec"]["template"]
    bench.cluster.remove(REVISION, "default", revision["metadata"]["name"])
    await bench.settle()
    assert revisions(bench) == []
    assert carried(bench) == in_force(bench) == revision["metadata"]["name"]
    assert bench.deployment()["spec"]["template"] == template
    assert writes(bench) == [("apply", "Deployment")]


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
    "has another image": (lambda r: edited(r, data={**r["data"], "image": "evil/miner:latest"}), "has another content than its name says"),
    "has no data": (lambda r: edited(r, data=None), "has another content than its name says"),
    "has a list as data": (lambda r: edited(r, data=[1]), "has another content than its name says"),
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_an_unusable_revision_is_not_used_and_what_runs_keeps_running(name: str, bench: Bench, fleet: Fleet) -> None:
    make, why = UNUSABLE[name]
    revision = await serve_as_recorded(bench, fleet)
    deployment, cache = bench.deployment(), bench.cache()
    await lose(bench, make(revision))
    planned = bench.condition("Planned")
    assert (planned.status, planned.reason) == ("False", "RevisionUnusable")
    assert why in planned.message
    assert REPLAN_ANNOTATION in planned.message
    assert bench.condition("Ready").reason == "RevisionUnusable"
    assert bench.deployment() == deployment
    assert bench.cache() == cache
    assert {kind for verb, kind in writes(bench)} <= {"Event", "VLLMDeployment"}
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "now"}}})
    await bench.settle()
    assert bench.condition("Planned").reason == "Resolved"
    assert in_force(bench) != revision["metadata"]["name"]


async def test_remedies_stay_while_the_revision_is_unusable(bench: Bench, fleet: Fleet) -> None:
    await serve_as_recorded(bench, fleet)
    change = {"kind": "Argument", "action": "Set", "name": "--max-model-len", "value": "5600"}
    applied = [{"attempt": 1, "signature": "A", "changes": [change], "reason": "It crashed.", "since": "2026-11-21T14:10:00Z"}]
    remediation = {"observedGeneration": 1, "state": "Applied", "message": "Applied.", "applied": applied}
    bench.cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", {**bench.resource()["status"], "remediation": remediation})
    await fleet.change(replicas=2)
    await lose(bench)
    assert bench.resource()["metadata"]["generation"] == 2
    assert bench.condition("Planned").reason == "RevisionUnusable"
    assert bench.resource()["status"]["remediation"]["applied"] == applied


async def test_without_a_revision_and_a_deployment_a_new_plan_is_made(bench: Bench, fleet: Fleet) -> None:
    await serve_as_recorded(bench, fleet)
    bench.cluster.remove(DEPLOYMENT, "default", "llama")
    await lose(bench)
    assert bench.condition("Planned").reason == "Resolved"
    assert carried(bench) == in_force(bench)


async def serve_two(fleet: Fleet) -> None:
    await fleet.serve(replicas=2, **PUBLISHING)
    for _ in range(2):
        fleet.ready(fleet.start())
    await fleet.settle()


async def hold_back(bench: Bench, fleet: Fleet) -> None:
    """An object that serves gets another image. Its rollout is held back."""
    await serve_two(fleet)
    await fleet.change(engine={"version": "0.24.0"})
    assert carried(bench) != in_force(bench)


async def test_a_plan_whose_rollout_is_held_back_is_recorded_at_once(bench: Bench, fleet: Fleet) -> None:
    await hold_back(bench, fleet)
    running, (former, held) = carried(bench), revisions(bench)
    assert running == former["metadata"]["name"] != held["metadata"]["name"] == in_force(bench)
    bench.restart()
    bench.cluster.writes.clear()
    await bench.settle()
    assert (in_force(bench), carried(bench), revisions(bench)) == (held["metadata"]["name"], running, [former, held])


async def test_a_held_plan_that_cannot_be_recorded_is_reported_and_not_applied(bench: Bench, fleet: Fleet) -> None:
    await serve_two(fleet)
    deployment = fleet.deployment()
    bench.cluster.fail("create", REVISION, Forbidden("exceeded quota: few-revisions"), times=100)
    await fleet.change(engine={"version": "0.24.0"})
    planned = bench.condition("Planned")
    assert (planned.status, planned.reason) == ("False", "RevisionRefused")
    assert "exceeded quota: few-revisions" in planned.message
    assert (fleet.deployment(), fleet.deployment("llama.primer")) == (deployment, None)


async def test_a_name_that_somebody_else_has_taken_is_reported_and_left_alone(bench: Bench, fleet: Fleet) -> None:
    await hold_back(bench, fleet)
    [held] = [each for each in revisions(bench) if each["metadata"]["name"] == in_force(bench)]
    taken = without_owner(held)
    bench.cluster.remove(REVISION, "default", taken["metadata"]["name"])
    bench.cluster.put(taken)
    await bench.settle()
    planned = bench.condition("Planned")
    assert (planned.status, planned.reason) == ("False", "RevisionRefused")
    assert taken["metadata"]["name"] in planned.message
    [left] = [each for each in revisions(bench) if each["metadata"]["name"] == taken["metadata"]["name"]]
    assert edited(left) == edited(taken)


async def test_a_former_plan_that_may_not_be_recorded_holds_nothing_back(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    first = in_force(bench)
    bench.cluster.fail("create", REVISION, Forbidden("exceeded quota: few-revisions"), times=100)
    await fleet.change(engine={"version": "0.24.0"})
    assert revisions(bench) == []
    assert carried(bench) == in_force(bench) != first
    assert bench.condition("Planned").reason == "Resolved"


async def as_an_earlier_version_left_it(bench: Bench, fleet: Fleet, **changes: Any) -> Manifest:
    """An object that serves and has its plan in the status, as up to version 0.1; returns its Deployment."""
    await fleet.serve()
    status = bench.resource()["status"]
    plan = bench.plan().to_json()
    bench.cluster.put(render_revision(VLLMDeployment.parse(bench.resource()), bench.plan(), 1))
    await bench.settle()  # the Deployment carries nothing
    bench.cluster.remove(REVISION, "default", in_force(bench))
    old = {**{key: value for key, value in status.items() if key != "pinnedPlan"}, "plan": {**plan, **changes}}
    await bench.cluster.apply_status({**bench.resource(), "status": old}, manager=labels.STATUS_FIELD_MANAGER)
    bench.restart()
    return bench.deployment()


async def test_a_plan_of_an_earlier_version_moves_into_a_revision_once(bench: Bench, fleet: Fleet) -> None:
    deployment = await as_an_earlier_version_left_it(bench, fleet, catalogVersion="0.0.1+old")
    plan = bench.resource()["status"]["plan"]
    bench.cluster.writes.clear()
    await bench.settle()
    assert writes(bench) == [("create", "ControllerRevision"), ("apply_status", "VLLMDeployment")]
    assert bench.deployment() == deployment
    assert "plan" not in bench.resource()["status"]
    [revision] = revisions(bench)
    assert revision["data"] == plan


async def test_what_the_log_had_named_is_kept_through_the_upgrade(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    backends = [{**choice.to_json(), "observed": "OTHER"} for choice in bench.plan().backends]
    await as_an_earlier_version_left_it(bench, fleet, backends=backends)
    bench.restart()
    await bench.settle()
    summary = bench.status().pinned_plan
    assert summary is not None
    assert {entry.backend for entry in summary.observed_backends or ()} == {"OTHER"}
    assert not any("observed" in choice for choice in revisions(bench)[0]["data"]["backends"])


async def test_a_plan_of_an_earlier_version_stays_in_the_status_while_no_revision_may_be_written(bench: Bench, fleet: Fleet) -> None:
    deployment = await as_an_earlier_version_left_it(bench, fleet)
    plan = bench.resource()["status"]["plan"]
    bench.cluster.fail("create", REVISION, Forbidden("no", verb="create", resource="controllerrevisions"), times=100)
    await bench.settle()
    assert bench.resource()["status"]["plan"] == plan
    assert bench.deployment() == deployment
    bench.cluster.heal()
    await bench.settle()
    assert "plan" not in bench.resource()["status"]
    assert revisions(bench)[0]["data"] == plan


async def test_a_plan_in_the_status_that_somebody_else_has_restored_is_ignored(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    plan = {**bench.plan().to_json(), "image": "another:v1"}
    bench.cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", {**bench.resource()["status"], "plan": plan})
    deployment = bench.deployment()
    bench.restart()
    bench.cluster.writes.clear()
    await bench.settle()
    assert (bench.cluster.writes, bench.deployment()) == ([], deployment)


@pytest.mark.parametrize("plan", [{}, {"image": 1}, {"image": "x" * 5000}])
async def test_a_malformed_plan_in_the_status_is_reported_and_restarts_nothing(plan: Manifest, bench: Bench, fleet: Fleet) -> None:
    deployment = await as_an_earlier_version_left_it(bench, fleet)
    bench.cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", {**bench.resource()["status"], "plan": plan})
    await bench.settle()
    assert bench.condition("Planned").reason == "RevisionUnusable"
    assert bench.deployment() == deployment


def test_the_name_follows_from_the_object_and_the_plan_alone(bench: Bench) -> None:
    first, second = o.resource(), o.resource(replicas=4)
    assert revision_name(first, o.plan()) == revision_name(second, o.plan()) == render_revision(first, o.plan(), 7)["metadata"]["name"]
    assert revision_name(first, o.plan(count=4)) != revision_name(first, o.plan())
    other = VLLMDeployment.parse({"metadata": {"name": "vllm-a", "uid": "another"}, "spec": first.spec.to_json()})
    assert revision_name(other, o.plan()) != revision_name(first, o.plan())
