"""What is told if a rank of the real vLLM fails in a replica on two nodes: which one, and why, whatever the other rank reports.

Two processes on CPUs run with the arguments that leader and followers get (`support/vllm_groups.py`). A case takes one to three minutes.
"""

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.vllm_groups import ADDRESS, LEADER, NAMES, SERVED, Group
from support.vllm_on_cpus import MODEL, NEEDED
from vllm_operator.api.conditions import CRASHED, HUNG, READY

pytestmark = NEEDED
SHORT = 90
"""Deadline of a start whose ranks never meet: they wait two thirds of it."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def start(**more: Any) -> Group:
        made.append(Group(tmp_path, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("absent", [pytest.param(1, id="follower"), pytest.param(0, id="leader")])
def test_a_rank_that_never_comes_is_named_while_the_other_one_waits_and_when_it_gives_up(make: Callable[..., Group], absent: int) -> None:
    group, present = make(deadline=SHORT), 1 - absent
    group.start(present)
    group.until(lambda: "they give up" in group.said(READY))
    said = group.said(READY)
    assert "Rank 1 has not connected" in said if absent else f"Pod {LEADER} is on node node-a. The kubelet is creating" in said
    until = group.gives_up_at(present)
    assert f"At {until + timedelta(seconds=30):%H:%M} UTC they give up" in said  # to the minute
    group.until_ended(present)
    # its worker begins to wait later than its stage, and a follower tries once more, after a random pause of at most the same time
    assert -2 <= (group.ranks[present].ended_at - until).total_seconds() <= 2 * SHORT
    assert_told(group, present, "RankMissing", f"{'The leader, rank 0,' if absent == 0 else 'Rank 1'} has not connected")


def test_a_name_of_the_leader_that_does_not_resolve_is_told_while_both_wait(make: Callable[..., Group]) -> None:
    group = make(deadline=SHORT, resolves=False)
    for rank in (0, 1):
        group.start(rank)
    group.until(lambda: "does not resolve" in group.said(READY))
    group.until_ended(0, 1)
    group.settle()
    [(reason, _)] = group.crashes_told
    assert reason == "LeaderNameNotFound"
    assert f"The name of the leader, {ADDRESS}, does not resolve" in group.said(CRASHED)


@dataclass(kw_only=True)
class Fault:
    """What a rank has that the other one has not, and what must be told of it."""

    rank: int = 1
    model: str = MODEL  # the folder of its model
    sizes: dict[str, int] = field(default_factory=dict)  # changes of the configuration of its model
    flags: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    takes_port: bool = False  # another process has the port where the ranks meet
    deadline: int = 600
    ends: int | None = None  # the rank whose Pod is named, if it is another one
    signature: str
    words: str


FAULTS = {
    "the model of the follower is not there": Fault(
        model="/models/missing",
        signature="HfRepoNotFound",
        words="/models/missing is neither a directory with a config.json",
        deadline=SHORT,
    ),
    "the weights of the follower have other sizes": Fault(
        sizes={"intermediate_size": 512}, signature="WeightNameOrShapeMismatch", words="but the file has only 256"
    ),
    "the follower has another size of the engine": Fault(
        flags={"--tensor-parallel-size": "3"},
        signature="ParallelLayoutInvalid",
        words="(the nodes differ in --tensor-parallel-size: 2 and 3): vLLM rejected the parallel layout",
        deadline=SHORT,
    ),
    "the follower has not the memory for its KV cache": Fault(
        variables={"VLLM_CPU_KVCACHE_SPACE": "100000"},
        signature="NoKvCacheMemory",
        words="The KV cache is to take 100000.0 GiB of RAM, but only",
    ),
    "the KV cache of the follower has no room, which only the leader reports": Fault(
        flags={"--kv-cache-memory-bytes": "1"}, ends=0, signature="NoKvCacheMemory", words="No memory is left for the KV cache"
    ),
    "another process has the port of the leader": Fault(
        rank=0, takes_port=True, signature="PortInUse", words="on which rank 0 waits for the other ranks", deadline=SHORT
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_error_of_one_rank_is_told_once_with_its_rank_whether_the_other_one_ends_or_waits(
    make: Callable[..., Group], fault: Fault, tmp_path: Path
) -> None:
    group, model = make(deadline=fault.deadline), fault.model
    if fault.sizes:
        model = str(shutil.copytree(MODEL, tmp_path / "model"))
        config = Path(model) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | fault.sizes))
    with socket.create_server(("127.0.0.1", int(group.ports["29501"]))) if fault.takes_port else nullcontext():
        group.start(1 - fault.rank)
        group.start(fault.rank, model=model, flags=fault.flags, variables=fault.variables)
        group.until(lambda: group.crashes_told)
        assert_told(group, fault.rank, fault.signature, fault.words, pod=fault.ends)
        group.wait_for_the_other()
    assert_told(group, fault.rank, fault.signature, fault.words, pod=fault.ends)


def assert_told(group: Group, rank: int, signature: str, words: str, *, pod: int | None = None) -> None:
    """The crash has this cause, nothing else was told before, and one event says it. `pod`: the rank of the Pod, if it is another one."""
    group.settle()
    assert group.crashes_told == [(signature, NAMES[rank if pod is None else pod])]
    assert f"Rank {rank} (of 0 to 1) on node node-{'ab'[rank]}" in group.said(CRASHED)
    assert words in group.said(CRASHED)
    assert [event.reason for told in group.told for event in told.events if event.type == "Warning"] == [signature]


def compute(group: Group) -> None:
    """Send a request, and wait until it runs. It takes minutes."""
    group.leader.send(4000, model=SERVED)
    group.until(lambda: re.search(r"num_requests_running{[^}]*} 1\.0", group.leader.answers("/metrics") or ""), within=60)


@pytest.mark.parametrize(
    ("rank", "process", "code", "signature", "words"),
    [
        pytest.param(1, "server", 137, "RankLost", "Rank 1 was killed (exit code 137)", id="the follower"),
        pytest.param(0, "server", 137, "RankLost", "The leader, rank 0, was killed (exit code 137)", id="the leader"),
        pytest.param(1, "::Worker", 0, "EndedWithoutError", "its engine core or a worker was killed", id="a worker of the follower"),
    ],
)
def test_a_rank_that_is_killed_while_it_computes_is_the_root_cause(
    make: Callable[..., Group], rank: int, process: str, code: int, signature: str, words: str
) -> None:
    group = make()
    group.serve()
    compute(group)
    server = group.ranks[rank]
    os.kill(server.pid if process == "server" else server.pid_of(process), signal.SIGKILL)
    group.until_ended(rank, within=60)
    assert server.exit_code == code
    assert_told(group, rank, signature, words)
    if rank == 1:
        group.until_ended(0, within=60)
        assert group.leader.exit_code == 0
    assert_told(group, rank, signature, words)


def test_a_follower_that_is_killed_while_no_request_runs_is_told_although_the_leader_answers(make: Callable[..., Group]) -> None:
    group = make()
    group.serve()
    os.kill(group.ranks[1].pid, signal.SIGKILL)
    group.until_ended(1, within=60)
    assert_told(group, 1, "RankLost", "Rank 1 was killed (exit code 137)")
    assert group.leader.answers("/health") is not None


def test_a_worker_of_the_follower_that_stands_still_is_a_hang_that_the_probe_of_the_leader_finds(make: Callable[..., Group]) -> None:
    group = make()
    group.serve()
    compute(group)
    assert group.leader.probe() == (0, "")
    os.kill(group.ranks[1].pid_of("VLLM::Worker"), signal.SIGSTOP)
    failed = group.leader.probe_until(130, action="Report")
    assert failed is not None
    assert "1 request is running, no token since" in failed[1]
    group.fail_probe(failed[1])
    assert "1 request is running, no token since" in group.said(HUNG)
    assert group.crashes_told == []
