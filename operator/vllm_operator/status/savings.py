"""`status.cache.savedSeconds`: the number of warm starts, and the time saved compared with a measured cold start.

A start is counted once, when its log says that the engine is ready, and only if a cold start with the same key was measured. The time of
the last counted start is stored, so an operator that reads a log again counts nothing twice. A start is not counted if its log is read
after the log of a later one, or of one that ended in the same second.
"""

from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.status import CacheStatus
from vllm_operator.status.observation.observation import ObservedState
from vllm_operator.status.observation.starts import warm_starts


def count_savings(observed: ObservedState, cold_seconds: int | None) -> dict[str, Any]:
    """Return the fields of `status.cache` that count warm starts, including starts that ended since the last reconciliation.

    Args:
        observed: The observed state.
        cold_seconds: Duration of a cold start with the same key; None if none was measured, so that nothing is counted.
    """
    before = observed.observation.previous.cache or CacheStatus()
    until = before.counted_until or ""
    new = [(ended, seconds) for ended, seconds in warm_starts(observed) if (reading.stamp(ended) or "") > until]
    if not new or cold_seconds is None:
        return {name: getattr(before, name) for name in ("warm_starts", "saved_seconds", "counted_until")}
    return {
        "warm_starts": (before.warm_starts or 0) + len(new),
        "saved_seconds": (before.saved_seconds or 0) + sum(max(0, cold_seconds - seconds) for _, seconds in new),
        "counted_until": reading.stamp(new[-1][0]),
    }
