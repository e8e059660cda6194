"""The cache directory of a start.

Two images cannot always read each other's compiled files, and a tag can point to another image tomorrow. But the digest behind a tag is
known only when a Pod has started with it. The cache key therefore contains the tag until then, and the PVC records the digest:

    image.vllm-operator.dev/KEY:  IMAGE@DIGEST of the image that filled the directory, then the latest digest if it differs

The directory follows from these records alone, so a VLLMDeployment that is deleted and created again finds the same one:

* If the tag still points to the image that filled its directory, that directory is used. Learning the digest changes nothing.
* If the tag points to another image now, a directory with the digest in its key is used.
* If the image is named by digest, the directory that this image filled under a tag is used, if there is one.

Running Pods keep their directory. It changes with the image, or with a new plan.

A quarantined directory is never used for a new start: a plan with the next generation has another key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import IMAGE_ANNOTATION_PREFIX
from vllm_operator.api.plan import Plan
from vllm_operator.caches.activity import ImageActivity
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.key import digest_of, key_with_image
from vllm_operator.caches.records import Changes, is_quarantined


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
    for name, value in sorted(reading.mapping(claim, "metadata", "annotations").items()):
        reference, _, latest = reading.text(value).partition(" ")
        image, _, digest = reference.rpartition("@")
        if str(name).startswith(IMAGE_ANNOTATION_PREFIX) and image and digest:
            found[str(name).removeprefix(IMAGE_ANNOTATION_PREFIX)] = ImageRecord(image, digest, latest or digest)
    return found


def directory_of(plan: Plan, records: Mapping[str, ImageRecord]) -> str:
    """Return the directory for a plan, according to the records of the PVC."""
    digest = digest_of(plan.image)
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


def image_activity(context: CacheContext) -> ImageActivity:
    """Return the known facts about the image of the Pods: its digest, and whether its tag moved since the directory was filled."""
    address, plan = context.address, context.plan
    pinned = digest_of(plan.image)
    if pinned is not None or address is None:
        return ImageActivity(digest=pinned or context.running_digest)
    record = read_records(context.claim).get(context.key_by_tag)
    digest = context.running_digest or (record.latest if record else None)
    moved = record is not None and digest != record.filled_by and plan.cache_key == context.key_by_tag
    return ImageActivity(digest=digest, moved=moved)


def image_record(context: CacheContext) -> Changes:
    """Return the record of the image that the newest Pod runs; empty if it exists."""
    address, plan, seen = context.address, context.plan, context.running_digest
    if address is None or seen is None or context.claim is None or digest_of(plan.image) is not None or not plan.cache_key_parts:
        return {}
    by_tag = context.key_by_tag
    record = read_records(context.claim).get(by_tag)
    if record is None and address.key != by_tag:
        return {}
    now = ImageRecord(plan.image, record.filled_by if record else seen, seen)
    return {} if now == record else {IMAGE_ANNOTATION_PREFIX + by_tag: str(now)}


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


MOST_GENERATIONS = 64
"""Maximum number of quarantined directories. Beyond it the volume is not repairable: the last directory is used, and its start fails."""


def next_cache_generation(context: CacheContext) -> int | None:
    """Return the generation for a new plan; None if the directory of the plan is not quarantined, or Pods run with it.

    Running Pods have loaded their files, and continue when another VLLMDeployment quarantines their directory.
    """
    address = context.address
    if address is None or address == context.live_address or not is_quarantined(context.claim, address.key):
        return None
    text = next((part.value for part in context.plan.cache_key_parts if part.name == "generation"), "")
    generation = int(text) + 1 if text.isdecimal() else 1
    return generation if generation <= MOST_GENERATIONS else None
