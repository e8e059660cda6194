"""Keep the mirror up to date: put watch events into it, and list everything again from time to time.

A watch that lost its place begins anew, and says nothing about what happened meanwhile. Then the mirror lists that kind again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from vllm_operator.cluster import client
from vllm_operator.cluster.client import NAMESPACE, ClusterError, Key, Kind, Manifest
from vllm_operator.cluster.mirror import Mirror
from vllm_operator.cluster.shard import ServedNamespaces
from vllm_operator.pods import reading

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""Delay between the first watch that lost its place and the list of the mirror. After an outage, several lose theirs together."""
RETRY_SECONDS = 2.0
"""Delay before a list that failed is tried again."""
_CREATING = ("", "ContainerCreating", "PodInitializing")
"""Reasons why a container waits that are part of each start; empty if it does not wait."""


class Mirroring:
    """Puts watch events into the mirror, and adds the keys of changed objects to the queue."""

    def __init__(
        self,
        mirror: Mirror,
        add: Callable[[Key], None],
        *,
        namespaces: Sequence[str] = (),
        shard: ServedNamespaces | None = None,
        seconds: float = 600.0,
        settle_seconds: float = SETTLE_SECONDS,
        add_soon: Callable[[Key], None] | None = None,
        add_unchanged: Callable[[Key], None] | None = None,
    ) -> None:
        """Everything is listed again every `seconds`.

        `add` is called with each key to reconcile. `add_soon` is called instead after a watch event that reports only progress, and
        `add_unchanged` with the keys of objects of a list whose spec has not changed since their last status. `shard` is None for all
        namespaces.
        """
        self._add_soon = add_soon or add
        self._add_unchanged = add_unchanged or add
        self._mirror = mirror
        mirror.changed = add
        self._add = add
        self._namespaces = tuple(namespaces)
        self._seconds = seconds
        self._settle = settle_seconds
        self._shard = shard
        self._moved: set[str] = set()
        self._outdated: set[Kind] = set()
        self._recheck = asyncio.Event()

    async def load(self, kinds: Sequence[Kind]) -> None:
        """List all objects of these kinds, and add the keys of all VLLMDeployments. Raises ClusterError."""
        if self._shard is not None:
            await self._shard.load(self._mirror)
        await self._mirror.load(kinds, self._namespaces, changed=lambda key: None)
        await self.add_all()

    async def add_all(self) -> None:
        """Add the keys of all VLLMDeployments. Raises ClusterError."""
        for key in await self._mirror.list_keys(self._namespaces):
            add = self._add if self._mirror.has_unseen_spec(key) else self._add_unchanged
            add(key)

    def notice(self, kind: Kind, type: str, manifest: Manifest) -> None:
        """Take a watch event. The type is ADDED, MODIFIED or DELETED."""
        if kind == NAMESPACE:
            if self._shard is not None and self._shard.note(manifest, deleted=type == "DELETED"):
                self._moved.add(manifest["metadata"]["name"])
                self._recheck.set()
            return
        add = self._add_soon if is_progress(kind, manifest, deleted=type == "DELETED") else self._add
        for key in self._mirror.note(kind, manifest, deleted=type == "DELETED"):
            add(key)

    def versions(self) -> dict[tuple[Kind, str | None], str]:
        """The resourceVersion of the last list of each kind, by kind and namespace (None: all)."""
        versions = self._mirror.versions()
        return versions if self._shard is None else {**versions, (NAMESPACE, None): self._shard.version}

    def recheck(self, kind: Kind) -> None:
        """List the objects of a kind again, because a watch may have missed events."""
        self._outdated.add(kind)
        self._recheck.set()

    async def run(self, kinds: Sequence[Kind]) -> None:
        """Keep the mirror up to date until cancelled. Then it is emptied, because no watch event corrects it any more."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._seconds):
                        await self._recheck.wait()
                except TimeoutError:
                    self._outdated.update((NAMESPACE, *kinds))
                await asyncio.sleep(self._settle)
                self._recheck.clear()
                await self._compare(kinds)
        finally:
            self._mirror.drop()

    async def _compare(self, kinds: Sequence[Kind]) -> None:
        outdated, moved = [kind for kind in kinds if kind in self._outdated], self._moved
        has_namespaces = self._shard is not None and NAMESPACE in self._outdated
        self._outdated, self._moved = set(), set()
        try:
            if self._shard is not None and has_namespaces:
                moved |= await self._shard.load(self._mirror)
            for name in sorted(moved):
                log.info("the namespace %s has %s the shard", name, "joined" if self._shard and self._shard.serves(name) else "left")
            if moved:
                await self._mirror.refresh(kinds, sorted(moved), changed=self._add)
            await self._mirror.refresh(outdated, self._namespaces, changed=self._add)
        except ClusterError as error:
            log.debug("cannot list all objects again: %s", error)
            self._moved |= moved
            self._outdated.update(outdated, (NAMESPACE,) if has_namespaces else ())
            self._recheck.set()
            await asyncio.sleep(min(RETRY_SECONDS, 20 * self._settle))


def is_progress(kind: Kind, manifest: Manifest, *, deleted: bool = False) -> bool:
    """Whether an object that was created, changed or deleted shows a step of what is under way: several steps can be handled together.

    It does not if somebody may wait for the reaction: a Pod that is Ready or has failed, and a spec that was changed. A Pod that is being
    deleted usually makes room for another one.
    """
    match kind:
        case client.POD:
            return (
                deleted
                or bool(reading.text(manifest, "metadata", "deletionTimestamp"))
                or not (_is_ready(manifest) or _has_ended(manifest))
            )
        case _ if deleted:
            return False
        case client.DEPLOYMENT:
            seen = reading.integer(manifest, "status", "observedGeneration")
            return seen is None or reading.integer(manifest, "metadata", "generation") == seen
        case client.CLAIM:
            return not reading.text(manifest, "metadata", "deletionTimestamp")
        case _:
            return False


def _is_ready(pod: Manifest) -> bool:
    return any((it.get("type"), it.get("status")) == ("Ready", "True") for it in reading.objects(pod, "status", "conditions"))


def _has_ended(pod: Manifest) -> bool:
    """Whether a container of a Pod has ended, or cannot start."""
    states = [
        reading.mapping(container, "state")
        for field in ("initContainerStatuses", "containerStatuses")
        for container in reading.objects(pod, "status", field)
    ]
    failed = any(reading.integer(state, "terminated", "exitCode") for state in states)
    return failed or any(reading.text(state, "waiting", "reason") not in _CREATING for state in states)
