"""How long a start may be silent before it is called stalled.

A sign of progress is a line in the log, a new stage, a new run. The limit is `spec.startup.stallSeconds`, or
the time that the present stage is known to be silent for, where that is longer: FlashInfer compiles for
minutes without a word.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vllm_operator.reporting.pods import PodView
from vllm_operator.startup.state import StartupState

DEFAULT_STALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a start is stalled.

    `since` is the last sign of progress, `limit` the seconds of silence allowed after it, `deadline` their sum.
    """

    since: datetime
    limit: int
    deadline: datetime
    stalled: bool


def judge(
    view: PodView, state: StartupState | None, *, stall_seconds: int | None, silent_seconds: int | None, now: datetime
) -> Judgement | None:
    """Judge a Pod whose engine runs and does not serve yet; None where no sign of life has a time.

    `stall_seconds` is what the user allows, `silent_seconds` what the present stage is known to need.
    """
    signs = [view.started_at or view.created_at]
    if state is not None:
        signs += [state.last_line_at, state.stage_since, state.started_at]
    # A log line from the future (a clock that is off) must not grant patience for ever.
    seen = [sign for sign in signs if sign is not None and sign <= now]
    if not seen:
        return None
    limit = max(stall_seconds or DEFAULT_STALL_SECONDS, silent_seconds or 0)
    deadline = max(seen) + timedelta(seconds=limit)
    return Judgement(since=max(seen), limit=limit, deadline=deadline, stalled=deadline <= now)
