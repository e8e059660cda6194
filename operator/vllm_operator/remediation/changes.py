"""From the remedy of a known crash to changes of flags and variables that this deployment can have.

A remedy is written for all versions and all models; its values may be templates over what the crash's log line said.
What remains here is what can be written down exactly: known to this version, with a value, and different from what
is in force already.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import ChangeAction, ChangeKind, Plan, RemedyChange
from vllm_operator.catalog.signatures import Change, Signature
from vllm_operator.catalog.templates import fill_in_exactly
from vllm_operator.catalog.versions import Versions, VersionTable
from vllm_operator.planning.engine.deadline import READY_TIMEOUT
from vllm_operator.planning.engine.overrides import ENGINE_VARIABLE_PREFIX, Overrides, read_overrides, subject_of, subjects_of

_VALUE = re.compile(r"[A-Za-z0-9_./:,=+-]{1,512}")
"""What a value may look like. Parts of it may come from a log, which anyone can write."""
_PLACEHOLDER = re.compile(r"[<>]|\.\.|^fieldRef:")
"""Values that a person must fill in, and those that are no plain text."""
FIELD_FLAGS = frozenset(
    {
        *("--model", "--served-model-name", "--revision", "--host", "--port", "--uds"),
        *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel"),
    }
)
"""Flags for which the spec has a field; the API server refuses them in `engine.args`."""
FIELD_VARIABLES = frozenset({READY_TIMEOUT})
"""Variables that follow from a field of the spec."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine as it runs: the plan with its version's table, and what the user sets himself."""

    plan: Plan
    table: VersionTable | None
    overrides: Overrides

    @classmethod
    def of(cls, spec: VLLMDeploymentSpec, plan: Plan, versions: Versions) -> "Engine":
        """Put it together. `plan` is the one in force, remedies included."""
        table = versions.resolve(plan.engine_version).table if plan.engine_version else None
        return cls(plan, table, read_overrides(spec))

    def is_users(self, change: RemedyChange) -> bool:
        """Whether the user sets this flag or variable himself."""
        if change.kind is ChangeKind.VARIABLE:
            return change.name in self.overrides.variables
        given = {subject_of(flag) for flag in self.overrides.arguments}
        return self.overrides.replaces_arguments or not given.isdisjoint(subjects_of(change.name))

    def present(self, change: RemedyChange) -> tuple[bool, str | None]:
        """Whether the flag or variable is set, and its value."""
        planned: Mapping[str, str | None]
        if change.kind is ChangeKind.VARIABLE:
            planned = {variable.name: variable.value for variable in self.plan.env}
            values: Mapping[str, str | None] = {**planned, **self.overrides.variables}
        else:
            values = {**{argument.name: argument.value for argument in self.plan.args}, **self.overrides.arguments}
        return change.name in values, values.get(change.name)


def exact_changes(
    engine: Engine, signature: Signature, captures: Mapping[str, str], only: Iterable[Change] | None = None
) -> tuple[RemedyChange, ...]:
    """The changes of a signature's remedy that can be written down for this engine and would change something."""
    chosen = (*signature.arguments, *signature.environment) if only is None else tuple(only)
    found = (_exact(engine, change, change in signature.arguments, captures) for change in chosen)
    return tuple(change for change in found if change is not None)


def _exact(engine: Engine, change: Change, is_argument: bool, captures: Mapping[str, str]) -> RemedyChange | None:
    kind = ChangeKind.ARGUMENT if is_argument else ChangeKind.VARIABLE
    if not _is_known(engine, change, kind) or change.name in FIELD_FLAGS | FIELD_VARIABLES or _PLACEHOLDER.search(change.name):
        return None
    if change.remove:
        removed = RemedyChange(kind=kind, action=ChangeAction.REMOVE, name=change.name)
        return removed if engine.present(removed)[0] else None
    value = None if change.value is None else fill_in_exactly(change.value, captures)
    if (change.value is None and not is_argument) or (change.value is not None and not _is_plain(value)):
        return None
    wanted = RemedyChange(kind=kind, action=ChangeAction.SET, name=change.name, value=value)
    return None if engine.present(wanted) == (True, value) else wanted


def _is_known(engine: Engine, change: Change, kind: ChangeKind) -> bool:
    """Whether this version of the engine knows it. A variable that is not vLLM's own is known to whoever reads it."""
    if change.versions and (engine.plan.engine_version is None or not _within(change.versions, engine.plan.engine_version)):
        return False
    if kind is ChangeKind.VARIABLE:
        return not change.name.startswith(ENGINE_VARIABLE_PREFIX) or (engine.table is not None and engine.table.knows_variable(change.name))
    return engine.table is not None and engine.table.knows_flag(change.name)


def _within(versions: str, version: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def _is_plain(value: str | None) -> bool:
    return value is not None and _VALUE.fullmatch(value) is not None and not _PLACEHOLDER.search(value)
