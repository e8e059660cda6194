"""Events about Pods and claims, asked for only where they tell what nothing else does.

An API server keeps events in no cache and in no index: each question reads all events of the namespace. So they
are asked for three things only, none of them in the first moments of an object, and not again within seconds:

* a Pod on a node whose container is not there yet: is it the image, or a volume?
* a container that ended as a probe ends it: was it a probe?
* a claim that is not bound: why not?
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from vllm_operator.cluster.client import CLAIM, EVENT, POD, ClusterClient, ClusterError, Forbidden, Kind, Manifest
from vllm_operator.pods import reading

log = logging.getLogger(__name__)

MAX_PODS = 8
"""Pods that are asked about in one look; the report shows the worst ones and counts the others."""
PATIENCE_SECONDS = 5.0
"""An object that is younger than this is on its way, and needs no explanation."""
AGE_SECONDS = 5.0
MAX_AGE_SECONDS = 60.0
"""How old an answer may be: a quarter of the age of what it is about, within these bounds. A Pod that pulls its image for
ten minutes is not asked about every five seconds."""
MAX_ANSWERS = 256
KILLED = (0, 137, 143)
"""Exit codes of a container that a probe, among others, has ended: by SIGKILL or SIGTERM, which a server may take as a wish."""


class Explanations:
    """Reads events, and remembers the latest answers for some seconds."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._clock = clock
        self._now = now
        self._answers: OrderedDict[str, tuple[float, tuple[Manifest, ...]]] = OrderedDict()

    async def read(self, pods: Sequence[Manifest], claims: Sequence[Manifest | None]) -> tuple[tuple[Manifest, ...], float | None]:
        """The events that tell something, and in how many seconds there may be more to ask; None for never.

        Where events cannot be read, those that were read last count. Raises nothing: without events a message says less.
        """
        unexplained: list[tuple[Kind, Manifest]] = [(POD, pod) for pod in pods if needs_explanation(pod)][:MAX_PODS]
        pending = [claim for claim in claims if claim is not None and (claim.get("status") or {}).get("phase") == "Pending"]
        unexplained += [(CLAIM, claim) for claim in pending]
        if not unexplained:
            return (), None
        due = [(kind, item) for kind, item in unexplained if self._age(item) >= PATIENCE_SECONDS]
        try:
            found = await asyncio.gather(*(self._about(kind, item) for kind, item in due))
        except Forbidden:
            return (), None  # then the messages say less
        return tuple(event for events in found for event in events), min((self._holds(item) for _, item in due), default=PATIENCE_SECONDS)

    async def _about(self, kind: Kind, item: Manifest) -> tuple[Manifest, ...]:
        metadata = item["metadata"]
        uid = metadata["uid"]
        read_at, known = self._answers.get(uid, (0.0, ()))
        if uid in self._answers and self._clock() - read_at < self._holds(item):
            return known
        fields = {"involvedObject.kind": kind.kind, "involvedObject.name": metadata["name"], "involvedObject.uid": uid}
        try:
            events = tuple(await self._client.find(EVENT, metadata["namespace"], fields=fields))
        except Forbidden:
            raise
        except ClusterError as error:  # many clusters keep events in an etcd of their own, which may be away alone
            log.debug("the events about %s %s cannot be read: %s", kind.kind, metadata["name"], error)
            events = known
        self._answers.pop(uid, None)
        self._answers[uid] = (self._clock(), events)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return events

    def _holds(self, item: Manifest) -> float:
        """For how many seconds an answer about an object is good."""
        return min(MAX_AGE_SECONDS, max(AGE_SECONDS, self._age(item) / 4))

    def _age(self, item: Manifest) -> float:
        """Seconds since the object was created, by the clocks of the API server and of this machine."""
        created = reading.moment(item, "metadata", "creationTimestamp")
        if created is None:
            return PATIENCE_SECONDS
        # a clock that goes slow must not make it wait for ever
        return abs((self._now() - created).total_seconds())


def needs_explanation(pod: Manifest) -> bool:
    """Whether the status of a Pod leaves open what an event may tell. Takes any object."""
    if not reading.text(pod, "spec", "nodeName"):
        return False  # the scheduler says why in a condition
    status = reading.mapping(pod, "status")
    containers = [*reading.objects(status, "initContainerStatuses"), *reading.objects(status, "containerStatuses")]
    if not containers:
        return reading.text(status, "phase") == "Pending"
    return any(_is_creating(container) or _was_killed(container) for container in containers)


def _is_creating(container: Mapping[str, Any]) -> bool:
    return reading.text(container, "state", "waiting", "reason") in ("ContainerCreating", "PodInitializing")


def _was_killed(container: Mapping[str, Any]) -> bool:
    if reading.flag(container, "ready"):
        return False
    ends = (reading.mapping(container, state, "terminated") for state in ("state", "lastState"))
    return any(end.get("exitCode") in KILLED and end.get("reason") != "OOMKilled" for end in ends)
