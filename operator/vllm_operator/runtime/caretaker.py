"""The hands of `vllm_operator.upkeep`: reads the claim of the caches and who else uses it, records what was decided.

What is recorded is written before the Pods that follow from it: a lease is taken first, then used.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import Plan
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
from vllm_operator.planning.storage.care import NO_CARE, CacheCare, Cleaning, CleaningState
from vllm_operator.rendering.addresses import cache_address, template_spec, weights_claim
from vllm_operator.rendering.primer import primer_name
from vllm_operator.reporting import reading
from vllm_operator.runtime.rooms import Rooms
from vllm_operator.upkeep.cleaning import CleaningNeed, blocker_of, keep_of, render_need
from vllm_operator.upkeep.images import other_directory
from vllm_operator.upkeep.quarantine import next_generation
from vllm_operator.upkeep.records import read_lease
from vllm_operator.upkeep.situation import Situation
from vllm_operator.upkeep.tending import Upkeep

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tended:
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
    care: CacheCare = NO_CARE
    held_replicas: int | None = None
    """How many replicas the Deployment among `kept` is to have; None if it stays as it is."""


class Caretaker:
    """Takes care of the caches of one VLLMDeployment after the other."""

    def __init__(self, client: ClusterClient, rooms: Rooms, *, count: Callable[[str, str], None], now: Callable[[], datetime]) -> None:
        """`count` is called with the verb and the kind of each write."""
        self._client = client
        self._rooms = rooms
        self._count = count
        self._now = now

    async def tend(self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome, replan: Callable[[int], Outcome]) -> Tended:
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
            return Tended([], [], outcome, children, name, claims[0], of_weights, claims[1], held_replicas=held)
        outcome, situation, manifests = await self._on_the_claim(resource, snapshot, outcome, outcome.plan, replan)
        upkeep = self._rooms.tend(situation, manifests)
        name = situation.address.claim if situation.address else None
        claim = await self._record(situation, upkeep)
        care = upkeep.care
        if upkeep.cleaning is not None and (said := await self._clean(situation, upkeep.cleaning)) is not None:
            care = replace(care, cleaning=said)
        wished = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in upkeep.manifests}
        kept = [
            child
            for child in children
            if upkeep.care.held and _stays(child, resource) and (child["kind"], child["metadata"]["name"]) not in wished
        ]
        live = [claim if claim is not None and _is_same(child, claim) else child for child in children if child not in kept]
        of_weights = situation.weights_claim_name
        found = situation.claims.get(of_weights or "")
        weights = dict(found) if found is not None else None
        return Tended(upkeep.manifests, live, outcome, kept, name, claim, of_weights, weights, care, upkeep.scale)

    async def _on_the_claim(
        self, resource: VLLMDeployment, snapshot: Snapshot, outcome: Outcome, plan: Plan, replan: Callable[[int], Outcome]
    ) -> tuple[Outcome, Situation, list[Manifest]]:
        """Find the directory as the claim says: not one that was left behind as damaged, nor one that another image has filled."""
        while True:
            manifests = self._rooms.render(resource, plan)
            situation = await self._situation(resource, snapshot, plan, manifests)
            if (directory := other_directory(situation)) is not None:
                plan = plan.model_copy(update={"cache_key": directory})
                outcome = replace(outcome, plan=plan)
                manifests = self._rooms.render(resource, plan)
                situation = await self._situation(resource, snapshot, plan, manifests)
            generation = next_generation(situation)
            again = replan(generation) if generation is not None else outcome
            if again.plan is None or again.plan.cache_key == plan.cache_key:
                return outcome, situation, manifests
            outcome, plan = again, again.plan

    async def _situation(self, resource: VLLMDeployment, snapshot: Snapshot, plan: Plan, manifests: list[Manifest]) -> Situation:
        wish = next(manifest for manifest in manifests if manifest["kind"] == DEPLOYMENT.kind)
        address = cache_address(template_spec(wish))
        claim = await read_claim(self._client, snapshot, address.claim if address else None)
        of_weights = weights_claim(template_spec(wish))
        of_weights = None if address is not None and of_weights == address.claim else of_weights
        weights = await read_claim(self._client, snapshot, of_weights)
        wished = {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == CLAIM.kind}
        situation = Situation(
            resource=resource,
            plan=plan,
            wish=wish,
            now=self._now(),
            deployment=next((child for child in snapshot.children if _is_replicas(child, resource)), None),
            primer=next((c for c in snapshot.children if _is_deployment(c, resource, primer_name(resource.metadata.name))), None),
            claim=claim,
            wished_claim=wished.get(address.claim) if address else None,
            claims={found["metadata"]["name"]: found for found in (claim, weights) if found is not None},
            weights_claim_name=of_weights,
            weights_modes=reading.access_modes(weights if weights is not None else wished.get(of_weights or "")),
            pods=snapshot.pods,
        )
        lease = read_lease(situation.claim, address.key) if address else None
        if lease is None or lease.uid == resource.metadata.uid:
            return situation
        return await self._with_holder(situation, lease.name)

    async def _with_holder(self, situation: Situation, name: str) -> Situation:
        namespace = situation.resource.metadata.namespace
        try:
            holder = await self._client.get(VLLM_DEPLOYMENT, name, namespace)
        except NotFound:
            return situation
        return replace(situation, holder=holder, holder_pods=await find_pods(self._client, namespace, name))

    async def _record(self, situation: Situation, upkeep: Upkeep) -> Manifest | None:
        """Write what is to be recorded; return the claim as it is then."""
        claim = dict(situation.claim) if situation.claim is not None else None
        if claim is None or not upkeep.record:
            return claim
        try:
            now = await annotate_claim(self._client, claim, upkeep.record)
        except (Forbidden, Invalid) as error:
            log.warning("what is known of the caches cannot be recorded: %s", error)
            return claim
        if now["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"]:
            self._count("patch", CLAIM.kind)
        return now

    async def _clean(self, situation: Situation, need: CleaningNeed) -> Cleaning | None:
        """Start the Job that makes room; return what is to be said if that cannot be. One that exists already is left alone."""
        namespace, address = situation.resource.metadata.namespace, situation.address
        pods = await self._client.find(POD, namespace)
        if address is not None and (blocker := blocker_of(address.claim, pods)) is not None:
            return self._rooms.hindered(situation, CleaningState.UNCLEAR, blocker)
        users = await self._client.find(VLLM_DEPLOYMENT, namespace)
        try:
            await self._client.create(render_need(situation, need, keep_of(situation, users, pods)))
        except Conflict:
            return None
        except (Forbidden, Invalid) as error:
            log.warning("no room can be made on the volume of the caches: %s", error)
            return self._rooms.hindered(situation, CleaningState.REFUSED, str(error))
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
