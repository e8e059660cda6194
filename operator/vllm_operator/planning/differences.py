"""What a plan made today would do otherwise than the plan in force, and why.

Only what a person would notice is compared: the GPU and the resource, the image, backends, variables, flags. Their
reasons are not: a sentence that was written better is no difference.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_operator.api.status import BackendChoice, Plan, PlannedArgument, PlannedVariable
from vllm_operator.planning.outcome import Outcome

Setting = tuple[str | None, str | None]
"""A value, and why it is that."""
NOTHING: Setting = (None, None)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that would be otherwise. A value is None where there is none, and empty for a flag without value.

    `before_reason` and `after_reason` are the reasons that the two plans give; None where they give none.
    """

    subject: str
    before: str | None
    after: str | None
    before_reason: str | None = None
    after_reason: str | None = None

    @property
    def text(self) -> str:
        """The difference in one sentence."""
        if self.after is None:
            return f"{self.subject} would not be set."
        if self.before is None:
            return f"{self.subject} would be {self.after or 'set'}, and is not set now."
        return f"{self.subject} would be {self.after or 'without value'}, not {self.before or 'without value'}."


def compare(pinned: Plan, fresh: Plan) -> list[Difference]:
    """Name what a plan made today does otherwise than the plan in force."""
    differences = [
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
    """Why no plan could be made today."""
    return f"No plan could be made: {fresh.refusal.message}" if fresh.refusal else ""


def _gpu(plan: Plan) -> str:
    return f"{plan.product or 'a GPU'} ({plan.architecture})" if plan.architecture else plan.product or ""


def _backends(choices: Iterable[BackendChoice]) -> dict[str, Setting]:
    return {choice.component: (choice.backend, choice.reason) for choice in choices}


def _values(settings: Iterable[PlannedVariable | PlannedArgument]) -> dict[str, Setting]:
    return {setting.name: (setting.value or "", setting.reason) for setting in settings}


def _settings(subject: str, before: Mapping[str, Setting], after: Mapping[str, Setting]) -> list[Difference]:
    differences = []
    for name in sorted(before.keys() | after.keys()):
        (old, old_reason), (new, new_reason) = before.get(name, NOTHING), after.get(name, NOTHING)
        if old != new:
            differences.append(Difference(subject.format(name), old, new, old_reason, new_reason))
    return differences
