"""Who fills an empty cache: one Pod, before the others start.

A cache counts as filled once a Pod with it was seen to be Ready; that is recorded on its claim. Until then, where
priming is wanted:

* nothing serves yet: the Deployment has one replica, the others follow once it is Ready;
* Pods with another cache serve (a new image, for example): the Deployment is left as it is, and a primer fills the new
  cache. If it finds no GPU within `primer_patience_seconds`, that is said, and the rollout goes on without it;
* no replica is wanted (`spec.replicas: 0`): a primer, for as long as it takes.

An interrupted start does not make a Pod Ready, so it does not count; its successor goes on with what is on the volume.

Who shares a claim and a key agrees by a lease on the claim. Its holder must exist and have a Pod that is on its way;
one that is gone or stuck is replaced, so nobody waits for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.labels import PRIME_ANNOTATION, PRIMED_ANNOTATION_PREFIX, PRIMING_ANNOTATION_PREFIX
from vllm_operator.api.operation import CacheSpec, Priming
from vllm_operator.caches.activity import NO_ACTIVITY, CacheActivity, PrimingStep
from vllm_operator.caches.address import CacheAddress, cache_address
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.records import Changes, PrimingLease, is_primed, is_quarantined, read_lease
from vllm_operator.catalog.caches import PrimingRule
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, PodView, read_pod
from vllm_operator.text import wording

LEASE_GRACE_SECONDS = 60
"""How long the holder of a lease may have no Pod that is on its way: to be created, scheduled, moved to another node."""
HOLDER_RECHECK_SECONDS = 15.0
"""How often a VLLMDeployment that waits for another one looks at it: the other's Pods are not its own to watch."""
HOLDER_RESTARTS = 3
"""A holder whose Pod has crashed this often is not waited for any longer."""
_ON_THE_WAY = frozenset({Phase.SCHEDULING, Phase.CREATING, Phase.IMAGE_PULLING, Phase.STARTING, Phase.READY})


@dataclass(frozen=True, slots=True)
class PrimingDecision:
    """Which Pods are to run, and what to record on the claim.

    `replicas` is how many the Deployment has for now; None stands for what the spec says.
    """

    activity: CacheActivity = NO_ACTIVITY
    replicas: int | None = None
    record: Changes = field(default_factory=dict)


def decide(context: CacheContext, rules: Sequence[PrimingRule]) -> PrimingDecision:
    """Decide who fills the cache of a plan, if it is empty.

    Args:
        context: What is the case.
        rules: When `priming: Auto` primes.
    """
    address = context.address
    if address is None:
        return PrimingDecision()
    if (record := _filled(context, address)) is not None:
        return PrimingDecision(record=record)
    priming = _wanted(context, address, rules)
    priming = replace(priming, activity=replace(priming.activity, skipped=priming.activity.skipped or _remembered(context)))
    lease, uid = read_lease(context.claim, address.key), context.resource.metadata.uid
    ours = lease is not None and lease.uid == uid
    if not priming.activity.is_priming:
        return PrimingDecision(priming.activity, record={PRIMING_ANNOTATION_PREFIX + address.key: None} if ours else {})
    if lease is not None and not ours and _is_active(context, lease, address):
        return _elsewhere(context, priming.activity, lease)
    if ours or context.claim is None:
        return priming
    mine = PrimingLease(context.resource.metadata.name, uid, context.now)
    return PrimingDecision(priming.activity, priming.replicas, {PRIMING_ANNOTATION_PREFIX + address.key: str(mine)})


def _filled(context: CacheContext, address: CacheAddress) -> Changes | None:
    """What to record of a cache that is filled; None if it is not."""
    primed = is_primed(context.claim, address.key)
    ready = any(at == address and view.phase is Phase.READY for at, view in (*context.replicas, *context.primers))
    if not primed and not ready:
        return None
    record: Changes = {}
    if not primed and context.claim is not None and not is_quarantined(context.claim, address.key):
        record[PRIMED_ANNOTATION_PREFIX + address.key] = reading.stamp(context.now)
    if reading.text(context.claim, "metadata", "annotations", PRIMING_ANNOTATION_PREFIX + address.key):
        record[PRIMING_ANNOTATION_PREFIX + address.key] = None
    return record


def _wanted(context: CacheContext, address: CacheAddress, rules: Sequence[PrimingRule]) -> PrimingDecision:
    """Who would fill the cache if nobody else had a say."""
    cache = context.resource.spec.cache or CacheSpec()
    asked = context.resource.metadata.annotations.get(PRIME_ANNOTATION) in ("true", address.key)
    insists = asked or cache.priming is Priming.ALWAYS
    wanted = context.resource.spec.replicas
    if cache.priming is Priming.NEVER and not asked:
        return PrimingDecision()
    if wanted == 0:
        because = "spec.replicas is 0, and priming was requested."
        return PrimingDecision(CacheActivity(step=PrimingStep.PRIMER, because=because)) if insists else PrimingDecision()
    if _replaces_serving(context, address):
        return _ahead_of_rollout(context, address)
    is_shared = wanted > 1 or cache.claim_name is not None or read_lease(context.claim, address.key) is not None
    reason = "spec.cache.priming is Always." if insists else _reason(context, rules) if is_shared else None
    if reason is None:
        return PrimingDecision()
    present = reading.integer(context.deployment, "spec", "replicas") or 0
    running = present if context.present_address == address else 0
    if running >= wanted > 1:
        return PrimingDecision()  # all were started already: none is taken away
    return PrimingDecision(CacheActivity(step=PrimingStep.FIRST_POD, because=reason), replicas=min(wanted, max(1, running)))


def _replaces_serving(context: CacheContext, address: CacheAddress) -> bool:
    """Whether Pods that serve with another cache are to be replaced."""
    if context.deployment is None or context.present_address == address:
        return False
    return any(at != address and view.phase is Phase.READY for at, view in context.replicas)


def _ahead_of_rollout(context: CacheContext, address: CacheAddress) -> PrimingDecision:
    views = [view for at, view in context.primers if at == address]
    skipped = _remembered(context) or _cannot_prime(context) or _cannot_create(context) or _no_gpu(context, views)
    if skipped is not None:
        return PrimingDecision(CacheActivity(skipped=skipped))
    if any(view.phase is Phase.CRASHED for _, view in context.replicas):
        return PrimingDecision()  # what is broken is replaced at once; the Deployment begins with it
    because = "The current replicas serve until the caches of the new Pods are filled."
    waits = [view.since for view in views if view.phase is Phase.UNSCHEDULABLE and view.since is not None]
    until = min(waits) + timedelta(seconds=context.primer_patience_seconds) if waits else None
    recheck = (until - context.now).total_seconds() if until is not None else None
    return PrimingDecision(CacheActivity(step=PrimingStep.PRIMER, because=because, held=True, until=until, recheck_seconds=recheck))


def _remembered(context: CacheContext) -> str | None:
    """Why priming ahead of this rollout was given up before."""
    known = context.resource.status.cache
    return known.priming_skipped if known is not None and known.key == context.plan.cache_key else None


def _cannot_prime(context: CacheContext) -> str | None:
    if "ReadWriteOncePod" not in (*context.access_modes, *context.weights_modes):
        return None
    return "Only one Pod can mount the PVC (ReadWriteOncePod)."


def _cannot_create(context: CacheContext) -> str | None:
    """A quota, for example, that has no room for one Pod more."""
    failure = reading.named(context.primer, "ReplicaFailure", "status", "conditions")
    if failure.get("status") != "True":
        return None
    return f"The Pod could not be created: {wording.clean(reading.text(failure, 'message'), 300)}"


def _no_gpu(context: CacheContext, views: Sequence[PodView]) -> str | None:
    limit = context.primer_patience_seconds
    for view in views:
        if view.phase is Phase.UNSCHEDULABLE and view.since is not None and _age(context, view.since) >= limit:
            return f"No GPU was free within {limit} s."
    return None


def _reason(context: CacheContext, rules: Sequence[PrimingRule]) -> str | None:
    plan = context.plan
    backends = [choice.backend for choice in plan.backends]
    found = (r for r in rules if r.applies(version=plan.engine_version, backends=backends, one_node=context.is_one_node))
    return next((rule.because for rule in found), None)


def _elsewhere(context: CacheContext, activity: CacheActivity, lease: PrimingLease) -> PrimingDecision:
    """Another one fills the cache: what runs here stays, nothing is added."""
    runs = (reading.integer(context.deployment, "spec", "replicas") or 0) > 0
    waiting = CacheActivity(
        step=PrimingStep.ELSEWHERE, because=activity.because, holder=lease.name, held=runs, recheck_seconds=HOLDER_RECHECK_SECONDS
    )
    return PrimingDecision(waiting, replicas=0)


def _is_active(context: CacheContext, lease: PrimingLease, address: CacheAddress) -> bool:
    """Whether the holder of a lease is worth waiting for."""
    metadata: Mapping[str, Any] = reading.mapping(context.holder, "metadata")
    if metadata.get("uid") != lease.uid or metadata.get("deletionTimestamp"):
        return False
    if lease.since is not None and _age(context, lease.since) < LEASE_GRACE_SECONDS:
        return True
    views = [read_pod(pod) for pod in context.holder_pods if cache_address(pod.get("spec")) == address]
    return any(view.phase in _ON_THE_WAY and view.restarts < HOLDER_RESTARTS for view in views)


def _age(context: CacheContext, since: datetime) -> float:
    return (context.now - since).total_seconds()
