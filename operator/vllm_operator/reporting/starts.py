"""Starts whose logs say something about caches: what they found there, how long they and their stages took."""

from dataclasses import dataclass

from vllm_operator.api.status import Plan, StageDuration
from vllm_operator.reporting import reading
from vllm_operator.reporting.durations import learn
from vllm_operator.reporting.pods import Phase, PodView
from vllm_operator.reporting.scene import Scene
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


def known_stages(scene: Scene, plan: Plan) -> list[StageDuration]:
    """How long the stages of starts with the caches of this plan took, the latest finished start included."""
    previous = scene.observation.previous.cache
    known = (previous.stages or []) if previous is not None and previous.key == plan.cache_key else []
    start = last_start(scene)
    return learn(known, start.state, is_warm=start.is_warm) if start is not None and start.is_finished else known


def _tells(view: PodView, state: StartupState) -> bool:
    alive = view.phase in (Phase.STARTING, Phase.READY, Phase.NOT_RESPONDING)
    return alive and (state.cache.hits > 0 or state.cache.misses > 0 or state.cache.load_failures > 0)
