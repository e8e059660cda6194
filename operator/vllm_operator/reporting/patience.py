"""How long a start may be silent before it is called stalled.

A sign of progress is a line in the log, a new stage, a new run. The limit is `spec.startup.stallSeconds`, or
the time that the present stage is known to be silent for, where that is longer: FlashInfer compiles for
minutes without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from vllm_operator.reporting.pods import PodView
from vllm_operator.startup.state import Stage, StartupState

DEFAULT_STALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What is known of the stages of a start, in seconds.

    `silent` is how long a stage may go without a line in the log in a good start; `usual` how long it usually
    takes with cold caches.
    """

    silent: Mapping[Stage, int] = field(default_factory=dict)
    usual: Mapping[Stage, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a start is stalled.

    `since` is the last sign of progress, `limit` the seconds of silence allowed after it, `deadline` their sum.
    """

    since: datetime
    limit: int
    deadline: datetime
    stalled: bool


def judge(view: PodView, state: StartupState | None, *, stall_seconds: int | None, times: StageTimes, now: datetime) -> Judgement | None:
    """Judge a Pod whose engine runs and does not serve yet; None where no sign of life has a time."""
    signs = [view.started_at or view.created_at]
    if state is not None:
        signs += [state.last_line_at, state.stage_since, state.started_at]
    # A log line from the future (a clock that is off) must not grant patience for ever.
    seen = [sign for sign in signs if sign is not None and sign <= now]
    if not seen:
        return None
    stage = state.stage if state is not None else Stage.PROCESS_START
    limit = max(stall_seconds or DEFAULT_STALL_SECONDS, times.silent.get(stage, 0))
    deadline = max(seen) + timedelta(seconds=limit)
    return Judgement(since=max(seen), limit=limit, deadline=deadline, stalled=deadline <= now)
