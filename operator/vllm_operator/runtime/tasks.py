"""Tasks that live as long as the operator: the end of one of them is the end of the operator, never silence.

Whatever can go on without a part is started again by that part's owner: the supervisor restarts watches and mirror, the
followers restart the reading of a log. All else ends here, and the kubelet starts the operator again.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """A set of tasks that must all go on."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._first: asyncio.Future[asyncio.Task[Any]] = asyncio.get_running_loop().create_future()

    def start(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a task."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._note)

    async def first_end(self) -> asyncio.Task[Any]:
        """Wait until a task has ended, for whatever reason, and return it."""
        return await asyncio.shield(self._first)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note(self, task: asyncio.Task[Any]) -> None:
        if not self._first.done():
            self._first.set_result(task)


def describe_end(task: asyncio.Task[Any]) -> str:
    """How a task has ended, in words."""
    if task.cancelled():
        return "was cancelled"
    error = task.exception()
    return f"has failed: {str(error) or type(error).__name__}" if error is not None else "has ended"
