"""Watch events that arrive while a write is under way, before its answer or after it."""

from collections.abc import Callable
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, VLLM_DEPLOYMENT, Kind, Unavailable
from vllm_operator.cluster.mirror import Mirror

OF_LLAMA = {labels.MANAGED_BY_LABEL: labels.MANAGED_BY, labels.INSTANCE_LABEL: "llama"}


def child(kind: Kind = DEPLOYMENT, name: str = "llama", **content: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": OF_LLAMA}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content}


class Interrupted(FakeCluster):
    """A cluster in which something happens between a write and its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[dict[str, Any]], None] = lambda result: None

    async def apply(self, manifest: dict[str, Any], *, manager: str, force: bool = True) -> dict[str, Any]:
        result = await super().apply(manifest, manager=manager, force=force)
        self.meanwhile(result)
        return result

    async def apply_status(self, manifest: dict[str, Any], *, manager: str) -> dict[str, Any]:
        result = await super().apply_status(manifest, manager=manager)
        self.meanwhile(result)
        return result


class Race:
    """A mirror whose watches are faster than the answers to its writes."""

    def __init__(self) -> None:
        self.cluster = Interrupted()
        self.cluster.put(llama())
        self.cluster.put(child())
        self.mirror = Mirror(self.cluster)
        self.said_at_once: list[Any] = []
        self.said_later: list[Any] = []
        self.mirror.changed = self.said_later.append

    def note(self, kind: Kind, manifest: dict[str, Any]) -> None:
        self.said_at_once += self.mirror.note(kind, manifest)


@pytest.fixture
async def race() -> Race:
    made = Race()
    await made.mirror.load((VLLM_DEPLOYMENT, DEPLOYMENT, CLAIM), changed=lambda key: None)
    return made


async def test_the_event_of_our_own_write_is_no_news_even_if_it_comes_before_the_answer(race: Race) -> None:
    race.cluster.meanwhile = lambda result: race.note(DEPLOYMENT, result)
    await race.mirror.apply(child(spec={"replicas": 3}), manager="us")
    race.cluster.meanwhile = lambda result: race.note(VLLM_DEPLOYMENT, result)
    await race.mirror.apply_status({**llama(), "status": {"replicas": 1}}, manager="us")
    assert (race.said_at_once, race.said_later) == ([], [])


async def test_a_later_change_by_others_is_news_after_the_answer(race: Race) -> None:
    race.cluster.meanwhile = lambda result: race.note(DEPLOYMENT, race.cluster.put({**result, "spec": {"replicas": 5}}))
    await race.mirror.apply(child(spec={"replicas": 3}), manager="us")
    assert (race.said_at_once, race.said_later) == ([], [("default", "llama")])
    [found] = await race.mirror.find(DEPLOYMENT, "default", labels=OF_LLAMA)
    assert found["spec"]["replicas"] == 5


async def test_an_edit_that_our_status_contains_is_news_after_the_answer(race: Race) -> None:
    edited = race.cluster.put({**llama(), "spec": {**llama()["spec"], "replicas": 5}})

    def both_events(result: dict[str, Any]) -> None:
        race.note(VLLM_DEPLOYMENT, edited)
        race.note(VLLM_DEPLOYMENT, result)

    race.cluster.meanwhile = both_events
    await race.mirror.apply_status({**llama(), "status": {"replicas": 1}}, manager="us")
    assert (race.said_at_once, race.said_later) == ([], [("default", "llama")])


async def test_an_event_during_a_write_that_fails_is_news(race: Race) -> None:
    def fail(result: dict[str, Any]) -> None:
        race.note(DEPLOYMENT, result)
        raise Unavailable("no answer")

    race.cluster.meanwhile = fail
    with pytest.raises(Unavailable):
        await race.mirror.apply(child(spec={"replicas": 3}), manager="us")
    assert (race.said_at_once, race.said_later) == ([], [("default", "llama")])


async def test_the_event_of_a_claim_that_was_written_is_news_at_once(race: Race) -> None:
    race.cluster.meanwhile = lambda result: race.note(CLAIM, result)
    await race.mirror.apply(child(CLAIM, "cache"), manager="us")
    assert (race.said_at_once, race.said_later) == ([("default", "llama")], [])
