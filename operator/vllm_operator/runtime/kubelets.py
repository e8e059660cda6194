"""Which kubelets the API server could not reach, so that few requests for logs are sent to them.

Whether a kubelet can be reached does not depend on the Pod. So after one request for a log has failed, requests for other logs on that
node are not sent, but fail at once. Only now and then is one sent, to find out. As soon as the kubelet answers, all are sent.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from vllm_operator.cluster.client import Unreachable
from vllm_operator.cluster.recent import Recent

MAX_NODES = 5000
START_SECONDS = 1.0
"""How long after the last request one is sent for a container that has just started, which shows that its kubelet works."""


class Wakeable(Protocol):
    """An `asyncio.Event`."""

    def set(self) -> None:
        """Wake up the task that waits."""


@dataclass(slots=True)
class _Failure:
    error: str
    tried_at: float
    tries: int = 0
    next_at: float = 0.0
    waiting: set[Wakeable] = field(default_factory=set)


class Kubelets:
    """The kubelets that could not be reached, by node."""

    def __init__(self, waits: tuple[float, ...], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`waits` are the seconds between requests to a node; the last one repeats."""
        self._waits = waits
        self._clock = clock
        self._failures: Recent[_Failure] = Recent(MAX_NODES)

    def check(self, node: str) -> None:
        """Check that a request may be sent to a node now. Raises Unreachable with the error of the last one."""
        failure, now = self._failures.get(node), self._clock()
        if failure is None:
            return
        if now < failure.next_at:
            raise Unreachable(failure.error)
        self._note_try(failure, now)

    def has_failed(self, node: str) -> bool:
        """Whether the kubelet of a node could not be reached, and has not answered since."""
        return self._failures.get(node) is not None

    def note_error(self, node: str, error: Unreachable) -> None:
        """Note that the kubelet of a node could not be reached."""
        if node and self._failures.get(node) is None:
            failure = _Failure(str(error), self._clock())
            self._note_try(failure, failure.tried_at)
            self._failures.put(node, failure)

    def note_answer(self, node: str) -> None:
        """Note that the kubelet of a node answered."""
        if (failure := self._failures.get(node)) is not None:
            self._failures.drop(node)
            for event in failure.waiting:
                event.set()

    def note_start(self, node: str) -> None:
        """Note that a container has started on a node."""
        if (failure := self._failures.get(node)) is not None:
            failure.next_at = min(failure.next_at, failure.tried_at + START_SECONDS)

    def seconds_left(self, node: str) -> float:
        """Seconds until a request may be sent to a node."""
        failure = self._failures.get(node)
        return 0.0 if failure is None else max(0.0, failure.next_at - self._clock())

    @contextmanager
    def waiting(self, node: str, event: Wakeable) -> Iterator[None]:
        """Set the event as soon as the kubelet of a node answers."""
        failure = self._failures.get(node)
        if failure is not None:
            failure.waiting.add(event)
        try:
            yield
        finally:
            if failure is not None:
                failure.waiting.discard(event)

    def _note_try(self, failure: _Failure, now: float) -> None:
        failure.tried_at = now
        failure.next_at = now + self._waits[min(failure.tries, len(self._waits) - 1)]
        failure.tries += 1
