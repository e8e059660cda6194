"""Priming: one Pod fills an empty cache before the others start.

A cache counts as filled when a Pod with it has been Ready. That is recorded on the PVC. Until then, if priming is desired:

* If no Pod serves, the Deployment has one replica. The others follow when it is Ready.
* If Pods with another cache serve (for example, before a rollout of a new image), the Deployment stays as it is, and a primer fills
  the new cache.
* If `spec.replicas` is 0, a primer fills the cache.

A replica on several nodes has no primer. Its leader is Ready when all ranks have compiled, so its first group fills the cache like a Pod.

A directory that a Pod has filled from an artifact counts as filled while that Pod makes progress. VLLMDeployments that share a PVC and a
key coordinate by a lease on the PVC. Its holder must exist and have a Pod that makes progress. Otherwise another one takes over.

The primer is a Deployment with one Pod from the template of the replicas, so Kubernetes replaces the Pod after an eviction, the loss
of a node, or a crash. It has another component label, so neither the Service nor the Deployment of the replicas selects its Pod.

Pods without a shared volume (EmptyDir, ClaimPerReplica, HostPath) fetch their caches from the registry: their primer also publishes, from
an additional container (`vllm_operator.caches.artifacts`).

A rollout begins when the caches are filled, or published. It also begins, without them, if no GPU is free for the primer, if its Pod cannot
be created, mount the volume, or start before its deadline, or if the publication fails; but not while it has to wait itself
(`vllm_operator.caches.rollout`). If the engine of the primer crashes, the rollout waits: the new replicas would crash too.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL, HOSTNAME_LABEL, INSTANCE_LABEL, PRIMED_ANNOTATION_PREFIX, PRIMING_ANNOTATION_PREFIX
from vllm_operator.api.operation import CacheSpec
from vllm_operator.api.resource import Role, is_observed, is_workload, primer_name, template_spec
from vllm_operator.caches import artifacts
from vllm_operator.caches.address import CacheAddress, cache_address, read_portability_settings
from vllm_operator.caches.artifacts import is_asked, is_published_by_primer, read_fetch
from vllm_operator.caches.claims import is_terminating
from vllm_operator.caches.context import NO_ACTIVITY, CacheActivity, CacheContext, Publication
from vllm_operator.caches.directories import Changes, PrimingLease, is_primed, is_quarantined, read_lease
from vllm_operator.caches.rollout import MAX_RESTARTS, find_misplacement
from vllm_operator.catalog.caches import Caches, PrimingRule
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.text import wording

LEASE_GRACE_SECONDS = 60
"""How long the holder of a lease may be without a Pod that makes progress, for example while the Pod is replaced."""
HOLDER_RECHECK_SECONDS = 15.0
"""Interval between checks of the holder of a lease. Events of its Pods do not reconcile the waiting VLLMDeployment."""
HOLDER_CREATION_SECONDS = 3600
"""How long the Pod of a holder may wait for a node, its image and its volumes."""
_IN_PROGRESS = frozenset({Phase.SCHEDULING, Phase.CREATING, Phase.IMAGE_PULLING, Phase.STARTING, Phase.READY})
KEEP_SERVING = "The current replicas keep serving."
ONE_POD = "only one Pod can mount the PVC (ReadWriteOncePod)."
OF_GROUPS = "a helper Pod has one node, and a replica needs several. The first group fills the caches when spec.replicas is 1 or more."
_NOT_STARTED = frozenset({Phase.SCHEDULING, Phase.CREATING, Phase.NODE_LOST, Phase.FAILED})
"""Pod phases that do not predict whether replicas of the next rollout start."""
WAS_REQUESTED = "This was requested by the annotation vllm-operator.dev/prime."


@dataclass(frozen=True, slots=True)
class PrimingDecision:
    """Which Pod fills the cache, the current number of replicas (None for that of the spec), and the records to write on the PVC."""

    activity: CacheActivity = NO_ACTIVITY
    replicas: int | None = None
    record: Changes = field(default_factory=dict)


def decide_priming(context: CacheContext, rules: Sequence[PrimingRule]) -> PrimingDecision:
    """Decide which Pod fills the cache of a plan if it is empty. `rules` say when `priming: Auto` primes."""
    address = context.address
    if address is None:
        cache = context.resource.spec.cache
        is_wanted = is_asked(context) or cache is None or cache.priming != "Never"
        activity = publish_before_rollout(context) if is_wanted else CacheActivity()
        return PrimingDecision(replace(activity, skipped=activity.skipped or remembered_skip(context)))
    if (record := _filled(context, address)) is not None:
        return PrimingDecision(record=record)
    priming = _decide_alone(context, address, rules)
    priming = replace(priming, activity=replace(priming.activity, skipped=priming.activity.skipped or remembered_skip(context)))
    lease, uid = read_lease(context.claim, address.key), context.resource.metadata.uid
    is_holder = lease is not None and lease.uid == uid
    if not priming.activity.is_priming:
        return PrimingDecision(priming.activity, record={PRIMING_ANNOTATION_PREFIX + address.key: None} if is_holder else {})
    if lease is not None and not is_holder and _is_active(context, lease, address):
        waiting = CacheActivity(  # running Pods stay, and no Pod is added
            step="Elsewhere",
            because=priming.activity.because,
            holder=lease.name,
            held=(reading.integer(context.deployment, "spec", "replicas") or 0) > 0,
            recheck_seconds=HOLDER_RECHECK_SECONDS,
        )
        return PrimingDecision(waiting, replicas=0)
    if is_holder or context.claim is None:
        return priming
    taken = PrimingLease(context.resource.metadata.name, uid, context.now)
    return PrimingDecision(priming.activity, priming.replicas, {PRIMING_ANNOTATION_PREFIX + address.key: str(taken)})


def _filled(context: CacheContext, address: CacheAddress) -> Changes | None:
    primed = is_primed(context.claim, address.key)
    ready = any(at == address and view.phase is Phase.READY for at, view in (*context.replicas, *context.primers))
    if not primed and not ready and not _is_fetched(context, address):
        return None
    record: Changes = {}
    if ready and not primed and context.claim is not None and not is_quarantined(context.claim, address.key):
        record[PRIMED_ANNOTATION_PREFIX + address.key] = reading.stamp(context.now)
    if reading.text(context.claim, "metadata", "annotations", PRIMING_ANNOTATION_PREFIX + address.key):
        record[PRIMING_ANNOTATION_PREFIX + address.key] = None
    return record


def _is_fetched(context: CacheContext, address: CacheAddress) -> bool:
    return any(
        cache_address(pod.manifest.get("spec")) == address
        and (result := read_fetch(pod.manifest)) is not None
        and result.result in artifacts.FETCHED
        and pod.phase in _IN_PROGRESS
        for pod in context.pods
    )


def _decide_alone(context: CacheContext, address: CacheAddress, rules: Sequence[PrimingRule]) -> PrimingDecision:
    """Decide as if no other VLLMDeployment shared the directory."""
    cache, asked, desired = context.resource.spec.cache or CacheSpec(), is_asked(context), context.resource.spec.replicas
    is_required = asked or cache.priming == "Always"
    if cache.priming == "Never" and not asked:
        return PrimingDecision()
    if context.plan.nodes and desired == 0:
        return PrimingDecision(CacheActivity(skipped=OF_GROUPS if asked else None))
    if desired == 0 and any(map(is_terminating, context.claims.values())):
        return PrimingDecision()  # a primer would keep the claim
    if desired == 0:
        because = "spec.replicas is 0, and priming was requested."
        return PrimingDecision(CacheActivity(step="Primer", because=because)) if is_required else PrimingDecision()
    is_replaced = context.deployment is not None and context.live_address != address
    if is_replaced and not context.plan.nodes and any(at != address and view.phase is Phase.READY for at, view in context.replicas):
        return PrimingDecision(fill_before_rollout(context, address))
    is_shared = desired > 1 or cache.claim_name is not None or read_lease(context.claim, address.key) is not None
    reason = "spec.cache.priming is Always." if is_required else _reason(context, rules) if is_shared else None
    if reason is None:
        return PrimingDecision()
    live = reading.integer(context.deployment, "spec", "replicas") or 0
    running = live if context.live_address == address else 0
    if running >= desired > 1 or context.hold is not None:
        return PrimingDecision()  # all replicas have started already, or none will
    return PrimingDecision(CacheActivity(step="FirstPod", because=reason), replicas=min(desired, max(1, running)))


def _reason(context: CacheContext, rules: Sequence[PrimingRule]) -> str | None:
    plan = context.plan
    backends = [choice.backend for choice in plan.backends]
    found = (r for r in rules if r.applies(version=plan.engine_version, backends=backends, one_node=context.is_one_node))
    return next((rule.because for rule in found), None)


def _is_active(context: CacheContext, lease: PrimingLease, address: CacheAddress) -> bool:
    metadata: Mapping[str, Any] = reading.mapping(context.holder, "metadata")
    if metadata.get("uid") != lease.uid or metadata.get("deletionTimestamp"):
        return False
    # A time far in the future would block priming indefinitely. A clock that is some seconds ahead is normal.
    if lease.since is not None and abs(_age(context, lease.since)) < LEASE_GRACE_SECONDS:
        return True
    pods = (pod for pod in context.holder_pods if cache_address(pod.manifest.get("spec")) == address)
    return any(_makes_progress(context, pod) for pod in pods)


def _makes_progress(context: CacheContext, view: PodView) -> bool:
    if view.phase not in _IN_PROGRESS or view.restarts >= MAX_RESTARTS:
        return False
    is_created = view.phase in (Phase.STARTING, Phase.READY)  # the startup probe ends a start that hangs
    return is_created or view.created_at is None or abs(_age(context, view.created_at)) < HOLDER_CREATION_SECONDS


def render_primer(deployment: Mapping[str, Any], *, beside_replicas: bool) -> dict[str, Any]:
    """Render the Deployment of a primer from that of the replicas. `beside_replicas`: only the node of a replica can mount the PVC."""
    primer: dict[str, Any] = copy.deepcopy(dict(deployment))
    instance = primer["metadata"]["labels"][INSTANCE_LABEL]
    primer["metadata"]["name"] = primer_name(primer["metadata"]["name"])
    spec, template = primer["spec"], primer["spec"]["template"]
    for labels in (primer["metadata"]["labels"], spec["selector"]["matchLabels"], template["metadata"]["labels"]):
        labels[COMPONENT_LABEL] = Role.PRIMER.value
    spec |= {"replicas": 1, "strategy": {"type": "Recreate"}, "revisionHistoryLimit": 0}
    template["spec"].setdefault("hostname", f"{instance}-primer")  # the Pod's name contains a dot, which a hostname should not
    if beside_replicas:
        selector = {"matchLabels": {INSTANCE_LABEL: instance, COMPONENT_LABEL: Role.ENGINE.value}}
        affinity = template["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
        terms = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", [])
        terms.append({"topologyKey": HOSTNAME_LABEL, "labelSelector": selector})
    return primer


def apply_priming(
    manifests: Sequence[dict[str, Any]], priming: PrimingDecision, context: CacheContext, caches: Caches
) -> list[dict[str, Any]]:
    """Return the manifests to apply now, without a Deployment that is held. The caller must not prune it."""
    result: list[dict[str, Any]] = []
    for manifest in manifests:
        if not is_workload(manifest):
            result.append(manifest)
            continue
        if priming.activity.step == "Primer":
            is_one_node = context.is_one_node or reading.is_one_node(context.weights_modes)
            primer = render_primer(manifest, beside_replicas=is_one_node and priming.activity.held)
            result.append(artifacts.add_publisher(primer, context, caches) if is_published_by_primer(context) else primer)
        if not priming.activity.held:
            limits = (manifest["spec"]["replicas"], priming.replicas, priming.activity.limit)
            replicas = min(limit for limit in limits if limit is not None)
            result.append({**manifest, "spec": {**manifest["spec"], "replicas": replicas}})
    return result


def held_replicas(priming: PrimingDecision, context: CacheContext) -> int | None:
    """Return the desired replicas of a Deployment that is held; None if none is held.

    Load does not wait for a rollout. But none is added while another VLLMDeployment fills the directory with which it would start.
    """
    desired = reading.integer(context.desired, "spec", "replicas")
    if not priming.activity.held or desired is None:
        return None
    live = reading.integer(context.deployment, "spec", "replicas") or 0
    is_being_filled = priming.activity.step == "Elsewhere" and context.live_address == context.address
    return min(live, desired) if is_being_filled else desired


def fill_before_rollout(context: CacheContext, address: CacheAddress) -> CacheActivity:
    """Return the activity that fills a directory of a PVC before the rollout."""
    views = [view for at, view in context.primers if at == address]
    if (skipped := remembered_skip(context) or find_primer_obstacle(context, views)) is not None:
        return _skipped(context, skipped)
    return CacheActivity() if _is_crashing(context) else _primer(context, views)


def publish_before_rollout(context: CacheContext) -> CacheActivity:
    """Return the activity of a primer for Pods without a shared volume: before a rollout that changes the artifact tag, or on request."""
    if not is_published_by_primer(context):
        return CacheActivity()
    publication = artifacts.describe_primer_publication(context)
    is_before_rollout = _changes_tag(context)
    if not is_before_rollout:
        if is_asked(context) and context.replicas and _is_for_one_pod(context):
            return CacheActivity(skipped=ONE_POD)
        is_due = is_asked(context) and publication.state != "Done"
        return CacheActivity(step="Primer", because=WAS_REQUESTED) if is_due else CacheActivity()
    views = [pod for pod in context.primers_of_plan if not reading.text(pod.manifest, "metadata", "deletionTimestamp")]
    skipped = remembered_skip(context) or _failure(context, publication) or find_primer_obstacle(context, views)
    if skipped is not None:
        return _skipped(context, skipped)
    fetched = any((found := read_fetch(pod.manifest)) is not None and found.result == "Fetched" for pod in context.primers_of_plan)
    if publication.state == "Done" or fetched or _is_crashing(context):
        return CacheActivity()
    return _primer(context, views)


def remembered_skip(context: CacheContext) -> str | None:
    """Return why the caches were not filled before this rollout, from the status."""
    known = context.resource.status.cache
    return known.priming_skipped if known is not None and known.key == context.plan.cache_key else None


def _changes_tag(context: CacheContext) -> bool:
    desired = read_portability_settings(context.template)
    if context.deployment is None or read_portability_settings(template_spec(context.deployment)) == desired:
        return False
    return any(
        view.phase is Phase.READY and read_portability_settings(view.manifest.get("spec")) != desired for _, view in context.replicas
    )


def _failure(context: CacheContext, publication: Publication) -> str | None:
    if publication.state != "Done":
        return None
    known = context.known_artifact
    word, message = known.publish_result if known is not None else None, ""
    if publication.result is not None:
        word, message = publication.result.result, publication.result.message
    if word in artifacts.PUBLISHED:
        return None
    return f"they could not be published: {wording.clean(message or word or 'the result is unknown', 300)}"


def _is_crashing(context: CacheContext) -> bool:
    """Return whether a replica crashes. The rollout replaces crashing replicas first."""
    return any(view.phase is Phase.CRASHED for _, view in context.replicas)


def _skipped(context: CacheContext, why: str) -> CacheActivity:
    """Begin the rollout without filled caches, unless it waits anyway: meanwhile, the reason may pass."""
    return CacheActivity(skipped=why) if context.hold is None else CacheActivity(held=True)


def _primer(context: CacheContext, views: Sequence[PodView]) -> CacheActivity:
    """Hold the rollout for a primer; its Pods are `views`. It waits for a GPU as long as the rollout itself would have to."""
    waits = [view.since for view in views if view.phase is Phase.UNSCHEDULABLE and view.since is not None and context.hold is None]
    until = min(waits) + timedelta(seconds=context.primer_patience_seconds) if waits else None
    recheck = (until - context.now).total_seconds() if until is not None else None
    stops = not reading.integer(context.desired, "spec", "strategy", "rollingUpdate", "maxSurge")
    return CacheActivity(step="Primer", because=KEEP_SERVING, held=True, until=until, stops=stops, recheck_seconds=recheck)


def find_primer_obstacle(context: CacheContext, views: Sequence[PodView]) -> str | None:
    """Return why a primer with these Pods cannot run beside the replicas; None if it can."""
    if _is_for_one_pod(context):
        return ONE_POD
    failure = reading.named(context.primer, "ReplicaFailure", "status", "conditions")
    if failure.get("status") == "True":
        return f"the helper Pod could not be created: {wording.clean(reading.text(failure, 'message'), 300)}"
    if (misplaced := find_misplacement(context)) is not None:
        return misplaced
    limit, waits = context.primer_patience_seconds, [view for view in views if view.phase is Phase.UNSCHEDULABLE and context.hold is None]
    if any(view.since is not None and _age(context, view.since) >= limit for view in waits):
        return f"the helper Pod found no GPU within {limit} s."
    progressing = reading.named(context.primer, "Progressing", "status", "conditions")
    has_timed_out = progressing.get("reason") == "ProgressDeadlineExceeded" and is_observed(context.primer)
    if has_timed_out and all(view.phase in _NOT_STARTED for view in views):
        return "the helper Pod did not start before its deadline."
    return None


def _is_for_one_pod(context: CacheContext) -> bool:
    return "ReadWriteOncePod" in (*context.access_modes, *context.weights_modes)


def _age(context: CacheContext, since: datetime) -> float:
    return (context.now - since).total_seconds()
