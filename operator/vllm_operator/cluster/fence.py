"""Until when this process may write. Checked immediately before the bytes of a request go out.

A process that is stopped and goes on later (SIGSTOP, a starved node, a suspended machine) must not send what it had prepared:
another operator may have taken over meanwhile. So the time counts that passes while the process, or the machine, stands still.
"""

import math
import time
from collections.abc import Callable

from vllm_operator.cluster.client import LEASE, Kind, NotLeading


def boot_time() -> float:
    """Seconds since the machine started, the time included for which it was suspended (Linux; elsewhere without)."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Fence:
    """Open until a moment, for all writes of the operator; and until another, for the writes of the Lease itself."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self.clock = clock
        self.writes_until = -math.inf
        self.lease_until = -math.inf

    def close(self) -> None:
        """Let no write pass from now on."""
        self.writes_until = self.lease_until = -math.inf

    def is_open(self) -> bool:
        """Whether the operator may write now."""
        return self.clock() < self.writes_until

    def seconds_left(self, kind: Kind | None) -> float:
        """For how long an object of this kind may still be written.

        Raises:
            NotLeading: It may not.
        """
        left = (self.lease_until if kind == LEASE else self.writes_until) - self.clock()
        if left <= 0:
            raise NotLeading("This operator does not hold its Lease now, so it writes nothing.")
        return left
