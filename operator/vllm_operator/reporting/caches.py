"""`status.cache` and CacheWarm: whether starts find their compiled artifacts.

Two things, told apart: the condition says what the last start did (loaded or built), the state says what the
next one will find. After a first start the condition is Miss and the state Warm.
"""

from typing import Any

from vllm_operator.api.conditions import CACHE_WARM, Reason
from vllm_operator.api.status import CacheState, CacheStatus, Plan, StartupStatus
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.storage.care import PrimingStep
from vllm_operator.reporting import reading
from vllm_operator.reporting.cache_state import next_start_finds
from vllm_operator.reporting.claims import claim_verdict
from vllm_operator.reporting.conditions import FALSE, TRUE, UNKNOWN, previous_verdict
from vllm_operator.reporting.observation import Observation
from vllm_operator.reporting.places import Place, place_of
from vllm_operator.reporting.quarantine import MOST, Blame, latest
from vllm_operator.reporting.scene import Scene
from vllm_operator.reporting.starting import pod_text
from vllm_operator.reporting.starts import known_stages, last_start


def cache_status(scene: Scene, plan: Plan | None, blame: Blame | None = None) -> CacheStatus | None:
    """The caches of a plan; None without one. `blame` says whether they are damaged."""
    if plan is None:
        return None
    previous = scene.observation.previous.cache
    known = previous if previous is not None and previous.key == plan.cache_key else CacheStatus()
    start = last_start(scene)
    cold = start.seconds if start and start.is_cold and start.seconds is not None else known.cold_start_seconds
    warm = start.seconds if start and start.is_warm and start.seconds is not None else known.warm_start_seconds
    care = scene.observation.care
    return CacheStatus(
        key=plan.cache_key,
        state=CacheState.QUARANTINED if blame is not None and blame.left_behind else next_start_finds(scene, plan),
        claim_name=scene.observation.claim_name,
        image_digest=care.image.digest,
        weights_claim_name=scene.observation.weights_claim_name,
        generation=_generation(plan, previous, blame),
        cold_start_seconds=cold,
        warm_start_seconds=warm,
        saved_seconds=max(0, cold - warm) if cold is not None and warm is not None else None,
        stages=known_stages(scene, plan) or None,
        quarantined=list(blame.quarantined) or None if blame is not None else None,
        priming_skipped=care.skipped,
    )


def _generation(plan: Plan, previous: CacheStatus | None, blame: Blame | None) -> int | None:
    """The generation of the next plan's key: that of this one, and one more if its caches are left behind."""
    planned = next((part.value for part in plan.cache_key_parts if part.name == "generation"), "")
    before = previous.generation if previous is not None else None
    present = max(int(planned) if planned.isdecimal() else 0, before or 0)
    return present + 1 if blame is not None and blame.raised else present or before


def cache_warm(scene: Scene, cache: CacheStatus | None, block: StartupStatus | None = None, blame: Blame | None = None) -> Verdict:
    """Whether the last start loaded what it needs; before that, what stands against it, or who fills the cache."""
    say, observation = scene.messages.say, scene.observation
    if cache is None:
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.not_planned"))
    place = place_of(observation)
    if place is None:
        return Verdict(FALSE, Reason.NO_CLAIM, say("cache.none"))
    if blame is not None and blame.left_behind:
        text = say("cache.quarantined", place=place.words, key=cache.key, signature=blame.signature)
        return Verdict(FALSE, Reason.QUARANTINED, text)
    verdict = claim_verdict(scene) or _priming_verdict(scene, cache, block) or _last_start_verdict(scene, cache, place)
    text = _with_notes(scene, verdict.message)
    return Verdict(verdict.status, verdict.reason, _with_blame(scene, text, blame) if verdict.status is not TRUE else text)


def _with_blame(scene: Scene, text: str, blame: Blame | None) -> str:
    """Add what was found out about damage, as long as no start with whole caches has shown that all is well."""
    messages = scene.messages
    if blame is None:
        return text
    if blame.message:
        return messages.fit(blame.message, shrink=("text",), text=text, signature=blame.signature, most=MOST)
    before = latest(scene, blame.quarantined)
    if before is None:
        return text
    time = reading.moment(before.time)
    return messages.fit("cache.left_behind", shrink=("text",), text=text, key=before.key, time=time, signature=before.signature)


def _with_notes(scene: Scene, text: str) -> str:
    """Add what the user should know of the claim whatever the starts do."""
    observation, messages = scene.observation, scene.messages
    facts: dict[str, Any]
    if (stays := _one_node(observation)) is not None:
        text = messages.fit("cache.one_node", shrink=("text",), text=text, wanted=observation.wanted, **stays)
    if observation.care.image.moved and observation.outcome.plan is not None:
        facts = {"image": observation.outcome.plan.image, "digest": observation.care.image.digest}
        text = messages.fit("cache.image_moved", shrink=("text",), text=text, **facts)
    if observation.care.skipped:
        text = messages.fit("cache.skipped", shrink=("text",), text=text, why=observation.care.skipped)
    if observation.care.remounting is not None:
        text = messages.fit(f"remounting.{observation.care.remounting}", shrink=("text",), text=text, claim=observation.claim_name)
    if (cleaning := observation.care.cleaning) is not None:
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
    if observation.care.claim_note:
        text = messages.fit("cache.noted", shrink=("text",), text=text, note=observation.care.claim_note)
    return text


def _priming_verdict(scene: Scene, cache: CacheStatus, block: StartupStatus | None) -> Verdict | None:
    """Who fills an empty cache while others wait; None if nobody waits."""
    care, wanted = scene.observation.care, scene.observation.wanted
    facts: dict[str, Any] = {"claim": cache.claim_name, "key": cache.key, "because": care.because}
    match care.step:
        case PrimingStep.FIRST_POD if wanted > 1:
            return Verdict(FALSE, Reason.PRIMING, scene.messages.say("cache.first_pod", others=wanted - 1, **facts))
        case PrimingStep.PRIMER:
            view = next(iter(scene.primers), None)
            text = pod_text(scene, view, block) if view is not None else ""
            return Verdict(
                FALSE, Reason.PRIMING, scene.messages.fit("cache.primer", shrink=("text",), text=text, until=care.until, **facts)
            )
        case PrimingStep.ELSEWHERE:
            return Verdict(FALSE, Reason.PRIMING, scene.messages.say("cache.elsewhere", holder=care.holder, **facts))
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


def _last_start_verdict(scene: Scene, cache: CacheStatus, place: Place) -> Verdict:
    start = last_start(scene)
    facts: dict[str, Any] = {
        "place": place.words,
        "key": cache.key,
        "cold": cache.cold_start_seconds,
        "warm": cache.warm_start_seconds,
    }
    say = scene.messages.say
    if start is None:
        unseen = Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.not_seen" if place.is_shared else "cache.per_pod", **facts))
        return _remembered(scene, cache) or unseen
    if start.is_warm:
        return Verdict(TRUE, Reason.HIT, say("cache.hit", **facts))
    if not start.is_cold:
        return Verdict(FALSE, Reason.PARTIAL_HIT, say("cache.partial", failures=start.evidence.load_failures, **facts))
    return Verdict(FALSE, Reason.MISS, say("cache.building" if start.seconds is None else "cache.miss", **facts))


def _remembered(scene: Scene, cache: CacheStatus) -> Verdict | None:
    """What was said of the last start, where its log is not at hand any more."""
    previous = scene.observation.previous
    said = previous_verdict(previous.conditions, CACHE_WARM)
    same = previous.cache is not None and (previous.cache.key, previous.cache.claim_name) == (cache.key, cache.claim_name)
    return said if said is not None and same and said.reason in (Reason.HIT, Reason.PARTIAL_HIT, Reason.MISS) else None
