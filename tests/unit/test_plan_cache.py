"""When an outcome of planning is used again: for the same object, and for others with equal specs."""

from typing import Any

import pytest

from support.gpus import inventory_of, real_node
from support.operators import known_catalog, llama
from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.planning.model.facts import NO_FILES
from vllm_operator.planning.outcome import Outcome
from vllm_operator.runtime.plan_cache import MAX_SHARED, PlanCache

GPUS = inventory_of(real_node("h100-sxm"))


def planned(plans: PlanCache, name: str, *, metadata: dict[str, Any] | None = None, status: Any = None, **spec: Any) -> Outcome:
    manifest = llama(name, **spec)
    manifest["metadata"] |= {"uid": f"uid-{name}", "generation": 1, **(metadata or {})}
    resource = VLLMDeployment.parse({**manifest, "status": status or {}})
    return plans.plan(resource, GPUS, known_catalog().current, NO_FILES)


def test_an_object_is_planned_once() -> None:
    plans = PlanCache()
    first = planned(plans, "a")
    assert planned(plans, "a", status={"replicas": 1}, metadata={"labels": {"team": "x"}, "annotations": {"note": "y"}}) is first


def test_objects_with_equal_specs_have_one_plan() -> None:
    plans = PlanCache()
    assert planned(plans, "a") is planned(plans, "b")


@pytest.mark.parametrize(
    "difference",
    [
        {"metadata": {"generation": 2}},
        {"metadata": {"annotations": {REPLAN_ANNOTATION: "again"}}},
        {"metadata": {"annotations": {ALLOW_KNOWN_BAD_ANNOTATION: "true"}}},
        {"status": {"cache": {"generation": 1}}},
    ],
)
def test_what_planning_reads_makes_a_plan_of_its_own(difference: dict[str, Any]) -> None:
    plans = PlanCache()
    assert planned(plans, "a") is not planned(plans, "b", **difference)
    assert planned(plans, "a") is not planned(plans, "a", **difference)


def test_another_spec_of_the_same_generation_has_a_plan_of_its_own() -> None:
    plans = PlanCache()
    assert planned(plans, "a") is not planned(plans, "b", replicas=2)


def test_a_refusal_is_not_shared_because_it_may_name_its_object() -> None:
    plans = PlanCache()
    refused = {"accelerator": {"products": ["NVIDIA-A100"]}}
    first, second = planned(plans, "a", **refused), planned(plans, "b", **refused)
    assert first.plan is None
    assert first is not second
    assert planned(plans, "a", **refused) is first


def test_only_the_last_different_specs_are_tried_for_others() -> None:
    plans = PlanCache()
    first = planned(plans, "a", replicas=1)
    for number in range(MAX_SHARED):
        planned(plans, f"b-{number}", replicas=2 + number)
    assert planned(plans, "c", replicas=1) is not first
    assert planned(plans, "a", replicas=1) is first
