"""The stand-in engine and the operator together: after each kind of damage a start ends well, unattended."""

import os
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from support.engine import Node, Start
from support.fleet import Fleet
from support.operators import Bench, known_crashes
from support.tools import command
from vllm_operator.kube.client import JOB
from vllm_operator.logs.state import StartupState

PAID_COLD = 400
HANGS = "waiting for baton release"


class Kubelet:
    """Runs the Pods of the operator's Deployment as processes, and shows the operator what it would see of them."""

    def __init__(self, fleet: Fleet, node: Node) -> None:
        self.fleet, self.node = fleet, node
        self.starts: list[Start] = []

    async def start(self, pod: str, *, restarts: int = 0) -> Start:
        """One run of the container of a Pod, from its start until it serves or dies."""
        deployment = self.fleet.deployment()
        assert deployment is not None
        spec = deployment["spec"]["template"]["spec"]
        for first in spec["initContainers"]:
            self.node.run_first(first)
        container = spec["containers"][0]
        environment = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        folder = next(str(mount["subPath"]) for mount in container["volumeMounts"] if mount["mountPath"] == "/cache")
        start = self.node.run(environment, folder, kill_at=HANGS)
        self.starts.append(start)
        self.fleet.bench.logs.told[(self.fleet.uid(pod), restarts)] = read(start, self.fleet)
        if HANGS in start.log:  # the process of the Pod hangs on
            self.fleet.show(pod, {"type": "Ready", "status": "False"}, restarts=restarts)
            self.fleet.bench.pass_time(3600)
        elif start.status == 0:
            self.fleet.show(pod, {"type": "Ready", "status": "True"}, restarts=restarts)
        else:
            ended = {"exitCode": start.status, "reason": "Error", "startedAt": self.fleet.time(), "finishedAt": self.fleet.time()}
            self.fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended}, restarts=restarts)
        self.fleet.bench.pass_time(30)
        await self.fleet.settle()
        return start

    async def until_it_serves(self, *, most: int = 4) -> int:
        """Start Pods, as the Deployment's controller and the kubelet do, until one serves; return how many starts it took."""
        pod, key, restarts = self.fleet.start(), self.fleet.key(), 0
        for number in range(1, most + 1):
            if (await self.start(pod, restarts=restarts)).status == 0:
                return number
            restarts += 1
            if self.fleet.key() != key:  # the template has changed: another Pod takes its place
                self.fleet.gone(pod)
                pod, key, restarts = self.fleet.start(), self.fleet.key(), 0
        raise AssertionError(f"it does not serve after {most} starts:\n{self.starts[-1].log}")


def read(start: Start, fleet: Fleet) -> StartupState:
    parser = known_crashes().make_parser()
    for number, line in enumerate(start.log.splitlines(keepends=True)):
        parser.feed(line.encode(), fleet.bench.now + timedelta(milliseconds=number))
    ended = start.status != 0 and HANGS not in start.log
    state: StartupState = parser.final_state if ended else parser.state
    return state


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(Bench())


@pytest.fixture
async def kubelet(fleet: Fleet, tmp_path: Path) -> Kubelet:
    """A first start has filled the caches."""
    await fleet.serve()
    kubelet = Kubelet(fleet, Node(tmp_path / "volume"))
    assert await kubelet.until_it_serves() == 1
    for pod in list(fleet.pods()):
        fleet.gone(pod)
    return kubelet


def cut(name: str, size: int = 0) -> Callable[[Path], None]:
    def damage(volume: Path) -> None:
        path = next(iter(sorted(volume.rglob(name))))
        path.write_bytes(path.read_bytes()[:size])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda volume: next(iter(sorted(volume.rglob(name)))).unlink()


def lock(volume: Path) -> None:
    """A build was killed: its lock is there and its product is not."""
    product = next(iter(volume.rglob("extension.so")))
    product.unlink()
    (product.parent / "lock").touch()


DAMAGES = {
    "an empty Triton cubin": (cut("0/kernel.cubin"), 2, True),
    "half of a Triton cubin": (cut("1/kernel.cubin", 100), 2, True),
    "an empty cubin of TensorRT-LLM": (cut("kernel0.cubin"), 2, True),
    "an empty DeepGEMM cubin": (cut("kernel.gemm.0/kernel.cubin"), 2, True),
    "a DeepGEMM directory without its source": (remove("kernel.gemm.3/kernel.cu"), 2, True),
    "a lock of a build that was killed": (lock, 2, True),
    "half of the bytecode of a module": (cut("module0.pyc", 100), 2, True),
    "an empty file of bytecode, which Python writes anew by itself": (cut("module1.pyc"), 1, False),
    "a truncated compiled model, which vLLM builds anew by itself": (cut("model-0", 10), 1, False),
}


@pytest.mark.parametrize(("damage", "want_starts", "want_new_key"), DAMAGES.values(), ids=DAMAGES.keys())
async def test_after_damage_it_serves_again(kubelet: Kubelet, damage: Callable[[Path], None], want_starts: int, want_new_key: bool) -> None:
    before = kubelet.fleet.key()
    damage(kubelet.node.volume)
    assert await kubelet.until_it_serves() == want_starts
    assert (kubelet.fleet.key() != before) is want_new_key
    assert (kubelet.starts[-1].seconds > PAID_COLD) is want_new_key
    assert kubelet.fleet.bench.condition("Ready").status == "True"
    for pod in list(kubelet.fleet.pods()):
        kubelet.fleet.gone(pod)
    assert await kubelet.until_it_serves() == 1
    assert kubelet.starts[-1].seconds == 0
    assert kubelet.fleet.bench.cache().warm_start_seconds is not None


async def test_what_was_damaged_is_kept_for_inspection(kubelet: Kubelet) -> None:
    before = kubelet.fleet.key()
    cut("0/kernel.cubin")(kubelet.node.volume)
    await kubelet.until_it_serves()
    assert {path.name for path in kubelet.node.volume.iterdir()} == {before, kubelet.fleet.key()}


async def test_a_full_volume_is_cleaned_and_the_start_ends_well(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.serve()
    volume = tmp_path / "volume"
    # an image that is not used any more: a Pod with it has run here, as the operator recorded, and left its marker
    unused = volume / fleet.key()
    for first in fleet.bench.deployment()["spec"]["template"]["spec"]["initContainers"]:
        Node(volume).run_first(first)
    (unused / "big").write_bytes(b"x" * 60_000)
    lookalike = volume / "v2-export-20240115"
    lookalike.mkdir()
    (lookalike / "data").write_bytes(b"x")
    await fleet.change(engine={"version": "0.24.0"})
    assert fleet.key() != unused.name
    kubelet = Kubelet(fleet, Node(volume, quota=140_000))
    pod = fleet.start()
    first = await kubelet.start(pod)
    assert (first.status, "No space left on device" in first.log) == (1, True)
    [job] = fleet.bench.cluster.all(JOB)
    environment = {variable["name"]: variable["value"] for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    clean(volume, environment)
    assert not unused.exists()
    assert (lookalike / "data").exists(), "it is somebody else's, whatever its name"
    second = await kubelet.start(pod, restarts=1)
    assert second.status == 0
    assert 0 < second.seconds < first.seconds + PAID_COLD


def clean(volume: Path, environment: dict[str, str]) -> None:
    """The Job's program, on a volume on which nothing was used for a while."""
    past = time.time() - 3600
    for path in (*volume.rglob("*"), *volume.iterdir()):
        os.utime(path, (past, past))
    moved = environment | {
        "CLEAN_ROOT": str(volume),
        "CLEAN_SHARE": "100",
        "CLEAN_GRACE": "0",
        "CLEAN_REPORT": str(volume.parent / "report"),
    }
    subprocess.run(command("clean-caches"), env=moved, check=True)
