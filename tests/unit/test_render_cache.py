"""When the manifests of an object are rendered again: whenever something changed that they are rendered from, and only then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.manifests import CASES, read_case
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.rendering.manifests import render
from vllm_operator.runtime import render_cache
from vllm_operator.runtime.render_cache import MAX_PLANS, RenderCache

Inputs = tuple[VLLMDeployment, Plan]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[Inputs]:
    """What was rendered instead of remembered."""
    found: list[Inputs] = []

    def render_and_record(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
        found.append((resource, plan))
        return render(resource, plan)

    monkeypatch.setattr(render_cache, "render", render_and_record)
    return found


def with_metadata(**fields: Any) -> Callable[[VLLMDeployment, Plan], Inputs]:
    return lambda resource, plan: (resource.model_copy(update={"metadata": resource.metadata.model_copy(update=fields)}), plan)


def with_spec(**fields: Any) -> Callable[[VLLMDeployment, Plan], Inputs]:
    return lambda resource, plan: (resource.model_copy(update={"spec": resource.spec.model_copy(update=fields)}), plan)


def with_plan(**fields: Any) -> Callable[[VLLMDeployment, Plan], Inputs]:
    return lambda resource, plan: (resource, plan.model_copy(update=fields))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_what_is_remembered_is_what_would_be_rendered(folder: Path, rendered: list[Inputs]) -> None:
    cache = RenderCache()
    resource, plan = read_case(folder)
    desired = render(resource, plan)
    first = cache.render(resource, plan)
    assert first == desired
    first.clear()  # callers own what they get
    again, equal_plan = read_case(folder)
    assert cache.render(again, equal_plan) == desired
    assert len(rendered) == 1


@pytest.mark.parametrize(
    "change",
    [
        with_metadata(name="other"),
        with_metadata(namespace="other"),
        with_metadata(uid="other"),
        with_spec(replicas=7),
        with_spec(pod_template={"metadata": {"annotations": {"team": "x"}}}),
        with_plan(image="example.org/vllm:1"),
        with_plan(env=[]),
        with_plan(cache_key="other"),
    ],
    ids=("name", "namespace", "uid", "replicas", "template", "image", "variables", "cache key"),
)
def test_a_change_of_what_manifests_follow_from_is_rendered(
    change: Callable[[VLLMDeployment, Plan], Inputs], rendered: list[Inputs]
) -> None:
    cache, before = RenderCache(), read_case(CASES[0])
    after = change(*before)
    for _ in range(2):
        assert cache.render(*before) == render(*before)
        assert cache.render(*after) == render(*after)
    assert len(rendered) == 2


@pytest.mark.parametrize("fields", [{"generation": 7}, {"labels": {"team": "x"}}, {"annotations": {"note": "y"}}])
def test_nothing_else_is_read(fields: dict[str, Any], rendered: list[Inputs]) -> None:
    cache, (resource, plan) = RenderCache(), read_case(CASES[0])
    cache.render(resource, plan)
    cache.render(*with_metadata(**fields)(resource, plan))
    cache.render(resource.with_pinned(plan), plan)
    assert len(rendered) == 1


def test_the_manifests_of_few_plans_of_an_object_are_remembered(rendered: list[Inputs]) -> None:
    cache, (resource, plan) = RenderCache(), read_case(CASES[0])
    plans = [plan.model_copy(update={"cache_key": f"key-{number}"}) for number in range(10)]
    for each in plans:
        cache.render(resource, each)
    [remembered] = cache._rendered._values.values()
    assert [each.plan for each in remembered] == plans[: -MAX_PLANS - 1 : -1]


def test_objects_with_like_manifests_take_little_memory() -> None:
    cache, (resource, plan) = RenderCache(), read_case(CASES[0])
    for number in range(50):
        cache.render(*with_metadata(name=f"model-{number}", uid=f"uid-{number}")(resource, plan))
    sizes = [len(each.packed) for entries in cache._rendered._values.values() for each in entries]
    assert len(sizes) == 50
    assert sum(sizes) < 50 * 512
