"""Making room on a claim: when, what must stay, and what came of it.

Two occasions: a start found the volume full, or a directory that was left behind as damaged has been kept long enough
for inspection. Either has one Job. Its result is read from the Pod of the Job; what it removed is no longer recorded
as filled.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.labels import (
    COMPONENT_LABEL,
    PRIMED_ANNOTATION_PREFIX,
    QUARANTINED_ANNOTATION_PREFIX,
    USED_ANNOTATION_PREFIX,
)
from vllm_operator.api.resource import Role
from vllm_operator.caches.activity import Cleaning, CleaningState, LeftAlone
from vllm_operator.caches.address import folders_of, mounts_whole, template_spec
from vllm_operator.caches.claim_holders import is_terminating
from vllm_operator.caches.cleaning_job import FREE_PERCENT, render_cleaning
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.records import Changes, recorded_keys
from vllm_operator.catalog.paths import WEIGHTS_SUBPATH
from vllm_operator.pods import reading
from vllm_operator.pods.owner import instance_of
from vllm_operator.pods.reading import format_bytes, read_bytes
from vllm_operator.pods.view import Phase

PAUSE = timedelta(minutes=10)
"""Between two Jobs: a volume that is full again so soon is too small."""
INSPECTION = timedelta(days=7)
"""How long a damaged directory is kept."""
REMOVED = " removed"
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class CleaningNeed:
    """A Job that should run. `node` is where the volume is mounted, None where that is not known."""

    occasion: str
    is_full: bool
    node: str | None
    doomed: tuple[str, ...]


def find_cleaning_need(context: CacheContext, signatures: frozenset[str]) -> CleaningNeed | None:
    """Whether a Job should run now. `signatures` are those of a full volume."""
    if context.claim is None or is_terminating(context.claim) or context.address is None or "ReadWriteOncePod" in context.access_modes:
        return None
    views = list(_jobs(context))
    if any(view.finished_at is None or context.now - view.finished_at < PAUSE for view in views):
        return None
    crash = context.resource.status.last_crash
    full_node = node_without_space(context, signatures)
    if crash is not None and full_node is not None:
        occasion = f"{crash.pod}/{crash.restarts}"
        return CleaningNeed(occasion, is_full=True, node=full_node, doomed=tuple(_left_behind(context, timedelta(0))))
    aged = tuple(_left_behind(context, INSPECTION))
    node = next((view.node for _, view in context.replicas if view.phase is Phase.READY), "")
    if aged and (node or not context.is_one_node):
        return CleaningNeed(" ".join(aged), is_full=False, node=node or None, doomed=aged)
    return None


def node_without_space(context: CacheContext, signatures: frozenset[str]) -> str | None:
    """The node of the Pod whose last crash was for want of room and that has not served since; None if there is none."""
    crash = context.resource.status.last_crash
    if crash is None or crash.signature not in signatures:
        return None
    over = (Phase.READY, Phase.TERMINATING)
    views = (view for _, view in (*context.replicas, *context.primers) if view.name == crash.pod and view.phase not in over)
    return next((view.node for view in views if view.node), None)


def directories_in_use(context: CacheContext, users: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Directories that must stay: those of all VLLMDeployments and Pods of the namespace, and of the plan at hand."""
    address = context.address
    if address is None:
        return frozenset()
    # `plan` is in the status of objects that an earlier version of the operator wrote last
    keys = {reading.text(user, "status", field, "cacheKey") for user in users for field in ("pinnedPlan", "plan")}
    keys |= {address.key, WEIGHTS_SUBPATH}
    if context.live_address is not None:
        keys.add(context.live_address.key)
    for pod in pods:
        if reading.text(pod, "status", "phase") not in _OVER:
            keys |= folders_of(pod.get("spec"), address.claim)
    return frozenset(keys - {""})


def find_blocking_pod(claim: str, pods: Iterable[Mapping[str, Any]]) -> str | None:
    """A Pod of somebody else that mounts the whole claim, so that nobody can tell which directories it uses; None if none does."""
    for pod in pods:
        if instance_of(pod) is None and reading.text(pod, "status", "phase") not in _OVER and mounts_whole(pod.get("spec"), claim):
            return reading.text(pod, "metadata", "name")
    return None


def describe_blocked_cleaning(context: CacheContext, signatures: frozenset[str], state: CleaningState, why: str) -> Cleaning | None:
    """What is to be said of a Job that could not be started; None if no start waits for it."""
    waits = node_without_space(context, signatures) is not None
    return Cleaning(state=state, why=why, advice=_advice(context)) if waits else None


def render_need(context: CacheContext, need: CleaningNeed, keep: frozenset[str]) -> dict[str, Any]:
    """The Job of a need."""
    address = context.address
    assert address is not None
    return render_cleaning(
        context.resource,
        template_spec(context.desired),
        claim=address.claim,
        occasion=need.occasion,
        node=need.node,
        recorded=recorded_keys(context.claim),
        keep=keep,
        doomed=[key for key in need.doomed if key not in keep],
        is_full=need.is_full,
    )


def describe_cleaning(context: CacheContext, signatures: frozenset[str]) -> Cleaning | None:
    """What is being done, or came of it, for a start that found the volume full; None if none did."""
    crash, address = context.resource.status.last_crash, context.address
    if crash is None or address is None or node_without_space(context, signatures) is None:
        return None
    views = sorted(_jobs(context), key=lambda view: (view.finished_at is None, view.finished_at or context.now))
    if not views:
        impossible = "ReadWriteOncePod" in context.access_modes
        return Cleaning(state=CleaningState.IMPOSSIBLE if impossible else CleaningState.RUNNING, advice=_advice(context))
    last = views[-1]
    if last.finished_at is None:
        return Cleaning(state=CleaningState.RUNNING)
    if last.result is None:
        return Cleaning(state=CleaningState.FAILED, advice=_advice(context))
    removed = tuple(str(key) for key in last.result.get("removed") or ())
    if not removed and _has_room(last.result):
        weights = context.weights_claim_name
        where = f"PVC {weights} of the weights" if weights else "the disk of the node, which holds /tmp and the container's own files"
        return Cleaning(state=CleaningState.ROOMY, why=where, advice=_advice(context, weights) if weights else "")
    state = CleaningState.DONE if removed else CleaningState.NOTHING
    return Cleaning(
        state=state,
        removed=removed,
        freed_bytes=reading.integer(last.result, "freedBytes") or 0,
        unmarked=_left_alone(last.result, "unmarked"),
        others=_left_alone(last.result, "other", "others"),
        advice=_advice(context),
    )


def cleaning_record(context: CacheContext) -> Changes:
    """What is to be recorded of what Jobs have removed. What was recorded after a Job had ended is about a new directory."""
    record: Changes = {}
    annotations = reading.mapping(context.claim, "metadata", "annotations")
    for view in _jobs(context):
        for key in (view.result or {}).get("removed") or ():
            mark = f"{QUARANTINED_ANNOTATION_PREFIX}{key}"
            before = reading.text(annotations, mark)
            if before and not before.endswith(REMOVED):
                record[mark] = before + REMOVED
            if context.address is not None and key == context.address.key:
                continue
            for name in (f"{PRIMED_ANNOTATION_PREFIX}{key}", f"{USED_ANNOTATION_PREFIX}{key}"):
                since = reading.moment(annotations, name)
                if name in annotations and not (since is not None and view.finished_at is not None and since > view.finished_at):
                    record[name] = None
    return record


@dataclass(frozen=True, slots=True)
class _JobView:
    name: str
    finished_at: datetime | None
    result: Mapping[str, Any] | None


def _jobs(context: CacheContext) -> Iterator[_JobView]:
    for pod in context.pods:
        if reading.text(pod, "metadata", "labels", COMPONENT_LABEL) != Role.CLEANING.value:
            continue
        container = next(reading.objects(pod, "status", "containerStatuses"), {})
        ended = reading.mapping(container, "state", "terminated")
        over = reading.text(pod, "status", "phase") in _OVER
        finished = reading.moment(ended, "finishedAt") or (reading.moment(pod, "metadata", "creationTimestamp") if over else None)
        yield _JobView(reading.text(pod, "metadata", "name"), finished, _result(reading.text(ended, "message")))


def _result(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, Mapping) and isinstance(found.get("removed"), list) else None


def _left_alone(result: Mapping[str, Any], field: str, count: str | None = None) -> LeftAlone:
    return LeftAlone(reading.integer(result, count or field) or 0, reading.integer(result, f"{field}Bytes"))


def _left_behind(context: CacheContext, age: timedelta) -> Iterator[str]:
    """Keys that were left behind at least so long ago and are still on the volume."""
    for name, value in sorted(reading.mapping(context.claim, "metadata", "annotations").items()):
        since = reading.moment(value)
        if str(name).startswith(QUARANTINED_ANNOTATION_PREFIX) and since is not None and context.now - since >= age:
            yield str(name).removeprefix(QUARANTINED_ANNOTATION_PREFIX)


def _has_room(result: Mapping[str, Any]) -> bool:
    free, total = reading.integer(result, "freeBytes"), reading.integer(result, "totalBytes")
    return free is not None and bool(total) and free * 100 >= (total or 0) * FREE_PERCENT


def _advice(context: CacheContext, weights: str | None = None) -> str:
    """The command that enlarges the claim of the caches, or of the weights if that is given, to twice its size."""
    metadata, spec = context.resource.metadata, context.resource.spec
    live = context.claims.get(weights) if weights else context.claim
    field, kept = ("weights", spec.weights) if weights else ("cache", spec.cache)
    size = reading.text(live, "spec", "resources", "requests", "storage")
    present = read_bytes(size)
    larger = format_bytes(present * 2) if present else "SIZE"
    claim = reading.text(live, "metadata", "name")
    if kept is not None and kept.claim_name:
        patch = json.dumps({"spec": {"resources": {"requests": {"storage": larger}}}}, separators=(",", ":"))
        return f"kubectl patch pvc {claim} -n {metadata.namespace} --type merge -p '{patch}'"
    patch = json.dumps({"spec": {field: {"volume": {"size": larger}}}}, separators=(",", ":"))
    return f"kubectl patch vllm {metadata.name} -n {metadata.namespace} --type merge -p '{patch}'"
