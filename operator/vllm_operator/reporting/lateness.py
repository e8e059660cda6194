"""When the start that is under way began, and from when on it is late.

A start is late when it takes much longer than the last start with the same caches did, or longer than its deadline allows. A first start
has no such estimate: it is late at its deadline, because minutes and an hour are both normal.
"""

from collections.abc import Iterator

from vllm_operator.api import labels
from vllm_operator.planning.engine.deadline import deadline_seconds
from vllm_operator.reporting import reading
from vllm_operator.reporting.estimates import is_warm
from vllm_operator.reporting.observation import StartClock
from vllm_operator.reporting.pods import Phase, PodView
from vllm_operator.reporting.scene import Scene
from vllm_operator.startup.state import StartupState

LATE_FACTOR = 2
"""A start may take this many times as long as the last one with the same caches."""
SLACK_SECONDS = 600
"""How much longer than the last one a start may take in any case: a slower disk or hub costs minutes, however short the start was."""
_KUBELET_PERIOD_SECONDS = 10
"""What `periodSeconds` of a probe is where nothing is said."""
_IN_PROGRESS = frozenset({Phase.WAITING_FOR_VOLUME, Phase.IMAGE_PULLING, Phase.SCHEDULING, Phase.CREATING, Phase.STARTING})


def start_clock(scene: Scene) -> StartClock | None:
    """The clock of the start that is late first; None while no start is in progress."""
    return min(_clocks(scene), key=lambda clock: clock.late_at, default=None)


def _clocks(scene: Scene) -> Iterator[StartClock]:
    for view in scene.starting:
        began = view.started_at or view.created_at
        if view.phase in _IN_PROGRESS and began is not None:
            yield StartClock(began, _late_after(scene, view))


def _late_after(scene: Scene, view: PodView) -> int:
    deadline = _probe_seconds(scene, view) or deadline_seconds(scene.observation.resource.spec)
    usual = _usual_seconds(scene, scene.state(view))
    return deadline if usual is None else min(deadline, max(LATE_FACTOR * usual, usual + SLACK_SECONDS))


def _usual_seconds(scene: Scene, state: StartupState | None) -> int | None:
    """How long the last start with the same caches took; None where there was none."""
    plan, known = scene.observation.outcome.plan, scene.observation.previous.cache
    if plan is None or known is None or known.key != plan.cache_key:
        return None
    return known.warm_start_seconds if is_warm(scene, state or StartupState()) else known.cold_start_seconds


def _probe_seconds(scene: Scene, view: PodView) -> int | None:
    """For how long the startup probe of a Pod waits: `podTemplate` may say otherwise than the spec. None where it has none."""
    pods = (*scene.observation.pods, *scene.observation.primers)
    pod = next((pod for pod in pods if reading.text(pod, "metadata", "uid") == view.uid), {})
    probe = reading.mapping(reading.named(pod, labels.CONTAINER, "spec", "containers", key="name"), "startupProbe")
    failures = reading.integer(probe, "failureThreshold")
    delay, period = reading.integer(probe, "initialDelaySeconds") or 0, reading.integer(probe, "periodSeconds") or _KUBELET_PERIOD_SECONDS
    return max(1, delay + failures * period) if failures else None
