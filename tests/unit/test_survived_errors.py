"""An error that a process of the engine logs after the start, and that does not end it, is remarked on. Errors of requests are not."""

import pytest

from support.pasted import read_pasted

UP = "(APIServer pid=1) INFO:     Application startup complete.\n"
ENGINE = "(EngineCore pid=140) ERROR 11-03 11:21:38 [core.py:1178] "
RANK = (
    "Invocation of add_lora method failed",
    "Traceback (most recent call last):",
    '  File "/usr/local/lib/python3.12/dist-packages/vllm/lora/peft_helper.py", line 120, in validate_legal',
    "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
)
AWAKE = (
    "Invocation of wake_up method failed",
    "Traceback (most recent call last):",
    '  File "/usr/local/lib/python3.12/dist-packages/vllm/device_allocator/cumem.py", line 230, in wake_up',
    "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
)
LATER = "(APIServer pid=1) INFO 11-03 11:22:00 [loggers.py:248] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs\n"


@pytest.mark.parametrize(
    ("lines", "name", "said"),
    [
        (RANK, "LoraRankTooLarge", "rank 64"),
        (AWAKE, "CudaOutOfMemory", "woke up"),
        (
            ("Failed to store a widget",),
            "Unknown",
            "The engine still runs, but has logged an error. Failed to store a widget",
        ),
    ],
)
def test_an_error_that_the_engine_survives_is_remarked_on(lines: tuple[str, ...], name: str, said: str) -> None:
    parser = read_pasted(UP + "".join(f"{ENGINE}{line}\n" for line in lines) + 30 * LATER)

    assert parser.final_state.crash is None
    (found,) = parser.notices_beside(None)
    assert (found.signature, said in found.cause) == (name, True)
    assert "Let it restart" not in (found.remedy or "")


@pytest.mark.parametrize(
    "log",
    [
        f"{ENGINE}Cannot use FA version 2 is not supported\n{UP}",
        UP + "(APIServer pid=1) ERROR 11-03 11:21:38 [serving.py:300] Error in preprocessing prompt inputs\n",
        UP
        + "(APIServer pid=1) INFO 11-03 11:22:09 [launcher.py:124] Shutting down FastAPI HTTP server.\n"
        + f"{ENGINE}Failed to send a widget\n",
    ],
    ids=["before the start", "of a request", "while it stops"],
)
def test_other_errors_are_not_remarked_on(log: str) -> None:
    parser = read_pasted(log)

    assert parser.final_state.crash is None
    assert {each.signature for each in parser.notices_beside(None)} <= {"ServerToldToStop"}
