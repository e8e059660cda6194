"""What is garbage only for the cyclic collector goes, and a quiet process does nothing for it."""

import asyncio
import gc
import weakref

import pytest

from vllm_operator.runtime import memory


class Cycle:
    def __init__(self) -> None:
        self.me = self


async def test_garbage_that_keeps_itself_alive_goes() -> None:
    running = asyncio.create_task(memory.return_unused(seconds=0.01))
    gc.disable()
    try:
        kept = weakref.ref(Cycle())
        async with asyncio.timeout(5):
            while kept() is not None:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_quiet_process_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "get_stats", lambda: [{"collections": 7}])
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    running = asyncio.create_task(memory.return_unused(seconds=0.001))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert collected == [1]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert memory._glibc("malloc_trim") is None
