"""The race of backends (`spec.backends.tuning: Measure`): whether one is held, which run is next, and which plans follow its result.

A primer runs one entrant after the other, as for the gate before a rollout. Each run is recorded before the next one begins, so the
operator may end at any time. A result counts for plans of the same VLLMDeployment with the same key: model, GPU, version, pinned backends
and workload. A replica that waits for a GPU gets that of the primer; the race goes on later.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import CRASHED, Reason, find_condition
from vllm_operator.api.labels import RACE_ANNOTATION, RUN_ANNOTATION
from vllm_operator.api.operation import RolloutSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import BackendsSpec
from vllm_operator.caches import gate
from vllm_operator.caches.context import CacheContext, Race, is_primer
from vllm_operator.caches.measurement import Entrant, RaceRecord, read_race
from vllm_operator.caches.priming import find_obstacle
from vllm_operator.caches.rollout import MAX_RESTARTS
from vllm_operator.catalog.entry import EntryError, parse_entry
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.rules import Rivals, Rule
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.text import wording
from vllm_operator.text.patterns import compile_linear

PATIENCE_SECONDS, LIMIT = 3600, timedelta(hours=6)
"""How long a run may wait for a GPU, and the maximum duration of a race."""
NO_RIVAL = "the catalog knows no other backend that works for this model, GPU and version."


def with_results(catalog: Catalog, resource: VLLMDeployment, revisions: Iterable[Mapping[str, Any]]) -> Catalog:
    """Add the winners of the races of a VLLMDeployment with its present load to the catalog, as rules, if its backends may race."""
    if not resource.may_race:
        return catalog
    records = (it for it in map(read_race, revisions) if it is not None and it.load == _load(resource))
    catalog = replace(catalog, measured=())
    for record in sorted(records, key=lambda it: it.started):
        catalog = with_entrant(catalog, record, winner) if (winner := record.winner) is not None else catalog
    return catalog


def with_entrant(catalog: Catalog, record: RaceRecord, entrant: Entrant) -> Catalog:
    """Add the rule of an entrant to the catalog, before the others."""
    try:  # a record is as untrusted as the rules of an administrator
        rule = parse_entry(Rule, record.to_rule(entrant), compile_pattern=compile_linear)
    except EntryError:
        return catalog
    return replace(catalog, measured=(rule, *(catalog.measured or ())))


def is_won(resource: VLLMDeployment, revision: Mapping[str, Any] | None) -> bool:
    """Return whether a race that was held for the current plan has a winner that the plan does not follow."""
    record = read_race(revision) if resource.may_race else None
    winner = record.winner if record is not None and record.load == _load(resource) else None
    return winner is not None and resource.pinned is not None and not follows(resource.pinned, winner)


def follows(plan: Plan, entrant: Entrant) -> bool:
    """Return whether a plan has the backend of an entrant."""
    return any((choice.component, choice.backend) == (entrant.component, entrant.backend) for choice in plan.backends)


def plan_race(
    context: CacheContext, revisions: Iterable[dict[str, Any]], current: str, rivals: Rivals | None, *, is_settled: bool, is_drifted: bool
) -> Race | None:
    """Return the race of the plan in force, or its result; None if none is wanted.

    `current` is the revision of the plan, `rivals` None if no plan can be made now, `is_settled` whether all replicas serve with it. With
    `is_drifted`, a new plan would differ, so no race can begin.
    """
    resource = context.resource
    records = {reading.text(it, "metadata", "name"): read_race(it) for it in revisions} if resource.may_race else {}
    if current not in records:
        return None
    token, backends = resource.metadata.annotations.get(RACE_ANNOTATION, "")[:128], resource.spec.backends or BackendsSpec()
    is_tuned, holder, record = backends.tuning == "Measure", current, records[current]
    if rivals is None:
        return Race(record, holder, waits="unplanned") if record is not None and record.next is not None else None
    when, others = rivals
    is_requested = bool(token) and all(it is None or it.token != token for it in records.values())
    pins = backends.model_dump(mode="json", exclude={"tuning", "max_candidates"}, exclude_none=True)
    key = hashlib.sha256(json.dumps([when, pins, _load(resource)], sort_keys=True).encode()).hexdigest()[:10]
    known = ((it.started, name) for name, it in records.items() if it is not None and it.key == key and not is_requested)
    holder = max(known, default=(None, current))[1]
    record = records[holder]
    if is_requested or record is None or record.key != key:
        if not is_requested and not is_tuned:
            return None
        if is_drifted or not is_settled:
            return Race(None, current, waits="drifted" if is_drifted else "unsettled")
        names = others[: (backends.max_candidates or 3) - 1]
        entrants = (Entrant(), *(Entrant(component=component, backend=name) for component, name in names))
        about: dict[str, Any] = {"key": key, "token": token, "load": _load(resource), "when": dict(when)}
        about |= {"optimize_for": backends.optimize_for or "Throughput", "started": context.now, "skipped": "" if names else NO_RIVAL}
        return Race(RaceRecord(**about, entrants=entrants), current, is_recorded=False)
    if record.next is None:
        return Race(record, holder)
    if not is_tuned and record.token != token:
        return None
    return _go_on(context, record, record.next, holder) if is_settled else Race(record, holder, waits="unsettled")


def _go_on(context: CacheContext, record: RaceRecord, number: int, holder: str) -> Race:
    run = f"{holder}/race-{sum(len(it.runs) + bool(it.failure) for it in record.entrants)}"
    primers = (view for view in context.pods if is_primer(view))
    pods = [view for view in primers if reading.text(view.manifest, "metadata", "annotations", RUN_ANNOTATION) == run]
    ends = (gate.read_run(view.manifest, is_new=number > 0) or _crash(context, view) for view in pods)
    found = next((end for end in ends if end is not None), None)
    if found is None:
        why = gate.SEVERAL_NODES if context.plan.nodes else find_obstacle(replace(context, primer_patience_seconds=PATIENCE_SECONDS), pods)
        why = why or ("it took more than six hours." if context.now - record.started > LIMIT else None)
        found = ("skipped", why) if why else None
    race = Race(record, holder, run=run, number=number)
    return race if found is None else replace(race, record=record.after(found), is_recorded=False)


def _crash(context: CacheContext, view: PodView) -> tuple[str, str] | None:
    told = find_condition(context.resource.status.conditions, CRASHED)
    if view.phase is not Phase.CRASHED or (view.restarts < MAX_RESTARTS and (told is None or told.reason == Reason.DIAGNOSING_CRASH)):
        return None
    return "failure", wording.clean(told.message, 300) if told is not None and view.name in told.message else "its engine crashes."


def _load(resource: VLLMDeployment) -> str:
    return gate.in_words(gate.load_of((resource.spec.rollout or RolloutSpec()).workload))
