"""Report on an object: events, conditions, status and records on its ControllerRevision, from the snapshot and from what was done.

New remedies are decided here, and not before applying: whether a crash counts depends on the Deployment that was just applied. They are
written to the status, and the next reconciliation carries them out, so an operator that is killed in between decides nothing twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Literal

from pydantic import ValidationError

from vllm_operator.api import labels, reading
from vllm_operator.api.conditions import EventDraft, Reason
from vllm_operator.api.labels import CONTAINER, FAILED_ANNOTATION, RAN_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment, is_observed
from vllm_operator.api.status import CacheStatus, VLLMDeploymentStatus
from vllm_operator.caches.claims import ClaimHolder, find_holders, find_jobs, find_other_owners, is_terminating, may_ask_for_deletion
from vllm_operator.caches.context import is_follower, is_primer, is_replica
from vllm_operator.catalog.notes import say
from vllm_operator.controller.act import ActionResult
from vllm_operator.controller.apply import Refusal
from vllm_operator.controller.log_followers import CATCH_UP_SECONDS, Followers
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.observe import Snapshot
from vllm_operator.controller.ownership import find_child, find_workload, is_of_earlier
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.user_data import KnownStarts
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Invalid, LogRequest, Manifest, NotFound, read_log
from vllm_operator.kube.events import EventReader, record_event, shorten
from vllm_operator.kube.recent import Recent
from vllm_operator.pods.view import Phase, PodView, has_run, place_of
from vllm_operator.rendering.revision import applied_revision, find_revision
from vllm_operator.status.events import describe_restored
from vllm_operator.status.observation import DrainingPod, Observation, draining_until, read_requests
from vllm_operator.status.report import REAPPLY_LIMIT_SECONDS, Report, report, status_with_failure
from vllm_operator.text import wording

log = logging.getLogger(__name__)

ACT_SECONDS = 0.1
"""Delay until what was decided is carried out. The next reconciliation does it, because it reads the status."""
DELETION_SECONDS = 1.0
"""Delay until the next reconciliation while a child is being deleted. Usually a watch event comes earlier."""
ROLLOUT_SECONDS = 2.0
"""Maximum delay between a change of the Deployment and the status. Usually a watch event of its controller comes earlier."""
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
ResultName = Literal["success", "waiting", "refused", "retry", "bug", "gone"]


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
    """Reads what no watch covers about Pods: events, the requests of draining Pods, and Pods that keep a PVC.

    These are read only for Pods that need an explanation, so usually not at all.
    """

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
        requeue_seconds = min((seconds for seconds in intervals if seconds is not None), default=None)
        return Explanations(now=now, events=events, holders=holders, draining=draining, requeue_seconds=requeue_seconds)

    async def _holders(self, namespace: str, claims: Sequence[Manifest]) -> Mapping[str, tuple[ClaimHolder, ...]]:
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
        return (await read_log(self._client, request, DRAIN_BYTES)).decode("utf-8", "replace").splitlines()


@dataclass(frozen=True, slots=True)
class Result:
    """The label of a reconciliation in the metrics, and the delay until the next one; None to wait for watch events and resyncs."""

    name: ResultName
    requeue_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Writes events, status, and what became of a plan; deletes stalled Pods."""

    client: ClusterClient
    crashes: KnownStarts
    plans: PlanStore
    logs: Followers
    explanations: ExplanationReader
    metrics: Metrics
    now: Callable[[], datetime]

    async def report(self, snapshot: Snapshot, result: ActionResult) -> Result:
        """Write the events and the status, and delete Pods whose start has stalled. Raises ClusterError."""
        await self._record(snapshot, describe_restored(result.applied.restored, self.crashes.reporting.messages, self.now()))
        if not self.logs.caught_up(snapshot.key):
            return Result("waiting", CATCH_UP_SECONDS)
        observed, look_again = await self._read_observation(snapshot, result)
        await self._record_run(snapshot, observed)
        reported = report(observed)
        before, now, applied = snapshot.resource.status, reported.status, result.applied
        # The snapshot may already leave out avoided nodes that were restarted.
        recorded = reading.sequence(reading.mapping(snapshot.manifest, "status").get("avoidedNodes"))
        decided = [(s.remediation, s.last_crash, s.rollback, s.avoided_nodes, s.cache and s.cache.quarantined) for s in (before, now)]
        has_decided = decided[0] != decided[1] or len(recorded) != len(now.avoided_nodes or ())
        # Events, caches and why they were not filled before a rollout may only be known now.
        is_news = has_decided or _facts(before.cache) != _facts(now.cache) or reported.events or result.activity.skipped
        if before.plan is not None and not is_news and applied.written and applied.failure is None and not is_observed(observed.deployment):
            return Result("waiting", ROLLOUT_SECONDS)  # nobody knows yet whether what was just written replaces Pods
        failed = find_revision(snapshot.revisions, now.rollback.failed) if now.rollback is not None and now.rollback.revision else None
        if failed is not None:
            await self.plans.record(failed, FAILED_ANNOTATION, now=observed.now)
        await self._write(snapshot, reported)
        await self._delete_stalled(snapshot.resource.metadata.namespace, reported.pods_to_delete)
        if has_decided:
            return Result("waiting", ACT_SECONDS)
        if applied.waiting:
            return Result("waiting", DELETION_SECONDS)
        times = [seconds for seconds in (reported.requeue_after_seconds, look_again) if seconds is not None]
        if applied.refusals or any(problem.reason == Reason.APPLY_FAILED for problem in (*result.exposure.problems, *result.scaling)):
            times.append(REAPPLY_LIMIT_SECONDS)
        return Result("refused" if applied.refusals else "success", min(times, default=None))

    async def report_failure(self, manifest: Manifest, reason: str, message: str) -> None:
        """Report a failure in the condition Ready, and keep the rest of the status. Raises ClusterError."""
        try:
            status = VLLMDeploymentStatus.model_validate(manifest.get("status") or {})
        except ValidationError:
            status = VLLMDeploymentStatus()
        metadata, now = manifest["metadata"], self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        generation = metadata.get("generation", 0)
        changed = status_with_failure(status, reason=reason, message=wording.clean(message), generation=generation, now=now)
        self.metrics.reported(metadata["namespace"], metadata["name"], changed)
        if changed != status:
            await self._apply(manifest, changed)

    async def _read_observation(self, snapshot: Snapshot, result: ActionResult) -> tuple[Observation, float | None]:
        """Read what explains the state of the Pods. This is a second read, because it depends on the Jobs and PVCs that exist by now.

        Also return the seconds until it must be read again; None to wait for watch events.
        """
        resource, decision, applied = snapshot.resource, result.decision, result.applied
        name, states = resource.metadata.name, self.logs.states(snapshot.key)
        claims = result.claims | {child["metadata"]["name"]: child for child in applied.children if child["kind"] == kube.CLAIM.kind}
        claim, weights = claims.get(decision.claim_name or ""), claims.get(decision.weights_claim_name or "")
        live = tuple(it for it in (claim, weights) if it is not None)
        starts = await self.explanations.read(resource, snapshot.pods, live, result.jobs)
        # Pods can use an existing PVC whose change was refused.
        unchanged = [it for it in applied.refusals if it.kind == kube.CLAIM.kind and claims.get(it.name) in live]
        errors = [str(it) for it in applied.refusals if it not in unchanged]
        errors += [f"The API server refused an object: {applied.failure}"] if isinstance(applied.failure, Forbidden | Invalid) else []
        notes = [_describe_refused_claim(it, claims[it.name]) for it in unchanged] or _claim_notes(snapshot, result)
        deployment = snapshot.found_workload
        of_earlier = deployment is not None and is_of_earlier(deployment, snapshot.manifest)
        observation = Observation(
            resource=resource,
            outcome=decision.outcome,
            revision=result.revision,
            revisions=snapshot.revisions,
            now=starts.now,
            knowledge=self.crashes.reporting,
            deployment=find_workload(applied.children, name) or (None if of_earlier else deployment),
            service=find_child(applied.children, kube.SERVICE, name) or find_child(snapshot.children, kube.SERVICE, name),
            claim=claim,
            claim_name=decision.claim_name,
            weights_claim=weights,
            weights_claim_name=decision.weights_claim_name,
            missing_claims=snapshot.missing_claims,
            claim_holders=starts.holders,
            pods=() if of_earlier else tuple(filter(is_replica, snapshot.pods)),
            followers=() if of_earlier else tuple(filter(is_follower, snapshot.pods)),
            primers=tuple(filter(is_primer, snapshot.pods)),
            jobs=tuple(result.jobs),
            pod_events=starts.events,
            startups=states,
            unread_logs=self.logs.unread(snapshot.key),
            gpus=_gpus(snapshot),
            taints=_taints(snapshot, result),
            inventory=snapshot.inventory if isinstance(snapshot.inventory, Inventory) else None,
            room=decision.room,
            serving_plan=snapshot.serving_plan,
            build=snapshot.build,
            activity=replace(result.activity, claim_note=" ".join(notes) or None),
            draining=starts.draining,
            not_kept=tuple(applied.not_kept),
            lacks_kind=any(it.lacks_kind for it in applied.refusals),
            apply_error="; ".join(errors) or None,
            exposure=result.exposure,
            scaling=result.scaling,
        )
        return observation, starts.requeue_seconds

    async def _record_run(self, snapshot: Snapshot, observed: Observation) -> None:
        """Record on the revision of the plan that it has run and served, so that both are known without its Pods."""
        revision, plan = find_revision(snapshot.revisions, observed.revision), observed.outcome.plan
        if revision is None or plan is None:
            return
        is_applied = applied_revision(observed.deployment) == observed.revision
        replicas = [pod for pod in observed.pod_facts if is_applied and pod.is_current and pod.has_caches_of(plan)]
        primers = [pod for pod in observed.primer_facts if pod.has_caches_of(plan)]
        if any(has_run(pod.manifest) for pod in (*replicas, *primers)):
            served = [SERVED_ANNOTATION] if any(pod.phase is Phase.READY for pod in replicas) else []
            await self.plans.record(revision, RAN_ANNOTATION, *served, now=observed.now)

    async def _write(self, snapshot: Snapshot, reported: Report) -> None:
        """Write the events of a report, then the status if it changed.

        An operator that is killed in between makes the same report after its restart, and finds the events that it has written.
        """
        manifest, metadata = snapshot.manifest, snapshot.resource.metadata
        await self._record(snapshot, reported.events)
        replicas, warm = snapshot.resource.spec.replicas, reported.warm_starts
        self.metrics.reported(metadata.namespace, metadata.name, reported.status, reported.start, warm, replicas=replicas)
        if reported.status != snapshot.resource.status:
            await self._apply(manifest, reported.status)

    async def _record(self, snapshot: Snapshot, events: Iterable[EventDraft]) -> None:
        for event in events:
            if verb := await record_event(self.client, snapshot.manifest, event, now=self.now()):
                self.metrics.wrote(verb, "Event")
                log.info("%s: %s", event.reason, event.message, extra={"key": "/".join(snapshot.key)})

    async def _apply(self, manifest: Manifest, status: VLLMDeploymentStatus) -> None:
        # The API server ignores a wrong UID in a status. Only the resourceVersion protects a new object with the same name.
        metadata = {name: manifest["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
        body = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": metadata, "status": status.to_json()}
        await self.client.apply_status(body, manager=labels.STATUS_FIELD_MANAGER)
        self.metrics.wrote("status", labels.KIND)

    async def _delete_stalled(self, namespace: str, pods: Iterable[PodView]) -> None:
        """Delete Pods whose start has stalled. The status already counts the restart, so that a killed operator does not count it twice."""
        for pod in pods:
            try:
                await self.client.delete(kube.POD, pod.name, namespace, uid=pod.uid)
            except Forbidden as error:
                log.warning("cannot delete the stalled Pod %s: %s", pod.name, error)
                continue
            self.metrics.wrote("delete", kube.POD.kind)


def _facts(cache: CacheStatus | None) -> CacheStatus | None:
    """Return what was observed about the caches, without what is said about them."""
    return cache.model_copy(update={"reason": None, "message": None}) if cache is not None else None


def _gpus(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the GPU and the driver of the nodes of replicas on several nodes, in words."""
    nodes, inventory = {pod.node for pod in snapshot.pods if place_of(pod.manifest) is not None}, snapshot.inventory
    pools = inventory.pools if isinstance(inventory, Inventory) and nodes else ()
    known = ((node, pool) for pool in pools for node in nodes.intersection(pool.nodes))
    return {node: f"{pool.product} with driver {'.'.join(map(str, pool.driver or ())) or 'unknown'}" for node, pool in known}


def _taints(snapshot: Snapshot, result: ActionResult) -> Mapping[str, Any]:
    """Return the taints of the nodes with the planned GPUs, if a Pod waits for a node."""
    plan, inventory = result.decision.outcome.plan, snapshot.inventory
    if plan is None or not isinstance(inventory, Inventory) or all(pod.node for pod in snapshot.pods):
        return {}  # if the nodes cannot be read, the condition Ready reports it
    return inventory.taints_of(plan.resource, plan.architecture)


def _claim_notes(snapshot: Snapshot, result: ActionResult) -> list[str]:
    """Return which PVCs of other VLLMDeployments are used, and what becomes of them."""
    notes = []
    for name, lender in result.decision.lenders.items():
        if find_other_owners(result.claims[name], snapshot.resource.metadata.uid):
            notes.append(say("claims.kept-owner", name=name, namespace=snapshot.key[0], lender=f"VLLMDeployment {lender}"))
        elif lender in snapshot.peers and may_ask_for_deletion(snapshot.peers[lender], name):
            notes.append(say("claims.lent", name=name, lender=lender))
    return [*notes, *([result.activity.claim_note] if result.activity.claim_note else [])]


def _describe_refused_claim(refusal: Refusal, claim: Manifest) -> str:
    if not isinstance(refusal.error, Forbidden) or "ownerRef" not in str(refusal.error):
        return f"{refusal.kind} {refusal.name} keeps its size: {shorten(str(refusal.error)).rstrip('.')}."
    if claim["metadata"].get("ownerReferences"):
        return say("claims.kept-owner", name=refusal.name, namespace=claim["metadata"]["namespace"], lender="this object")
    return say("claims.not-owned", name=refusal.name)
