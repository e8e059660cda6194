"""Errors at second hand: repeated by another process, quoted in a text, of a request or of a client."""

import pytest

from support.pasted import read_pasted
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash, Stage

KNOWLEDGE = load_startup()


def read(text: str) -> StartupParser:
    return read_pasted(text)


def crash_of(text: str) -> Crash | None:
    return read(text).final_state.crash


def name_of(text: str) -> str | None:
    crash = crash_of(text)
    return crash.signature if crash else None


REPEATED_BY_THE_PARENT = """\
(EngineCore_DP0 pid=11) RuntimeError: Worker failed with error 'dispatch() got an unexpected keyword argument', please check
(EngineCore_DP0 pid=11) ERROR 10-29 08:32:36 [multiproc_executor.py:154] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.
"""
"""The worker's own lines were cut off (https://github.com/vllm-project/vllm-ascend/issues/5297 and the like)."""


def test_a_message_that_the_parent_repeats_is_the_error() -> None:
    crash = crash_of(REPEATED_BY_THE_PARENT)
    assert crash is not None
    assert crash.signature == "Unknown"
    assert "dispatch() got" in crash.line


@pytest.mark.parametrize("message", ["''", "'cancelled'"])
def test_a_parent_that_repeats_nothing_is_an_echo(message: str) -> None:
    assert name_of(f"RuntimeError: Worker failed with error {message}, please check the stack trace above\n") == "WorkerProcInitFailed"


def test_the_error_itself_goes_before_its_repetition() -> None:
    own = "(Worker_TP0 pid=7) ERROR 10-29 08:32:20 [multiproc_executor.py:815] ValueError: the carburettor is wet\n"
    crash = crash_of(own + REPEATED_BY_THE_PARENT)
    assert crash is not None
    assert "carburettor" in crash.line


CANCELLED = """\
(EngineCore pid=684) ERROR 09-07 03:16:05 [core.py:1346]     raise RuntimeError("cancelled")
(EngineCore pid=684) ERROR 09-07 03:16:05 [core.py:1346] RuntimeError: cancelled
(EngineCore pid=684) Process EngineCore:
"""
"""The parent stops to wait for workers that are gone (https://github.com/1CatAI/1Cat-vLLM/issues/539)."""

QUOTED_IN_A_LIST = """\
* the log:
  (APIServer pid=1)     raise ValueError(
  (APIServer pid=1) ValueError: the carburettor is wet
"""

QUOTED_IN_A_PROGRAM = """\
    "(Worker pid=114) ERROR 08-14 08:34:03 [multiproc_executor.py:1018] ValueError: the carburettor is wet",
    "(EngineCore pid=82) ERROR 08-14 08:34:03 [core.py:1349] EngineCore failed to start.",
"""

LINES_OF_A_PROGRAM = """\
    '(EngineCore_DP0 pid=212) INFO 10-06 12:00:03 [gpu_model_runner.py:2338] Starting to load model /m...',
    'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB.',
    'RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}',
"""

WITHOUT_ITS_TIME = """\
        "(EngineCore pid=217) ERROR [core.py:1231]     raise ValueError(",
        "(EngineCore pid=217) ERROR [core.py:1231] ValueError: the carburettor is wet",
"""

FLATTENED_BY_PROCESS = (
    "This is what I did, and what came of it after some minutes, every time that I tried: ``` vllm serve m ``` and then: "
    "``` (APIServer pid=1) INFO:     Started server process [1] (APIServer pid=1) Traceback (most recent call last): "
    "(APIServer pid=1) ValueError: Duplicated timeseries in CollectorRegistry: {'vllm:kv_offload_total_bytes'} ``` "
    "**Root cause:** it is called for each, and it goes on like this for a while.\n"
)
"""https://github.com/vllm-project/vllm issues, as collections of them keep their texts: ends of lines are spaces."""

IN_A_STRING = (
    'time=2026-05-01 level=error detail="Traceback (most recent call last):\\n  File \\"/opt/vllm/v1/engine/core.py\\", line 9, in make\\n'
    "    make(\\nValueError: Free memory on device cuda:0 (3.5/79.1 GiB) on startup is less than desired GPU memory utilization "
    '(0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\\n" pod=a container=b and more\n'
)

WORKER_OF_V0 = (
    "(VllmWorkerProcess pid=39) ERROR 07-19 07:31:57 multiproc_worker_utils.py:226] Exception in worker VllmWorkerProcess while processing "
    "method load_model: the carburettor is wet, Traceback (most recent call last):\n"
)

COMPILER = """\
    query_rot = query_rot * cos + rotate_fn(query_rot) * sin

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch).
', please check the stack trace above for the root cause
"""
"""https://github.com/vllm-project/vllm/issues/19332"""


@pytest.mark.parametrize(
    ("log", "signature"),
    [
        (CANCELLED, "WorkerProcInitFailed"),
        (QUOTED_IN_A_LIST, "Unknown"),
        (QUOTED_IN_A_PROGRAM, "Unknown"),
        (LINES_OF_A_PROGRAM, "CudaOutOfMemory"),
        (WITHOUT_ITS_TIME, "Unknown"),
        (FLATTENED_BY_PROCESS, "Unknown"),
        (IN_A_STRING, "GpuMemoryInUse"),
        (WORKER_OF_V0, "Unknown"),
        (COMPILER, "InductorCompileFailed"),
    ],
    ids=[
        "workers are gone",
        "in a list",
        "in a program",
        "strings of a program",
        "without its time",
        "lines of processes in one line",
        "in a string",
        "a worker of old",
        "the last words of the compiler",
    ],
)
def test_an_error_that_is_quoted(log: str, signature: str) -> None:
    assert name_of(log) == signature


def test_a_prompt_that_quotes_a_traceback_is_no_crash() -> None:
    prompt = "Traceback (most recent call last):\\nValueError: the carburettor is wet\\n" + "What does that mean? " * 20
    assert name_of(f"(APIServer pid=1) INFO 11-21 09:32:00 [logger.py:43] Received request c-1: prompt: '{prompt}'\n") is None


def test_a_list_of_issues_is_no_log() -> None:
    item = "- Opened: [#39378](https://github.com/vllm-project/vllm/issues/39378) [Bug]: Failed to infer device type (@somebody)\n"
    assert name_of(item) is None


@pytest.mark.parametrize(
    "text",
    [
        "### 4.1. EngineDeadError During Shutdown\n",
        "If you observe `vllm.v1.engine.exceptions.EngineDeadError` when the server stops, nothing is wrong.\n",
        "The log shows: `Worker failed to start due to memory` or `CUDA out of memory during KV cache allocation`. Lower the share.\n",
        "It is given on, which resolves `OSError` and `LocalEntryNotFoundError` without a network.\n",
        "1. \u663e\u5b58\u62a5\u9519\u201cCUDA out of memory\u201d\u4f46\u660e\u660e\u670924GB\u663e\u5b58\n",
        'It looks so: File "gpu_model_runner.py", line ..., in execute_model torch.OutOfMemoryError: CUDA out of memory. Tried X MiB\n',
    ],
)
def test_a_text_that_speaks_of_exceptions_is_no_log(text: str) -> None:
    assert name_of(text) is None


REFUSED_LENGTH = """\
vllm.exceptions.VLLMValidationError:
  This model's maximum context length is 32768 tokens.
  However, you requested 15360 output tokens and your prompt contains at least 17409 input tokens.
"""
"""What vLLM raises for requests that it cannot answer."""

CUT_WITHIN_A_LEVEL = """\
(Worker_TP2 pid=946) ERROR 09-15 13:21:14 [multiproc_executor.py:654]   File "/opt/vllm/attention/layer.py", line 383, in forward
(Worker_TP2 pid=946) ERROR 09-15 13:21:14 [multiproc_executor.py:654]     bsz, q_len, _ = query.size()
(Worker_TP2 pid=946) ERRO
"""

TEST_OF_THE_ENGINE = """\
    assert exc_info.value.code == 1
    mock_exception.assert_called_once_with("EngineCore encountered a fatal error.")
"""


SERVER_AROUND_THE_ENGINE = """\
WARN  InferenceRequestHandler Chunk reading interrupted
java.lang.IllegalStateException: Read chunk timeout.
        at ai.djl.inference.streaming.ChunkedBytesSupplier.next(ChunkedBytesSupplier.java:79) ~[api-0.23.0.jar:?]
"""
"""https://github.com/deepjavalibrary/djl-serving/issues/1173"""


@pytest.mark.parametrize(
    "log",
    [REFUSED_LENGTH, CUT_WITHIN_A_LEVEL, TEST_OF_THE_ENGINE, SERVER_AROUND_THE_ENGINE],
    ids=["request", "cut", "program", "java"],
)
def test_what_only_looks_like_an_error_of_the_engine(log: str) -> None:
    assert name_of(log) is None


def test_a_message_in_a_chinese_sentence_counts_where_the_sentence_ends_with_it() -> None:
    assert (
        name_of("\u62a5\u9519ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n")
        == "NoKvCacheMemory"
    )


def test_the_title_of_a_thread_may_hold_the_message() -> None:
    assert name_of("# [Bug]: RuntimeError: Could not find nvcc\n") == "FlashInferNvccMissing"


REFUSED_REQUEST = """\
(APIServer pid=1)   File "/opt/vllm/entrypoints/serve/render/serving.py", line 193, in render_chat
(APIServer pid=1)     _mt.validate_request_params(request)
(APIServer pid=1)   File "/opt/vllm/tokenizers/mistral.py", line 213, in validate_request_params
(APIServer pid=1)     raise ValueError("chat_template is not supported for Mistral tokenizers.")
(APIServer pid=1) ValueError: chat_template is not supported for Mistral tokenizers.
"""
"""A repository that keeps its test logs; the first lines are cut off."""


def test_the_frames_tell_that_a_request_was_answered() -> None:
    assert name_of(REFUSED_REQUEST) is None
    made = REFUSED_REQUEST.replace("in render_chat", "in __init__")
    assert name_of(made) == "Unknown"


MIDDLEWARE = """\
(APIServer pid=1)   File "/opt/prometheus_fastapi_instrumentator/routing.py", line 55, in _get_route_name
(APIServer pid=1)     route_name = route.path
(APIServer pid=1) AttributeError: '_IncludedRouter' object has no attribute 'path'
"""
"""What stands around the answers of a server fails with each request; notes kept in a repository."""


REFUSED_BY_THE_ENGINE = """\
  File "/vllm/v1/engine/processor.py", line 268, in process_inputs
    self._validate_model_inputs(processed_inputs, lora_request)
  File "/vllm/v1/engine/processor.py", line 405, in _validate_model_input
    raise ValueError(
ValueError: The decoder prompt (length 44) is longer than the maximum model length of 16.
"""
"""https://github.com/google/tunix/pull/222"""


def test_a_request_that_the_engine_refuses_is_no_crash() -> None:
    assert name_of(REFUSED_BY_THE_ENGINE) is None


def test_what_stands_around_the_answers_is_no_start() -> None:
    assert name_of(MIDDLEWARE) is None


def test_a_request_that_is_refused_shows_that_the_server_is_up() -> None:
    answer = '(APIServer pid=1) INFO:     172.18.0.1:46756 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
    state = read("ValueError: the request is odd\n" + answer).final_state
    assert state.stage is Stage.READY
    assert state.crash is None


def test_an_answer_after_the_death_of_the_engine_does_not_undo_it() -> None:
    death = "(EngineCore pid=7) ERROR 10-12 02:10:43 [core.py:710] EngineCore encountered a fatal error.\n"
    assert name_of(death + '(APIServer pid=1) INFO:     10.0.0.1:467 - "GET /metrics HTTP/1.1" 200 OK\n') == "EngineDead"


CLIENT = """\
ModuleNotFoundError: No module named 'pandas'

Traceback (most recent call last):
  File "/usr/bin/vllm", line 7, in <module>
    sys.exit(main())
  File "/opt/vllm/vllm/entrypoints/cli/benchmark/serve.py", line 21, in cmd
    main(args)
"""


@pytest.mark.parametrize("end", ["", "ValueError: no data set\n"], ids=["cut off", "whole"])
def test_a_client_that_fails_is_no_crash_of_a_server(end: str) -> None:
    assert name_of(CLIENT + end) is None


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Worker failed with error 'Only SM 10.x and 11.x are supported', please check the stack trace above",
        "RuntimeError: FlashAttention-3 only supports Hopper GPUs or newer.",
        "NotImplementedError: No compiled cutlass_scaled_mm for CUDA device capability: 120.",
        "cutlass.base_dsl.common.OpError: expects arch to be one of [Arch.sm_100a], but got Arch.sm_120a",
        "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9",
        "AssertionError: quantized_fused_moe only support gfx94x",
        "terminate called after throwing an instance of 'X'\n  what():  FP8 block scale gemm is not supported on SM120",
    ],
)
def test_a_kernel_that_says_which_gpu_it_needs(message: str) -> None:
    crash = crash_of(message + "\n")
    assert crash is not None
    assert crash.signature == "KernelUnsupportedOnGpu"
    assert "please check" not in crash.cause


@pytest.mark.parametrize(
    "line",
    [
        "WARNING 11-21 09:32:00 [marlin_utils.py:1] Your GPU does not have native support for FP4 computation on SM 12.0",
        "The kernel only supports sm_100, so another one is used.",
    ],
)
def test_a_remark_on_gpus_is_no_crash(line: str) -> None:
    assert name_of(line + "\n") is None


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ('    raise RuntimeError("Failed to infer device type")', "NoGpuVisible"),
        ("    # ImportError: Please install vllm[audio] for audio support", "PythonPackageMissing"),
    ],
)
def test_a_source_line_that_is_given_alone_is_a_question(line: str, signature: str) -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(f"{line}\n")
    parser.end()

    assert parser.final_state.crash is not None
    assert parser.final_state.crash.signature == signature


def test_a_source_line_among_others_is_none() -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed('def infer() -> str:\n    raise RuntimeError("Failed to infer device type")\n')
    parser.end()

    assert parser.final_state.crash is None
