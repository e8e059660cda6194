"""Watches on the cluster in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from vllm_operator.cluster.client import Kind

Identity = tuple[str, str | None, str]
"""Kind, namespace and name of an object."""


@dataclass(slots=True, eq=False)
class FakeWatch:
    """A watch on one object, or on all of a kind."""

    kind: Kind
    namespace: str | None
    name: str | None
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def sees(self, identity: Identity) -> bool:
        """Whether an event of this object belongs to the watch."""
        kind, namespace, name = identity
        is_there = self.namespace == namespace if self.name is not None else self.namespace in (None, namespace)
        return kind == self.kind.kind and self.name in (None, name) and is_there

    async def events(self, seconds: float) -> AsyncIterator[None]:
        """Yield after each change, for as long as the watch lasts."""
        until = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(until):
                    await self.happened.wait()
                self.happened.clear()
                yield
