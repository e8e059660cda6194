"""Faults of Python, of the system and of the user's own code, as engines of several processes log them."""

import pytest

from support.engine_logs import API_SERVER_GIVES_UP, HEALTHY_START, engine_failure, worker_failure
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash

KNOWLEDGE = load_startup()


def crash_of(log: str) -> Crash:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(log)
    parser.end()
    crash = parser.final_state.crash
    assert crash is not None
    return crash


def worker_record(*lines: str) -> str:
    return "".join(f"(Worker_TP1 pid=8) ERROR 11-22 05:31:44 [multiproc_executor.py:870] {line}\n" for line in lines)


def grouped(*members: str) -> str:
    """A worker that fails with an exception group, as Python prints one."""
    lines = ["WorkerProc failed to start.", "  + Exception Group Traceback (most recent call last):"]
    lines += ['  |   File "/app/loader.py", line 3, in load_model', "  |     raise ExceptionGroup(...)"]
    lines += ["  | ExceptionGroup: two shards failed (2 sub-exceptions)"]
    for number, member in enumerate(members, 1):
        lines += [f"  {'+-' if number == 1 else '  '}+---------------- {number} ----------------", f"    | {member}"]
    return HEALTHY_START + worker_record(*lines, "    +------------------------------------") + API_SERVER_GIVES_UP


def test_of_an_exception_group_a_member_that_is_known_by_name_is_the_cause() -> None:
    crash = crash_of(grouped("ValueError: bad shard", "OSError: [Errno 116] Stale file handle: '/models/a.safetensors'"))

    assert crash.signature == "StorageUnreadable"
    assert "/models/a.safetensors" in crash.cause


def test_of_an_exception_group_the_first_member_is_shown_if_none_is_known() -> None:
    assert crash_of(grouped("ValueError: bad shard", "KeyError: 'x'")).line == "ValueError: bad shard"


def test_a_program_that_a_worker_ran_and_that_failed_is_shown() -> None:
    line = "subprocess.CalledProcessError: Command '['fetch-weights']' returned non-zero exit status 1."

    assert crash_of(HEALTHY_START + worker_failure(line)).line == line


def test_why_a_processor_could_not_be_loaded_wins_over_the_advice_to_trust_its_code() -> None:
    advice = (
        "RuntimeError: Failed to load the processor. If the processor is a custom processor not yet available in the HuggingFace "
        "transformers library, consider setting `trust_remote_code=True` in LLM or using the `--trust-remote-code` flag in the CLI."
    )
    cause = "ValueError: Unrecognized image processor in /models/vl."

    assert crash_of(HEALTHY_START + engine_failure(advice)).signature == "TrustRemoteCodeRequired"
    assert crash_of(HEALTHY_START + engine_failure(cause) + engine_failure(advice)).line == cause


def test_a_worker_that_fails_because_all_were_asked_to_stop_is_no_fault() -> None:
    told = "(Worker_TP0 pid=7) WARNING 11-22 05:28:23 [multiproc_executor.py:884] WorkerProc was terminated\n"
    broken = worker_record("WorkerProc failed to start.", "Traceback (most recent call last):", "BrokenPipeError: [Errno 32] Broken pipe")

    assert crash_of(HEALTHY_START + told + broken).signature == "TerminatedDuringStartup"
    # Where one died by itself the engine core ends the others, and says so.
    assert crash_of(HEALTHY_START + told + broken + API_SERVER_GIVES_UP).signature != "TerminatedDuringStartup"


@pytest.mark.parametrize(
    ("file", "signature"),
    [("/models/llama/tokenizer.json", "ModelFilesMissing"), ("/etc/acme/tuning.json", "Unknown"), ("/proc/acme.json", "Unknown")],
)
def test_a_file_of_the_system_is_none_of_a_model(file: str, signature: str) -> None:
    assert (
        crash_of(HEALTHY_START + worker_failure(f"FileNotFoundError: [Errno 2] No such file or directory: '{file}'")).signature == signature
    )


def test_an_invalid_number_in_a_variable_of_vllm_is_named_by_the_frame() -> None:
    frames = '  File "/usr/lib/python3/dist-packages/{}.py", line 654, in <lambda>\n    lambda: int(\nValueError: {}'
    message = "invalid literal for int() with base 10: 'soon'"

    crash = crash_of(HEALTHY_START + engine_failure(frames.format("vllm/envs", message)))
    assert crash.signature == "EnvironmentValueInvalid"
    assert "soon" in crash.cause
    assert crash_of(HEALTHY_START + engine_failure(frames.format("acme/table", message))).signature == "Unknown"


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Cannot use both external and hybrid data parallel load balancing modes.",
        "AssertionError: node_rank=2 must be less than nnodes=2.",
        "ValueError: --api-server-count=2 cannot be used with --headless (no API servers are started in headless mode).",
        "RuntimeError: Configuration mismatch detected for engine 1. All DP workers must have identical configurations for parameters.",
        "Assertion failed, tensor parallel size 2 must be greater than total num kv heads 4 when enable decode context parallel",
        "Value error, Number of experts in the model must be greater than 0 when expert parallelism is enabled. [type=value_error]",
    ],
)
def test_a_layout_that_is_refused_is_named(line: str) -> None:
    log = HEALTHY_START + engine_failure(f"  {line}" if line.startswith(("Assertion f", "Value e")) else line)

    assert crash_of(log).signature == "ParallelLayoutInvalid"


def test_what_a_kernel_or_nccl_says_of_itself_is_named() -> None:
    late = "torch.AcceleratorError: CUDA error: the launch timed out and was terminated"
    variable = "RuntimeError: NCCL error: invalid argument (run with NCCL_DEBUG=WARN for details)"

    assert crash_of(HEALTHY_START + worker_failure(late)).signature == "IllegalMemoryAccess"
    assert crash_of(HEALTHY_START + worker_failure(variable)).signature == "NcclInvalidUsage"
