"""Setting conditions from verdicts, and the status of an object that could not be observed."""

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from vllm_operator.api.conditions import READY, STALLED, Reason, find_condition, make_condition, set_condition, sort_conditions
from vllm_operator.api.status import Condition, ConditionStatus, VLLMDeploymentStatus
from vllm_operator.planning.outcome import Verdict

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def set_conditions(previous: Sequence[Condition], verdicts: Mapping[str, Verdict], *, now: str) -> list[Condition]:
    """Set conditions by type. Conditions without a verdict are removed."""
    conditions = (
        make_condition(
            find_condition(previous, type), type=type, status=verdict.status, reason=verdict.reason, message=verdict.message, now=now
        )
        for type, verdict in verdicts.items()
    )
    return list(sort_conditions(conditions))


def previous_verdict(conditions: Sequence[Condition], type: str) -> Verdict | None:
    """Return the verdict in the previous conditions; None if there is none."""
    found = find_condition(conditions, type)
    return Verdict(found.status, found.reason, found.message) if found is not None else None


_STALLED = "Waiting does not help: the operator cannot read the spec. See condition Ready."


def status_with_failure(previous: VLLMDeploymentStatus, *, reason: str, message: str, generation: int, now: str) -> VLLMDeploymentStatus:
    """Return the status with Ready=False for this reason, and with Stalled=True if only a change of the spec helps.

    Args:
        previous: The status that was last written.
        reason: One of the documented reasons.
        message: What failed, and what the user can do.
        generation: The generation of the object.
        now: The current time as in a condition.
    """
    is_stalled = reason == Reason.INVALID_SPEC
    conditions = tuple(condition for condition in previous.conditions if is_stalled or condition.type != STALLED)
    verdicts = [(READY, ConditionStatus.FALSE, message), (STALLED, ConditionStatus.TRUE, _STALLED)]
    for type, status, text in verdicts[: 2 if is_stalled else 1]:
        conditions = set_condition(conditions, type=type, status=status, reason=reason, message=text, now=now)
    return previous.model_copy(update={"observed_generation": generation, "conditions": list(conditions)})


def describe_invalid_spec(error: ValidationError) -> str:
    """Describe the first error of a spec that the CRD in the cluster accepted and the operator cannot read."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}. The CRD in the cluster does not match the operator. Apply the CRD of this version of the operator."
