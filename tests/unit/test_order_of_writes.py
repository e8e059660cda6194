"""In which order an object's children, its revision and its status are written, alone and while others wait."""

from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import KEY, Bench, llama
from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, REVISION, SERVICE, VLLM_DEPLOYMENT, Forbidden, Unavailable

ON_NODE: dict[str, Any] = {"cache": {"hostPath": "/var/cache/vllm"}}


def kinds(bench: Bench) -> list[str]:
    written = [write.kind for write in bench.cluster.writes]
    bench.cluster.writes.clear()
    return written


async def create(bench: Bench, name: str = "llama") -> None:
    """Create another object, in a namespace where a revision was created before."""
    bench.cluster.put(llama("before", **ON_NODE))
    await bench.settle(("default", "before"))
    bench.cluster.writes.clear()
    bench.cluster.put(llama(name, **ON_NODE))


async def test_an_object_costs_four_writes(bench: Bench) -> None:
    await create(bench)
    await bench.settle()
    assert sorted(kinds(bench)) == ["ControllerRevision", "Deployment", "Service", "VLLMDeployment"]
    await bench.settle()
    assert kinds(bench) == []


async def test_an_object_with_claims_costs_two_more_and_looks_for_each_claim_once(bench: Bench) -> None:
    bench.cluster.put(llama("before"))
    await bench.settle(("default", "before"))
    bench.cluster.writes.clear()
    bench.cluster.put(llama())
    read = bench.cluster.calls["get"]
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.calls["get"] - read == 1 + 2, "the object, and its claims, which may exist without labels"
    written = [kind for kind in kinds(bench) if kind != "Event"]  # nobody provisions volumes here, which is reported
    assert sorted(written) == ["ControllerRevision", "Deployment", *["PersistentVolumeClaim"] * 2, "Service", "VLLMDeployment"]


async def test_the_record_that_is_applied_with_a_claim_stays_when_the_claim_is_applied_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    [record] = [name for name in fleet.annotations() if name.startswith(labels.USED_ANNOTATION_PREFIX)]
    since = fleet.annotations()[record]
    bench.pass_time(60)
    bench.restart()
    kinds(bench)
    await bench.settle()
    assert kinds(bench) == [], "a restart writes nothing"
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"labels": {labels.COMPONENT_LABEL: "changed"}}})
    await bench.settle()
    assert "PersistentVolumeClaim" in kinds(bench)
    assert fleet.annotations()[record] == since
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    await bench.settle()
    assert fleet.annotations()[record] == since, "the directory of the plan before"
    assert labels.USED_ANNOTATION_PREFIX + fleet.key() in fleet.annotations(), "the directory of this plan"


async def test_the_first_object_of_a_namespace_shows_whether_revisions_can_be_created_there(bench: Bench) -> None:
    bench.cluster.put(llama(**ON_NODE))
    await bench.settle()
    assert kinds(bench)[0] == "ControllerRevision"


async def test_while_others_wait_the_deployment_comes_first_and_the_rest_later(bench: Bench) -> None:
    await create(bench)
    bench.busy = True
    assert (await bench.reconciler.reconcile(KEY)).name == "deferred"
    assert kinds(bench) == ["Deployment"]
    assert (await bench.reconciler.reconcile(KEY)).name == "success"  # nothing is deferred twice
    assert kinds(bench) == ["ControllerRevision", "Service", "VLLMDeployment"]
    await bench.settle()
    assert kinds(bench) == []


async def test_an_update_writes_the_revision_and_the_deployment_and_later_the_status(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(**ON_NODE)
    kinds(bench)
    bench.busy = True
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    assert (await bench.reconciler.reconcile(KEY)).name == "deferred"
    assert kinds(bench) == ["ControllerRevision", "Deployment"]
    await bench.settle()
    assert kinds(bench) == ["VLLMDeployment"]


async def test_an_operator_that_ends_between_the_deployment_and_its_revision_plans_the_same_again(bench: Bench) -> None:
    await create(bench)
    bench.busy = True
    await bench.reconciler.reconcile(KEY)
    deployment = bench.deployment()
    bench.restart()
    bench.busy = False
    await bench.settle()
    assert bench.deployment() == deployment
    assert bench.condition("Planned").reason == "Resolved"
    assert bench.plan().image in str(deployment)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_revision_that_is_refused_meanwhile_is_reported_and_holds_the_next_plan_back(bench: Bench, is_busy: bool) -> None:
    await create(bench)
    bench.busy = is_busy
    bench.cluster.fail("create", REVISION, Forbidden("exceeded quota: few-revisions"), times=100)
    await bench.settle()
    assert "exceeded quota: few-revisions" in bench.condition("Planned").message
    assert bench.condition("Planned").reason == "RevisionRefused"
    bench.busy = False
    bench.cluster.put(llama("next", **ON_NODE))
    await bench.settle(("default", "next"))
    assert "next" not in [deployment["metadata"]["name"] for deployment in bench.cluster.all(DEPLOYMENT)]


@pytest.mark.parametrize("kind", [REVISION, SERVICE])
async def test_what_failed_is_written_the_next_time(bench: Bench, kind: object) -> None:
    await create(bench)
    bench.cluster.fail("create" if kind == REVISION else "apply", kind, Unavailable("later"), times=1)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await bench.reconciler.reconcile(KEY)
    await bench.settle()
    assert sorted(kinds(bench)) == ["ControllerRevision", "Deployment", "Service", "VLLMDeployment"]
    assert bench.condition("Planned").reason == "Resolved"
