"""Accepted and Planned, the plan with the backends from the engine's log, and its summary in the status."""

from collections.abc import Mapping, Sequence, Set

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.plan import BackendChoice, ChosenBy, EngineMemory, ObservedBackend, Plan, PlanSummary
from vllm_operator.api.resource import selector_of
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.backends import LoggedNames
from vllm_operator.inventory.pools import GPU_RESOURCE
from vllm_operator.logs.state import Stage
from vllm_operator.planning.pod_template import find_kept_labels
from vllm_operator.pods.view import Phase
from vllm_operator.status.observation import Observation
from vllm_operator.text import wording

EXPECTED = " (which vLLM was expected to take by itself)"
VERDICT_LIMIT = 1024
"""Maximum characters of a planning verdict, which may list the available GPUs."""
_WORTH_READING = 60
"""Minimum length to which a verdict is truncated when a mismatch is appended. Events and the plan contain the full text."""


def accepted(observed: Observation) -> Verdict:
    """Judge Accepted: whether planning understood the spec, and which fields have no effect."""
    verdict = _bounded(observed.outcome.accepted)
    kept = find_kept_labels(observed.resource.spec.pod_template, selector_of(observed.resource))
    if verdict.status is not ConditionStatus.TRUE or not (observed.not_kept or kept):
        return verdict
    text = observed.messages.say("accepted.ignored", fields=observed.not_kept, kept=kept)
    return Verdict(ConditionStatus.TRUE, Reason.FIELDS_IGNORED, text)


def planned(observed: Observation, plan: Plan | None) -> Verdict:
    """Judge Planned: whether planning chose a GPU and backends, and where the engine chose differently."""
    verdict = _bounded(observed.outcome.planned)
    has_plan = observed.outcome.plan is not None
    differences = mismatches(plan, observed.knowledge.logged_names) if has_plan else ()
    unserved = unserved_adapters(observed) if has_plan else []
    notes = [observed.messages.say("planned.adapters", adapters=unserved)] if unserved else []
    notes += [observed.messages.say("planned.mismatch", differences="; ".join(differences))] if differences else []
    if not notes:
        return verdict
    note = wording.clean(" ".join(notes), wording.MESSAGE_LIMIT)
    room = wording.MESSAGE_LIMIT - len(note) - 1
    text = wording.whole_sentences(wording.sentence(verdict.message), room, at_least=_WORTH_READING) if room >= _WORTH_READING else ""
    return Verdict(verdict.status, verdict.reason, f"{text} {note}".strip())


def observed_plan(observed: Observation) -> Plan | None:
    """Return the plan with the backends that the logs name.

    Without a plan, the previous one is returned while its Deployment exists, because it still runs.
    """
    previous = previous_plan(observed)
    if observed.outcome.plan is None:
        return previous if observed.deployment is not None else None
    plan = observed.outcome.plan
    remembered, logged = _remembered(plan, previous), _logged(observed)
    names = {choice.component for choice in plan.backends}
    backends = [
        _observed(choice, _seen(choice, names, logged) or remembered.get(choice.component, ()), observed.knowledge.logged_names)
        for choice in plan.backends
    ]
    return _with_backends(plan, backends)


def previous_plan(observed: Observation) -> Plan | None:
    """Return the previously pinned plan, with the backends that the logs had named."""
    plan, summary = observed.resource.pinned, observed.previous.pinned_plan
    if plan is None or summary is None:
        return plan
    seen = {entry.component: entry.backend for entry in summary.observed_backends or ()}
    return _with_backends(plan, [_with_observed(choice, seen.get(choice.component)) for choice in plan.backends])


def _with_backends(plan: Plan, backends: Sequence[BackendChoice]) -> Plan:
    """Return the plan with these backends; the same object if nothing changes."""
    if all(new is old for new, old in zip(backends, plan.backends, strict=True)):
        return plan
    return plan.model_copy(update={"backends": list(backends)})


def _with_observed(choice: BackendChoice, observed: str | None) -> BackendChoice:
    return choice if choice.observed == observed else choice.model_copy(update={"observed": observed})


def summary(observed: Observation, plan: Plan | None) -> PlanSummary | None:
    """Return `status.pinnedPlan`. Without a plan, the previous one is kept while its Deployment exists."""
    if observed.outcome.plan is None or plan is None:
        return observed.previous.pinned_plan if observed.deployment is not None else None
    if observed.revision is None:
        return None
    names, measured = observed.knowledge.logged_names, _measured(observed, plan) if plan.memory is not None else None
    return PlanSummary(
        revision=observed.revision,
        replan_token=plan.replan_token,
        architecture=plan.architecture,
        resource_name=plan.resource if plan.resource != GPU_RESOURCE else None,
        image=plan.image,
        predicted=_predicted(plan) if measured is not None else None,
        measured=measured,
        observed_backends=[
            ObservedBackend(component=choice.component, backend=choice.observed)
            for choice in plan.backends
            if choice.observed and not names.agree(choice.component, choice.observed, choice.backend)
        ]
        or None,
        unserved_adapters=unserved_adapters(observed) or None,
    )


def unserved_adapters(observed: Observation) -> list[str]:
    """Return the spec's adapters that the engine of a current Pod has not loaded, by its log; without a log, the previous result.

    An engine loads its adapters before it serves, so the log of a serving engine is complete. The log of an engine that does not log its
    version is ignored.
    """
    spec, before = observed.resource.spec, observed.previous.pinned_plan
    names = sorted(adapter.name for adapter in spec.adapters or ())
    for view in sorted(observed.pod_facts, key=lambda view: view.name) if names else ():
        state = view.state
        if view.phase is not Phase.READY or state is None or state.stage is not Stage.READY or state.engine_version is None:
            continue
        if view.is_current:
            return [name for name in names if name not in state.adapters]
    is_same = before is not None and before.revision == observed.revision
    known = before.unserved_adapters if before is not None and is_same else None
    return [name for name in known or () if name in names]


def _measured(observed: Observation, plan: Plan) -> EngineMemory | None:
    """Return the GPU memory from the first Pod by name that runs the plan and logged all values; else the previous result."""
    for view in sorted(observed.pod_facts, key=lambda view: view.name):
        state = view.state
        if state is None or state.memory.weights_gib is None or state.memory.kv_cache_gib is None:
            continue
        if view.is_current and view.has_caches_of(plan):
            sizes = (round(gib * 1024) for gib in (state.memory.weights_gib, state.memory.kv_cache_gib))
            return EngineMemory(weights_mebibytes=next(sizes), kv_cache_mebibytes=next(sizes))
    before = observed.previous.pinned_plan
    return before.measured if before is not None and before.revision == observed.revision else None


def _predicted(plan: Plan) -> EngineMemory | None:
    if plan.memory is None:
        return None
    return EngineMemory(weights_mebibytes=plan.memory.weights_mebibytes, kv_cache_mebibytes=plan.memory.kv_cache_mebibytes)


def mismatches(plan: Plan | None, names: LoggedNames) -> tuple[str, ...]:
    """Describe each backend in the log that differs from the plan: the requested one, or the expected default of vLLM."""
    return tuple(
        f"{choice.component} {choice.observed} instead of {choice.backend}{EXPECTED if choice.chosen_by is ChosenBy.ENGINE else ''}"
        for choice in (plan.backends if plan is not None else ())
        if choice.observed and not _is_meant(choice, choice.observed, names)
    )


def _is_meant(choice: BackendChoice, logged: str, names: LoggedNames) -> bool:
    """Return whether the log names the planned backend, or one that vLLM may use instead."""
    return any(names.agree(choice.component, logged, backend) for backend in (choice.backend, *(choice.alternatives or ())))


def _bounded(verdict: Verdict) -> Verdict:
    return Verdict(verdict.status, verdict.reason, wording.clean(verdict.message, VERDICT_LIMIT))


def _remembered(plan: Plan, previous: Plan | None) -> Mapping[str, Sequence[str]]:
    """Return previously seen names if the same plan is in force."""
    if previous is None or previous.cache_key != plan.cache_key or previous.observed_generation != plan.observed_generation:
        return {}
    chosen = {choice.component: choice.backend for choice in plan.backends}
    return {c.component: (c.observed,) for c in previous.backends if c.observed and chosen.get(c.component) == c.backend}


def _logged(observed: Observation) -> Mapping[str, Sequence[str]]:
    """Return all names in the logs of the current runs, ordered by Pod name."""
    states = [state for view in sorted(observed.pod_facts, key=lambda v: v.name) if (state := view.state) is not None]
    named: dict[str, list[str]] = {}
    for state in states:
        for component, backend in state.observed_backends:
            named.setdefault(component, []).append(backend)
    return named


def _seen(choice: BackendChoice, planned: Set[str], logged: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the names in the logs for a component. Old versions call the kernel of an MLA model its attention backend."""
    if choice.component in logged:
        return logged[choice.component]
    return logged.get("Attention", ()) if choice.component in ("MLADecode", "SparseAttention") and "Attention" not in planned else ()


def _observed(choice: BackendChoice, backends: Sequence[str], names: LoggedNames) -> BackendChoice:
    """Set the observed backend. If the log names several, prefer the planned one: a model may also have layers of other kinds."""
    if not backends:
        return choice
    seen = next((backend for backend in backends if _is_meant(choice, backend, names)), backends[-1])
    return _with_observed(choice, wording.clean(seen, 128))
