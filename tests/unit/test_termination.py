"""Why a container ended: its status and its log together."""

from typing import Any

import pytest

from support import observations as o
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash
from vllm_operator.status.crashes import MESSAGES_READ, find_crashes
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.terminations import diagnose_termination

KNOWLEDGE = load_startup()


def from_log(text: str) -> Crash | None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(text)
    parser.end()
    return parser.final_state.crash


ECHO = from_log("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n")
SPECIFIC = from_log("ValueError: No available memory for the cache blocks.\n")


def ended(**status: Any) -> str | None:
    log_crash = status.pop("log_crash", None)
    crash = diagnose_termination(load_knowledge(), o.termination(**status), log_crash=log_crash)
    return crash.signature if crash else None


@pytest.mark.parametrize(
    ("expected", "status"),
    [
        ("OOMKilled", {"exit_code": 137, "reason": "OOMKilled"}),
        ("OOMKilled", {"exit_code": 1, "reason": "OOMKilled", "log_crash": ECHO}),
        ("NoKvCacheMemory", {"exit_code": 1, "reason": "OOMKilled", "log_crash": SPECIFIC}),
        ("NoKvCacheMemory", {"log_crash": SPECIFIC}),
        ("EngineCoreInitFailed", {"log_crash": ECHO}),
        ("PortInUse", {"log_crash": ECHO, "message": "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000)"}),
        ("ExecFormatError", {"exit_code": 255, "message": "exec /usr/local/bin/vllm: exec format error"}),
        ("IllegalInstruction", {"exit_code": 132}),
        ("BusErrorSharedMemory", {"exit_code": 135}),
        ("NativeCodeCrash", {"exit_code": 139}),
        ("NativeCodeCrash", {"exit_code": None, "signal": 6}),
        ("Unknown", {"exit_code": 1}),
        (None, {"exit_code": 0, "reason": "Completed"}),
        (None, {"exit_code": 143}),
        (None, {"exit_code": None, "signal": 15, "reason": ""}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_how_a_container_ended_is_explained(expected: str | None, status: dict[str, Any]) -> None:
    assert ended(**status) == expected


def test_a_signal_that_nothing_explains_is_named() -> None:
    crash = diagnose_termination(load_knowledge(), o.termination(139), log_crash=None)

    assert crash is not None
    assert "signal 11, segmentation fault" in crash.cause
    assert crash.remedy is not None


def test_of_many_crashed_pods_the_messages_of_the_latest_ends_are_read() -> None:
    message = "ValueError: No available memory for the cache blocks.\n"
    pods = [o.crashed_pod(f"vllm-a-x{number}", seconds=-100.0 - number, message=message) for number in range(100)]
    found = find_crashes(o.observe(*pods, replicas=100)).findings
    named = [finding.view.name for finding in found if finding.status.signature == "NoKvCacheMemory"]
    assert named == [f"vllm-a-x{number}" for number in range(MESSAGES_READ)]
    assert len(found) == 100


KILLED_WORKER = """\
INFO:     Application startup complete.
(EngineCore pid=252) ERROR 11-26 18:09:01 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: None), \
shutting down executor.
(EngineCore pid=252) ERROR 11-26 18:09:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=252) ERROR 11-26 18:09:01 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=252) ERROR 11-26 18:09:01 [core.py:1512]     raise RuntimeError("Executor failed.")
(EngineCore pid=252) ERROR 11-26 18:09:01 [core.py:1512] RuntimeError: Executor failed.
INFO:     Shutting down
INFO:     Finished server process [169]
"""
"""vLLM 0.32.0 after SIGKILL of its worker, shortened. The server exits with code 0."""


def test_a_killed_worker_is_named_although_the_server_exits_with_code_0() -> None:
    crash = diagnose_termination(load_knowledge(), o.termination(exit_code=0, reason="Completed"), log_crash=from_log(KILLED_WORKER))

    assert crash is not None
    assert crash.signature == "EngineDead"
    assert "its worker process VllmWorker-0 was killed" in crash.cause


def test_exit_code_0_of_a_server_that_nobody_stopped_is_a_crash() -> None:
    found = find_crashes(o.observe(o.crashed_pod(code=0, reason="Completed"))).most_informative

    assert found is not None
    assert found.status.signature == "EndedWithoutError"
    assert found.status.exit_code == 0
    assert "although nobody stopped it" in (found.status.cause or "")
