"""What is done about crashes of replicas on several nodes: as for one Pod, whichever rank has the root cause."""

from dataclasses import replace
from typing import Any

import pytest

from support.fleet import Fleet
from support.gpus import real_node
from support.operators import Bench
from vllm_operator.kube.client import LEADER_WORKER_SET
from vllm_operator.logs.state import Crash, Membership, Stage, StartupState

TWO_NODES: dict[str, Any] = {
    "parallelism": {"tensor": 8, "nodes": 2},
    "engine": {"version": "0.33.0"},
    "cache": {"volume": {"accessMode": "ReadWriteMany"}},
}
NO_MODEL = Crash("HfRepoNotFound", "The model does not exist.", "Correct spec.model.uri.", None, "not found")
TOO_LONG = Crash(
    "MaxModelLenExceedsKvCache",
    "The KV cache is too small.",
    "Lower --max-model-len.",
    None,
    "larger than the available KV cache memory",
    captures=(("requested", "131072"), ("needed", "16.00"), ("available", "0.68"), ("estimated", "5568")),
)
WAITS = StartupState(stage=Stage.DISTRIBUTED_INIT, membership=Membership(node=0, nodes=2, is_waiting=True))


@pytest.fixture
def bench() -> Bench:
    return Bench(real_node("h100-sxm", "node-1"), real_node("h100-sxm", "node-2"))


async def fail(fleet: Fleet, crash: Crash | None, *, code: int = 1) -> None:
    """A group starts, its follower ends, and both Pods go, as when LeaderWorkerSet creates the group again."""
    leader, follower = fleet.start_group()
    fleet.bench.pass_time(20)
    now = fleet.bench.now
    fleet.bench.logs.told[(fleet.uid(leader), 0)] = replace(WAITS, last_line_at=now)
    failed = StartupState(stage=Stage.WEIGHT_LOAD, crash=crash, last_line_at=now, membership=Membership(1, 2), is_final=True)
    fleet.bench.logs.told[(fleet.uid(follower), 0)] = failed
    ended = {"exitCode": code, "reason": "Completed", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(follower, {"type": "Ready", "status": "False"}, state={"terminated": ended})
    await fleet.settle()
    fleet.bench.pass_time(20)
    await fleet.settle()
    for pod in (follower, leader):
        fleet.gone(pod)
    fleet.bench.pass_time(20)
    await fleet.settle()


def arguments(bench: Bench) -> list[list[str]]:
    [workload] = bench.cluster.all(LEADER_WORKER_SET)
    templates = (workload["spec"]["leaderWorkerTemplate"][role] for role in ("leaderTemplate", "workerTemplate"))
    return [template["spec"]["containers"][0]["args"] for template in templates]


async def test_a_group_whose_follower_can_never_start_is_stopped_after_five_recreations_if_the_spec_says_so(
    fleet: Fleet, bench: Bench
) -> None:
    await fleet.serve(remediation={"onUnrecoverableCrash": "ScaleToZero"}, **TWO_NODES)
    for number in range(1, 6):
        assert bench.cluster.all(LEADER_WORKER_SET)[0]["spec"]["replicas"] == 1
        await fail(fleet, NO_MODEL)
        assert (bench.status().last_crash.restarts or 0) == number - 1  # type: ignore[union-attr]  # else the test fails, too
    assert bench.status().remediation.state == "Stopped"  # type: ignore[union-attr]
    assert bench.cluster.all(LEADER_WORKER_SET)[0]["spec"]["replicas"] == 0


async def test_a_follower_that_ends_with_exit_code_0_is_a_crash_and_may_pass(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(remediation={"onUnrecoverableCrash": "ScaleToZero"}, **TWO_NODES)
    for _ in range(6):
        await fail(fleet, None, code=0)
    assert "Rank 1 has ended with exit code 0 and no error in its log, which counts as a crash" in bench.message("Crashed")
    assert "crashed 6 times" in bench.message("Crashed")
    assert bench.cluster.all(LEADER_WORKER_SET)[0]["spec"]["replicas"] == 1  # a node or a network may come back


async def test_a_remedy_for_the_crash_of_a_follower_changes_all_ranks_and_is_given_up_if_it_does_not_help(
    fleet: Fleet, bench: Bench
) -> None:
    await fleet.serve(remediation={"mode": "Auto"}, **TWO_NODES)
    assert not any("5568" in words for words in arguments(bench))
    await fail(fleet, TOO_LONG)
    remediation = bench.status().remediation
    assert remediation is not None
    assert remediation.state == "Applied"
    for words in arguments(bench):
        assert words[words.index("--max-model-len") + 1] == "5568"
    await fail(fleet, TOO_LONG)
    remediation = bench.status().remediation
    assert remediation is not None
    assert remediation.state == "GaveUp"
