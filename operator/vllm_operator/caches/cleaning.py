"""Delete unused cache directories from a volume: when to clean, which directories stay, the Job and its result.

A Job runs if a start found the volume full, or if a quarantined directory has been kept long enough for inspection. The result is read
from the Pod of the Job. The records of the directories that it deleted are removed.

The Job mounts only this PVC and runs as the user of the engine, who owns the files. It uses the image of the engine, because the image may
set the user.

A quarantined directory may have lost its marker, be in use, or belong to another user, so no attempt may ever delete it. Each attempt is
recorded on the PVC before its Job is created, so that a Job without a result counts too. The program of the Job says why it stays.
"""

import copy
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import (
    COMPONENT_LABEL,
    DELETION_ANNOTATION_PREFIX,
    IMAGE_ANNOTATION_PREFIX,
    PRIMED_ANNOTATION_PREFIX,
    QUARANTINED_ANNOTATION_PREFIX,
    USED_ANNOTATION_PREFIX,
)
from vllm_operator.api.reading import format_bytes, read_bytes
from vllm_operator.api.resource import Role, VLLMDeployment, cleaning_prefix, labels_of, metadata_of
from vllm_operator.caches.activity import Cleaning, CleaningState, LeftAlone
from vllm_operator.caches.address import folders_of, mounts_whole, template_spec
from vllm_operator.caches.claims import is_terminating
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.directories import Changes, recorded_keys
from vllm_operator.catalog.paths import WEIGHTS_SUBPATH
from vllm_operator.pods.owner import instance_of
from vllm_operator.pods.tools import TOOLS_MOUNT, tool_command, with_tools
from vllm_operator.pods.view import Phase
from vllm_operator.text import wording

PAUSE = timedelta(minutes=10)
"""Interval between two Jobs. A volume that fills up again sooner is too small."""
CONTAINER = "clean"
ROOT = "/claim"
FREE_PERCENT = 20
"""Share of the volume to free if a start found it full. With less, the next start would fill it again."""
DEADLINE_SECONDS = 900
"""Deleting a million files from a network file system takes minutes."""
KEPT_SECONDS = 900
"""How long the finished Job is kept. It must exceed `PAUSE`, which is measured from the finished Pod of the Job."""
ATTEMPTS = 2
MAX_RECORDED = 1000
"""Maximum number of directories passed to the Job. A variable can have 128 KiB."""
_INHERITED = ("securityContext", "tolerations", "imagePullSecrets", "runtimeClassName")
_PRINT = "/dev/termination-log"
REMOVED = " removed"
GONE = "gone"
"""The program's reason for not deleting a directory that does not exist."""
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class CleaningNeed:
    """A Job that should run. `node` is the node that mounts the volume; None if unknown."""

    occasion: str
    is_full: bool
    node: str | None
    doomed: tuple[str, ...]


def find_cleaning_need(context: CacheContext, signatures: frozenset[str]) -> CleaningNeed | None:
    """Return the Job that should run now; None without one. `signatures` are the crashes of a full volume."""
    if context.claim is None or is_terminating(context.claim) or context.address is None or "ReadWriteOncePod" in context.access_modes:
        return None
    views = list(_jobs(context))
    if any(view.finished_at is None or context.now - view.finished_at < PAUSE for view in views):
        return None
    crash = context.resource.status.last_crash
    full_node = node_without_space(context, signatures)
    if crash is not None and full_node is not None:
        occasion = f"{crash.pod}/{crash.restarts}"
        return CleaningNeed(occasion, is_full=True, node=full_node, doomed=tuple(quarantined_keys(context, timedelta(0))))
    aged = due_keys(context)
    node = next((view.node for _, view in context.replicas if view.phase is Phase.READY), "")
    if aged and (node or not context.is_one_node):
        return CleaningNeed(" ".join(aged), is_full=False, node=node or None, doomed=aged)
    return None


def node_without_space(context: CacheContext, signatures: frozenset[str]) -> str | None:
    """Return the node of a Pod whose last crash was a full volume and that has not been ready since; None if there is none."""
    crash = context.resource.status.last_crash
    if crash is None or crash.signature not in signatures:
        return None
    over = (Phase.READY, Phase.TERMINATING)
    views = (view for _, view in (*context.replicas, *context.primers) if view.name == crash.pod and view.phase not in over)
    return next((view.node for view in views if view.node), None)


def directories_in_use(context: CacheContext, users: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the directories that must stay: the directories of all VLLMDeployments and Pods in the namespace, and of the plan."""
    address = context.address
    if address is None:
        return frozenset()
    keys = {reading.text(user, "status", "cache", "key") for user in users}
    keys |= {address.key, WEIGHTS_SUBPATH}
    if context.live_address is not None:
        keys.add(context.live_address.key)
    for pod in pods:
        if reading.text(pod, "status", "phase") not in _OVER:
            keys |= folders_of(pod.get("spec"), address.claim)
    return frozenset(keys - {""})


def find_blocking_pod(claim: str, pods: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a Pod of another owner that mounts the whole PVC, so that its directories are unknown; None if there is none."""
    for pod in pods:
        if instance_of(pod) is None and reading.text(pod, "status", "phase") not in _OVER and mounts_whole(pod.get("spec"), claim):
            return reading.text(pod, "metadata", "name")
    return None


def describe_blocked_cleaning(context: CacheContext, signatures: frozenset[str], state: CleaningState, why: str) -> Cleaning | None:
    """Describe a Job that could not be created; None if no start waits for it."""
    waits = node_without_space(context, signatures) is not None
    return Cleaning(state=state, why=why, advice=_advice(context)) if waits else None


def render_need(context: CacheContext, need: CleaningNeed, keep: frozenset[str]) -> dict[str, Any]:
    """Render the Job for a cleaning need."""
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
        doomed=need.doomed,
        is_full=need.is_full,
        tools_image=context.plan.tools_image,
    )


def describe_cleaning(context: CacheContext, signatures: frozenset[str]) -> Cleaning | None:
    """Describe the cleaning for a start that found the volume full; None without such a start."""
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
        others=LeftAlone(reading.integer(last.result, "others") or 0, reading.integer(last.result, "otherBytes")),
        advice=_advice(context),
    )


def cleaning_record(context: CacheContext) -> Changes:
    """Return the changes of records after Jobs. A record that is newer than the Job describes a new directory, and stays."""
    record: Changes = {}
    annotations = reading.mapping(context.claim, "metadata", "annotations")
    for view in _jobs(context):
        kept = reading.mapping(view.result, "kept")
        for key in kept.keys() - {key for key, why in kept.items() if why == GONE}:
            record |= record_reason(context, key, str(kept[key]), view.finished_at)
        for key in (*((view.result or {}).get("removed") or ()), *(key for key, why in kept.items() if why == GONE)):
            record |= forget_attempts(context, str(key))
            mark = f"{QUARANTINED_ANNOTATION_PREFIX}{key}"
            before = reading.text(annotations, mark)
            if before and not before.endswith(REMOVED):
                record[mark] = before + REMOVED
            if context.address is not None and key == context.address.key:
                continue
            names = (f"{PRIMED_ANNOTATION_PREFIX}{key}", f"{USED_ANNOTATION_PREFIX}{key}")
            times = {name: reading.moment(annotations, name) for name in names if name in annotations}
            new = {name for name, since in times.items() if since is not None and view.finished_at is not None and since > view.finished_at}
            record |= dict.fromkeys(times.keys() - new)
            if not new and (image := f"{IMAGE_ANNOTATION_PREFIX}{key}") in annotations:
                record[image] = None
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


def _has_room(result: Mapping[str, Any]) -> bool:
    free, total = reading.integer(result, "freeBytes"), reading.integer(result, "totalBytes")
    return free is not None and bool(total) and free * 100 >= (total or 0) * FREE_PERCENT


def _advice(context: CacheContext, weights: str | None = None) -> str:
    """Return the command that doubles the size of the PVC of the caches, or of this PVC of the weights."""
    metadata, spec = context.resource.metadata, context.resource.spec
    live = context.claims.get(weights) if weights else context.claim
    field, kept = ("weights", spec.weights) if weights else ("cache", spec.cache)
    size = reading.text(live, "spec", "resources", "requests", "storage")
    current = read_bytes(size)
    larger = format_bytes(current * 2) if current else "SIZE"
    claim = reading.text(live, "metadata", "name")
    if kept is not None and kept.claim_name:
        patch = json.dumps({"spec": {"resources": {"requests": {"storage": larger}}}}, separators=(",", ":"))
        return f"kubectl patch pvc {claim} -n {metadata.namespace} --type merge -p '{patch}'"
    patch = json.dumps({"spec": {field: {"volume": {"size": larger}}}}, separators=(",", ":"))
    return f"kubectl patch vllm {metadata.name} -n {metadata.namespace} --type merge -p '{patch}'"


def cleaning_name(name: str, occasion: str) -> str:
    """Return the name of the Job for an occasion. Equal occasions share one Job."""
    return f"{cleaning_prefix(name)}{hashlib.sha256(occasion.encode()).hexdigest()[:8]}"


def render_cleaning(
    resource: VLLMDeployment,
    template: Mapping[str, Any],
    *,
    claim: str,
    occasion: str,
    node: str | None,
    recorded: Collection[str],
    keep: Collection[str],
    doomed: Collection[str],
    is_full: bool,
    tools_image: str,
) -> dict[str, Any]:
    """Render the Job.

    Args:
        resource: The VLLMDeployment.
        template: The Pod spec of the engine. User, image and tolerations are copied from it.
        claim: The PVC to clean.
        occasion: Reason for the Job. Equal occasions share one Job.
        node: The node to run on; None leaves it to the scheduler.
        recorded: Directories that the PVC records. Only these may be deleted.
        keep: Directories in use.
        doomed: Directories to delete unconditionally, unless they are in use. The Job reports why a directory stays.
        is_full: Whether to free space.
        tools_image: The operator's image.
    """
    variables = {
        "CLEAN_ROOT": ROOT,
        "CLEAN_RECORDED": json.dumps(sorted(recorded)[:MAX_RECORDED]),
        "CLEAN_KEEP": json.dumps(sorted(keep)),
        "CLEAN_DOOMED": json.dumps(sorted(doomed)),
        "CLEAN_SHARE": str(FREE_PERCENT if is_full else 0),
        "CLEAN_REPORT": _PRINT,
    }
    spec = with_tools(_pod_spec(template, claim, variables), tools_image)
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_of(resource, cleaning_name(resource.metadata.name, occasion), Role.CLEANING),
        "spec": {
            "backoffLimit": ATTEMPTS,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels_of(resource, Role.CLEANING)}, "spec": spec},
        },
    }


def _pod_spec(template: Mapping[str, Any], claim: str, variables: Mapping[str, str]) -> dict[str, Any]:
    engine = next(iter(template["containers"]))
    container = {
        "name": CONTAINER,
        "image": engine["image"],
        "command": tool_command("clean-caches"),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": copy.deepcopy(dict(engine.get("securityContext") or {})) | {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "claim", "mountPath": ROOT}, dict(TOOLS_MOUNT)],
    }
    return {
        **{name: copy.deepcopy(template[name]) for name in _INHERITED if name in template},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
    }


INSPECTION = timedelta(days=7)
"""How long a quarantined directory is kept."""
MAX_ATTEMPTS = 4
DISTANCE = timedelta(days=1)
"""Time between the first two attempts. It doubles with each attempt."""
SILENCE = timedelta(hours=1)
"""How long to wait for the result of an attempt."""
MAX_REASON = 120
_FORM = re.compile(r"(\d{1,4})/([^/]*)/(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts to delete a directory: their number, start of the last one, and why it failed (empty if unknown)."""

    number: int
    last: datetime
    why: str

    def __str__(self) -> str:
        return f"{self.number}/{reading.stamp(self.last)}/{self.why}"

    @property
    def next(self) -> datetime | None:
        """When the next attempt is due; None after the last attempt."""
        return self.last + DISTANCE * 2 ** (self.number - 1) if self.number < MAX_ATTEMPTS else None


def quarantined_keys(context: CacheContext, age: timedelta) -> Iterator[str]:
    """Return the keys that were quarantined at least this long ago and are still on the volume."""
    for name, value in sorted(_annotations(context).items()):
        since = reading.moment(value)
        if str(name).startswith(QUARANTINED_ANNOTATION_PREFIX) and since is not None and context.now - since >= age:
            yield str(name).removeprefix(QUARANTINED_ANNOTATION_PREFIX)


def due_keys(context: CacheContext) -> tuple[str, ...]:
    """Return the quarantined keys whose next deletion attempt is due."""
    return tuple(key for key in quarantined_keys(context, INSPECTION) if _is_due(context, key))


def record_attempt(context: CacheContext, keys: tuple[str, ...], why: str = "") -> Changes:
    """Return the records of an attempt that begins now, or that could not begin."""
    before = {key: read_attempts(context, key) for key in keys}
    numbers = {key: attempts.number if attempts is not None else 0 for key, attempts in before.items()}
    return {DELETION_ANNOTATION_PREFIX + key: str(Attempts(numbers[key] + 1, context.now, wording.clean(why, MAX_REASON))) for key in keys}


def record_reason(context: CacheContext, key: str, why: str, ended: datetime | None) -> Changes:
    """Return the record of why the last attempt failed; empty if it is recorded already, or if another attempt failed."""
    attempts = read_attempts(context, key)
    if attempts is None or attempts.why or ended is None or ended < attempts.last:
        return {}
    return {DELETION_ANNOTATION_PREFIX + key: str(Attempts(attempts.number, attempts.last, wording.clean(why, MAX_REASON)))}


def forget_attempts(context: CacheContext, key: str) -> Changes:
    """Return the removal of the record of a deleted directory; empty without a record."""
    name = DELETION_ANNOTATION_PREFIX + key
    return {name: None} if name in _annotations(context) else {}


def read_attempts(context: CacheContext, key: str) -> Attempts | None:
    """Return the attempts to delete a directory; None without a readable record."""
    found = _FORM.fullmatch(reading.text(_annotations(context), DELETION_ANNOTATION_PREFIX + key))
    last = reading.moment(found[2]) if found else None
    return Attempts(max(1, int(found[1])), last, found[3]) if found and last else None


def describe_failures(context: CacheContext) -> str | None:
    """Return which quarantined directory could not be deleted, why, and what to do; None if there is none."""
    failed = [(key, attempts) for key in quarantined_keys(context, INSPECTION) if (attempts := read_attempts(context, key)) is not None]
    failed = [(key, attempts) for key, attempts in failed if attempts.why or context.now - attempts.last > SILENCE]
    if not failed:
        return None
    key, attempts = failed[0]
    claim, namespace = reading.text(context.claim, "metadata", "name"), context.resource.metadata.namespace
    others = f" and {wording.count(len(failed) - 1, 'other')}" if len(failed) > 1 else ""
    why = attempts.why or "the Job has reported nothing"
    then = "The operator does not try again." if attempts.next is None else f"The next attempt is after {wording.clock(attempts.next)}."
    return (
        f"The quarantined directory {key}{others} on PersistentVolumeClaim {claim} could not be deleted in attempt {attempts.number} of "
        f"{MAX_ATTEMPTS}: {wording.sentence(why)} {then} Remove the cause, or delete the directory yourself, and run: kubectl annotate pvc "
        f"{claim} -n {namespace} {DELETION_ANNOTATION_PREFIX}{key}-"
    )


def _is_due(context: CacheContext, key: str) -> bool:
    attempts = read_attempts(context, key)
    return attempts is None or (attempts.next is not None and context.now >= attempts.next)


def _annotations(context: CacheContext) -> Mapping[str, Any]:
    return reading.mapping(context.claim, "metadata", "annotations")
