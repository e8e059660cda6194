"""Keep the mirror up to date: put watch events into it, and list everything again from time to time.

A watch that lost its place begins anew, and says nothing about what happened meanwhile. Then the mirror lists that kind again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from vllm_operator.caches.context import is_replica
from vllm_operator.cluster import client
from vllm_operator.cluster.client import DEPLOYMENT, NAMESPACE, VLLM_DEPLOYMENT, ClusterError, Key, Kind, Manifest
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
    LAST: such a step of an object that has served before. Its status shows the step only if it lasts (`status/pacing.py`), and the
    Deployment tells when the rollout is complete.
    """

    NOW = "now"
    SOON = "soon"
    LATER = "later"
    LAST = "last"


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
        add_last: Callable[[Key], None] | None = None,
        add_unchanged: Callable[[Key], None] | None = None,
    ) -> None:
        """Everything is listed again every `seconds`.

        `add` is called with each key to reconcile. `add_soon`, `add_later` and `add_last` are called instead after a watch event of this
        `Urgency`, and `add_unchanged` with the keys of objects of a list whose spec has not changed since their last status. `shard` is
        None for all namespaces.
        """
        later = add_later or add_soon or add
        self._add_by_urgency = {Urgency.NOW: add, Urgency.SOON: add_soon or add, Urgency.LATER: later, Urgency.LAST: add_last or later}
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
            add = self._add if _has_unseen_spec(self._mirror.kept(VLLM_DEPLOYMENT, key)) else self._add_unchanged
            add(key)

    def notice(self, kind: Kind, type: str, manifest: Manifest) -> None:
        """Take a watch event. The type is ADDED, MODIFIED or DELETED."""
        if kind == NAMESPACE:
            if self._shard is not None and self._shard.note(manifest, deleted=type == "DELETED"):
                self._moved.add(manifest["metadata"]["name"])
                self._recheck.set()
            return
        deleted = type == "DELETED"
        for key in self._mirror.note(kind, manifest, deleted=deleted):
            related = partial(self._mirror.kept, key=key)
            self._add_by_urgency[urgency_of(kind, manifest, related, deleted=deleted)](key)

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


def urgency_of(kind: Kind, manifest: Manifest, related: Callable[[Kind], Manifest | None], *, deleted: bool = False) -> Urgency:
    """How soon to handle that an object was created, changed or deleted.

    `related` returns the VLLMDeployment that the object belongs to, or its Deployment; None if it is not known.
    """
    match kind:
        case client.POD:
            return _urgency_of_pod(manifest, related, deleted=deleted)
        case _ if deleted:
            return Urgency.NOW
        case client.DEPLOYMENT:
            return _urgency_of_deployment(manifest, related)
        case client.CLAIM:
            return Urgency.NOW if reading.text(manifest, "metadata", "deletionTimestamp") else Urgency.SOON
        case _:
            return Urgency.NOW


def _urgency_of_pod(pod: Manifest, related: Callable[[Kind], Manifest | None], *, deleted: bool) -> Urgency:
    if deleted or reading.text(pod, "metadata", "deletionTimestamp"):
        return _urgency_of_step(related)  # usually it makes room for another one
    if _has_failed(pod):
        return Urgency.NOW
    if _has_condition(pod, "Ready", "True"):
        # Before the Deployment has counted the Pod, the rollout looks incomplete, so the Deployment tells.
        return Urgency.NOW if not is_replica(pod) or _is_rolled_out(related(DEPLOYMENT)) else _urgency_of_step(related)
    if any({"running", "terminated"} & state.keys() for state in _container_states(pod)):
        return Urgency.SOON  # there is a log
    return Urgency.LATER if _has_condition(pod, "PodScheduled", "False") else _urgency_of_step(related)


def _urgency_of_deployment(deployment: Manifest, related: Callable[[Kind], Manifest | None]) -> Urgency:
    """A Deployment whose spec was changed is repaired now. What it counts of its Pods is read once the rollout is complete."""
    seen = reading.integer(deployment, "status", "observedGeneration")
    if seen is not None and seen != reading.integer(deployment, "metadata", "generation"):
        return Urgency.NOW
    if seen is None or not _is_rolled_out(deployment):
        return _urgency_of_step(related)
    # A Pod that is not counted as ready yet may have told so already, before it was counted at all.
    is_ready = reading.integer(deployment, "status", "readyReplicas") == reading.integer(deployment, "spec", "replicas")
    return Urgency.NOW if is_ready else Urgency.LATER


def _urgency_of_step(related: Callable[[Kind], Manifest | None]) -> Urgency:
    return Urgency.LAST if reading.text(related(VLLM_DEPLOYMENT), "status", "url") else Urgency.LATER


def _is_rolled_out(deployment: Manifest | None) -> bool:
    """Whether all Pods run the current spec, as far as their Deployment has counted them. They need not be ready."""
    counts = [reading.integer(deployment, "status", field) or 0 for field in ("replicas", "updatedReplicas")]
    seen, generation = reading.integer(deployment, "status", "observedGeneration"), reading.integer(deployment, "metadata", "generation")
    return seen == generation and counts == [reading.integer(deployment, "spec", "replicas")] * 2


def _has_unseen_spec(resource: Manifest | None) -> bool:
    """Whether the status of a VLLMDeployment is about another generation than its spec."""
    generation = reading.integer(resource, "metadata", "generation")
    return resource is not None and generation != reading.integer(resource, "status", "observedGeneration")


def _has_condition(pod: Manifest, type: str, status: str) -> bool:
    return reading.named(pod, type, "status", "conditions").get("status") == status


def _has_failed(pod: Manifest) -> bool:
    """Whether a container of a Pod has failed, or cannot start."""
    states = _container_states(pod)
    failed = any(reading.integer(state, "terminated", "exitCode") for state in states)
    return failed or any(reading.text(state, "waiting", "reason") not in _CREATING for state in states)


def _container_states(pod: Manifest) -> list[Mapping[str, Any]]:
    fields = ("initContainerStatuses", "containerStatuses")
    return [reading.mapping(container, "state") for field in fields for container in reading.objects(pod, "status", field)]
