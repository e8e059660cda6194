"""Read earlier decisions from the status, and apply them to the rendered resource and plan.

Applied remedies change the pinned plan until the next generation of the spec.
"""

from collections.abc import Iterable

from vllm_operator.api.plan import Plan, PlannedArgument, PlannedVariable
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ChangeAction, ChangeKind, CrashStatus, RemediationState, RemediationStatus, RemedyChange
from vllm_operator.planning.pinning import planned_generation


def current(resource: VLLMDeployment) -> RemediationStatus | None:
    """Return the decision for the current spec; None if there is none. Scaling keeps remedies, and ends a stop."""
    status = recorded(resource)
    if status is None:
        return None
    stopped = status.state is RemediationState.STOPPED
    generation = resource.metadata.generation if stopped else planned_generation(resource)
    return status if status.observed_generation == generation else None


_OF_CRASH = ("signature", "pod", "restarts")


def recorded(resource: VLLMDeployment) -> RemediationStatus | None:
    """Return the decision in the status. A command in `status.lastCrash` is a suggestion for the status's generation."""
    status, crash = resource.status.remediation, resource.status.last_crash
    if status is not None or crash is None or crash.command is None:
        return status
    is_old = resource.status.observed_generation != resource.metadata.generation
    generation = 0 if is_old else planned_generation(resource)
    suggested = RemediationStatus(observed_generation=generation, state=RemediationState.SUGGESTED, command=crash.command)
    return suggested.model_copy(update={name: getattr(crash, name) for name in _OF_CRASH})


def is_mere_suggestion(status: RemediationStatus | None, crash: CrashStatus | None) -> bool:
    """Return whether a decision consists only of a command about this crash. It is then recorded with the crash."""
    if status is None or crash is None or status.state is not RemediationState.SUGGESTED or status.applied or status.stalled_pods:
        return False
    return all(getattr(status, name) == getattr(crash, name) for name in _OF_CRASH)


def to_record(status: RemediationStatus | None, crash: CrashStatus | None) -> tuple[RemediationStatus | None, CrashStatus | None]:
    """Return the decision and crash to write. A suggestion without action is stored in the crash's record."""
    command = status.command if status is not None and is_mere_suggestion(status, crash) else None
    written = crash.model_copy(update={"command": command}) if crash is not None else None
    return (None if command is not None else status), written


def carried_out(resource: VLLMDeployment, plan: Plan) -> tuple[VLLMDeployment, Plan]:
    """Return the resource and the plan to render: with the remedies, and without replicas after a stop."""
    decided = current(resource)
    if decided is None:
        return resource, plan
    if decided.state is RemediationState.STOPPED:
        resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"replicas": 0})})
    return resource, remedied(plan, decided)


def remedied(plan: Plan, decided: RemediationStatus) -> Plan:
    """Return the plan with the remedies in force. Rendering still gives precedence to the user's settings."""
    env = {variable.name: variable for variable in plan.env}
    args = {argument.name: argument for argument in plan.args}
    for remedy in decided.applied:
        for change in remedy.changes:
            if change.action is ChangeAction.REMOVE:
                (args if change.kind is ChangeKind.ARGUMENT else env).pop(change.name, None)
            elif change.kind is ChangeKind.ARGUMENT:
                args[change.name] = PlannedArgument(name=change.name, value=change.value, reason=remedy.reason)
            else:
                env[change.name] = PlannedVariable(name=change.name, value=change.value or "", reason=remedy.reason)
    return plan.model_copy(update={"env": list(env.values()), "args": list(args.values())}) if decided.applied else plan


def settled(resource: VLLMDeployment) -> RemediationStatus | None:
    """Return the decision that remains while no crash is in force: applied remedies, restarts and a stop, without suggestions."""
    decided = current(resource)
    if decided is None or not (decided.applied or decided.stalled_pods or decided.state is RemediationState.STOPPED):
        return None
    if decided.state in (RemediationState.STOPPED, RemediationState.GAVE_UP):
        return decided
    cleared = {"command": None, "signature": None, "pod": None, "restarts": None, "message": _in_force(decided)}
    return decided.model_copy(update={**cleared, "state": RemediationState.APPLIED if decided.applied else None})


def with_stalled(resource: VLLMDeployment, status: RemediationStatus | None, pods: list[str]) -> RemediationStatus | None:
    """Add Pods to the list of Pods that are restarted because their start has stalled."""
    if not pods:
        return status
    base = status or RemediationStatus(observed_generation=planned_generation(resource))
    return base.model_copy(update={"stalled_pods": [*base.stalled_pods, *pods]})


def in_words(changes: Iterable[RemedyChange]) -> str:
    """Describe changes: `--max-model-len 5600`, `without --moe-backend`, `NCCL_NVLS_ENABLE=0`."""
    return ", ".join(map(_in_words, changes))


def _in_words(change: RemedyChange) -> str:
    if change.action is ChangeAction.REMOVE:
        return f"without {change.name}"
    if change.value is None:
        return change.name
    return f"{change.name}{'=' if change.kind is ChangeKind.VARIABLE else ' '}{change.value}"


def _in_force(decided: RemediationStatus) -> str | None:
    changes = [change for remedy in decided.applied for change in remedy.changes]
    return f"In force: {in_words(changes)}. A change of the spec reverts it. To keep it, add it to the spec." if changes else None
