"""Recorded starts of engines on two nodes (vLLM 0.26.0 on two H100, 0.32.0 on CPUs): each failure is named from both logs, and from one.

The logs are shortened: repeated warnings, native frames and lines that say nothing about a start are left out.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_operator.__main__ import main

NODES = Path(__file__).parent.parent / "corpus" / "nodes"
Told = tuple[str, int | None, str | None]
"""What the engine does, the rank with the root cause, and the signature or family of the crash."""
SERVES: Told = ("Serving", None, None)
FOLLOWER_STARTS: Told = ("Starting", 1, None)  # its log does not say that it serves
FOLLOWER_MISSING: Told = ("Waiting", 1, "RankMissing")
LEADER_LOST, FOLLOWER_LOST = ("Crashed", 0, "RankLost"), ("Crashed", 1, "RankLost")
NO_NAME: Told = ("Waiting", None, "LeaderNameNotFound")
NO_MODEL: Told = ("Crashed", 1, "HfRepoNotFound")

BOTH: dict[str, Told] = {
    "cpu-data-parallel": SERVES,
    "cpu-follower-assertion": ("Crashed", 1, "PipelineParallelFailed"),
    "cpu-follower-killed": FOLLOWER_LOST,
    "cpu-follower-layout-differs": ("Crashed", 1, "ParallelLayoutInvalid"),
    "cpu-follower-main-killed": FOLLOWER_LOST,
    "cpu-follower-model-missing": NO_MODEL,
    "cpu-follower-killed-busy": FOLLOWER_LOST,
    "cpu-follower-no-kv-cache": ("Crashed", 1, "NoKvCacheMemory"),
    "cpu-follower-no-memory": ("Crashed", 1, "NoKvCacheMemory"),
    "cpu-follower-sizes-differ": ("Crashed", 1, "ModelCodeFailed"),
    "cpu-follower-stopped": FOLLOWER_LOST,
    "cpu-follower-terminated": FOLLOWER_LOST,
    "cpu-follower-worker-killed": ("Crashed", 1, "WorkerProcInitFailed"),
    "cpu-leader-killed-busy": LEADER_LOST,
    "cpu-leader-terminated": LEADER_LOST,
    "cpu-name-not-found": NO_NAME,
    "cpu-port-taken": ("Crashed", 0, "PortInUse"),
    "cpu-worker-killed-loading": ("Crashed", 1, "WorkerProcInitFailed"),
    "h100-follower-killed": FOLLOWER_LOST,
    "h100-follower-model-missing": NO_MODEL,
    "h100-good": SERVES,
    "h100-leader-terminated": LEADER_LOST,
    "h100-wrong-interface": ("Crashed", 0, "NetworkInterfaceMisdetected"),
}
ALONE: dict[str, Told] = {
    "cpu-data-parallel-follower-missing-rank0": FOLLOWER_MISSING,
    "cpu-data-parallel-leader-missing-rank1": ("Waiting", 0, "RankMissing"),
    "cpu-data-parallel-rank0": SERVES,
    "cpu-data-parallel-rank1": FOLLOWER_STARTS,
    "cpu-follower-killed-rank0": FOLLOWER_LOST,
    "cpu-follower-killed-rank1": FOLLOWER_STARTS,
    "cpu-follower-main-killed-rank1": FOLLOWER_LOST,
    "cpu-follower-missing-rank0": ("Crashed", 1, "RankMissing"),
    "cpu-follower-model-missing-rank0": FOLLOWER_MISSING,
    "cpu-follower-no-kv-cache-rank0": ("Crashed", 1, "NoKvCacheMemory"),
    "cpu-follower-no-kv-cache-rank1": ("Crashed", 1, "NoKvCacheMemory"),
    "cpu-follower-no-memory-rank0": ("Crashed", 1, "NoKvCacheMemory"),
    "cpu-follower-no-memory-rank1": ("Crashed", 1, "NoKvCacheMemory"),
    "cpu-follower-sizes-differ-rank0": FOLLOWER_LOST,
    "cpu-follower-stopped-rank0": FOLLOWER_LOST,
    "cpu-follower-worker-killed-rank0": FOLLOWER_LOST,
    "cpu-leader-killed-busy-rank1": LEADER_LOST,
    "cpu-leader-missing-rank1": ("Waiting", 0, "RankMissing"),
    "cpu-name-not-found-rank0": NO_NAME,
    "cpu-name-not-found-rank1": NO_NAME,
    "cpu-worker-killed-loading-rank0": FOLLOWER_MISSING,
    "h100-follower-killed-rank0": FOLLOWER_LOST,
    "h100-follower-missing-rank0": FOLLOWER_MISSING,
    "h100-follower-model-missing-rank0": FOLLOWER_MISSING,
    "h100-good-rank0": SERVES,
    "h100-good-rank1": FOLLOWER_STARTS,
    "h100-leader-terminated-rank1": LEADER_LOST,
}
"""Those of which one log says something about the other rank."""


def read(capsys: pytest.CaptureFixture[str], *names: str) -> tuple[Told, dict[str, Any]]:
    assert main(["diagnose", *(str(NODES / f"{name}.log") for name in names), "-o", "json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    crash = told["group"]["crash"] or {"signature": None, "family": ""}
    return (told["group"]["standing"], told["group"]["rank"], crash["family"] or crash["signature"]), told


@pytest.mark.parametrize("name", sorted(BOTH))
def test_both_logs_name_the_root_cause_and_its_rank(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = read(capsys, f"{name}-rank0", f"{name}-rank1")

    assert found == BOTH[name]
    assert (told["crash"] is not None) == (found[0] == "Crashed")


@pytest.mark.parametrize("name", sorted(BOTH))
def test_the_order_of_the_logs_does_not_matter(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(capsys, f"{name}-rank1", f"{name}-rank0")[0] == BOTH[name]


@pytest.mark.parametrize("name", sorted(ALONE))
def test_one_log_tells_of_the_other_rank(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(capsys, name)[0] == ALONE[name]


def test_the_page_shows_each_rank_and_the_root_cause(capsys: pytest.CaptureFixture[str]) -> None:
    logs = [str(NODES / f"cpu-follower-sizes-differ-rank{rank}.log") for rank in (0, 1)]
    assert main(["diagnose", *logs]) == 0
    page = capsys.readouterr().out

    assert page.startswith(f"Crashed: The code of the model failed, rank 1 ({logs[1]})\n")
    assert f"  rank 0  {logs[0]}: Crashed during weight load: DistributedTimeout\n" in page
    assert "What other ranks report\n  rank 0: DistributedTimeout: " in page
    assert "tensor of size" in page or "size mismatch" in page or "shape" in page
