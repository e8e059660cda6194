"""Events: written about VLLMDeployments, read about Pods, PersistentVolumeClaims and Jobs.

The name of a written event is derived from the object and the series of the occurrence, or its key. After a crash between two writes, the
operator reports the occurrence again and finds the existing event. An annotation on the event has the key of the last counted occurrence.

The API server keeps no events in its watch cache: each request reads all events of the namespace. So they are read only for questions that
no other source answers, not for a new object, and not again within seconds:

* a Pod on a node without a container: does the image or a volume keep it waiting?
* a container that ended with a signal: was it a probe?
* a container that has started and is not ready: does its probe say that the engine hangs?
* a PersistentVolumeClaim that is not bound: why?
* a Job without a Pod: was the Pod refused?
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.conditions import EventDraft
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Conflict, Forbidden, Kind, Manifest, NotFound, Unavailable
from vllm_operator.kube.recent import Recent

log = logging.getLogger(__name__)

COMPONENT = "vllm-operator"
MAX_MESSAGE = 1023
"""Maximum size in bytes. The API server refuses messages of 1024 bytes and more."""
MAX_NAME = 253
MAX_PODS = 8
"""Maximum number of Pods whose events are read in one reconciliation. The status shows the worst Pods and counts the others."""
MIN_AGE_SECONDS = 5.0
"""Minimum age of an object before its events are read. Most younger objects are still making progress."""
MIN_CACHE_SECONDS = 5.0
MAX_CACHE_SECONDS = 60.0
"""Bounds of the cache time, which is a quarter of the age of the object."""
UNREADY_SECONDS = 10.0
"""Cache time for a Pod whose readiness probe fails. Its event may come after its condition."""
MAX_CACHED = 256
KILLED = (0, 137, 143)
"""Exit codes of a container that a probe may have ended, with SIGTERM or SIGKILL. A server may exit with 0 on SIGTERM."""
_TRIES = 3


async def record_event(client: ClusterClient, resource: Manifest, occurrence: EventDraft, *, now: datetime) -> str | None:
    """Write an event, or count the occurrence in an existing one. Return the verb of the request; None if nothing was written.

    An event that cannot be written is logged. Raises Unavailable. Then try again with the same occurrence.
    """
    event = _build_event(resource, occurrence, now)
    try:
        for _ in range(_TRIES):
            try:
                await client.create(event)
                return "create"
            except Conflict:
                pass
            try:
                return await _count(client, event, occurrence)
            except (Conflict, NotFound):
                continue  # it has changed or was deleted
    except Unavailable:
        raise
    except ClusterError as error:
        log.warning("the event %s cannot be written: %s", occurrence.reason, error)
    return None


async def _count(client: ClusterClient, event: Manifest, occurrence: EventDraft) -> str | None:
    if not occurrence.series:
        return None
    metadata = event["metadata"]
    now = await client.get(kube.EVENT, metadata["name"], metadata["namespace"])
    annotations = now["metadata"].get("annotations") or {}  # somebody may have removed them
    if annotations.get(labels.OCCURRENCE_ANNOTATION) == occurrence.key:
        return None
    changes = {
        "/count": (now.get("count") or 1) + 1,
        **{f"/{name}": event[name] for name in ("lastTimestamp", "message", "type")},
        "/metadata/annotations": {**annotations, labels.OCCURRENCE_ANNOTATION: occurrence.key},
    }
    is_same: Manifest = {"op": "test", "path": "/metadata/resourceVersion", "value": now["metadata"]["resourceVersion"]}
    operations = [is_same, *({"op": "add", "path": path, "value": value} for path, value in changes.items())]
    await client.patch(kube.EVENT, metadata["name"], metadata["namespace"], operations, manager=COMPONENT)
    return "patch"


def _build_event(resource: Manifest, occurrence: EventDraft, now: datetime) -> Manifest:
    """Return an event about an object (a VLLMDeployment if it has no kind). Its name depends on the series, or else on the key."""
    metadata = resource["metadata"]
    identity = (metadata["uid"], occurrence.reason, occurrence.series or occurrence.key)
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][: MAX_NAME - 17]}.{digest}",
            "namespace": metadata["namespace"],
            "annotations": {labels.OCCURRENCE_ANNOTATION: occurrence.key},
        },
        "involvedObject": {
            "apiVersion": resource.get("apiVersion", labels.API_VERSION),
            "kind": resource.get("kind", labels.KIND),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": shorten(occurrence.message),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def shorten(message: str) -> str:
    """Truncate a message to the maximum size of an event's, with an ellipsis at the end."""
    data = message.encode("utf-8", "replace")
    return message if len(data) <= MAX_MESSAGE else data[: MAX_MESSAGE - 3].decode("utf-8", "ignore") + "…"


@dataclass(slots=True)
class EventReader:
    """Reads events about Pods, PersistentVolumeClaims and Jobs, and caches them for some seconds."""

    client: ClusterClient
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _cached: Recent[tuple[float, tuple[Manifest, ...]]] = field(default_factory=lambda: Recent(MAX_CACHED))
    """When the events about an object were read, and the events, by its uid."""

    async def read(
        self, pods: Sequence[Manifest], claims: Sequence[Manifest | None], jobs: Sequence[Manifest] = ()
    ) -> tuple[tuple[Manifest, ...], float | None]:
        """Return the events that explain a state, and the seconds until the next read (None for never). `jobs` are Jobs without a Pod.

        Never raises. If events cannot be read, the last events are returned, and messages have less detail.
        """
        waiting: list[tuple[Kind, Manifest]] = [(kube.POD, pod) for pod in pods if needs_explanation(pod)][:MAX_PODS]
        pending = [claim for claim in claims if claim is not None and (claim.get("status") or {}).get("phase") == "Pending"]
        waiting += [*((kube.CLAIM, claim) for claim in pending), *((kube.JOB, job) for job in jobs)]
        if not waiting:
            return (), None
        due = [(kind, item) for kind, item in waiting if self._age(item) >= MIN_AGE_SECONDS]
        try:
            found = await asyncio.gather(*(self._about(kind, item) for kind, item in due))
        except Forbidden:
            return (), None
        read_again = min((self._cache_seconds(item) for _, item in due), default=MIN_AGE_SECONDS)
        return tuple(event for events in found for event in events), read_again

    async def _about(self, kind: Kind, item: Manifest) -> tuple[Manifest, ...]:
        metadata = item["metadata"]
        uid = metadata["uid"]
        read_at, known = self._cached.get(uid) or (-math.inf, ())
        if self.clock() - read_at < self._cache_seconds(item):
            return known
        fields = {"involvedObject.kind": kind.kind, "involvedObject.name": metadata["name"], "involvedObject.uid": uid}
        try:
            events = tuple(await self.client.find(kube.EVENT, metadata["namespace"], fields=fields))
        except Forbidden:
            raise
        except ClusterError as error:  # many clusters keep events in a separate etcd, which may fail independently
            log.debug("the events about %s %s cannot be read: %s", kind.kind, metadata["name"], error)
            events = known
        self._cached.put(uid, (self.clock(), events))
        return events

    def _cache_seconds(self, item: Manifest) -> float:
        if any(map(_is_unready, reading.objects(item, "status", "containerStatuses"))):
            return UNREADY_SECONDS
        return min(MAX_CACHE_SECONDS, max(MIN_CACHE_SECONDS, self._age(item) / 4))

    def _age(self, item: Manifest) -> float:
        """Return the seconds since the object was created. The clocks of the API server and of this machine may differ."""
        created = reading.moment(item, "metadata", "creationTimestamp")
        # A slow clock must not block the read indefinitely.
        return MIN_AGE_SECONDS if created is None else abs((self.now() - created).total_seconds())


def needs_explanation(pod: Manifest) -> bool:
    """Return whether an event may add an explanation to the status of a Pod. Accepts any object."""
    if not reading.text(pod, "spec", "nodeName"):
        return False  # the condition PodScheduled explains it
    status = reading.mapping(pod, "status")
    containers = [*reading.objects(status, "initContainerStatuses"), *reading.objects(status, "containerStatuses")]
    if not containers:
        return reading.text(status, "phase") == "Pending"
    return any(_needs_explanation(container) for container in containers)


def _needs_explanation(container: Mapping[str, Any]) -> bool:
    if reading.text(container, "state", "waiting", "reason") in ("ContainerCreating", "PodInitializing"):
        return True
    if reading.flag(container, "ready"):
        return False
    if _is_unready(container):
        return True
    ends = (reading.mapping(container, state, "terminated") for state in ("state", "lastState"))
    return any(end.get("exitCode") in KILLED and end.get("reason") != "OOMKilled" for end in ends)


def _is_unready(container: Mapping[str, Any]) -> bool:
    is_running = bool(reading.mapping(container, "state", "running"))
    return is_running and reading.flag(container, "started") and not reading.flag(container, "ready")
