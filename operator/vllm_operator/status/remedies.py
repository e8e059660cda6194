"""Remedies: the exact changes of flags and variables for a known crash, and the decisions in force.

A remedy in the catalog is for all versions and models. Its values can be templates over values from the log line of the crash. A change is
exact if the vLLM version knows it, if it has a value, and if it differs from the current value. Applied remedies change the current plan
until the spec changes in a field that a plan depends on.

`engine.args` and `engine.env` are lists, which a merge patch would replace. A suggested command is therefore a JSON patch. It names the
index in the list and first tests that the list still has the same entry. If the spec has changed since, the API server refuses the command.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from vllm_operator.api.crd import owned_flags
from vllm_operator.api.labels import SHORT_NAME
from vllm_operator.api.plan import Plan, PlannedArgument, PlannedVariable
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import EngineArgument, EngineSpec, EnvironmentVariable, VLLMDeploymentSpec, split_words
from vllm_operator.api.status import ChangeKind, CrashStatus, RemediationStatus, RemedyChange
from vllm_operator.catalog.startup import Change, Signature
from vllm_operator.catalog.templates import fill_in_exactly
from vllm_operator.catalog.versions import Versions, VersionTable, normalize_flag
from vllm_operator.planning.engine import overrides
from vllm_operator.planning.engine.serving import READY_TIMEOUT
from vllm_operator.planning.pinning import planned_generation
from vllm_operator.status.bad_nodes import avoiding

_VALUE = re.compile(r"[A-Za-z0-9_./:,=+-]{1,512}")
"""Form of a value. Parts of it may come from a log, which is untrusted."""
_PLACEHOLDER = re.compile(r"[<>]|\.\.|^fieldRef:")
"""Values that a person must fill in, and values that are not plain text."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The running engine: the plan, the table of its version, and the user's settings."""

    plan: Plan
    table: VersionTable | None
    given: overrides.Overrides

    @classmethod
    def of(cls, spec: VLLMDeploymentSpec, plan: Plan, versions: Versions) -> "Engine":
        """Return the engine of a spec. `plan` is the current plan, including remedies."""
        table = versions.resolve(plan.engine_version).table if plan.engine_version else None
        return cls(plan, table, overrides.read_overrides(spec))

    def is_users(self, change: RemedyChange) -> bool:
        """Return whether the user sets this flag or variable."""
        if change.kind == "Variable":
            return change.name in self.given.variables
        given = {overrides.subject_of(flag) for flag in self.given.arguments}
        return self.given.replaces_arguments or not given.isdisjoint(overrides.subjects_of(change.name))

    def present(self, change: RemedyChange) -> tuple[bool, str | None]:
        """Return whether the flag or variable is set, and its value."""
        is_variable = change.kind == "Variable"
        planned: Sequence[PlannedVariable | PlannedArgument] = self.plan.env if is_variable else self.plan.args
        given: Mapping[str, str | None] = self.given.variables if is_variable else self.given.arguments
        values = {**{each.name: each.value for each in planned}, **given}
        return change.name in values, values.get(change.name)


def exact_changes(
    engine: Engine, signature: Signature, captures: Mapping[str, str], only: Iterable[Change] | None = None
) -> tuple[RemedyChange, ...]:
    """Return the changes of a signature's remedy that are exact for this engine and have an effect."""
    chosen = (*signature.arguments, *signature.environment) if only is None else tuple(only)
    found = (_exact(engine, change, change in signature.arguments, captures) for change in chosen)
    return tuple(change for change in found if change is not None)


def _exact(engine: Engine, change: Change, is_argument: bool, captures: Mapping[str, str]) -> RemedyChange | None:
    kind: ChangeKind = "Argument" if is_argument else "Variable"
    if not _is_known(engine, change, kind) or change.name in (*owned_flags(), READY_TIMEOUT) or _PLACEHOLDER.search(change.name):
        return None
    if change.remove:
        removed = RemedyChange(kind=kind, action="Remove", name=change.name)
        return removed if engine.present(removed)[0] else None
    value = fill_in_exactly(change.value, captures) if change.value is not None else None
    is_plain = value is not None and _VALUE.fullmatch(value) and not _PLACEHOLDER.search(value)
    if not is_plain and (change.value is not None or not is_argument):
        return None
    desired = RemedyChange(kind=kind, action="Set", name=change.name, value=value)
    is_set, present = engine.present(desired)
    return None if is_set and (present == value or _is_within(present, change, value)) else desired


def _is_within(present: str | None, change: Change, value: str | None) -> bool:
    """Return whether a number that is set already is within the limit that a change would set."""
    try:
        beyond = float(present or "") - float(value or "")
    except ValueError:
        return False
    return beyond <= 0 if change.bound == "AtMost" else change.bound == "AtLeast" and beyond >= 0


def _is_known(engine: Engine, change: Change, kind: ChangeKind) -> bool:
    """Return whether this version of the engine knows the flag or variable. Variables of other programs count as known."""
    version, table = engine.plan.engine_version, engine.table
    if change.versions and (version is None or not SpecifierSet(change.versions).contains(version, prereleases=True)):
        return False
    if kind == "Argument":
        return table is not None and table.knows_flag(change.name)
    return not change.name.startswith(overrides.ENGINE_VARIABLE_PREFIX) or (table is not None and table.knows_variable(change.name))


Operation = dict[str, Any]


def patch_command(resource: VLLMDeployment, changes: Iterable[RemedyChange]) -> str | None:
    """Return the command that makes these changes; None if none of them changes `spec.engine`."""
    operations, metadata = patch_operations(resource, changes), resource.metadata
    if not operations:
        return None
    patch = shlex.quote(json.dumps(operations, separators=(",", ":")))
    return f"kubectl patch {SHORT_NAME} {metadata.name} -n {metadata.namespace} --type=json -p {patch}"


def patch_operations(resource: VLLMDeployment, changes: Iterable[RemedyChange]) -> list[Operation]:
    """Return the changes as a JSON patch (RFC 6902)."""
    engine, changes = resource.spec.engine, list(changes)
    operations = _without_words(engine, changes)
    added: dict[str, list[Operation]] = {}
    for kind, field in (("Argument", "args"), ("Variable", "env")):
        entries: Sequence[EngineArgument | EnvironmentVariable] | None = getattr(engine, field, None)
        names = [normalize_flag(entry.name) if kind == "Argument" else entry.name for entry in entries or ()]
        path, removed = f"/spec/engine/{field}", []
        for change in (each for each in changes if each.kind == kind):
            index = names.index(change.name) if change.name in names else None
            if index is not None and change.action == "Remove":
                removed.append(index)
            elif index is not None and entries:
                value = _entry(change, entries[index].name)
                operations += _edit(f"{path}/{index}", entries[index].name, "replace", value=value)
            elif change.action == "Set" and entries is not None:
                operations.append({"op": "add", "path": f"{path}/-", "value": _entry(change, change.name)})
            elif change.action == "Set":
                added.setdefault(field, []).append(_entry(change, change.name))
        for index in sorted(removed, reverse=True):  # from the end, so that the other indices stay valid
            operations += _edit(f"{path}/{index}", entries[index].name if entries else "", "remove")
    if added and engine is None:
        return [*_create("/spec/engine", added), *operations]
    return [*operations, *(operation for field, values in added.items() for operation in _create(f"/spec/engine/{field}", values))]


def _without_words(engine: EngineSpec | None, changes: Iterable[RemedyChange]) -> list[Operation]:
    """Return the operations that take changed flags out of `extraArgs`. Those that are set are then in `args`."""
    words, path = (engine.extra_args if engine is not None else None) or [], "/spec/engine/extraArgs"
    changed = {normalize_flag(change.name) for change in changes if change.kind == "Argument"}
    kept = [word for flag, group in split_words(words).items() if normalize_flag(flag) not in changed for word in group]
    return [{"op": "test", "path": path, "value": words}, {"op": "replace", "path": path, "value": kept}] if kept != words else []


def _entry(change: RemedyChange, name: str) -> Operation:
    return {"name": name, **({"value": change.value} if change.value is not None else {})}


def _edit(path: str, name: str, operation: str, **more: Any) -> list[Operation]:
    return [{"op": "test", "path": f"{path}/name", "value": name}, {"op": operation, "path": path, **more}]


def _create(path: str, value: Any) -> list[Operation]:
    return [{"op": "test", "path": path, "value": None}, {"op": "add", "path": path, "value": value}]


def remediation_in_force(resource: VLLMDeployment) -> RemediationStatus | None:
    """Return the decision for the current spec; None if there is none. Scaling keeps remedies, and ends a stop."""
    status = last_written(resource)
    if status is None:
        return None
    is_stopped = status.state == "Stopped"
    return status if status.observed_generation == (resource.metadata.generation if is_stopped else planned_generation(resource)) else None


_OF_CRASH = ("signature", "pod", "restarts")


def last_written(resource: VLLMDeployment) -> RemediationStatus | None:
    """Return the decision in the status. A command in `status.lastCrash` is a suggestion for the status's generation."""
    status, crash = resource.status.remediation, resource.status.last_crash
    if status is not None or crash is None or crash.command is None:
        return status
    is_old = resource.status.observed_generation != resource.metadata.generation
    generation = 0 if is_old else planned_generation(resource)
    suggested = RemediationStatus(observed_generation=generation, state="Suggested", command=crash.command)
    return suggested.model_copy(update={name: getattr(crash, name) for name in _OF_CRASH})


def is_mere_suggestion(status: RemediationStatus | None, crash: CrashStatus | None) -> bool:
    """Return whether a decision consists only of a command about this crash. It is then recorded with the crash."""
    if status is None or crash is None or status.state != "Suggested" or status.applied or status.stalled_pods:
        return False
    return all(getattr(status, name) == getattr(crash, name) for name in _OF_CRASH)


def to_record(status: RemediationStatus | None, crash: CrashStatus | None) -> tuple[RemediationStatus | None, CrashStatus | None]:
    """Return the decision and crash to write. A suggestion without action is stored in the crash's record."""
    command = status.command if status is not None and is_mere_suggestion(status, crash) else None
    written = crash.model_copy(update={"command": command}) if crash is not None else None
    return (None if command is not None else status), written


def carried_out(resource: VLLMDeployment, plan: Plan) -> tuple[VLLMDeployment, Plan]:
    """Return the resource and the plan to render: with the remedies and avoided nodes, and without replicas after a stop."""
    decided, plan = remediation_in_force(resource), avoiding(resource, plan)
    if decided is None:
        return resource, plan
    if decided.state == "Stopped":
        resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"replicas": 0})})
    return resource, remedied(plan, decided)


def remedied(plan: Plan, decided: RemediationStatus) -> Plan:
    """Return the plan with the remedies in force. Rendering still gives precedence to the user's settings."""
    env = {variable.name: variable for variable in plan.env}
    args = {argument.name: argument for argument in plan.args}
    for remedy in decided.applied:
        for change in remedy.changes:
            if change.action == "Remove":
                (args if change.kind == "Argument" else env).pop(change.name, None)
            elif change.kind == "Argument":
                args[change.name] = PlannedArgument(name=change.name, value=change.value, reason=remedy.reason)
            else:
                env[change.name] = PlannedVariable(name=change.name, value=change.value or "", reason=remedy.reason)
    return plan.model_copy(update={"env": list(env.values()), "args": list(args.values())}) if decided.applied else plan


def without_suggestion(resource: VLLMDeployment) -> RemediationStatus | None:
    """Return the decision that remains while no crash is in force: applied remedies, restarts and a stop, without suggestions."""
    decided = remediation_in_force(resource)
    if decided is None or not (decided.applied or decided.stalled_pods or decided.state == "Stopped"):
        return None
    if decided.state in ("Stopped", "GaveUp"):
        return decided
    changes = in_words(change for remedy in decided.applied for change in remedy.changes)
    message = f"In force: {changes}. A change of the spec reverts it. To keep it, add it to the spec." if changes else None
    cleared = {"command": None, "signature": None, "pod": None, "restarts": None, "message": message}
    return decided.model_copy(update={**cleared, "state": "Applied" if decided.applied else None})


def in_words(changes: Iterable[RemedyChange]) -> str:
    """Describe changes: `--max-model-len 5600`, `without --moe-backend`, `NCCL_NVLS_ENABLE=0`."""
    return ", ".join(map(_in_words, changes))


def _in_words(change: RemedyChange) -> str:
    if change.action == "Remove":
        return f"without {change.name}"
    if change.value is None:
        return change.name
    return f"{change.name}{'=' if change.kind == 'Variable' else ' '}{change.value}"
