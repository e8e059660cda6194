"""Differences between the plan in force and a new plan, with both reasons.

The comparison covers the preset, the GPU and its resource, the image, backends, variables and flags, but not the wording of reasons.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.plan import BackendChoice, Plan, PlannedArgument, PlannedPreset, PlannedVariable
from vllm_operator.planning.outcome import Outcome

Setting = tuple[str | None, str | None]
"""A value and the reason for it."""
NOTHING: Setting = (None, None)
FIELDS_SHOWN = 8
"""Maximum number of preset fields in a message."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. A value is None if it is not set, and empty for a flag without a value."""

    subject: str
    before: str | None
    after: str | None
    before_reason: str | None = None
    after_reason: str | None = None

    @property
    def text(self) -> str:
        """The difference as one sentence."""
        if self.after is None:
            return f"{self.subject} would be removed."
        if self.before is None:
            return f"{self.subject} would be added{f' with {self.after}' if self.after else ''}."
        return f"{self.subject} would change from {self.before or 'no value'} to {self.after or 'no value'}."


def compare(pinned: Plan, fresh: Plan) -> list[Difference]:
    """Return the differences between the plan in force and a new plan."""
    differences = _presets(pinned.preset, fresh.preset)
    differences += [
        Difference(subject, before or "unknown", after or "unknown")
        for subject, before, after in (
            ("The GPU", _gpu(pinned), _gpu(fresh)),
            ("The resource", f"{pinned.count}x {pinned.resource}", f"{fresh.count}x {fresh.resource}"),
            ("The image", pinned.image, fresh.image),
        )
        if before != after
    ]
    differences += _settings("The backend of {}", _backends(pinned.backends), _backends(fresh.backends))
    differences += _settings("The variable {}", _values(pinned.env), _values(fresh.env))
    differences += _settings("The flag {}", _values(pinned.args), _values(fresh.args))
    return differences


def refusal_of(fresh: Outcome) -> str:
    """Return why there is no new plan; empty if there is one."""
    return f"No new plan is possible: {fresh.refusal.message}" if fresh.refusal else ""


def differing_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the fields that differ, two levels deep, as a list in words; empty if none differ."""
    fields: list[str] = []
    for name in sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            fields += [f"{name}.{part}" for part in sorted(old.keys() | new.keys()) if old.get(part) != new.get(part)]
        else:
            fields.append(name)
    more = len(fields) - FIELDS_SHOWN
    return ", ".join(fields[:FIELDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _presets(old: PlannedPreset | None, new: PlannedPreset | None) -> list[Difference]:
    before, after = (str(preset) if preset is not None else None for preset in (old, new))
    if before != after:
        return [Difference("The preset", before, after)]
    fields = differing_fields(old.spec, new.spec) if old is not None and new is not None else ""
    return [Difference("The preset", before, f"{after}, changed in {fields}")] if fields else []


def _gpu(plan: Plan) -> str:
    return f"{plan.product or 'a GPU'} ({plan.architecture})" if plan.architecture else plan.product or ""


def _backends(choices: Iterable[BackendChoice]) -> dict[str, Setting]:
    return {choice.component: (choice.backend, choice.reason) for choice in choices}


def _values(settings: Iterable[PlannedVariable | PlannedArgument]) -> dict[str, Setting]:
    return {each.name: ((each.text if isinstance(each, PlannedArgument) else each.value) or "", each.reason) for each in settings}


def _settings(subject: str, before: Mapping[str, Setting], after: Mapping[str, Setting]) -> list[Difference]:
    differences = []
    for name in sorted(before.keys() | after.keys()):
        (old, old_reason), (new, new_reason) = before.get(name, NOTHING), after.get(name, NOTHING)
        if old != new:
            differences.append(Difference(subject.format(name), old, new, old_reason, new_reason))
    return differences
