"""The verdict of planning, the backends in the engine's log, and what `status.engine` says of them."""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.conditions import Verdict
from vllm_operator.api.plan import BackendChoice, Plan
from vllm_operator.api.resource import selector_of
from vllm_operator.api.status import EngineStatus, ObservedBackend
from vllm_operator.catalog.backends import LoggedNames
from vllm_operator.logs.state import Stage
from vllm_operator.planning.outcome import NOTES_COMMAND
from vllm_operator.planning.pod_template import find_kept_labels
from vllm_operator.pods.view import Phase
from vllm_operator.status.observation import Observation
from vllm_operator.text import wording

Backends = Mapping[str, str]
"""Names of backends in the log, by component."""
VERDICT_LIMIT = 1024
"""Maximum characters of a planning verdict, which may list the available GPUs."""
_WORTH_READING = 60
"""Minimum length to which a verdict is truncated when a mismatch is appended. Events and the plan contain the full text."""


def plan_verdict(observed: Observation, logged: Backends) -> Verdict:
    """Return the verdict of planning, and what of the plan or the spec is not in effect in the engine."""
    outcome, say, plan = observed.outcome, observed.messages.say, observed.outcome.plan
    if plan is None:
        return _bounded(outcome.refusal or outcome.planned)
    metadata, notes = observed.resource.metadata, list(filter(None, (ignored_fields(observed),)))
    said = outcome.planned.message.replace(NOTES_COMMAND, f"kubectl vllm plan {metadata.name} -n {metadata.namespace}")
    verdict = _bounded(Verdict(outcome.planned.status, outcome.planned.reason, said))
    if unserved := unserved_adapters(observed):
        notes.append(say("planned.adapters", adapters=unserved))
    if differences := mismatches(plan, logged, observed.knowledge.logged_names):
        notes.append(say("planned.mismatch", differences="; ".join(differences)))
    if not notes:
        return verdict
    note = wording.clean(" ".join(notes), wording.MESSAGE_LIMIT)
    room = wording.MESSAGE_LIMIT - len(note) - 1
    text = wording.whole_sentences(wording.sentence(verdict.message), room, at_least=_WORTH_READING) if room >= _WORTH_READING else ""
    return Verdict(verdict.status, verdict.reason, f"{text} {note}".strip())


def ignored_fields(observed: Observation) -> str:
    """Return which fields of `spec.podTemplate` have no effect, as a text; empty if all have one."""
    kept = find_kept_labels(observed.resource.spec.pod_template, selector_of(observed.resource))
    return observed.messages.say("planned.ignored", fields=observed.not_kept, kept=kept) if observed.not_kept or kept else ""


def logged_backends(observed: Observation) -> Backends:
    """Return the backends that the logs of the current runs name; without a log, the previous result for the same plan."""
    plan, previous, before = observed.outcome.plan, observed.resource.pinned, backends_logged_before(observed)
    if plan is None:
        return {}
    is_same = previous is not None and (previous.cache_key, previous.observed_generation) == (plan.cache_key, plan.observed_generation)
    chosen_before = {choice.component: choice.backend for choice in previous.backends} if previous is not None and is_same else {}
    in_logs: dict[str, list[str]] = {}
    for view in sorted(filter(lambda it: it.has_caches_of(plan), observed.pod_facts), key=lambda it: it.name):
        for component, backend in view.state.observed_backends if view.state is not None else ():
            in_logs.setdefault(component, []).append(backend)
    if all(choice.component != "Attention" for choice in plan.backends):  # old versions call the kernel of an MLA model so
        in_logs = {**dict.fromkeys(("MLADecode", "SparseAttention"), in_logs.get("Attention", [])), **in_logs}
    found = {}
    for choice in plan.backends:
        names = in_logs.get(choice.component)
        if not names and chosen_before.get(choice.component) == choice.backend and choice.component in before:
            names = [before[choice.component]]
        if names:
            # a model may also have layers of other kinds, with other backends
            meant = (name for name in names if _is_meant(choice, name, observed.knowledge.logged_names))
            found[choice.component] = wording.clean(next(meant, names[-1]), 128)
    return {component: name for component, name in found.items() if name}


def backends_logged_before(observed: Observation) -> Backends:
    """Return the backends in the previous status, which are those that differ from the current plan."""
    before = observed.previous.engine
    return {entry.component: entry.backend for entry in (before.observed_backends if before is not None else None) or ()}


_ABOUT_PLAN = ("plan", "revision", "gpu", "replan_token", "engine")


def about_plan(observed: Observation, logged: Backends, message: str | None) -> dict[str, Any]:
    """Return what the status says of the plan. Without a plan, that of the previous one is kept while its Deployment exists."""
    plan = observed.outcome.plan
    if plan is None and observed.deployment is not None:
        return {name: getattr(observed.previous, name) for name in _ABOUT_PLAN}
    if plan is None or observed.revision is None:
        return {}
    said = (message, observed.revision, plan.gpu, plan.replan_token, _engine(observed, plan, logged))
    return dict(zip(_ABOUT_PLAN, said, strict=True))


def _engine(observed: Observation, plan: Plan, logged: Backends) -> EngineStatus | None:
    names = observed.knowledge.logged_names
    found = EngineStatus(
        memory=_memory(observed, plan),
        observed_backends=[
            ObservedBackend(component=choice.component, backend=logged[choice.component])
            for choice in plan.backends
            if choice.component in logged and not names.agree(choice.component, logged[choice.component], choice.backend)
        ]
        or None,
        unserved_adapters=unserved_adapters(observed) or None,
    )
    return found if found != EngineStatus() else None


def _before(observed: Observation) -> EngineStatus | None:
    return observed.previous.engine if observed.previous.revision == observed.revision else None


def unserved_adapters(observed: Observation) -> list[str]:
    """Return the spec's adapters that the engine of a current Pod has not loaded, by its log; without a log, the previous result.

    An engine loads its adapters before it serves, so the log of a serving engine is complete. The log of an engine that does not log its
    version is ignored.
    """
    names = sorted(adapter.name for adapter in observed.resource.spec.adapters or ())
    for view in sorted(observed.pod_facts, key=lambda view: view.name):
        state = view.state
        is_serving = view.phase is Phase.READY and state is not None and state.stage is Stage.READY
        if view.is_current and is_serving and state is not None and state.engine_version is not None:
            return [name for name in names if name not in state.adapters]
    before = _before(observed)
    return [name for name in (before.unserved_adapters if before is not None else None) or () if name in names]


def _memory(observed: Observation, plan: Plan) -> str | None:
    """Compare the plan with the first Pod by name that runs it and logged all values; else return the previous result."""
    predicted, before = plan.memory, _before(observed)
    for view in sorted(observed.pod_facts, key=lambda view: view.name) if predicted is not None else ():
        memory = view.state.memory if view.state is not None and view.is_current and view.has_caches_of(plan) else None
        if predicted is not None and memory is not None and memory.weights_gib is not None and memory.kv_cache_gib is not None:
            weights, kv_cache = predicted.weights_mebibytes / 1024, predicted.kv_cache_mebibytes / 1024
            facts = {"weights": (weights, memory.weights_gib), "kv_cache": (kv_cache, memory.kv_cache_gib)}
            said: dict[str, Any] = {name: [f"{size:.1f}" for size in sizes] for name, sizes in facts.items()}
            return observed.messages.say("plan.memory", **said)
    return before.memory if before is not None else None


def mismatches(plan: Plan | None, logged: Backends, names: LoggedNames) -> tuple[str, ...]:
    """Describe each backend in the log that differs from the plan: the requested one, or the expected default of vLLM."""
    return tuple(
        f"{choice.component} {logged[choice.component]} instead of {choice.backend}"
        f"{' (which vLLM was expected to take by itself)' if choice.chosen_by == 'Engine' else ''}"
        for choice in (plan.backends if plan is not None else ())
        if choice.component in logged and not _is_meant(choice, logged[choice.component], names)
    )


def _is_meant(choice: BackendChoice, logged: str, names: LoggedNames) -> bool:
    return any(names.agree(choice.component, logged, backend) for backend in (choice.backend, *(choice.alternatives or ())))


def _bounded(verdict: Verdict) -> Verdict:
    return Verdict(verdict.status, verdict.reason, wording.clean(verdict.message, VERDICT_LIMIT))
