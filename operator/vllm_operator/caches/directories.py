"""Records about the caches on a PVC (annotations of the PVC), and the cache directory of a start, which follows from them.

    used.vllm-operator.dev/KEY:         time since which Pods use the directory
    primed.vllm-operator.dev/KEY:       time when a Pod with these caches was first Ready
    priming.vllm-operator.dev/KEY:      NAME/UID/TIME of the VLLMDeployment whose Pod is filling the directory
    quarantined.vllm-operator.dev/KEY:  time when the directory was quarantined because its caches are damaged
    deletion.vllm-operator.dev/KEY:     NUMBER/TIME/WHY of attempts to delete a quarantined directory (`vllm_operator.caches.cleaning`)
    image.vllm-operator.dev/KEY:        IMAGE@DIGEST of the image that filled the directory, then the latest digest if it differs
    fetched.vllm-operator.dev/DIGEST:   commit of the weights that a Job has downloaded (`vllm_operator.caches.prefetching`)
    shared.vllm-operator.dev/UID:       NAME/TIME of another VLLMDeployment that uses the PVC (`vllm_operator.caches.claims`)

A PVC lives as long as the caches on it, and every VLLMDeployment that shares it can read its annotations. The operator deletes only
directories that a used, primed, priming, quarantined or image record names.

Two images cannot always read each other's compiled files, and a tag can point to another image tomorrow. But the digest behind a tag is
known only when a Pod has started with it. The cache key therefore contains the tag until then. The directory follows from the records
alone, so a VLLMDeployment that is deleted and created again finds the same one:

* If the tag still points to the image that filled its directory, that directory is used. Learning the digest changes nothing.
* If the tag points to another image now, a directory with the digest in its key is used.
* If the image is named by digest, the directory that this image filled under a tag is used, if there is one.

Running Pods keep their directory. It changes with the image, or with a new plan. A quarantined directory is never used for a new start: a
plan with the next generation has another key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import CacheStatus
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.key import digest_of_image, key_with_image

Changes = dict[str, str | None]
"""Annotations to set, or to remove where the value is None."""
KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Form of a key: the name part of an annotation. `podTemplate` may mount any directory, even a nested one."""
_RECORDS = (
    labels.USED_ANNOTATION_PREFIX,
    labels.PRIMED_ANNOTATION_PREFIX,
    labels.PRIMING_ANNOTATION_PREFIX,
    labels.QUARANTINED_ANNOTATION_PREFIX,
    labels.IMAGE_ANNOTATION_PREFIX,
)
MOST_GENERATIONS = 64
"""Maximum number of quarantined directories. Beyond it the volume is not repairable: the last directory is used, and its start fails."""


def read_annotations(claim: Mapping[str, Any] | None, prefix: str) -> dict[str, str]:
    """Return the annotations of a PVC whose names have a prefix, sorted by the rest of the name."""
    annotations = sorted(reading.mapping(claim, "metadata", "annotations").items())
    return {str(name).removeprefix(prefix): reading.text(value) for name, value in annotations if str(name).startswith(prefix)}


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
    name, _, rest = _annotation(claim, labels.PRIMING_ANNOTATION_PREFIX + key).partition("/")
    uid, _, since = rest.partition("/")
    return PrimingLease(name, uid, reading.moment(since)) if labels.is_name(name) and uid else None


def read_leases(claim: Mapping[str, Any] | None) -> list[PrimingLease]:
    """Return all readable leases of a PVC."""
    return [lease for key in read_annotations(claim, labels.PRIMING_ANNOTATION_PREFIX) if (lease := read_lease(claim, key)) is not None]


def recorded_keys(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the directories that a PVC records as created by the operator."""
    return frozenset(key for prefix in _RECORDS for key in read_annotations(claim, prefix) if KEY.fullmatch(key))


def usage_record(claim: Mapping[str, Any] | None, key: str, now: datetime) -> Changes:
    """Return the record that Pods use a directory; empty if it exists."""
    if claim is None or _annotation(claim, labels.USED_ANNOTATION_PREFIX + key):
        return {}
    return {labels.USED_ANNOTATION_PREFIX + key: reading.stamp(now)}


def writable(record: Changes) -> Changes:
    """Return the changes whose names the API server accepts."""
    return {name: value for name, value in record.items() if KEY.fullmatch(name.partition("/")[2])}


def is_primed(claim: Mapping[str, Any] | None, key: str) -> bool:
    """Return whether the caches of a key are filled."""
    return bool(_annotation(claim, labels.PRIMED_ANNOTATION_PREFIX + key))


def is_quarantined(claim: Mapping[str, Any] | None, key: str) -> bool:
    """Return whether the caches of a key are quarantined."""
    return bool(_annotation(claim, labels.QUARANTINED_ANNOTATION_PREFIX + key))


def quarantine_record(claim: Mapping[str, Any] | None, status: CacheStatus | None) -> Changes:
    """Return the missing records of the directories that the status lists as quarantined."""
    record: Changes = {}
    for entry in (status.quarantined if status else None) or ():
        if claim is not None and not is_quarantined(claim, entry.key):
            ended = (prefix + entry.key for prefix in (labels.PRIMED_ANNOTATION_PREFIX, labels.PRIMING_ANNOTATION_PREFIX))
            record |= {labels.QUARANTINED_ANNOTATION_PREFIX + entry.key: entry.time}
            record |= {name: None for name in ended if _annotation(claim, name)}
    return record


def _annotation(claim: Mapping[str, Any] | None, name: str) -> str:
    return reading.text(claim, "metadata", "annotations", name)


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """The image (by tag) that filled a directory, its digest, and the latest digest of the tag."""

    image: str
    filled_by: str
    latest: str

    def __str__(self) -> str:
        return f"{self.image}@{self.filled_by}" + (f" {self.latest}" if self.latest != self.filled_by else "")


def read_records(claim: Mapping[str, Any] | None) -> dict[str, ImageRecord]:
    """Return the readable records of a PVC by directory."""
    found = {}
    for key, value in read_annotations(claim, labels.IMAGE_ANNOTATION_PREFIX).items():
        reference, _, latest = value.partition(" ")
        image, _, digest = reference.rpartition("@")
        if image and digest:
            found[key] = ImageRecord(image, digest, latest or digest)
    return found


def directory_of(plan: Plan, records: Mapping[str, ImageRecord]) -> str:
    """Return the directory for a plan, according to the records of the PVC."""
    digest = digest_of_image(plan.image)
    if digest is not None:
        return _filled_by(plan, digest, records)
    by_tag = key_with_image(plan, plan.image)
    record = records.get(by_tag)
    if record is None or record.latest == record.filled_by:
        return by_tag
    return _filled_by(plan, record.latest, records)


def other_directory(context: CacheContext) -> str | None:
    """Return the directory to use instead of the plan's; None if the plan's directory is right."""
    address, plan, before = context.address, context.plan, context.resource.pinned
    if address is None or not plan.cache_key_parts:
        return None
    desired = directory_of(plan, read_records(context.claim))
    if before is not None and before.replan_token == plan.replan_token and _is_in_use(context, before):
        desired = before.cache_key
    return desired if desired != plan.cache_key else None


def digest_of_moved_tag(context: CacheContext) -> str | None:
    """Return the digest to which the tag of the image points now; None unless another image filled the current directory."""
    plan, record = context.plan, read_records(context.claim).get(context.key_by_tag)
    if record is None or context.address is None or digest_of_image(plan.image) is not None or plan.cache_key != context.key_by_tag:
        return None
    digest = context.running_digest or record.latest
    return digest if digest != record.filled_by else None


def image_record(context: CacheContext) -> Changes:
    """Return the record of the image that the newest Pod runs; empty if it exists."""
    address, plan, seen = context.address, context.plan, context.running_digest
    if address is None or seen is None or context.claim is None or digest_of_image(plan.image) is not None or not plan.cache_key_parts:
        return {}
    by_tag = context.key_by_tag
    record = read_records(context.claim).get(by_tag)
    if record is None and address.key != by_tag:
        return {}
    now = ImageRecord(plan.image, record.filled_by if record else seen, seen)
    return {} if now == record else {labels.IMAGE_ANNOTATION_PREFIX + by_tag: str(now)}


def _filled_by(plan: Plan, digest: str, records: Mapping[str, ImageRecord]) -> str:
    """Return the directory that an image filled under a tag if all other parts are equal; else the one with the digest in its key."""
    for key, record in records.items():
        if record.filled_by == digest and key_with_image(plan, record.image) == key:
            return key
    return key_with_image(plan, digest)


def _is_in_use(context: CacheContext, before: Plan) -> bool:
    """Return whether the Deployment uses the directory of the previous plan and at most the digest behind the tag differs."""
    live, address, plan = context.live_address, context.address, context.plan
    if live is None or address is None or (live.claim, live.key) != (address.claim, before.cache_key):
        return False
    return before.image == plan.image and key_with_image(before, plan.image) == context.key_by_tag


def next_cache_generation(context: CacheContext) -> int | None:
    """Return the generation for a new plan, if the directory is quarantined; otherwise None.

    If another VLLMDeployment has quarantined it, Pods that run with it go on: they have loaded its files.
    """
    cache, address = context.resource.status.cache, context.address
    is_own = any(entry.key == context.plan.cache_key for entry in (cache.quarantined if cache else None) or ())
    if not is_own and (address is None or address == context.live_address or not is_quarantined(context.claim, address.key)):
        return None
    return context.plan.cache_generation + 1 if context.plan.cache_generation < MOST_GENERATIONS else None
