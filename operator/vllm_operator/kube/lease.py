"""Leader election: the content of the Lease, when a candidate may acquire it, and how long its holder may write.

The rules are client-go's (tools/leaderelection). A candidate waits until the Lease has not changed for its duration, by its own clock; the
times in the Lease are informational. The resourceVersion decides between concurrent writers.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vllm_operator.kube.client import LEASE, Manifest, NotLeading

LEASE_SECONDS = 15.0
"""Time without a change after which another operator may acquire a Lease (client-go: LeaseDuration)."""
RENEW_SECONDS = 10.0
"""How long the holder may write after it began its last renewal (client-go: RenewDeadline)."""
RETRY_SECONDS = 2.0
"""Time between two renewals, or two attempts to acquire the Lease (client-go: RetryPeriod)."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a Lease. Two terms of one holder differ in `acquired`."""

    holder: str
    acquired: str
    renewed: str
    seconds: float
    transitions: int


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The content of a Lease, and the time of its first observation by the clock of the observer."""

    record: Record
    observed_at: float

    def may_acquire(self, identity: str, now: float) -> bool:
        """Return whether the Lease has no holder, has expired, or is held by an earlier process of this identity."""
        return self.record.holder in ("", identity) or now >= self.observed_at + self.record.seconds


def read_lease(manifest: Mapping[str, Any]) -> Record:
    """Read a Lease. Accepts any content of its fields."""
    spec = manifest.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        seconds=float(_number(spec.get("leaseDurationSeconds")) or LEASE_SECONDS),
        transitions=_number(spec.get("leaseTransitions")),
    )


def observe(before: ObservedLease | None, record: Record, now: float) -> ObservedLease:
    """Return the new observation. An unchanged record keeps its time."""
    return before if before is not None and before.record == record else ObservedLease(record, now)


def new_lease(namespace: str, name: str, spec: Manifest) -> Manifest:
    """Return the manifest of a Lease."""
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def acquire_spec(identity: str, before: Record | None, now: datetime) -> Manifest:
    """Return the spec of a Lease that this identity acquires now."""
    transitions = 0 if before is None else before.transitions + (before.holder != identity)
    return _spec(identity, LEASE_SECONDS, _micro_time(now), now, transitions)


def renew_spec(term: Record, now: datetime) -> Manifest:
    """Return the spec of a Lease that its holder renews now."""
    return _spec(term.holder, term.seconds, term.acquired, now, term.transitions)


def release_spec(term: Record, now: datetime) -> Manifest:
    """Return the spec of a Lease without a holder, as client-go writes it. The next operator can acquire it immediately."""
    return _spec("", 1, _micro_time(now), now, term.transitions)


def _spec(holder: str, seconds: float, acquired: str, now: datetime, transitions: int) -> Manifest:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": int(seconds),
        "acquireTime": acquired,
        "renewTime": _micro_time(now),
        "leaseTransitions": transitions,
    }


def boot_time() -> float:
    """Return the seconds since the machine started. On Linux this includes suspended time."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Fence:
    """Limits how long this process may write. Its clock includes the time for which the process or the machine was suspended."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self.clock = clock
        self.writes_until = -math.inf

    def close(self) -> None:
        """Forbid all further writes."""
        self.writes_until = -math.inf

    def is_open(self) -> bool:
        """Return whether the operator may write now."""
        return self.clock() < self.writes_until

    def seconds_left(self) -> float:
        """Return the seconds for which the operator may still write.

        Raises:
            NotLeading: It may not write.
        """
        left = self.writes_until - self.clock()
        if left <= 0:
            raise NotLeading("This operator does not hold its Lease now, so it writes nothing.")
        return left


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
