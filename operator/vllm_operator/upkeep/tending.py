"""All that is to be done for the caches of one VLLMDeployment at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.catalog.priming import PrimingRule
from vllm_operator.planning.storage.care import CacheCare, Remounting
from vllm_operator.rendering.addresses import claims_of, template_spec
from vllm_operator.reporting import reading
from vllm_operator.upkeep.claims import fit_claims, foreign_claims
from vllm_operator.upkeep.cleaning import CleaningNeed, cleaning_record, describe_cleaning, find_need
from vllm_operator.upkeep.images import image_care, image_record
from vllm_operator.upkeep.priming import Staffing, decide
from vllm_operator.upkeep.records import Changes, quarantine_record, usage_record, writable
from vllm_operator.upkeep.remounting import remounting
from vllm_operator.upkeep.situation import Situation
from vllm_operator.upkeep.staffing import held_replicas, staff

PATIENCE_SECONDS = 60
"""How long a primer may look for a GPU before a rollout goes on without it. A scheduler that knows all nodes needs
seconds; adding a node takes minutes, for which nobody wants to wait who has not asked for it."""

FOREIGN_RECHECK_SECONDS = 30.0
"""How often a claim that is not the operator's is looked at again: no watch tells of it."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What to apply, what to record on the claim, and how to say it."""

    manifests: list[dict[str, Any]]
    record: Changes
    care: CacheCare
    cleaning: CleaningNeed | None = None
    scale: int | None = None
    """How many replicas the Deployment is to have that is held; None if it is not held."""


def tend(
    situation: Situation,
    manifests: Sequence[dict[str, Any]],
    rules: Sequence[PrimingRule],
    *,
    full: frozenset[str] = frozenset(),
    read_only: frozenset[str] = frozenset(),
    patience_seconds: int = PATIENCE_SECONDS,
) -> Upkeep:
    """Decide what to do for the caches.

    Args:
        situation: What is the case.
        manifests: Everything as rendered, with all replicas.
        rules: When `priming: Auto` primes.
        full: Signatures of a crash for want of room.
        read_only: Signatures of a crash for want of a writable volume.
        patience_seconds: How long a primer may wait for a GPU while replicas serve.
    """
    if foreign := foreign_claims(manifests, situation):
        return _beside_foreign_claims(situation, manifests, foreign)
    staffing = decide(situation, rules, patience_seconds=patience_seconds)
    remount, remounted = remounting(situation, read_only)
    if remount is Remounting.UNDER_WAY:
        staffing = Staffing(replicas=0, record=staffing.record)
    fitted, note = fit_claims(manifests, situation)
    record = staffing.record | quarantine_record(situation.claim, situation.resource.status.cache) | cleaning_record(situation)
    record |= image_record(situation) | remounted
    if situation.address is not None:
        record |= usage_record(situation.claim, situation.address.key, situation.now)
    cleaning = describe_cleaning(situation, full)
    care = replace(staffing.care, claim_note=note, image=image_care(situation), remounting=remount, cleaning=cleaning)
    return Upkeep(
        staff(fitted, staffing, situation), writable(record), care, find_need(situation, full), held_replicas(staffing, situation)
    )


def _beside_foreign_claims(situation: Situation, manifests: Sequence[dict[str, Any]], foreign: tuple[str, ...]) -> Upkeep:
    """Write nothing to these claims, and start nothing on them. Replicas that use them since an earlier version go on."""
    uses_them = set(foreign) <= claims_of(template_spec(situation.deployment))
    care = CacheCare(foreign_claims=foreign, held=not uses_them, recheck_seconds=FOREIGN_RECHECK_SECONDS)
    rest = [it for it in manifests if it["metadata"]["name"] not in foreign or it["kind"] != "PersistentVolumeClaim"]
    if uses_them:
        return Upkeep(rest, {}, care)
    wanted = reading.integer(situation.wish, "spec", "replicas")
    return Upkeep([it for it in rest if it["kind"] != "Deployment"], {}, care, scale=wanted)
