"""Logs that stop before the error, and errors that no exception of Python tells of."""

import pytest

from support.pasted import KNOWLEDGE, read_either_way, read_pasted
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash


def crash(log: str) -> Crash | None:
    parser = read_either_way(log)
    return parser.final_state.crash


ANNOUNCED = """\
INFO 12-17 18:40:36 llm_engine.py:249] Initializing an LLM engine (v0.6.4) with config: model='m'
ERROR 12-17 18:40:37 engine.py:366] {title}
ERROR 12-17 18:40:37 engine.py:366] Traceback (most recent call last):
ERROR 12-17 18:40:37 engine.py:366]   File "/opt/vllm/engine/multiprocessing/engine.py", line 357, in run_mp_engine
ERROR 12-17 18:40:37 engine.py:366]     engine = MQLLMEngine.from_engine_args(engine_args=engine_args,
"""


@pytest.mark.parametrize(
    "title",
    [
        "not enough values to unpack (expected 2, got 1)",  # https://github.com/vllm-project/vllm/issues/11266
        "'layers.0.mlp.down_proj.weight.absmax'",  # https://github.com/vllm-project/vllm/issues/11010
        "[Rank:0] FATAL ERROR :: MODULE:PT_LAZY Error, ValidateSyncInputTensors tensor_data is empty",  # HabanaAI/vllm-fork issue 776
    ],
)
def test_an_error_whose_traceback_is_cut_off_is_shown_as_it_was_announced(title: str) -> None:
    found = crash(ANNOUNCED.format(title=title))

    assert found is not None
    assert (found.signature, found.line, found.line_number) == ("Unknown", title, 2)


def test_the_end_of_a_traceback_tells_more_than_its_title() -> None:
    found = crash(ANNOUNCED.format(title="'x'") + "ERROR 12-17 18:40:37 engine.py:366] ValueError: the fabric sulks\n")

    assert found is not None
    assert found.line == "ValueError: the fabric sulks"


def test_a_traceback_that_is_still_being_written_is_no_crash_yet() -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(ANNOUNCED.format(title="'x'"))

    assert parser.state.crash is None


def test_a_process_of_the_engine_that_is_cut_off_is_named() -> None:
    """https://github.com/verl-project/verl/issues/1642."""
    cut = "(AsyncvLLMServer pid=5222) Process EngineCore_0:\n(AsyncvLLMServer pid=5222) Traceback (most recent call last):\n"
    top = '(AsyncvLLMServer pid=5222)   File "/opt/lib/python3.10/multiprocessing/process.py", line 314, in _bootstrap\n'
    found = crash(cut + top)

    assert found is not None
    assert found.signature == "EngineCoreInitFailed"
    assert crash(cut + top + "(AsyncvLLMServer pid=5222) KeyboardInterrupt\n") is None


def test_a_panic_of_rust_is_shown_with_its_message() -> None:
    """https://github.com/ai-dynamo/dynamo/issues/349."""
    found = crash(
        "thread 'tokio-runtime-worker' panicked at lib/llm/src/engines/vllm/worker.rs:247:17:\n"
        "Failed to import python 'vllm' module. Are we running in the correct venv?\nstack backtrace:\n   0: rust_begin_unwind\n"
    )

    assert found is not None
    assert found.signature == "Unknown"
    assert "worker.rs:247:17: Failed to import python 'vllm' module." in found.line


@pytest.mark.parametrize(
    "line",
    [
        # https://github.com/ublue-os/bluefin/issues/3454
        'Error: OCI runtime error: unable to start container "c1":crun: {"msg":"error executing hook `/usr/bin/nvidia-cdi-hook`"}',
        # https://github.com/kserve/kserve/issues/3769
        "2024-07-01 07:28:04.488 1 kserve ERROR [__main__.py:254] Failed to start model server: integer division or modulo by zero",
        # https://github.com/triton-inference-server/server/issues/8578
        'E1216 02:12:49.624646 179 model.py:248] "[vllm] Failed to start engine: NoneType: None"',
        # https://github.com/triton-inference-server/server/issues/7950
        "E0120 08:28:09.425599 2049 model_lifecycle.cc:654] \"failed to load 'tensorrt_llm' version 1: Invalid argument: unable to find\"",
        "error: creating server: Internal - failed to load all models",
        "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
        '  Warning  Failed  5s (x2 over 20s)  kubelet  Error: secret "hf-token" not found',
        # https://github.com/lemonade-sdk/vllm-rocm/issues/5
        "2026-05-08 11:50:25.739 [Error] (Router) Retry also failed: vllm-server failed to start within timeout",
        # https://github.com/bentoml/BentoML/issues/4082
        "Error: [bentoml-cli] `serve` failed: Failed loading Bento: libGL.so.1: cannot open shared object file: No such file or directory",
        # https://github.com/modelscope/ms-swift/issues/7200
        "E1224 14:08:10.053000 26834 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 0",
        # https://github.com/Project-HAMi/HAMi/issues/39
        "  Warning  UnexpectedAdmissionError  73s  kubelet  Allocate failed due to rpc error: transport is closing",
    ],
)
def test_what_starts_the_engine_tells_why_it_did_not(line: str) -> None:
    found = crash(f"{line}\n")

    assert found is not None
    assert found.signature in ("Unknown", "DeviceAllocationRefused", "PodObjectMissing")
    assert found.line in line


def test_talk_of_a_core_dump_is_none() -> None:
    """https://github.com/unslothai/unsloth/issues/1624."""
    assert crash("However, it core dumped on me. Is this an OOM error?\n") is None
    found = crash("Segmentation fault (core dumped)\n")
    assert found is not None
    assert found.signature == "NativeCodeCrash"


def test_a_program_beside_the_log_fails_for_itself() -> None:
    """https://github.com/vllm-project/vllm/issues/10147."""
    assert (
        crash("python collect_env.py\n    from vllm.envs import environment_variables\nModuleNotFoundError: No module named 'vllm.envs'\n")
        is None
    )


def test_a_client_that_cannot_connect_is_not_the_engine() -> None:
    """https://github.com/BerriAI/litellm/issues/7291."""
    frames = 'Traceback (most recent call last):\n  File "/opt/site-packages/openai/_base_client.py", line 1610, in _request\n    raise x\n'
    assert crash(frames + "ConnectError: All connection attempts failed\n") is None
    assert crash("litellm.llms.openai.common_utils.OpenAIError: Connection error.\n") is None


@pytest.mark.parametrize(("rest", "is_crash"), [("NING", False), ("G", False), ("NFO", False), ("ROR", True)])
def test_a_record_that_is_cut_off_at_its_beginning_keeps_its_level(rest: str, is_crash: bool) -> None:
    """https://github.com/vllm-project/aibrix/issues/927."""
    line = f"{rest} 04-01 02:45:50 ray_utils.py:320] The number of required GPUs exceeds the total number of available GPUs in the group.\n"
    assert (read_pasted(line).final_state.crash is not None) is is_crash


def test_what_follows_the_head_of_a_traceback_in_its_line_is_read() -> None:
    """https://github.com/vllm-project/vllm/issues/15576, with its ends of lines lost."""
    found = crash(
        "(VllmWorkerProcess pid=74788) ERROR 03-23 21:33:26 [multiproc_worker_utils.py:238] Traceback (most recent call last): > "
        "[rank2]:[E323 21:33:26.1 ProcessGroupNCCL.cpp:1896] Process group watchdog thread terminated with exception: "
        "CUDA error: an illegal memory access was encountered\n"
    )

    assert found is not None
    assert found.signature == "IllegalMemoryAccess"


def test_what_the_script_that_collects_the_environment_warns_of_is_survived() -> None:
    """https://github.com/vllm-project/vllm/issues/5994."""
    warning = "There was a problem when trying to write in your cache folder (/root/.cache/huggingface/hub). You should set it.\n"
    assert crash("Collecting environment information...\n" + warning) is None


def test_a_server_that_only_repeats_what_the_engine_said_is_no_error_of_its_own() -> None:
    """https://github.com/kserve/kserve/issues/5056."""
    repeated = "Failed to start model server: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    found = crash(f"2026-02-11 02:15:04.629 1 kserve ERROR [__main__.py:337] {repeated}\n")

    assert found is not None
    assert found.signature == "EngineCoreInitFailed"


def test_a_table_of_errors_is_no_log() -> None:
    """https://github.com/scratchhax/model-loader/pull/2."""
    head = "| Signature | Proposed fix |\n|---|---|\n"
    row = "| RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB | lower it |\n"
    assert read_pasted(head + row + "| Address already in use | change `--port` |\n").final_state.crash is None
    assert crash("| vllm | 1 | UNAVAILABLE: Internal: ModuleNotFoundError: No module named 'vllm' |\n") is not None


TERMINATED = """\
(RayWorkerWrapper pid=77) *** SIGTERM received at time=1748300290 on cpu 8 ***
(RayWorkerWrapper pid=77) Traceback (most recent call last):
(RayWorkerWrapper pid=77)   File "/opt/ray/_private/worker.py", line 1539, in sigterm_handler
(RayWorkerWrapper pid=77)     sys.exit(signum)
(RayWorkerWrapper pid=77) SystemExit: 15
"""
FAILED = ANNOUNCED.format(title="something odd") + "ERROR 12-17 18:40:37 engine.py:366] ValueError: something odd\n"


@pytest.mark.parametrize(
    ("log", "signature"),
    [
        (TERMINATED, "TerminatedDuringStartup"),
        (FAILED + TERMINATED, "Unknown"),
        (TERMINATED + FAILED, "Unknown"),
        ("INFO:     Application startup complete.\n" + TERMINATED, None),
    ],
    ids=["before it was ready", "after an error", "before an error", "after it was ready"],
)
def test_an_exit_by_the_signal_that_stops_ray_is_a_stop_only_if_nothing_else_failed(log: str, signature: str | None) -> None:
    found = crash(log)

    assert (found.signature if found else None) == signature


def test_an_error_after_that_of_a_sitecustomize_is_still_seen() -> None:
    head = "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nModuleNotFoundError: No module named 'wrapt'\n"
    found = crash(head + "Traceback (most recent call last):\nModuleNotFoundError: No module named 'vllm'\n")

    assert found is not None
    assert found.line == "ModuleNotFoundError: No module named 'vllm'"


ENGINE_FRAME = '  File "/opt/vllm/engine/multiprocessing/engine.py", line 391, in run_mp_engine\n'


def cut_off_at(log: str) -> int | None:
    parser = read_either_way(log)
    state = parser.final_state
    assert state.crash is None
    return state.cut_off_at


@pytest.mark.parametrize(
    ("log", "line"),
    [
        # https://github.com/vllm-project/vllm-ascend/issues/1502
        (
            "INFO 06-28 08:28:44 llm_engine.py:230] Initializing\nERROR 06-28 08:28:45 engine.py:400] Traceback (most recent call last):\n"
            f"ERROR 06-28 08:28:45 engine.py:400] {ENGINE_FRAME}",
            2,
        ),
        # https://github.com/LMCache/LMCache/issues/1259
        (
            "ERROR 08-06 09:31:47 [worker_base.py:619] Error executing method 'init_device'. This might cause deadlock in distributed\n",
            None,
        ),
        (
            "ERROR 08-06 09:31:47 [worker_base.py:619] Error executing method 'init_device'. "
            "This might cause deadlock in distributed execution.\n",
            1,
        ),
        # https://github.com/tenstorrent/tt-inference-server/issues/255
        ('Process SpawnProcess-1:\nTraceback (most recent call last):\n  File "/usr/lib/python3.10/multiprocessing/process.py", line 3', 2),
        # https://github.com/vllm-project/vllm/issues/1420
        (
            "KeyError                                  Traceback (most recent call last)\n"
            "----> 6 model = LLM(model_name, trust_remote_code=True)\n",
            1,
        ),
        # https://github.com/BerriAI/litellm/issues/14061
        ("InternalServerError                       Traceback (most recent call last)\nCell In[12], line 1\n", None),
        # https://github.com/vllm-project/vllm/issues/53836
        (
            'Traceback (most recent call last):\n  File "/work/vllm/collect_env.py", line 20, in <module>\n    from vllm.envs import x\n',
            None,
        ),
        ("Seven causes of an EngineDeadError, and what to do\n", None),
    ],
)
def test_a_log_that_ends_before_the_error_says_so(log: str, line: int | None) -> None:
    assert cut_off_at(log) == line


def test_the_middle_of_a_traceback_is_no_title_of_one() -> None:
    """https://github.com/deepseek-ai/DeepSeek-V2/issues/99."""
    header = "(VllmWorkerProcess pid=23682) ERROR 12-08 23:22:14 multiproc_worker_utils.py:229]"
    frame = '  File "/opt/vllm/executor/multiproc_worker_utils.py", line 223, in _run_worker_process'

    assert cut_off_at(f"{header}     output = executor(*args)\n{header} Traceback (most recent call last):\n{header} {frame}\n") == 2


def test_what_was_interrupted_has_not_failed() -> None:
    assert cut_off_at("Process SpawnProcess-1:\nTraceback (most recent call last):\nKeyboardInterrupt\n") is None
