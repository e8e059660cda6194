"""Followers of logs on a cluster in memory, and what they have told."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.logs import PlainParser
from vllm_operator.controller import log_follower
from vllm_operator.controller.log_followers import Followers
from vllm_operator.controller.log_share import LogShare, Slots
from vllm_operator.logs.state import StartupState

KEY = ("default", "llama")
FOREVER = 60.0


class World:
    """A fake cluster with followers, and what they have told."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *,
        streams: int = 10,
        clock: Callable[[], float] = time.monotonic,
        share: LogShare | None = None,
        **constants: Any,
    ) -> None:
        """`constants` are those of `log_follower` that are not its own here."""
        self.cluster = FakeCluster()
        self.parsers: list[PlainParser] = []
        self.changes: list[tuple[str, str]] = []
        self.skipped: list[tuple[str, float]] = []
        self._changed = asyncio.Event()
        for name, value in {"RETRY_SECONDS": (0.01,), "INTERVAL_SECONDS": 1000.0, **constants}.items():
            patch.setattr(log_follower, name, value)
        self.followers = Followers(
            self.cluster,
            make_parser=self._make,
            changed=self._note,
            slots=Slots(streams),
            skipped=lambda namespace, seconds: self.skipped.append((namespace, seconds)),
            share=share or LogShare(),
            clock=clock,
        )

    def _make(self) -> PlainParser:
        self.parsers.append(PlainParser())
        return self.parsers[-1]

    def _note(self, key: tuple[str, str]) -> None:
        self.changes.append(key)
        self._changed.set()

    def show(self, manifest: dict[str, Any], *more: dict[str, Any]) -> None:
        pods = (manifest, *more)
        for item in pods:
            self.cluster.put(item)
        self.followers.sync(KEY, pods)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def texts(self, parser: int = 0) -> list[str]:
        return self.parsers[parser].texts if len(self.parsers) > parser else []

    def state(self, run: int = 0, name: str = "p") -> StartupState | None:
        return self.followers.states(KEY).get((f"uid-of-{name}", run))
