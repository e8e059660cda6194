"""Records about the caches on a PVC: annotations of the PVC.

    used.vllm-operator.dev/KEY:         time since which Pods use the directory
    primed.vllm-operator.dev/KEY:       time when a Pod with these caches was first Ready
    priming.vllm-operator.dev/KEY:      NAME/UID/TIME of the VLLMDeployment whose Pod is filling the directory
    quarantined.vllm-operator.dev/KEY:  time when the directory was quarantined because its caches are damaged
    deletion.vllm-operator.dev/KEY:     NUMBER/TIME/WHY of attempts to delete a quarantined directory (`vllm_operator.caches.deletion`)
    image.vllm-operator.dev/KEY:        image that filled the directory (`vllm_operator.caches.directories`)
    fetched.vllm-operator.dev/DIGEST:   commit of the weights that a Job has downloaded (`vllm_operator.caches.prefetching`)
    shared.vllm-operator.dev/UID:       NAME/TIME of another VLLMDeployment that uses the PVC (`vllm_operator.caches.sharing`)

A PVC lives as long as the caches on it, and every VLLMDeployment that shares it can read its annotations. The operator deletes only
directories that have one of these records.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import (
    IMAGE_ANNOTATION_PREFIX,
    PRIMED_ANNOTATION_PREFIX,
    PRIMING_ANNOTATION_PREFIX,
    QUARANTINED_ANNOTATION_PREFIX,
    USED_ANNOTATION_PREFIX,
    is_name,
)
from vllm_operator.api.status import CacheStatus

Changes = dict[str, str | None]
"""Annotations to set, or to remove where the value is None."""
KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Form of a key: the name part of an annotation. `podTemplate` may mount any directory, even a nested one."""
_RECORDS = (
    USED_ANNOTATION_PREFIX,
    PRIMED_ANNOTATION_PREFIX,
    PRIMING_ANNOTATION_PREFIX,
    QUARANTINED_ANNOTATION_PREFIX,
    IMAGE_ANNOTATION_PREFIX,
)


@dataclass(frozen=True, slots=True)
class PrimingLease:
    """The VLLMDeployment that fills a cache, and when it began; None if the time cannot be read."""

    name: str
    uid: str
    since: datetime | None

    def __str__(self) -> str:
        return f"{self.name}/{self.uid}/{reading.stamp(self.since) or ''}"


def read_lease(claim: Mapping[str, Any] | None, key: str) -> PrimingLease | None:
    """Return the lease on the caches of a key; None without a readable lease."""
    name, _, rest = _annotation(claim, PRIMING_ANNOTATION_PREFIX + key).partition("/")
    uid, _, since = rest.partition("/")
    return PrimingLease(name, uid, reading.moment(since)) if is_name(name) and uid else None


def recorded_keys(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the directories that a PVC records as created by the operator."""
    names = map(str, reading.mapping(claim, "metadata", "annotations"))
    keys = (name.removeprefix(prefix) for name in names for prefix in _RECORDS if name.startswith(prefix))
    return frozenset(key for key in keys if KEY.fullmatch(key))


def usage_record(claim: Mapping[str, Any] | None, key: str, now: datetime) -> Changes:
    """Return the record that Pods use a directory; empty if it exists."""
    if claim is None or _annotation(claim, USED_ANNOTATION_PREFIX + key):
        return {}
    return {USED_ANNOTATION_PREFIX + key: reading.stamp(now)}


def first_record(key: str, now: datetime) -> dict[str, str]:
    """Return the record that Pods use a directory, for a PVC created with it; empty if the key is not valid in an annotation name."""
    return {USED_ANNOTATION_PREFIX + key: reading.stamp(now) or ""} if KEY.fullmatch(key) else {}


def writable(record: Changes) -> Changes:
    """Return the changes whose names the API server accepts."""
    return {name: value for name, value in record.items() if KEY.fullmatch(name.partition("/")[2])}


def is_primed(claim: Mapping[str, Any] | None, key: str) -> bool:
    """Return whether the caches of a key are filled."""
    return bool(_annotation(claim, PRIMED_ANNOTATION_PREFIX + key))


def is_quarantined(claim: Mapping[str, Any] | None, key: str) -> bool:
    """Return whether the caches of a key are quarantined."""
    return bool(_annotation(claim, QUARANTINED_ANNOTATION_PREFIX + key))


def quarantine_record(claim: Mapping[str, Any] | None, status: CacheStatus | None) -> Changes:
    """Return the missing records of the directories that the status lists as quarantined."""
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
