"""A condition as it is judged: a verdict, to be set on the previous conditions."""

from collections.abc import Mapping, Sequence

from vllm_operator.api.conditions import find_condition, set_condition
from vllm_operator.api.status import Condition, ConditionStatus
from vllm_operator.planning.outcome import Verdict

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def set_conditions(previous: Sequence[Condition], verdicts: Mapping[str, Verdict], *, generation: int, now: str) -> list[Condition]:
    """Set conditions by type. Those that nobody judges any more are dropped."""
    conditions: tuple[Condition, ...] = tuple(c for c in previous if c.type in verdicts)
    for type, verdict in verdicts.items():
        conditions = set_condition(
            conditions,
            type=type,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            generation=generation,
            now=now,
        )
    return list(conditions)


def previous_verdict(conditions: Sequence[Condition], type: str) -> Verdict | None:
    """What was written last; None if nothing was."""
    found = find_condition(conditions, type)
    return Verdict(found.status, found.reason, found.message) if found is not None else None
