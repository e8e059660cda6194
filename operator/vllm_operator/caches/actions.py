"""All that is to be done for the caches of one VLLMDeployment at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.caches.activity import CacheActivity, Remounting
from vllm_operator.caches.address import claims_of, template_spec
from vllm_operator.caches.cleaning import CleaningNeed, cleaning_record, describe_cleaning, find_cleaning_need
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.directories import image_activity, image_record
from vllm_operator.caches.primer import apply_priming, held_replicas
from vllm_operator.caches.priming import PrimingDecision, decide
from vllm_operator.caches.records import Changes, quarantine_record, usage_record, writable
from vllm_operator.caches.remounting import plan_remounting
from vllm_operator.caches.volume_changes import fit_claims, foreign_claims
from vllm_operator.catalog.caches import PrimingRule
from vllm_operator.pods import reading

FOREIGN_RECHECK_SECONDS = 30.0
"""How often a claim that is not the operator's is looked at again: no watch tells of it."""


@dataclass(frozen=True, slots=True)
class CacheActions:
    """What to apply, what to record on the claim, and how to say it."""

    manifests: list[dict[str, Any]]
    record: Changes
    activity: CacheActivity
    cleaning: CleaningNeed | None = None
    scale: int | None = None
    """How many replicas the Deployment is to have that is held; None if it is not held."""


def plan_cache_actions(
    context: CacheContext,
    manifests: Sequence[dict[str, Any]],
    rules: Sequence[PrimingRule],
    *,
    full: frozenset[str] = frozenset(),
    read_only: frozenset[str] = frozenset(),
) -> CacheActions:
    """Decide what to do for the caches.

    Args:
        context: What is the case.
        manifests: Everything as rendered, with all replicas.
        rules: When `priming: Auto` primes.
        full: Signatures of a crash for want of room.
        read_only: Signatures of a crash for want of a writable volume.
    """
    if foreign := foreign_claims(manifests, context):
        return _beside_foreign_claims(context, manifests, foreign)
    priming = decide(context, rules)
    remount, remounted = plan_remounting(context, read_only)
    if remount is Remounting.UNDER_WAY:
        priming = PrimingDecision(replicas=0, record=priming.record)
    fitted, note = fit_claims(manifests, context)
    record = priming.record | quarantine_record(context.claim, context.resource.status.cache) | cleaning_record(context)
    record |= image_record(context) | remounted
    if context.address is not None:
        record |= usage_record(context.claim, context.address.key, context.now)
    cleaning = describe_cleaning(context, full)
    activity = replace(priming.activity, claim_note=note, image=image_activity(context), remounting=remount, cleaning=cleaning)
    return CacheActions(
        apply_priming(fitted, priming, context),
        writable(record),
        activity,
        find_cleaning_need(context, full),
        held_replicas(priming, context),
    )


def _beside_foreign_claims(context: CacheContext, manifests: Sequence[dict[str, Any]], foreign: tuple[str, ...]) -> CacheActions:
    """Write nothing to these claims, and start nothing on them. Replicas that use them since an earlier version go on."""
    uses_them = set(foreign) <= claims_of(template_spec(context.deployment))
    activity = CacheActivity(foreign_claims=foreign, held=not uses_them, recheck_seconds=FOREIGN_RECHECK_SECONDS)
    rest = [it for it in manifests if it["metadata"]["name"] not in foreign or it["kind"] != "PersistentVolumeClaim"]
    if uses_them:
        return CacheActions(rest, {}, activity)
    wanted = reading.integer(context.desired, "spec", "replicas")
    return CacheActions([it for it in rest if it["kind"] != "Deployment"], {}, activity, scale=wanted)
