"""Delete unused cache directories from a volume: when to clean, which directories stay, the Job and its result.

A Job runs if a start found the volume full, or if a quarantined directory has been kept long enough for inspection. The result is read
from the Pod of the Job. The records of the directories that it deleted are removed. The Job mounts only this PVC and runs in the image of
the engine as its user, who owns the files.

A quarantined directory may have lost its marker, be in use, or belong to another user, so no attempt may ever delete it. Each attempt is
recorded on the PVC before its Job is created, so that a Job without a result counts too. The program of the Job says why it stays.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.reading import format_bytes, read_bytes
from vllm_operator.api.resource import Role
from vllm_operator.caches.address import folders_of, mounts_whole
from vllm_operator.caches.claims import is_terminating
from vllm_operator.caches.context import CacheContext, Cleaning, CleaningState
from vllm_operator.caches.directories import Changes, read_annotations, recorded_keys
from vllm_operator.caches.jobs import pods_with, read_report, render_job, render_pod_spec, render_program
from vllm_operator.catalog.caches import WEIGHTS_SUBPATH
from vllm_operator.catalog.notes import say
from vllm_operator.pods.view import Phase, instance_of, is_over
from vllm_operator.text import wording

MIN_JOB_INTERVAL = timedelta(minutes=10)
"""Minimum interval between two Jobs. A volume that fills up again sooner is too small."""
ROOT = "/claim"
FREE_PERCENT = 20
"""Share of the volume to free if a start found it full. With less, the next start would fill it again."""
DEADLINE_SECONDS = 900
"""Deleting a million files from a network file system takes minutes."""
KEPT_SECONDS = 900
"""How long the finished Job is kept. It must exceed `MIN_JOB_INTERVAL`, which is measured from the finished Pod of the Job."""
JOB_ATTEMPTS = 2
MAX_RECORDED = 1000
"""Maximum number of directories passed to the Job. A variable can have 128 KiB."""
REMOVED = " removed"
ALREADY_GONE = "gone"
"""The program's reason for not deleting a directory that does not exist."""
QUARANTINE_TIME = timedelta(days=7)
"""How long a quarantined directory is kept."""
MAX_ATTEMPTS = 4
FIRST_RETRY_DELAY = timedelta(days=1)
"""Time between the first two attempts to delete a directory. It doubles with each attempt."""
RESULT_TIMEOUT = timedelta(hours=1)
"""How long to wait for the result of an attempt."""
MAX_REASON = 120
_ATTEMPTS = re.compile(r"(\d{1,4})/([^/]*)/(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CleaningNeed:
    """A Job that should run. `node` is the one that mounts the volume; None if unknown. `doomed` are the directories to delete first."""

    occasion: str
    is_full: bool
    node: str | None
    doomed: tuple[str, ...]


def find_cleaning_need(context: CacheContext, signatures: frozenset[str]) -> CleaningNeed | None:
    """Return the Job that should run now; None without one. `signatures` are the crashes of a full volume."""
    if context.claim is None or is_terminating(context.claim) or context.address is None or "ReadWriteOncePod" in context.access_modes:
        return None
    if any(job.finished_at is None or context.now - job.finished_at < MIN_JOB_INTERVAL for job in _jobs(context)):
        return None
    crash, full_node = context.resource.status.last_crash, node_without_space(context, signatures)
    if crash is not None and full_node is not None:
        return CleaningNeed(f"{crash.pod}/{crash.restarts or 0}", True, full_node, tuple(quarantined_keys(context, timedelta(0))))
    aged = tuple(key for key in quarantined_keys(context, QUARANTINE_TIME) if _is_due(context, key))
    node = next((view.node for _, view in context.replicas if view.phase is Phase.READY), "")
    return CleaningNeed(" ".join(aged), False, node or None, aged) if aged and (node or not context.is_one_node) else None


def _is_due(context: CacheContext, key: str) -> bool:
    """Return whether a quarantined directory is to be deleted now: its first or its next attempt is due."""
    attempts = _attempts(context, key)
    return attempts is None or (attempts.next is not None and context.now >= attempts.next)


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
    address, live = context.address, context.live_address
    if address is None:
        return frozenset()
    keys = {address.key, WEIGHTS_SUBPATH, live.key if live is not None else ""}
    keys |= {reading.text(user, "status", "cache", "key") for user in users}
    return frozenset(keys.union(*(folders_of(pod.get("spec"), address.claim) for pod in pods if not is_over(pod))) - {""})


def find_blocking_pod(claim: str, pods: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a Pod of another owner that mounts the whole PVC, so that its directories are unknown; None if there is none."""
    blocking = (pod for pod in pods if instance_of(pod) is None and not is_over(pod) and mounts_whole(pod.get("spec"), claim))
    return next((reading.text(pod, "metadata", "name") for pod in blocking), None)


def describe_blocked_cleaning(context: CacheContext, signatures: frozenset[str], state: CleaningState, why: str) -> Cleaning | None:
    """Describe a Job that could not be created; None if no start waits for it."""
    is_full = node_without_space(context, signatures) is not None
    return Cleaning(state=state, why=why, advice=_advice(context)) if is_full else None


def describe_cleaning(context: CacheContext, signatures: frozenset[str]) -> Cleaning | None:
    """Describe the cleaning for a start that found the volume full; None without such a start."""
    if context.address is None or node_without_space(context, signatures) is None:
        return None
    jobs = sorted(_jobs(context), key=lambda job: (job.finished_at is None, job.finished_at or context.now))
    if not jobs and "ReadWriteOncePod" in context.access_modes:
        return Cleaning(state="Impossible", advice=_advice(context))
    if not jobs or jobs[-1].finished_at is None:
        return Cleaning(state="InProgress")
    result = jobs[-1].result
    if result is None:
        return Cleaning(state="Failed", advice=_advice(context))
    removed = tuple(map(str, result["removed"]))
    free, total = reading.integer(result, "freeBytes"), reading.integer(result, "totalBytes")
    if not removed and free is not None and total and free * 100 >= total * FREE_PERCENT:
        weights = context.weights_claim_name
        where = f"PVC {weights} of the weights" if weights else "the disk of the node, which holds /tmp and the container's own files"
        return Cleaning(state="HasSpace", why=where, advice=_advice(context, weights) if weights else "")
    return Cleaning(
        state="Done" if removed else "NothingToRemove",
        removed=removed,
        freed_bytes=reading.integer(result, "freedBytes") or 0,
        retained=reading.integer(result, "others") or 0,
        retained_bytes=reading.integer(result, "otherBytes"),
        advice=_advice(context),
    )


def cleaning_record(context: CacheContext) -> Changes:
    """Return the changes of records after Jobs. A record that is newer than the Job describes a new directory, and stays."""
    record: Changes = {}
    annotations = reading.mapping(context.claim, "metadata", "annotations")
    for job in _jobs(context):
        kept = reading.mapping(job.result, "kept")
        gone = [key for key, why in kept.items() if why == ALREADY_GONE]
        for key in kept.keys() - gone:
            record |= _record_reason(context, key, str(kept[key]), job.finished_at)
        for key in map(str, (*(job.result or {}).get("removed", ()), *gone)):
            record |= _record_removed(
                annotations, key, job.finished_at, is_planned=context.address is not None and key == context.address.key
            )
    return record


def _record_removed(annotations: Mapping[str, Any], key: str, finished: datetime | None, *, is_planned: bool) -> Changes:
    """Return the changes of the records of a directory that a Job has removed. The plan may use its directory again."""
    record: Changes = {}
    if labels.DELETION_ANNOTATION_PREFIX + key in annotations:
        record[labels.DELETION_ANNOTATION_PREFIX + key] = None
    mark = labels.QUARANTINED_ANNOTATION_PREFIX + key
    quarantined = reading.text(annotations, mark)
    if quarantined and not quarantined.endswith(REMOVED):
        record[mark] = quarantined + REMOVED
    if is_planned:
        return record
    names = (f"{labels.PRIMED_ANNOTATION_PREFIX}{key}", f"{labels.USED_ANNOTATION_PREFIX}{key}")
    times = {name: reading.moment(annotations, name) for name in names if name in annotations}
    new = {name for name, since in times.items() if since is not None and finished is not None and since > finished}
    record |= dict.fromkeys(times.keys() - new)
    if not new and (image := f"{labels.IMAGE_ANNOTATION_PREFIX}{key}") in annotations:
        record[image] = None
    return record


@dataclass(frozen=True, slots=True)
class _Job:
    finished_at: datetime | None
    result: Mapping[str, Any] | None


def _jobs(context: CacheContext) -> Iterator[_Job]:
    for pod in pods_with(Role.CLEANING, context.manifests):
        ended, result = read_report(next(reading.objects(pod, "status", "containerStatuses"), {})) or ({}, {})
        finished = reading.moment(ended, "finishedAt") or (reading.moment(pod, "metadata", "creationTimestamp") if is_over(pod) else None)
        yield _Job(finished, result if isinstance(result.get("removed"), list) else None)


def _advice(context: CacheContext, weights: str | None = None) -> str:
    metadata, spec = context.resource.metadata, context.resource.spec
    live = context.claims.get(weights) if weights else context.claim
    field, kept = ("weights", spec.weights) if weights else ("cache", spec.cache)
    current = read_bytes(reading.text(live, "spec", "resources", "requests", "storage"))
    larger = format_bytes(current * 2) if current else "SIZE"
    target, change = f"vllm {metadata.name}", {field: {"volume": {"size": larger}}}
    if kept is not None and kept.claim_name:
        target, change = f"pvc {reading.text(live, 'metadata', 'name')}", {"resources": {"requests": {"storage": larger}}}
    patch = json.dumps({"spec": change}, separators=(",", ":"))
    return f"kubectl patch {target} -n {metadata.namespace} --type merge -p '{patch}'"


def render_cleaning(context: CacheContext, need: CleaningNeed, keep: frozenset[str]) -> dict[str, Any]:
    """Render the Job. `keep` are the directories in use."""
    template, address = context.template, context.address
    assert address is not None
    variables = {
        "CLEAN_ROOT": ROOT,
        "CLEAN_RECORDED": json.dumps(sorted(recorded_keys(context.claim))[:MAX_RECORDED]),
        "CLEAN_KEEP": json.dumps(sorted(keep)),
        "CLEAN_DOOMED": json.dumps(sorted(need.doomed)),
        "CLEAN_SHARE": str(FREE_PERCENT if need.is_full else 0),
        "CLEAN_REPORT": "/dev/termination-log",
    }
    engine, env = next(reading.objects(template, "containers")), [{"name": name, "value": value} for name, value in variables.items()]
    mounts, requests = [{"name": "claim", "mountPath": ROOT}], {"cpu": "100m", "memory": "128Mi"}
    container = render_program(engine, "clean", "clean-caches", env=env, mounts=mounts, requests=requests)
    volumes = [{"name": "claim", "persistentVolumeClaim": {"claimName": address.claim}}]
    spec = render_pod_spec(template, context.plan.tools_image, {"containers": [container], "volumes": volumes})
    if need.node:
        spec["nodeName"] = need.node
    occasion = hashlib.sha256(need.occasion.encode()).hexdigest()[:8]
    return render_job(context.resource, occasion, Role.CLEANING, spec, attempts=JOB_ATTEMPTS, deadline=DEADLINE_SECONDS, kept=KEPT_SECONDS)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts to delete a quarantined directory: their number, start of the last one, and why it failed (empty if unknown)."""

    number: int
    last: datetime
    why: str

    def __str__(self) -> str:
        return f"{self.number}/{reading.stamp(self.last)}/{wording.clean(self.why, MAX_REASON)}"

    @property
    def next(self) -> datetime | None:
        """When the next attempt is due; None after the last attempt."""
        return self.last + FIRST_RETRY_DELAY * 2 ** (self.number - 1) if self.number < MAX_ATTEMPTS else None


def quarantined_keys(context: CacheContext, age: timedelta) -> Iterator[str]:
    """Return the keys that were quarantined at least this long ago and are still on the volume."""
    for key, value in read_annotations(context.claim, labels.QUARANTINED_ANNOTATION_PREFIX).items():
        since = reading.moment(value)
        if since is not None and context.now - since >= age:
            yield key


def record_attempt(context: CacheContext, keys: tuple[str, ...], why: str = "") -> Changes:
    """Return the records of an attempt that begins now, or that could not begin."""
    before = {key: _attempts(context, key) for key in keys}
    numbers = {key: attempts.number if attempts is not None else 0 for key, attempts in before.items()}
    return {labels.DELETION_ANNOTATION_PREFIX + key: str(Attempts(number + 1, context.now, why)) for key, number in numbers.items()}


def _record_reason(context: CacheContext, key: str, why: str, ended: datetime | None) -> Changes:
    """Return the record of why the last attempt failed; empty if it is recorded already, or if another attempt failed."""
    attempts = _attempts(context, key)
    if attempts is None or attempts.why or ended is None or ended < attempts.last:
        return {}
    return {labels.DELETION_ANNOTATION_PREFIX + key: str(Attempts(attempts.number, attempts.last, why))}


def _attempts(context: CacheContext, key: str) -> Attempts | None:
    found = _ATTEMPTS.fullmatch(reading.text(context.claim, "metadata", "annotations", labels.DELETION_ANNOTATION_PREFIX + key))
    last = reading.moment(found[2]) if found else None
    return Attempts(max(1, int(found[1])), last, found[3]) if found and last else None


def describe_failures(context: CacheContext) -> str | None:
    """Return which quarantined directory could not be deleted, why, and what to do; None if there is none."""
    tried = [(key, attempts) for key in quarantined_keys(context, QUARANTINE_TIME) if (attempts := _attempts(context, key)) is not None]
    failed = [(key, attempts) for key, attempts in tried if attempts.why or context.now - attempts.last > RESULT_TIMEOUT]
    if not failed:
        return None
    key, attempts = failed[0]
    others = f" and {wording.count(len(failed) - 1, 'other')}" if len(failed) > 1 else ""
    then = "The operator does not try again." if attempts.next is None else f"The next attempt is after {wording.clock(attempts.next)}."
    why = f"{wording.sentence(attempts.why or 'the Job has reported nothing')} {then}"
    claim, namespace = reading.text(context.claim, "metadata", "name"), context.resource.metadata.namespace
    number, mark = attempts.number, labels.DELETION_ANNOTATION_PREFIX + key
    return say(
        "claims.not-deleted", key=key, others=others, claim=claim, number=number, most=MAX_ATTEMPTS, why=why, namespace=namespace, mark=mark
    )
