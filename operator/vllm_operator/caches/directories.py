"""Which image a directory of caches was filled by, where the image was named by a tag.

A tag can come to stand for another image, and what one image has compiled another may not be able to read. But what a tag stands
for is known only once a Pod has started with it. So the cache key holds the tag until then, and the claim records the digest:

    image.vllm-operator.dev/KEY:  IMAGE@DIGEST of the image that filled the directory, then the latest digest if that is another one

From this record alone follows which directory a start uses, so an object that is deleted and created again finds the same one:

* the tag still stands for the image that filled its directory: that directory; nothing moves because the digest got known;
* the tag stands for another image now: a directory with the digest in its key;
* the image is named by its digest: the directory that this image has filled under a tag, if there is one.

What runs is left alone. A directory is exchanged with the image, or when a new plan is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.labels import IMAGE_ANNOTATION_PREFIX
from vllm_operator.api.status import Plan
from vllm_operator.caches.activity import ImageActivity
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.key import digest_of, key_with_image
from vllm_operator.caches.records import Changes, is_quarantined
from vllm_operator.pods import reading


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """The image, named by a tag, that filled a directory, and what the tag was last seen to stand for."""

    image: str
    filled_by: str
    latest: str

    def __str__(self) -> str:
        return f"{self.image}@{self.filled_by}" + (f" {self.latest}" if self.latest != self.filled_by else "")


def read_records(claim: Mapping[str, Any] | None) -> dict[str, ImageRecord]:
    """All records of a claim by directory. A text that is no record counts as none."""
    found = {}
    for name, value in sorted(reading.mapping(claim, "metadata", "annotations").items()):
        reference, _, latest = reading.text(value).partition(" ")
        image, _, digest = reference.rpartition("@")
        if str(name).startswith(IMAGE_ANNOTATION_PREFIX) and image and digest:
            found[str(name).removeprefix(IMAGE_ANNOTATION_PREFIX)] = ImageRecord(image, digest, latest or digest)
    return found


def directory_of(plan: Plan, records: Mapping[str, ImageRecord]) -> str:
    """The directory that a start with a plan uses, as the records of the claim say."""
    digest = digest_of(plan.image)
    if digest is not None:
        return _filled_by(plan, digest, records)
    by_tag = key_with_image(plan, plan.image)
    record = records.get(by_tag)
    if record is None or record.latest == record.filled_by:
        return by_tag
    return _filled_by(plan, record.latest, records)


def other_directory(context: CacheContext) -> str | None:
    """The directory to use instead of that of the plan; None if that is the right one."""
    address, plan, before = context.address, context.plan, context.resource.status.plan
    if address is None or not plan.cache_key_parts:
        return None
    wanted = directory_of(plan, read_records(context.claim))
    if before is not None and before.replan_token == plan.replan_token and _is_in_use(context, before):
        wanted = before.cache_key
    return wanted if wanted != plan.cache_key else None


def image_activity(context: CacheContext) -> ImageActivity:
    """What is known of the image of the Pods: its digest, and whether its tag has moved away from the directory in use."""
    address, plan = context.address, context.plan
    pinned = digest_of(plan.image)
    if pinned is not None or address is None:
        return ImageActivity(digest=pinned or context.running_digest)
    record = read_records(context.claim).get(context.key_by_tag)
    digest = context.running_digest or (record.latest if record else None)
    moved = record is not None and digest != record.filled_by and plan.cache_key == context.key_by_tag
    return ImageActivity(digest=digest, moved=moved)


def image_record(context: CacheContext) -> Changes:
    """What is to be recorded of the image that the newest Pod was seen to run."""
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
    """The directory that an image has filled under a tag, all else being equal; else the one with the digest in its key."""
    for key, record in records.items():
        if record.filled_by == digest and key_with_image(plan, record.image) == key:
            return key
    return key_with_image(plan, digest)


def _is_in_use(context: CacheContext, before: Plan) -> bool:
    """Whether the Deployment runs with the directory of the plan before, and that differs at most in what its tag stood for."""
    present, address, plan = context.present_address, context.address, context.plan
    if present is None or address is None or (present.claim, present.key) != (address.claim, before.cache_key):
        return False
    return before.image == plan.image and key_with_image(before, plan.image) == context.key_by_tag


MOST_GENERATIONS = 64
"""A claim on which so many were left behind is beyond repair; the last one is used, and fails."""


def next_cache_generation(context: CacheContext) -> int | None:
    """The generation to plan with instead; None if the directory of the plan is sound, or Pods run with it.

    Pods that run with a directory that somebody else has found damaged have loaded what they need; they go on.
    """
    address = context.address
    if address is None or address == context.present_address or not is_quarantined(context.claim, address.key):
        return None
    text = next((part.value for part in context.plan.cache_key_parts if part.name == "generation"), "")
    generation = int(text) + 1 if text.isdecimal() else 1
    return generation if generation <= MOST_GENERATIONS else None
