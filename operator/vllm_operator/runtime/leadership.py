"""Holding the Lease: at most one operator writes at a time, and another takes over within 15 s.

The holder renews every two seconds and may write for ten seconds after its last renewal, counted from before it was sent; whoever
stands by takes over when it has seen no change for fifteen. So the holder has stopped before another begins, also where
the API server answers neither of them. A holder that could not renew in time begins no write until it has read that the Lease is still
its own and renewed it: the resourceVersion proves that nobody held it meanwhile. If somebody did, its process ends.
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
from vllm_operator.cluster.fence import Fence
from vllm_operator.cluster.lease import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
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
"""A write of the Lease that takes longer has failed: there is time for another before the holder must stop."""
WATCH_SECONDS = 300.0
PAUSE_SECONDS = 0.2
"""Between two watches, so that one that ends at once costs little."""
MISSING = "lease"


class LeadershipLost(Exception):  # noqa: N818 - named for what has happened
    """Another operator holds the Lease, or somebody has deleted it. This process must end: it may be behind."""


class Leadership:
    """The Lease, as one process wants it and holds it."""

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
        """`lease` is `namespace/name`; `fence` is that of the client; `host` is the address of the API server, for messages."""
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
        """Set when this process leads for the first time. It never leads a second time."""

    async def run(self) -> None:
        """Stand by, then lead, until cancelled.

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
        """Give the Lease back: the next takes over at once. Nothing is written afterwards."""
        self._fence.close()
        if self._term is None or self._fence.clock() - self._renewed_at >= RENEW_SECONDS:
            return  # it is not held, or may be another's by now
        self._begin_attempt()
        try:
            await self._replace_own(released(self._term, self._now()))
        except (ClusterError, LeadershipLost) as error:
            log.warning("the Lease cannot be released, so the next operator waits until it expires: %s", error)
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
                await asyncio.sleep(PAUSE_SECONDS)  # somebody was faster: look again
            except ClusterError as error:
                self._lack(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _stand_by(self) -> None:
        """Watch the Lease until it is held, or the watch ends."""
        async with self._client.watch(LEASE, self._name, self._namespace, seconds=WATCH_SECONDS) as happenings:
            while not await self._try():
                assert self._sighting is not None
                try:
                    async with asyncio.timeout(max(0.0, self._sighting.expires_at - self._fence.clock())):
                        await anext(happenings)
                except StopAsyncIteration:
                    return
                except TimeoutError:  # it has expired, unless the watch has missed something
                    await self._try()
                    return

    async def _try(self) -> bool:
        """Take the Lease if it is free; whether it is held now.

        Raises:
            Conflict: Somebody else was faster.
        """
        if self._term is not None:
            return True
        try:
            manifest = await self._client.get(LEASE, self._name, self._namespace)
        except NotFound:
            # one that was deleted a moment ago may have a holder who does not know it yet
            if self._sighting is not None and self._fence.clock() < self._sighting.seen_at + LEASE_SECONDS:
                return False
            started = self._begin_attempt()
            lease = new_lease(self._namespace, self._name, held(self._identity, None, self._now()))
            return self._hold(await self._client.create(lease), started)
        self._readiness.clear_missing(MISSING)
        record = read_lease(manifest)
        self._sighting = sight(self._sighting, record, self._fence.clock())
        if not may_take(self._sighting, self._identity, self._fence.clock()):
            self._say_standby(record.holder)
            return False
        self._version = manifest["metadata"]["resourceVersion"]
        started = self._begin_attempt()
        return self._hold(await self._replace(held(self._identity, record, self._now())), started)

    async def _renew(self) -> None:
        """Renew once. What cannot be renewed in time closes the fence by itself.

        Raises:
            LeadershipLost: Another operator leads.
        """
        assert self._term is not None
        try:
            if not self._fence.is_open():  # maybe for a long time: look before anything is written
                await self._look()
            started = self._begin_attempt()
            answer = await self._replace_own(self._renewal())
        except NotFound as error:
            raise LeadershipLost(f"the Lease {self._namespace}/{self._name} was deleted") from error
        except ClusterError as error:
            if not self._fence.is_open():
                self._lack(error)
            return
        self._hold(answer, started)

    async def _look(self) -> None:
        """Read whether the Lease is still that of this process's term. Raises LeadershipLost."""
        manifest = await self._client.get(LEASE, self._name, self._namespace)
        record = read_lease(manifest)
        assert self._term is not None
        if (record.holder, record.acquired) != (self._term.holder, self._term.acquired):
            holder = record.holder or "nobody"
            raise LeadershipLost(f"the Lease {self._namespace}/{self._name} was taken over; its holder is {holder}")
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
            await self._look()  # somebody has touched the Lease, and maybe taken it
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

    def _say_standby(self, holder: str) -> None:
        words = f"standing by: {holder} holds the Lease {self._namespace}/{self._name}"
        if self._readiness.standby != words:
            log.info("%s", words)
        self._readiness.standby = words

    def _lack(self, error: ClusterError) -> None:
        self._readiness.standby = ""
        place = f"the Lease {self._namespace}/{self._name}"
        if isinstance(error, Forbidden):
            words = f"The operator may not {error.verb} {place}, so it writes nothing: allow it in a Role there, as the chart does"
        elif isinstance(error, NotFound):
            words = f"{place[0].upper()}{place[1:]} cannot be created, so nothing is written: {error}"
        elif isinstance(error, Unavailable) and not isinstance(error, Unauthorized | NotLeading):
            words = f"The API server {self._host} cannot be reached, so {place} is not held and nothing is written: {error}"
        else:
            words = f"{place[0].upper()}{place[1:]} cannot be held now, so nothing is written: {error}"
        self._readiness.set_missing(MISSING, words)
