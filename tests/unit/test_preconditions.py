"""What the operator waits for at its start, what it reports meanwhile, and when it ends to begin again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from vllm_operator.controller.preconditions import REQUIRED, REVIEWS, Permission, Preconditions, Readiness, WatchesOutdated, watched_kinds
from vllm_operator.kube.client import (
    CLUSTER_PRESET,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    POD,
    PRESET,
    VLLM_DEPLOYMENT,
    Kind,
    Unauthorized,
    Unavailable,
)

RETRY_SECONDS = 0.01


class Denying(FakeCluster):
    """A cluster in which some things are not allowed."""

    denied: set[tuple[str, str]]

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        answer = await super().create(manifest)
        asked = (manifest.get("spec") or {}).get("resourceAttributes")
        if asked:
            resource = asked["resource"] + (f"/{asked['subresource']}" if "subresource" in asked else "")
            answer = {**answer, "status": {"allowed": (asked["verb"], resource) not in self.denied}}
        return answer


class World:
    def __init__(self) -> None:
        self.cluster = Denying()
        self.cluster.denied = set()
        self.readiness = Readiness()
        self.watched: list[tuple[Kind, ...]] = []
        self.ends: list[WatchesOutdated] = []
        self.preconditions = Preconditions(self.cluster, self.readiness, host="https://h", retry_seconds=RETRY_SECONDS, check_seconds=0.02)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """As the operator and the kubelet do: begin again when other kinds must be watched."""
        while True:
            kinds = await self.preconditions.wait()
            self.watched.append(kinds)
            try:
                await self.preconditions.watch(kinds)
            except WatchesOutdated as error:
                self.ends.append(error)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)
                assert self.task is None or not self.task.done(), self.task.exception()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    if made.task:
        made.task.cancel()
        await asyncio.gather(made.task, return_exceptions=True)


async def test_where_nothing_is_missing_all_kinds_are_watched(world: World) -> None:
    assert not world.readiness
    world.start()
    await world.until(lambda: world.watched)
    assert world.watched == [(*watched_kinds(()), PRESET, CLUSTER_PRESET, LEADER_WORKER_SET)]
    assert world.readiness


async def test_presets_are_watched_as_soon_as_their_definition_exists(world: World) -> None:
    world.cluster.absent.add(PRESET)
    world.start()
    await world.until(lambda: world.watched)
    assert PRESET not in world.watched[0]
    world.cluster.absent.clear()
    await world.until(lambda: len(world.watched) == 2)
    assert PRESET in world.watched[1]


async def test_an_api_server_that_is_away_is_named_and_waited_for(world: World) -> None:
    world.cluster.fail("*", None, Unavailable("connection refused"), times=500)
    world.start()
    await world.until(lambda: "cannot be reached: connection refused" in world.readiness.missing.get("API server", ""))
    assert not world.watched
    world.cluster.heal()
    await world.until(lambda: world.watched)
    assert world.readiness


async def test_a_missing_crd_is_named_and_waited_for(world: World) -> None:
    world.cluster.absent.add(VLLM_DEPLOYMENT)
    world.start()
    await world.until(lambda: "kubectl apply -f crds/" in world.readiness.missing.get("CRD", ""))
    world.cluster.absent.clear()
    await world.until(lambda: world.watched)
    assert world.readiness


async def test_an_api_server_that_denies_all_for_a_moment_after_its_start_ends_nothing(world: World) -> None:
    world.start()
    await world.until(lambda: world.watched)
    world.cluster.denied = {("watch", "pods"), ("watch", "services")}
    world.preconditions.recheck()
    await world.until(lambda: any("watch pods" in name for name in world.readiness.missing))
    world.cluster.denied = set()
    await world.until(lambda: world.readiness)
    assert not world.ends
    world.cluster.denied = {("watch", "pods")}
    world.preconditions.recheck()
    await world.until(lambda: world.ends)  # a permission that stays away


async def test_a_missing_permission_is_named_and_the_rest_is_watched(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.cluster.denied = {("watch", "pods"), ("get", "pods/log")}
    world.start()
    await world.until(lambda: world.watched)
    assert POD not in world.watched[0]
    assert DEPLOYMENT in world.watched[0]
    said = "\n".join(world.readiness.missing.values())
    assert "may not watch pods" in said
    assert "may not get pods/log, so stages, progress and causes of crashes are unknown" in said
    assert "may not watch pods" in caplog.text
    world.cluster.denied = set()
    await world.until(lambda: len(world.watched) == 2)
    assert POD in world.watched[1]
    assert world.readiness


async def test_a_permission_that_goes_is_noticed_when_something_is_refused(world: World) -> None:
    world.start()
    await world.until(lambda: world.watched)
    reviews = world.cluster.calls["create"]
    world.cluster.denied = {("patch", "services")}
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert world.cluster.calls["create"] == reviews  # nobody asks without a reason: it is a POST
    world.preconditions.recheck()
    await world.until(lambda: "permission patch services" in world.readiness.missing)


async def test_a_crd_that_is_taken_away_ends_the_watches_and_is_waited_for(world: World) -> None:
    world.start()
    await world.until(lambda: world.watched)
    world.cluster.absent.add(VLLM_DEPLOYMENT)
    await world.until(lambda: "CRD" in world.readiness.missing)
    world.cluster.absent.clear()
    await world.until(lambda: len(world.watched) == 2)
    assert [str(error) for error in world.ends] == ["the CRD is gone"]


async def test_few_permissions_are_asked_for_at_the_same_time(world: World) -> None:
    """Each request that runs beside others opens a connection."""
    create, now, most = world.cluster.create, 0, 0

    async def count(manifest: dict[str, Any]) -> dict[str, Any]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return await create(manifest)

    world.cluster.create = count  # type: ignore[method-assign]
    world.start()
    await world.until(lambda: world.watched)
    assert most == REVIEWS


def test_every_required_permission_says_what_does_not_work_without_it() -> None:
    assert all(permission.effect for permission in REQUIRED)
    assert str(Permission("get", POD, "log")) == "get pods/log"
    assert str(Permission("list", DEPLOYMENT)) == "list deployments in API group apps"


async def test_credentials_that_are_not_accepted_are_reported_as_such_and_recovered_from(world: World) -> None:
    world.start()
    await world.until(lambda: world.watched)
    assert world.readiness
    world.cluster.fail("*", None, Unauthorized("The API server does not accept the credentials"), times=10_000)
    world.preconditions.recheck()
    await world.until(lambda: "does not accept the credentials" in world.readiness.missing.get("credentials", ""))
    # neither a permission nor the CRD nor the API server is missing, as far as is known
    assert set(world.readiness.missing) == {"credentials"}
    world.cluster.heal()
    await world.until(lambda: world.readiness)


async def test_at_the_start_credentials_that_are_not_accepted_are_waited_for(world: World) -> None:
    world.cluster.fail("*", None, Unauthorized("The API server does not accept the credentials"), times=10_000)
    world.start()
    await world.until(lambda: "credentials" in world.readiness.missing)
    assert not world.watched
    world.cluster.heal()
    await world.until(lambda: world.watched)
    assert world.readiness


async def test_an_api_server_that_refuses_again_and_again_is_not_asked_without_a_pause(world: World) -> None:
    world.start()
    await world.until(lambda: world.watched)
    world.cluster.fail("*", None, Unauthorized("no"), times=10_000)
    before, began = world.cluster.calls["find"], time.monotonic()
    for _ in range(2000):
        world.preconditions.recheck()
        await asyncio.sleep(0)
    elapsed = time.monotonic() - began
    assert world.cluster.calls["find"] - before <= 3 * (2 + elapsed / RETRY_SECONDS)
