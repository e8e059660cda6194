"""Diagnosing a Pod while its kubelet is slow, or has no log any more."""

import pytest

from support.fake_cluster import FakeCluster, LogStep
from support.logs import RUNNING, TERMINATED, line, pod
from vllm_operator.cli import diagnose_pod as command
from vllm_operator.kube.client import Invalid
from vllm_operator.status.knowledge import load_knowledge

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
