"""`status.startup`: the start that is under way, in numbers and words.

A start writes far more lines than anyone wants writes of a status. What was written last is kept unless
something worth a write has happened: another Pod leads, another stage, 5 % more after a second, or 10 s have passed. The
block that is kept is kept as a whole, so that a report on an unchanged scene equals the one before, and time
alone never changes a word of it.
"""

from datetime import datetime, timedelta

from vllm_operator.api.status import PodStartup, StartupStatus
from vllm_operator.observation.state import ObservedState
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.startup.state import Progress, StartupState
from vllm_operator.status.estimates import by_count, estimate, seconds_left
from vllm_operator.text import wording

HOLD_SECONDS = 10
"""Small progress is written at most this often."""
HOLD_SHARE = 0.05
"""Progress by this share of the total is written sooner."""
SHORT_HOLD_SECONDS = 1
"""How soon: a bar of few steps would otherwise be written at every step."""
MOST_COUNTED = 10**15
"""Bytes of more than any model. The API server refuses a status with a number beyond 64 bits, and nothing would be told any more."""
_MOST_PODS = 16


def startup_status(observed: ObservedState) -> StartupStatus | None:
    """The start that is under way; None if no Pod is on its way."""
    block = _block(observed)
    previous = observed.observation.previous.startup
    return previous if block is not None and previous is not None and _is_held(block, previous, observed.observation.now) else block


def held_until(observed: ObservedState, written: StartupStatus | None) -> datetime | None:
    """When progress that is held back may be written; None if nothing is."""
    block = _block(observed)
    updated = reading.moment(written.update_time) if written is not None else None
    if block is None or written is None or updated is None or _same(block, written):
        return None
    return updated + _hold(block, written)


def describe(observed: ObservedState, view: PodView, *, briefly: bool = False) -> str:
    """Say how far the start of one Pod is, in words without its name; briefly: without times."""
    state = observed.state(view)
    stage = observed.stage(view)
    words = observed.messages.stage(stage)
    if view.container and view.phase is Phase.STARTING:
        return observed.messages.say("startup.init", limit=300, container=view.container, since=view.started_at)
    if view.phase is not Phase.STARTING:
        return observed.messages.phases.get(view.phase, words)
    if state is None:
        return words
    counted = _progress(state)
    if counted is not None:
        what = wording.clean(counted.label, 80) or words
        eta = None if briefly or state.silent_stage_inferred else by_count(counted)
        words = observed.messages.say("startup.counted", limit=200, what=what, completed=counted.completed, total=counted.total, eta=eta)
    if briefly or (counted is not None and not state.silent_stage_inferred):
        return words
    name = "startup.silent" if state.silent_stage_inferred else "startup.uncounted"
    since = state.last_line_at if state.silent_stage_inferred else state.stage_since
    return observed.messages.say(name, limit=400, what=words, since=since, usual=estimate(observed, stage, state))


def silence_begins(observed: ObservedState, view: PodView) -> datetime | None:
    """When the silence of a start becomes worth a word; None if it is not awaited."""
    state = observed.state(view)
    if view.phase is not Phase.STARTING or state is None or state.last_line_at is None or state.silent_stage_inferred:
        return None
    return state.last_line_at + timedelta(seconds=observed.knowledge.startup.stages.silent_after_seconds)


def _block(observed: ObservedState) -> StartupStatus | None:
    starting = observed.starting
    if not starting:
        return None
    lead = starting[0]
    entries = [_entry(observed, view) for view in starting[:_MOST_PODS]]
    state = observed.state(lead) if lead.phase is Phase.STARTING else None
    counted = _progress(state)
    since = state.stage_since if state is not None else lead.since
    return StartupStatus(
        stage=entries[0].stage,
        completed=entries[0].completed,
        total=entries[0].total,
        message=describe(observed, lead),
        stage_since=reading.stamp(since),
        update_time=reading.stamp(observed.observation.now),
        eta_seconds=seconds_left(observed, observed.stage(lead), state, counted) if state is not None else None,
        pods=entries,
    )


def _entry(observed: ObservedState, view: PodView) -> PodStartup:
    counted = _progress(observed.state(view)) if view.phase is Phase.STARTING else None
    return PodStartup(
        name=view.name,
        stage=str(observed.stage(view)),
        completed=counted.completed if counted else None,
        total=counted.total if counted else None,
        restarts=view.restarts,
    )


def _progress(state: StartupState | None) -> Progress | None:
    """The progress of a stage that counts, if its numbers make sense."""
    counted = state.progress if state is not None else None
    return counted if counted is not None and 0 <= counted.completed <= counted.total and 0 < counted.total <= MOST_COUNTED else None


def _is_held(block: StartupStatus, previous: StartupStatus, now: datetime) -> bool:
    if _same(block, previous):
        return True
    if _lead(block) != _lead(previous):
        return False
    updated = reading.moment(previous.update_time)
    return updated is not None and timedelta(0) <= now - updated < _hold(block, previous)


def _hold(block: StartupStatus, previous: StartupStatus) -> timedelta:
    return timedelta(seconds=SHORT_HOLD_SECONDS if _advance(block, previous) >= HOLD_SHARE else HOLD_SECONDS)


def _same(block: StartupStatus, previous: StartupStatus) -> bool:
    """Whether the words are the same. The time left is as of `update_time`: where nothing is counted, only time changes it."""
    return block.model_copy(update={"update_time": previous.update_time, "eta_seconds": previous.eta_seconds}) == previous


def _lead(block: StartupStatus) -> tuple[object, ...]:
    """What is shown at once when it changes."""
    lead = block.pods[0] if block.pods else None
    return (block.stage, block.total, lead and lead.name, lead and lead.restarts, frozenset((p.name, p.restarts) for p in block.pods))


def _advance(block: StartupStatus, previous: StartupStatus) -> float:
    if not block.total or block.completed is None or previous.completed is None:
        return 0.0
    return abs(block.completed - previous.completed) / block.total
