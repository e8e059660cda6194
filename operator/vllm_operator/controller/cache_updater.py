"""Keep the object cache up to date: apply watch events, and list a kind again when a watch begins and at intervals.

kopf lists a kind before it watches it, at the start and whenever a watch has lost its place. kopf does not report objects that were deleted
in between. Therefore the cache lists the kind right after kopf has: the events that follow in the watch are later than both lists.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from vllm_operator.api import reading
from vllm_operator.controller.object_cache import ObjectCache
from vllm_operator.kube.client import CLUSTER_PRESET, PRESET, VLLM_DEPLOYMENT, ClusterError, Key, Kind, Manifest

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""Delay between the start of a watch and the list. After an outage, several watches start together."""
RETRY_SECONDS = 2.0
"""Delay before a failed list is retried."""


class CacheUpdater:
    """Puts watch events into the cache, and adds the keys of changed objects to the queue."""

    def __init__(
        self,
        cache: ObjectCache,
        *,
        changed: Callable[[Key], None],
        unchanged: Callable[[Key], None],
        users_of: Callable[[Kind, Key], Iterable[Key]],
        namespaces: Sequence[str] = (),
        seconds: float = 600.0,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        """Initialize without reading.

        Args:
            cache: The cache.
            changed: Called with the key of each VLLMDeployment that has changed itself or in its children or preset.
            unchanged: Called by `add_all` with the keys of VLLMDeployments whose spec has not changed since their last status.
            users_of: Returns the VLLMDeployments that name a preset.
            namespaces: The namespaces to serve; all if empty.
            seconds: Interval between lists of all kinds.
            settle_seconds: Delay between the start of a watch and the list.
        """
        self._cache = cache
        self._changed = changed
        self._unchanged = unchanged
        self._users_of = users_of
        self._namespaces = tuple(namespaces)
        self._seconds = seconds
        self._settle = settle_seconds
        self._outdated: set[Kind] = set()
        self._recheck = asyncio.Event()
        self.loaded = asyncio.Event()
        """Set when all kinds have been listed once."""

    def notice(self, kind: Kind, manifest: Manifest, *, deleted: bool) -> None:
        """Handle a watch event."""
        for key in self._cache.note(kind, manifest, deleted=deleted):
            self._add(kind, key)

    def recheck(self, kind: Kind) -> None:
        """List the objects of a kind when its watch begins, because events may have been missed."""
        self._outdated.add(kind)
        self._recheck.set()

    async def add_all(self) -> None:
        """Add the keys of all VLLMDeployments. Raises ClusterError."""
        for key in await self._cache.list_keys(self._namespaces):
            known = await self._cache.get(VLLM_DEPLOYMENT, key[1], key[0]) if self._cache.is_complete(VLLM_DEPLOYMENT) else None
            (self._unchanged if known is not None and _is_reported(known) else self._changed)(key)

    async def run(self, kinds: Sequence[Kind]) -> None:
        """Keep these kinds up to date in the cache until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._recheck.wait()
            except TimeoutError:
                self._outdated.update(kinds)
            await asyncio.sleep(self._settle)
            self._recheck.clear()
            outdated, self._outdated = self._outdated, set()
            try:
                await self._list(kinds, outdated)
            except ClusterError as error:
                log.debug("cannot list objects: %s", error)
                self._outdated |= outdated
                self._recheck.set()
                await asyncio.sleep(min(RETRY_SECONDS, 20 * self._settle))

    async def _list(self, kinds: Sequence[Kind], outdated: Collection[Kind]) -> None:
        for kind in [kind for kind in kinds if kind in outdated]:

            def add(key: Key, kind: Kind = kind) -> None:
                if self.loaded.is_set():
                    self._add(kind, key)

            await self._cache.refresh([kind], self._namespaces, changed=add)
        if not self.loaded.is_set() and all(map(self._cache.is_complete, kinds)):
            await self.add_all()
            self.loaded.set()

    def _add(self, kind: Kind, key: Key) -> None:
        for affected in self._users_of(kind, key) if kind in (PRESET, CLUSTER_PRESET) else (key,):
            self._changed(affected)


def _is_reported(resource: Manifest) -> bool:
    """Return whether the status of a VLLMDeployment describes its current spec."""
    generation = reading.integer(resource, "metadata", "generation")
    return generation == reading.integer(resource, "status", "observedGeneration")
