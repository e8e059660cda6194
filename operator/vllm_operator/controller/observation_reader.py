"""Read the `Observation` for decisions and the status: children, logs, events, metrics of Pods and taints of nodes."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import read_cores
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.activity import CacheActivity
from vllm_operator.caches.claims import ClaimHolder, describe_kept_owner, find_holders, find_jobs, is_terminating
from vllm_operator.caches.context import is_primer, is_replica
from vllm_operator.controller.apply import Applied, Refusal
from vllm_operator.controller.cache_reconciler import CacheOutcome
from vllm_operator.controller.drain_reader import LOOK_SECONDS, DrainReader
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.observe import Snapshot, is_ready
from vllm_operator.controller.ownership import is_of_earlier
from vllm_operator.inventory.pools import Inventory, Taint
from vllm_operator.kube.client import (
    CLAIM,
    DEPLOYMENT,
    JOB,
    POD,
    POD_METRICS,
    SERVICE,
    ClusterClient,
    ClusterError,
    Forbidden,
    Invalid,
    Key,
    Kind,
    Manifest,
    NotFound,
    Unavailable,
)
from vllm_operator.kube.events import EventReader, shorten
from vllm_operator.logs.state import StartupState, UnreadLog
from vllm_operator.pods.view import Phase, PodView, read_pod, waits_for_node
from vllm_operator.status.observation import DEFAULT_STALL_SECONDS, IDLE_CORES, Observation, last_sign

HOLDERS_SECONDS = 15.0
"""Interval between reads of other Pods that keep a claim, which no watch reports."""
METRICS_MISSING_SECONDS = 300.0
"""Delay until the metrics API is requested again after it was missing or forbidden."""
METRICS_OUTAGE_SECONDS = 30.0
"""Delay until the metrics API is requested again after it was unavailable, for example because metrics-server restarts."""
BUSY_SECONDS = 300.0
"""Maximum age of a measurement of a busy engine that replaces a missing one, so that an outage makes no start look stalled."""


class LogStates(Protocol):
    """Provides the states of container logs."""

    def states(self, key: Key) -> Mapping[tuple[str, int], StartupState]:
        """Return the states of a VLLMDeployment's runs, from their logs."""

    def unread(self, key: Key) -> Mapping[tuple[str, int], UnreadLog]:
        """Return why logs could not be read, by run."""


class ObservationReader:
    """Reads the observations of VLLMDeployments."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        inventory: InventoryCache[Inventory],
        logs: LogStates,
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._inventory = inventory
        self._logs = logs
        self._now = now
        self._event_reader = EventReader(client, now=now)
        self._cpu_usage = CpuUsage(client)
        self._drains = DrainReader(client)

    async def read(
        self, resource: VLLMDeployment, snapshot: Snapshot, cache_outcome: CacheOutcome, applied: Applied, *, revision: str | None
    ) -> tuple[Observation, float | None]:
        """Read an observation. Also return the seconds until it must be read again; None to wait for watch events.

        `revision` is the name of the plan.

        Raises:
            ClusterError: The API server cannot be read.
        """
        claims = {child["metadata"]["name"]: child for child in applied.children if child["kind"] == CLAIM.kind}
        claim = claims.get(cache_outcome.claim_name or "", cache_outcome.claim)
        weights = claims.get(cache_outcome.weights_claim_name or "", cache_outcome.weights_claim)
        events, requeue_seconds = await self._event_reader.read(snapshot.pods, (claim, weights), cache_outcome.jobs)
        holders = await self._holders(resource.metadata.namespace, (claim, weights))
        if any(holder.instance != resource.metadata.name for found in holders.values() for holder in found):
            requeue_seconds = min(requeue_seconds or HOLDERS_SECONDS, HOLDERS_SECONDS)
        key = (resource.metadata.namespace, resource.metadata.name)
        states = self._logs.states(key)
        now = self._now()
        draining = await self._drains.read([pod for pod in snapshot.pods if is_replica(pod)], now)
        if draining:
            requeue_seconds = min(requeue_seconds or LOOK_SECONDS, LOOK_SECONDS)
        deployment = snapshot.child(DEPLOYMENT)
        of_earlier = deployment is not None and is_of_earlier(deployment, snapshot.resource)
        observation = Observation(
            resource=resource,
            outcome=cache_outcome.outcome,
            revision=revision,
            now=now,
            deployment=_child(applied, DEPLOYMENT, resource) or (None if of_earlier else deployment),
            service=_child(applied, SERVICE, resource) or snapshot.child(SERVICE),
            claim=claim,
            claim_name=cache_outcome.claim_name,
            weights_claim=weights,
            weights_claim_name=cache_outcome.weights_claim_name,
            claim_holders=holders,
            pods=() if of_earlier else tuple(pod for pod in snapshot.pods if is_replica(pod)),
            primers=tuple(pod for pod in snapshot.pods if is_primer(pod)),
            jobs=cache_outcome.jobs,
            pod_events=events,
            startups=states,
            unread_logs=self._logs.unread(key),
            cores=await self._cpu_usage.read(resource, snapshot.pods, states, now),
            taints=await self._taints(cache_outcome.outcome.plan, snapshot.pods),
            activity=_with_refused_claims(cache_outcome.activity, applied, (claim, weights)),
            draining=draining,
            not_kept=tuple(applied.not_kept),
            apply_error=_apply_error(applied, (claim, weights)),
        )
        return observation, requeue_seconds

    async def _holders(self, namespace: str, claims: Sequence[Manifest | None]) -> Mapping[str, tuple[ClaimHolder, ...]]:
        """Return the Pods that keep claims from being deleted, by claim name."""
        names = [str(claim["metadata"]["name"]) for claim in claims if claim is not None and is_terminating(claim)]
        pods = await self._client.find(POD, namespace) if names else ()
        orphaned = [await self._uid_of_orphaned(job, namespace) for name in names for job in sorted(find_jobs(name, pods))]
        return {name: find_holders(name, pods, frozenset(filter(None, orphaned))) for name in names}

    async def _uid_of_orphaned(self, job: str, namespace: str) -> str | None:
        """Return the UID of a Job without an owner; None if the Job is gone or has an owner."""
        try:
            found = await self._client.get(JOB, job, namespace)
        except (NotFound, Forbidden):
            return None
        return None if found["metadata"].get("ownerReferences") else str(found["metadata"]["uid"])

    async def _taints(self, plan: Plan | None, pods: Sequence[Manifest]) -> Mapping[str, tuple[Taint, ...]]:
        """Return the taints of the nodes with the planned GPUs, if a Pod waits for a node."""
        if plan is None or not any(map(waits_for_node, pods)):
            return {}
        try:
            inventory = await self._inventory.read()
        except ClusterError:
            return {}  # the condition Planned reports it
        return inventory.taints_of(plan.resource, plan.architecture)


class CpuUsage:
    """Reads the CPU usage of silent starts from `metrics.k8s.io`, which metrics-server provides.

    Only Pods whose log has been silent for longer than the user allows are read, so usually none.
    """

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Initialize. `clock` returns seconds."""
        self._client = client
        self._clock = clock
        self._retry_at = 0.0
        self._busy: dict[str, tuple[float, float]] = {}

    async def read(
        self, resource: VLLMDeployment, pods: Iterable[Manifest], states: Mapping[tuple[str, int], StartupState], now: datetime
    ) -> Mapping[str, float]:
        """Return the CPUs that the engines of silent starts use, by Pod UID, without Pods that have no metrics."""
        startup = resource.spec.startup
        allowed = timedelta(seconds=(startup.stall_timeout_seconds if startup else None) or DEFAULT_STALL_SECONDS)
        self._busy = {uid: (cores, at) for uid, (cores, at) in self._busy.items() if self._clock() - at < BUSY_SECONDS}
        found: dict[str, float] = {}
        for pod in pods:
            created = reading.moment(pod, "metadata", "creationTimestamp")
            is_young = created is not None and now - created < allowed  # it cannot have been silent for that long
            if is_young or is_ready(pod) or (view := read_pod(pod)).phase is not Phase.STARTING:
                continue
            since = last_sign(view, states.get(view.run), now)
            if since is None or now - since < allowed:
                continue
            cores = await self._read_pod(view, resource.metadata.namespace)
            if cores is not None:
                found[view.uid] = cores
        return found

    async def _read_pod(self, pod: PodView, namespace: str) -> float | None:
        if self._clock() < self._retry_at:
            return self._last_busy(pod.uid)
        try:
            metrics = await self._client.get(POD_METRICS, pod.name, namespace)
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
        self._busy.pop(pod.uid, None)
        if cores is not None and cores >= IDLE_CORES:
            self._busy[pod.uid] = (cores, self._clock())
        return cores

    def _last_busy(self, uid: str) -> float | None:
        cores, _ = self._busy.get(uid, (None, 0.0))
        return cores


def _child(applied: Applied, kind: Kind, resource: VLLMDeployment) -> Manifest | None:
    name = resource.metadata.name
    return next((child for child in applied.children if (child["kind"], child["metadata"]["name"]) == (kind.kind, name)), None)


def _apply_error(applied: Applied, claims: Sequence[Manifest | None]) -> str | None:
    """Return the refusal of the API server that a retry cannot fix; None if there is none."""
    errors = [str(refusal) for refusal in applied.refusals if not _is_about_existing_claim(refusal, claims)]
    if isinstance(applied.failure, (Forbidden, Invalid)):
        errors.append(str(applied.failure))
    return "; ".join(errors) or None


def _is_about_existing_claim(refusal: Refusal, claims: Sequence[Manifest | None]) -> bool:
    """Return whether a change of an existing PersistentVolumeClaim was refused. Pods can use the unchanged claim."""
    return any(_is_about(refusal, claim) for claim in claims)


def _is_about(refusal: Refusal, claim: Manifest | None) -> bool:
    return claim is not None and (refusal.kind, refusal.name) == (CLAIM.kind, claim["metadata"]["name"])


def _with_refused_claims(activity: CacheActivity, applied: Applied, claims: Sequence[Manifest | None]) -> CacheActivity:
    notes = [_describe_refused_claim(refusal, claims) for refusal in applied.refusals if _is_about_existing_claim(refusal, claims)]
    return replace(activity, claim_note=" ".join(notes)) if notes else activity


def _describe_refused_claim(refusal: Refusal, claims: Sequence[Manifest | None]) -> str:
    if isinstance(refusal.error, Forbidden) and "ownerRef" in str(refusal.error):
        owned = any(reading.mapping(claim, "metadata").get("ownerReferences") for claim in claims if _is_about(refusal, claim))
        if owned:
            return describe_kept_owner(refusal.name)
        return (
            f"{refusal.kind} {refusal.name} stays when this object is deleted, because the operator may not set its owner: the API "
            f"server demands the permission to delete it. Delete it yourself."
        )
    return f"{refusal.kind} {refusal.name} keeps its size: {shorten(str(refusal.error))}"
