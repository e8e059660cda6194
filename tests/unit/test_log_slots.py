"""How many logs are open at the same time, and whose turn is next."""

import asyncio
from contextlib import AsyncExitStack

from vllm_operator.controller.log_share import Slots


class Readers:
    """Logs that want slots, by name."""

    def __init__(self, number: int) -> None:
        self.slots = Slots(number)
        self.open: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        """Start logs, in this order. The namespace is the first part of the name."""
        for name in names:
            self._leave[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._read(name))
        await asyncio.sleep(0)

    async def _read(self, name: str) -> None:
        async with self.slots.hold(name.partition("/")[0]):
            self.open.append(name)
            await self._leave[name].wait()
            self.open.remove(name)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await asyncio.sleep(0)


async def test_no_more_logs_are_open_than_allowed() -> None:
    readers = Readers(2)
    await readers.start("a/1", "a/2", "a/3")
    assert (readers.open, readers.slots.taken, readers.slots.waiting) == (["a/1", "a/2"], 2, 1)
    await readers.leave("a/1")
    assert (readers.open, readers.slots.taken, readers.slots.waiting) == (["a/2", "a/3"], 2, 0)


async def test_the_next_log_is_of_the_namespace_with_the_fewest_open_ones() -> None:
    readers = Readers(3)
    await readers.start("noisy/1", "noisy/2", "noisy/3", *(f"noisy/{number}" for number in range(4, 200)), "quiet/1")
    await readers.leave("noisy/1")
    assert "quiet/1" in readers.open
    await readers.leave("noisy/2")
    assert "noisy/4" in readers.open


async def test_no_more_holders_leave_than_logs_wait() -> None:
    readers = Readers(2)
    await readers.start("a/1", "a/2")
    assert not readers.slots.should_leave()
    await readers.start("a/3")
    assert [readers.slots.should_leave() for _ in range(3)] == [True, False, False]
    await readers.leave("a/1")
    await readers.start("a/4")
    assert readers.slots.should_leave()


async def test_a_log_that_no_longer_waits_gets_no_slot() -> None:
    readers = Readers(1)
    await readers.start("a/1", "a/2", "a/3")
    await readers.cancel("a/2")
    await readers.leave("a/1")
    assert (readers.open, readers.slots.waiting) == (["a/3"], 0)


async def test_a_slot_that_was_given_to_a_log_that_is_cancelled_is_given_to_the_next() -> None:
    slots = Slots(1)
    async with AsyncExitStack() as stack, AsyncExitStack() as other:
        await stack.enter_async_context(slots.hold("a"))
        waiting = asyncio.create_task(other.enter_async_context(slots.hold("a")))
        await asyncio.sleep(0)
        await stack.aclose()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert slots.taken == 0


async def test_logs_that_are_all_cancelled_at_once_end_without_an_error() -> None:
    slots = Slots(1)

    async def read() -> None:
        async with slots.hold("a"):
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(read()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 3
    assert (slots.taken, slots.waiting) == (0, 0)
