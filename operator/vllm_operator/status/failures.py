"""A status for where nothing could be observed: the Ready condition says what failed, the rest stays as it was."""

from pydantic import ValidationError

from vllm_operator.api.conditions import READY, set_condition
from vllm_operator.api.status import ConditionStatus, VLLMDeploymentStatus


def status_with_failure(previous: VLLMDeploymentStatus, *, reason: str, message: str, generation: int, now: str) -> VLLMDeploymentStatus:
    """The status with Ready=False for this reason.

    Args:
        previous: The status that was last written.
        reason: One of the documented reasons.
        message: What failed, and what the user can do.
        generation: The generation of the object.
        now: The present time as in a condition.
    """
    conditions = set_condition(
        previous.conditions, type=READY, status=ConditionStatus.FALSE, reason=reason, message=message, generation=generation, now=now
    )
    return previous.model_copy(update={"conditions": list(conditions)})


def describe_invalid_spec(error: ValidationError) -> str:
    """Describe the first error of a spec that the CRD in the cluster has accepted and the operator cannot read."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return (
        f"{place}: {first['msg']}. The CRD in the cluster and the operator do not fit together: apply the CRD of this operator's version."
    )
