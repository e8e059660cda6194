"""Keep the mirror up to date: put watch events into it, and list everything again from time to time.

A watch of kopf that was interrupted lists the objects again, and says nothing about those that were deleted meanwhile. Such a list shows
in events without a type. Then the mirror lists as well, and compares.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from vllm_operator.cluster.client import ClusterError, Key, Kind, Manifest
from vllm_operator.cluster.mirror import Mirror

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Delay between the first event of a list and the list of the mirror, so that most lists of the watches are complete by then."""


class Mirroring:
    """Puts watch events into the mirror, and adds the keys of changed objects to the queue."""

    def __init__(
        self,
        mirror: Mirror,
        add: Callable[[Key], None],
        *,
        namespaces: Sequence[str] = (),
        seconds: float = 600.0,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        """`add` is called with each key to reconcile. Everything is listed again every `seconds`."""
        self._mirror = mirror
        self._add = add
        self._namespaces = tuple(namespaces)
        self._seconds = seconds
        self._settle = settle_seconds
        self._recheck = asyncio.Event()

    async def load(self, kinds: Sequence[Kind]) -> None:
        """List all objects of these kinds, and add the keys of all VLLMDeployments. Raises ClusterError."""
        await self._mirror.load(kinds, self._namespaces, changed=lambda key: None)
        await self.add_all()

    async def add_all(self) -> None:
        """Add the keys of all VLLMDeployments. Raises ClusterError."""
        for key in await self._mirror.list_keys(self._namespaces):
            self._add(key)

    def notice(self, kind: Kind, type: str | None, manifest: Manifest) -> None:
        """Take a watch event. The type is ADDED, MODIFIED or DELETED, or None for an object of a list."""
        if type is None:
            self._recheck.set()
        for key in self._mirror.note(kind, manifest, deleted=type == "DELETED"):
            self._add(key)

    async def run(self, kinds: Sequence[Kind]) -> None:
        """Keep the mirror up to date until cancelled. Then it is emptied, because no watch event corrects it any more."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._seconds):
                        await self._recheck.wait()
                except TimeoutError:
                    pass
                await asyncio.sleep(self._settle)
                self._recheck.clear()
                await self._compare(kinds)
        finally:
            self._mirror.drop()

    async def _compare(self, kinds: Sequence[Kind]) -> None:
        try:
            await self._mirror.load(kinds, self._namespaces, changed=self._add)
        except ClusterError as error:
            log.debug("cannot list all objects again: %s", error)
            self._recheck.set()
