"""Carry out the decisions of `vllm_operator.caches`: read the PersistentVolumeClaim and its users, and write the records.

A record is written before the Pods that depend on it. For example, a priming lease is taken before the primer is created.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from vllm_operator.api import reading
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment, primer_name
from vllm_operator.caches.actions import CacheActions, plan_cache_actions
from vllm_operator.caches.activity import (
    NO_ACTIVITY,
    CacheActivity,
    Cleaning,
    CleaningState,
    Fetching,
    FetchingState,
    Publication,
    PublicationState,
)
from vllm_operator.caches.address import cache_address, template_spec, weights_claim
from vllm_operator.caches.claims import Removal, claims_of_others, find_removals, is_terminating
from vllm_operator.caches.cleaning import (
    CleaningNeed,
    describe_blocked_cleaning,
    directories_in_use,
    find_blocking_pod,
    record_attempt,
    render_cleaning,
)
from vllm_operator.caches.context import PRIMER_PATIENCE_SECONDS, CacheContext
from vllm_operator.caches.directories import next_cache_generation, other_directory, read_lease
from vllm_operator.caches.prefetching import FetchingPlan, fetched_commit, is_outdated, needs_gpu_nodes, with_commit
from vllm_operator.controller.apply import annotate_claim
from vllm_operator.controller.claim_sharing import ClaimSharing
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.observe import Snapshot, find_pods, is_claim_template_in_use, read_claims
from vllm_operator.controller.ownership import is_controlled_by
from vllm_operator.controller.user_data import KnownCatalog, KnownCrashes
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import (
    CLAIM,
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    JOB,
    POD,
    VLLM_DEPLOYMENT,
    ClusterClient,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    Manifest,
    NotFound,
)
from vllm_operator.planning.outcome import Outcome
from vllm_operator.rendering.manifests import render
from vllm_operator.status.remedies import carried_out

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOutcome:
    """The manifests to apply, and the objects that were read for the decision.

    `live`: children that may be changed or deleted. `kept`: children that stay unchanged for now.
    """

    manifests: list[Manifest]
    live: list[Manifest]
    outcome: Outcome
    kept: list[Manifest] = field(default_factory=list)
    claim_name: str | None = None
    claim: Manifest | None = None
    weights_claim_name: str | None = None
    weights_claim: Manifest | None = None
    activity: CacheActivity = NO_ACTIVITY
    held_replicas: int | None = None
    """Desired replicas of the Deployment among `kept`; None if they stay as they are."""
    jobs: tuple[Manifest, ...] = ()
    """Live Jobs that have not finished and have no Pod, or no Pod that is bound to a node."""


class CacheReconciler:
    """Reconciles the caches of VLLMDeployments."""

    def __init__(
        self,
        client: ClusterClient,
        catalog: KnownCatalog,
        crashes: KnownCrashes,
        *,
        inventory: InventoryCache[Inventory],
        count: Callable[[str, str], None],
        primer_patience_seconds: int = PRIMER_PATIENCE_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Set up a reconciler of caches.

        Args:
            client: The client for the API server.
            catalog: The catalog with the rules for `priming: Auto`.
            crashes: The known crashes. Some mean a full or a read-only volume.
            inventory: The GPUs of the cluster.
            count: Called with the verb and the kind of each write.
            primer_patience_seconds: Maximum time that a primer may wait for a GPU while replicas serve.
            now: The clock.
        """
        self._client = client
        self._catalog = catalog
        self._crashes = crashes
        self._inventory = inventory
        self._count = count
        self._primer_patience_seconds = primer_patience_seconds
        self._now = now
        self._sharing = ClaimSharing(client, count=count, now=now)

    async def reconcile(
        self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome, replan: Callable[[int], Outcome]
    ) -> CacheOutcome:
        """Decide which manifests to apply now, and first write the records that they depend on.

        Args:
            resource: The VLLMDeployment.
            snapshot: The VLLMDeployment as read, with its children and Pods.
            outcome: The outcome of planning.
            replan: Plans again with this generation of the caches.

        Raises:
            ClusterError: The API server failed or refused.
        """
        if outcome.plan is None:
            return await self._keep_all(resource, snapshot, outcome)
        outcome, context, manifests = await self._choose_directory(resource, snapshot, outcome, outcome.plan, replan)
        shipped, full = self._catalog.shipped, self._crashes.reporting.cleaning
        cache_actions = plan_cache_actions(context, manifests, shipped.priming, shipped.caches, full=full)
        claim, is_recorded = await self._record(context, cache_actions)
        activity = cache_actions.activity
        jobs: list[Manifest] = []
        if (need := cache_actions.cleaning) is not None and (need.is_full or is_recorded):
            cleaning, claim = await self._clean(context, need, jobs, claim)
            activity = replace(activity, cleaning=cleaning or activity.cleaning)
        if cache_actions.publishing is not None and (why := await self._publish(cache_actions.publishing, jobs)) is not None:
            activity = replace(activity, publication=Publication(state=PublicationState.REFUSED, why=why))
        if (fetching := await self._fetch(snapshot, context, cache_actions.fetching, jobs)) != activity.fetching:
            activity = replace(activity, fetching=fetching)
        if fetching is not None and fetching.state is FetchingState.FETCHED:
            activity = replace(activity, recheck_seconds=0.0)
        desired = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in cache_actions.manifests}
        kept = [
            child
            for child in snapshot.children
            if (child["kind"], child["metadata"]["name"]) not in desired
            and ((activity.held and _is_held(child, resource)) or is_claim_template_in_use(snapshot, child))
        ]
        weights = context.claims.get(context.weights_claim_name or "")
        return CacheOutcome(
            manifests=cache_actions.manifests,
            live=[claim if claim is not None and _is_same(child, claim) else child for child in snapshot.children if child not in kept],
            outcome=outcome,
            kept=kept,
            claim_name=context.address.claim if context.address else None,
            claim=claim,
            weights_claim_name=context.weights_claim_name,
            weights_claim=dict(weights) if weights is not None else None,
            activity=activity,
            held_replicas=cache_actions.scale,
            jobs=tuple(jobs),
        )

    async def release_claims(self, snapshot: Snapshot) -> None:
        """Delete cleaning Jobs and finished Pods that block the deletion of a claim.

        Raises:
            ClusterError: Try again.
        """
        for removal in find_removals(snapshot.pods):
            claims = await read_claims(self._client, snapshot, *sorted(removal.claims))
            if any(map(is_terminating, claims)):
                await self._remove(snapshot, removal)

    async def _remove(self, snapshot: Snapshot, removal: Removal) -> None:
        kind, namespace = JOB if removal.is_job else POD, snapshot.resource["metadata"]["namespace"]
        try:
            if removal.is_job:
                job = await self._client.get(JOB, removal.name, namespace)
                if job["metadata"].get("uid") != removal.uid or not is_controlled_by(job, snapshot.resource):
                    return
            await self._client.delete(kind, removal.name, namespace, uid=removal.uid)
        except NotFound:
            return  # the garbage collector is about to delete its Pods
        except Forbidden as error:
            log.warning("%s %s is not needed and cannot be deleted: %s", kind.kind, removal.name, error)
            return
        self._count("delete", kind.kind)

    async def _keep_all(self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome) -> CacheOutcome:
        """Keep all children: an invalid spec is no reason to stop a running engine. Only scale down if the spec asks for it."""
        deployment = snapshot.child(DEPLOYMENT)
        name = _claim_name(resource, deployment)
        weights_name = weights_claim(template_spec(deployment))
        claim, weights = await read_claims(self._client, snapshot, name, weights_name)
        is_own = deployment is not None and _is_replicas(deployment, resource)
        is_fewer = is_own and resource.spec.replicas < (reading.integer(deployment, "spec", "replicas") or 0)
        return CacheOutcome(
            manifests=[],
            live=[],
            outcome=outcome,
            kept=list(snapshot.children),
            claim_name=name,
            claim=claim,
            weights_claim_name=weights_name,
            weights_claim=weights,
            held_replicas=resource.spec.replicas if is_fewer else None,
        )

    async def _choose_directory(
        self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome, plan: Plan, replan: Callable[[int], Outcome]
    ) -> tuple[Outcome, CacheContext, list[Manifest]]:
        """Choose a cache directory that fits the image and is not quarantined, from the records on the PersistentVolumeClaim."""
        tried: set[str] = set()
        while True:
            tried.add(plan.cache_key)
            context, manifests = await self._read_context(resource, snapshot, plan)
            if (directory := other_directory(context)) is not None:
                plan = plan.model_copy(update={"cache_key": directory})
                outcome = replace(outcome, plan=plan)
                context, manifests = await self._read_context(resource, snapshot, plan)
            generation = next_cache_generation(context)
            again = replan(generation) if generation is not None else outcome
            # A plan whose key has no generation stays the same, and would be retried endlessly.
            if again.plan is None or again.plan.cache_key in {*tried, plan.cache_key}:
                return outcome, context, manifests
            outcome, plan = again, again.plan

    async def _read_context(self, resource: VLLMDeployment, snapshot: Snapshot, plan: Plan) -> tuple[CacheContext, list[Manifest]]:
        """Render a plan, and read the inputs of the decisions about its caches."""
        manifests = render(*carried_out(resource, plan))
        desired = _deployment_of(manifests)
        address = cache_address(template_spec(desired))
        weights_name = weights_claim(template_spec(desired))
        if address is not None and weights_name == address.claim:
            weights_name = None
        others = claims_of_others(template_spec(desired), resource.metadata.name)
        claim_names = (address.claim if address else None, weights_name, *others)
        read = await read_claims(self._client, snapshot, *claim_names)
        claims = {str(found["metadata"]["name"]): found for found in read if found is not None}
        if (commit := fetched_commit(resource, desired, claims)) is not None:
            manifests = render(*carried_out(resource, with_commit(plan, resource, commit)))
            desired = _deployment_of(manifests)
        desired_claims = {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == CLAIM.kind}
        shared = await self._sharing.reconcile(resource, claims, desired_claims, others)
        claim, weights = (shared.claims.get(name or "") for name in claim_names[:2])
        context = CacheContext(
            resource=resource,
            plan=plan,
            desired=desired,
            now=self._now(),
            deployment=next((child for child in snapshot.children if _is_replicas(child, resource)), None),
            primer=next((c for c in snapshot.children if _is_deployment(c, resource, primer_name(resource.metadata.name))), None),
            claim=claim,
            desired_claim=desired_claims.get(address.claim) if address else None,
            claims={str(found["metadata"]["name"]): found for found in (claim, weights) if found is not None},
            claim_users=shared.users,
            lender_notes=shared.notes,
            weights_claim_name=weights_name,
            weights_modes=reading.access_modes(weights if weights is not None else desired_claims.get(weights_name or "")),
            pods=snapshot.pods,
            primer_patience_seconds=self._primer_patience_seconds,
        )
        if needs_gpu_nodes(context):
            context = replace(context, gpu_nodes=await self._gpu_nodes(plan))
        lease = read_lease(context.claim, address.key) if address else None
        if lease is not None and lease.uid != resource.metadata.uid:
            context = await self._with_holder(context, lease.name)
        return context, manifests

    async def _gpu_nodes(self, plan: Plan) -> tuple[str, ...]:
        """Return the names of the nodes with a plan's GPUs; empty if the nodes cannot be read."""
        try:
            inventory = await self._inventory.read()
        except ClusterError as error:
            log.warning("cannot read the nodes on which weights may be fetched: %s", error)
            return ()
        return inventory.nodes_of(plan.resource, plan.architecture, plan.product)

    async def _with_holder(self, context: CacheContext, name: str) -> CacheContext:
        """Add the VLLMDeployment that holds the priming lease, and its Pods."""
        namespace = context.resource.metadata.namespace
        try:
            holder = await self._client.get(VLLM_DEPLOYMENT, name, namespace)
        except NotFound:
            return context
        return replace(context, holder=holder, holder_pods=await find_pods(self._client, namespace, name))

    async def _record(self, context: CacheContext, cache_actions: CacheActions) -> tuple[Manifest | None, bool]:
        """Write the records to the PersistentVolumeClaim. Return the updated claim, and whether it contains the records."""
        claim = dict(context.claim) if context.claim is not None else None
        if claim is None or not cache_actions.record:
            return claim, True
        try:
            written = await annotate_claim(self._client, claim, cache_actions.record)
        except (Forbidden, Invalid) as error:
            log.warning("cannot record the state of the caches on PersistentVolumeClaim %s: %s", claim["metadata"]["name"], error)
            return claim, False
        if written["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"]:
            self._count("patch", CLAIM.kind)
        return written, True

    async def _clean(
        self, context: CacheContext, need: CleaningNeed, jobs: list[Manifest], claim: Manifest | None
    ) -> tuple[Cleaning | None, Manifest | None]:
        """Create the Job that deletes unused cache directories. Return why it cannot be created (None if it exists), and the claim."""
        namespace, address = context.resource.metadata.namespace, context.address
        full = self._crashes.reporting.cleaning
        pods = await self._client.find(POD, namespace)
        if address is not None and (blocker := find_blocking_pod(address.claim, pods)) is not None:
            why, state = f"Pod {blocker} mounts the whole volume", CleaningState.IN_USE_BY_OTHERS
            return describe_blocked_cleaning(context, full, state, blocker), await self._record_blocked(context, need, why, claim)
        users = await self._client.find(VLLM_DEPLOYMENT, namespace)
        try:
            await self._create_job(render_cleaning(context, need, directories_in_use(context, users, pods)), jobs)
        except (Forbidden, Invalid) as error:
            log.warning("cannot create the Job that cleans the cache volume: %s", error)
            why, state = str(error), CleaningState.REFUSED
            return describe_blocked_cleaning(context, full, state, why), await self._record_blocked(context, need, why, claim)
        return None, claim

    async def _record_blocked(self, context: CacheContext, need: CleaningNeed, why: str, claim: Manifest | None) -> Manifest | None:
        if need.is_full or claim is None:
            return claim
        self._count("patch", CLAIM.kind)
        return await annotate_claim(self._client, claim, record_attempt(context, need.doomed, why))

    async def _fetch(self, snapshot: Snapshot, context: CacheContext, plan: FetchingPlan, jobs: list[Manifest]) -> Fetching | None:
        """Create the Job that fetches the weights, record its result, and delete unneeded Jobs. Return the state to report."""
        for removal in plan.superseded:
            await self._remove(snapshot, removal)
        if plan.state is None:
            return None
        try:
            if plan.job is not None and (live := await self._create_job(plan.job, jobs)) is not None and is_outdated(live, plan.job):
                await self._remove(snapshot, Removal(True, live["metadata"]["name"], live["metadata"]["uid"], frozenset()))
                jobs.clear()
                await self._create_job(plan.job, jobs)
            if plan.record is not None:
                claim = context.claims[plan.state.claim]
                await annotate_claim(self._client, dict(claim), plan.record)
                self._count("patch", CLAIM.kind)
        except (Forbidden, Invalid) as error:
            log.warning("cannot fetch weights to PersistentVolumeClaim %s: %s", plan.state.claim, error)
            return replace(plan.state, state=FetchingState.REFUSED, why=str(error))
        except Conflict:
            return plan.state  # the claim has changed since; the next reconciliation sees it
        return plan.state

    async def _publish(self, job: Manifest, jobs: list[Manifest]) -> str | None:
        """Create the Job that publishes the caches. Return why it cannot be created; None if it exists."""
        try:
            await self._create_job(job, jobs)
        except (Forbidden, Invalid) as error:
            log.warning("cannot create the Job that publishes caches: %s", error)
            return str(error)
        return None

    async def _create_job(self, job: Manifest, existing: list[Manifest]) -> Manifest | None:
        """Create a Job. If a Job with this name exists, add it to `existing` and return it.

        Raises:
            ClusterError: The Job cannot be created.
        """
        try:
            await self._client.create(job)
        except Conflict:
            try:
                live = await self._client.get(JOB, job["metadata"]["name"], job["metadata"]["namespace"])
            except (NotFound, Forbidden):
                return None
            existing.append(live)
            return live
        self._count("create", JOB.kind)
        return None


def _deployment_of(manifests: list[Manifest]) -> Manifest:
    return next(manifest for manifest in manifests if manifest["kind"] == DEPLOYMENT.kind)


def _claim_name(resource: VLLMDeployment, deployment: Manifest | None) -> str | None:
    """Return the name of the caches' PersistentVolumeClaim if there is no plan."""
    address = cache_address(template_spec(deployment))
    named = resource.spec.cache.claim_name if resource.spec.cache else None
    return address.claim if address else named


def _is_replicas(child: Manifest, resource: VLLMDeployment) -> bool:
    return _is_deployment(child, resource, resource.metadata.name)


def _is_held(child: Manifest, resource: VLLMDeployment) -> bool:
    """Return whether a held rollout keeps a child unchanged: the Deployment of the replicas, and the ResourceClaimTemplates of its Pods."""
    return _is_replicas(child, resource) or child["kind"] == CLAIM_TEMPLATE.kind


def _is_deployment(child: Manifest, resource: VLLMDeployment, name: str) -> bool:
    """Return whether a child is the Deployment with this name and belongs to this VLLMDeployment, not to an earlier one with its name."""
    metadata = child["metadata"]
    owners = [reference.get("uid") for reference in metadata.get("ownerReferences") or ()]
    named = (child["kind"], metadata["name"]) == (DEPLOYMENT.kind, name)
    return named and resource.metadata.uid in owners and not metadata.get("deletionTimestamp")


def _is_same(child: Manifest, other: Manifest) -> bool:
    return bool(child["metadata"].get("uid") == other["metadata"].get("uid"))
