"""How long a start may be silent before it is called stalled.

A sign of progress is a line in the log, a new stage, a new run. The limit is `spec.startup.stallSeconds`, or
the time that the present stage is known to be silent for, where that is longer: FlashInfer compiles for
minutes without a word. Where the cluster measures CPU use, it tells more: who compiles uses it, so a start that uses none
is stalled without that extra time, and one that uses some gets twice the limit. Not more, because processes that wait
for each other (NCCL, shared memory) use CPU as well.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vllm_operator.pods.view import PodView
from vllm_operator.startup.state import StartupState

DEFAULT_STALL_SECONDS = 600
IDLE_CORES = 0.05
"""A process that uses less does nothing: threads of Python that only wait for each other stay below."""
BUSY_FACTOR = 2
"""A start that uses CPU may be silent for this many times as long."""
RECHECK_SECONDS = 60
"""How often the CPU use of a silent start is looked at. Metrics are as old as a minute themselves."""


@dataclass(frozen=True, slots=True)
class StallCheck:
    """Whether a start is stalled.

    `since` is the last sign of progress, `limit` the seconds of silence allowed after it, `deadline` their sum. `look_at` is
    when the CPU use may change the judgement. `is_idle`: it uses no CPU; None where that is not known.
    """

    since: datetime
    limit: int
    deadline: datetime
    stalled: bool
    look_at: datetime
    is_idle: bool | None = None


def check_stall(
    view: PodView,
    state: StartupState | None,
    *,
    stall_seconds: int | None,
    silent_seconds: int | None,
    now: datetime,
    cores: float | None = None,
) -> StallCheck | None:
    """Judge a Pod whose engine runs and does not serve yet; None where no sign of life has a time.

    `stall_seconds` is what the user allows, `silent_seconds` what the present stage is known to need, `cores` the CPU use.
    """
    since = last_sign(view, state, now)
    if since is None:
        return None
    allowed = stall_seconds or DEFAULT_STALL_SECONDS
    known = max(allowed, silent_seconds or 0)
    is_idle = None if cores is None else cores < IDLE_CORES
    limit = known if is_idle is None else allowed if is_idle else BUSY_FACTOR * known
    deadline, first_look = since + timedelta(seconds=limit), since + timedelta(seconds=allowed)
    look_at = first_look if first_look > now or is_idle is None else now + timedelta(seconds=RECHECK_SECONDS)
    return StallCheck(since=since, limit=limit, deadline=deadline, stalled=deadline <= now, look_at=look_at, is_idle=is_idle)


def last_sign(view: PodView, state: StartupState | None, now: datetime) -> datetime | None:
    """The last sign of progress of a Pod whose engine runs; None where none has a time."""
    signs = [view.started_at or view.created_at]
    if state is not None:
        signs += [state.last_line_at, state.stage_since, state.started_at]
    # A log line from the future (a clock that is off) must not grant patience for ever.
    seen = [sign for sign in signs if sign is not None and sign <= now]
    return max(seen, default=None)
