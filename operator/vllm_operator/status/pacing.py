"""Steps that a rollout takes before an engine runs: they follow each other within seconds, so not each is worth a write of the status.

An old Pod terminates and is gone, a new one is created, gets a node and a container, and the Deployment counts all of this a moment later.
Such a step is reported some seconds after the last change of the status, if it still lasts then. Everything else is reported at once: a
new spec, a stage of the log, a problem, and Ready in either direction.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from vllm_operator.api.conditions import READY, STARTING, Reason, find_condition
from vllm_operator.api.status import ConditionStatus, VLLMDeploymentStatus
from vllm_operator.pods import reading
from vllm_operator.startup.state import Stage
from vllm_operator.status.events import EventDraft

PACE = timedelta(seconds=3)
"""Minimum time between the last change of the status and such a step, if nothing has served yet."""
LATER_PACE = timedelta(seconds=20)
"""The same in later rollouts. An old Pod has usually made room by then, and an engine has written its first line."""
PACE_OF_EACH = timedelta(milliseconds=100)
"""How much longer for each rollout that has begun recently. Controllers and scheduler take some tens of them in a second. So with hundreds,
each step lasts, and if each object reported its steps, all rollouts would take longer."""
LONGEST_PACE = timedelta(seconds=60)
_STEPS = (Reason.NOT_STARTED, Reason.PROGRESSING, Reason.ROLLING_OUT, Reason.REPLICAS_NOT_READY, Reason.PULLING_IMAGE)
_EARLY = (None, Stage.SCHEDULING, Stage.IMAGE_PULL, Stage.PROCESS_START)
_MOVING = (READY, STARTING)


def later_pace(recent_rollouts: int) -> timedelta:
    """The pace in later rollouts, if so many have begun recently."""
    return min(LATER_PACE + recent_rollouts * PACE_OF_EACH, LONGEST_PACE)


def held_until(
    previous: VLLMDeploymentStatus,
    status: VLLMDeploymentStatus,
    events: Sequence[EventDraft],
    now: datetime,
    *,
    ready_since: datetime | None = None,
    recent_rollouts: int = 0,
) -> datetime | None:
    """Return until when the previous status stays; None if the new one is to be written now, or is equal.

    Args:
        previous: The status that was last written.
        status: The new one.
        events: What is to be recorded with it.
        now: The current time.
        ready_since: When the newest ready Pod became ready. Until its Deployment has counted it, the rollout looks incomplete.
        recent_rollouts: How many VLLMDeployments have begun a rollout recently.
    """
    if events or status == previous or not _is_step(previous, status):
        return None
    conditions = (find_condition(previous.conditions, type) for type in _MOVING)
    stamps = [condition.last_transition_time for condition in conditions if condition is not None]
    stamps += [previous.startup.update_time] if previous.startup is not None else []
    changed = [moment for stamp in stamps if (moment := reading.moment(stamp)) is not None and moment <= now]
    later = later_pace(recent_rollouts)
    pace = PACE if previous.url is None else later
    due = [moment + pace for moment in changed] + ([ready_since + later] if ready_since is not None else [])
    return max((moment for moment in due if now < moment <= now + later), default=None)


def _is_step(previous: VLLMDeploymentStatus, status: VLLMDeploymentStatus) -> bool:
    """Whether a status differs from the previous one in nothing but such a step."""
    if status.startup is not None and status.startup.stage not in _EARLY:
        return False
    return all(map(_is_under_way, (previous, status))) and _rest(previous) == _rest(status)


def _is_under_way(status: VLLMDeploymentStatus) -> bool:
    ready, starting = (find_condition(status.conditions, type) for type in _MOVING)
    if ready is None or ready.status is not ConditionStatus.FALSE or ready.reason not in _STEPS:
        return False
    return starting is None or starting.reason in _STEPS


def _rest(status: VLLMDeploymentStatus) -> VLLMDeploymentStatus:
    """What no step changes."""
    conditions = [condition for condition in status.conditions if condition.type not in _MOVING]
    moving = dict.fromkeys(("replicas", "ready", "ready_replicas", "startup"))
    return status.model_copy(update={**moving, "conditions": conditions})
