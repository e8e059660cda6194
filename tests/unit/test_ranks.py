"""An engine on several nodes: one root cause, or the node that the others wait for."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.ranks import GroupDiagnosis, GroupState, Rank, diagnose_ranks
from vllm_operator.logs.state import Crash, MeasuredMemory, Membership, Progress, Stage, StartupState

KNOWLEDGE = load_startup()
NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
LEADER, FOLLOWER = Membership(node=0, nodes=2), Membership(node=1, nodes=2)


def state(stage: Stage, place: Membership = LEADER, **more: Any) -> StartupState:
    return replace(StartupState(stage=stage, stage_since=NOW, membership=place), **more)


def crash(signature: str, seconds: int = 0, family: str = "") -> Crash:
    return Crash(signature, "It failed.", "Mend it.", None, "line", time=NOW + timedelta(seconds=seconds), family=family)


WAITS = state(Stage.DISTRIBUTED_INIT, replace(LEADER, is_waiting=True))
ALSO_WAITS = state(Stage.DISTRIBUTED_INIT, replace(FOLLOWER, is_waiting=True))
LOADS, LOADED = state(Stage.WEIGHT_LOAD), state(Stage.CUDA_GRAPH_CAPTURE, FOLLOWER)
READY = state(Stage.READY)
LOST_PEER, OUT_OF_MEMORY = crash("DistributedTimeout", 5), crash("CudaOutOfMemory")
COLLECTIVE = crash("Unknown", 1, family="CollectiveFailed")


def found(*ranks: Rank) -> GroupDiagnosis:
    return diagnose_ranks(ranks, KNOWLEDGE)


@pytest.mark.parametrize(
    ("ranks", "state", "rank", "signature"),
    [
        pytest.param([Rank(number=0, state=WAITS)], GroupState.WAITING, 1, "RankMissing", id="the follower never comes"),
        pytest.param([Rank(number=1, state=ALSO_WAITS)], GroupState.WAITING, 0, "RankMissing", id="the leader never comes"),
        pytest.param(
            [Rank(number=0, state=WAITS), Rank(number=1, state=ALSO_WAITS)],
            GroupState.WAITING,
            None,
            "RankMissing",
            id="both run and do not reach each other",
        ),
        pytest.param(
            [Rank(number=0, state=replace(WAITS, obstacle=crash("LeaderNameNotFound"))), Rank(number=1, state=ALSO_WAITS)],
            GroupState.WAITING,
            None,
            "LeaderNameNotFound",
            id="the name of the leader does not resolve",
        ),
        pytest.param(
            [Rank(number=0, state=WAITS), Rank(number=1, crash=crash("HfRepoNotFound"))],
            GroupState.CRASHED,
            1,
            "HfRepoNotFound",
            id="the follower has failed and the leader waits",
        ),
        pytest.param(
            [Rank(number=0, state=LOADS, crash=LOST_PEER), Rank(number=1, state=LOADED, crash=OUT_OF_MEMORY)],
            GroupState.CRASHED,
            1,
            "CudaOutOfMemory",
            id="the leader has lost a follower that had no memory",
        ),
        pytest.param(
            [Rank(number=0, state=LOADS, crash=COLLECTIVE), Rank(number=1, state=LOADED)],
            GroupState.CRASHED,
            1,
            "RankLost",
            id="the log of the follower simply ends",
        ),
        pytest.param(
            [Rank(number=0, state=READY), Rank(number=1, state=LOADED, exit_code=0)],
            GroupState.CRASHED,
            1,
            "RankLost",
            id="a follower that has ended with exit code 0",
        ),
        pytest.param(
            [Rank(number=0, state=state(Stage.READY, replace(LEADER, is_unanswered=True))), Rank(number=1, state=LOADED)],
            GroupState.CRASHED,
            1,
            "RankLost",
            id="a follower that does not answer",
        ),
        pytest.param(
            [
                Rank(
                    number=0, state=state(Stage.MEMORY_PROFILING, memory=MeasuredMemory(kv_cache_gib=22.2)), crash=crash("NoKvCacheMemory")
                ),
                Rank(number=1, state=state(Stage.MEMORY_PROFILING, FOLLOWER, memory=MeasuredMemory(kv_cache_gib=-1.2))),
            ],
            GroupState.CRASHED,
            1,
            "NoKvCacheMemory",
            id="the leader reports that the follower has no memory for the KV cache",
        ),
        pytest.param(
            [Rank(number=0, state=state(Stage.MEMORY_PROFILING, memory=MeasuredMemory(kv_cache_gib=22.2)), crash=crash("NoKvCacheMemory"))],
            GroupState.CRASHED,
            1,
            "NoKvCacheMemory",
            id="the leader alone reports it, and has memory itself",
        ),
        pytest.param(
            [Rank(number=0, state=READY, crash=crash("SchedulerFailed")), Rank(number=1, state=LOADED, crash=crash("ModelFailed"))],
            GroupState.CRASHED,
            1,
            "ModelFailed",
            id="errors of the same second: the leader only notices",
        ),
        pytest.param(
            [Rank(number=0, state=READY, crash=OUT_OF_MEMORY), Rank(number=1, state=LOADED, crash=crash("ModelFailed", 9))],
            GroupState.CRASHED,
            0,
            "CudaOutOfMemory",
            id="the first of several errors",
        ),
        pytest.param(
            [
                Rank(number=0, state=WAITS, crash=crash("LeaderNameNotFound", 9)),
                Rank(number=1, crash=crash("LeaderNameNotFound"), exit_code=1),
            ],
            GroupState.CRASHED,
            1,
            "LeaderNameNotFound",
            id="both report the same and one of them has ended",
        ),
        pytest.param([Rank(number=0, state=READY), Rank(number=1, state=LOADED)], GroupState.SERVING, None, None, id="it serves"),
        pytest.param(
            [
                Rank(number=0, state=replace(LOADS, progress=Progress(9, 10, "shards"))),
                Rank(number=1, state=state(Stage.WEIGHT_LOAD, FOLLOWER, progress=Progress(1, 10, "shards"))),
            ],
            GroupState.STARTING,
            1,
            None,
            id="the slowest node of a start",
        ),
        pytest.param(
            [Rank(number=0, state=WAITS), Rank(number=1, is_blocked=True)],
            GroupState.STARTING,
            1,
            None,
            id="a node that still pulls its image",
        ),
    ],
)
def test_one_root_cause_or_one_slowest_node(ranks: list[Rank], state: GroupState, rank: int | None, signature: str | None) -> None:
    told = found(*ranks)

    assert (told.state, told.rank) == (state, rank)
    assert (told.crash.signature if told.crash is not None else None) == signature


def test_what_others_lost_is_listed_as_a_consequence() -> None:
    told = found(Rank(number=0, state=LOADS, crash=LOST_PEER), Rank(number=1, state=LOADED, crash=OUT_OF_MEMORY))

    assert told.consequences == ((0, LOST_PEER),)


def test_the_cause_says_how_a_node_was_lost() -> None:
    killed = found(Rank(number=0, state=READY), Rank(number=1, state=LOADED, exit_code=137)).crash
    ended = found(Rank(number=0, state=READY), Rank(number=1, state=LOADED, exit_code=0)).crash

    assert killed is not None
    assert killed.cause.startswith("Rank 1 was killed (exit code 137).")
    assert ended is not None
    assert "exit code 0 and no error in its log, which counts as a crash" in ended.cause


def test_when_the_others_give_up() -> None:
    patient = replace(WAITS, membership=Membership(node=0, nodes=2, timeout_seconds=900, is_waiting=True))

    assert found(Rank(number=0, state=WAITS)).gives_up_at == NOW + timedelta(seconds=600)
    assert found(Rank(number=0, state=patient), Rank(number=1, is_blocked=True)).gives_up_at == NOW + timedelta(seconds=900)
    assert found(Rank(number=0, state=patient), Rank(number=1, state=ALSO_WAITS)).gives_up_at == NOW + timedelta(seconds=900)


def test_the_number_of_nodes_in_a_log_costs_little() -> None:
    many = Membership(node=999, nodes=10**6, is_waiting=True)

    assert found(Rank(number=999, name="a", state=state(Stage.DISTRIBUTED_INIT, many))).state is GroupState.WAITING
