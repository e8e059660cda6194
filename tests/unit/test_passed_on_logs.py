"""Logs that reached whoever reads them through a program that puts something of its own before each line."""

import json

import pytest

from support.pasted import read_pasted
from vllm_operator.logs.state import Stage, StartupState


def read(*chunks: str) -> StartupState:
    return read_pasted(*chunks).final_state


def passed_on(log: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in log.splitlines())


ENDS_AT_ONCE = """\
Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 5, in <module>
    from vllm.entrypoints.cli.main import main
  File "/opt/venv/lib/python3.12/site-packages/fabric/__init__.py", line 3, in <module>
    raise RuntimeError("the fabric sulks")
RuntimeError: the fabric sulks
"""

SERVES = """\
INFO:     Started server process [1]
INFO:     Waiting for application startup.
INFO:     Application startup complete.
"""

PREFIXES = [
    "vllm_vllm.1.k2j3h4k2j3h4@node-1    | ",
    "ms-pd-llm-d-modelservice-decode-6c8f9c4df6-vh88z vllm ",
    "[vllm-decode-6c8f9c4df6-vh88z vllm] ",
    "2025-08-17T18:42:18.123456+00:00 node-7 vllm[8052]: ",
    "<30>1 2025-08-17T18:42:18.123Z node-7 vllm 8052 - - ",
    "0: ",
    "2026-06-09 14:01:54.604 [Info] (Process) ",
    "2025-06-27 12:57:51,690 - __main__ - INFO - ",
    "2023-12-15 00:46:02 | ERROR | stderr | ",
    "[INFO ] PyProcess - W-417-model-stderr: ",
    "2025-08-17 18:42:18.123 | INFO     | launcher:run:12 - ",
    "18:42:18 vllm.1  | ",
    "vllm.log-",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_error_is_found_behind_the_prefix_of_any_program(prefix: str) -> None:
    state = read(passed_on(ENDS_AT_ONCE, prefix))

    assert state.crash is not None
    assert state.crash.signature == "Unknown"
    assert state.crash.line == "RuntimeError: the fabric sulks"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_server_that_is_up_is_seen_behind_the_prefix_of_any_program(prefix: str) -> None:
    state = read(passed_on(SERVES, prefix))

    assert state.crash is None
    assert state.stage is Stage.READY


def test_numbers_and_levels_of_a_prefix_may_change() -> None:
    prefixes = ["2026-06-09 14:01:54.604 [Info] (Process) ", "2026-06-10 01:00:00.1 [Error] (Process) "] * 3
    log = "".join(f"{prefix}{line}\n" for prefix, line in zip(prefixes, ENDS_AT_ONCE.splitlines(), strict=True))

    state = read(log)

    assert state.crash is not None
    assert state.crash.line == "RuntimeError: the fabric sulks"


def test_a_prefix_that_was_learned_holds_for_what_comes_later() -> None:
    prefix = "2026-06-09 14:01:54.604 [Info] (Process) "
    ended = passed_on("  File a\nFatal Python error: Segmentation fault\n", prefix)

    state = read(passed_on(ENDS_AT_ONCE, prefix).replace("RuntimeError: the", "KeyboardInterrupt: the"), ended)

    assert state.crash is not None
    assert state.crash.line == "Fatal Python error: Segmentation fault"


def test_what_stands_before_a_traceback_only_once_is_no_prefix() -> None:
    cut = (
        "(VllmWorkerProcess pid=139) ERROR 08-13 15:22:52 multiproc_worker_utils.py:226] Exception in worker VllmWorkerProcess while "
        "processing method determine_num_available_blocks: the fabric sulks, Traceback (most recent call last):\n"
        '(VllmWorkerProcess pid=139) ERROR 08-13 15:22:52 multiproc_worker_utils.py:226]   File "/opt/vllm/executor/'
        'multiproc_worker_utils.py", line 223, in _run_worker_process\n'
    )

    state = read(cut)

    assert state.crash is not None
    assert state.crash.line == "the fabric sulks"
    assert state.crash.line_number == 1


MARGINS = ["    {}", "\t{}", "| {}", "> > {}", "# {}", "+ {}"]
SAYS_ONE_THING = """\
What the last start said:

RuntimeError: the fabric sulks
and so the server went home.
"""


@pytest.mark.parametrize("margin", MARGINS)
def test_a_text_that_was_moved_or_framed_says_the_same(margin: str) -> None:
    state = read("".join(f"{margin.format(line)}\n" for line in SAYS_ONE_THING.splitlines()))

    assert state.crash is not None
    assert state.crash.line == "RuntimeError: the fabric sulks"


def test_frames_alone_stay_where_they_are() -> None:
    frames = '  File "/opt/a.py", line 1, in a\n    b()\n  File "/opt/b.py", line 2, in b\n    c()\n'

    assert read(frames).crash is None
    crash = read(frames, "RuntimeError: the fabric sulks\n").crash
    assert crash is not None
    assert '  File "/opt/b.py", line 2, in b' in crash.excerpt


def test_a_whole_log_in_one_string_of_json_is_read() -> None:
    lines = SAYS_ONE_THING + "And much more. " * 1000
    state = read(json.dumps({"id": "job-1", "output": lines}) + "\n")

    assert state.crash is not None
    assert state.crash.line == "RuntimeError: the fabric sulks"


@pytest.mark.parametrize(("letter", "is_crash"), [("E", True), ("C", True), ("W", False), ("I", False)])
def test_what_rays_processes_write_has_a_level(letter: str, is_crash: bool) -> None:
    """https://github.com/vllm-project/vllm/issues/5495."""
    state = read(
        f"[2024-06-13 16:11:51,588 {letter} 13261 13261] (raylet) core_worker.cc:228: Failed to register worker 01 to Raylet. IOError\n"
    )

    assert (state.crash is not None) == is_crash
    if state.crash is not None:
        assert state.crash.line.startswith("core_worker.cc:228: Failed")
