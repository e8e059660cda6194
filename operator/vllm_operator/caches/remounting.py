"""A volume that has become read-only: mounted anew, because no restart of a container can make it writable.

A node makes a file system read-only after an error of its disk. It stays mounted like that for as long as a Pod on the node has
it, so a container that restarts, and also a new Pod beside the old one, finds it the same way. So all Pods of the replicas are taken
away, and started again once they are gone: the volume is mounted anew in between, and checked, or on another node.

That is recorded on the claim before it is done, so an operator that ends in between goes on with it. It is done only while none
of the replicas serves, and at most `MOST` times within `WINDOW`; then a person must look at the disk.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.labels import REMOUNTED_ANNOTATION
from vllm_operator.caches.activity import Remounting
from vllm_operator.caches.address import is_read_only, template_spec
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.records import Changes
from vllm_operator.catalog.paths import CACHE_ROOT, WEIGHTS_ROOT
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, PodView

MOST = 2
WINDOW = timedelta(hours=24)
_OURS = re.compile(rf"Read-only file system: ?['\"]?(?:{CACHE_ROOT}|{WEIGHTS_ROOT})/")
"""The error of a volume that the operator mounts; other folders are read-only for other reasons."""
_KEPT = 8
"""Times that are recorded at most."""


def plan_remounting(context: CacheContext, signatures: frozenset[str]) -> tuple[Remounting | None, Changes]:
    """Whether the Pods are to be taken away, what is to be said of it, and what to record before.

    Args:
        context: What is the case.
        signatures: Those of a crash for want of a writable volume.
    """
    if context.claim is None or context.address is None:
        return None, {}
    views = [view for _, view in context.replicas]
    times = _times(context.claim)
    if _is_under_way(views, times):
        return Remounting.UNDER_WAY, {}
    if not _needs_remounting(context, views, signatures):
        return None, {}
    if any(is_read_only(template_spec(context.desired), path) for path in (CACHE_ROOT, WEIGHTS_ROOT)):
        return Remounting.BY_TEMPLATE, {}
    if sum(context.now - time < WINDOW for time in times) >= MOST:
        return Remounting.GIVEN_UP, {}
    stamps = [reading.stamp(time) or "" for time in (*times, context.now)]
    return Remounting.UNDER_WAY, {REMOUNTED_ANNOTATION: " ".join(stamps[-_KEPT:])}


def _times(claim: Mapping[str, Any]) -> list[datetime]:
    words = reading.text(claim, "metadata", "annotations", REMOUNTED_ANNOTATION).split()
    return [time for word in words if (time := reading.moment(word)) is not None]


def _is_under_way(views: list[PodView], times: list[datetime]) -> bool:
    """Whether Pods from before the last time are still there."""
    if not times or any(view.phase is Phase.READY for view in views):
        return False
    return any(view.created_at is not None and view.created_at < times[-1] for view in views)


def _needs_remounting(context: CacheContext, views: list[PodView], signatures: frozenset[str]) -> bool:
    """Whether a Pod that is still there died for want of a writable volume, and none serves."""
    crash = context.resource.status.last_crash
    if crash is None or crash.signature not in signatures or any(view.phase is Phase.READY for view in views):
        return False
    if _OURS.search(crash.excerpt or "") is None:
        return False
    return any(view.name == crash.pod and view.phase is Phase.CRASHED for view in views)
