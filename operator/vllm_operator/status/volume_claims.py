"""The claims of caches and weights: missing, not bound and why, bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.api.operation import StorageSpec
from vllm_operator.caches.claim_holders import is_terminating
from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.outcome import Verdict
from vllm_operator.pods import reading
from vllm_operator.pods.reading import Manifest
from vllm_operator.status.conditions import FALSE, UNKNOWN
from vllm_operator.text import wording

CLAIM_PROBLEMS = (
    Reason.CLAIM_MISSING,
    Reason.CLAIM_NOT_BOUND,
    Reason.CLAIM_NOT_OWNED,
    Reason.CLAIM_READ_ONLY,
    Reason.CLAIM_TERMINATING,
)
"""Reasons for which no Pod can start."""
MOST_NAMED = 2
"""Pods that a message names."""
BINDING_SECONDS = 15
"""How long a new claim may be unbound without a word about it. A provisioner takes some seconds."""
_TELLING = frozenset({"ProvisioningFailed", "FailedBinding", "WaitForFirstConsumer", "WaitForPodScheduled"})
_NORMAL = frozenset({"WaitForFirstConsumer", "WaitForPodScheduled"})


def claim_verdict(observed: ObservedState) -> Verdict | None:
    """What stands against using the claims of caches and weights; None if they are bound."""
    observation = observed.observation
    spec = observation.resource.spec
    of_caches = _Claim("cache", observation.claim_name, observation.claim, spec.cache)
    of_weights = _Claim("weights", observation.weights_claim_name, observation.weights_claim, spec.weights)
    verdicts = [_verdict(observed, claim) for claim in (of_caches, of_weights)]
    troubles = [verdict for verdict in verdicts if verdict is not None and verdict.status is FALSE]
    troubles.sort(key=lambda verdict: verdict.reason != Reason.CLAIM_NOT_OWNED)  # nothing else is done before that
    return next((verdict for verdict in (*troubles, *verdicts) if verdict is not None), None)


def binding_deadline(observed: ObservedState) -> datetime | None:
    """When an unbound claim that nothing is said about is called not bound; None if that is not to be waited for."""
    verdict = claim_verdict(observed)
    if verdict is None or verdict.status is not UNKNOWN:
        return None
    claims = (observed.observation.claim, observed.observation.weights_claim)
    waiting = [claim for claim in claims if claim is not None and not _is_bound(claim)]
    times = [reading.moment(claim, "metadata", "creationTimestamp") for claim in waiting]
    return min((time + timedelta(seconds=BINDING_SECONDS) for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim that is expected; `field` is the one of the spec that it follows from."""

    field: str
    name: str | None
    live: Manifest | None
    spec: StorageSpec | None


def _is_bound(claim: Manifest) -> bool:
    return reading.text(claim, "status", "phase") == "Bound" or bool(reading.text(claim, "spec", "volumeName"))


def _verdict(observed: ObservedState, claim: _Claim) -> Verdict | None:
    if claim.name is None:
        return None
    say = observed.messages.say
    facts: dict[str, Any] = {"claim": claim.name, "field": claim.field, "namespace": observed.observation.resource.metadata.namespace}
    if claim.live is None:
        if claim.spec is not None and claim.spec.claim_name:
            return Verdict(FALSE, Reason.CLAIM_MISSING, say("cache.missing_named", **facts))
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.missing_own", **facts))
    activity = observed.observation.activity
    if claim.name in activity.unowned_claims:
        return Verdict(FALSE, Reason.CLAIM_NOT_OWNED, say("cache.not_owned", in_use=not activity.held, **facts))
    if is_terminating(claim.live):
        return Verdict(FALSE, Reason.CLAIM_TERMINATING, _describe_termination(observed, claim, facts))
    if reading.text(claim.live, "status", "phase") == "Lost":
        return Verdict(FALSE, Reason.CLAIM_NOT_BOUND, say("cache.lost", **facts))
    if reading.access_modes(claim.live) == ("ReadOnlyMany",):
        return Verdict(FALSE, Reason.CLAIM_READ_ONLY, say("cache.read_only", **facts))
    return None if _is_bound(claim.live) else _unbound(observed, claim.live, claim.field)


def _describe_termination(observed: ObservedState, claim: _Claim, facts: dict[str, Any]) -> str:
    """Who keeps a claim that is being deleted, and what to do."""
    name = observed.observation.resource.metadata.name
    holders = observed.observation.claim_holders.get(claim.name or "", ())
    mine = [holder.pod for holder in holders if holder.instance == name and not holder.is_removable]
    removed = [holder.pod for holder in holders if holder.instance is not None and holder.is_removable]
    others = [holder for holder in holders if holder.instance not in (None, name) and not holder.is_removable]
    unknown = [holder.pod for holder in holders if holder.instance is None]
    return observed.messages.fit(
        "cache.terminating",
        shrink=("mine", "removed", "others", "unknown"),
        is_named=claim.spec is not None and claim.spec.claim_name is not None,
        wanted=observed.observation.wanted,
        mine=_some(mine),
        removed=_some(removed),
        others=_some([holder.pod for holder in others]),
        owners=", ".join(sorted({holder.instance or "" for holder in others})[:MOST_NAMED]),
        unknown=_some(unknown),
        commands=" ".join(unknown[:MOST_NAMED]),
        **facts,
    )


def _some(pods: Sequence[str]) -> str:
    """Names of Pods, the first ones at least; empty if there are none."""
    if not pods:
        return ""
    named, more = list(pods[:MOST_NAMED]), len(pods) - MOST_NAMED
    named += [wording.count(more, "other")] if more > 0 else []
    words = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]
    return f"Pod{'s' if len(pods) > 1 else ''} {words}"


def _unbound(observed: ObservedState, claim: Manifest, field: str) -> Verdict:
    name = reading.text(claim, "metadata", "name")
    uid = reading.text(claim, "metadata", "uid")
    event = observed.log.latest(uid=uid, name=name, kind="PersistentVolumeClaim", reasons=_TELLING)
    facts: dict[str, Any] = {"claim": name, "field": field, "storage_class": reading.text(claim, "spec", "storageClassName")}
    if event is not None and event.reason in _NORMAL:
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, observed.messages.say("cache.waiting_for_consumer", **facts))
    created = reading.moment(claim, "metadata", "creationTimestamp")
    is_new = created is not None and observed.observation.now - created < timedelta(seconds=BINDING_SECONDS)
    if event is None and is_new:
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, observed.messages.say("cache.binding", **facts))
    why = event.message if event is not None else "no volume has been provisioned for it"
    return Verdict(FALSE, Reason.CLAIM_NOT_BOUND, observed.messages.say("cache.not_bound", why=why, **facts))
