"""Keep the mirror up to date: put watch events into it, and list everything again from time to time.

A watch that lost its place begins anew, and says nothing about what happened meanwhile. Then the mirror lists that kind again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

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


class Urgency(Enum):
    """How soon a watch event is to be handled.

    NOW: somebody may wait for it: a spec that was changed, a Pod that is Ready or has failed.
    SOON: it begins the next part of a start: a container runs, so that there is a log, or a PersistentVolumeClaim is bound.
    LATER: a step before that, or of a Pod that terminates. Such steps follow each other within seconds, and can be handled together.
    """

    NOW = "now"
    SOON = "soon"
    LATER = "later"


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
        add_later: Callable[[Key], None] | None = None,
        add_unchanged: Callable[[Key], None] | None = None,
    ) -> None:
        """Everything is listed again every `seconds`.

        `add` is called with each key to reconcile. `add_soon` and `add_later` are called instead after a watch event of this `Urgency`,
        and `add_unchanged` with the keys of objects of a list whose spec has not changed since their last status. `shard` is None for
        all namespaces.
        """
        self._add_by_urgency = {Urgency.NOW: add, Urgency.SOON: add_soon or add, Urgency.LATER: add_later or add_soon or add}
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
        add = self._add_by_urgency[urgency_of(kind, manifest, deleted=type == "DELETED")]
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


def urgency_of(kind: Kind, manifest: Manifest, *, deleted: bool = False) -> Urgency:
    """How soon to handle that an object was created, changed or deleted."""
    match kind:
        case client.POD:
            return _urgency_of_pod(manifest, deleted=deleted)
        case _ if deleted:
            return Urgency.NOW
        case client.DEPLOYMENT:
            return _urgency_of_deployment(manifest)
        case client.CLAIM:
            return Urgency.NOW if reading.text(manifest, "metadata", "deletionTimestamp") else Urgency.SOON
        case _:
            return Urgency.NOW


def _urgency_of_pod(pod: Manifest, *, deleted: bool) -> Urgency:
    if deleted or reading.text(pod, "metadata", "deletionTimestamp"):
        return Urgency.LATER  # usually it makes room for another one
    if _is_ready(pod) or _has_failed(pod):
        return Urgency.NOW
    has_log = any({"running", "terminated"} & state.keys() for state in _container_states(pod))
    return Urgency.SOON if has_log else Urgency.LATER


def _urgency_of_deployment(deployment: Manifest) -> Urgency:
    """A Deployment whose spec was changed is repaired now. What it counts of its Pods is read once the rollout is complete."""
    generation = reading.integer(deployment, "metadata", "generation")
    wanted = reading.integer(deployment, "spec", "replicas")
    counts = [reading.integer(deployment, "status", field) or 0 for field in ("replicas", "updatedReplicas")]
    if (seen := reading.integer(deployment, "status", "observedGeneration")) is not None and seen != generation:
        return Urgency.NOW
    return Urgency.SOON if seen is not None and counts == [wanted, wanted] else Urgency.LATER


def _is_ready(pod: Manifest) -> bool:
    return any((it.get("type"), it.get("status")) == ("Ready", "True") for it in reading.objects(pod, "status", "conditions"))


def _has_failed(pod: Manifest) -> bool:
    """Whether a container of a Pod has failed, or cannot start."""
    states = _container_states(pod)
    failed = any(reading.integer(state, "terminated", "exitCode") for state in states)
    return failed or any(reading.text(state, "waiting", "reason") not in _CREATING for state in states)


def _container_states(pod: Manifest) -> list[Mapping[str, Any]]:
    fields = ("initContainerStatuses", "containerStatuses")
    return [reading.mapping(container, "state") for field in fields for container in reading.objects(pod, "status", field)]
