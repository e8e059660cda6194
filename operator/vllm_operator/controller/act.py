"""Carry out a decision.

    release PVCs -> read the image -> persist plan and measurement -> records on PVCs -> Jobs -> apply and prune children ->
    optional objects -> prune plans

The plan is durable before anything that follows from it is applied, and a record exists before the Pods that depend on it: for example, a
priming lease is taken before the primer is created. So each step may be the last one.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from vllm_operator.api import reading
from vllm_operator.api.base import Model
from vllm_operator.api.conditions import VALID_SPEC, Verdict
from vllm_operator.api.labels import CLAIM_FIELD_MANAGER, GATE_ANNOTATION, RACE_RECORD_ANNOTATION, UNUSED_ANNOTATION
from vllm_operator.caches import cleaning
from vllm_operator.caches.claims import Removal, find_orphans, find_other_owners, used_again
from vllm_operator.caches.cleaning import CleaningNeed
from vllm_operator.caches.context import CacheActivity, CacheContext, Cleaning, CleaningState, Fetching, Publication
from vllm_operator.caches.directories import Changes
from vllm_operator.caches.prefetching import FetchingPlan, is_outdated
from vllm_operator.controller.apply import Applied, Applier, annotate
from vllm_operator.controller.build_reader import BuildReader
from vllm_operator.controller.decide import Decision, keep_all
from vllm_operator.controller.observe import Snapshot
from vllm_operator.controller.optional_objects import CreatedObjects, OptionalObjects
from vllm_operator.controller.ownership import find_workload, is_controlled_by
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.user_data import KnownStarts
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Conflict, Forbidden, Invalid, Manifest, NotFound, Unavailable
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.pinning import rollbacks_to_try
from vllm_operator.rendering.revision import applied_revision, find_revision, with_applied_revision
from vllm_operator.status.observation import Exposure, ObjectProblem

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ActionResult:
    """What was done."""

    decision: Decision
    """The decision that was carried out: without a plan if the plan could not be stored."""
    activity: CacheActivity
    """The activity of the caches, with what the API server refused."""
    claims: dict[str, Manifest]
    """The live PVCs, by name."""
    revision: str | None = None
    """The name of the revision of the plan; None without a plan."""
    jobs: list[Manifest] = field(default_factory=list)
    """Live Jobs that have no Pod, or no Pod that is bound to a node. They may have failed."""
    applied: Applied = field(default_factory=Applied)
    exposure: Exposure = field(default_factory=Exposure)
    scaling: tuple[ObjectProblem, ...] = ()
    """Why the PodDisruptionBudget or the autoscaler has no effect."""

    @property
    def may_end_here(self) -> bool:
        """Whether to end here: the Deployment has a new plan, and nothing must be reported at once. Other objects get theirs first."""
        applied = self.applied
        explains = applied.restored or applied.refusals or self.activity.skipped or applied.failure
        return applied.has_new_plan and not explains


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Carries out decisions. `count` is called with the verb and the kind of each write."""

    client: ClusterClient
    crashes: KnownStarts
    plans: PlanStore
    builds: BuildReader
    created: CreatedObjects
    optional: OptionalObjects
    applier: Applier
    count: Callable[[str, str], None]

    async def act(self, snapshot: Snapshot, decision: Decision) -> ActionResult:
        """Carry out a decision. Raises ClusterError: the next reconciliation completes this one.

        If a child cannot be applied, the rest is still done, so that the status keeps up, and the error is in the result.
        """
        await self.remove(snapshot.manifest, snapshot.removals)
        resource, revision = snapshot.resource, None
        if snapshot.build is not None:
            await self.builds.keep(resource, snapshot.build, snapshot.build_records)
        if decision.outcome.plan is not None:
            persisted = await self.plans.persist(resource, snapshot.revisions, decision.outcome.plan)
            if isinstance(persisted, Verdict):
                decision = keep_all(snapshot, Outcome(VALID_SPEC, persisted, None))  # a plan that cannot be stored is not applied
            else:
                revision = persisted
        result = ActionResult(decision=decision, activity=decision.actions.activity, claims=dict(snapshot.claims), revision=revision)
        await self._record_measurements(snapshot, decision.actions.activity, revision)
        if decision.context is not None:
            recorded = {name: await self._write_record(resource.metadata.uid, name, result) for name in decision.claim_records}
            await self._run_jobs(snapshot.manifest, decision.context, result, is_recorded=recorded.get(decision.claim_name or "", True))
        await self._apply(snapshot, result)
        failure = result.applied.failure
        # An unavailable API server accepts no status either. The next attempt usually resolves a conflict, so it does not justify a first
        # status about children that do not exist yet.
        if isinstance(failure, Unavailable) or (isinstance(failure, Conflict) and resource.status.revision is None):
            raise failure
        try:
            made = result.decision.outcome.plan or resource.pinned
            has_groups = made is not None and made.nodes is not None
            result.exposure = await self.optional.expose(resource, snapshot.manifest, has_groups=has_groups)
            result.scaling = await self.optional.scale(resource, snapshot.manifest, has_groups=has_groups)
            if revision is not None:
                race = decision.actions.activity.race
                in_use = {revision, applied_revision(snapshot.deployment), resource.status.revision or "", race.revision if race else ""}
                in_use |= {name for each in rollbacks_to_try(resource) for name in each.names}
                await self.plans.prune(snapshot.revisions, in_use)
        except ClusterError as error:
            raise failure or error from error
        return result

    async def _record_measurements(self, snapshot: Snapshot, activity: CacheActivity, revision: str | None) -> None:
        """Write measurements on ControllerRevisions: of the gate on the plan's, of the race on the one with which the race began."""
        gate, race, records = activity.gate, activity.race, list[tuple[str | None, str, Model]]()
        if gate is not None and not gate.is_recorded:
            records.append((revision, GATE_ANNOTATION, gate.record))
        if race is not None and not race.is_recorded and race.record is not None:
            records.append((race.revision, RACE_RECORD_ANNOTATION, race.record))
        for name, annotation, record in records:
            if (live := find_revision(snapshot.revisions, name)) is not None:
                await self.plans.annotate(live, {annotation: record.model_dump_json(by_alias=True, exclude_defaults=True)})

    async def remove(self, owner: Manifest, removals: Iterable[Removal]) -> None:
        """Delete Jobs and finished Pods that are not needed, for example because they block the deletion of a PVC. Raises ClusterError."""
        namespace = owner["metadata"]["namespace"]
        for removal in removals:
            kind = kube.JOB if removal.is_job else kube.POD
            try:
                if removal.is_job:
                    job = await self.client.get(kube.JOB, removal.name, namespace)
                    if job["metadata"].get("uid") != removal.uid or not is_controlled_by(job, owner):
                        continue
                await self.client.delete(kind, removal.name, namespace, uid=removal.uid)
                self.count("delete", kind.kind)
            except NotFound:
                pass  # the garbage collector is about to delete its Pods
            except Forbidden as error:
                log.warning("%s %s is not needed and cannot be deleted: %s", kind.kind, removal.name, error)

    async def mark_unused(self, key: kube.Key, now: datetime) -> None:
        """Record on the PVCs of a VLLMDeployment that is gone since when nobody uses them. Raises ClusterError."""
        claims = await self.client.find(kube.CLAIM, key[0], labels=kube.children_of(kube.CLAIM, key[1]))
        unused = find_orphans(claims, await self.client.find(kube.VLLM_DEPLOYMENT, key[0]))
        for claim in (claim for claim in unused if not used_again(claim)):
            try:
                await annotate(self.client, claim, {UNUSED_ANNOTATION: reading.stamp(now)}, manager=CLAIM_FIELD_MANAGER)
                self.count("patch", kube.CLAIM.kind)
            except (Forbidden, NotFound) as error:
                log.warning("cannot record that PersistentVolumeClaim %s is unused: %s", claim["metadata"]["name"], error)

    async def _write_record(self, uid: str, name: str, result: ActionResult) -> bool:
        """Write the annotations of a PVC, and remove its other owners. Return whether it has the annotations now."""
        changes, is_lent = result.decision.claim_records[name], name in result.decision.lenders
        disowned = find_other_owners(result.claims[name], uid) if is_lent else ()
        # The API server may allow changes of owners only with the permission to delete.
        for positions in dict.fromkeys((disowned, ())):
            try:
                await self._annotate(name, changes, result, disowned=positions)
                return True
            except (Forbidden, Invalid) as error:
                if not positions:
                    log.warning("cannot record the users and caches of PersistentVolumeClaim %s: %s", name, error)
        return False

    async def _annotate(self, name: str, changes: Changes, result: ActionResult, disowned: tuple[int, ...] = ()) -> None:
        before = result.claims[name]
        result.claims[name] = await annotate(self.client, before, changes, manager=CLAIM_FIELD_MANAGER, disowned=disowned)
        if result.claims[name]["metadata"].get("resourceVersion") != before["metadata"].get("resourceVersion"):
            self.count("patch", kube.CLAIM.kind)

    async def _run_jobs(self, owner: Manifest, context: CacheContext, result: ActionResult, *, is_recorded: bool) -> None:
        """Create the Jobs that clean, publish and fetch, and delete outdated ones. Add what was refused to the activity."""
        actions, activity = result.decision.actions, result.activity
        need = actions.cleaning
        if need is not None and (need.is_full or is_recorded):
            activity = replace(activity, cleaning=await self._clean(context, need, result) or activity.cleaning)
        if actions.publishing is not None:
            try:
                await self._create_job(actions.publishing, result)
            except (Forbidden, Invalid) as error:
                log.warning("cannot create the Job that publishes caches: %s", error)
                activity = replace(activity, publication=Publication(state="Refused", why=str(error)))
        fetching = await self._fetch(owner, actions.fetching, result)
        recheck_seconds = 0.0 if fetching is not None and fetching.state == "Fetched" else activity.recheck_seconds
        result.activity = replace(activity, fetching=fetching, recheck_seconds=recheck_seconds)

    async def _clean(self, context: CacheContext, need: CleaningNeed, result: ActionResult) -> Cleaning | None:
        """Create the Job that deletes unused cache directories. Return why it cannot be created.

        What uses the volume is read just before, because the Job deletes.
        """
        namespace, address = context.resource.metadata.namespace, context.address
        pods = await self.client.find(kube.POD, namespace)
        state: CleaningState = "InUseByOthers"
        if address is not None and (blocker := cleaning.find_blocking_pod(address.claim, pods)) is not None:
            why, detail = f"Pod {blocker} mounts the whole volume", blocker
        else:
            users = await self.client.find(kube.VLLM_DEPLOYMENT, namespace)
            try:
                await self._create_job(cleaning.render_cleaning(context, need, cleaning.directories_in_use(context, users, pods)), result)
                return None
            except (Forbidden, Invalid) as error:
                log.warning("cannot create the Job that cleans the cache volume: %s", error)
                state, why, detail = "Refused", str(error), str(error)
        if not need.is_full and address is not None and address.claim in result.claims:
            await self._annotate(address.claim, cleaning.record_attempt(context, need.doomed, why), result)
        return cleaning.describe_blocked_cleaning(context, self.crashes.reporting.full_volume, state, detail)

    async def _fetch(self, owner: Manifest, plan: FetchingPlan, result: ActionResult) -> Fetching | None:
        """Create the Job that fetches the weights, record its result, and delete unneeded Jobs. Return the state to report."""
        await self.remove(owner, plan.superseded)
        if plan.state is None:
            return None
        try:
            if plan.job is not None and (live := await self._create_job(plan.job, result)) is not None and is_outdated(live, plan.job):
                await self.remove(owner, [Removal(True, live["metadata"]["name"], live["metadata"]["uid"], frozenset())])
                result.jobs.remove(live)
                await self._create_job(plan.job, result)
            if plan.record is not None:
                await self._annotate(plan.state.claim, plan.record, result)
        except (Forbidden, Invalid) as error:
            log.warning("cannot fetch weights to PersistentVolumeClaim %s: %s", plan.state.claim, error)
            return replace(plan.state, state="Refused", why=str(error))
        except Conflict:
            pass  # the claim has changed since; the next reconciliation sees it
        return plan.state

    async def _create_job(self, job: Manifest, result: ActionResult) -> Manifest | None:
        """Create a Job. If a Job with this name exists, add it to the result and return it."""
        try:
            await self.client.create(job)
        except Conflict:
            try:
                live = await self.client.get(kube.JOB, job["metadata"]["name"], job["metadata"]["namespace"])
            except (NotFound, Forbidden):
                return None
            result.jobs.append(live)
            return live
        self.count("create", kube.JOB.kind)
        return None

    async def _apply(self, snapshot: Snapshot, result: ActionResult) -> None:
        """Apply the children, and prune what is not desired. Of children that are kept, change at most the number of replicas."""
        actions, kept = result.decision.actions, result.decision.kept
        written = {(kube.CLAIM.kind, name): claim for name, claim in result.claims.items()}
        live = [written.get((it["kind"], it["metadata"]["name"]), it) for it in snapshot.children if it not in kept]
        desired = list(actions.manifests)
        for kind in (kube.CLAIM_TEMPLATE, kube.LEADER_WORKER_SET):
            if any(manifest["kind"] == kind.kind for manifest in desired):
                self.created.note(kind, snapshot.key)
        replicas = find_workload(desired, snapshot.resource.metadata.name)
        if replicas is not None and result.revision is not None:
            desired[desired.index(replicas)] = with_applied_revision(replicas, result.revision)
        applied = await self.applier.apply(snapshot.manifest, desired, live)
        for child in kept:
            now = child
            if actions.scale is not None and child is snapshot.deployment:
                try:
                    now = await self.applier.scale(child, actions.scale)
                except ClusterError as error:
                    applied.failure = applied.failure or error
            applied.children.append(now)
        result.applied = applied
