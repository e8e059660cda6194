"""What the operator waits for at its start, what it says meanwhile, and when it watches anew."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.cluster.client import DEPLOYMENT, POD, VLLM_DEPLOYMENT, Kind, Unauthorized, Unavailable
from vllm_operator.cluster.connection import MissingConnectionError
from vllm_operator.cluster.mirror import Mirror
from vllm_operator.runtime.health import Readiness
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.mirroring import Mirroring
from vllm_operator.runtime.permissions import OPTIONAL, REQUIRED, Permission, watched_kinds
from vllm_operator.runtime.supervisor import REVIEWS, Parts, Supervisor

RETRY_SECONDS = 0.01


class Watches:
    """Watches that run until a test ends them."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.error: Exception | None = None

    async def run(self) -> None:
        await self.ended.wait()
        if self.error:
            raise self.error


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
        self.keys: list[tuple[str, str]] = []
        self.watched: list[tuple[Kind, ...]] = []
        self.watches: list[Watches] = []
        mirroring = Mirroring(Mirror(self.cluster), self.keys.append)
        self.metrics = Metrics()
        parts = Parts(self.cluster, self.readiness, self.metrics, mirroring, self._make, host="https://h")
        self.supervisor = Supervisor(parts, retry_seconds=RETRY_SECONDS, check_seconds=0.02)
        self.task: asyncio.Task[None] | None = None

    def _make(self, kinds: Sequence[Kind]) -> Watches:
        self.watched.append(tuple(kinds))
        self.watches.append(Watches())
        return self.watches[-1]

    def start(self) -> None:
        self.task = asyncio.create_task(self.supervisor.run())

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


async def test_all_there_is_is_listed_then_watched(world: World) -> None:
    world.cluster.put(llama())
    world.cluster.put(llama("other"))
    assert not world.readiness
    world.start()
    await world.until(lambda: world.watches)
    assert sorted(world.keys) == [("default", "llama"), ("default", "other")]
    assert world.watched == [watched_kinds(())]
    assert world.readiness


async def test_an_api_server_that_is_away_is_named_and_waited_for(world: World) -> None:
    world.cluster.fail("*", None, Unavailable("connection refused"), times=500)
    world.start()
    await world.until(lambda: "cannot be reached: connection refused" in world.readiness.missing.get("API server", ""))
    assert not world.watches
    world.cluster.heal()
    await world.until(lambda: world.watches)
    assert world.readiness


async def test_a_missing_crd_is_named_and_waited_for(world: World) -> None:
    world.cluster.absent.add(VLLM_DEPLOYMENT)
    world.start()
    await world.until(lambda: "kubectl apply -f crds/" in world.readiness.missing.get("CRD", ""))
    world.cluster.absent.clear()
    await world.until(lambda: world.watches)
    assert world.readiness


async def test_a_missing_permission_is_named_and_the_rest_is_watched(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.cluster.denied = {("watch", "pods"), ("get", "pods/log")}
    world.start()
    await world.until(lambda: world.watches)
    assert POD not in world.watched[0]
    assert DEPLOYMENT in world.watched[0]
    said = "\n".join(world.readiness.missing.values())
    assert "may not watch pods" in said
    assert "may not get pods/log, so stages, progress and causes of crashes are unknown" in said
    assert "may not watch pods" in caplog.text
    world.cluster.denied = set()
    await world.until(lambda: len(world.watches) == 2)
    assert POD in world.watched[1]
    assert world.readiness


async def test_a_permission_that_goes_is_noticed_when_something_is_refused(world: World) -> None:
    world.start()
    await world.until(lambda: world.watches)
    reviews = world.cluster.calls["create"]
    world.cluster.denied = {("patch", "services")}
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert world.cluster.calls["create"] == reviews  # nobody asks without a reason: it is a POST
    world.supervisor.recheck_access()
    await world.until(lambda: "permission patch services" in world.readiness.missing)


async def test_watches_that_end_are_started_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.start()
    await world.until(lambda: world.watches)
    world.watches[0].error = RuntimeError("kopf gave up")
    world.watches[0].ended.set()
    await world.until(lambda: len(world.watches) == 2)
    assert "'watches' failed: kopf gave up" in caplog.text
    assert world.readiness


async def test_a_crd_that_is_taken_away_is_waited_for_again(world: World) -> None:
    world.start()
    await world.until(lambda: world.watches)
    world.cluster.absent.add(VLLM_DEPLOYMENT)
    await world.until(lambda: "CRD" in world.readiness.missing)
    world.cluster.absent.clear()
    await world.until(lambda: len(world.watches) == 2)


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
    await world.until(lambda: world.watches)
    assert most == REVIEWS


def test_every_permission_says_what_does_not_work_without_it() -> None:
    assert all(permission.effect for permission in (*REQUIRED, *OPTIONAL))
    assert str(Permission("get", POD, "log")) == "get pods/log"
    assert str(Permission("list", DEPLOYMENT)) == "list deployments in API group apps"


async def test_credentials_that_are_not_accepted_are_reported_as_such_and_recovered_from(world: World) -> None:
    world.start()
    await world.until(lambda: world.watches)
    assert world.readiness
    world.cluster.fail("*", None, Unauthorized("The API server does not accept the credentials"), times=10_000)
    world.supervisor.recheck_access()
    await world.until(lambda: "does not accept the credentials" in world.readiness.missing.get("credentials", ""))
    # neither a permission nor the CRD nor the API server is missing, as far as is known
    assert set(world.readiness.missing) == {"credentials"}
    world.cluster.heal()
    await world.until(lambda: world.readiness)


async def test_at_the_start_credentials_that_are_not_accepted_are_waited_for(world: World) -> None:
    world.cluster.fail("*", None, Unauthorized("The API server does not accept the credentials"), times=10_000)
    world.start()
    await world.until(lambda: "credentials" in world.readiness.missing)
    assert not world.watches
    world.cluster.heal()
    await world.until(lambda: world.watches)
    assert world.readiness


async def test_an_api_server_that_refuses_again_and_again_is_not_asked_without_a_pause(world: World) -> None:
    world.start()
    await world.until(lambda: world.watches)
    world.cluster.fail("*", None, Unauthorized("no"), times=10_000)
    before, began = world.cluster.calls["find"], time.monotonic()
    for _ in range(2000):
        world.supervisor.recheck_access()
        await asyncio.sleep(0)
    elapsed = time.monotonic() - began
    assert world.cluster.calls["find"] - before <= 2 + elapsed / RETRY_SECONDS


class Dying:
    """A mirror whose keeping fails as nobody expects."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.runs = 0

    async def load(self, kinds: Sequence[Kind]) -> None:
        """Nothing to list."""

    async def run(self, kinds: Sequence[Kind]) -> None:
        self.runs += 1
        if not self.ends:
            await asyncio.Event().wait()
        if error := self.ends.pop(0):
            raise error


@pytest.mark.parametrize(
    "end", [MissingConnectionError("the token is gone"), ValueError("a bug"), asyncio.CancelledError(), None], ids=repr
)
async def test_a_mirror_that_ends_is_started_again_and_counted(end: Exception | None, world: World) -> None:
    mirror = Dying(end)
    parts = Parts(world.cluster, world.readiness, world.metrics, mirror, world._make, host="https://h")
    world.supervisor = Supervisor(parts, retry_seconds=RETRY_SECONDS, check_seconds=60)
    world.start()
    await world.until(lambda: mirror.runs == 2 and len(world.watches) == 2)
    assert 'vllm_operator_task_restarts_total{task="mirror"} 1.0' in world.metrics.render().decode()
