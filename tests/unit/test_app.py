"""The operator as a whole, without a cluster: when the kubelet is asked to start it again."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
from kubernetes.aio.client.configuration import Configuration

from vllm_operator.controller import app
from vllm_operator.controller.app import Operator
from vllm_operator.controller.queue import WorkQueue
from vllm_operator.controller.settings import Settings
from vllm_operator.controller.watches import Watches
from vllm_operator.kube.api_client import KubeClient

KEY = ("default", "llama")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def operator(clock: Clock) -> AsyncIterator[Operator]:
    configuration = Configuration()
    configuration.host = "https://nowhere.invalid"
    client = KubeClient(configuration)
    made = Operator(Settings(hub_endpoint="", http_host="127.0.0.1", http_port=0), client)
    made.queue = WorkQueue(clock=clock)
    yield made
    await client.close()


async def test_a_queue_that_hands_out_nothing_makes_the_operator_start_again(operator: Operator, clock: Clock) -> None:
    operator.queue.add(KEY)
    clock.now += 119
    assert operator._stuck() is None
    clock.now += 2
    assert operator._stuck() == "no key was handed out for 121 s although one is ready"


async def test_a_reconciliation_that_hangs_makes_the_operator_start_again(operator: Operator, clock: Clock) -> None:
    operator.queue.add(KEY)
    await operator.queue.get()
    clock.now += 121
    assert operator._stuck() == "a reconciliation has been going on for 121 s"


async def test_keys_that_wait_for_their_time_do_not(operator: Operator, clock: Clock) -> None:
    operator.queue.add_after(KEY, 3600)
    operator.queue.add_rate_limited(("default", "other"), at_least=3600)
    clock.now += 3599
    assert operator._stuck() is None


async def test_logs_are_closed_when_no_reconciliation_can_follow_another_one(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    started, order = asyncio.Event(), list[str]()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # one that is under way takes its time to end
            order.append("workers")

    async def close() -> None:
        order.append("followers")

    monkeypatch.setattr(operator.workers, "run", work)
    monkeypatch.setattr(operator.followers, "close", close)
    operator.updater.loaded.set()
    operator._start("workers", operator._work())
    await started.wait()
    await operator._end_parts()
    assert order == ["workers", "followers"]


async def test_a_signal_before_the_watches_begin_ends_the_operator(operator: Operator) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(operator.run(stop))
    await asyncio.sleep(0)
    stop.set()
    assert await running == 0


async def test_watches_that_never_end_keep_a_stopped_operator_only_for_seconds(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Watches, stop: asyncio.Event) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Watches, "run", run)
    monkeypatch.setattr(app, "KOPF_SECONDS", 0.01)
    monkeypatch.setattr(operator, "_prepare", AsyncMock(return_value=()))
    stop = asyncio.Event()
    running = asyncio.create_task(operator.run(stop))
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(running, 10) == 1
