"""`status.startup`: the start in progress, in numbers; the words about it; and weights that a Job fetches before a start.

A start logs lines far more often than the status should be written. The previous value is kept until another Pod leads, the stage changes,
5 % more is done after a second, or 10 s have passed. It is kept as a whole, so a report on an unchanged observation equals the previous
one, even if time has passed.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import FALSE, TRUE, Reason, Verdict
from vllm_operator.api.resource import Role
from vllm_operator.api.status import PodStartup, StartupStatus
from vllm_operator.caches.context import Fetching
from vllm_operator.logs.state import Progress, Stage, StartupState
from vllm_operator.pods.view import Phase, refine
from vllm_operator.status.observation import Observation, PodFacts, why_no_pod
from vllm_operator.status.starts import by_count, estimate_stage, seconds_left
from vllm_operator.text import wording

WRITE_SECONDS = 10
"""Minimum interval between writes of small progress."""
SOON_WRITE_SHARE = 0.05
"""Progress by this share of the total is written earlier."""
SOON_WRITE_SECONDS = 1
"""Minimum interval between writes of larger progress. Otherwise a bar with few steps would be written at every step."""
_MAX_PODS = 16
_MAX_RANKS = 3
"""Other nodes of a replica that are listed. `kubectl describe` shows at most 50 lines of a start."""


def startup_status(observed: Observation) -> tuple[StartupStatus | None, datetime | None]:
    """Return the start in progress (None without one), and when withheld progress may be written (None without any)."""
    startup, previous = _current_startup(observed), observed.previous.startup
    if startup is None or previous is None:
        return startup, None
    written = previous if _is_withheld(startup, previous, observed.now) else startup
    updated = reading.moment(written.update_time)
    return written, None if updated is None or _same(startup, written) else updated + _write_interval(startup, written)


def describe(observed: Observation, view: PodFacts, startup: StartupStatus | None = None, *, briefly: bool = False) -> str:
    """Describe the progress of the start of one Pod, without its name; with `briefly`, also without times.

    The numbers are those of `startup`, if that is about the Pod, so that words are not written more often than numbers.
    """
    state, words = view.state, observed.messages.stages[view.stage]
    if view.phase is not Phase.STARTING:
        return observed.messages.phases.get(view.phase, words)
    if view.container:
        return observed.messages.say("startup.init", limit=300, container=view.container, since=view.started_at)
    if state is None:
        return words
    counted = _progress(state)
    if counted is not None:
        what = wording.clean(counted.label, 80) or words
        written = startup if startup is not None and startup.pod == view.name and startup.total == counted.total else None
        completed, eta = (written.completed, written.eta_seconds) if written is not None else (counted.completed, by_count(counted))
        eta = None if briefly or state.silent_stage_inferred else eta
        words = observed.messages.say("startup.counted", limit=200, what=what, completed=completed, total=counted.total, eta=eta)
    if briefly or (counted is not None and not state.silent_stage_inferred):
        return words
    name, since = ("startup.silent", state.last_line_at) if state.silent_stage_inferred else ("startup.uncounted", state.stage_since)
    return observed.messages.say(name, limit=400, what=words, since=since, usual=estimate_stage(observed, view.stage, state), pod=view)


def silence_begins(observed: Observation, view: PodFacts) -> datetime | None:
    """Return when to report a silent start; None if it is not silent."""
    state = view.state
    if view.phase is not Phase.STARTING or state is None or state.last_line_at is None or state.silent_stage_inferred:
        return None
    return state.last_line_at + timedelta(seconds=observed.knowledge.startup.stages.silent_after_seconds)


_WAITS = (Phase.WAITING_FOR_VOLUME, Phase.CREATING, Phase.CONTAINER_FAILED)


def _stage_of(view: PodFacts) -> str:
    """Return the stage, or what a Pod on a node waits for before its image is pulled."""
    if view.reason == "FailedPrepareDynamicResources":
        return "DevicePreparation"
    return str(view.phase if view.node and view.phase in _WAITS else view.stage)


def _current_startup(observed: Observation) -> StartupStatus | None:
    if not observed.starting:
        return _fetching_startup(observed)
    lead, *others = observed.starting[:_MAX_PODS]
    if lead.group is not None:  # the other nodes of this replica, the least progress first
        members = [it for it in lead.group.members if it.name != lead.name and it.phase is not Phase.READY]
        others = [*sorted(members, key=lambda it: it.severity)[:_MAX_RANKS], *others][: _MAX_PODS - 1]
    state, counted = lead.state if lead.phase is Phase.STARTING else None, _counted(lead)
    eta = seconds_left(observed, lead.stage, state, counted) if state is not None else None
    return StartupStatus(
        stage=_stage_of(lead),
        stage_since=reading.stamp(state.stage_since if state is not None else lead.since),
        update_time=reading.stamp(observed.now) if others or counted is not None or eta is not None else None,
        eta_seconds=eta,
        pod=lead.name,
        restarts=lead.restarts or None,
        pods=[PodStartup(name=it.name, stage=_stage_of(it), restarts=it.restarts or None, **_counts(_counted(it))) for it in others]
        or None,
        **_counts(counted),
    )


def _counts(counted: Progress | None) -> dict[str, Any]:
    return {"completed": counted.completed, "total": counted.total} if counted is not None else {}


def _counted(view: PodFacts) -> Progress | None:
    return _progress(view.state) if view.phase is Phase.STARTING else None


def _progress(state: StartupState | None) -> Progress | None:
    counted = state.progress if state is not None else None
    return counted if counted is not None and 0 <= counted.completed <= counted.total and 0 < counted.total <= MAX_COUNTED else None


def _is_withheld(startup: StartupStatus, previous: StartupStatus, now: datetime) -> bool:
    if _same(startup, previous):
        return True
    if _lead(startup) != _lead(previous):
        return False
    updated = reading.moment(previous.update_time)
    return updated is not None and timedelta(0) <= now - updated < _write_interval(startup, previous)


def _write_interval(startup: StartupStatus, previous: StartupStatus) -> timedelta:
    advance = 0.0
    if startup.total and startup.completed is not None and previous.completed is not None:
        advance = abs(startup.completed - previous.completed) / startup.total
    return timedelta(seconds=SOON_WRITE_SECONDS if advance >= SOON_WRITE_SHARE else WRITE_SECONDS)


def _same(startup: StartupStatus, previous: StartupStatus) -> bool:
    """Return whether they are equal except for times. The time left refers to `update_time`."""
    return startup.model_copy(update={"update_time": previous.update_time, "eta_seconds": previous.eta_seconds}) == previous


def _lead(startup: StartupStatus) -> tuple[object, ...]:
    return (startup.stage, startup.total, startup.pod, startup.restarts, frozenset((it.name, it.restarts) for it in startup.pods or ()))


MAX_COUNTED = 10**15
"""More bytes than any model has. The API server rejects a whole status that contains a number beyond 64 bits."""
_GIB = 2**30
_STUCK = frozenset({Phase.UNSCHEDULABLE, Phase.IMAGE_PULL_FAILED, Phase.CONTAINER_FAILED, Phase.FAILED})


def describe_fetching(observed: Observation) -> Verdict | None:
    """Judge the progress while a Job fetches weights; None without such a Job."""
    fetching = observed.activity.fetching
    if fetching is None:
        return None
    model, weights = observed.resource.spec.model, observed.resource.spec.weights
    say = partial(
        observed.messages.fit,
        shrink=("why",),
        model=model.uri.removeprefix("hf://"),
        claim=fetching.claim,
        namespace=observed.resource.metadata.namespace,
        job_pod=fetching.view.name if fetching.view is not None else "",
        serving=observed.serving,
    )
    if fetching.state == "Impossible":
        return Verdict(FALSE, Reason.FETCH_FAILED, say("fetching_weights.impossible", why="", result=fetching.result))
    if fetching.state == "Refused":
        return Verdict(FALSE, Reason.FETCH_FAILED, say("fetching_weights.refused", why=fetching.why))
    progress = _downloaded(observed)
    if fetching.state == "Failed" and progress is None:
        text = say(
            "fetching_weights.failed",
            why=fetching.why,
            result=fetching.result,
            is_named=bool(weights and weights.claim_name),
            revision=model.revision,
            secret=model.token_secret_ref.name if model.token_secret_ref is not None else None,
            needed_gib=fetching.needed_bytes / _GIB if fetching.needed_bytes is not None else None,
            free_gib=fetching.free_bytes / _GIB if fetching.free_bytes is not None else None,
        )
        return Verdict(FALSE, Reason.FETCH_FAILED, text)
    why, is_stuck = _why_not_fetching(observed, fetching)
    shown = progress if progress is not None and not why else Progress(0, 0, "")
    sizes: dict[str, Any] = {"completed": shown.completed / _GIB, "total": shown.total / _GIB, "eta": shown.eta_seconds}
    text = say("fetching_weights.running", why=why, **sizes)
    return Verdict(FALSE, Reason.FETCH_FAILED, text) if is_stuck else Verdict(TRUE, Reason.FETCHING_WEIGHTS, text)


def _why_not_fetching(observed: Observation, fetching: Fetching) -> tuple[str, bool]:
    """Return why the Job does not run (empty if it runs or the reason is unknown), and whether only a change can make it run."""
    if fetching.view is None:
        refused = why_no_pod(observed, Role.FETCHING)
        return refused or fetching.why, bool(refused)
    view = refine(fetching.view, observed.event_log)
    if view.phase is Phase.NODE_LOST:
        return f"Node {view.node} no longer reports.", True
    return view.message, view.phase in _STUCK


def _fetching_startup(observed: Observation) -> StartupStatus | None:
    fetching, progress = observed.activity.fetching, _downloaded(observed)
    if fetching is None or fetching.view is None or progress is None:
        return None
    return StartupStatus(
        stage=str(Stage.WEIGHT_DOWNLOAD),
        stage_since=reading.stamp(observed.startups[fetching.view.run_key].stage_since),
        update_time=reading.stamp(observed.now),
        eta_seconds=progress.eta_seconds,
        pod=fetching.view.name,
        restarts=fetching.view.restarts or None,
        **_counts(progress),
    )


def _downloaded(observed: Observation) -> Progress | None:
    view = observed.activity.fetching.view if observed.activity.fetching is not None else None
    state = observed.startups.get(view.run_key) if view is not None else None
    return _progress(state) if state is not None and not state.is_final else None
