"""The root cause is named, however the log reports it, and what an engine survives is no crash."""

import pytest

from support.engine_logs import API_SERVER_GIVES_UP, HEALTHY_START, READY, engine_failure, worker_failure
from vllm_operator.catalog.startup import Sample, Severity, load_signature_samples, load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage

KNOWLEDGE = load_startup()
FATAL = {signature.id for signature in KNOWLEDGE.signatures if signature.severity is Severity.FATAL and not signature.is_echo}
SAMPLES = [sample for sample in load_signature_samples() if sample.signature in FATAL]
# A warning of a library explains nothing beside an error. Arguments are a record of their own, in no traceback.
ERRORS = [
    sample
    for sample in SAMPLES
    if not (sample.signature == "NixlUnavailable" and "WARN" in sample.text) and "non-default args" not in sample.text
]


def parsed(text: str) -> StartupParser:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(text)
    parser.end()
    return parser


def named(text: str) -> str | None:
    crash = parsed(text).final_state.crash
    return crash.signature if crash else None


def while_running(text: str) -> str | None:
    crash = parsed(text).state.crash
    return crash.signature if crash else None


@pytest.mark.parametrize("sample", [pytest.param(each, id=f"{each.signature}-{number}") for number, each in enumerate(ERRORS)])
def test_a_known_error_wins_over_its_echoes(sample: Sample) -> None:
    assert named(HEALTHY_START + engine_failure(sample.text)) == sample.signature
    assert while_running(HEALTHY_START + engine_failure(sample.text)) == sample.signature


@pytest.mark.parametrize("sample", [pytest.param(each, id=f"{each.signature}-{number}") for number, each in enumerate(SAMPLES)])
def test_an_error_before_ready_that_was_survived_is_forgotten(sample: Sample) -> None:
    assert named(HEALTHY_START + sample.text + "\n" + READY) is None


V0_ENGINE = """\
INFO 04-17 15:09:02 [api_server.py:1034] vLLM API server version 0.8.3
INFO 04-17 15:09:20 [llm_engine.py:241] Initializing a V0 LLM engine (v0.8.3) with config: model='org/model'
ERROR 04-17 15:10:09 [engine.py:448] Traceback (most recent call last):
ERROR 04-17 15:10:09 [engine.py:448]   File "/opt/vllm/worker/worker.py", line 545, in raise_if_cache_size_invalid
ERROR 04-17 15:10:09 [engine.py:448]     raise ValueError(
ERROR 04-17 15:10:09 [engine.py:448] ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be \
stored in KV cache (2400). Try increasing `gpu_memory_utilization`
Process SpawnProcess-1:
Traceback (most recent call last):
  File "/opt/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (2400).
RuntimeError: Engine process failed to start. See stack trace for the root cause.
"""
V0_LIBRARY = """\
INFO 01-11 15:51:02 llm_engine.py:70] Initializing an LLM engine with config: model='/models/alpaca-2', tokenizer='/models/alpaca-2'
INFO 01-11 15:51:18 llm_engine.py:275] # GPU blocks: 229, # CPU blocks: 512
Traceback (most recent call last):
  File "load_llm.py", line 8, in <module>
    llm = LLM(model='/models/alpaca-2')
ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (3664).
"""
CUT_BY_A_TERMINAL = """\
(EngineCore pid=316) ERROR 08-21 18:37:44 [core.py:1344] EngineCore failed to start.
(EngineCore pid=316) ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cach
e is needed, which is larger than the available KV cache memory (4.25 GiB). Based on the avai
"""
FOREIGN_PREFIX = """\
2026-06-09 14:01:52.982 [Error] (Process) (EngineCore pid=42521) ERROR 06-09 14:01:52 [core.py:1136]     raise ValueError(
2026-06-09 14:01:52.982 [Error] (Process) (EngineCore pid=42521) ERROR 06-09 14:01:52 [core.py:1136] ValueError: To serve at least one \
request with the models's max seq len (131072), (4.11 GiB KV cache is needed, which is larger than the available KV cache memory (4.0 GiB).
"""
CAPTURE_WITH_AN_UNFINISHED_BAR = """\
(Worker_TP3 pid=8456) ERROR 04-17 02:01:23 [multiproc_executor.py:949] WorkerProc hit an exception.
(Worker_TP3 pid=8456) ERROR 04-17 02:01:23 [multiproc_executor.py:949] Traceback (most recent call last):
(Worker_TP3 pid=8456) ERROR 04-17 02:01:23 [multiproc_executor.py:949]   File "/torch/cuda/graphs.py", line 268, in __exit__
(Worker_TP3 pid=8456) ERROR 04-17 02:01:23 [multiproc_executor.py:949]     self.cuda_graph.capture_end()
(Worker_TP3 pid=8456) ERROR 04-17 02:01:23 [multiproc_executor.py:949] torch.AcceleratorError: CUDA error: out of memory
Capturing CUDA graphs (decode, FULL):  34%|███▍      | 12/35 [00:19<00:02,  9.93it/s](EngineCore pid=8338) INFO 04-17 02:02:16 \
[shm_broadcast.py:681] No available shared memory broadcast block found in 60 seconds.
"""
SERVING_FAILED = f"""\
{HEALTHY_START}{READY}\
(EngineCore pid=7) ERROR 06-13 20:09:13 [core.py:1167] EngineCore encountered a fatal error.
(EngineCore pid=7) ERROR 06-13 20:09:13 [core.py:1167] Traceback (most recent call last):
(EngineCore pid=7) ERROR 06-13 20:09:13 [core.py:1167]   File "/vllm/v1/engine/core.py", line 1158, in run_engine_core
(EngineCore pid=7) ERROR 06-13 20:09:13 [core.py:1167] RuntimeError: Worker failed with error 'Check failed: (status == cudaSuccess) \
is false: BatchPrefillWithPagedKVCache failed with error invalid argument', please check the stack trace above for the root cause
(APIServer pid=1) ERROR 06-13 20:09:13 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
(APIServer pid=1) INFO:     127.0.0.1:54882 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
(APIServer pid=1) INFO:     Shutting down
(APIServer pid=1) INFO:     Application shutdown complete.
"""
ASSERT_WHILE_SERVING = f"""\
{HEALTHY_START}{READY}\
/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:402: masked_scatter_size_check: Assertion `totalElements <= srcSize` failed.
(EngineCore_DP0 pid=9) ERROR 11-01 12:31:40 [dump_input.py:72] Dumping input data for V1 LLM engine with config: quantization=None
(EngineCore_DP0 pid=9) ERROR 11-01 12:31:40 [core.py:781] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=9) ERROR 11-01 12:31:40 [core.py:781] Traceback (most recent call last):
(EngineCore_DP0 pid=9) ERROR 11-01 12:31:40 [core.py:781] torch.AcceleratorError: CUDA error: device-side assert triggered
"""
WORKER_KILLED = """\
(EngineCore_DP0 pid=141) ERROR 11-21 09:33:00 [multiproc_executor.py:380] Worker proc VllmWorker-3 died unexpectedly (exit code: -9), \
shutting down executor.
"""
LIMITED_AND_THEN_TOO_LARGE = (
    "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/org/model/resolve/main/config.json\nRetrying in 1s [Retry 1/5].\n"
    + HEALTHY_START
    + engine_failure("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")
)
GATED = """\
INFO 11-21 09:20:13 [api_server.py:1034] vLLM API server version 0.10.0
Traceback (most recent call last):
  File "/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status
    response.raise_for_status()
requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/meta-llama/Llama-3/resolve/main/config.json

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 8, in <module>
    sys.exit(main())
OSError: You are trying to access a gated repo.
Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.
"""
SMALL_SHARED_MEMORY = worker_failure("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")
SMALL_SHARED_MEMORY = (
    "host:3663:4044 [0] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ewjreo (size 33030528), "
    "error: No space left on device (28)\n" + SMALL_SHARED_MEMORY
)
USAGE = "usage: vllm serve [model_tag] [options]\n" + "".join(f"               [--flag-{n} VALUE]\n" for n in range(50))
FIRST_OF_SEVERAL = (
    HEALTHY_START
    + worker_failure(
        "ValueError: Free memory on device cuda:1 (54.34/79.18 GiB) on startup is less than desired GPU memory utilization (0.92, 72 GiB)."
    )
    + "(Worker_TP1 pid=21) ERROR 11-21 09:51:01 [worker.py:7] torch.distributed.DistStoreError: Timed out after 601 seconds\n"
)

CRASHES = [
    ("the engine of 2024", V0_ENGINE, "MaxModelLenExceedsKvCache", "https://github.com/gpustack/gpustack/issues/1800"),
    ("the library of 2023", V0_LIBRARY, "MaxModelLenExceedsKvCache", "https://github.com/vllm-project/vllm/issues/2418"),
    ("a line cut by a terminal", CUT_BY_A_TERMINAL, "MaxModelLenExceedsKvCache", "SergiioB/intel-arc-pro-b70-inference-cookbook#4"),
    ("a prefix of another program", FOREIGN_PREFIX, "MaxModelLenExceedsKvCache", "lemonade-sdk/vllm-rocm#5"),
    ("memory gone in graph capture", CAPTURE_WITH_AN_UNFINISHED_BAR, "CudaOomGraphCapture", "leadawon/LAMBO"),
    ("a crash while serving", SERVING_FAILED, "FlashInferKernelInvalidArgument", "trietnguyeminh/Submission---EXACT--IJCNN"),
    ("an assertion on the GPU while serving", ASSERT_WHILE_SERVING, "GpuAssertionFailed", "DoanNgocCuong/fintech"),
    ("a worker killed by the system", WORKER_KILLED, "OOMKilled", "vllm/v1/executor/multiproc_executor.py (0.33)"),
    ("rate limited, and later out of memory", LIMITED_AND_THEN_TOO_LARGE, "CudaOutOfMemory", "constructed"),
    ("a gated model", GATED, "HfGatedRepo", "https://github.com/vllm-project/vllm/issues/9255"),
    ("NCCL explains before it fails", SMALL_SHARED_MEMORY, "NcclShmTooSmall", "llm-d/llm-d#352"),
    (
        "a flag that is not known",
        USAGE + "vllm serve: error: unrecognized arguments: --moe-backend triton\n",
        "UnknownCliArgument",
        "constructed",
    ),
    ("other ranks time out later", FIRST_OF_SEVERAL, "GpuMemoryInUse", "constructed"),
    ("nothing but the echo", HEALTHY_START + API_SERVER_GIVES_UP, "EngineCoreInitFailed", "constructed"),
]


@pytest.mark.parametrize(("log", "signature"), [pytest.param(log, signature, id=name) for name, log, signature, _ in CRASHES])
def test_a_failing_engine_is_diagnosed(log: str, signature: str) -> None:
    assert named(log) == signature


STOPPED_BY_SIGTERM = f"""\
{HEALTHY_START}{READY}\
(EngineCore pid=7) INFO 08-01 21:34:51 [core.py:1214] [shutdown] EngineCore: trigger received signal=SIGTERM
(APIServer pid=1) INFO 08-01 21:34:51 [launcher.py:100] [shutdown] API server: shutdown triggered
(APIServer pid=1) ERROR 08-01 21:34:51 [async_llm.py:704] AsyncLLM output_handler failed.
(APIServer pid=1) ERROR 08-01 21:34:51 [async_llm.py:704] Traceback (most recent call last):
(APIServer pid=1) ERROR 08-01 21:34:51 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
(APIServer pid=1) INFO:     Shutting down
"""
STOPPED_WITH_CTRL_C = f"""\
{HEALTHY_START}{READY}\
ERROR 09-08 10:00:00 [core_client.py:564] Engine core proc EngineCore_0 died unexpectedly, shutting down client.
(APIServer pid=1) INFO:     Shutting down
(APIServer pid=1) INFO:     Application shutdown complete.
Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 8, in <module>
    sys.exit(main())
KeyboardInterrupt
"""
A_REQUEST_FAILED = f"""\
{HEALTHY_START}{READY}\
(APIServer pid=1) ERROR:    Exception in ASGI application
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/starlette/routing.py", line 73, in app
(APIServer pid=1) ModuleNotFoundError: No module named 'librosa'
(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/audio/transcriptions HTTP/1.1" 500 Internal Server Error
"""
REPORTING_USAGE_FAILED = f"""\
{HEALTHY_START}\
Exception in thread Thread-4 (_report_usage_worker):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1075, in _bootstrap_inner
    self.run()
PermissionError: [Errno 13] Permission denied: '/.config'
(EngineCore pid=7) INFO 11-21 09:21:00 [gpu_model_runner.py:4879] Model loading took 2.05 GiB memory and 0.8 seconds
"""
IGNORED_AT_EXIT = f"""\
{HEALTHY_START}{READY}\
(APIServer pid=1) INFO:     Shutting down
Exception ignored in: <function SharedMemory.__del__ at 0x7f>
Traceback (most recent call last):
  File "/usr/lib/python3.12/multiprocessing/shared_memory.py", line 189, in __del__
BufferError: cannot close exported pointers exist
/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 2 leaked semaphore objects
"""
HEALTHY = [
    ("told to stop", STOPPED_BY_SIGTERM, "sostrowsk/dgx-spark-local-llm"),
    ("stopped with Ctrl-C", STOPPED_WITH_CTRL_C, "constructed"),
    ("a request that failed", A_REQUEST_FAILED, "constructed"),
    ("a thread that may fail", REPORTING_USAGE_FAILED, "constructed"),
    ("noise at exit", IGNORED_AT_EXIT, "constructed"),
    ("only the beginning", HEALTHY_START, "constructed"),
    ("ready", HEALTHY_START + READY, "constructed"),
]


@pytest.mark.parametrize("log", [pytest.param(log, id=name) for name, log, _ in HEALTHY])
def test_a_healthy_engine_raises_no_alarm(log: str) -> None:
    assert named(log) is None
    assert while_running(log) is None


def test_a_start_that_was_asked_to_stop_is_no_fault_of_the_engine() -> None:
    log = "INFO 06-13 14:12:45 [api_server.py:1287] vLLM API server version 0.9.1\nTraceback (most recent call last):\n"
    log += '  File "/usr/lib/python3.10/runpy.py", line 196, in _run_module_as_main\nKeyboardInterrupt: terminated\n'

    assert named(log) == "TerminatedDuringStartup"


def test_an_unknown_error_is_shown_by_its_innermost_line() -> None:
    crash = parsed(HEALTHY_START + worker_failure("AttributeError: 'Gemma9Block' object has no attribute 'rope'")).final_state.crash

    assert crash is not None
    assert crash.signature == "Unknown"
    assert crash.line == "AttributeError: 'Gemma9Block' object has no attribute 'rope'"
    assert 'File "/vllm/worker.py", line 5, in load' in crash.excerpt


def test_an_error_without_a_word_on_its_own_line_is_shown_with_the_next_one() -> None:
    log = 'Traceback (most recent call last):\n  File "/vllm/logs.py", line 5, in set\n    raise ValueError(\nValueError: \n'
    crash = parsed(log + "Invalid log settings: everything\nValid settings:\nall, none\n").final_state.crash

    assert crash is not None
    assert (crash.signature, crash.line) == ("Unknown", "ValueError: Invalid log settings: everything")


def test_a_server_that_stops_because_its_engine_is_gone_was_not_asked_to_stop() -> None:
    log = (
        f"{HEALTHY_START}{READY}"
        "(APIServer pid=1) WARNING 11-21 23:58:22 [core_client.py:699] [shutdown] MPClient: "
        "engine core exited unexpectedly; starting cleanup\n"
        "(APIServer pid=1) ERROR 11-21 23:58:22 [async_llm.py:704] AsyncLLM output_handler failed.\n"
        "(APIServer pid=1) INFO 11-21 23:58:22 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
        "(APIServer pid=1) INFO:     Shutting down\n"
    )

    assert named(log) == "EngineDead"
    assert named(log.replace("engine core exited unexpectedly; starting cleanup", "stopping engine manager")) is None


def test_an_unknown_error_behind_a_validation_is_the_reason_that_it_gives() -> None:
    log = HEALTHY_START + (
        '(APIServer pid=1) Traceback (most recent call last):\n(APIServer pid=1)   File "/usr/bin/vllm", line 8, in <module>\n'
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "(APIServer pid=1)   Value error, the moon is not full [type=value_error, input_type=ArgsKwargs]\n"
    )
    crash = parsed(log).final_state.crash

    assert crash is not None
    assert (crash.signature, crash.line.startswith("Value error, the moon is not full")) == ("Unknown", True)


def test_a_restart_in_the_same_log_begins_anew() -> None:
    failed = HEALTHY_START + engine_failure("ValueError: No available memory for the cache blocks.")

    assert named(failed + HEALTHY_START + READY) is None
    again = parsed(failed + HEALTHY_START)
    assert again.state.crash is None
    assert again.state.stage is Stage.WEIGHT_LOAD
    assert again.final_state.crash is not None
    assert again.final_state.crash.signature == "NoKvCacheMemory"


def test_the_remedy_has_the_numbers_of_the_log() -> None:
    line = (
        "To serve at least one request with the model's max seq len (262144), (18.35 GiB KV cache is needed, which is larger than "
        "the available KV cache memory (8.72 GiB). Based on the available memory, the estimated maximum model length is 124576."
    )
    crash = parsed(HEALTHY_START + engine_failure(line)).final_state.crash

    assert crash is not None
    assert "needs 18.35 GiB and only 8.72 GiB is available" in crash.cause
    assert crash.remedy is not None
    assert "at most 124576" in crash.remedy
    assert ("estimated", "124576") in crash.captures


def test_a_log_without_ends_of_lines_is_read() -> None:
    log = " ".join((HEALTHY_START + engine_failure("ValueError: No available memory for the cache blocks.")).split())

    assert named(log) == "NoKvCacheMemory"


def test_a_program_that_ends_with_its_engine_still_running_did_not_crash() -> None:
    log = HEALTHY_START + READY.splitlines()[0] + "\nmy own output\n"
    log += "ERROR 01-04 21:58:22 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"

    assert named(log) is None  # https://github.com/vllm-project/vllm/issues/31681


VARIANTS = [
    (
        "HfRepoNotFound",
        "OSError: org/nothing is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    ),
    ("ModelFilesMissing", "ValueError: No supported config format found in /models/llama"),
    ("ModelFilesMissing", "RuntimeError: Cannot find any model weights with `/models/llama`"),
    ("NoGpuVisible", "RuntimeError: Device string must not be empty"),
    ("NoGpuVisible", "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found"),
    ("NvidiaDriverTooOld", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver"),
    ("CudaOutOfMemory", "RuntimeError: Triton Error [CUDA]: out of memory"),
    ("CudaOutOfMemory", "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB"),
    ("PortInUse", "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.3:5557')"),
    ("PortInUse", "torch.distributed.DistNetworkError: The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE"),
    ("FlashInferNvccMissing", "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"),
    ("FlashInferNvccMissing", "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
    ("FlashInferJitBuildFailed", "subprocess.CalledProcessError: Command '['ninja', '-v', '-C', '/c']' returned non-zero exit status 1."),
    ("Fp8DtypeUnsupportedOnGpu", 'CompilationError: ValueError("type fp8e4nv not supported in this architecture.")'),
    ("DistributedTimeout", "TimeoutError: RPC call to execute_model timed out."),
    ("HfOfflineOrUnreachable", "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out."),
    ("InvalidToolOrReasoningParser", "KeyError: \"Reasoning parser 'qwen9' not found. Available parsers: deepseek_r1, granite\""),
    ("UnknownCliArgument", "TypeError: AsyncEngineArgs.__init__() got an unexpected keyword argument 'swap_space'"),
    ("NotEnoughGpus", "RuntimeError: CUDA error: invalid device ordinal"),
    (
        "TransformersTooOld",
        "  Value error, The checkpoint has model type `x9` but Transformers does not recognize this architecture.",
    ),
    (
        "MoeBackendUnsupported",
        "NotImplementedError: Found VLLM_USE_FLASHINFER_MOE_FP8=1, but no FlashInfer FP8 MoE backend supports it.",
    ),
    ("LinearBackendUnsupported", "ValueError: --linear-backend=triton was requested but no 'triton' kernel exists for NVFP4 layers."),
    (
        "NoValidAttentionBackend",
        "ValueError: No valid MLA prefill backend found with MLAPrefillSelectorConfig(). Reasons: {}",
    ),
    (
        "CompileCacheCorrupt",
        "Corrupted JIT cache directory (missing kernel.cubin): /cache/k.1a, please run `rm -rf /cache/k.1a`",
    ),
    ("WeightNameOrShapeMismatch", "    assert param_data.shape == loaded_weight.shape\nAssertionError"),
    ("TensorParallelNotDivisible", "    assert self.total_num_kv_heads % tp_size == 0\nAssertionError"),
    ("FlashInferMoeFp8BlockQuantAssert", "    assert self.block_quant is None\nAssertionError"),
]


@pytest.mark.parametrize(("signature", "lines"), [pytest.param(*each, id=f"{each[0]}-{number}") for number, each in enumerate(VARIANTS)])
def test_other_wordings_of_the_same_error_are_recognised(signature: str, lines: str) -> None:
    assert named(HEALTHY_START + engine_failure(lines)) == signature


def test_a_crash_in_native_code_is_shown_by_its_own_line() -> None:
    crash = parsed(HEALTHY_START + "Fatal Python error: Segmentation fault\n" + API_SERVER_GIVES_UP).final_state.crash

    assert crash is not None
    assert (crash.signature, crash.line) == ("NativeCodeCrash", "Fatal Python error: Segmentation fault")
