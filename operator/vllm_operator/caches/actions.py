"""Actions for the caches of one VLLMDeployment in one reconciliation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api import reading
from vllm_operator.caches import cleaning as cleanings
from vllm_operator.caches.activity import CacheActivity
from vllm_operator.caches.address import claims_of, template_spec
from vllm_operator.caches.artifacts import describe_publication
from vllm_operator.caches.claims import fit_claims, unowned_claims
from vllm_operator.caches.cleaning import CleaningNeed
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.directories import Changes, digest_of_moved_tag, image_record, quarantine_record, usage_record, writable
from vllm_operator.caches.prefetching import NO_FETCHING, RECHECK_SECONDS, FetchingPlan, plan_fetching
from vllm_operator.caches.priming import PrimingDecision, apply_priming, decide_priming, held_replicas
from vllm_operator.catalog.caches import Caches, PrimingRule

UNOWNED_RECHECK_SECONDS = 30.0
"""Interval between checks of a PVC that the operator does not own. No watch covers it."""


@dataclass(frozen=True, slots=True)
class CacheActions:
    """Objects to apply, records to write on the PVC, and the activity to report."""

    manifests: list[dict[str, Any]]
    record: Changes
    activity: CacheActivity
    cleaning: CleaningNeed | None = None
    publishing: dict[str, Any] | None = None  # the Job that publishes, if it should run now
    fetching: FetchingPlan = NO_FETCHING
    scale: int | None = None  # desired replicas of a Deployment that is held; None if it is not held


def plan_cache_actions(
    context: CacheContext,
    manifests: Sequence[dict[str, Any]],
    rules: Sequence[PrimingRule],
    caches: Caches,
    *,
    full: frozenset[str] = frozenset(),
) -> CacheActions:
    """Decide what to do. `manifests` have all replicas, `rules` say when `priming: Auto` primes, `full` are signatures of a full volume."""
    if unowned := unowned_claims(manifests, context):
        return _without_unowned_claims(context, manifests, unowned)
    priming = decide_priming(context, rules)
    fetching = plan_fetching(context)
    if fetching.state is not None:
        runs = (reading.integer(context.deployment, "spec", "replicas") or 0) > 0
        recheck = RECHECK_SECONDS if fetching.job is not None or fetching.state.state == "Impossible" else None
        activity = CacheActivity(held=runs, fetching=fetching.state, recheck_seconds=recheck)
        priming = PrimingDecision(activity, replicas=0, record=priming.record)
    fitted, note = fit_claims(manifests, context)
    need, failures = cleanings.find_cleaning_need(context, full), cleanings.describe_failures(context)
    record = priming.record | quarantine_record(context.claim, context.resource.status.cache) | cleanings.cleaning_record(context)
    record |= image_record(context)
    if need is not None and not need.is_full:
        record |= cleanings.record_attempt(context, need.doomed)
    if context.address is not None:
        record |= usage_record(context.claim, context.address.key, context.now)
    cleaning = cleanings.describe_cleaning(context, full)
    publication, publishing = describe_publication(context, caches)
    rechecks = [priming.activity.recheck_seconds, publication.recheck_seconds if publication else None]
    activity = replace(
        priming.activity,
        publication=publication,
        recheck_seconds=min((seconds for seconds in rechecks if seconds is not None), default=None),
        claim_note=" ".join(filter(None, (note, failures))) or None,
        moved_to=digest_of_moved_tag(context),
        cleaning=cleaning,
    )
    return CacheActions(
        apply_priming(fitted, priming, context, caches),
        writable(record),
        activity,
        need,
        publishing,
        fetching,
        held_replicas(priming, context),
    )


def _without_unowned_claims(context: CacheContext, manifests: Sequence[dict[str, Any]], unowned: tuple[str, ...]) -> CacheActions:
    """Do not write to these PVCs, and start no Pod with them. Replicas that already use them continue."""
    uses_them = set(unowned) <= claims_of(template_spec(context.deployment))
    activity = CacheActivity(unowned_claims=unowned, held=not uses_them, recheck_seconds=UNOWNED_RECHECK_SECONDS)
    rest = [it for it in manifests if it["metadata"]["name"] not in unowned or it["kind"] != "PersistentVolumeClaim"]
    if uses_them:
        return CacheActions(rest, {}, activity)
    desired = reading.integer(context.desired, "spec", "replicas")
    return CacheActions([it for it in rest if it["kind"] != "Deployment"], {}, activity, scale=desired)
