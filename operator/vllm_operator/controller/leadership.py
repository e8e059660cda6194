"""Leader election with a Lease: at most one operator writes at a time.

The leader renews the Lease every 2 s. It may write for 10 s after its last renewal, counted from before the renewal was sent. A standby
reads the Lease every 2 s, and acquires it when it has not changed for 15 s. So the leader stops before another process starts to lead, even
if the API server answers neither. Each renewal reads the Lease first, and the resourceVersion proves that nobody held it in between. A
process that has lost the Lease exits.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from vllm_operator.controller.health import Readiness
from vllm_operator.kube.client import (
    LEASE,
    ClusterClient,
    ClusterError,
    Conflict,
    Forbidden,
    Manifest,
    NotFound,
    Unauthorized,
    Unavailable,
)
from vllm_operator.kube.lease import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Fence,
    ObservedLease,
    Record,
    acquire_spec,
    new_lease,
    observe,
    read_lease,
    release_spec,
    renew_spec,
)

log = logging.getLogger(__name__)

MANAGER = "vllm-operator-lease"
ATTEMPT_SECONDS = 5.0
"""Timeout of an attempt to acquire, renew or release the Lease. Two attempts fit into the time before the leader must stop."""
MISSING = "lease"


class LeadershipLost(Exception):  # noqa: N818 - an event, not an error
    """Another process holds the Lease, or somebody deleted it. This process must exit, because its state may be outdated."""


class Leadership:
    """Acquires, renews and releases the Lease."""

    def __init__(
        self,
        client: ClusterClient,
        fence: Fence,
        readiness: Readiness,
        *,
        lease: str,
        identity: str,
        host: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Initialize without the Lease.

        Args:
            client: The client for the API server.
            fence: The fence that stops the client's writes.
            readiness: Reports why this process does not lead.
            lease: `namespace/name`.
            identity: The name of this process in the Lease.
            host: The address of the API server, for messages.
            now: The clock.
        """
        self._client = client
        self._fence = fence
        self._readiness = readiness
        self._lease = lease
        self._namespace, _, self._name = lease.rpartition("/")
        self._identity = identity
        self._host = host
        self._now = now
        self._observed: ObservedLease | None = None
        self._term: Record | None = None
        self._renewed_at = 0.0
        self.begun = asyncio.Event()
        """Set when this process becomes the leader, which it does at most once."""

    async def run(self) -> None:
        """Wait for the Lease, then hold it, until cancelled.

        Raises:
            LeadershipLost: Another process leads.
        """
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await (self._acquire() if self._term is None else self._renew())
            except LeadershipLost:
                self._fence.close()
                self._term = None
                raise
            except Conflict:
                pass  # another writer was faster: read it again
            except TimeoutError:
                self._report(Unavailable("The API server did not answer in time"))
            except ClusterError as error:
                self._report(error)
            if self._term is not None and not self.begun.is_set():
                self._readiness.standby = ""
                log.info("leading: this operator (%s) holds the Lease %s", self._identity, self._lease)
                self.begun.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def release(self) -> None:
        """Release the Lease, so that a standby acquires it at its next attempt. This process writes nothing afterwards."""
        self._fence.close()
        term, self._term = self._term, None
        if term is None or self._fence.clock() - self._renewed_at >= RENEW_SECONDS:
            return  # it is not held, or another operator may hold it by now
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await self._write(await self._read_own(term), release_spec(term, self._now()))
        except (ClusterError, LeadershipLost, TimeoutError) as error:
            log.warning("cannot release the Lease, so the next operator waits until it expires: %s", error or "no answer in time")

    async def _acquire(self) -> None:
        started = self._fence.clock()
        try:
            manifest = await self._client.get(LEASE, self._name, self._namespace)
        except NotFound:
            # If the Lease was just deleted, its holder may not know it yet.
            if self._observed is None or started >= self._observed.observed_at + LEASE_SECONDS:
                lease = new_lease(self._namespace, self._name, acquire_spec(self._identity, None, self._now()))
                self._hold(await self._client.create(lease), started)
            return
        self._readiness.clear_missing(MISSING)
        record = read_lease(manifest)
        self._observed = observe(self._observed, record, self._fence.clock())
        if self._observed.may_acquire(self._identity, self._fence.clock()):
            self._hold(await self._write(manifest, acquire_spec(self._identity, record, self._now())), started)
        else:
            self._report_standby(record.holder)

    async def _renew(self) -> None:
        """Renew the Lease. If renewals fail for too long, the fence closes by itself. Raises LeadershipLost."""
        assert self._term is not None
        started = self._fence.clock()
        self._hold(await self._write(await self._read_own(self._term), renew_spec(self._term, self._now())), started)

    async def _read_own(self, term: Record) -> Manifest:
        """Read the Lease of this term. Raises LeadershipLost if the term has ended."""
        try:
            manifest = await self._client.get(LEASE, self._name, self._namespace)
        except NotFound as error:
            raise LeadershipLost(f"the Lease {self._lease} was deleted") from error
        record = read_lease(manifest)
        if (record.holder, record.acquired) != (term.holder, term.acquired):
            taker = f"{record.holder} has taken" if record.holder else "another operator took, and then released,"
            raise LeadershipLost(f"{taker} the Lease {self._lease}")
        return manifest

    async def _write(self, read: Manifest, spec: Manifest) -> Manifest:
        """Write the spec. Raises Conflict if the Lease has changed since it was read."""
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": read["metadata"]["resourceVersion"]}
        operations = [same, {"op": "add", "path": "/spec", "value": spec}]
        return await self._client.patch(LEASE, self._name, self._namespace, operations, manager=MANAGER)

    def _hold(self, manifest: Manifest, started: float) -> None:
        self._term = read_lease(manifest)
        self._renewed_at = started
        self._fence.writes_until = started + RENEW_SECONDS
        self._readiness.clear_missing(MISSING)

    def _report_standby(self, holder: str) -> None:
        words = f"standing by: {holder} holds the Lease {self._lease}"
        if self._readiness.standby != words:
            log.info("%s", words)
        self._readiness.standby = words

    def _report(self, error: ClusterError) -> None:
        if self._fence.is_open():
            return
        self._readiness.standby = ""
        lease = f"Lease {self._lease}"
        if isinstance(error, Forbidden):
            words = f"The operator may not {error.verb} the {lease}, so it writes nothing. Allow it in a Role there, as the chart does."
        elif isinstance(error, NotFound):
            words = f"The {lease} cannot be created, so the operator writes nothing: {error}"
        elif isinstance(error, Unavailable) and not isinstance(error, Unauthorized):
            words = f"The API server {self._host} cannot be reached, so the {lease} is not held and the operator writes nothing: {error}"
        else:
            words = f"The {lease} cannot be held now, so the operator writes nothing: {error}"
        self._readiness.set_missing(MISSING, words)
