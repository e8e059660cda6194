"""The work queue: client-go's contract, on a clock of the test's own."""

import asyncio
from collections.abc import Callable

import pytest

from vllm_operator.controller.queue import Priority, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(debounce_seconds=0, clock=clock, jitter=lambda: 1.0)


async def test_a_key_added_many_times_is_handed_out_once(queue: WorkQueue[str]) -> None:
    for _ in range(100):
        queue.add("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    assert len(queue) == 0


async def test_keys_come_in_the_order_in_which_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "abcab":
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]


async def test_a_key_that_is_added_while_it_is_processed_comes_back_after_done_and_not_before(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not second.done()
    queue.done("a")
    assert await second == "a"


async def test_no_two_workers_hold_the_same_key(queue: WorkQueue[str]) -> None:
    held: set[str] = set()
    handled: list[str] = []
    finished = asyncio.Event()

    async def work() -> None:
        while True:
            key = await queue.get()
            assert key not in held
            held.add(key)
            await asyncio.sleep(0)
            if len(handled) < 200:
                queue.add(key)
                queue.add(f"{len(handled) % 5}")
            handled.append(key)
            held.remove(key)
            queue.done(key)
            if len(handled) >= 200:
                finished.set()

    queue.add("0")
    workers = [asyncio.create_task(work()) for _ in range(4)]
    await finished.wait()
    for worker in workers:
        worker.cancel()
    assert not [each for each in await asyncio.gather(*workers, return_exceptions=True) if isinstance(each, AssertionError)]
    assert len(handled) >= 200


async def test_a_delayed_key_comes_when_it_is_due(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add_after("b", 5)
    queue.add("c")
    assert await queue.get() == "c"
    assert len(queue) == 0
    clock.now += 6
    assert await queue.get() == "b"
    clock.now += 5
    assert await queue.get() == "a"


async def test_of_several_delays_the_earliest_counts(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 2)
    queue.add_after("a", 20)
    clock.now += 3
    assert await queue.get() == "a"
    queue.done("a")
    clock.now += 60
    queue.add("end")
    assert await queue.get() == "end"
    assert len(queue) == 0


async def test_a_key_that_is_added_need_not_be_waited_for(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    clock.now += 11
    queue.add("end")
    assert await queue.get() == "end"


async def test_waits_double_with_each_failure_up_to_the_limit(queue: WorkQueue[str], clock: Clock) -> None:
    waits = []
    for _ in range(9):
        waits.append(queue.add_rate_limited("a"))
        clock.now += 100
        assert await queue.get() == "a"
        queue.done("a")
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


async def test_a_success_makes_the_next_failure_the_first_again(queue: WorkQueue[str]) -> None:
    queue.add_rate_limited("a")
    queue.add_rate_limited("a")
    assert queue.failures("a") == 2
    queue.forget("a")
    assert queue.add_rate_limited("a") == 0.25


async def test_a_failure_may_ask_for_a_longer_or_shorter_wait(queue: WorkQueue[str]) -> None:
    assert queue.add_rate_limited("a", at_least=5.0) == 5.0
    for _ in range(20):
        queue.add_rate_limited("b")
    assert queue.add_rate_limited("b", at_most=3.0) == 3.0


async def test_waits_differ_by_chance(clock: Clock) -> None:
    queue: WorkQueue[int] = WorkQueue(clock=clock)
    waits = {queue.add_rate_limited(key) for key in range(50)}
    assert len(waits) > 10
    assert all(0.2 <= wait <= 0.3 for wait in waits)


async def test_a_key_that_failed_a_thousand_times_still_has_a_finite_wait(queue: WorkQueue[str]) -> None:
    assert [queue.add_rate_limited("a") for _ in range(1200)][-1] == 15.0


async def test_a_waiting_worker_is_woken_by_a_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await waiting == "a"


async def test_a_delay_in_real_time_wakes_a_waiting_worker() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after("a", 0.01)
    assert await asyncio.wait_for(waiting, 5) == "a"


async def test_the_age_of_the_queue_is_that_of_its_oldest_key(queue: WorkQueue[str], clock: Clock) -> None:
    assert queue.oldest_seconds() == 0.0
    queue.add("a")
    clock.now += 3
    queue.add("b")
    clock.now += 1
    assert queue.oldest_seconds() == 4.0
    await queue.get()
    clock.now += 2
    assert (queue.oldest_seconds(), queue.longest_processing_seconds()) == (3.0, 2.0)
    queue.done("a")
    assert queue.longest_processing_seconds() == 0.0


async def test_changes_right_after_a_reconciliation_are_handled_together(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(debounce_seconds=0.2, clock=clock)
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.done("a")
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    assert len(queue) == 0
    clock.now += 0.3
    assert await queue.get() == "a"
    queue.done("a")
    clock.now += 0.3
    assert len(queue) == 0
    queue.add("a")
    assert len(queue) == 1


async def test_a_rest_does_not_put_off_a_key_that_is_due_later(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(debounce_seconds=0.2, clock=clock)
    queue.add("a")
    await queue.get()
    queue.add_after("a", 600)
    queue.done("a")
    queue.add("a")
    clock.now += 0.2
    assert await queue.get() == "a"


async def test_one_key_wakes_one_worker_and_a_cancelled_one_passes_its_turn_on(queue: WorkQueue[str]) -> None:
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    async with asyncio.timeout(5):
        assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_delayed_key_wakes_a_worker_that_waits_already() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after("later", 60)
    queue.add_after("soon", 0.01)
    async with asyncio.timeout(5):
        assert await waiting == "soon"


async def test_a_key_that_is_never_handed_out_stalls_the_queue(queue: WorkQueue[str], clock: Clock) -> None:
    assert queue.stalled_seconds() == 0.0
    queue.add("a")
    clock.now += 121
    assert queue.stalled_seconds() == 121.0
    await queue.get()
    assert queue.stalled_seconds() == 0.0


async def test_keys_that_are_handed_out_one_by_one_stall_nothing(queue: WorkQueue[str], clock: Clock) -> None:
    for key in "abcdef":
        queue.add(key)
    for _ in range(3):
        clock.now += 60
        queue.done(await queue.get())
    assert queue.stalled_seconds() == 0.0
    clock.now += 60
    assert queue.stalled_seconds() == 60.0


@pytest.mark.parametrize(
    "wait",
    [
        lambda queue: queue.add_after("a", 1000),
        lambda queue: queue.add_rate_limited("a", at_least=1000),
    ],
    ids=["a time", "a retry"],
)
async def test_a_key_that_waits_for_its_time_stalls_nothing_until_its_time_has_come(
    queue: WorkQueue[str], clock: Clock, wait: Callable[[WorkQueue[str]], object]
) -> None:
    wait(queue)
    clock.now += 999
    assert queue.stalled_seconds() == 0.0
    clock.now += 1 + 121
    assert queue.stalled_seconds() == 121.0


async def test_a_key_that_was_added_while_it_was_worked_on_is_ready_only_afterwards(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a")
    clock.now += 200
    assert queue.stalled_seconds() == 0.0
    queue.done("a")
    clock.now += 5
    assert queue.stalled_seconds() == 5.0


async def test_an_edit_overtakes_the_keys_of_a_resync(queue: WorkQueue[str]) -> None:
    for number in range(500):
        queue.add(f"resync-{number}", Priority.RESYNC)
    queue.add("edited")
    assert await queue.get() == "edited"


async def test_an_edit_overtakes_the_events_of_other_objects_and_these_overtake_a_resync(queue: WorkQueue[str]) -> None:
    queue.add("resync", Priority.RESYNC)
    queue.add("Pod is Ready", Priority.EVENT)
    queue.add("edited")
    assert [await queue.get() for _ in range(3)] == ["edited", "Pod is Ready", "resync"]


async def test_a_key_of_a_resync_gets_the_priority_of_a_change_when_its_object_is_edited(queue: WorkQueue[str]) -> None:
    for key in "abc":
        queue.add(key, Priority.RESYNC)
    queue.add("c")
    queue.add("c", Priority.RESYNC)
    assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]


async def test_the_priority_outlives_a_delay(clock: Clock, queue: WorkQueue[str]) -> None:
    queue.add_after("resync", 1, Priority.RESYNC)
    queue.add_after("retry", 1)
    queue.add_after("resync and edit", 2, Priority.RESYNC)
    queue.add_after("resync and edit", 1)
    clock.now += 1
    assert [await queue.get() for _ in range(3)] == ["retry", "resync and edit", "resync"]


async def test_the_priority_outlives_the_debounce(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(debounce_seconds=0.2, clock=clock)
    for key in ("deferred", "edited"):
        queue.add(key)
        assert await queue.get() == key
    queue.add("deferred", Priority.RESYNC)
    queue.add("edited")
    queue.done("deferred")
    queue.done("edited")
    clock.now += 1
    assert [await queue.get() for _ in range(2)] == ["edited", "deferred"]


async def test_without_changes_the_order_is_that_of_adding(queue: WorkQueue[str]) -> None:
    for key in "abcd":
        queue.add(key, Priority.RESYNC)
    assert [await queue.get() for _ in range(4)] == list("abcd")


async def test_a_time_that_a_reconciliation_asked_for_is_not_debounced(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(debounce_seconds=0.5, clock=clock)
    queue.add("a")
    await queue.get()
    queue.add_after("a", 0.1)
    queue.done("a")
    clock.now += 0.1
    assert await queue.get() == "a"
