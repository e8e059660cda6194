"""How long the stages of a start took: told in events, and kept to say what to expect of the next start."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from vllm_operator.api.status import StageDuration
from vllm_operator.startup.state import Stage, StartupState

LONGEST_STAGE_SECONDS = 7 * 86_400
"""What takes longer was measured by a clock that was set meanwhile."""
SHORTEST_KEPT_SECONDS = 5
"""Shorter stages are not worth a place in the status."""


def completed_stages(state: StartupState) -> tuple[tuple[Stage, datetime, datetime], ...]:
    """The stages that a start has left, with the times of entering and leaving them."""
    times = [(stage, time) for stage, time in state.entered if time is not None]
    return tuple((stage, begun, ended) for (stage, begun), (_, ended) in pairwise(times))


def learn(known: Sequence[StageDuration], state: StartupState, *, is_warm: bool) -> list[StageDuration]:
    """Take over what the stages of a finished start took."""
    durations = {entry.stage: entry for entry in known}
    for stage, begun, ended in completed_stages(state):
        seconds = round((ended - begun).total_seconds())
        if seconds > LONGEST_STAGE_SECONDS:
            continue
        entry = durations.get(stage, StageDuration(stage=stage))
        if seconds >= SHORTEST_KEPT_SECONDS or stage in durations:
            durations[stage] = entry.model_copy(update={"warm_seconds" if is_warm else "cold_seconds": max(0, seconds)})
    order = list(Stage)
    return sorted(durations.values(), key=lambda entry: order.index(Stage(entry.stage)) if entry.stage in order else len(order))[:16]
