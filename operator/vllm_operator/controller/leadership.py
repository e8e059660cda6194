"""Leader election with a Lease: at most one operator writes at a time.

The rules are client-go's (tools/leaderelection). The leader renews the Lease every 2 s. It may write for 10 s after its last renewal,
counted from before the renewal was sent. A standby reads the Lease every 2 s, and acquires it when it has not changed for 15 s by its own
clock; the times in the Lease are informational. So the leader stops before another process starts to lead, even if the API server answers
neither. Each write depends on the resourceVersion that was read, so nobody held the Lease in between. A process that has lost the Lease
exits.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import NAME_LABEL, OPERATOR_NAME
from vllm_operator.controller.preconditions import Readiness
from vllm_operator.kube.api_client import Fence
from vllm_operator.kube.client import LEASE, ClusterClient, ClusterError, Conflict, Forbidden, Manifest, NotFound, Unauthorized, Unavailable

log = logging.getLogger(__name__)

MANAGER = "vllm-operator-lease"
LEASE_SECONDS = 15.0
"""Time without a change after which another operator may acquire a Lease (client-go: LeaseDuration)."""
RENEW_SECONDS = 10.0
"""How long the holder may write after it began its last renewal (client-go: RenewDeadline)."""
RETRY_SECONDS = 2.0
"""Time between two renewals, or two attempts to acquire the Lease (client-go: RetryPeriod)."""
ATTEMPT_SECONDS = 5.0
"""Timeout of an attempt to acquire, renew or release the Lease. Two attempts fit into the time before the leader must stop."""


class LeadershipLost(Exception):  # noqa: N818 - an event, not an error
    """Another process holds the Lease, or somebody deleted it. This process must exit, because its state may be outdated."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a Lease. Two terms of one holder differ in `acquired`."""

    holder: str
    acquired: str
    renewed: str
    seconds: float
    transitions: int


def read_lease(manifest: Mapping[str, Any]) -> Record:
    """Read a Lease. Accepts any content of its fields."""
    spec = reading.mapping(manifest, "spec")
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        seconds=float(_number(spec.get("leaseDurationSeconds")) or LEASE_SECONDS),
        transitions=_number(spec.get("leaseTransitions")),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def lease_spec(holder: str, now: datetime, *, acquired: str = "", seconds: float = LEASE_SECONDS, transitions: int = 0) -> Manifest:
    """Return the spec of a Lease that is renewed now, and acquired now unless `acquired` says when."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    times = {"leaseDurationSeconds": int(seconds), "acquireTime": acquired or renewed, "renewTime": renewed}
    return {"holderIdentity": holder, **times, "leaseTransitions": transitions}


@dataclass(slots=True)
class Leadership:
    """Acquires, renews and releases the Lease `namespace/name`. `fence` stops the client's writes; `host` is for messages."""

    client: ClusterClient
    fence: Fence
    readiness: Readiness
    lease: str
    identity: str
    host: str = ""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this process becomes the leader, which it does at most once."""
    since: float = 0.0
    """When it became the leader, in Unix time."""
    _leader: str = ""
    """The holder that this process stood by for."""
    _observed: Record | None = None
    _observed_at: float = 0.0
    """When the content was observed first, by the clock of this process."""
    _term: Record | None = None
    _renewed_at: float = 0.0

    async def run(self) -> None:
        """Wait for the Lease, then hold it, until cancelled. Raises LeadershipLost."""
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await (self._acquire() if self._term is None else self._renew(self._term))
            except LeadershipLost:
                self.fence.close()
                self._term = None
                raise
            except Conflict:
                pass  # another writer was faster: read it again
            except TimeoutError:
                self._report(Unavailable("The API server did not answer in time"))
            except ClusterError as error:
                self._report(error)
            if self._term is not None and not self.begun.is_set():
                self.readiness.standby = ""
                self.since = datetime.now(UTC).timestamp()
                log.info("leading: this operator (%s) holds the Lease %s%s", self.identity, self.lease, self._predecessor())
                self.begun.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def release(self) -> None:
        """Release the Lease, so that a standby acquires it at its next attempt. This process writes nothing afterwards."""
        self.fence.close()
        term, self._term = self._term, None
        if term is None or self.fence.clock() - self._renewed_at >= RENEW_SECONDS:
            return  # it is not held, or another operator may hold it by now
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):  # without a holder, and for a second, as client-go writes it
                await self._write(await self._read_own(term), "", seconds=1, transitions=term.transitions)
        except (ClusterError, LeadershipLost, TimeoutError) as error:
            log.warning("cannot release the Lease, so the next operator waits until it expires: %s", str(error) or "no answer in time")

    async def _acquire(self) -> None:
        started = self.fence.clock()
        try:
            manifest = await self.client.get(LEASE, **self._named)
        except NotFound:
            # If the Lease was just deleted, its holder may not know it yet.
            if self._observed is None or started >= self._observed_at + LEASE_SECONDS:
                metadata = {**self._named, "labels": {NAME_LABEL: OPERATOR_NAME}}
                manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata}
                self._hold(await self.client.create({**manifest, "spec": lease_spec(self.identity, datetime.now(UTC))}), started)
            return
        self.readiness.clear_missing("lease")
        record, now = read_lease(manifest), self.fence.clock()
        if self._observed != record:
            self._observed, self._observed_at = record, now
        # it has no holder, is held by an earlier process of this identity, or has expired
        if record.holder in ("", self.identity) or now >= self._observed_at + record.seconds:
            transitions = record.transitions + (record.holder != self.identity)
            self._hold(await self._write(manifest, self.identity, transitions=transitions), started)
            return
        words = f"standing by: {record.holder} holds the Lease {self.lease}"
        if self.readiness.standby != words:
            log.info("%s", words)
        self.readiness.standby, self._leader = words, record.holder

    def _predecessor(self) -> str:
        if not self._leader or self._observed is None:
            return ""
        end = f"did not renew it for {self._observed.seconds:.0f} s" if self._observed.holder else "released it"
        return f" after {self._leader}, which {end}"

    async def _renew(self, term: Record) -> None:
        """Renew the Lease. If renewals fail for too long, the fence closes by itself. Raises LeadershipLost."""
        started, manifest = self.fence.clock(), await self._read_own(term)
        self._hold(await self._write(manifest, term.holder, acquired=term.acquired, transitions=term.transitions), started)

    @property
    def _named(self) -> dict[str, str]:
        namespace, _, name = self.lease.rpartition("/")
        return {"namespace": namespace, "name": name}

    async def _read_own(self, term: Record) -> Manifest:
        """Read the Lease of this term. Raises LeadershipLost if the term has ended."""
        try:
            manifest = await self.client.get(LEASE, **self._named)
        except NotFound as error:
            raise LeadershipLost(f"the Lease {self.lease} was deleted") from error
        record = read_lease(manifest)
        if (record.holder, record.acquired) != (term.holder, term.acquired):
            taker = f"{record.holder} has taken" if record.holder else "another operator took, and then released,"
            raise LeadershipLost(f"{taker} the Lease {self.lease}")
        return manifest

    async def _write(self, read: Manifest, holder: str, **fields: Any) -> Manifest:
        """Write the spec. Raises Conflict if the Lease has changed since it was read."""
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": read["metadata"]["resourceVersion"]}
        operations = [same, {"op": "add", "path": "/spec", "value": lease_spec(holder, datetime.now(UTC), **fields)}]
        return await self.client.patch(LEASE, **self._named, operations=operations, manager=MANAGER)

    def _hold(self, manifest: Manifest, started: float) -> None:
        self._term = read_lease(manifest)
        self._renewed_at = started
        self.fence.writes_until = started + RENEW_SECONDS
        self.readiness.clear_missing("lease")

    def _report(self, error: ClusterError) -> None:
        if self.fence.is_open():
            return
        self.readiness.standby = ""
        lease = f"Lease {self.lease}"
        words = f"The {lease} cannot be held now, so the operator writes nothing: {error}"
        if isinstance(error, Forbidden):
            words = f"The operator may not {error.verb} the {lease}, so it writes nothing. Allow it in a Role there, as the chart does."
        elif isinstance(error, Unavailable) and not isinstance(error, Unauthorized):
            words = f"The API server {self.host} cannot be reached, so the operator writes nothing: {error}"
        self.readiness.set_missing("lease", words)
