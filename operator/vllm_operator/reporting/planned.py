"""Accepted and Planned, and the plan with what the engine's log says about it."""

from collections.abc import Mapping, Set

from vllm_operator.api.status import BackendChoice, ChosenBy, Plan
from vllm_operator.planning.outcome import Verdict
from vllm_operator.reporting import wording
from vllm_operator.reporting.scene import Scene

VERDICT_LIMIT = 1024
"""Characters of a verdict of planning, at most: it may list what GPUs there are."""


def accepted(scene: Scene) -> Verdict:
    """Whether the spec can be understood, as planning says."""
    return _bounded(scene.observation.outcome.accepted)


def planned(scene: Scene, plan: Plan | None) -> Verdict:
    """Whether a GPU and backends were chosen, as planning says, and what the engine chose instead."""
    verdict = _bounded(scene.observation.outcome.planned)
    differences = mismatches(plan) if scene.observation.outcome.plan is not None else ()
    if not differences:
        return verdict
    note = scene.messages.say("planned.mismatch", differences="; ".join(differences))
    text = wording.shorten(wording.sentence(verdict.message), VERDICT_LIMIT - len(note) - 1)
    return Verdict(verdict.status, verdict.reason, f"{text} {note}")


def observed_plan(scene: Scene) -> Plan | None:
    """The plan with the backends that the logs name.

    Without a plan the previous one stays as long as its Deployment does: it is what still runs.
    """
    observation = scene.observation
    previous = observation.previous.plan
    if observation.outcome.plan is None:
        return previous if observation.deployment is not None else None
    plan = observation.outcome.plan
    seen = {**_remembered(plan, previous), **_logged(scene)}
    names = {choice.component for choice in plan.backends}
    backends = [_observed(choice, seen.get(choice.component) or _decoding(choice, names, seen)) for choice in plan.backends]
    return plan.model_copy(update={"backends": backends})


def mismatches(plan: Plan | None) -> tuple[str, ...]:
    """Where the log names another backend than a rule or the user chose, in words."""
    return tuple(
        f"{choice.component} {choice.observed} instead of {choice.backend}"
        for choice in (plan.backends if plan is not None else ())
        if choice.observed and choice.chosen_by is not ChosenBy.ENGINE and not agree(choice.observed, choice.backend)
    )


def _bounded(verdict: Verdict) -> Verdict:
    return Verdict(verdict.status, verdict.reason, wording.clean(verdict.message, VERDICT_LIMIT))


def _remembered(plan: Plan, previous: Plan | None) -> Mapping[str, str]:
    """What was seen before, where the same plan is in force."""
    if previous is None or previous.cache_key != plan.cache_key or previous.observed_generation != plan.observed_generation:
        return {}
    chosen = {choice.component: choice.backend for choice in plan.backends}
    return {c.component: c.observed for c in previous.backends if c.observed and chosen.get(c.component) == c.backend}


def _logged(scene: Scene) -> Mapping[str, str]:
    """What the logs of the present runs name; of several Pods that differ, the last by name."""
    states = [state for view in sorted(scene.pods, key=lambda v: v.name) if (state := scene.state(view)) is not None]
    return {component: backend for state in states for component, backend in state.observed_backends}


def _decoding(choice: BackendChoice, planned: Set[str], seen: Mapping[str, str]) -> str | None:
    """The log calls the decode kernel of an MLA model its attention backend."""
    return seen.get("Attention") if choice.component == "MLADecode" and "Attention" not in planned else None


def _observed(choice: BackendChoice, backend: str | None) -> BackendChoice:
    return choice.model_copy(update={"observed": wording.clean(backend, 128)}) if backend else choice


def agree(one: str, other: str) -> bool:
    """Whether two names mean the same backend, as far as names tell.

    Logs spell and shorten differently from version to version ("vLLM CUTLASS", "TRT-LLM ragged DeepSeek prefill"),
    so one name may be a part of the other; only whether FlashInfer is named must be the same.
    """
    first, second = _bare(one), _bare(other)
    return (first in second or second in first) and ("flashinfer" in first) == ("flashinfer" in second)


def _bare(backend: str) -> str:
    return "".join(c for c in backend.casefold() if c.isalnum()).replace("attention", "attn")
