"""Decide what one reconciliation changes: one `Decision`, a pure function of the snapshot and of the operator's knowledge.

Remedies that the status lists are carried out here, on the plan (`status.remedies.carried_out`). New ones follow from the state of the
Pods after applying (`report`), so they are written to the status first, and the next reconciliation finds them there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_operator.api import reading
from vllm_operator.api.conditions import Verdict
from vllm_operator.api.labels import GATE_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import is_of_groups, is_rolling_out, is_workload, rolls, template_spec
from vllm_operator.caches.actions import GATE_RECHECK_SECONDS, RECORDED_SECONDS, CacheActions, plan_cache_actions
from vllm_operator.caches.address import cache_address, weights_claim
from vllm_operator.caches.claims import claims_of_others, read_users, usage_by, used_again
from vllm_operator.caches.context import NO_ACTIVITY, CacheContext, Race, is_replica
from vllm_operator.caches.directories import Changes, next_cache_generation, other_directory, read_lease
from vllm_operator.caches.gate import render_run
from vllm_operator.caches.measurement import Entrant, RaceRecord, RunEnd
from vllm_operator.caches.prefetching import fetched_commit, needs_gpu_nodes, with_commit
from vllm_operator.caches.race import follows, plan_race, with_entrant, with_results
from vllm_operator.caches.rollout import find_hold
from vllm_operator.catalog.loader import Catalog
from vllm_operator.controller.observe import Snapshot
from vllm_operator.controller.settings import Settings
from vllm_operator.controller.user_data import KnownCatalog, KnownStarts
from vllm_operator.inventory.nodes import read_instance_pools
from vllm_operator.inventory.pools import Inventory, Room, find_room
from vllm_operator.kube.client import CLAIM, CLAIM_TEMPLATE, Manifest
from vllm_operator.kube.managed_fields import differs_in_template
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.pinning import gpu_in_use, has_plan
from vllm_operator.planning.placement.promises import Promise
from vllm_operator.planning.planner import plan
from vllm_operator.planning.pod_template import tolerations_of
from vllm_operator.pods.view import Phase, is_over
from vllm_operator.rendering.manifests import render
from vllm_operator.rendering.revision import applied_revision, find_revision, revision_name
from vllm_operator.status.bad_nodes import avoids
from vllm_operator.status.remedies import carried_out

_PlanWith = Callable[[RaceRecord, Entrant], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to write before events and status."""

    outcome: Outcome
    actions: CacheActions
    """The children to apply, and the actions for the caches."""
    context: CacheContext | None = None
    """The input of these actions; None without a plan."""
    kept: tuple[Manifest, ...] = ()
    """Children that stay unchanged for now, except for the replicas of a Deployment (`actions.scale`)."""
    claim_name: str | None = None
    """The PVC of the caches; None if they are on no PVC."""
    weights_claim_name: str | None = None
    """The PVC of the weights, if it is another one."""
    claim_records: Mapping[str, Changes] = field(default_factory=dict)
    """Annotations to write on PVCs before Pods use them, by the name of the PVC."""
    room: Room | None = None
    """The GPUs for the Pods if bad nodes are avoided; None if unknown, or if an autoscaler would add nodes."""
    lenders: Mapping[str, str] = field(default_factory=dict)
    """The other VLLMDeployments that created PVCs, by the name of the PVC. They must not own them."""


def decide(snapshot: Snapshot, catalog: KnownCatalog, crashes: KnownStarts, settings: Settings) -> Decision:
    """Decide about one VLLMDeployment. `crashes` says which crashes mean that a volume is full."""
    resource, known = snapshot.resource, catalog.current
    if snapshot.build is not None:
        known = replace(known, versions=replace(known.versions, build=snapshot.build.table))
    known = with_results(known, resource, snapshot.revisions)
    make_plan = partial(
        plan,
        resource,
        snapshot.inventory,
        catalog=known,
        pinned=resource.pinned,
        files=snapshot.files,
        tools_image=settings.tools_image,
        standing=snapshot.standing,
    )
    outcome = snapshot.unplanned or make_plan()
    if outcome.plan is None:
        return keep_all(snapshot, outcome)
    outcome, context, manifests = _choose_directory(snapshot, outcome, outcome.plan, make_plan, settings)
    context = _with_rollout(snapshot, context, catalog.current)
    shipped, full = catalog.shipped, crashes.reporting.full_volume
    actions = plan_cache_actions(context, manifests, shipped.priming, shipped.caches, full=full)
    actions = _with_race(
        snapshot, outcome, context, actions, lambda record, it: make_plan(catalog=with_entrant(known, record, it)), settings
    )
    others = claims_of_others(template_spec(context.desired), resource.metadata.name)
    lenders = {name: lender for name, lender in others.items() if name in snapshot.claim_users}
    return Decision(
        outcome=outcome,
        actions=actions,
        context=context,
        kept=_keep(snapshot, actions),
        claim_name=context.address.claim if context.address else None,
        weights_claim_name=context.weights_claim_name,
        claim_records=_claim_records(snapshot, context, actions, manifests, lenders),
        room=_find_room(context, snapshot.inventory, catalog.current) if avoids(resource) else None,
        lenders=lenders,
    )


def promise_of(snapshot: Snapshot, decision: Decision) -> Promise | None:
    """Return the GPUs that other plans must leave to this VLLMDeployment: of all replicas, except Pods that wait for something else.

    None without a plan, while a rollout waits for GPUs, and while the API server refuses its Pods: they may never use any.
    """
    made = decision.outcome.plan or (snapshot.resource.pinned if snapshot.deployment is not None else None)
    refused = reading.named(snapshot.deployment, "ReplicaFailure", "status", "conditions").get("status") == "True"
    if made is None or refused or (decision.context is not None and decision.context.hold is not None):
        return None
    pods = [pod for pod in snapshot.pods if has_plan(pod, made)]
    lacks_gpu = f"Insufficient {made.resource}", "cannot allocate all claims"  # in the messages of the scheduler
    blocked = [pod for pod in pods if pod.phase is Phase.UNSCHEDULABLE and not any(text in pod.message for text in lacks_gpu)]
    resource, _ = carried_out(snapshot.resource, made)
    wanted, tolerations = resource.spec.replicas * (made.nodes or 1), tolerations_of(resource.spec.pod_template)
    is_one_node = any(reading.is_one_node(reading.access_modes(claim)) for claim in snapshot.claims.values())
    has_both = decision.context is not None and rolls(decision.context.desired)
    mounting = (snapshot.pods if has_both else pods) if is_one_node else ()
    nodes = {pod.node for pod in mounting if pod.node}  # where the others must run, too
    return Promise(gpu_in_use(made), made.resource, made.count, wanted - len(blocked), [pod.uid for pod in pods], tolerations, nodes)


def keep_all(snapshot: Snapshot, outcome: Outcome) -> Decision:
    """Keep all children while the spec has no plan, which is no reason to stop an engine. Only scale down if the spec asks for it."""
    deployment, spec = snapshot.deployment, snapshot.resource.spec
    pods = template_spec(snapshot.found_workload)
    address = cache_address(pods)
    is_fewer = deployment is not None and spec.replicas < (reading.integer(deployment, "spec", "replicas") or 0)
    return Decision(
        outcome=outcome,
        actions=CacheActions([], {}, NO_ACTIVITY, scale=spec.replicas if is_fewer else None),
        kept=snapshot.children,
        claim_name=address.claim if address else spec.cache.claim_name if spec.cache else None,
        weights_claim_name=weights_claim(pods),
    )


def _choose_directory(
    snapshot: Snapshot, outcome: Outcome, planned: Plan, make_plan: Callable[..., Outcome], settings: Settings
) -> tuple[Outcome, CacheContext, list[Manifest]]:
    """Choose a cache directory that fits the image and is not quarantined, from the records on the PersistentVolumeClaim."""
    tried: set[str] = set()
    while True:
        tried.add(planned.cache_key)
        context, manifests = _render(snapshot, planned, settings)
        if (directory := other_directory(context)) is not None:
            planned = planned.model_copy(update={"cache_key": directory})
            outcome = replace(outcome, plan=planned)
            context, manifests = _render(snapshot, planned, settings)
        generation = next_cache_generation(context)
        again = make_plan(cache_generation=generation) if generation is not None else outcome
        # A plan whose key has no generation stays the same, and would be retried endlessly.
        if again.plan is None or again.plan.cache_key in {*tried, planned.cache_key}:
            return outcome, context, manifests
        outcome, planned = again, again.plan


def _render(snapshot: Snapshot, planned: Plan, settings: Settings) -> tuple[CacheContext, list[Manifest]]:
    """Render a plan with its remedies. Return the input of decisions about its caches, and the manifests."""
    resource, claims = snapshot.resource, snapshot.claims
    manifests = render(*carried_out(resource, planned), claims)
    if (commit := fetched_commit(resource, _deployment_of(manifests), claims)) is not None:
        manifests = render(*carried_out(resource, with_commit(planned, resource, commit)), claims)
    desired = _deployment_of(manifests)
    desired_claims = {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == CLAIM.kind}
    address, weights_name = cache_address(template_spec(desired)), weights_claim(template_spec(desired))
    claim_name = address.claim if address is not None else ""
    weights_name = weights_name if weights_name != claim_name else None
    weights = claims.get(weights_name or "")
    context = CacheContext(
        resource=resource,
        plan=planned,
        desired=desired,
        now=snapshot.now,
        deployment=snapshot.deployment,
        primer=snapshot.primer,
        claim=claims.get(claim_name),
        desired_claim=desired_claims.get(claim_name),
        claims={name: claims[name] for name in (claim_name, weights_name or "") if name in claims},
        claim_users={name: tuple(sorted({user.name for user in users})) for name, users in snapshot.claim_users.items()},
        weights_claim_name=weights_name,
        weights_modes=reading.access_modes(weights if weights is not None else desired_claims.get(weights_name or "")),
        pods=snapshot.pods,
        primer_patience_seconds=settings.priming_patience_seconds,
    )
    if needs_gpu_nodes(context) and not isinstance(snapshot.inventory, Verdict):
        context = replace(context, gpu_nodes=snapshot.inventory.nodes_of(planned.resource, planned.architecture, planned.product))
    lease = read_lease(context.claim, address.key) if address else None
    if lease is not None and lease.uid != resource.metadata.uid:
        context = replace(context, holder=snapshot.peers.get(lease.name), holder_pods=snapshot.peer_pods.get(lease.name, ()))
    return context, manifests


def _with_rollout(snapshot: Snapshot, context: CacheContext, catalog: Catalog) -> CacheContext:
    """Add whether a rollout is due, the devices for its Pods, and what it waits for."""
    planned, live = context.plan, snapshot.deployment
    if live is not None and differs_in_template(context.desired, live):
        new, serving = revision_name(context.resource, planned), applied_revision(live)
        record = reading.text(find_revision(snapshot.revisions, new), "metadata", "annotations", GATE_ANNOTATION)
        context = replace(context, is_rollout=serving != new, new_revision=new, serving_revision=serving, gate_record_text=record)
    if snapshot.devices is None:
        return context
    kind = catalog.gpus.title(planned.product, planned.architecture, planned.mig_profile)
    context = replace(context, device=kind, room=_find_room(context, snapshot.devices, catalog))
    return replace(context, hold=find_hold(context))


def _with_race(
    snapshot: Snapshot, outcome: Outcome, context: CacheContext, actions: CacheActions, plan_with: _PlanWith, settings: Settings
) -> CacheActions:
    """Add the race of backends, and the primer of its run."""
    activity, current = actions.activity, revision_name(context.resource, context.plan) if context.resource.may_race else ""
    is_busy = bool(context.new_revision) or activity.held or activity.is_priming or not context.resource.spec.replicas
    is_settled = not is_busy and snapshot.deployment is not None and _is_complete(snapshot.deployment)
    rivals, is_drifted = outcome.fresh.rivals if outcome.fresh is not None else None, bool(outcome.drift)
    race = plan_race(context, snapshot.revisions, current, rivals, is_settled=is_settled, is_drifted=is_drifted)
    if race is None:
        return actions
    applied = list(actions.manifests)
    if race.run_name and race.record is not None:
        entrant, is_current = race.record.entrants[race.number], race.number == 0
        made = context.plan if is_current else (plan_with(race.record, entrant).fresh or outcome).plan
        if made is not None and (is_current or follows(made, entrant)):
            applied.append(render_run(_render(snapshot, made, settings)[0].desired, race.run_name, context))
        else:
            record = race.record.with_result(RunEnd("no plan has it.", is_failure=True))
            race = Race(record, race.revision, is_recorded=False)
    seconds = activity.recheck_seconds, RECORDED_SECONDS if not race.is_recorded else GATE_RECHECK_SECONDS if race.run_name else None
    recheck = min(filter(None, seconds), default=None)
    return replace(actions, manifests=applied, activity=replace(activity, race=race, recheck_seconds=recheck))


def _find_room(context: CacheContext, inventory: Inventory | Verdict, catalog: Catalog) -> Room | None:
    if isinstance(inventory, Verdict):
        return None
    every = inventory.with_templates(read_instance_pools(catalog.instance_types, catalog.gpus))
    return find_room(context.plan, context.template, every)


def _claim_records(
    snapshot: Snapshot, context: CacheContext, actions: CacheActions, manifests: Iterable[Manifest], lenders: Iterable[str]
) -> dict[str, Changes]:
    """Return the annotations to write on PVCs: who shares them (`caches.claims`), and the state of the caches."""
    resource, claims = snapshot.resource, snapshot.claims
    records: dict[str, Changes] = {name: {**usage_by(resource, claims[name], snapshot.now), **used_again(claims[name])} for name in lenders}
    for name in (manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == CLAIM.kind):
        if (valid := snapshot.claim_users.get(name)) is not None:
            gone: Changes = {user.annotation: None for user in read_users(claims[name], resource.metadata.uid) if user not in valid}
            records[name] = {**gone, **used_again(claims[name])}
    if context.address is not None and context.claim is not None:
        records[context.address.claim] = records.get(context.address.claim, {}) | actions.record
    return records


def _keep(snapshot: Snapshot, actions: CacheActions) -> tuple[Manifest, ...]:
    """Return the children that are neither applied nor pruned.

    These are the Deployment and the ResourceClaimTemplates of a rollout that is held, and the ResourceClaimTemplates that a Pod may still
    need: if a Pod of an old ReplicaSet is evicted during a rollout, its replacement has the old template. And the primer of a race that
    waits, unless a replica needs its GPU.
    """
    desired = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in actions.manifests}
    rest = [child for child in snapshot.children if (child["kind"], child["metadata"]["name"]) not in desired]
    templates = [child for child in rest if child["kind"] == CLAIM_TEMPLATE.kind]
    race, replicas = actions.activity.race, (pod for pod in snapshot.pods if is_replica(pod))
    if race is not None and race.waits and race.record is not None and not any(pod.phase is Phase.UNSCHEDULABLE for pod in replicas):
        templates += [child for child in rest if child is snapshot.primer]  # so that the run need not be repeated
    if actions.activity.held:
        return tuple(child for child in rest if child is snapshot.deployment or child in templates)
    if not all(_is_complete(child) for child in snapshot.children if is_workload(child)):
        return tuple(templates)
    pods = [pod.manifest for pod in snapshot.pods if not is_over(pod.manifest)]
    used = {reading.text(it, "resourceClaimTemplateName") for pod in pods for it in reading.objects(pod, "spec", "resourceClaims")}
    return tuple(child for child in templates if child is snapshot.primer or child["metadata"]["name"] in used)


def _is_complete(deployment: Manifest) -> bool:
    """Return whether a rollout is complete, like `kubectl rollout status`: no replica has an old template."""
    wanted = reading.integer(deployment, "spec", "replicas")
    fields = ("replicas", "readyReplicas" if is_of_groups(deployment) else "availableReplicas")
    return not is_rolling_out(deployment) and all((reading.integer(deployment, "status", field) or 0) == wanted for field in fields)


def _deployment_of(manifests: Iterable[Manifest]) -> Manifest:
    return next(manifest for manifest in manifests if is_workload(manifest))
