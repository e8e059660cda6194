"""Actions for the caches of one VLLMDeployment in one reconciliation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.resource import is_workload, template_spec
from vllm_operator.caches import cleaning
from vllm_operator.caches.address import claims_of
from vllm_operator.caches.artifacts import plan_publication
from vllm_operator.caches.claims import fit_claims, is_short_of_space, unowned_claims
from vllm_operator.caches.cleaning import CleaningNeed
from vllm_operator.caches.context import CacheActivity, CacheContext
from vllm_operator.caches.directories import Changes, digest_of_moved_tag, image_record, quarantine_record, usage_record, writable
from vllm_operator.caches.gate import plan_gate, render_gate_run
from vllm_operator.caches.prefetching import JOB_RECHECK_SECONDS, NO_FETCHING, FetchingPlan, fetched_commit, plan_fetching
from vllm_operator.caches.priming import PrimingDecision, apply_priming, decide_priming, held_replicas
from vllm_operator.caches.rollout import RECHECK_SECONDS, most_replicas
from vllm_operator.catalog.caches import Caches, PrimingRule

GATE_RECHECK_SECONDS = 15.0
"""Interval between checks of a run that no event of its Pod ends, such as a Pod that waits for a GPU."""
RECORDED_SECONDS = 1.0
"""Time until the next run begins after the last one was recorded."""
CLAIM_RECHECK_SECONDS = 30.0
"""Interval between checks of a PVC that the operator does not own, which no watch covers, or that was refused to grow."""


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
    context: CacheContext, manifests: Sequence[dict[str, Any]], rules: Sequence[PrimingRule], caches: Caches, *, full: frozenset[str]
) -> CacheActions:
    """Decide what to do. `manifests` have all replicas, `rules` say when `priming: Auto` primes, `full` are signatures of a full volume."""
    if unowned := unowned_claims(manifests, context):
        return _without_unowned_claims(context, manifests, unowned)
    if is_short_of_space(manifests, context) and fetched_commit(context.resource, context.desired, context.claims) is None:
        activity = CacheActivity(held=True, is_short=True, recheck_seconds=CLAIM_RECHECK_SECONDS)
        return _without_pods(context, fit_claims(manifests, context)[0], activity)  # it may grow
    fetching = plan_fetching(context)
    priming = _with_holds(context, decide_priming(context, rules), fetching)
    fitted, note = fit_claims(manifests, context)
    need, failures = cleaning.find_cleaning_need(context, full), cleaning.describe_failures(context)
    record = priming.record | quarantine_record(context.claim, context.resource.status.cache) | cleaning.cleaning_record(context)
    record |= image_record(context)
    if need is not None and not need.is_full:
        record |= cleaning.record_attempt(context, need.doomed)
    if context.address is not None:
        record |= usage_record(context.claim, context.address.key, context.now)
    publication, publishing = plan_publication(context, caches)
    rechecks = [priming.activity.recheck_seconds, publication.recheck_seconds if publication else None]
    rechecks += [RECHECK_SECONDS] if context.hold is not None or priming.activity.limit is not None else []
    gate = priming.activity.gate
    if gate is not None and (gate.run_name or not gate.is_recorded):
        rechecks.append(GATE_RECHECK_SECONDS if gate.is_recorded else RECORDED_SECONDS)
    activity = replace(
        priming.activity,
        publication=publication,
        recheck_seconds=min((seconds for seconds in rechecks if seconds is not None), default=None),
        claim_note=" ".join(filter(None, (note, failures))) or None,
        moved_to=digest_of_moved_tag(context),
        cleaning=cleaning.describe_cleaning(context, full),
    )
    applied = apply_priming(fitted, priming, context, caches)
    if gate is not None and gate.run_name:
        applied += [render_gate_run(manifest, gate, context) for manifest in fitted if is_workload(manifest)]
    return CacheActions(applied, writable(record), activity, need, publishing, fetching, held_replicas(priming, context))


def _with_holds(context: CacheContext, priming: PrimingDecision, fetching: FetchingPlan) -> PrimingDecision:
    """Add what else the rollout waits for: weights, GPUs, and a measurement once it waits for nothing else."""
    if fetching.state is not None:
        runs = (reading.integer(context.deployment, "spec", "replicas") or 0) > 0
        recheck = JOB_RECHECK_SECONDS if fetching.job is not None or fetching.state.state == "Impossible" else None
        activity = CacheActivity(held=runs, fetching=fetching.state, recheck_seconds=recheck)
        priming = PrimingDecision(activity, replicas=0, record=priming.record)
    activity = priming.activity
    if context.hold is not None:
        activity = replace(activity, held=True, rollout=context.hold)
    elif (limit := most_replicas(context)) is not None and limit < context.resource.spec.replicas:
        activity = replace(activity, limit=limit)
    if not activity.held and not activity.is_priming and (compared := plan_gate(context)) is not None:
        activity = replace(activity, gate=compared, held=compared.is_held)
    return replace(priming, activity=activity)


def _without_unowned_claims(context: CacheContext, manifests: Sequence[dict[str, Any]], unowned: tuple[str, ...]) -> CacheActions:
    """Do not write to these PVCs, and start no Pod with them. Replicas that already use them continue."""
    uses_them = set(unowned) <= claims_of(template_spec(context.deployment))
    activity = CacheActivity(unowned_claims=unowned, held=not uses_them, recheck_seconds=CLAIM_RECHECK_SECONDS)
    rest = [it for it in manifests if it["metadata"]["name"] not in unowned or it["kind"] != "PersistentVolumeClaim"]
    return CacheActions(rest, {}, activity) if uses_them else _without_pods(context, rest, activity)


def _without_pods(context: CacheContext, manifests: Sequence[dict[str, Any]], activity: CacheActivity) -> CacheActions:
    """Start no Pod of the current spec. Replicas of the previous one continue."""
    rest = [it for it in manifests if not is_workload(it)]
    return CacheActions(rest, {}, activity, scale=reading.integer(context.desired, "spec", "replicas"))
