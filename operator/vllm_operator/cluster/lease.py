"""The Lease of the operator that leads: what is written into it, and when it may be taken over. Pure.

The rules are those of client-go (tools/leaderelection): whoever wants the Lease waits until it has not changed for its duration, by a
clock of its own; the times in it are for people. The resourceVersion decides between two who write at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vllm_operator.cluster.client import LEASE, Manifest

LEASE_SECONDS = 15.0
"""For this long a Lease must not have changed before another may take it (client-go's LeaseDuration)."""
RENEW_SECONDS = 10.0
"""For this long after its last renewal the holder may write (client-go's RenewDeadline)."""
RETRY_SECONDS = 2.0
"""Between two renewals, or two tries (client-go's RetryPeriod)."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says. Two terms of one holder differ in the time at which they began."""

    holder: str
    acquired: str
    renewed: str
    seconds: float
    transitions: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record, and when it was first seen as it is."""

    record: Record
    seen_at: float

    @property
    def expires_at(self) -> float:
        """When it may be taken over, on the clock by which it was seen."""
        return self.seen_at if not self.record.holder else self.seen_at + self.record.seconds


def read_lease(manifest: Mapping[str, Any]) -> Record:
    """What a Lease says, whoever wrote it."""
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
    """See a record: one that has not changed was seen before."""
    return before if before is not None and before.record == record else Sighting(record, now)


def may_take(sighting: Sighting, identity: str, now: float) -> bool:
    """Whether the Lease is free: nobody holds it, its holder has let it expire, or is an earlier process of this Pod."""
    return sighting.record.holder == identity or now >= sighting.expires_at


def new_lease(namespace: str, name: str, spec: Manifest) -> Manifest:
    """The object."""
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def held(identity: str, before: Record | None, now: datetime) -> Manifest:
    """The spec of a Lease whose term begins now."""
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
    """The spec of a Lease that nobody holds; the next need not wait. As client-go writes it."""
    moment = time_of(now)
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": moment, "renewTime": moment}
    return {**spec, "leaseTransitions": before.transitions}


def replacement(version: str, spec: Manifest) -> list[Manifest]:
    """The JSON patch that sets the spec, if nobody has written since this version."""
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, {"op": "add", "path": "/spec", "value": spec}]


def time_of(moment: datetime) -> str:
    """A time as the API server writes it back, with microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
