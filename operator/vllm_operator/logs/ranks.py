"""One diagnosis for all nodes of an engine, whose logs each tell only a part.

If one node fails, the others log a lost connection, wait in silence, or even answer health checks. So the root cause is the first specific
error on any node. If no node has one, it is the node that has ended, does not answer, or has never come, and what the others log follows
from that. "Rank" is the rank of a node: `--node-rank`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from vllm_operator.catalog.startup import Signature, StartupKnowledge
from vllm_operator.logs.crash import MISSING, TERMINATED, describe
from vllm_operator.logs.state import Crash, Membership, Stage, StartupState

LOST, NO_KV_CACHE = "RankLost", "NoKvCacheMemory"
DEFAULT_TIMEOUT_SECONDS = 600
"""Time for which PyTorch waits for the other nodes, without `--distributed-timeout-seconds`."""
_NATIVE, _DIED, _QUOTED = "NativeCodeCrash", "died unexpectedly", "Worker failed with err"
_MAX_NODES = 256  # a log may name any number
_STAGES = {stage: number for number, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What is known about one node of an engine. `name` is that of its Pod, or of the file with its log."""

    number: int
    name: str = ""
    state: StartupState | None = None  # from its log
    crash: Crash | None = None  # why its engine has failed, or would fail if it ended now
    is_blocked: bool = False  # its engine does not run yet
    exit_code: int | None = None  # if its engine has ended
    ended_at: datetime | None = None

    @property
    def place(self) -> Membership:
        """Its place in the engine, as logged."""
        return (self.state.membership if self.state is not None else None) or Membership()

    @property
    def stage(self) -> Stage:
        """The stage of its start."""
        if self.is_blocked or not (self.name or self.state):
            return Stage.IMAGE_PULL
        return self.state.stage if self.state is not None else Stage.PROCESS_START

    @property
    def progress(self) -> tuple[bool, int, float]:
        """The sort key: least progress first."""
        counted = self.state.progress if self.state is not None else None
        return (not self.is_blocked, _STAGES[self.stage], counted.completed / counted.total if counted and counted.total else 0.0)


class GroupState(StrEnum):
    """What an engine on several nodes does. Waiting: its start cannot proceed without a node that is missing."""

    CRASHED = "Crashed"
    WAITING = "Waiting"
    STARTING = "Starting"
    SERVING = "Serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDiagnosis:
    """The state of an engine on several nodes."""

    state: GroupState
    rank: int | None  # the node with the root cause, else the one with the least progress; None if unknown
    crash: Crash | None = None  # the root cause, also of waiting
    consequences: tuple[tuple[int, Crash], ...] = ()  # what other nodes report because of it, by rank
    gives_up_at: datetime | None = None  # when the first node that waits for the others fails


def diagnose_ranks(ranks: Sequence[Rank], knowledge: StartupKnowledge, timeout: int = DEFAULT_TIMEOUT_SECONDS) -> GroupDiagnosis:
    """Return the root cause, or the node that others wait for: `timeout` seconds unless a log says it. At least one rank is known."""
    by_id = {signature.id: signature for signature in knowledge.signatures}
    size = max((*(rank.place.nodes or 0 for rank in ranks), *(rank.number + 1 for rank in ranks), 2))
    known = {rank.number: rank for rank in ranks}
    absent = (Rank(number=number) for number in range(min(size, _MAX_NODES)) if number not in known)
    everyone = sorted((*known.values(), *absent), key=lambda rank: rank.number)
    following = {kind.id for kind in knowledge.kinds if kind.follows_others}
    failed = [(rank, rank.crash) for rank in everyone if rank.crash is not None]
    causes = [(rank, crash) for rank, crash in failed if not _follows(crash, by_id, following)]
    # A process that has died without an error explains what the other nodes report.
    causes = causes or [(rank, crash) for rank, crash in failed if crash.signature == _NATIVE or _DIED in crash.line]
    starved = min((it for it in everyone if _kv_cache(it) <= 0), key=_kv_cache, default=None)
    if starved is not None and all(crash.signature == NO_KV_CACHE for _, crash in causes):
        crash = causes[0][1] if causes else describe(by_id[NO_KV_CACHE], "", ())
        return _crashed(starved, crash, failed)
    # The leader quotes what a worker on another node has reported: its own would have logged the error there.
    causes = [it for it in causes if _QUOTED not in it[1].line] or causes
    causes.sort(key=lambda each: each[0].exit_code is None)  # of equal ones, the rank that has ended: the other one may go on
    if causes:
        rank, crash = causes[0] if len({it.signature + it.cause for _, it in causes}) == 1 else min(causes, key=lambda each: _order(*each))
        has_memory = crash.signature == NO_KV_CACHE and rank.place.nodes and 0 < _kv_cache(rank) < float("inf")
        is_elsewhere = rank.number == 0 and (has_memory or _QUOTED in crash.line)
        return _crashed(_only([it for it in everyone if it is not rank]) if is_elsewhere else rank, crash, failed)
    return _lost(everyone, failed, by_id) or _going(everyone, by_id, timeout)


def _lost(everyone: Sequence[Rank], failed: Sequence[tuple[Rank, Crash]], by_id: dict[str, Signature]) -> GroupDiagnosis | None:
    """Return the node that the others have lost or that never came, if there is one: its log has no error."""
    ended = sorted(
        (it for it in everyone if (it.exit_code is not None or it.place.is_orphaned) and it.crash is None),
        key=lambda it: (it.ended_at is None, it.ended_at or 0, it.number),
    )
    leader = everyone[0]
    stopped = [it for it in everyone if it.place.is_stopping and not it.place.is_unanswered]
    if all(it.place.is_stopping for it in everyone if it.state is not None):
        stopped = []  # the whole engine
    if not (failed or ended or stopped or leader.place.is_unanswered):
        return None
    reporters = {rank.number for rank, _ in failed} | ({0} if leader.place.is_unanswered else set())
    silent = [it for it in everyone if it.number not in reporters and not it.place.is_waiting]
    is_leader = any("server" in dict(crash.captures) for _, crash in failed)  # only the leader has a TCPStore server
    rank = next(iter((*ended, *stopped)), None) or (leader if is_leader else _only(silent))
    has_joined = any(_STAGES[it.stage] > _STAGES[Stage.DISTRIBUTED_INIT] for it in everyone if it.state is not None)
    if failed and rank is None:
        reporter, crash = min(failed, key=lambda each: _order(*each))
        return _crashed(None if silent else reporter, crash, failed)
    return _crashed(rank, describe(by_id[LOST if has_joined or ended else MISSING], "", _about(rank)), failed)


def _going(everyone: Sequence[Rank], by_id: dict[str, Signature], timeout: int) -> GroupDiagnosis:
    """Return the state of an engine on nodes of which none has failed."""
    if any(it.stage is Stage.READY for it in everyone):
        return GroupDiagnosis(state=GroupState.SERVING, rank=None)
    waiting = [it for it in everyone if it.place.is_waiting and not it.is_blocked]
    since = min((it.state.stage_since for it in waiting if it.state is not None and it.state.stage_since is not None), default=None)
    limit = next((it.place.timeout_seconds for it in everyone if it.place.timeout_seconds), timeout)  # followers do not log theirs
    until = since + timedelta(seconds=limit) if since is not None else None
    absent = [it for it in everyone if not (it.state or it.name or it.is_blocked)]  # no Pod, or no log
    reported = (it.state.obstacle for it in waiting if it.state is not None)
    obstacle = next((crash for crash in reported if crash is not None and not _follows(crash, by_id, set())), None)
    slowest = min((it for it in everyone if it not in absent), key=lambda it: it.progress)
    if waiting and (absent or obstacle or len(waiting) == len(everyone)):
        rank = _only(absent) if obstacle is None else None
        crash = obstacle or describe(by_id[MISSING], "", _about(rank))
        return GroupDiagnosis(state=GroupState.WAITING, rank=rank.number if rank else None, crash=crash, gives_up_at=until)
    return GroupDiagnosis(state=GroupState.STARTING, rank=slowest.number, gives_up_at=until)


def _crashed(rank: Rank | None, crash: Crash, failed: Sequence[tuple[Rank, Crash]]) -> GroupDiagnosis:
    others = tuple((it.number, lost) for it, lost in failed if rank is None or it.number != rank.number)
    return GroupDiagnosis(state=GroupState.CRASHED, rank=rank.number if rank is not None else None, crash=crash, consequences=others)


def _follows(crash: Crash, by_id: dict[str, Signature], following: set[str]) -> bool:
    """Return whether an error reports that another process has failed."""
    if (signature := by_id.get(crash.signature)) is None:
        return crash.family in following and not crash.line.startswith("AssertionError")
    return signature.is_echo or signature.follows_others or signature.id == TERMINATED


def _order(rank: Rank, crash: Crash) -> tuple[bool, float, bool, int]:
    """Sort the earliest error first. Of errors in the same second, the one of the leader follows from another one."""
    time = crash.time or rank.ended_at
    return (time is None, round(time.timestamp()) if time is not None else 0, rank.number == 0, rank.number)


def _kv_cache(rank: Rank) -> float:
    measured = rank.state.memory.kv_cache_gib if rank.state is not None else None
    return measured if measured is not None else float("inf")


def _only(ranks: Sequence[Rank]) -> Rank | None:
    return ranks[0] if len(ranks) == 1 else None


def _about(rank: Rank | None) -> tuple[tuple[str, str], ...]:
    if rank is None:
        return ()
    ended = (("code", str(rank.exit_code)),) if rank.exit_code is not None else ()
    stopped = (("stopped", "yes"),) if rank.place.is_stopping else ()
    return (("lost", str(rank.number)), *ended, *stopped)
