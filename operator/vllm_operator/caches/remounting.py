"""Remount a volume that has become read-only. No restart of a container can make it writable.

A node makes a file system read-only after a disk error. The file system stays mounted like that while a Pod on the node uses it, so a
restarted container and a new Pod beside the old one find it read-only too. The operator therefore scales the Deployment to zero, and
back when all its Pods are gone. The kubelet then mounts the volume again, which checks it, perhaps on another node.

The time is recorded on the PVC first, so a restarted operator continues. Replicas that serve are never stopped. After `MAX_REMOUNTS`
within `WINDOW`, a person must look at the disk.
"""

import re
from datetime import datetime, timedelta

from vllm_operator.api.labels import REMOUNTED_ANNOTATION
from vllm_operator.caches.activity import Remounting
from vllm_operator.caches.address import is_read_only, template_spec
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.records import Changes
from vllm_operator.catalog.paths import CACHE_ROOT, WEIGHTS_ROOT
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, PodView

MAX_REMOUNTS = 2
WINDOW = timedelta(hours=24)
_ERROR = re.compile(rf"Read-only file system: ?['\"]?(?:{CACHE_ROOT}|{WEIGHTS_ROOT})/")
"""The error on a volume of the operator. Other directories are read-only for other reasons."""
_RECORDED_TIMES = 8


def plan_remounting(context: CacheContext, signatures: frozenset[str]) -> tuple[Remounting | None, Changes]:
    """Decide about a remount. Return what to report, and what to record before the Pods are stopped.

    Args:
        context: What to decide from.
        signatures: The crash signatures of a volume that is not writable.
    """
    if context.claim is None or context.address is None:
        return None, {}
    views = [view for _, view in context.replicas]
    times = _recorded_times(context)
    if _is_in_progress(views, times):
        return Remounting.UNDER_WAY, {}
    if not _is_needed(context, views, signatures):
        return None, {}
    if any(is_read_only(template_spec(context.desired), path) for path in (CACHE_ROOT, WEIGHTS_ROOT)):
        return Remounting.BY_TEMPLATE, {}
    if sum(context.now - time < WINDOW for time in times) >= MAX_REMOUNTS:
        return Remounting.GIVEN_UP, {}
    stamps = [reading.stamp(time) or "" for time in (*times, context.now)]
    return Remounting.UNDER_WAY, {REMOUNTED_ANNOTATION: " ".join(stamps[-_RECORDED_TIMES:])}


def _recorded_times(context: CacheContext) -> list[datetime]:
    """The times of earlier remounts. A time in the future would make every Pod look older than it, and is ignored."""
    words = reading.text(context.claim, "metadata", "annotations", REMOUNTED_ANNOTATION).split()
    return [time for word in words if (time := reading.moment(word)) is not None and time <= context.now]


def _is_in_progress(views: list[PodView], times: list[datetime]) -> bool:
    """Whether Pods from before the last remount still exist."""
    if not times or any(view.phase is Phase.READY for view in views):
        return False
    return any(view.created_at is not None and view.created_at < times[-1] for view in views)


def _is_needed(context: CacheContext, views: list[PodView], signatures: frozenset[str]) -> bool:
    """Whether an existing Pod crashed because a volume is not writable, and no Pod serves."""
    crash = context.resource.status.last_crash
    if crash is None or crash.signature not in signatures or any(view.phase is Phase.READY for view in views):
        return False
    if _ERROR.search(crash.excerpt or "") is None:
        return False
    return any(view.name == crash.pod and view.phase is Phase.CRASHED for view in views)
