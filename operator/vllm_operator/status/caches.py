"""`status.cache` and CacheWarm: whether starts find their compiled artifacts.

Two things, told apart: the condition says what the last start did (loaded or built), the state says what the
next one will find. After a first start the condition is Miss and the state Warm.
"""

from dataclasses import dataclass
from typing import Any

from vllm_operator.api.conditions import CACHE_WARM, Reason
from vllm_operator.api.status import CacheState, CacheStatus, Plan, StartupStatus
from vllm_operator.caches.activity import PrimingStep
from vllm_operator.caches.address import template_spec, volume_at
from vllm_operator.catalog.paths import CACHE_ROOT
from vllm_operator.observation.observation import Observation
from vllm_operator.observation.starts import known_stages, last_start, next_start_finds
from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.outcome import Verdict
from vllm_operator.pods import reading
from vllm_operator.remediation.cache_damage import MOST, CacheDamage, latest
from vllm_operator.status.conditions import FALSE, TRUE, UNKNOWN, previous_verdict
from vllm_operator.status.starting import pod_text
from vllm_operator.status.volume_claims import claim_verdict


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """Where caches are. `is_shared`: the next Pod, on the same node at least, finds what this one leaves."""

    words: str
    is_shared: bool


def locate_cache(observation: Observation) -> CacheLocation | None:
    """Where the caches are; None if nothing keeps them."""
    if observation.claim_name is not None:
        return CacheLocation(f"PVC {observation.claim_name}", is_shared=True)
    volume: Any = volume_at(template_spec(observation.deployment), CACHE_ROOT)
    if path := reading.text(volume, "hostPath", "path"):
        return CacheLocation(f"{path} on the node", is_shared=True)
    if reading.mapping(volume, "ephemeral"):
        return CacheLocation("the Pod's own PVC", is_shared=False)
    return CacheLocation("an emptyDir of the Pod", is_shared=False) if "emptyDir" in volume else None


def cache_status(observed: ObservedState, plan: Plan | None, damage: CacheDamage | None = None) -> CacheStatus | None:
    """The caches of a plan; None without one. `damage` says whether they are damaged."""
    if plan is None:
        return None
    previous = observed.observation.previous.cache
    known = previous if previous is not None and previous.key == plan.cache_key else CacheStatus()
    start = last_start(observed)
    cold = start.seconds if start and start.is_cold and start.seconds is not None else known.cold_start_seconds
    warm = start.seconds if start and start.is_warm and start.seconds is not None else known.warm_start_seconds
    activity = observed.observation.activity
    return CacheStatus(
        key=plan.cache_key,
        state=CacheState.QUARANTINED if damage is not None and damage.left_behind else next_start_finds(observed, plan),
        claim_name=observed.observation.claim_name,
        image_digest=activity.image.digest,
        weights_claim_name=observed.observation.weights_claim_name,
        generation=_generation(plan, previous, damage),
        cold_start_seconds=cold,
        warm_start_seconds=warm,
        saved_seconds=max(0, cold - warm) if cold is not None and warm is not None else None,
        stages=known_stages(observed, plan) or None,
        quarantined=list(damage.quarantined) or None if damage is not None else None,
        priming_skipped=activity.skipped,
    )


def _generation(plan: Plan, previous: CacheStatus | None, damage: CacheDamage | None) -> int | None:
    """The generation of the next plan's key: that of this one, and one more if its caches are left behind."""
    planned = next((part.value for part in plan.cache_key_parts if part.name == "generation"), "")
    before = previous.generation if previous is not None else None
    present = max(int(planned) if planned.isdecimal() else 0, before or 0)
    return present + 1 if damage is not None and damage.raised else present or before


def cache_warm(
    observed: ObservedState, cache: CacheStatus | None, block: StartupStatus | None = None, damage: CacheDamage | None = None
) -> Verdict:
    """Whether the last start loaded what it needs; before that, what stands against it, or who fills the cache."""
    say, observation = observed.messages.say, observed.observation
    if cache is None:
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.not_planned"))
    place = locate_cache(observation)
    if place is None:
        return Verdict(FALSE, Reason.NO_CLAIM, say("cache.none"))
    if damage is not None and damage.left_behind:
        text = say("cache.quarantined", place=place.words, key=cache.key, signature=damage.signature)
        return Verdict(FALSE, Reason.QUARANTINED, text)
    verdict = claim_verdict(observed) or _priming_verdict(observed, cache, block) or _last_start_verdict(observed, cache, place)
    text = _with_notes(observed, verdict.message)
    return Verdict(verdict.status, verdict.reason, _with_damage(observed, text, damage) if verdict.status is not TRUE else text)


def _with_damage(observed: ObservedState, text: str, damage: CacheDamage | None) -> str:
    """Add what was found out about damage, as long as no start with whole caches has shown that all is well."""
    messages = observed.messages
    if damage is None:
        return text
    if damage.message:
        return messages.fit(damage.message, shrink=("text",), text=text, signature=damage.signature, most=MOST)
    before = latest(observed, damage.quarantined)
    if before is None:
        return text
    time = reading.moment(before.time)
    return messages.fit("cache.left_behind", shrink=("text",), text=text, key=before.key, time=time, signature=before.signature)


def _with_notes(observed: ObservedState, text: str) -> str:
    """Add what the user should know of the claim whatever the starts do."""
    observation, messages = observed.observation, observed.messages
    facts: dict[str, Any]
    if (stays := _one_node(observation)) is not None:
        text = messages.fit("cache.one_node", shrink=("text",), text=text, wanted=observation.wanted, **stays)
    if observation.activity.image.moved and observation.outcome.plan is not None:
        facts = {"image": observation.outcome.plan.image, "digest": observation.activity.image.digest}
        text = messages.fit("cache.image_moved", shrink=("text",), text=text, **facts)
    if observation.activity.skipped:
        text = messages.fit("cache.skipped", shrink=("text",), text=text, why=observation.activity.skipped)
    if observation.activity.remounting is not None:
        text = messages.fit(f"remounting.{observation.activity.remounting}", shrink=("text",), text=text, claim=observation.claim_name)
    if (cleaning := observation.activity.cleaning) is not None:
        facts = {
            "removed": len(cleaning.removed),
            "freed_gibibytes": cleaning.freed_bytes / 2**30,
            "advice": cleaning.advice,
            "why": cleaning.why,
        }
        text = messages.fit(f"cleaning.{cleaning.state}", shrink=("text",), text=text, **facts)
        if cleaning.unmarked.count or cleaning.others.count:
            facts = {
                "unmarked": cleaning.unmarked.count,
                "unmarked_gibibytes": cleaning.unmarked.gibibytes,
                "others": cleaning.others.count,
                "others_gibibytes": cleaning.others.gibibytes,
            }
            text = messages.fit("cleaning.left_alone", shrink=("text",), text=text, **facts)
    if observation.activity.claim_note:
        text = messages.fit("cache.noted", shrink=("text",), text=text, note=observation.activity.claim_note)
    return text


def _priming_verdict(observed: ObservedState, cache: CacheStatus, block: StartupStatus | None) -> Verdict | None:
    """Who fills an empty cache while others wait; None if nobody waits."""
    activity, wanted = observed.observation.activity, observed.observation.wanted
    facts: dict[str, Any] = {"claim": cache.claim_name, "key": cache.key, "because": activity.because}
    match activity.step:
        case PrimingStep.FIRST_POD if wanted > 1:
            return Verdict(FALSE, Reason.PRIMING, observed.messages.say("cache.first_pod", others=wanted - 1, **facts))
        case PrimingStep.PRIMER:
            view = next(iter(observed.primers), None)
            text = pod_text(observed, view, block) if view is not None else ""
            return Verdict(
                FALSE, Reason.PRIMING, observed.messages.fit("cache.primer", shrink=("text",), text=text, until=activity.until, **facts)
            )
        case PrimingStep.ELSEWHERE:
            return Verdict(FALSE, Reason.PRIMING, observed.messages.say("cache.elsewhere", holder=activity.holder, **facts))
    return None


def _one_node(observation: Observation) -> dict[str, Any] | None:
    """Which claim binds all replicas to one node, where there are several, and whether one node has room for them."""
    plan = observation.outcome.plan
    claims = (("cache", observation.claim), ("weights", observation.weights_claim))
    field, claim = next(((f, c) for f, c in claims if reading.is_one_node(reading.access_modes(c))), ("", None))
    if claim is None or observation.wanted < 2:
        return None
    room = plan.resource_per_node // plan.count if plan is not None and plan.resource_per_node and plan.count else None
    return {"field": field, "claim": reading.text(claim, "metadata", "name"), "room": room}


def _last_start_verdict(observed: ObservedState, cache: CacheStatus, place: CacheLocation) -> Verdict:
    start = last_start(observed)
    facts: dict[str, Any] = {
        "place": place.words,
        "key": cache.key,
        "cold": cache.cold_start_seconds,
        "warm": cache.warm_start_seconds,
    }
    say = observed.messages.say
    if start is None:
        unseen = Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.not_seen" if place.is_shared else "cache.per_pod", **facts))
        return _remembered(observed, cache) or unseen
    if start.is_warm:
        return Verdict(TRUE, Reason.HIT, say("cache.hit", **facts))
    if not start.is_cold:
        return Verdict(FALSE, Reason.PARTIAL_HIT, say("cache.partial", failures=start.evidence.load_failures, **facts))
    return Verdict(FALSE, Reason.MISS, say("cache.building" if start.seconds is None else "cache.miss", **facts))


def _remembered(observed: ObservedState, cache: CacheStatus) -> Verdict | None:
    """What was said of the last start, where its log is not at hand any more."""
    previous = observed.observation.previous
    said = previous_verdict(previous.conditions, CACHE_WARM)
    same = previous.cache is not None and (previous.cache.key, previous.cache.claim_name) == (cache.key, cache.claim_name)
    return said if said is not None and same and said.reason in (Reason.HIT, Reason.PARTIAL_HIT, Reason.MISS) else None
