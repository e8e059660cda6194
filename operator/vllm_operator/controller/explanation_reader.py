"""Read what explains the state of Pods: events, the requests of draining Pods, and Pods that keep a PVC.

No watch covers these. They are read only for Pods that need an explanation, so usually not at all.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.claims import ClaimHolder, find_holders, find_jobs, is_terminating
from vllm_operator.caches.context import is_replica
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, LogRequest, Manifest, NotFound
from vllm_operator.kube.events import EventReader
from vllm_operator.kube.recent import Recent
from vllm_operator.pods.view import PodView
from vllm_operator.status.observation import DrainingPod, draining_until, read_requests

HOLDERS_SECONDS = 15.0
"""Interval between reads of other Pods that keep a PVC, which no watch reports."""
DRAIN_SECONDS = 10
"""Interval between reads of a draining Pod's log. vLLM logs the number of unfinished requests at the same interval."""
DRAIN_WINDOW_SECONDS = 25
"""Age of the oldest log line to read."""
DRAIN_BYTES = 256 * 1024
"""Maximum number of bytes to read. With more log output in that time, the number is older."""
MAX_DRAINING = 8
"""Maximum number of draining Pods per VLLMDeployment whose logs are read."""
DRAIN_TIMEOUT_SECONDS = 5.0
MAX_REMEMBERED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanations:
    """What was read at `now`, UTC."""

    now: datetime
    events: tuple[Manifest, ...]
    holders: Mapping[str, tuple[ClaimHolder, ...]]
    """The Pods that keep a PVC from being deleted, by the name of the PVC."""
    draining: tuple[DrainingPod, ...]
    requeue_seconds: float | None
    """Seconds until the next read; None to wait for watch events."""


class ExplanationReader:
    """Reads what no watch covers about the Pods of VLLMDeployments."""

    def __init__(self, client: ClusterClient, *, now: Callable[[], datetime]) -> None:
        self._client = client
        self._now = now
        self._events = EventReader(client, now=now)
        self._drains: Recent[tuple[datetime, int | None]] = Recent(MAX_REMEMBERED)  # by uid of the Pod

    async def read(
        self, resource: VLLMDeployment, pods: Sequence[PodView], claims: Sequence[Manifest], jobs: Sequence[Manifest]
    ) -> Explanations:
        """Read about the Pods of a VLLMDeployment, its live PVCs, and its Jobs without a Pod.

        Raises ClusterError if the Pods that keep a PVC cannot be read. Anything else may be missing.
        """
        events, look_again = await self._events.read([pod.manifest for pod in pods], claims, jobs)
        holders = await self._holders(resource.metadata.namespace, claims)
        now = self._now()
        draining = await self._draining([pod.manifest for pod in pods if is_replica(pod)], now)
        has_others = any(holder.instance != resource.metadata.name for found in holders.values() for holder in found)
        intervals = (look_again, HOLDERS_SECONDS if has_others else None, DRAIN_SECONDS if draining else None)
        return Explanations(
            now=now,
            events=events,
            holders=holders,
            draining=draining,
            requeue_seconds=min((seconds for seconds in intervals if seconds is not None), default=None),
        )

    async def _holders(self, namespace: str, claims: Sequence[Manifest]) -> Mapping[str, tuple[ClaimHolder, ...]]:
        """Return the Pods that keep PVCs from being deleted, by the name of the PVC."""
        names = [str(claim["metadata"]["name"]) for claim in claims if is_terminating(claim)]
        pods = await self._client.find(kube.POD, namespace) if names else ()
        orphaned = [await self._uid_of_orphaned(job, namespace) for name in names for job in sorted(find_jobs(name, pods))]
        return {name: find_holders(name, pods, frozenset(filter(None, orphaned))) for name in names}

    async def _uid_of_orphaned(self, job: str, namespace: str) -> str | None:
        """Return the UID of a Job without an owner; None if the Job is gone or has an owner."""
        try:
            found = await self._client.get(kube.JOB, job, namespace)
        except (NotFound, Forbidden):
            return None
        return None if found["metadata"].get("ownerReferences") else str(found["metadata"]["uid"])

    async def _draining(self, pods: Iterable[Manifest], now: datetime) -> tuple[DrainingPod, ...]:
        """Return the Pods that are draining. If a log cannot be read, only the number of requests is missing."""
        draining = [(pod, until) for pod in pods if (until := draining_until(pod)) is not None and until > now]
        numbers = await asyncio.gather(*(self._requests(pod, now) for pod, _ in draining[:MAX_DRAINING]))
        return tuple(DrainingPod(pod["metadata"]["name"], until, number) for (pod, until), number in zip_longest(draining, numbers))

    async def _requests(self, pod: Manifest, now: datetime) -> int | None:
        """Return the number of unfinished requests, from the end of the log of a draining Pod."""
        uid = str(pod["metadata"].get("uid", ""))
        if (last := self._drains.get(uid)) is not None and now < last[0] + timedelta(seconds=DRAIN_SECONDS):
            return last[1]
        number = None
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
                number = read_requests(await self._last_lines(pod, now))
        self._drains.put(uid, (now, number))
        return number

    async def _last_lines(self, pod: Manifest, now: datetime) -> list[str]:
        metadata = pod["metadata"]
        since = reading.stamp(now - timedelta(seconds=DRAIN_WINDOW_SECONDS))
        request = LogRequest(metadata["namespace"], metadata["name"], CONTAINER, follow=False, since=since, limit_bytes=DRAIN_BYTES)
        content = b""
        async with self._client.stream_log(request) as stream:
            async for chunk in stream:
                content += chunk
                if len(content) >= DRAIN_BYTES:
                    break
        return content[:DRAIN_BYTES].decode("utf-8", "replace").splitlines()
