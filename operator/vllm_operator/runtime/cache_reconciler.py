"""The hands of `vllm_operator.caches`: reads the claim of the caches and who else uses it, records what was decided.

What is recorded is written before the Pods that follow from it: a lease is taken first, then used.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from vllm_operator.api.resource import VLLMDeployment, primer_name
from vllm_operator.api.status import Plan
from vllm_operator.caches.actions import CacheActions, plan_cache_actions
from vllm_operator.caches.activity import NO_ACTIVITY, CacheActivity, Cleaning, CleaningState
from vllm_operator.caches.address import cache_address, template_spec, weights_claim
from vllm_operator.caches.cleaning import (
    CleaningNeed,
    describe_blocked_cleaning,
    directories_in_use,
    find_blocking_pod,
    render_need,
)
from vllm_operator.caches.context import PRIMER_PATIENCE_SECONDS, CacheContext
from vllm_operator.caches.directories import next_cache_generation, other_directory
from vllm_operator.caches.records import read_lease
from vllm_operator.cluster.client import (
    CLAIM,
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    JOB,
    POD,
    VLLM_DEPLOYMENT,
    ClusterClient,
    Conflict,
    Forbidden,
    Invalid,
    Manifest,
    NotFound,
)
from vllm_operator.cluster.observe import Snapshot, find_pods, read_claim
from vllm_operator.cluster.records import annotate_claim
from vllm_operator.planning.outcome import Outcome
from vllm_operator.pods import reading
from vllm_operator.remediation.in_force import carried_out
from vllm_operator.rendering.manifests import render
from vllm_operator.runtime.user_data import KnownCatalog, KnownCrashes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOutcome:
    """What to apply, and what was found out on the way.

    `live` are the children that may be changed or deleted, `kept` those that stay as they are for now.
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
    """How many replicas the Deployment among `kept` is to have; None if it stays as it is."""


class CacheReconciler:
    """Takes care of the caches of one VLLMDeployment after the other."""

    def __init__(
        self,
        client: ClusterClient,
        catalog: KnownCatalog,
        crashes: KnownCrashes,
        *,
        count: Callable[[str, str], None],
        primer_patience_seconds: int = PRIMER_PATIENCE_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare to reconcile.

        Args:
            client: The way to the API server.
            catalog: When `priming: Auto` primes.
            crashes: Which crashes come from a full or a read-only volume.
            count: Called with the verb and the kind of each write.
            primer_patience_seconds: How long a primer may wait for a GPU while replicas serve.
            now: The clock.
        """
        self._client = client
        self._catalog = catalog
        self._crashes = crashes
        self._count = count
        self._primer_patience_seconds = primer_patience_seconds
        self._now = now

    async def reconcile(
        self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome, replan: Callable[[int], Outcome]
    ) -> CacheOutcome:
        """Find out what is to be applied now, and record on the claim what must be recorded before.

        Args:
            resource: The VLLMDeployment.
            snapshot: It and its children, as read.
            outcome: What planning says.
            replan: Plans with another generation of the caches.

        Raises:
            ClusterError: Try again.
        """
        children = list(snapshot.children)
        if outcome.plan is None:
            # what runs keeps running: a spec that cannot be planned is no reason to stop; a wish for fewer replicas is
            deployment = snapshot.child(DEPLOYMENT)
            name = _claim_name(resource, deployment)
            of_weights = weights_claim(template_spec(deployment))
            claims = [await read_claim(self._client, snapshot, claim) for claim in (name, of_weights)]
            fewer = resource.spec.replicas < ((deployment or {}).get("spec") or {}).get("replicas", 0)
            held = resource.spec.replicas if fewer else None
            return CacheOutcome(
                manifests=[],
                live=[],
                outcome=outcome,
                kept=children,
                claim_name=name,
                claim=claims[0],
                weights_claim_name=of_weights,
                weights_claim=claims[1],
                held_replicas=held,
            )
        outcome, context, manifests = await self._on_the_claim(resource, snapshot, outcome, outcome.plan, replan)
        cache_actions = plan_cache_actions(
            context,
            manifests,
            self._catalog.shipped.priming,
            full=self._crashes.reporting.cleaning,
            read_only=self._crashes.reporting.remounting,
        )
        name = context.address.claim if context.address else None
        claim = await self._record(context, cache_actions)
        activity = cache_actions.activity
        if cache_actions.cleaning is not None and (said := await self._clean(context, cache_actions.cleaning)) is not None:
            activity = replace(activity, cleaning=said)
        wished = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in cache_actions.manifests}
        kept = [
            child
            for child in children
            if cache_actions.activity.held and _stays(child, resource) and (child["kind"], child["metadata"]["name"]) not in wished
        ]
        live = [claim if claim is not None and _is_same(child, claim) else child for child in children if child not in kept]
        of_weights = context.weights_claim_name
        found = context.claims.get(of_weights or "")
        return CacheOutcome(
            manifests=cache_actions.manifests,
            live=live,
            outcome=outcome,
            kept=kept,
            claim_name=name,
            claim=claim,
            weights_claim_name=of_weights,
            weights_claim=dict(found) if found is not None else None,
            activity=activity,
            held_replicas=cache_actions.scale,
        )

    async def _on_the_claim(
        self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome, plan: Plan, replan: Callable[[int], Outcome]
    ) -> tuple[Outcome, CacheContext, list[Manifest]]:
        """Find the directory as the claim says: not one that was left behind as damaged, nor one that another image has filled."""
        while True:
            manifests = render(*carried_out(resource, plan))
            context = await self._context(resource, snapshot, plan, manifests)
            if (directory := other_directory(context)) is not None:
                plan = plan.model_copy(update={"cache_key": directory})
                outcome = replace(outcome, plan=plan)
                manifests = render(*carried_out(resource, plan))
                context = await self._context(resource, snapshot, plan, manifests)
            generation = next_cache_generation(context)
            again = replan(generation) if generation is not None else outcome
            if again.plan is None or again.plan.cache_key == plan.cache_key:
                return outcome, context, manifests
            outcome, plan = again, again.plan

    async def _context(self, resource: VLLMDeployment, snapshot: Snapshot, plan: Plan, manifests: list[Manifest]) -> CacheContext:
        desired = next(manifest for manifest in manifests if manifest["kind"] == DEPLOYMENT.kind)
        address = cache_address(template_spec(desired))
        claim = await read_claim(self._client, snapshot, address.claim if address else None)
        of_weights = weights_claim(template_spec(desired))
        of_weights = None if address is not None and of_weights == address.claim else of_weights
        weights = await read_claim(self._client, snapshot, of_weights)
        wished = {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == CLAIM.kind}
        context = CacheContext(
            resource=resource,
            plan=plan,
            desired=desired,
            now=self._now(),
            deployment=next((child for child in snapshot.children if _is_replicas(child, resource)), None),
            primer=next((c for c in snapshot.children if _is_deployment(c, resource, primer_name(resource.metadata.name))), None),
            claim=claim,
            desired_claim=wished.get(address.claim) if address else None,
            claims={found["metadata"]["name"]: found for found in (claim, weights) if found is not None},
            weights_claim_name=of_weights,
            weights_modes=reading.access_modes(weights if weights is not None else wished.get(of_weights or "")),
            pods=snapshot.pods,
            primer_patience_seconds=self._primer_patience_seconds,
        )
        lease = read_lease(context.claim, address.key) if address else None
        if lease is None or lease.uid == resource.metadata.uid:
            return context
        return await self._with_holder(context, lease.name)

    async def _with_holder(self, context: CacheContext, name: str) -> CacheContext:
        namespace = context.resource.metadata.namespace
        try:
            holder = await self._client.get(VLLM_DEPLOYMENT, name, namespace)
        except NotFound:
            return context
        return replace(context, holder=holder, holder_pods=await find_pods(self._client, namespace, name))

    async def _record(self, context: CacheContext, cache_actions: CacheActions) -> Manifest | None:
        """Write what is to be recorded; return the claim as it is then."""
        claim = dict(context.claim) if context.claim is not None else None
        if claim is None or not cache_actions.record:
            return claim
        try:
            now = await annotate_claim(self._client, claim, cache_actions.record)
        except (Forbidden, Invalid) as error:
            log.warning("what is known of the caches cannot be recorded: %s", error)
            return claim
        if now["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"]:
            self._count("patch", CLAIM.kind)
        return now

    async def _clean(self, context: CacheContext, need: CleaningNeed) -> Cleaning | None:
        """Start the Job that makes room; return what is to be said if that cannot be. One that exists already is left alone."""
        namespace, address = context.resource.metadata.namespace, context.address
        full = self._crashes.reporting.cleaning
        pods = await self._client.find(POD, namespace)
        if address is not None and (blocker := find_blocking_pod(address.claim, pods)) is not None:
            return describe_blocked_cleaning(context, full, CleaningState.UNCLEAR, blocker)
        users = await self._client.find(VLLM_DEPLOYMENT, namespace)
        try:
            await self._client.create(render_need(context, need, directories_in_use(context, users, pods)))
        except Conflict:
            return None
        except (Forbidden, Invalid) as error:
            log.warning("no room can be made on the volume of the caches: %s", error)
            return describe_blocked_cleaning(context, full, CleaningState.REFUSED, str(error))
        self._count("create", JOB.kind)
        return None


def _claim_name(resource: VLLMDeployment, deployment: Manifest | None) -> str | None:
    """The claim that the caches are expected on while there is no plan."""
    address = cache_address(template_spec(deployment))
    named = resource.spec.cache.claim_name if resource.spec.cache else None
    return address.claim if address else named


def _is_replicas(child: Manifest, resource: VLLMDeployment) -> bool:
    """Whether a child is the Deployment of the replicas."""
    return _is_deployment(child, resource, resource.metadata.name)


def _stays(child: Manifest, resource: VLLMDeployment) -> bool:
    """Whether a child stays as it is while a rollout is held: the replicas, and what new Pods of theirs would need."""
    return _is_replicas(child, resource) or child["kind"] == CLAIM_TEMPLATE.kind


def _is_deployment(child: Manifest, resource: VLLMDeployment, name: str) -> bool:
    """Whether a child is the Deployment of this name. One of an earlier VLLMDeployment of the same name is not."""
    metadata = child["metadata"]
    owners = [reference.get("uid") for reference in metadata.get("ownerReferences") or ()]
    named = (child["kind"], metadata["name"]) == (DEPLOYMENT.kind, name)
    return named and resource.metadata.uid in owners and not metadata.get("deletionTimestamp")


def _is_same(child: Manifest, other: Manifest) -> bool:
    return bool(child["metadata"].get("uid") == other["metadata"].get("uid"))
