"""The result of planning: verdicts for the conditions Accepted and Planned, and a plan if both are True."""

from dataclasses import dataclass

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.plan import ChosenBy, Plan
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.text.wording import count


def not_accepted(verdict: Verdict) -> "Outcome":
    """Return the outcome for a spec that is not accepted."""
    message = f"There is no plan, because the spec is not accepted ({verdict.reason}). See condition Accepted."
    return Outcome(verdict, Verdict(ConditionStatus.FALSE, Reason.NOT_ACCEPTED, message), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of planning one VLLMDeployment.

    `plan` is None if and only if `accepted` or `planned` is not True. If `plan` is a pinned plan, `today` is the result of a new planning
    run, and `drift` has one sentence for each difference.
    """

    accepted: Verdict
    planned: Verdict
    plan: Plan | None
    drift: tuple[str, ...] = ()
    today: "Outcome | None" = None

    @property
    def refusal(self) -> Verdict | None:
        """Why there is no plan; None if there is one."""
        if self.plan is not None:
            return None
        return self.planned if self.accepted.status is ConditionStatus.TRUE else self.accepted


def summarize_gpu(made: Plan, gpus: GPUs) -> str:
    """Return GPU and engine as a sentence."""
    profile = made.mig_profile
    devices = count(made.count, "GPU") if profile is None else f"{count(made.count, 'MIG slice')} {profile}"
    engine = f"{made.distribution.value} {made.engine_version}" if made.engine_version else made.distribution.value
    where = f" on a node that {made.provisioner} would add" if made.provisioner else ""
    shared = f" shared by {made.time_slices} Pods" if made.time_slices else ""
    preset = f", with {made.preset}" if made.preset is not None else ""
    return f"Planned for {gpus.title(made.product, made.architecture)}{where}, {devices}{shared} per replica, {engine}{preset}."


def summarize(made: Plan, gpus: GPUs, *, with_notes: bool = True) -> str:
    """Return GPU, engine, the most severe note and the backends as sentences."""
    sentences = [summarize_gpu(made, gpus)]
    if with_notes and made.notes:
        sentences.append(f"Note: {made.notes[0]}")
        if more := len(made.notes) - 1:
            sentences.append(f"({count(more, 'more note')} in the plan.)")
    chosen = [f"{choice.component} {choice.backend}" for choice in made.backends if choice.chosen_by is not ChosenBy.ENGINE]
    defaults = [f"{choice.component} {choice.backend}" for choice in made.backends if choice.chosen_by is ChosenBy.ENGINE]
    if chosen:
        sentences.append(f"Backends: {', '.join(chosen)}.")
    sentences.append(
        f"vLLM defaults: {', '.join(defaults)}."
        if defaults
        else "vLLM chooses all other backends."
        if chosen
        else "vLLM chooses all backends."
    )
    return " ".join(sentences)
