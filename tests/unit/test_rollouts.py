"""What the operator remembers of the rollouts that have begun."""

from datetime import UTC, datetime, timedelta

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.runtime.rollouts import RECENTLY, Rollouts

BEGAN = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


class World:
    """Rollouts, and a clock that tests set."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.rollouts = Rollouts(lambda: self.now)


def changed(uid: str, generation: int = 2, *, observed: int | None = 1, ready: bool = True) -> VLLMDeployment:
    """An object whose spec was changed after its last status."""
    conditions = [{"type": "Ready", "status": str(ready), "reason": "Serving", "message": "", "lastTransitionTime": "2026-11-24T11:00:00Z"}]
    return VLLMDeployment.parse(
        {
            "apiVersion": "vllm-operator.dev/v1alpha1",
            "kind": "VLLMDeployment",
            "metadata": {"name": uid, "namespace": "default", "uid": uid, "generation": generation},
            "spec": {"model": {"uri": "hf://org/model"}},
            "status": {"observedGeneration": observed, "pinnedPlan": {"revision": "llama-plan", "image": "vllm"}, "conditions": conditions},
        }
    )


def test_a_rollout_begins_once_for_each_spec() -> None:
    rollouts = World().rollouts
    assert [rollouts.begin(changed("a")), rollouts.begin(changed("a")), rollouts.begin(changed("a", 3))] == [True, False, True]
    assert not rollouts.begin(changed("b", observed=2))


def test_rollouts_are_recent_for_two_minutes() -> None:
    world = World()
    world.rollouts.begin(changed("a"))
    world.now += timedelta(seconds=60)
    world.rollouts.begin(changed("b"))
    assert world.rollouts.recent() == 2
    world.now = BEGAN + RECENTLY + timedelta(seconds=1)
    assert world.rollouts.recent() == 1
    world.now += RECENTLY
    assert world.rollouts.recent() == 0


def test_the_controller_is_awaited_once_for_each_change_of_a_deployment_that_is_ready() -> None:
    rollouts = World().rollouts
    deployment = {"metadata": {"generation": 5}, "status": {"observedGeneration": 4}}
    same = changed("a", 1)
    assert [rollouts.await_controller(same, deployment), rollouts.await_controller(same, deployment)] == [True, False]
    assert rollouts.await_controller(same, {**deployment, "metadata": {"generation": 6}})
    assert not rollouts.await_controller(same, {"metadata": {"generation": 7}, "status": {"observedGeneration": 7}})
    assert not rollouts.await_controller(changed("b", 1, ready=False), deployment)
