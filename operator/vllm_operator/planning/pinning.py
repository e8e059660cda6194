"""Pinned plans: a new version of the operator, changed rules or changed nodes do not restart Pods.

A plan stays until a field changes that plans depend on (`planned_fields`), or a new plan is requested with an annotation. Three plans end
by themselves: an open one whose GPU is taken, one that a race has beaten, and one made without the model's files. The differences from a
new plan are reported.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from vllm_operator.api.conditions import READY, REFUSALS, TRUE, UNKNOWN, VALID_SPEC, Reason, Verdict, find_condition
from vllm_operator.api.labels import REPLAN_ANNOTATION, ROLLBACK_ANNOTATION, is_name
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import read_integer
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, VLLMDeploymentSpec
from vllm_operator.caches.address import cache_key_of
from vllm_operator.caches.artifacts import rejected_artifacts
from vllm_operator.caches.context import is_primer, is_replica
from vllm_operator.caches.key import with_cache_key
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.notes import say
from vllm_operator.inventory.node_labels import SHARED
from vllm_operator.inventory.pools import SHARED_GPU_RESOURCE, Inventory
from vllm_operator.planning.outcome import Outcome, compare, refusal_of, summarize, summarize_gpu
from vllm_operator.planning.placement.targets import GPUIdentity, identity_of, may_run_on
from vllm_operator.planning.pod_template import run_as_user
from vllm_operator.pods.view import Phase, PodView, has_run
from vllm_operator.sizing.parallelism import COUNT_LIMIT, ParallelShape, Shape, resolve_shape
from vllm_operator.text.wording import MESSAGE_LIMIT, present, redact, whole_sentences

DIFFERENCES_IN_MESSAGE = 4
"""Maximum differences in the condition. All are in `Outcome.drift`."""
NEW_PLAN_SECONDS = 1.0
"""Maximum age in seconds of the inventory for a new plan, which is then pinned."""
PENDING_SECONDS = 5.0
"""Maximum age in seconds of the inventory while no GPU matches or a Pod waits for a node."""
UNPLANNED = ("replicas", "autoscaling", "networkPolicy", "gateway")
"""Fields of the spec that no plan depends on. Of `rollout`, only `drainSeconds` is part of a plan (`planned_fields`)."""
_OF_RACES = ("tuning", "maxCandidates")
_INSTEAD = " instead of "
_FREE_TEXTS = ("engine.env", "engine.extraArgs", "podTemplate")
"""Fields with values under names that users choose, such as passwords in variables: no message has the values."""


class Standing(Enum):
    """Whether a plan is in force, and may change by itself."""

    NEW = "no plan is in force"
    OPEN = "no engine has run with it and no Pod has a node, so another GPU may be chosen"
    WAITING = "an engine has run with it and a Pod has no node, so it stays, and the user wants to know what is free"
    SETTLED = "all Pods have nodes"


NEEDS_ROOM = (Standing.OPEN, Standing.WAITING)
"""Standings with a Pod that has no node, so that it matters which GPUs are free."""


def standing_of(resource: VLLMDeployment, pods: Iterable[PodView], *, ran: bool) -> Standing:
    """Return the standing of the plan in force. `pods` are those of the VLLMDeployment; `ran` is the record in the revision."""
    plan = resource.pinned
    if plan is None or not is_in_force(plan, resource):
        return Standing.NEW
    own = [pod for pod in pods if (is_replica(pod) or is_primer(pod)) and has_plan(pod, plan)]
    if not ran and resource.spec.replicas and not any(pod.node or has_run(pod.manifest) for pod in own):
        return Standing.OPEN
    return Standing.SETTLED if all(pod.node for pod in own) else Standing.WAITING


def has_plan(pod: PodView, plan: Plan) -> bool:
    """Return whether a Pod uses the cache directory of a plan, which is derived from its GPU. A Pod without a directory counts."""
    return pod.phase is not Phase.TERMINATING and cache_key_of(pod.manifest.get("spec")) in ("", plan.cache_key)


def is_in_force(pinned: Plan | None, resource: VLLMDeployment) -> bool:
    """Return whether there is a plan, and it was made for the current spec (`planned_fields`), and no new plan was requested since.

    The plan of an object that is rolled back is in force by definition.
    """
    if pinned is None or resource.rolled_back_to is not None:
        return pinned is not None
    if is_replan_requested(resource, pinned.replan_token):
        return False
    same = pinned.observed_generation == resource.metadata.generation
    return same or (pinned.spec_digest is not None and pinned.spec_digest == digest_of_spec(resource.spec))


def is_replan_requested(resource: VLLMDeployment, token: str | None) -> bool:
    """Return whether a plan after that for `token` is requested. Removing the annotation requests none: Flux removes what kubectl set."""
    return resource.metadata.annotations.get(REPLAN_ANNOTATION) not in (None, token)


def reopened(pinned: Plan) -> Plan:
    """Return a plan without what shows that it is in force. A new plan keeps its GPU if the model still fits."""
    return pinned.model_copy(update={"observed_generation": None, "spec_digest": None})


def needs_usage(resource: VLLMDeployment, inventory: Inventory, standing: Standing, *, listed_pools: int) -> bool:
    """Return whether a new plan chooses between several kinds of GPUs, in the inventory or in `listed_pools` other node pools.

    While a Pod waits for a node, all other kinds matter: the user wants to know which are free.
    """
    accelerator, pinned = resource.spec.accelerator or AcceleratorSpec(), resource.pinned
    if standing is Standing.SETTLED:
        return False
    if accelerator.policy == "MostFree":
        return True
    if standing in NEEDS_ROOM and pinned is not None:
        return listed_pools > 0 or any(identity_of(pool) != gpu_in_use(pinned) for pool in inventory.pools)
    allowed = (pool for pool in inventory.pools if may_run_on(pool, accelerator))
    return len({(pool.resource, pool.labels, pool.product, pool.mig_profile, pool.provider) for pool in allowed}) + listed_pools > 1


def planned_generation(resource: VLLMDeployment) -> int:
    """Return the generation for which the current plan was made. Scaling raises the object's generation, but not this one."""
    plan = resource.pinned
    made_for = plan.observed_generation if plan is not None and is_in_force(plan, resource) else None
    return resource.metadata.generation if made_for is None else made_for


def planned_fields(spec: VLLMDeploymentSpec) -> dict[str, Any]:
    """Return the fields of the spec that plans depend on, as JSON. Of the rollout, that is only how long Pods drain."""
    fields = {name: value for name, value in spec.to_json().items() if name not in UNPLANNED}
    if any(name in _OF_RACES for name in fields.get("backends", ())):
        backends = {name: value for name, value in fields.pop("backends").items() if name not in _OF_RACES}
        fields |= {"backends": backends} if backends else {}
    drain = fields.pop("rollout", {}).get("drainSeconds")
    return fields if drain is None else {**fields, "rollout": {"drainSeconds": drain}}


class RollbackRequest(NamedTuple):
    """A rollback: the revision to run, the one that it replaces, and whether the operator has decided it."""

    revision: str
    replaced: str
    by_operator: bool

    @property
    def names(self) -> tuple[str, str]:
        """Both revisions."""
        return self.revision, self.replaced


def read_rollback(resource: VLLMDeployment) -> RollbackRequest | None:
    """Return the rollback that a user requests with the annotation; None without a valid one."""
    name, sign, replaced = resource.metadata.annotations.get(ROLLBACK_ANNOTATION, "").partition(_INSTEAD)
    return RollbackRequest(name, replaced, by_operator=False) if sign and is_name(name) and is_name(replaced) else None


def rollbacks_to_try(resource: VLLMDeployment) -> list[RollbackRequest]:
    """Return the rollbacks that may be in force: the user's, then the operator's.

    The caller takes the first whose replaced plan would be in force.
    """
    found, decided = [read_rollback(resource)], resource.status.rollback
    if decided is not None and decided.revision is not None:
        found.append(RollbackRequest(decided.revision, decided.failed, by_operator=True))
    return [request for request in found if request is not None]


def rollback_request(name: str, replaced: str) -> str:
    """Return the annotation that `read_rollback` reads."""
    return f"{name}{_INSTEAD}{replaced}"


def with_earlier_plan(resource: VLLMDeployment, plan: Plan, planned: Mapping[str, Any], number: int) -> VLLMDeployment:
    """Return the object with an earlier plan in force, and with the fields of the spec that this plan was made for.

    Raises pydantic.ValidationError if this version cannot read these fields.
    """
    unplanned = {name: value for name, value in resource.spec.to_json().items() if name in (*UNPLANNED, "rollout")}
    rollout = {**unplanned.pop("rollout", {}), "drainSeconds": planned.get("rollout", {}).get("drainSeconds")}
    spec = VLLMDeploymentSpec.model_validate({**planned, **unplanned, "rollout": rollout})
    has_preset = plan.preset is not None or resource.spec.preset_ref is not None  # its fields are only in `planned`
    differences = () if has_preset else tuple(changed_fields(planned, planned_fields(resource.spec)))
    changes = {"spec": spec, "pinned": plan, "preset": plan.preset, "preset_change": "", "is_preset_gone": False, "rolled_back_to": number}
    return resource.model_copy(update={**changes, "rolled_back_changes": differences})


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between two specs, in words: `engine.args --max-num-seqs 512 → 1024`. Values that may be secrets are left out."""
    old, new = (dict(_leaves("", fields)) for fields in (before, now))
    for path in sorted({*old, *new}):
        values = [each.get(path, "unset") for each in (old, new)]
        if old.get(path) != new.get(path):
            is_hidden = path.startswith(_FREE_TEXTS) or any(redact(said := f"{path}={value}") != said for value in values)
            yield path if is_hidden else f"{path} {' → '.join(present(value, 60) for value in values)}"


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each field. An entry of a list that has a name and a value is named by it."""
    if isinstance(value, Mapping) and value.keys() <= {"name", "value"} and "." in path:
        yield f"{path} {value.get('name')}", str(value.get("value", "set"))
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}".removeprefix("."), inner)
    elif isinstance(value, list) and value and all(isinstance(entry, Mapping) and "name" in entry for entry in value):
        for entry in value:
            yield from _leaves(path, entry if entry.keys() <= {"name", "value"} else {entry["name"]: {**entry}})
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def outcome_of_rollback(plan: Plan, number: int, gpus: GPUs, *, by_operator: bool) -> Outcome:
    """Return the outcome for an object that is rolled back to the revision with this number: by a user, or by the operator."""
    summary = summarize(plan, gpus, with_notes=False)
    if by_operator:
        return Outcome(VALID_SPEC, Verdict(TRUE, Reason.PLANNED, say("plan.given_up", summary=summary, number=number)), plan)
    message = say("plan.rolled_back", summary=summary, number=number, annotation=ROLLBACK_ANNOTATION)
    return Outcome(VALID_SPEC, Verdict(TRUE, Reason.ROLLED_BACK, message), plan)


def digest_of_spec(spec: VLLMDeploymentSpec) -> str:
    """Return a digest of the fields of the spec that plans depend on."""
    return hashlib.sha256(json.dumps(planned_fields(spec), sort_keys=True).encode()).hexdigest()[:16]


def max_age_seconds(resource: VLLMDeployment, pods: Iterable[PodView], standing: Standing) -> float | None:
    """Return the maximum age of the inventory for planning, in seconds; None for any age that the cache allows."""
    ready = find_condition(resource.status.conditions, READY)
    is_refused = ready is not None and ready.reason in REFUSALS
    if standing is not Standing.NEW:
        return PENDING_SECONDS if ready is None or is_refused or any(not pod.node for pod in pods) else None
    tried = is_refused and resource.status.observed_generation == resource.metadata.generation
    return PENDING_SECONDS if tried else NEW_PLAN_SECONDS


def keep_plan(pinned: Plan, fresh: Outcome, gpus: GPUs, preset_change: str, *, is_preset_gone: bool) -> Outcome:
    """Return the current plan with its differences from `fresh`. `preset_change` is how the current preset differs, or empty.

    With `is_preset_gone`, the preset does not exist any more, and no new plan is possible.
    """
    reason = Reason.PLANNED if pinned.architecture else Reason.GPU_UNKNOWN
    if fresh.refusal is not None and fresh.refusal.status is UNKNOWN:
        message = f"{summarize(pinned, gpus, with_notes=False)} The current plan stays. {fresh.refusal.message}"
        return Outcome(VALID_SPEC, Verdict(TRUE, reason, message), pinned)
    if fresh.refusal is not None:
        message = f"{summarize_gpu(pinned, gpus)} The current plan stays. A new plan is not possible now: {fresh.refusal.message}"
        verdict = Verdict(TRUE, Reason.PLAN_DRIFTED, whole_sentences(message, MESSAGE_LIMIT, at_least=200))
        return Outcome(VALID_SPEC, verdict, pinned, (refusal_of(fresh),), fresh, fresh.free)
    drift = [preset_change] if preset_change else []
    drift += [difference.text for difference in compare(pinned, fresh.plan)] if fresh.plan else []
    shown = pinned.model_copy(update={"provisioner": fresh.plan.provisioner}) if fresh.plan else pinned  # the nodes may exist by now
    if not drift:
        return Outcome(VALID_SPEC, Verdict(TRUE, reason, summarize(shown, gpus)), pinned, fresh=fresh, free=fresh.free)
    if is_preset_gone:
        message = say("plan.without-preset", summary=summarize(shown, gpus, with_notes=False), change=preset_change)
        return Outcome(VALID_SPEC, Verdict(TRUE, Reason.PLAN_DRIFTED, message), pinned, tuple(drift), fresh, fresh.free)
    more = f" And {len(drift) - DIFFERENCES_IN_MESSAGE} more." if len(drift) > DIFFERENCES_IN_MESSAGE else ""
    summary, differences = summarize(shown, gpus, with_notes=False), f"{' '.join(drift[:DIFFERENCES_IN_MESSAGE])}{more}"
    message = say("plan.drifted", summary=summary, differences=differences, annotation=REPLAN_ANNOTATION)
    return Outcome(VALID_SPEC, Verdict(TRUE, Reason.PLAN_DRIFTED, message), pinned, tuple(drift), fresh, fresh.free)


def with_cache_generation(pinned: Plan, resource: VLLMDeployment, generation: int) -> Plan:
    """Return the current plan with the cache of this generation, otherwise unchanged: a damaged cache needs no new plan."""
    parts = {part.name: part.value for part in pinned.cache_key_parts}
    shape = resolve_shape(resource.spec)
    if parts.get("generation") in (None, str(generation)) or isinstance(shape, Verdict):
        return pinned
    renewed = with_cache_key(
        pinned,
        parallel=parts.get("parallelism") or str(shape),  # the operator may have chosen the size
        mig_profile=pinned.mig_profile,
        user=run_as_user(resource.spec.pod_template),
        arguments=parts.get("arguments"),
        generation=generation,
    )
    if renewed.cache_artifact is None:
        return renewed
    artifact = renewed.cache_artifact.model_copy(update={"rejected": rejected_artifacts(resource)})
    return renewed.model_copy(update={"cache_artifact": artifact})


def gpu_in_use(pinned: Plan) -> GPUIdentity:
    """Return the identity of the GPU of a plan."""
    named = any(value.endswith(SHARED) for requirement in pinned.node_requirements for value in requirement.values or ())
    shared = named or pinned.time_slices is not None or pinned.resource == SHARED_GPU_RESOURCE
    return GPUIdentity(pinned.architecture, pinned.product, pinned.mig_profile, shared)


def pinned_shape(shape: Shape, pinned: Plan, spec: VLLMDeploymentSpec) -> Shape:
    """Return the size of the current plan if the spec sets none."""
    given = spec.parallelism
    if (given is not None and given.sets_sizes) or (spec.accelerator is not None and spec.accelerator.count is not None):
        return shape
    sizes, nodes = {argument.name: argument.value for argument in pinned.args}, pinned.nodes or 1
    tensor, pipeline = (read_integer(sizes.get(f"--{name}-parallel-size")) or 1 for name in ("tensor", "pipeline"))
    if not 1 < tensor <= COUNT_LIMIT or pinned.count * nodes != tensor * pipeline:
        return shape
    return Shape(ParallelShape(tensor, pipeline, expert="--enable-expert-parallel" in sizes), pinned.count, nodes=nodes)
