"""Attempts to delete a quarantined directory: number, next due time, and the report about a directory that stays.

A directory may have lost its marker, be in use, or belong to another user, so no attempt may ever delete it. Each attempt is recorded on
the PVC before its Job is created, so that a Job without a result counts too. The program of the Job says why the directory stays.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import DELETION_ANNOTATION_PREFIX, QUARANTINED_ANNOTATION_PREFIX
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.records import Changes
from vllm_operator.text import wording

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
