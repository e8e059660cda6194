"""The result of planning: verdicts about the spec and the plan, a plan if both are True, and its differences from another.

Differences are in the preset, the GPU and its resource, the image, backends, variables and flags, but not in the wording of reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.conditions import FALSE, TRUE, Reason, Verdict
from vllm_operator.api.plan import Plan, PlannedPreset
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.rules import Rivals
from vllm_operator.text.wording import count, few


@dataclass(frozen=True, slots=True)
class FreeGPUs:
    """What is free for a plan whose Pods have no node: for how many `replicas` its GPU, and which `others` that the spec does not allow.

    `is_open`: whether the operator takes another GPU that the spec allows. `is_better`: whether the GPU of a new plan is free.
    """

    replicas: int
    others: tuple[str, ...]
    is_open: bool
    is_better: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """`plan` is None unless `accepted` and `planned` are True. For the current plan, `fresh` is a new one, and `drift` the differences.

    `free` is known for a current plan whose Pods have no node, `rivals` if the backends may race.
    """

    accepted: Verdict
    planned: Verdict
    plan: Plan | None
    drift: tuple[str, ...] = ()
    fresh: "Outcome | None" = None
    free: FreeGPUs | None = None
    rivals: Rivals | None = None

    @property
    def refusal(self) -> Verdict | None:
        """Why there is no plan; None if there is one."""
        refused = self.planned if self.accepted.status is TRUE else self.accepted
        return refused if self.plan is None else None


def not_accepted(verdict: Verdict) -> Outcome:
    """Return the outcome for a spec that is not accepted."""
    message = f"There is no plan, because the spec is not accepted ({verdict.reason})."
    return Outcome(verdict, Verdict(FALSE, Reason.NOT_ACCEPTED, message), None)


NOTES_COMMAND = "kubectl vllm plan NAME"
"""The command that shows all notes, for any object."""


def summarize_gpu(made: Plan, gpus: GPUs) -> str:
    """Return GPU and engine as a sentence."""
    devices = count(made.count, "GPU") if made.mig_profile is None else f"{count(made.count, 'MIG slice')} {made.mig_profile}"
    devices = f"{made.nodes} nodes with {devices} each" if made.nodes else devices
    engine = f"{made.distribution.value} {made.engine_version}" if made.engine_version else made.distribution.value
    where = f" on a node that {made.provisioner} would add" if made.provisioner else ""
    shared = f" shared by {made.time_slices} Pods" if made.time_slices else ""
    preset = f", with {made.preset}" if made.preset is not None else ""
    return f"Planned for {gpus.title(made.product, made.architecture)}{where}, {devices}{shared} per replica, {engine}{preset}."


def summarize(made: Plan, gpus: GPUs, *, with_notes: bool = True) -> str:
    """Return GPU, engine, the most severe note and the backends that were chosen as sentences."""
    sentences = [summarize_gpu(made, gpus)]
    if with_notes and made.notes:
        sentences.append(f"Note: {made.notes[0]}")
        if more := len(made.notes) - 1:
            sentences.append(f"({count(more, 'more note')}: {NOTES_COMMAND}.)")
    if chosen := ", ".join(f"{each.component} {each.backend}" for each in made.backends if each.chosen_by != "Engine"):
        sentences.append(f"Backends: {chosen}.")
    return " ".join(sentences)


Setting = tuple[str | None, str | None]
"""A value and the reason for it."""
NOTHING: Setting = (None, None)


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
    """Return the differences between the current plan and a new plan."""
    differences = _presets(pinned.preset, fresh.preset)
    for subject, before, after in (
        ("The GPU", _gpu(pinned), _gpu(fresh)),
        ("The resource", f"{pinned.count}x {pinned.resource}", f"{fresh.count}x {fresh.resource}"),
        ("The number of nodes", str(pinned.nodes or 1), str(fresh.nodes or 1)),
        ("The image", pinned.image, fresh.image),
    ):
        differences += [Difference(subject, before or "unknown", after or "unknown")] if before != after else []
    for old, new in zip(_settings(pinned), _settings(fresh), strict=True):
        for name in sorted(old.keys() | new.keys()):
            (was, reason), (is_now, new_reason) = old.get(name, NOTHING), new.get(name, NOTHING)
            differences += [Difference(name, was, is_now, reason, new_reason)] if was != is_now else []
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
    return few(fields, 8)


def _presets(old: PlannedPreset | None, new: PlannedPreset | None) -> list[Difference]:
    before, after = (str(preset) if preset is not None else None for preset in (old, new))
    if before != after:
        return [Difference("The preset", before, after)]
    fields = differing_fields(old.spec, new.spec) if old is not None and new is not None else ""
    return [Difference("The preset", before, f"{after}, changed in {fields}")] if fields else []


def _gpu(plan: Plan) -> str:
    return f"{plan.product or 'a GPU'} ({plan.architecture})" if plan.architecture else plan.product or ""


def _settings(plan: Plan) -> tuple[Mapping[str, Setting], ...]:
    return (
        {f"The backend of {each.component}": (each.backend, each.reason) for each in plan.backends},
        {f"The variable {each.name}": (each.value or "", each.reason) for each in plan.env},
        {f"The flag {each.name}": (each.text or "", each.reason) for each in plan.args},
    )
