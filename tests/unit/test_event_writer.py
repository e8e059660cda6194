"""Events are written before the status, but Normal ones wait while other objects do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.cluster.client import EVENT, VLLM_DEPLOYMENT, Forbidden, Unavailable
from vllm_operator.runtime import event_writer
from vllm_operator.runtime.event_writer import EventWriter
from vllm_operator.status.events import NORMAL, WARNING, EventDraft

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
SERVING = EventDraft(type=NORMAL, reason="Serving", message="The engine serves.", key="serving")
CRASHED = EventDraft(type=WARNING, reason="Crashed", message="The engine crashed.", key="crashed")


class Load:
    """Other objects that wait, or not."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.object = self.cluster.put(llama())
        self.counted: list[tuple[str, str]] = []
        self.calm = asyncio.Event()
        self.writer = EventWriter(
            self.cluster,
            count=lambda verb, kind: self.counted.append((verb, kind)),
            busy=lambda: not self.calm.is_set(),
            calm=self._until_calm,
        )

    async def _until_calm(self) -> None:
        await self.calm.wait()

    def reasons(self) -> list[str]:
        return sorted(event["reason"] for event in self.cluster.all(EVENT))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, *reasons: str) -> None:
        async with asyncio.timeout(10):
            while self.reasons() != sorted(reasons):  # noqa: ASYNC110 - the fake cluster tells nobody
                await asyncio.sleep(0)


async def test_without_load_each_event_is_written_at_once() -> None:
    load = Load()
    load.calm.set()
    await load.writer.write(load.object, [SERVING, CRASHED], NOW)
    assert load.reasons() == ["Crashed", "Serving"]
    assert load.counted == [("create", "Event")] * 2


async def test_normal_events_wait_until_no_object_waits_and_warnings_do_not() -> None:
    load = Load()
    async with load.running():
        await load.writer.write(load.object, [SERVING, CRASHED], NOW)
        await asyncio.sleep(0)
        assert load.reasons() == ["Crashed"]
        load.calm.set()
        await load.until("Crashed", "Serving")
    event = next(event for event in load.cluster.all(EVENT) if event["reason"] == "Serving")
    metadata = load.object["metadata"]
    assert event["involvedObject"]["uid"] == metadata["uid"]
    assert event["involvedObject"]["kind"] == VLLM_DEPLOYMENT.kind
    assert event["firstTimestamp"] == "2026-11-23T12:00:00Z"


async def test_events_wait_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "MAX_WAIT_SECONDS", 0.01)
    load = Load()
    async with load.running():
        await load.writer.write(load.object, [SERVING], NOW)
        await load.until("Serving")


async def test_only_a_limited_number_of_events_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "MAX_WAITING", 0)
    load = Load()
    await load.writer.write(load.object, [SERVING], NOW)
    assert load.reasons() == ["Serving"]


async def test_an_event_that_waits_survives_an_outage_of_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_SECONDS", 0.0)
    load = Load()
    load.cluster.fail("create", EVENT, Unavailable("away"), times=2)
    async with load.running():
        await load.writer.write(load.object, [SERVING], NOW)
        load.calm.set()
        await load.until("Serving")


async def test_an_event_that_is_refused_does_not_hold_up_the_next_one() -> None:
    load = Load()
    load.cluster.fail("create", EVENT, Forbidden("no", verb="create", resource="events"), times=1)
    async with load.running():
        await load.writer.write(
            load.object, [SERVING, EventDraft(type=NORMAL, reason="Planned", message="A new plan.", key="planned")], NOW
        )
        load.calm.set()
        await load.until("Planned")


async def test_without_a_way_to_wait_nothing_waits() -> None:
    load = Load()
    writer = EventWriter(load.cluster, count=lambda verb, kind: None, busy=lambda: True)
    await writer.write(load.object, [SERVING], NOW)
    assert load.reasons() == ["Serving"]
