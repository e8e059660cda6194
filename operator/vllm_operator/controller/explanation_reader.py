"""Read what explains the state of Pods: events, the CPU usage of silent starts, the requests of draining Pods, and Pods that keep a PVC.

No watch covers these. They are read only for Pods that need an explanation, so usually not at all.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import read_cores
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.claims import ClaimHolder, find_holders, find_jobs, is_terminating
from vllm_operator.caches.context import is_replica
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, LogRequest, Manifest, NotFound, Unavailable
from vllm_operator.kube.events import EventReader
from vllm_operator.kube.recent import Recent
from vllm_operator.logs.state import StartupState
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.status.observation import DEFAULT_STALL_SECONDS, IDLE_CORES, DrainingPod, draining_until, last_sign, read_requests

HOLDERS_SECONDS = 15.0
"""Interval between reads of other Pods that keep a PVC, which no watch reports."""
METRICS_MISSING_SECONDS = 300.0
"""Delay until the metrics API is requested again after it was missing or forbidden."""
METRICS_OUTAGE_SECONDS = 30.0
"""Delay until the metrics API is requested again after it was unavailable, for example because metrics-server restarts."""
BUSY_SECONDS = 300.0
"""Maximum age of a measurement of a busy engine that replaces a missing one, so that an outage makes no start look stalled."""
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

States = Mapping[tuple[str, int], StartupState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanations:
    """What was read at `now`, UTC."""

    now: datetime
    events: tuple[Manifest, ...]
    holders: Mapping[str, tuple[ClaimHolder, ...]]
    """The Pods that keep a PVC from being deleted, by the name of the PVC."""
    cores: Mapping[str, float]
    """CPUs in use by Pods whose start is silent, by UID."""
    draining: tuple[DrainingPod, ...]
    requeue_seconds: float | None
    """Seconds until the next read; None to wait for watch events."""


class ExplanationReader:
    """Reads what no watch covers about the Pods of VLLMDeployments."""

    def __init__(self, client: ClusterClient, *, now: Callable[[], datetime]) -> None:
        self._client = client
        self._now = now
        self._events = EventReader(client, now=now)
        self._cpu_usage = CpuUsage(client)
        self._drains: Recent[tuple[datetime, int | None]] = Recent(MAX_REMEMBERED)  # by uid of the Pod

    async def read(
        self, resource: VLLMDeployment, pods: Sequence[PodView], claims: Sequence[Manifest], jobs: Sequence[Manifest], states: States
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
            cores=await self._cpu_usage.read(resource, pods, states, now),
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


class CpuUsage:
    """Reads the CPU usage of Pods whose log is silent for longer than the user allows, from `metrics.k8s.io` (metrics-server)."""

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._retry_at = 0.0
        self._busy: Recent[tuple[float, float]] = Recent(MAX_REMEMBERED)  # by UID of the Pod: CPUs, and the time of the measurement

    async def read(self, resource: VLLMDeployment, pods: Iterable[PodView], states: States, now: datetime) -> Mapping[str, float]:
        """Return the CPUs that the engines of silent starts use, by Pod UID, without Pods that have no metrics."""
        startup = resource.spec.startup
        allowed = timedelta(seconds=(startup.stall_timeout_seconds if startup else None) or DEFAULT_STALL_SECONDS)
        found: dict[str, float] = {}
        for pod in pods:
            since = last_sign(pod, states.get(pod.run), now)
            if pod.phase is not Phase.STARTING or since is None or now - since < allowed:
                continue
            cores = await self._read_pod(pod, resource.metadata.namespace)
            if cores is not None:
                found[pod.uid] = cores
        return found

    async def _read_pod(self, pod: PodView, namespace: str) -> float | None:
        if self._clock() < self._retry_at:
            return self._last_busy(pod.uid)
        try:
            metrics = await self._client.get(kube.POD_METRICS, pod.name, namespace)
        except NotFound as error:
            # The message names a Pod without metrics. If the API itself is missing, it names no Pod.
            if pod.name not in str(error):
                self._retry_at = self._clock() + METRICS_MISSING_SECONDS
            return None
        except ClusterError as error:
            self._retry_at = self._clock() + (METRICS_OUTAGE_SECONDS if isinstance(error, Unavailable) else METRICS_MISSING_SECONDS)
            return self._last_busy(pod.uid)
        engine = reading.named(metrics, CONTAINER, "containers", key="name")
        cores = read_cores(reading.mapping(engine, "usage").get("cpu"))
        if cores is not None and cores >= IDLE_CORES:
            self._busy.put(pod.uid, (cores, self._clock()))
        else:
            self._busy.drop(pod.uid)
        return cores

    def _last_busy(self, uid: str) -> float | None:
        cores, at = self._busy.get(uid) or (None, 0.0)
        return cores if self._clock() - at < BUSY_SECONDS else None
