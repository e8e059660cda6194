"""The stand-in engine of the node suite does all that the suite needs of it, from the files that its image is built from."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest

from engine.caches import CACHES
from engine.start import last_words
from support.engine_image import CRASHES, gather_engine
from testenv.processes import free_ports
from vllm_operator.catalog.startup import Severity, load_signature_samples, load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import StartupState
from vllm_operator.tools import hang

KNOWLEDGE = load_startup()
FATAL = {each.id for each in KNOWLEDGE.signatures if each.severity is Severity.FATAL}
# these report the end of another Pod of a group, so the error of an engine's own log comes first
OF_OTHERS = {each.id for each in KNOWLEDGE.signatures if each.is_echo and each.follows_others}
SAMPLES = sorted({sample.signature for sample in load_signature_samples()} & FATAL - OF_OTHERS)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gather_engine(tmp_path_factory.mktemp("image") / "files")


class Container:
    """Runs the engine's command with the image's files; its home is the volume of the caches."""

    def __init__(self, image: Path, home: Path) -> None:
        self.image = image
        self.home = home
        (self.port,) = free_ports(1)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
        """`crash_at="serving"` becomes ENGINE_CRASH_AT."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.image), "HOME": str(self.home)}
        environment |= {"TMPDIR": str(self.home), "ENGINE_SPEED": "5000"}
        environment |= {f"ENGINE_{name.upper()}": value for name, value in settings.items()}
        command = [sys.executable, "-B", str(self.image / "engine" / "vllm.py"), "serve", "some/model", "--port", str(self.port)]
        command += arguments
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, **settings: str) -> tuple[int, bytes]:
        """Run it to its end; return the exit status and the log."""
        with self.start(**settings) as process:
            log, _ = process.communicate(timeout=60)
        return process.returncode, log

    @contextmanager
    def served(self, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run it until it serves, and end it as a kubelet does."""
        with self.start(**settings) as process:
            try:
                deadline = time.monotonic() + 60
                while self.get("/health") is None:
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                yield process
            finally:
                process.terminate()
                process.communicate(timeout=20)

    def get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (URLError, ConnectionError):
            return None


@pytest.fixture
def container(image: Path, tmp_path: Path) -> Container:
    return Container(image, tmp_path)


def read(log: bytes) -> StartupState:
    parser = StartupParser(KNOWLEDGE)
    for line in log.splitlines(keepends=True):
        parser.feed(line)
    parser.end()
    return parser.final_state


def test_it_serves_what_probes_and_users_ask_for_and_ends_when_asked_to(container: Container) -> None:
    with container.served() as process:
        assert container.get("/health") == ""
        assert [model["id"] for model in json.loads(container.get("/v1/models") or "")["data"]] == ["some/model"]
        assert 'vllm:num_requests_running{engine="0",model_name="some/model"} 0.0' in (container.get("/metrics") or "")
        assert container.get("/nothing") is None
    assert process.returncode == 0


def test_the_second_start_prints_what_a_warm_one_prints(container: Container) -> None:
    cold, warm = (container.run(crash="exit:0", crash_at="Application startup complete")[1] for _ in range(2))
    assert read(cold).cache.hits == 0
    assert (read(warm).cache.hits > 0, read(warm).cache.misses) == (True, 0)
    assert (b"DeepGEMM warmup" in cold, b"DeepGEMM warmup" in warm) == (True, False)
    assert all(list(container.home.rglob(cache.file.format(unit=0))) for cache in CACHES)


@pytest.mark.parametrize("name", CRASHES)
def test_a_recorded_crash_is_printed_as_it_was(container: Container, name: str) -> None:
    status, log = container.run(crash=name)
    assert status == 1
    assert (crash := read(log).crash) is not None
    assert crash.signature in FATAL


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_words_of_each_known_crash_are_recognised(image: Path, sample: str) -> None:
    crash = read(last_words((image / "engine" / "samples" / f"{sample}.txt").read_text())).crash
    assert crash is not None
    assert crash.signature == sample


def test_it_crashes_with_the_words_that_it_is_given(container: Container) -> None:
    status, log = container.run(crash="HfGatedRepo")
    assert status == 1
    assert (crash := read(log).crash) is not None
    assert crash.signature == "HfGatedRepo"


@pytest.mark.parametrize(("crash", "status"), [("exit:3", 3), ("exit:139", 139)])
def test_it_ends_without_a_word(container: Container, crash: str, status: int) -> None:
    found, log = container.run(crash=crash, crash_at="torch.compile took")
    assert found == status
    assert b"Traceback" not in log


def test_it_crashes_so_many_times_and_then_starts_well(container: Container) -> None:
    assert [container.run(crash="exit:3", crash_times="2")[0] for _ in range(2)] == [3, 3]
    with container.served(crash="exit:3", crash_times="2"):
        assert container.get("/health") == ""


def test_it_chatters_as_much_as_is_wanted(container: Container) -> None:
    _, log = container.run(chatter="300", crash="exit:3", crash_at="Graph capturing finished")
    assert 300_000 < len(log) < 400_000


def test_a_crash_that_it_does_not_know_is_refused(container: Container) -> None:
    _, log = container.run(crash="NoSuchCrash")
    assert b"There is no recording NoSuchCrash" in log


@pytest.fixture
def start_rank(container: Container) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a rank of an engine on two nodes."""
    (port,) = free_ports(1)
    started: list[subprocess.Popen[bytes]] = []

    def start(rank: int, **settings: str) -> subprocess.Popen[bytes]:
        group = ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port))
        started.append(container.start(*group, **{"orders": str(container.home), "speed": "200"} | settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"the log ended without {words!r}")


def test_two_ranks_meet_and_the_leader_serves(container: Container, start_rank: Callable[..., subprocess.Popen[bytes]]) -> None:
    leader = start_rank(0)
    until(leader, b"distributed_init_method")
    assert container.get("/health") is None
    follower = start_rank(1)
    until(leader, b"Application startup complete")
    until(follower, b"Kernel JIT monitor activated")
    assert container.get("/health") == ""
    assert follower.stdout is not None
    assert not select.select([follower.stdout.fileno()], [], [], 1.0)[0], "the leader is there"
    leader.kill()
    until(follower, b"recvValue failed")


def test_a_rank_fails_as_recorded_and_the_other_one_waits(start_rank: Callable[..., subprocess.Popen[bytes]]) -> None:
    leader = start_rank(0, ranks="h100-follower-model-missing")
    log, _ = start_rank(1, ranks="h100-follower-model-missing", exit="1").communicate(timeout=60)
    assert (crash := read(log).crash) is not None
    assert crash.signature == "HfRepoNotFound"
    until(leader, b"distributed_init_method")
    assert leader.poll() is None


def test_a_rank_takes_orders_by_the_name_of_its_pod(container: Container, start_rank: Callable[..., subprocess.Popen[bytes]]) -> None:
    pod = socket.gethostname()
    (container.home / pod).write_text("ENGINE_RANKS=h100-follower-model-missing\nENGINE_EXIT=3")
    assert start_rank(1).wait(timeout=60) == 3
    (container.home / pod).unlink()
    follower = start_rank(1)
    (container.home / f"{pod}-exit-137").touch()
    assert follower.wait(timeout=60) == 137


def test_an_engine_hangs_on_order_as_when_its_core_is_stopped(container: Container) -> None:
    running = 'vllm:num_requests_running{engine="0",model_name="some/model"}'
    order = container.home / f"{socket.gethostname()}-hang"
    with container.served(orders=str(container.home)) as engine:
        assert f"{running} 0.0" in str(container.get("/metrics"))
        order.touch()
        assert f"{running} 3.0" in str(container.get("/metrics"))
        [core] = [each for each in hang.read_processes(0.01) if each.parent == engine.pid]
        os.kill(core.number, signal.SIGKILL)
        assert (core.title, core.state) == ("VLLM::EngineCore", "T")
        order.unlink()
        assert f"{running} 0.0" in str(container.get("/metrics"))
