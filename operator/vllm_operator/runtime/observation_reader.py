"""Reads what decisions and status are made from: one `Observation` from the children, the logs, events and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import Plan
from vllm_operator.caches.activity import CacheActivity
from vllm_operator.caches.context import is_primer, is_replica
from vllm_operator.cluster.apply import Applied, Refusal
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, SERVICE, ClusterClient, Forbidden, Invalid, Key, Kind, Manifest
from vllm_operator.cluster.events import shorten
from vllm_operator.cluster.explanations import Explanations
from vllm_operator.cluster.inventory import InventoryCache
from vllm_operator.cluster.observe import Snapshot, is_of_earlier
from vllm_operator.observation.observation import Observation
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.inventory.taints import Taint
from vllm_operator.pods.view import waits_for_node
from vllm_operator.runtime.cache_reconciler import CacheOutcome
from vllm_operator.runtime.cpu_use import CpuUse
from vllm_operator.startup.state import StartupState


class LogStates(Protocol):
    """What logs have told."""

    def states(self, key: Key) -> Mapping[tuple[str, int], StartupState]:
        """What the logs of the Pods of a VLLMDeployment have told, by run."""


class ObservationReader:
    """Reads the observation of one VLLMDeployment after the other."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        inventory: InventoryCache[Inventory],
        logs: LogStates,
        now: Callable[[], datetime],
    ) -> None:
        self._inventory = inventory
        self._logs = logs
        self._now = now
        self._explanations = Explanations(client, now=now)
        self._cpu_use = CpuUse(client)

    async def read(
        self, resource: VLLMDeployment, snapshot: Snapshot, cache_outcome: CacheOutcome, applied: Applied
    ) -> tuple[Observation, float | None]:
        """Everything that is known now, and in how many seconds there may be more to know; None if only a change can tell more.

        Raises:
            ClusterError: The API server cannot be read.
        """
        claims = {child["metadata"]["name"]: child for child in applied.children if child["kind"] == CLAIM.kind}
        claim = claims.get(cache_outcome.claim_name or "", cache_outcome.claim)
        weights = claims.get(cache_outcome.weights_claim_name or "", cache_outcome.weights_claim)
        events, look_again = await self._explanations.read(snapshot.pods, (claim, weights))
        states = self._logs.states((resource.metadata.namespace, resource.metadata.name))
        now = self._now()
        deployment = snapshot.child(DEPLOYMENT)
        of_earlier = deployment is not None and is_of_earlier(deployment, snapshot.resource)
        observation = Observation(
            resource=resource,
            outcome=cache_outcome.outcome,
            now=now,
            deployment=_child(applied, DEPLOYMENT, resource) or (None if of_earlier else deployment),
            service=_child(applied, SERVICE, resource) or snapshot.child(SERVICE),
            claim=claim,
            claim_name=cache_outcome.claim_name,
            weights_claim=weights,
            weights_claim_name=cache_outcome.weights_claim_name,
            pods=() if of_earlier else tuple(pod for pod in snapshot.pods if is_replica(pod)),
            primers=tuple(pod for pod in snapshot.pods if is_primer(pod)),
            pod_events=events,
            startups=states,
            cores=await self._cpu_use.read(resource, snapshot.pods, states, now),
            taints=await self._taints(cache_outcome.outcome.plan, snapshot.pods),
            activity=_with_refused_claims(cache_outcome.activity, applied, (claim, weights)),
            not_kept=tuple(applied.not_kept),
            apply_error=_apply_error(applied, (claim, weights)),
        )
        return observation, look_again

    async def _taints(self, plan: Plan | None, pods: Sequence[Manifest]) -> Mapping[str, tuple[Taint, ...]]:
        """What keeps Pods off the nodes with the GPUs of the plan, where a Pod waits for a node."""
        if plan is None or not any(map(waits_for_node, pods)):
            return {}
        try:
            inventory = await self._inventory.read()
        except Forbidden:
            return {}  # the condition Planned says so
        return inventory.taints_of(plan.resource, plan.architecture)


def _child(applied: Applied, kind: Kind, resource: VLLMDeployment) -> Manifest | None:
    name = resource.metadata.name
    return next((child for child in applied.children if (child["kind"], child["metadata"]["name"]) == (kind.kind, name)), None)


def _apply_error(applied: Applied, claims: Sequence[Manifest | None]) -> str | None:
    """What the API server refused, and only somebody can change; None if nothing."""
    errors = [str(refusal) for refusal in applied.refusals if not _is_only_size(refusal, claims)]
    if isinstance(applied.failure, (Forbidden, Invalid)):
        errors.append(str(applied.failure))
    return "; ".join(errors) or None


def _is_only_size(refusal: Refusal, claims: Sequence[Manifest | None]) -> bool:
    """Whether a refusal is about a PersistentVolumeClaim that exists: everything works but with its former size."""
    return any(claim is not None and (refusal.kind, refusal.name) == (CLAIM.kind, claim["metadata"]["name"]) for claim in claims)


def _with_refused_claims(activity: CacheActivity, applied: Applied, claims: Sequence[Manifest | None]) -> CacheActivity:
    notes = [_about_refused_claim(refusal) for refusal in applied.refusals if _is_only_size(refusal, claims)]
    return replace(activity, claim_note=" ".join(notes)) if notes else activity


def _about_refused_claim(refusal: Refusal) -> str:
    if isinstance(refusal.error, Forbidden) and "ownerRef" in str(refusal.error):
        return (
            f"{refusal.kind} {refusal.name} stays when this object is deleted: the API server lets only those give it an owner who may "
            f"delete it, and the operator may not. Delete it yourself."
        )
    return f"{refusal.kind} {refusal.name} keeps its size: {shorten(str(refusal.error))}"
