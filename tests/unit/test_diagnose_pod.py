"""Diagnosing a Pod while its kubelet is slow, or has no log any more, and all Pods of an engine on several nodes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.fake_cluster import FakeCluster, LogStep
from support.logs import RUNNING, TERMINATED, line, pod
from vllm_operator.__main__ import main
from vllm_operator.api.labels import GROUP_INDEX_LABEL, LWS_GROUP, WORKER_INDEX_LABEL
from vllm_operator.cli import diagnose_pod as command
from vllm_operator.kube.client import Invalid
from vllm_operator.status.knowledge import load_knowledge

NODES = Path(__file__).parents[1] / "corpus" / "nodes"
APOLOGY = b"unable to retrieve container logs for containerd://4f6b"
MISSING = Invalid('previous terminated container "vllm" in pod "p" not found')
CRASH = [line(1, "EngineCore failed to start."), line(2, "ValueError: No available memory for the cache blocks.")]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(command, "_RETRY_SECONDS", (0.001, 0.001))
    made = FakeCluster()
    restarted = pod(state=RUNNING, restarts=1, last=TERMINATED)
    made.put(restarted | {"spec": {"containers": [{"name": "vllm"}]}})
    return made


@pytest.mark.parametrize("first", [[APOLOGY], [APOLOGY + b"\n"], [MISSING]], ids=["an apology", "one with its newline", "not found"])
async def test_a_log_that_is_not_there_yet_is_asked_for_again(cluster: FakeCluster, first: list[LogStep]) -> None:
    cluster.script_log("default", "p", first, CRASH)
    found = await command.diagnose_pod(cluster, load_knowledge(), "p", "default", previous=True)
    assert found.state.crash is not None
    assert found.state.crash.signature == "NoKvCacheMemory"


async def test_a_log_that_is_gone_is_said_to_be(cluster: FakeCluster) -> None:
    cluster.script_log("default", "p", *[[APOLOGY]] * 3)
    found = await command.diagnose_pod(cluster, load_knowledge(), "p", "default", previous=True)
    assert found.state.crash is None
    assert found.note.endswith("Its log cannot be read: unable to retrieve container logs for containerd://4f6b")
    assert len(cluster.log_requests) == 3


async def test_exit_code_0_of_a_server_that_nobody_stopped_is_a_crash(cluster: FakeCluster) -> None:
    completed = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-08-09T12:00:00Z"}}
    cluster.put(pod(state=RUNNING, restarts=1, last=completed) | {"spec": {"containers": [{"name": "vllm"}]}})
    cluster.script_log(
        "default", "p", [line(1, "INFO:     Application startup complete."), line(2, "INFO:     Finished server process [1]")]
    )
    found = await command.diagnose_pod(cluster, load_knowledge(), "p", "default", previous=True)
    assert found.state.crash is not None
    assert found.state.crash.signature == "EndedWithoutError"


def rank(number: int, *lines: bytes, cluster: FakeCluster, restarts: int = 0, last: dict[str, Any] | None = None) -> None:
    """A Pod of an engine on two nodes, with its log."""
    name = "tiny-0" + (f"-{number}" if number else "")
    made = pod(name, state=RUNNING, restarts=restarts, last=last, ready=number > 0)
    made["metadata"]["labels"] = {f"{LWS_GROUP}/name": "tiny", GROUP_INDEX_LABEL: "0", WORKER_INDEX_LABEL: str(number)}
    cluster.put(made | {"spec": {"nodeName": f"node-{number}", "containers": [{"name": "vllm"}]}})
    cluster.script_log("default", name, list(lines))


def recorded(name: str) -> list[bytes]:
    """A recorded log, as a kubelet has it."""
    return [line(number, text) for number, text in enumerate((NODES / f"{name}.log").read_text().splitlines(), 1)]


def group_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cluster: FakeCluster, *words: str) -> str:
    monkeypatch.setattr(command, "with_client", lambda _arguments, _what, use: asyncio.run(use(cluster)))
    assert main(["diagnose-pod", *words, "-n", "default"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["tiny-0", "tiny-0-1"])
def test_all_pods_of_an_engine_on_several_nodes_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    cluster = FakeCluster()
    rank(0, *recorded("cpu-follower-model-missing-rank0"), cluster=cluster)
    rank(1, *recorded("cpu-follower-model-missing-rank1"), cluster=cluster)
    told = group_page(monkeypatch, capsys, cluster, name)

    assert told.startswith("Crashed: HfRepoNotFound, rank 1 (tiny-0-1)\n")
    assert "  rank 0  tiny-0: Not ready and not crashed: the log ends during engine start, where it waits for the other ranks\n" in told


def test_the_run_before_a_restart_of_another_pod_has_the_root_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster()
    rank(0, *recorded("cpu-follower-model-missing-rank0"), cluster=cluster)
    rank(1, line(1, "INFO: starting"), cluster=cluster, restarts=1, last=TERMINATED)
    cluster.script_log("default", "tiny-0-1", recorded("cpu-follower-model-missing-rank1"), previous=True)

    assert group_page(monkeypatch, capsys, cluster, "tiny-0").startswith("Crashed: HfRepoNotFound, rank 1 (tiny-0-1)\n")


def test_a_pod_of_the_engine_that_does_not_exist_is_what_the_others_wait_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster()
    rank(0, *recorded("h100-follower-missing-rank0"), cluster=cluster)
    told = group_page(monkeypatch, capsys, cluster, "tiny-0")

    assert told.startswith("Waiting for rank 1 (no Pod): RankMissing\n")
    assert "  rank 1  no Pod\n" in told


def test_the_groups_of_other_replicas_are_not_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster()
    rank(0, *recorded("h100-good-rank0"), cluster=cluster)
    rank(1, *recorded("h100-good-rank1"), cluster=cluster)
    other = pod("tiny-1-1", state=RUNNING)
    other["metadata"]["labels"] = {f"{LWS_GROUP}/name": "tiny", GROUP_INDEX_LABEL: "1", WORKER_INDEX_LABEL: "1"}
    cluster.put(other | {"spec": {"containers": [{"name": "vllm"}]}})
    told = json.loads(group_page(monkeypatch, capsys, cluster, "tiny-0", "-o", "json"))

    assert told["group"]["standing"] == "Serving"
    assert [each["log"] for each in told["group"]["ranks"]] == ["tiny-0", "tiny-0-1"]
