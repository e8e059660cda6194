"""One failure shows up many times in a log: the first independent one is the crash, and the others follow from it."""

from pathlib import Path

import pytest

from support.pasted import read_pasted
from vllm_operator.__main__ import main

PACKAGES = "/usr/local/lib/python3.12/dist-packages/"
START = "(EngineCore pid=40) INFO 10-01 10:00:10 [core.py:116] Initializing a V1 LLM engine (v0.30.0) with config: model='/m'\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
DEAD = (
    "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    " See stack trace (above) for the root cause.\n"
)


def failure(process: str, second: int, *lines: str) -> str:
    header = f"({process} pid=60) ERROR 10-01 10:02:{second:02} [multiproc_executor.py:1000] "
    return "".join(f"{header}{line}\n" for line in ("WorkerProc hit an exception.", "Traceback (most recent call last):", *lines))


def frame(file: str, function: str) -> str:
    return f'  File "{PACKAGES}{file}", line 10, in {function}'


FIRST = failure(
    "Worker_TP1", 1, frame("vllm/model_executor/layers/fused_moe/layer.py", "forward"), "    x()", "RuntimeError: widget is odd"
)
SECOND = failure(
    "Worker_TP0",
    9,
    frame("torch/distributed/distributed_c10d.py", "all_reduce"),
    "    x()",
    "RuntimeError: NCCL error: remote process exited",
)


def test_the_error_of_one_process_comes_before_what_others_say_about_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = START + FIRST + SECOND + DEAD
    crash = read_pasted(log).final_state.crash
    assert crash is not None
    assert crash.cause == (
        "The code for mixture-of-experts layers failed: RuntimeError: widget is odd,"
        " in forward (vllm/model_executor/layers/fused_moe/layer.py)"
    )
    (tmp_path / "a.log").write_text(log)
    assert main(["diagnose", str(tmp_path / "a.log")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Crashed during engine start: The code for mixture-of-experts layers failed\n")
    assert "Consequences\n  DistributedTimeout, line 11: RuntimeError: NCCL error: remote process exited\n" in told


def test_what_others_say_is_the_crash_if_nothing_came_before() -> None:
    crash = read_pasted(START + SECOND + DEAD).final_state.crash
    assert crash is not None
    assert crash.signature == "DistributedTimeout"


@pytest.mark.parametrize(
    ("before", "signature", "words"),
    [
        (
            "python3: /triton/lib/Analysis/Allocation.cpp:47: int f(): Assertion `!(a && b)' failed.\n",
            "NativeCodeCrash",
            "a check in Allocation.cpp failed, !(a && b)",
        ),
        ("LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl\n", "NativeCodeCrash", "a check in LLVM failed, Cannot select"),
        ("[HAMI-core ERROR (pid:22 thread=13 memory_limit.c:1255)]: Illegal device id: 31069\n", "NativeCodeCrash", "libvgpu"),
        (
            "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0]"
            " Assertion `index out of bounds` failed.\n",
            "GpuAssertionFailed",
            "index out of bounds",
        ),
        ("node-a:1:2 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'\n", "IllegalMemoryAccess", "invalid memory"),
    ],
)
def test_an_assertion_of_compiled_code_explains_the_death_of_the_engine(before: str, signature: str, words: str) -> None:
    crash = read_pasted(START + READY + before + DEAD).final_state.crash
    assert crash is not None
    assert crash.signature == signature
    assert words in crash.cause


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("command terminated with exit code 137\n", "OOMKilled"),
        ("OOM-killed (exit 137)\n", "OOMKilled"),
        ("vllm: signal: killed\n", "OOMKilled"),
        (
            START + "(APIServer pid=1) RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore_0': -9}\n",
            "OOMKilled",
        ),
        (
            START + "(APIServer pid=1) RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore_0': -6}\n",
            "NativeCodeCrash",
        ),
        ("command terminated with exit code 139\n", "NativeCodeCrash"),
        ("Container vllm failed startup probe, will be restarted\n", "KilledForProbe"),
    ],
)
def test_an_end_that_is_told_in_other_words_is_known(text: str, signature: str) -> None:
    crash = read_pasted(text).final_state.crash
    assert crash is not None
    assert crash.signature == signature


@pytest.mark.parametrize(("xid", "signature"), [("79", "GpuHardwareFault"), ("94", "GpuHardwareFault"), ("31", "IllegalMemoryAccess")])
def test_only_some_messages_of_the_driver_are_about_the_hardware(xid: str, signature: str) -> None:
    crash = read_pasted(f"NVRM: Xid (PCI:0000:0f:00): {xid}, pid=123, name=VLLM::EngineCore\n").final_state.crash
    assert crash is not None
    assert crash.signature == signature


def test_an_assertion_without_a_message_is_shown_with_its_line_and_what_was_said_before() -> None:
    log = START + READY
    header = "(EngineCore pid=40) ERROR 10-01 10:02:00 [core.py:13] "
    for line in (
        "Failed to advance the state for request 1.",
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        frame("vllm/v1/core/sched/scheduler.py", "schedule"),
        "    assert request.is_ready",
        "AssertionError",
    ):
        log += f"{header}{line}\n"
    crash = read_pasted(log + DEAD).final_state.crash
    assert crash is not None
    assert crash.cause.endswith(
        "AssertionError at `assert request.is_ready`, in schedule (vllm/v1/core/sched/scheduler.py)"
        " (after Failed to advance the state for request 1.)"
    )


def test_a_log_that_ends_within_a_traceback_says_how_far_it_went() -> None:
    header = "(APIServer pid=1) ERROR 10-01 10:02:00 [async_llm.py:704] "
    lines = (
        "AsyncLLM output_handler failed.",
        "Traceback (most recent call last):",
        frame("vllm/v1/metrics/loggers.py", "record"),
        "    x()",
    )
    crash = read_pasted(START + READY + "".join(f"{header}{line}\n" for line in lines)).final_state.crash
    assert crash is not None
    assert crash.cause.endswith("Its traceback was cut off in record (vllm/v1/metrics/loggers.py).")


def test_the_flags_that_a_remedy_names_and_that_are_set_are_told() -> None:
    arguments = (
        "(APIServer pid=1) INFO 10-01 10:00:00 [utils.py:299] non-default args:"
        " {'model': '/m', 'kv_cache_dtype': 'fp8', 'enable_lora': True}\n"
    )
    unequal = frame("vllm/v1/core/kv_cache_utils.py", "unify"), "NotImplementedError: The page size of the layer is not divisible"
    crash = read_pasted(arguments + START + failure("Worker_TP0", 1, *unequal)).final_state.crash
    assert crash is not None
    assert crash.remedy is not None
    assert crash.remedy.endswith("pages of such models. This engine has --kv-cache-dtype.")
