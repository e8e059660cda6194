"""What is recorded on a claim about the caches on it, as annotations.

    used.vllm-operator.dev/KEY:         since when Pods use them
    primed.vllm-operator.dev/KEY:       when a Pod with these caches was first seen to be Ready
    priming.vllm-operator.dev/KEY:      NAME/UID/TIME of the VLLMDeployment whose Pod fills them at present
    quarantined.vllm-operator.dev/KEY:  when they were left behind because they are damaged
    vllm-operator.dev/remounted:        when it was mounted anew (`vllm_operator.caches.remounting`)
    image.vllm-operator.dev/KEY:        which image has filled them (`vllm_operator.caches.directories`)

The claim is the place for it: it lives as long as the caches do, and all who share it can read it. Only a directory that is
recorded here, under any of these names, may be removed from the volume.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vllm_operator.api.labels import (
    IMAGE_ANNOTATION_PREFIX,
    PRIMED_ANNOTATION_PREFIX,
    PRIMING_ANNOTATION_PREFIX,
    QUARANTINED_ANNOTATION_PREFIX,
    REMOUNTED_ANNOTATION,
    USED_ANNOTATION_PREFIX,
)
from vllm_operator.api.status import CacheStatus
from vllm_operator.pods import reading

Changes = dict[str, str | None]
"""Annotations to set, or to remove where the value is None."""
KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What can be a key: the name part of an annotation. `podTemplate` may mount any folder, even a nested one."""
_RECORDS = (
    USED_ANNOTATION_PREFIX,
    PRIMED_ANNOTATION_PREFIX,
    PRIMING_ANNOTATION_PREFIX,
    QUARANTINED_ANNOTATION_PREFIX,
    IMAGE_ANNOTATION_PREFIX,
)


@dataclass(frozen=True, slots=True)
class PrimingLease:
    """Who fills a cache, and since when. `since` is None where the time cannot be read."""

    name: str
    uid: str
    since: datetime | None

    def __str__(self) -> str:
        return f"{self.name}/{self.uid}/{reading.stamp(self.since) or ''}"


def read_lease(claim: Mapping[str, Any] | None, key: str) -> PrimingLease | None:
    """Who fills the caches of a key; None if nobody does. A text that is no lease counts as nobody."""
    name, _, rest = _annotation(claim, PRIMING_ANNOTATION_PREFIX + key).partition("/")
    uid, _, since = rest.partition("/")
    return PrimingLease(name, uid, reading.moment(since)) if name and uid else None


def recorded_keys(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """The directories that a claim records as the operator's, by this version or an earlier one."""
    names = map(str, reading.mapping(claim, "metadata", "annotations"))
    keys = (name.removeprefix(prefix) for name in names for prefix in _RECORDS if name.startswith(prefix))
    return frozenset(key for key in keys if KEY.fullmatch(key))


def usage_record(claim: Mapping[str, Any] | None, key: str, now: datetime) -> Changes:
    """What to record of the directory that Pods are going to use; nothing if that is known."""
    if claim is None or _annotation(claim, USED_ANNOTATION_PREFIX + key):
        return {}
    return {USED_ANNOTATION_PREFIX + key: reading.stamp(now)}


def writable(record: Changes) -> Changes:
    """The part of a record whose names an API server accepts."""
    return {name: value for name, value in record.items() if name == REMOUNTED_ANNOTATION or KEY.fullmatch(name.partition("/")[2])}


def is_primed(claim: Mapping[str, Any] | None, key: str) -> bool:
    """Whether the caches of a key were seen to be filled."""
    return bool(_annotation(claim, PRIMED_ANNOTATION_PREFIX + key))


def is_quarantined(claim: Mapping[str, Any] | None, key: str) -> bool:
    """Whether the caches of a key were left behind as damaged."""
    return bool(_annotation(claim, QUARANTINED_ANNOTATION_PREFIX + key))


def quarantine_record(claim: Mapping[str, Any] | None, status: CacheStatus | None) -> Changes:
    """What to record of the directories that a status lists as left behind."""
    record: Changes = {}
    for entry in (status.quarantined if status else None) or ():
        if claim is None or is_quarantined(claim, entry.key):
            continue
        record[QUARANTINED_ANNOTATION_PREFIX + entry.key] = entry.time
        for prefix in (PRIMED_ANNOTATION_PREFIX, PRIMING_ANNOTATION_PREFIX):
            if _annotation(claim, prefix + entry.key):
                record[prefix + entry.key] = None
    return record


def _annotation(claim: Mapping[str, Any] | None, name: str) -> str:
    return reading.text(claim, "metadata", "annotations", name)
