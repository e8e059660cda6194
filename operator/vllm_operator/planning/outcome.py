"""What planning returns: two verdicts, and a plan unless something stands against it."""

from dataclasses import dataclass

from vllm_operator.api.conditions import Reason
from vllm_operator.api.status import ChosenBy, ConditionStatus, Plan
from vllm_operator.catalog.gpus import GPUs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status, reason and message of a condition."""

    status: ConditionStatus
    reason: str
    message: str


ACCEPTED = Verdict(ConditionStatus.TRUE, Reason.VALID, "The spec can be understood.")


def not_accepted(verdict: Verdict) -> "Outcome":
    """The outcome for a spec that is not accepted."""
    message = f"Nothing is planned, because the spec is not accepted ({verdict.reason}); see the condition Accepted."
    return Outcome(verdict, Verdict(ConditionStatus.FALSE, Reason.NOT_ACCEPTED, message), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of planning one VLLMDeployment.

    `plan` is None if and only if `accepted` or `planned` is not True.
    `drift` says in one line per difference what today's catalog and nodes would choose otherwise than the
    pinned plan that is returned; empty where nothing was pinned or nothing differs. `today` is what planning anew
    comes to, where a pinned plan is returned.
    """

    accepted: Verdict
    planned: Verdict
    plan: Plan | None
    drift: tuple[str, ...] = ()
    today: "Outcome | None" = None

    @property
    def refusal(self) -> Verdict | None:
        """What stands against a plan; None if there is one."""
        if self.plan is not None:
            return None
        return self.planned if self.accepted.status is ConditionStatus.TRUE else self.accepted


def summarize(made: Plan, gpus: GPUs, *, with_notes: bool = True) -> str:
    """Say what was decided: GPU, engine, kernels, and the first of the notes."""
    parts = {part.name: part.value for part in made.cache_key_parts}
    profile = parts.get("migProfile", "none")
    what = f"{made.count} GPU" if profile == "none" else f"{made.count} MIG slice"
    what += ("" if made.count == 1 else "s") + ("" if profile == "none" else f" {profile}")
    where = gpus.title(made.product, made.architecture)
    engine = f"{made.distribution.value} {made.engine_version}" if made.engine_version else made.distribution.value
    chosen = [f"{c.component} {c.backend}" for c in made.backends if c.chosen_by is not ChosenBy.ENGINE]
    expected = [f"{c.component} {c.backend}" for c in made.backends if c.chosen_by is ChosenBy.ENGINE]
    kernels = ", ".join(chosen)
    if expected:
        kernels += f"{'; ' if chosen else ''}{', '.join(expected)} by vLLM's own choice"
    notes = made.notes if with_notes else []
    note = f" Note: {notes[0]}" if notes else ""
    more = f" ({len(notes) - 1} more in status.plan.notes)" if len(notes) > 1 else ""
    return f"Planned for {where}, {what} per replica, {engine}: {kernels or 'kernels are left to vLLM'}.{note}{more}"
