"""What happens to the operators: one that always runs, and a second one now and then. At most one of them may write."""

import asyncio
import signal
import uuid
from collections.abc import Iterable
from random import Random

import aiohttp

from chaos.acts import Acts, Background
from chaos.journal import Journal
from support.audit import Request
from support.operator_process import OperatorProcess

KILLED, TERMINATED, UNPREPARED, LEASE_LOST = -signal.SIGKILL, 0, -signal.SIGTERM, 1
"""Exit statuses of an operator. `UNPREPARED`: the signal came before it could listen to it."""
FREEZES = (0.5, 2.0, 8.0)
TAKEOVER_SECONDS = 25.0
"""A second operator takes the Lease over from one that stands still for so long, also if it was only started then."""
LEADS_WITHIN, ANSWER_SECONDS = 90.0, 3.0


class Operators:
    """Two operators of the same objects.

    Args:
        first: Runs from the beginning to the end.
        second: Not started yet.
        journal: Records what happens.
    """

    def __init__(self, first: OperatorProcess, second: OperatorProcess, journal: Journal) -> None:
        self._first, self._second = first, second
        self._journal = journal
        self._background = Background()
        self._running = [first]
        self._begin_at = {first: 0, second: 0}
        self.starts = 1
        """How often an operator was started."""
        self.acts: Acts = {
            self._kill: 4,
            self._stop: 2,
            self._freeze: 3,
            self._freeze_leader: 2,
            self._begin_second: 3,
            self._end_second: 1,
        }

    @property
    def logs(self) -> tuple[str, str]:
        return self._first.log, self._second.log

    async def check(self) -> None:
        """Starts operators again that have ended. By itself one ends only where the other has taken the Lease over."""
        for operator in self._running:
            if operator.process.returncode is not None:
                await operator.ended()  # its log is complete then
                if self._has_lost_lease(operator):
                    self._journal.note(f"the {self._name(operator)} operator ended: the other one holds the Lease")
                else:
                    self._violate(operator, "ended by itself")
                await self._start(operator)

    async def end(self) -> None:
        """Waits until what is under way is over, ends the second operator, and waits until the first one leads."""
        await self._background.finish()
        if self._second in self._running:
            await self._stop_second()
        await self.check()
        async with asyncio.timeout(LEADS_WITHIN):
            while not await _leads(self._first):
                await asyncio.sleep(0.2)
                await self.check()

    async def kill_first(self, *, new_pod: bool = False) -> None:
        """Kills the first operator and starts it again, as the kubelet or, with another name, as a Deployment does."""
        await self._kill_one(self._first, new_pod=new_pod)

    def _name(self, operator: OperatorProcess) -> str:
        return "first" if operator is self._first else "second"

    def _violate(self, operator: OperatorProcess, what: str) -> None:
        status = operator.process.returncode
        self._journal.violate(f"the {self._name(operator)} operator {what} with {status}: {operator.log[-2000:]}")

    def _expect(self, operator: OperatorProcess, *statuses: int) -> None:
        if operator.process.returncode not in statuses and not self._has_lost_lease(operator):
            self._violate(operator, "ended on a signal")

    def _has_lost_lease(self, operator: OperatorProcess) -> bool:
        log = operator.log[self._begin_at[operator] :]
        return operator.process.returncode == LEASE_LOST and "to be started again as a standby" in log

    async def _start(self, operator: OperatorProcess, *, new_pod: bool = False) -> None:
        if new_pod:
            operator.set(VLLM_OPERATOR_IDENTITY=f"operator_{uuid.uuid4()}")
        self._begin_at[operator] = len(operator.log)
        await operator.start()
        self.starts += 1

    async def _kill_one(self, operator: OperatorProcess, *, new_pod: bool) -> None:
        await self.check()
        await operator.kill()
        self._expect(operator, KILLED)
        await self._start(operator, new_pod=new_pod)

    async def _kill(self, random: Random) -> str:
        operator, new_pod = random.choice(self._running), random.choice((False, False, True))
        await self._kill_one(operator, new_pod=new_pod)
        return f"kill the {self._name(operator)} operator and start {'another Pod of it' if new_pod else 'it again'}"

    async def _stop(self, random: Random) -> str:
        operator, pause = random.choice(self._running), random.choice((0.0, 1.0, 4.0))
        await self.check()
        await operator.stop()
        self._expect(operator, TERMINATED, UNPREPARED)
        await asyncio.sleep(pause)
        await self._start(operator)
        return f"stop the {self._name(operator)} operator and start it again after {pause:g} s"

    async def _freeze(self, random: Random) -> str:
        operator, seconds = random.choice(self._running), random.choice(FREEZES)
        self._background.begin(self._freeze_for(operator, seconds))
        return f"freeze the {self._name(operator)} operator for {seconds:g} s"

    async def _freeze_leader(self, random: Random) -> str:
        if self._second not in self._running:
            await self._begin_second(random)
        leaders = [operator for operator in self._running if await _leads(operator)]
        leader = leaders[0] if leaders else self._first
        self._background.begin(self._freeze_for(leader, TAKEOVER_SECONDS))
        return f"freeze the {self._name(leader)} operator, beside the other one, for {TAKEOVER_SECONDS:g} s"

    async def _freeze_for(self, operator: OperatorProcess, seconds: float) -> None:
        process = operator.process
        if process.returncode is None:
            process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            self._journal.note(f"the {self._name(operator)} operator goes on")

    async def _begin_second(self, random: Random) -> str:
        if self._second in self._running:
            return "the second operator runs already"
        await self._start(self._second, new_pod=True)
        self._running.append(self._second)
        return "start a second operator"

    async def _end_second(self, random: Random) -> str:
        by_force = random.choice((True, False))
        if self._second not in self._running:
            return "no second operator to end"
        if not by_force:
            await self._stop_second()
            return "stop the second operator"
        await self.check()
        self._running.remove(self._second)
        await self._second.kill()
        self._expect(self._second, KILLED)
        return "kill the second operator"

    async def _stop_second(self) -> None:
        await self.check()
        self._running.remove(self._second)
        await self._second.stop()
        self._expect(self._second, TERMINATED, UNPREPARED)


async def _leads(operator: OperatorProcess) -> bool:
    """Whether an operator says so: one that is frozen, starting or ending does not."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            status, words = await operator.fetch("/readyz")
    except (TimeoutError, aiohttp.ClientError):
        return False
    return status == 200 and not words.startswith("standing by")


def writes_beside_the_holder(writes: Iterable[Request]) -> list[str]:
    """Says which writes came from an operator that did not hold the Lease.

    Args:
        writes: What the operators have written, each with an account of its own. The last to write the Lease holds it.
    """
    holder, found = "", []
    for write in sorted(writes, key=lambda write: write.received):
        if write.resource == "leases":
            holder = write.user if write.status < 300 else holder
        elif write.resource != "selfsubjectaccessreviews" and write.user != holder != "":
            what = f"{write.verb} {write.resource} {write.name}"
            found.append(f"{write.user} did {what} at {write.received}, when {holder} held the Lease")
    return found
