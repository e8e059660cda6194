"""Leader election with a Lease: at most one operator writes at a time, and another takes over within 15 s.

The leader renews the Lease every 2 s. It may write for 10 s after its last renewal, counted from before the renewal was sent. A standby
takes over when it has seen no change for 15 s. So the leader stops before another begins, also if the API server answers neither. A leader
that could not renew in time reads the Lease before it writes again. If the Lease is still its own, the resourceVersion of the renewal
proves that nobody else held it meanwhile. Otherwise the process exits.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from vllm_operator.cluster.client import (
    LEASE,
    ClusterClient,
    ClusterError,
    Conflict,
    Forbidden,
    Manifest,
    NotFound,
    NotLeading,
    Unauthorized,
    Unavailable,
)
from vllm_operator.cluster.lease import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Fence,
    Record,
    Sighting,
    held,
    may_take,
    new_lease,
    read_lease,
    released,
    replacement,
    sight,
    time_of,
)
from vllm_operator.runtime.health import Readiness

log = logging.getLogger(__name__)

MANAGER = "vllm-operator-lease"
ATTEMPT_SECONDS = 5.0
"""Timeout of a write of the Lease. It leaves time for another attempt before the leader must stop."""
WATCH_SECONDS = 300.0
PAUSE_SECONDS = 0.2
"""Delay between two watches, so that a watch that ends at once costs little."""
MISSING = "lease"


class LeadershipLost(Exception):  # noqa: N818 - named for what has happened
    """Another operator holds the Lease, or somebody deleted it. This process must exit, because its knowledge may be outdated."""


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
        """Prepare to acquire the Lease.

        Args:
            client: The client for the API server.
            fence: The fence of this client.
            readiness: Shows what keeps this process from leading.
            lease: `namespace/name`.
            identity: The name of this process in the Lease.
            host: The address of the API server, for messages.
            now: The clock.
        """
        self._client = client
        self._fence = fence
        self._readiness = readiness
        self._namespace, _, self._name = lease.rpartition("/")
        self._identity = identity
        self._host = host
        self._now = now
        self._sighting: Sighting | None = None
        self._version = ""
        self._term: Record | None = None
        self._renewed_at = 0.0
        self.begun = asyncio.Event()
        """Set when this process becomes the leader, which it does at most once."""

    async def run(self) -> None:
        """Wait for the Lease, then hold it, until cancelled.

        Raises:
            LeadershipLost: Another operator leads.
        """
        await self._acquire()
        self._readiness.standby = ""
        log.info("leading: this operator (%s) holds the Lease %s/%s", self._identity, self._namespace, self._name)
        self.begun.set()
        try:
            while True:
                await asyncio.sleep(RETRY_SECONDS)
                await self._renew()
        except LeadershipLost:
            self._fence.close()
            self._term = None
            raise

    async def release(self) -> None:
        """Release the Lease, so that a standby takes over at once. Nothing is written afterwards."""
        self._fence.close()
        if self._term is None or self._fence.clock() - self._renewed_at >= RENEW_SECONDS:
            return  # it is not held, or another operator may hold it by now
        self._begin_attempt()
        try:
            await self._replace_own(released(self._term, self._now()))
        except (ClusterError, LeadershipLost) as error:
            log.warning("cannot release the Lease, so the next operator waits until it expires: %s", error)
        finally:
            self._term = None
            self._fence.close()

    async def _acquire(self) -> None:
        """Wait until the Lease is held."""
        while True:
            try:
                if await self._try():
                    return
                await self._stand_by()
                if self._term is not None:
                    return
                await asyncio.sleep(PAUSE_SECONDS)
            except Conflict:
                await asyncio.sleep(PAUSE_SECONDS)  # another operator was faster
            except ClusterError as error:
                self._report(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _stand_by(self) -> None:
        """Watch the Lease until this process holds it, or the watch ends."""
        async with self._client.watch(LEASE, self._name, self._namespace, seconds=WATCH_SECONDS) as happenings:
            while not await self._try():
                assert self._sighting is not None
                try:
                    async with asyncio.timeout(max(0.0, self._sighting.expires_at - self._fence.clock())):
                        await anext(happenings)
                except StopAsyncIteration:
                    return
                except TimeoutError:  # it has expired, unless the watch has missed an event
                    await self._try()
                    return

    async def _try(self) -> bool:
        """Take the Lease if it is free. Return whether this process holds it.

        Raises:
            Conflict: Another operator was faster.
        """
        if self._term is not None:
            return True
        try:
            manifest = await self._client.get(LEASE, self._name, self._namespace)
        except NotFound:
            # If it was deleted a moment ago, its holder may not know it yet.
            if self._sighting is not None and self._fence.clock() < self._sighting.seen_at + LEASE_SECONDS:
                return False
            started = self._begin_attempt()
            lease = new_lease(self._namespace, self._name, held(self._identity, None, self._now()))
            return self._hold(await self._client.create(lease), started)
        self._readiness.clear_missing(MISSING)
        record = read_lease(manifest)
        self._sighting = sight(self._sighting, record, self._fence.clock())
        if not may_take(self._sighting, self._identity, self._fence.clock()):
            self._report_standby(record.holder)
            return False
        self._version = manifest["metadata"]["resourceVersion"]
        started = self._begin_attempt()
        return self._hold(await self._replace(held(self._identity, record, self._now())), started)

    async def _renew(self) -> None:
        """Renew the Lease once. If that fails for too long, the fence closes by itself.

        Raises:
            LeadershipLost: Another operator leads.
        """
        assert self._term is not None
        try:
            if not self._fence.is_open():  # maybe for a long time
                await self._check_holder()
            started = self._begin_attempt()
            answer = await self._replace_own(self._renewal())
        except NotFound as error:
            raise LeadershipLost(f"the Lease {self._namespace}/{self._name} was deleted") from error
        except ClusterError as error:
            if not self._fence.is_open():
                self._report(error)
            return
        self._hold(answer, started)

    async def _check_holder(self) -> None:
        """Read the Lease, and check that this process has held it without interruption. Raises LeadershipLost."""
        manifest = await self._client.get(LEASE, self._name, self._namespace)
        record = read_lease(manifest)
        assert self._term is not None
        if (record.holder, record.acquired) != (self._term.holder, self._term.acquired):
            taker = f"{record.holder} has taken" if record.holder else "another operator took, and then released,"
            raise LeadershipLost(f"{taker} the Lease {self._namespace}/{self._name}")
        self._version = manifest["metadata"]["resourceVersion"]

    def _renewal(self) -> Manifest:
        assert self._term is not None
        return {
            "holderIdentity": self._term.holder,
            "leaseDurationSeconds": int(self._term.seconds),
            "acquireTime": self._term.acquired,
            "renewTime": time_of(self._now()),
            "leaseTransitions": self._term.transitions,
        }

    def _begin_attempt(self) -> float:
        started = self._fence.clock()
        self._fence.lease_until = started + ATTEMPT_SECONDS
        return started

    async def _replace_own(self, spec: Manifest) -> Manifest:
        try:
            return await self._replace(spec)
        except Conflict:
            await self._check_holder()  # somebody changed the Lease, and maybe took it
            self._begin_attempt()
            return await self._replace(spec)

    async def _replace(self, spec: Manifest) -> Manifest:
        return await self._client.patch(LEASE, self._name, self._namespace, replacement(self._version, spec), manager=MANAGER)

    def _hold(self, manifest: Manifest, started: float) -> bool:
        self._version = manifest["metadata"]["resourceVersion"]
        self._term = read_lease(manifest)
        self._renewed_at = started
        self._fence.writes_until = started + RENEW_SECONDS
        self._readiness.clear_missing(MISSING)
        return True

    def _report_standby(self, holder: str) -> None:
        words = f"standing by: {holder} holds the Lease {self._namespace}/{self._name}"
        if self._readiness.standby != words:
            log.info("%s", words)
        self._readiness.standby = words

    def _report(self, error: ClusterError) -> None:
        """Report why the Lease is not held."""
        self._readiness.standby = ""
        lease = f"Lease {self._namespace}/{self._name}"
        if isinstance(error, Forbidden):
            words = f"The operator may not {error.verb} the {lease}, so it writes nothing. Allow it in a Role there, as the chart does."
        elif isinstance(error, NotFound):
            words = f"The {lease} cannot be created, so the operator writes nothing: {error}"
        elif isinstance(error, Unavailable) and not isinstance(error, Unauthorized | NotLeading):
            words = f"The API server {self._host} cannot be reached, so the {lease} is not held and the operator writes nothing: {error}"
        else:
            words = f"The {lease} cannot be held now, so the operator writes nothing: {error}"
        self._readiness.set_missing(MISSING, words)
