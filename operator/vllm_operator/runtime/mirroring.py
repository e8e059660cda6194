"""Keeping the mirror true: what the watches tell goes into it, and from time to time everything is listed anew.

A watch that has to begin again lists what there is, but says nothing of what has gone meanwhile. It can be told by
its events, which are those of a list; then we list as well, and compare.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from vllm_operator.cluster.client import ClusterError, Key, Kind, Manifest
from vllm_operator.cluster.mirror import Mirror

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""A list of the watches is answered by one of ours after this: time enough for most lists to be over."""


class Mirroring:
    """Takes what the watches tell, and adds the keys of what has changed."""

    def __init__(
        self,
        mirror: Mirror,
        add: Callable[[Key], None],
        *,
        namespaces: Sequence[str] = (),
        seconds: float = 600.0,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        """`add` is called with each key to look at; everything is listed anew every `seconds`."""
        self._mirror = mirror
        self._add = add
        self._namespaces = tuple(namespaces)
        self._seconds = seconds
        self._settle = settle_seconds
        self._recheck = asyncio.Event()

    async def load(self, kinds: Sequence[Kind]) -> None:
        """List all objects of these kinds, and add all keys. Raises ClusterError."""
        await self._mirror.load(kinds, self._namespaces, changed=lambda key: None)
        await self.add_all()

    async def add_all(self) -> None:
        """Add the keys of all VLLMDeployments. Raises ClusterError."""
        for key in await self._mirror.list_keys(self._namespaces):
            self._add(key)

    def notice(self, kind: Kind, type: str | None, manifest: Manifest) -> None:
        """Take an event of a watch: ADDED, MODIFIED, DELETED, or None where it comes from a list."""
        if type is None:
            self._recheck.set()
        for key in self._mirror.note(kind, manifest, deleted=type == "DELETED"):
            self._add(key)

    async def run(self, kinds: Sequence[Kind]) -> None:
        """Keep the mirror true until cancelled: then nothing tells of changes any more, and it is not asked."""
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
            log.debug("not all could be listed anew: %s", error)
            self._recheck.set()
