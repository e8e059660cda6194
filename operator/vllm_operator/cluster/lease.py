"""Leader election: the content of the Lease, when it may be taken over, and until when its holder may write.

The rules are those of client-go (tools/leaderelection). A candidate waits until the Lease has not changed for its duration, by
its own clock; the times in the Lease are informational. The resourceVersion decides between concurrent writers.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vllm_operator.cluster.client import LEASE, Kind, Manifest, NotLeading

LEASE_SECONDS = 15.0
"""How long a Lease must not have changed before another operator may take it (client-go: LeaseDuration)."""
RENEW_SECONDS = 10.0
"""How long the holder may write after it began its last renewal (client-go: RenewDeadline)."""
RETRY_SECONDS = 2.0
"""Time between two renewals, or two attempts to acquire it (client-go: RetryPeriod)."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a Lease. Two terms of the same holder differ in `acquired`."""

    holder: str
    acquired: str
    renewed: str
    seconds: float
    transitions: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record, and when it was first seen with this content."""

    record: Record
    seen_at: float

    @property
    def expires_at(self) -> float:
        """When it may be taken over, by the clock of `seen_at`."""
        return self.seen_at if not self.record.holder else self.seen_at + self.record.seconds


def read_lease(manifest: Mapping[str, Any]) -> Record:
    """Read a Lease. Its fields may have any content."""
    spec = manifest.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        seconds=float(_number(spec.get("leaseDurationSeconds")) or LEASE_SECONDS),
        transitions=_number(spec.get("leaseTransitions")),
    )


def sight(before: Sighting | None, record: Record, now: float) -> Sighting:
    """Update the sighting: a record that has not changed keeps its time."""
    return before if before is not None and before.record == record else Sighting(record, now)


def may_take(sighting: Sighting, identity: str, now: float) -> bool:
    """Whether the Lease has no holder, has expired, or is held by an earlier process of this identity."""
    return sighting.record.holder == identity or now >= sighting.expires_at


def new_lease(namespace: str, name: str, spec: Manifest) -> Manifest:
    """The manifest of a Lease."""
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def held(identity: str, before: Record | None, now: datetime) -> Manifest:
    """The spec of a Lease that this identity acquires now."""
    moment = time_of(now)
    transitions = 0 if before is None else before.transitions + (before.holder != identity)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(LEASE_SECONDS),
        "acquireTime": moment,
        "renewTime": moment,
        "leaseTransitions": transitions,
    }


def released(before: Record, now: datetime) -> Manifest:
    """The spec of a Lease without a holder, as client-go writes it: the next operator need not wait."""
    moment = time_of(now)
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": moment, "renewTime": moment}
    return {**spec, "leaseTransitions": before.transitions}


def replacement(version: str, spec: Manifest) -> list[Manifest]:
    """A JSON patch that sets the spec if the Lease still has this resourceVersion."""
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, {"op": "add", "path": "/spec", "value": spec}]


def time_of(moment: datetime) -> str:
    """A time in the format of the API server (MicroTime)."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def boot_time() -> float:
    """Seconds since the machine started, on Linux including the time for which it was suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Fence:
    """Until when this process may write, checked immediately before a request is sent.

    A process that stood still (SIGSTOP, a starved node, a suspended machine) must not send what it had prepared, because another
    operator may have taken over. So its clock counts that time.

    Attributes:
        writes_until: When all other writes end.
        lease_until: When writes of the Lease itself end.
    """

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self.clock = clock
        self.writes_until = -math.inf
        self.lease_until = -math.inf

    def close(self) -> None:
        """Allow no more writes."""
        self.writes_until = self.lease_until = -math.inf

    def is_open(self) -> bool:
        """Whether the operator may write now."""
        return self.clock() < self.writes_until

    def seconds_left(self, kind: Kind | None) -> float:
        """The seconds for which an object of this kind may still be written.

        Raises:
            NotLeading: It may not be written.
        """
        left = (self.lease_until if kind == LEASE else self.writes_until) - self.clock()
        if left <= 0:
            raise NotLeading("This operator does not hold its Lease now, so it writes nothing.")
        return left


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
