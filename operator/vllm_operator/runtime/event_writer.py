"""Writes the events of VLLMDeployments.

An event is written before the status of the same report: an operator that is killed between the two makes the same report again, and
finds the events that it wrote. Under load, Normal events wait until no object waits for its status any more. They are kept in memory
meanwhile, so an operator that is killed then loses them; the status says the same. Warnings never wait.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.cluster.client import ClusterClient, Manifest, Unavailable
from vllm_operator.cluster.events import EventRecorder, Occurrence
from vllm_operator.status.events import NORMAL, EventDraft

log = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Events that may wait. With more, events are written at once."""
MAX_WAIT_SECONDS = 10.0
"""Maximum time that events wait. After it, they are written one after the other beside the other work."""
RETRY_SECONDS = 1.0
"""Pause before an event is tried again while the API server is unavailable."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    resource: Manifest
    event: EventDraft
    since: datetime


class EventWriter:
    """Writes events now, or when other objects no longer wait."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        count: Callable[[str, str], None],
        busy: Callable[[], bool] = lambda: False,
        calm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Without `calm`, no event waits.

        Args:
            client: The client for the API server.
            count: Called with the verb and the kind of each write.
            busy: Whether other objects wait.
            calm: Waits until none does.
        """
        self._recorder = EventRecorder(client)
        self._count = count
        self._busy = busy
        self._calm = calm
        self._waiting: deque[_Waiting] = deque()
        self._added = asyncio.Event()

    async def write(self, resource: Manifest, events: Iterable[EventDraft], now: datetime) -> None:
        """Write the events of a report that do not exist yet, or let them wait.

        Raises:
            Unavailable: Make the same report again.
        """
        for event in events:
            may_wait = event.type == NORMAL and self._calm is not None and len(self._waiting) < MAX_WAITING
            if may_wait and self._busy():
                self._waiting.append(_Waiting(_reference(resource), event, now))
                self._added.set()
            else:
                await self._record(resource, event, now)

    async def run(self) -> None:
        """Write the events that wait, until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            await self._until_calm()
            while self._waiting:
                await self._write_first()

    async def _until_calm(self) -> None:
        if self._calm is None:
            return
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._calm()
        except TimeoutError:
            log.debug("objects still wait; writing %d events beside the other work", len(self._waiting))

    async def _write_first(self) -> None:
        waiting = self._waiting[0]
        try:
            await self._record(waiting.resource, waiting.event, waiting.since)
        except Unavailable as error:
            log.debug("an event cannot be written now: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
            return
        self._waiting.popleft()

    async def _record(self, resource: Manifest, event: EventDraft, now: datetime) -> None:
        occurrence = Occurrence(event.type, event.reason, event.message, event.key, event.series)
        verb = await self._recorder.record(resource, occurrence, now=now)
        if verb:
            self._count(verb, "Event")
            metadata = resource["metadata"]
            log.info("%s: %s", event.reason, event.message, extra={"key": f"{metadata['namespace']}/{metadata['name']}"})


def _reference(resource: Manifest) -> Manifest:
    """What an event needs of the object that it is about."""
    metadata = {field: resource["metadata"].get(field) for field in ("name", "namespace", "uid", "resourceVersion")}
    return {**{field: resource[field] for field in ("apiVersion", "kind") if field in resource}, "metadata": metadata}
