"""Set conditions from verdicts, and build the status of an object that could not be observed."""

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from vllm_operator.api.conditions import ACCEPTED, ALWAYS, READY, STALLED, Reason, Verdict, find_condition, make_condition, sort_conditions
from vllm_operator.api.status import Condition, ConditionStatus, VLLMDeploymentStatus

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def set_conditions(previous: Sequence[Condition], verdicts: Mapping[str, Verdict], *, generation: int, now: str) -> list[Condition]:
    """Set conditions by type. Conditions without a verdict are removed."""
    conditions = (
        make_condition(
            find_condition(previous, type),
            type=type,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            generation=generation,
            now=now,
        )
        for type, verdict in verdicts.items()
    )
    return list(sort_conditions(conditions))


def previous_verdict(conditions: Sequence[Condition], type: str) -> Verdict | None:
    """Return the verdict in the previous conditions; None if there is none."""
    found = find_condition(conditions, type)
    return Verdict(found.status, found.reason, found.message) if found is not None else None


_STALLED = "Waiting does not help: the operator cannot read the spec. See condition Ready."
_UNKNOWN = "The operator could not observe this. See condition Ready."


def status_with_failure(previous: VLLMDeploymentStatus, *, reason: str, message: str, generation: int, now: str) -> VLLMDeploymentStatus:
    """Return the status with Ready=False for this reason, and with Accepted=False and Stalled=True if only a change of the spec helps.

    Other conditions keep their last observed state. Conditions that are always set are Unknown until they have been observed.

    Args:
        previous: The last written status.
        reason: One of the documented reasons.
        message: The failure, and how the user can fix it.
        generation: The generation of the object.
        now: The current time as in a condition.
    """
    failure = Verdict(FALSE, reason, message)
    verdicts = {READY: failure}
    if reason == Reason.INVALID_SPEC:
        verdicts |= {ACCEPTED: failure, STALLED: Verdict(TRUE, reason, _STALLED)}
    kept = {condition.type: condition for condition in previous.conditions if condition.type not in (*verdicts, STALLED)}
    verdicts |= {type: Verdict(UNKNOWN, reason, _UNKNOWN) for type in ALWAYS if type not in (*verdicts, *kept)}
    conditions = [*kept.values(), *set_conditions(previous.conditions, verdicts, generation=generation, now=now)]
    return previous.model_copy(update={"observed_generation": generation, "conditions": list(sort_conditions(conditions))})


def describe_invalid_spec(error: ValidationError) -> str:
    """Describe the first error of a spec that the cluster's CRD accepts and the operator cannot parse."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}. The CRD in the cluster does not match the operator. Apply the CRD of this version of the operator."
