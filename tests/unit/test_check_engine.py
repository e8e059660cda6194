"""The readiness probe of the engine: what it asks, when it fails, what it keeps, and how it ends an engine that hangs."""

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from support.tools import command
from vllm_operator.rendering.pod import render_pod_template
from vllm_operator.tools import check_engine, connections, hang, progress
from vllm_operator.tools.progress import State

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
"""Runs a command as the first process of a container."""
METRICS = (Path(__file__).parent.parent / "corpus" / "hangs" / "metrics.txt").read_text()


class Server:
    """A server whose engine has one running request and makes no step."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {"/health": (200, ""), "/metrics": (200, METRICS), "/load": (200, '{"server_load":1}')}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status, text = outer.answers.get(self.path, (404, ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "hangs")


@pytest.fixture(params=["", "ulimit -c 0; "], ids=["core files allowed", "core files forbidden"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the title of an engine core. The program sees no other process of this machine."""
    script = "import faulthandler, time; faulthandler.enable(); print('up', flush=True); time.sleep(600)"
    words = ["bash", "-c", f'{request.param}exec -a VLLM::EngineCore {sys.executable} -c "{script}"']
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(hang, "_numbers", lambda: iter([process.pid]))
        monkeypatch.setattr(hang, "TERMINATION_MESSAGE", str(tmp_path / "termination"))
        monkeypatch.setattr(hang, "WRITE_SECONDS", 30)
        yield process
        process.kill()


def silent(seconds: float, server: Server) -> State:
    """The state 15 s after a probe, when the engine had been silent for this time."""
    state, said = check_engine.check(State(), server.url, "/nowhere", "/nowhere")
    assert said == ""
    state.time -= 15
    for rank in state.ranks.values():
        rank.silent = seconds if rank.is_busy else 0.0
    return state


def test_an_engine_with_work_is_ready_at_first(server: Server, folder: str) -> None:
    state, said = check_engine.check(State(), server.url, folder, "/nowhere")
    assert (said, progress.silence(state)) == ("", 0)
    assert server.asked == ["/health", "/metrics", "/load"]


def test_a_hang_is_reported_with_its_evidence(server: Server, folder: str, engine: subprocess.Popen[bytes]) -> None:
    engine.send_signal(signal.SIGSTOP)
    state, said = check_engine.check(silent(90, server), server.url, folder, "/nowhere")
    assert said.startswith("Engine hangs: 1 request is running, no token since ")
    assert said.endswith(" UTC; /health answers 200. VLLM::EngineCore: suspended.")
    (kept,) = Path(folder).iterdir()
    assert {path.name for path in kept.iterdir()} >= {"what.txt", "metrics.txt", "processes.txt"}
    assert (kept / "metrics.txt").read_text() == METRICS
    assert engine.poll() is None

    state.time -= 15
    assert check_engine.check(state, server.url, folder, "/nowhere")[1] == said, "the text of an event must not change"
    assert len(list(Path(folder).iterdir())) == 1


def run(seconds: float, server: Server, folder: str, file: Path, *, restarts: bool = True) -> State:
    """Run the probe of an engine that has been silent for this time. Return the state that the next one finds."""
    file.write_text(progress.format_state(silent(seconds, server)))
    assert check_engine.run(server.url, str(file), folder, "/nowhere", restarts=restarts) == 1
    return progress.parse_state(file.read_text())


def test_an_engine_that_goes_on_hanging_is_ended_and_writes_its_stacks(
    server: Server, folder: str, engine: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = run(150, server, folder, tmp_path / "state")
    assert engine.wait(10) == -signal.SIGABRT
    assert engine.stderr is not None
    assert b"most recent call first" in engine.stderr.read()
    assert (tmp_path / "termination").read_text() == capsys.readouterr().out.strip()
    assert progress.silence(state) == 0, "the next engine would be ended at once"


def test_a_stopped_process_is_killed(
    server: Server, folder: str, engine: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "WRITE_SECONDS", 0.2)
    engine.send_signal(signal.SIGSTOP)
    run(150, server, folder, tmp_path / "state")
    assert engine.wait(10) == -signal.SIGKILL


def test_the_next_engine_learns_nothing_from_a_hang_even_if_the_program_ends_with_the_container(
    server: Server, folder: str, engine: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(why: str) -> None:
        raise SystemExit

    monkeypatch.setattr(hang, "end_engine", end)
    with pytest.raises(SystemExit):
        run(150, server, folder, tmp_path / "state")
    server.answers["/metrics"] = (200, METRICS.replace(" 1.0\n", " 2.0\n"))
    state, _ = check_engine.check(progress.parse_state((tmp_path / "state").read_text()), server.url, folder, "/nowhere")
    assert state.longest == 0


def test_an_engine_is_only_reported_if_users_want_that(
    server: Server, folder: str, engine: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert run(1000, server, folder, tmp_path / "state", restarts=False).description.startswith("Engine hangs: ")
    assert engine.poll() is None


CONTAINER = """
import os, signal, subprocess, sys, threading, time
signal.signal(signal.SIGTERM, lambda *_: None)
assert os.getpid() == 1
engine = subprocess.Popen(["bash", "-c", "exec -a VLLM::EngineCore sleep 600"])
while b"::EngineCore" not in open(f"/proc/{engine.pid}/cmdline", "rb").read():
    time.sleep(0.01)
while time.process_time() < 1.1:  # a real server has used much more when it serves
    pass
behaviour, seconds = sys.argv[1], sys.argv[2]
if behaviour == "lost":  # the engine ends by itself
    engine.kill()
    # as the kubelet does: the third probe may still see the engine
    lines = "while True: check_engine.run('http://127.0.0.1:1', sys.argv[2], '', '', restarts=True)"
else:
    # on a busy machine, the server may not run when the kernel looks at its CPU time; other probes would follow
    lines = "hang.TERMINATION_MESSAGE, hang.EXIT_SECONDS, hang.KILL_SECONDS = '/dev/null', float(sys.argv[1]), 30"
    lines += "; hang.end_engine('It hangs.')"
words = [sys.executable, "-c", f"import sys; from vllm_operator.tools import check_engine, hang\\n{lines}", seconds, sys.argv[3]]
subprocess.Popen(words, stdout=subprocess.DEVNULL)
engine.wait()
print("its engine has ended", flush=True)
if behaviour == "exits":
    sys.exit(7)
threading.Event().wait()  # for something that never comes
"""


@pytest.mark.skipif(subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0, reason="this user may not create namespaces")
@pytest.mark.parametrize(("behaviour", "seconds"), [("exits", "60"), ("stays", "0.1"), ("lost", "0")])
def test_a_server_that_stays_without_its_engine_is_ended_although_it_is_the_first_process_of_its_container(
    behaviour: str, seconds: str, tmp_path: Path
) -> None:
    words = [*NAMESPACE, sys.executable, "-c", CONTAINER, behaviour, seconds, str(tmp_path / "state"), "/opt/vllm", "serve"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "its engine has ended\n"
    assert (done.returncode == 7) == (behaviour == "exits"), done.stderr


def test_what_a_probe_may_do_fits_into_its_time(server: Server, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = render_pod_template(deployment(), made(deployment(), real_node("h200")))
    limit = rendered["spec"]["containers"][0]["readinessProbe"]["timeoutSeconds"]
    spare = 1.5  # to start, and to be scheduled
    before = check_engine.TIMEOUT_SECONDS + hang.WALK_SECONDS + hang.PREPARING_SECONDS
    report = hang.PROCESS_SECONDS + hang.GPU_SECONDS + 1  # and to end nvidia-smi
    restart = 0.1 + hang.WRITE_SECONDS + hang.EXIT_SECONDS + hang.KILL_SECONDS
    assert before + max(report, restart) + spare <= limit

    def answer_late(url: str, path: str, end: float) -> tuple[int, str]:
        time.sleep(max(0.0, min(0.9, end - time.monotonic())))
        if time.monotonic() > end:
            raise TimeoutError
        return server.answers.get(path, (404, ""))

    state = silent(1000, server)
    monkeypatch.setattr(check_engine, "ask", answer_late)
    monkeypatch.setattr(hang, "_numbers", lambda: iter(()))
    begin = time.monotonic()
    check_engine.check(state, server.url, folder, "/nowhere")
    assert time.monotonic() - begin <= before + hang.PROCESS_SECONDS + 3 * spare, "this machine may be busy"


def test_a_paused_engine_does_not_hang(server: Server, folder: str, engine: subprocess.Popen[bytes]) -> None:
    server.answers["/is_paused"] = (200, '{"is_paused":true}')
    assert check_engine.check(silent(1000, server), server.url, folder, "/nowhere")[1] == ""


def stuck_before(seconds: float, server: Server) -> State:
    """The state 15 s after a probe, when a client had waited for this time while the engine is idle."""
    server.answers["/metrics"] = (
        200,
        METRICS.replace('num_requests_running{engine="0",model_name="tiny"} 1.0', 'num_requests_running{engine="0",model_name="tiny"} 0.0'),
    )
    state = silent(0, server)
    state.load = 1
    state.ranks[progress.SERVER].is_busy, state.ranks[progress.SERVER].silent = True, seconds
    return state


def test_a_client_that_waits_while_the_engine_is_idle_is_a_hang(
    server: Server, folder: str, engine: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (server.http.server_address[1], True, connections.TLS_SEGMENTS if server.url.startswith("https") else 0)
    monkeypatch.setattr(connections, "read_waits", lambda port, closes, handshake: [100.0] if (port, closes, handshake) == asked else None)
    _, said = check_engine.check(stuck_before(90, server), server.url, folder, "/nowhere")
    assert said.startswith("Engine hangs: 1 request arrived, and nothing has reached the engine since ")
    monkeypatch.setattr(connections, "read_waits", lambda *_, **__: [])
    assert check_engine.check(stuck_before(90, server), server.url, folder, "/nowhere")[1] == ""


@pytest.mark.parametrize(
    "words",
    ["exec -a vllm bash -c 'read' serve --tool-server demo", "while true; do :; done"],
    ids=["a tool may run", "the server prepares its input"],
)
def test_a_server_with_tools_and_a_busy_one_may_not_have_given_work_to_the_engine(
    server: Server, folder: str, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(connections, "read_waits", lambda *_, **__: [100.0])
    monkeypatch.setattr(hang, "PREPARING_PERCENT", 1)  # where others use the CPUs, too
    monkeypatch.setattr(hang, "PREPARING_SECONDS", 3)
    with subprocess.Popen(["bash", "-c", words], stdin=subprocess.PIPE) as process:
        try:
            monkeypatch.setattr(hang, "_numbers", lambda: iter([process.pid]))
            while "exec" in words and not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"vllm"):
                time.sleep(0.01)
            assert check_engine.check(stuck_before(80, server), server.url, folder, "/nowhere")[1] == ""
        finally:
            process.kill()


def test_a_compiler_in_the_container_is_no_hang(
    server: Server, folder: str, engine: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["bash", "-c", "exec -a nvcc bash -c 'echo nvcc > /proc/self/comm; read'"], stdin=subprocess.PIPE) as compiler:
        monkeypatch.setattr(hang, "_numbers", lambda: iter([compiler.pid]))
        while Path(f"/proc/{compiler.pid}/comm").read_text().strip() != "nvcc":
            time.sleep(0.01)
        assert check_engine.check(silent(80, server), server.url, folder, "/nowhere")[1] == ""
        compiler.kill()


def test_new_files_in_the_caches_show_that_kernels_are_compiled(server: Server, folder: str, engine: subprocess.Popen[bytes]) -> None:
    kernels = Path(folder).parent / "triton" / "KERNEL"
    kernels.mkdir(parents=True)
    assert check_engine.check(silent(80, server), server.url, folder, "/nowhere")[1] == ""
    for path in (kernels, kernels.parent):
        os.utime(path, (time.time() - 100, time.time() - 100))
    assert check_engine.check(silent(80, server), server.url, folder, "/nowhere")[1] != ""


def test_evidence_of_the_last_hangs_is_kept(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"2026110{number}T000000Z-a").mkdir()
    hang.keep(str(tmp_path), {"what": "It hangs.", "stacks": ""})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == hang.MAX_HANGS
    assert names[:4] == [f"2026110{number}T000000Z-a" for number in (4, 5, 6, 7)]


@pytest.mark.parametrize(
    ("processes", "gpus", "expected"),
    [
        ([("VLLM::EngineCore", "S", 0), ("VLLM::Worker_TP1", "T", 0)], [100, 100], "VLLM::Worker_TP1: suspended."),
        ([("VLLM::EngineCore", "D", 0)], [], "VLLM::EngineCore: in an uninterruptible wait, for a driver or a disk."),
        (
            [("VLLM::EngineCore", "S", 3), ("VLLM::Worker_TP0", "R", 99), ("VLLM::Worker_TP1", "R", 99)],
            [],
            "VLLM::Worker_TP0, VLLM::Worker_TP1: busy without finishing a step, as when GPUs wait for each other (NCCL).",
        ),
        ([("VLLM::EngineCore", "R", 99), ("VLLM::Worker", "S", 0)], [0], "VLLM::EngineCore: busy without giving work to a GPU."),
        ([("VLLM::EngineCore", "R", 13), ("VLLM::Worker", "S", 0)], [], "VLLM::EngineCore: busy without giving work to a GPU."),
        (
            [("VLLM::EngineCore", "R", 99)],
            [0, 100],
            "VLLM::EngineCore: busy, and a GPU is busy without finishing a step: a kernel does not end, or GPUs wait for each other "
            "(NCCL).",
        ),
        (
            [("VLLM::EngineCore", "S", 0)],
            [100],
            "No process of the engine uses a CPU, and a GPU is busy without finishing a step: a kernel does not end, or GPUs wait for each "
            "other (NCCL).",
        ),
        ([("VLLM::EngineCore", "S", 0)], [0], "No process of the engine uses a CPU: they wait for each other."),
        ([("VLLM::EngineCore", "S", 0)], [], "No process of the engine uses a CPU: they wait for each other or for a GPU."),
        ([], [100], "No process of the engine was found."),
    ],
)
def test_what_hangs_is_named(processes: list[tuple[str, str, int]], gpus: list[int], expected: str) -> None:
    assert hang.explain([hang.Process(number, *each) for number, each in enumerate(processes)], gpus) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf '100\\n0\\n'", [100, 0]),
        ("printf '[N/A]\\n7\\n'", [7]),
        ("echo 'Unable to determine the device handle'; exit 9", []),
        ("exec sleep 60", []),
        (None, []),
    ],
)
def test_use_of_gpus_is_read_where_nvidia_smi_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, expected: list[int]
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(hang, "GPU_SECONDS", 0.5)
    assert hang.read_gpus() == expected


@pytest.mark.parametrize("status", [503, 500])
def test_a_server_that_is_not_healthy_is_not_ready(server: Server, folder: str, status: int) -> None:
    server.answers["/health"] = (status, "")
    assert check_engine.check(State(), server.url, folder, "/nowhere")[1] == f"/health answers {status}"


def test_a_server_that_is_gone_is_not_ready(folder: str) -> None:
    assert check_engine.check(State(), "http://127.0.0.1:1", folder, "/nowhere")[1].startswith("The server cannot be reached: ")


def test_a_silent_server_is_not_ready_at_the_third_time(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    def late(url: str, path: str, end: float) -> tuple[int, str]:
        raise TimeoutError

    monkeypatch.setattr(check_engine, "ask", late)
    state, said = State(), []
    for _ in range(3):
        state, text = check_engine.check(state, "http://127.0.0.1:1", folder, "/nowhere")
        said.append(text)
    assert said == ["", "", "The server does not answer /health"]


def test_metrics_that_cannot_be_read_decide_nothing(server: Server, folder: str) -> None:
    server.answers["/metrics"] = (500, "")
    assert check_engine.check(silent_of_nothing(), server.url, folder, "/nowhere")[1] == ""


def silent_of_nothing() -> State:
    state = State(time.monotonic() - 15)
    state.ranks["0"] = progress.Rank("1", True, 0, 1000)
    return state


def test_the_load_of_several_servers_on_one_port_is_not_asked_for(server: Server, folder: str) -> None:
    server.answers["/metrics"] = (200, METRICS.replace("process_start_time_seconds", "other"))
    check_engine.check(State(), server.url, folder, "/nowhere")
    assert "/load" not in server.asked


@pytest.mark.parametrize("run", [1, 2])
def test_the_program_keeps_its_state_between_probes(server: Server, folder: str, tmp_path: Path, run: int) -> None:
    words = command("check-engine", server.url, str(tmp_path / "state"), folder, "/nowhere", "Report")
    for _ in range(run):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    state = progress.parse_state((tmp_path / "state").read_text())
    assert state.ranks["0"].is_busy
    assert (progress.silence(state) > 0) == (run == 2)


def test_the_program_says_why_it_fails(tmp_path: Path, folder: str) -> None:
    words = command("check-engine", "http://127.0.0.1:1", str(tmp_path / "state"), folder, "/nowhere", "Restart")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("The server cannot be reached: ")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "server.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=engine", "-days", "1", "-keyout", str(path)]
    made = subprocess.run([*words, "-out", "/dev/stdout"], capture_output=True, check=True, timeout=60)
    path.write_bytes(path.read_bytes() + made.stdout)
    return path


def test_a_server_with_tls_is_asked_over_tls(server: Server, folder: str, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    url = server.url.replace("http://", "https://")
    state, said = check_engine.check(State(), url, folder, "/nowhere")
    assert (said, state.ranks["0"].is_busy) == ("", True)
