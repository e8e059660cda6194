"""Events on a VLLMDeployment: one for each thing that happens, counted where it happens again.

The name of an event is derived from the object and from its series (what repeats itself), or else from the key
of the occurrence. An operator that was killed between two writes, and reports the same once more, meets the event
that is there: its annotation says which occurrence was counted last.
"""

import hashlib
import logging
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api import labels
from vllm_operator.cluster.client import EVENT, ClusterClient, ClusterError, Conflict, Manifest, NotFound, Unavailable

log = logging.getLogger(__name__)

COMPONENT = "vllm-operator"
MAX_MESSAGE = 1023
"""Bytes; the API server refuses an event whose message is 1024 bytes or longer."""
MAX_NAME = 253
_TRIES = 3
_ANNOTATION_POINTER = f"/metadata/annotations/{labels.OCCURRENCE_ANNOTATION.replace('/', '~1')}"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened. Equal `key`s are the same occurrence; those of one `series` are counted in one event."""

    type: str
    reason: str
    message: str
    key: str
    series: str = ""


class EventRecorder:
    """Writes events. That an event cannot be written is logged and stops nothing."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def record(self, resource: Manifest, occurrence: Occurrence, *, now: datetime) -> str | None:
        """Write an event, or count the occurrence in the one that is there; return the verb, None if nothing was written.

        Raises:
            Unavailable: Try again: nothing is lost, the name stays the same.
        """
        event = build_event(resource, occurrence, now=now)
        try:
            for _ in range(_TRIES):
                try:
                    await self._client.create(event)
                    return "create"
                except Conflict:
                    pass
                try:
                    return await self._count(event, occurrence)
                except (Conflict, NotFound):
                    continue  # it changed or went away meanwhile
        except Unavailable:
            raise
        except ClusterError as error:
            log.warning("the event %s cannot be written: %s", occurrence.reason, error)
        return None

    async def _count(self, event: Manifest, occurrence: Occurrence) -> str | None:
        if not occurrence.series:
            return None
        metadata = event["metadata"]
        there = await self._client.get(EVENT, metadata["name"], metadata["namespace"])
        annotations = there["metadata"].get("annotations")
        if (annotations or {}).get(labels.OCCURRENCE_ANNOTATION) == occurrence.key:
            return None
        marked: Manifest = {"path": _ANNOTATION_POINTER, "value": occurrence.key}
        if not annotations:  # somebody has removed them, and a patch adds to what is there only
            marked = {"path": "/metadata/annotations", "value": {labels.OCCURRENCE_ANNOTATION: occurrence.key}}
        operations: list[Manifest] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": there["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/count", "value": (there.get("count") or 1) + 1},
            {"op": "add", "path": "/lastTimestamp", "value": event["lastTimestamp"]},
            {"op": "add", "path": "/message", "value": event["message"]},
            {"op": "add", "path": "/type", "value": event["type"]},
            {"op": "add", **marked},
        ]
        await self._client.patch(EVENT, metadata["name"], metadata["namespace"], operations, manager=COMPONENT)
        return "patch"


def build_event(resource: Manifest, occurrence: Occurrence, *, now: datetime) -> Manifest:
    """An event about an object, a VLLMDeployment if it does not say what it is.

    Equal series, or without one equal keys, give equal names.
    """
    metadata = resource["metadata"]
    identity = (metadata["uid"], occurrence.reason, occurrence.series or occurrence.key)
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][: MAX_NAME - 17]}.{digest}",
            "namespace": metadata["namespace"],
            "annotations": {labels.OCCURRENCE_ANNOTATION: occurrence.key},
        },
        "involvedObject": {
            "apiVersion": resource.get("apiVersion", labels.API_VERSION),
            "kind": resource.get("kind", labels.KIND),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": shorten(occurrence.message),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def shorten(message: str, limit: int = MAX_MESSAGE) -> str:
    """Cut a message to so many bytes of UTF-8, with an ellipsis where it was cut."""
    data = message.encode("utf-8", "replace")
    if len(data) <= limit:
        return message
    return data[: limit - 3].decode("utf-8", "ignore") + "…"
