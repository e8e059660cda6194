"""`status.cache` and CacheWarm: whether starts find their compiled artifacts.

Two things, told apart: the condition says what the last start did (loaded or built), the state says what the
next one will find. After a first start the condition is Miss and the state Warm.
"""

from dataclasses import dataclass
from typing import Any

from vllm_operator.api.conditions import CACHE_WARM, Reason
from vllm_operator.api.status import CacheState, CacheStatus, Plan, StartupStatus
from vllm_operator.planning.care import PrimingStep
from vllm_operator.planning.outcome import Verdict
from vllm_operator.reporting import reading
from vllm_operator.reporting.cache_state import next_start_finds
from vllm_operator.reporting.claims import claim_verdict, is_one_node
from vllm_operator.reporting.conditions import FALSE, TRUE, UNKNOWN, previous_verdict
from vllm_operator.reporting.durations import learn
from vllm_operator.reporting.pods import Phase, PodView
from vllm_operator.reporting.quarantine import MOST, Blame, latest
from vllm_operator.reporting.scene import Scene
from vllm_operator.reporting.starting import pod_text
from vllm_operator.startup.state import CacheEvidence, Stage, StartupState


@dataclass(frozen=True, slots=True)
class Start:
    """A start whose log says something about caches. `seconds` is None until the engine answers."""

    state: StartupState
    seconds: int | None
    run: tuple[str, int]

    @property
    def evidence(self) -> CacheEvidence:
        """What its log says about caches."""
        return self.state.cache

    @property
    def is_finished(self) -> bool:
        """Whether the engine answers and all was loaded, or all was built: a start to learn from."""
        return self.seconds is not None and (self.is_warm or self.is_cold)

    @property
    def is_warm(self) -> bool:
        """Whether everything was loaded."""
        return self.evidence.hits > 0 and self.evidence.misses == 0 and self.evidence.load_failures == 0

    @property
    def is_cold(self) -> bool:
        """Whether everything was built."""
        return self.evidence.misses > 0 and self.evidence.hits == 0


def last_start(scene: Scene) -> Start | None:
    """The latest start that tells; None if none does."""
    plan = scene.observation.outcome.plan
    views = [v for v in (*scene.pods, *scene.primers) if plan is None or scene.cache_keys.get(v.uid, plan.cache_key) == plan.cache_key]
    told = [(view, state) for view in views if (state := scene.state(view)) is not None and _tells(view, state)]
    if not told:
        return None
    view, state = max(told, key=lambda pair: (reading.stamp(pair[0].started_at or pair[1].started_at) or "", pair[0].name))
    return Start(state, start_seconds(view, state), view.run)


def start_seconds(view: PodView, state: StartupState) -> int | None:
    """How long a start took, from the start of the container until the engine answered; None if it does not yet."""
    begun = view.started_at or state.started_at
    done = state.stage_since if state.stage is Stage.READY else None
    return max(0, round((done - begun).total_seconds())) if begun is not None and done is not None else None


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
    stages = learn(known.stages or (), start.state, is_warm=start.is_warm) if start and start.is_finished else known.stages
    return CacheStatus(
        key=plan.cache_key,
        state=CacheState.QUARANTINED if blame is not None and blame.left_behind else next_start_finds(scene, plan),
        claim_name=scene.observation.claim_name,
        generation=_generation(plan, previous, blame),
        cold_start_seconds=cold,
        warm_start_seconds=warm,
        saved_seconds=max(0, cold - warm) if cold is not None and warm is not None else None,
        stages=stages or None,
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
    if observation.claim_name is None:
        return Verdict(FALSE, Reason.NO_CLAIM, say("cache.none"))
    if blame is not None and blame.left_behind:
        text = say("cache.quarantined", claim=cache.claim_name, key=cache.key, signature=blame.signature)
        return Verdict(FALSE, Reason.QUARANTINED, text)
    verdict = claim_verdict(scene) or _priming_verdict(scene, cache, block) or _last_start_verdict(scene, cache)
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
    if is_one_node(observation.claim) and observation.wanted > 1:
        text = messages.fit("cache.one_node", shrink=("text",), text=text, wanted=observation.wanted)
    if observation.care.skipped:
        text = messages.fit("cache.skipped", shrink=("text",), text=text, why=observation.care.skipped)
    if (cleaning := observation.care.cleaning) is not None:
        facts: dict[str, Any] = {
            "removed": len(cleaning.removed),
            "freed_gibibytes": cleaning.freed_bytes / 2**30,
            "advice": cleaning.advice,
            "why": cleaning.why,
        }
        text = messages.fit(f"cleaning.{cleaning.state}", shrink=("text",), text=text, **facts)
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
            return Verdict(FALSE, Reason.PRIMING, scene.messages.fit("cache.primer", shrink=("text",), text=text, **facts))
        case PrimingStep.ELSEWHERE:
            return Verdict(FALSE, Reason.PRIMING, scene.messages.say("cache.elsewhere", holder=care.holder, **facts))
    return None


def _last_start_verdict(scene: Scene, cache: CacheStatus) -> Verdict:
    start = last_start(scene)
    facts: dict[str, Any] = {
        "claim": cache.claim_name,
        "key": cache.key,
        "cold": cache.cold_start_seconds,
        "warm": cache.warm_start_seconds,
    }
    say = scene.messages.say
    if start is None:
        return _remembered(scene, cache) or Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.not_seen", **facts))
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


def _tells(view: PodView, state: StartupState) -> bool:
    alive = view.phase in (Phase.STARTING, Phase.READY, Phase.NOT_RESPONDING)
    return alive and (state.cache.hits > 0 or state.cache.misses > 0 or state.cache.load_failures > 0)
