"""Events on a VLLMDeployment: one for each thing that happened, however often it is reported.

The name of an event is derived from the object and from the key of what happened, so an operator that was
killed between two writes, and reports the same once more, meets the event that is there already.
"""

import hashlib
import logging
from datetime import datetime

from vllm_operator.api import labels
from vllm_operator.cluster.client import ClusterClient, ClusterError, Conflict, Manifest, Unavailable

log = logging.getLogger(__name__)

COMPONENT = "vllm-operator"
MAX_MESSAGE = 1023
"""Bytes; the API server refuses an event whose message is 1024 bytes or longer."""
MAX_NAME = 253


class EventRecorder:
    """Writes events. That an event cannot be written is logged and stops nothing."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def record(self, resource: Manifest, *, type: str, reason: str, message: str, key: str, now: datetime) -> bool:
        """Write an event unless it is there already; True if it was written.

        Raises:
            Unavailable: Try again: nothing is lost, the name stays the same.
        """
        try:
            await self._client.create(build_event(resource, type=type, reason=reason, message=message, key=key, now=now))
        except Conflict:
            return False
        except Unavailable:
            raise
        except ClusterError as error:
            log.warning("the event %s cannot be written: %s", reason, error)
            return False
        return True


def build_event(resource: Manifest, *, type: str, reason: str, message: str, key: str, now: datetime) -> Manifest:
    """An event about an object, a VLLMDeployment if it does not say what it is. Equal `key`s give equal names."""
    metadata = resource["metadata"]
    digest = hashlib.sha256("\0".join((metadata["uid"], reason, key)).encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][: MAX_NAME - 17]}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": resource.get("apiVersion", labels.API_VERSION),
            "kind": resource.get("kind", labels.KIND),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": type,
        "reason": reason,
        "message": shorten(message),
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
