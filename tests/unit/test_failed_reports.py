"""A record that could not be logged: Python's report of that hides neither the error that the record is about nor one that comes next."""

import pytest

from support.engine_logs import API_SERVER_GIVES_UP, HEALTHY_START, READY, engine_failure
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser

KNOWLEDGE = load_startup()
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
EMIT = '  File "/usr/lib/python3.12/logging/__init__.py", line 1160, in emit\n    msg = self.format(record)\n'
CORE = '  File "/vllm/v1/engine/core.py", line 493, in run_engine_core\n    engine_core = EngineCoreProc()\n'
STACK = 'Call stack:\n  File "/usr/local/bin/vllm", line 10, in <module>\n    sys.exit(main())\n'
BEGIN = "--- Logging error ---\nTraceback (most recent call last):\n"
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
BLOCKED = "BlockingIOError: [Errno 11] write could not complete without blocking\n"


def report(error: str, message: str = "'KV cache %s'") -> str:
    """An error met while a record was put into words."""
    return f"{BEGIN}{EMIT}{error}\n{STACK}Message: {message}\nArguments: (1,)\n"


def of_an_exception(error: str, message: str) -> str:
    """A record about an exception that could not be written."""
    return f"{BEGIN}{CORE}{error}\n{CHAINED}{EMIT}{BLOCKED}{STACK}Message: {message}\nArguments: ()\n"


def read(log: str) -> StartupParser:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(log)
    parser.end()
    return parser


def named(log: str) -> str | None:
    crash = read(log).final_state.crash
    return crash.signature if crash else None


def of_process(log: str) -> str:
    return "".join(f"(EngineCore pid=7) {line}\n" for line in log.splitlines())


@pytest.mark.parametrize("log", [report(NO_KERNEL), of_process(report(NO_KERNEL))], ids=["raw", "under the name of a process"])
@pytest.mark.parametrize("rest", ["", API_SERVER_GIVES_UP], ids=["and the log ends", "and the engine fails"])
def test_a_gpu_that_cannot_be_used_is_named_where_logging_met_it_first(log: str, rest: str) -> None:
    assert named(HEALTHY_START + log + rest) == "GpuArchNotInBuild"


@pytest.mark.parametrize("message", ["'EngineCore failed to start.'", "'Something was not right'"])
def test_the_exception_that_a_record_is_about_is_no_failure_of_logging(message: str) -> None:
    log = HEALTHY_START + of_an_exception(NO_KERNEL, message)

    assert named(log) == "GpuArchNotInBuild"
    assert named(HEALTHY_START + of_process(of_an_exception(NO_KERNEL, message))) == "GpuArchNotInBuild"
    running = StartupParser(KNOWLEDGE)
    running.feed(log)
    assert (running.state.crash is not None) == (message == "'EngineCore failed to start.'")


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("--- Logging error ---\n" + engine_failure(NO_KERNEL), id="of another process"),
        pytest.param(
            of_process("--- Logging error ---") + BEGIN.partition("\n")[2] + CORE + NO_KERNEL + "\n", id="raw, of another process"
        ),
        pytest.param("--- Logging error ---\n" + BEGIN.partition("\n")[2] + CORE + NO_KERNEL + "\n", id="of the same process"),
        pytest.param(report(BLOCKED.strip()) + engine_failure(NO_KERNEL), id="after the whole report"),
    ],
)
def test_a_crash_after_such_a_report_is_named(log: str) -> None:
    assert named(HEALTHY_START + log) == "GpuArchNotInBuild"


@pytest.mark.parametrize(
    "error",
    [BLOCKED.strip(), "TypeError: not all arguments converted during string formatting", "OSError: [Errno 28] No space left on device"],
)
@pytest.mark.parametrize("message", ["'KV cache %s'", '"it\'s %s"', "<object>"])
def test_a_record_that_could_not_be_logged_is_no_crash(error: str, message: str) -> None:
    assert named(HEALTHY_START + report(error, message)) is None
    assert named(HEALTHY_START + of_process(report(error, message))) is None
    assert named(HEALTHY_START + report(error, message) + API_SERVER_GIVES_UP) == "EngineCoreInitFailed"
    assert named(HEALTHY_START + report(NO_KERNEL) + READY) is None


@pytest.mark.parametrize(
    "warning",
    [
        "(EngineCore pid=7) WARNING 11-21 09:31:00 [__init__.py:225] Failed to import flashinfer: No module named 'flashinfer'",
        "(EngineCore pid=7) WARNING 11-21 09:31:00 [cuda.py:22] Failed to import vllm._C: ModuleNotFoundError: No module named 'vllm._C'",
        "WARNING:root:Failed to import deep_ep: No module named 'deep_ep'",
        "W1121 09:20:40.674 import.py:207] Failed to import deep_ep: No module named 'deep_ep'",
        "/usr/lib/python3.12/site-packages/x.py:12: UserWarning: Failed to import deep_ep: No module named 'deep_ep'",
        "Failed to import deep_ep: No module named 'deep_ep'",
    ],
)
def test_a_package_that_is_only_warned_of_explains_no_failure(warning: str) -> None:
    failure = engine_failure("RuntimeError: something odd happened 17")

    assert named(f"{HEALTHY_START}{warning}\n") is None
    assert named(f"{HEALTHY_START}{warning}\n{failure}") == "Unknown"
    assert named(f"{HEALTHY_START}{failure}{warning}\n") == "Unknown"
    assert named(f"{HEALTHY_START}{warning}\n{API_SERVER_GIVES_UP}") == "EngineCoreInitFailed"


def test_a_package_that_the_failure_is_about_is_named() -> None:
    assert (
        named(HEALTHY_START + engine_failure("ImportError: Failed to import deep_ep: No module named 'deep_ep'")) == "PythonPackageMissing"
    )
