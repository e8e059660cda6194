"""The race of backends (`spec.backends.tuning: Measure`): whether one begins, which run is next, and which plans follow its result.

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
from vllm_operator.api.labels import RACE_ANNOTATION
from vllm_operator.api.operation import RolloutSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import BackendsSpec
from vllm_operator.caches import gate
from vllm_operator.caches.context import CacheContext, Race
from vllm_operator.caches.measurement import Entrant, RaceRecord, RunEnd, read_race
from vllm_operator.caches.priming import find_primer_obstacle
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
    catalog = replace(catalog, may_race=True)
    for record in sorted(records, key=lambda it: it.started):
        catalog = with_entrant(catalog, record, winner) if (winner := record.winner) is not None else catalog
    return catalog


def with_entrant(catalog: Catalog, record: RaceRecord, entrant: Entrant) -> Catalog:
    """Add the rule of an entrant to the catalog, before the others."""
    try:  # a record is as untrusted as the rules of an administrator
        rule = parse_entry(Rule, record.to_rule(entrant), compile_pattern=compile_linear)
    except EntryError:
        return catalog
    return replace(catalog, measured=(rule, *catalog.measured))


def is_won(resource: VLLMDeployment, revision: Mapping[str, Any] | None) -> bool:
    """Return whether a race that was run for the current plan has a winner that the plan does not follow."""
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
    resource, backends = context.resource, context.resource.spec.backends or BackendsSpec()
    records = {reading.text(it, "metadata", "name"): read_race(it) for it in revisions} if resource.may_race else {}
    if current not in records:
        return None
    if rivals is None:
        record = records[current]
        return Race(record, current, waits="unplanned") if record is not None and record.next_entrant is not None else None
    token, is_tuned = resource.metadata.annotations.get(RACE_ANNOTATION, "")[:128], backends.tuning == "Measure"
    is_requested = bool(token) and all(it is None or it.token != token for it in records.values())
    pins = backends.model_dump(mode="json", exclude={"tuning", "max_candidates"}, exclude_none=True)
    key = hashlib.sha256(json.dumps([rivals.when, pins, _load(resource)], sort_keys=True).encode()).hexdigest()[:10]
    known = {} if is_requested else {name: it for name, it in records.items() if it is not None and it.key == key}
    if not known:
        if not is_requested and not is_tuned:
            return None
        if is_drifted or not is_settled:
            return Race(None, current, waits="drifted" if is_drifted else "unsettled")
        return Race(_new_record(context, rivals, key, token), current, is_recorded=False)
    revision = max(known, key=lambda name: (known[name].started, name))
    record = known[revision]
    if record.next_entrant is None:
        return Race(record, revision)
    if not is_tuned and record.token != token:
        return None
    return _go_on(context, record, record.next_entrant, revision) if is_settled else Race(record, revision, waits="unsettled")


def _new_record(context: CacheContext, rivals: Rivals, key: str, token: str) -> RaceRecord:
    backends = context.resource.spec.backends or BackendsSpec()
    names = rivals.backends[: (backends.max_candidates or 3) - 1]
    return RaceRecord(
        key=key,
        token=token,
        load=_load(context.resource),
        optimize_for=backends.optimize_for or "Throughput",
        when=dict(rivals.when),
        started=context.now,
        entrants=(Entrant(), *(Entrant(component=component, backend=name) for component, name in names)),
        skipped="" if names else NO_RIVAL,
    )


def _go_on(context: CacheContext, record: RaceRecord, number: int, revision: str) -> Race:
    run_name = f"{revision}/race-{sum(len(it.runs) + bool(it.failure) for it in record.entrants)}"
    pods = gate.pods_of_run(context, run_name)
    ends = (gate.read_run(view.manifest, is_new=number > 0) or _crash(context, view) for view in pods)
    found = next((end for end in ends if end is not None), None)
    if found is None:
        patient = replace(context, primer_patience_seconds=PATIENCE_SECONDS)
        why = gate.SEVERAL_NODES if context.plan.nodes else find_primer_obstacle(patient, pods)
        why = why or ("it took more than six hours." if context.now - record.started > LIMIT else None)
        found = RunEnd(why, is_failure=False) if why else None
    race = Race(record, revision, run_name=run_name, number=number)
    return race if found is None else replace(race, record=record.with_result(found), is_recorded=False)


def _crash(context: CacheContext, view: PodView) -> RunEnd | None:
    crashed = find_condition(context.resource.status.conditions, CRASHED)
    if view.phase is not Phase.CRASHED or (view.restarts < MAX_RESTARTS and (crashed is None or crashed.reason == Reason.DIAGNOSING_CRASH)):
        return None
    why = wording.clean(crashed.message, 300) if crashed is not None and view.name in crashed.message else "its engine crashes."
    return RunEnd(why, is_failure=True)


def _load(resource: VLLMDeployment) -> str:
    return gate.in_words(gate.load_of((resource.spec.rollout or RolloutSpec()).workload))
