"""Problems with the PVCs of caches and weights."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import FALSE, TRUE, UNKNOWN, Reason, Verdict
from vllm_operator.api.operation import StorageSpec
from vllm_operator.api.reading import Manifest
from vllm_operator.caches.claims import GIBIBYTE, is_terminating, too_small
from vllm_operator.pods.view import Phase
from vllm_operator.status.observation import Observation
from vllm_operator.text import wording

WRONG = (Reason.CLAIM_MISSING, Reason.STORAGE_CLASS_MISSING, Reason.CLAIM_READ_ONLY)
"""Reasons that do not go away while a start waits: somebody must change the spec, or create what it names."""
CLAIM_PROBLEMS = (*WRONG, Reason.CLAIM_NOT_BOUND, Reason.CLAIM_NAME_TAKEN, Reason.CLAIM_TERMINATING, Reason.CLAIM_TOO_SMALL)
"""Reasons that prevent any Pod from starting."""
_MAX_NAMED_PODS = 2
BINDING_SECONDS = 15
"""Seconds that a new PVC may be unbound before it is reported. A provisioner takes some seconds."""
_BINDING_EVENTS = frozenset({"ProvisioningFailed", "FailedBinding", "WaitForFirstConsumer", "WaitForPodScheduled"})
_NORMAL = frozenset({"WaitForFirstConsumer", "WaitForPodScheduled"})
_NO_CLASS = re.compile(r'storageclass(?:\.storage\.k8s\.io)? "[^"]{1,253}" not found', re.IGNORECASE)
"""The message of the event ProvisioningFailed (pkg/controller/volume/persistentvolume of Kubernetes 1.35)."""


def wrong_claim(observed: Observation) -> Verdict | None:
    """Return why no Pod can start until somebody changes the spec or creates what it names; None if there is no such problem."""
    verdict = claim_verdict(observed)
    if verdict is not None and verdict.reason in WRONG:
        return verdict
    judged = ("spec.cache.claimName", "spec.weights.claimName")  # by claim_verdict
    for name, field in observed.missing_claims.items():
        if field not in judged:
            namespace = observed.resource.metadata.namespace
            text = observed.messages.say("starting.claim_missing", claim=name, field=field, namespace=namespace)
            return Verdict(FALSE, Reason.CLAIM_MISSING, text)
    return None


def claim_verdict(observed: Observation) -> Verdict | None:
    """Return the problem with the PVCs of caches and weights, first the one that blocks everything else; None if both are bound.

    There is nothing to say while a new PVC is being bound: the message is then empty.
    """
    spec = observed.resource.spec
    verdicts = (
        _judge_claim(observed, "cache", observed.claim_name, observed.claim, spec.cache),
        _judge_claim(observed, "weights", observed.weights_claim_name, observed.weights_claim, spec.weights),
    )
    found = (verdict for verdict in verdicts if verdict is not None)
    first = (Reason.CLAIM_NAME_TAKEN, Reason.CLAIM_TOO_SMALL)
    return min(found, key=lambda it: (it.status is not FALSE, it.reason not in first), default=None)


def binding_deadline(observed: Observation) -> datetime | None:
    """Return when a new unbound PVC will be reported; None if all are bound or reported."""
    verdict = claim_verdict(observed)
    if verdict is None or verdict.status is not UNKNOWN:
        return None
    waiting = (claim for claim in (observed.claim, observed.weights_claim) if claim is not None and not _is_bound(claim))
    times = (reading.moment(claim, "metadata", "creationTimestamp") for claim in waiting)
    return min((time + timedelta(seconds=BINDING_SECONDS) for time in times if time is not None), default=None)


def _is_bound(claim: Manifest | None) -> bool:
    return reading.text(claim, "status", "phase") == "Bound" or bool(reading.text(claim, "spec", "volumeName"))


def _judge_claim(observed: Observation, field: str, name: str | None, live: Manifest | None, spec: StorageSpec | None) -> Verdict | None:
    if name is None:
        return None
    namespace, is_named = observed.resource.metadata.namespace, spec is not None and bool(spec.claim_name)
    say = partial(observed.messages.say, claim=name, field=field, namespace=namespace)
    if live is None and is_named:
        return Verdict(FALSE, Reason.CLAIM_MISSING, say("cache.missing_named"))
    if live is None:
        return Verdict(UNKNOWN, Reason.NOT_REPORTED, "")
    if name in observed.activity.unowned_claims:
        return Verdict(FALSE, Reason.CLAIM_NAME_TAKEN, say("cache.not_owned", in_use=not observed.activity.held))
    if is_terminating(live):
        return Verdict(FALSE, Reason.CLAIM_TERMINATING, _describe_termination(observed, name, field, is_named=is_named))
    if reading.text(live, "status", "phase") == "Lost":
        return Verdict(FALSE, Reason.CLAIM_NOT_BOUND, say("cache.lost"))
    if reading.access_modes(live) == ("ReadOnlyMany",):
        return Verdict(FALSE, Reason.CLAIM_READ_ONLY, say("cache.read_only"))
    if name == observed.weights_claim_name and (short := space_verdict(observed)) is not None:
        return replace(short, status=FALSE)
    if _is_bound(live):
        return None
    uid, created = reading.text(live, "metadata", "uid"), reading.moment(live, "metadata", "creationTimestamp")
    event = observed.event_log.latest(uid=uid, name=name, kind="PersistentVolumeClaim", reasons=_BINDING_EVENTS)
    if event is not None and event.reason in _NORMAL:
        return Verdict(UNKNOWN, Reason.NOT_REPORTED, "")
    is_new = created is not None and observed.now - created < timedelta(seconds=BINDING_SECONDS)
    if event is None and (is_new or _waits_for_a_node(observed)):
        return Verdict(UNKNOWN, Reason.NOT_REPORTED, "")
    storage_class, why = reading.text(live, "spec", "storageClassName"), "no volume has been provisioned for it"
    if event is not None and storage_class and _NO_CLASS.search(event.message):
        text = say("cache.no_class", storage_class=storage_class, is_named=is_named)
        return Verdict(FALSE, Reason.STORAGE_CLASS_MISSING, text)
    text = say("cache.not_bound", why=event.message if event is not None else why, storage_class=storage_class)
    return Verdict(FALSE, Reason.CLAIM_NOT_BOUND, text)


def one_node(observed: Observation) -> dict[str, Any] | None:
    """Return the PVC that binds several replicas to one node, and how many of them the node's GPUs can run; None if no PVC does."""
    plan = observed.outcome.plan
    claims = (("cache", observed.claim), ("weights", observed.weights_claim))
    field, claim = next(((f, c) for f, c in claims if reading.is_one_node(reading.access_modes(c))), ("", None))
    if claim is None or observed.wanted < 2:
        return None
    room = plan.resource_per_node // plan.count if plan is not None and plan.resource_per_node and plan.count else None
    return {"field": field, "claim": reading.text(claim, "metadata", "name"), "room": room}


def _waits_for_a_node(observed: Observation) -> bool:
    """Return whether a Pod has no node, for a reason other than its PVCs, which may be bound only afterwards."""
    fetching = observed.activity.fetching
    waiting = (view.message or "" for view in observed.unhealthy if view.phase is Phase.UNSCHEDULABLE)
    return any("PersistentVolumeClaim" not in it for it in waiting) or (fetching is not None and fetching.state == "Impossible")


def space_verdict(observed: Observation) -> Verdict | None:
    """Return that the volume of the weights is too small for a start, with the status of the progress; None if it is not."""
    plan, claim, spec = observed.outcome.plan, observed.weights_claim, observed.resource.spec.weights
    needed = plan.weights.size_bytes if plan is not None and observed.activity.is_short else None
    if plan is None or needed is None or (found := too_small(claim, needed)) is None:
        return None
    facts: dict[str, Any] = {"needed": needed / GIBIBYTE, "size": found[0] / GIBIBYTE, "requested": found[1] / GIBIBYTE}
    facts |= {"claim": observed.weights_claim_name, "storage_class": reading.text(claim, "spec", "storageClassName")}
    is_given = spec is not None and spec.volume is not None and spec.volume.size
    facts |= {"namespace": observed.resource.metadata.namespace, "model": plan.model, "is_given": is_given}
    text = observed.messages.say("cache.too_small", is_bound=_is_bound(claim), serving=observed.serving, **facts)
    return Verdict(TRUE if found[1] >= needed else FALSE, Reason.CLAIM_TOO_SMALL, text)


def _describe_termination(observed: Observation, claim: str, field: str, *, is_named: bool) -> str:
    holders, name = observed.claim_holders.get(claim, ()), observed.resource.metadata.name
    unknown = [holder.pod for holder in holders if holder.instance is None]
    removed = [holder.pod for holder in holders if holder.instance is not None and holder.is_removable]
    mine = [holder.pod for holder in holders if holder.instance == name and not holder.is_removable]
    others = {holder.pod: holder.instance for holder in holders if holder.instance not in (None, name) and not holder.is_removable}
    return observed.messages.fit(
        "cache.terminating",
        shrink=("mine", "removed", "others", "unknown"),
        claim=claim,
        field=field,
        namespace=observed.resource.metadata.namespace,
        is_named=is_named,
        wanted=observed.wanted,
        mine=_some(mine),
        removed=_some(removed),
        others=_some([*others]),
        owners=", ".join(sorted({owner or "" for owner in others.values()})[:_MAX_NAMED_PODS]),
        unknown=_some(unknown),
        commands=" ".join(unknown[:_MAX_NAMED_PODS]),
    )


def _some(pods: Sequence[str]) -> str:
    """Return the names of the first Pods and the number of the others; empty without Pods."""
    named, more = list(pods[:_MAX_NAMED_PODS]), len(pods) - _MAX_NAMED_PODS
    named += [wording.count(more, "other")] if more > 0 else []
    return f"Pod{'s' if len(pods) > 1 else ''} {wording.listed(named, 'and')}" if pods else ""
