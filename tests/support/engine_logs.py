"""Short engine logs as vLLM writes them, to put lines into."""

from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash

HEALTHY_START = """\
(APIServer pid=1) INFO 11-21 09:20:13 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.20.1
(APIServer pid=1) INFO 11-21 09:20:13 [utils.py:233] non-default args: {'model_tag': 'org/model', 'enable_lora': True}
(APIServer pid=1) WARNING 11-21 09:20:13 [envs.py:1744] Unknown vLLM environment variable detected: VLLM_BUILD_COMMIT
(APIServer pid=1) WARNING 11-21 09:20:13 [system_utils.py:294] Found ulimit of 20000 and failed to automatically increase with error \
current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.
(APIServer pid=1) WARNING 11-21 09:20:28 [nixl_utils.py:34] NIXL is not available
(APIServer pid=1) INFO 11-21 09:20:28 [model.py:555] Resolved architecture: LlamaForCausalLM
(EngineCore pid=7) INFO 11-21 09:20:38 [core.py:109] Initializing a V1 LLM engine (v0.20.1) with config: model='org/model'
[W1121 09:20:40.674378560 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3
(EngineCore pid=7) INFO 11-21 09:20:41 [gpu_model_runner.py:4777] Starting to load model org/model...
"""

READY = """\
(EngineCore pid=7) INFO 11-21 09:21:50 [core.py:299] init engine (profile, create kv cache, warmup model) took 18.02 s
(APIServer pid=1) INFO:     Started server process [1]
(APIServer pid=1) INFO:     Waiting for application startup.
(APIServer pid=1) INFO:     Application startup complete.
(APIServer pid=1) INFO:     127.0.0.1:38412 - "GET /health HTTP/1.1" 200 OK
"""

_TIME = "11-21 09:21:01"
ENGINE_ERROR = "(EngineCore pid=7) ERROR 11-02 10:00:30 [core.py:1231] "
"""What begins each line of an error that the engine logs."""


def failed(error: str, *files: str, title: str = "EngineCore failed to start.") -> str:
    """An error that the engine logs, with a frame for each file of site-packages; `files` are a file, or file:function."""
    places = [file.partition(":") for file in files]
    frames = [f'  File "/usr/local/lib/python3.12/dist-packages/{file}", line 5, in {function or "call"}' for file, _, function in places]
    return "".join(f"{ENGINE_ERROR}{line}\n" for line in (title, "Traceback (most recent call last):", *frames, *error.splitlines()))


def engine_failure(lines: str) -> str:
    """A start that fails with `lines` at the end of the engine's traceback, and everything that repeats it."""
    record = f"(EngineCore pid=7) ERROR {_TIME} [core.py:1136] "
    raw = "(EngineCore pid=7) "
    frames = ['  File "/usr/lib/python3.12/vllm/v1/engine/core.py", line 1110, in run_engine_core', "    engine_core = EngineCoreProc("]
    body = lines.splitlines()
    logged = ["EngineCore failed to start.", "Traceback (most recent call last):", *frames, "    raise RuntimeError(", *body]
    printed = [
        "Process EngineCore:",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap',
        "    self.run()",
        *frames,
        *body,
    ]
    return "".join(f"{record}{line}\n" for line in logged) + "".join(f"{raw}{line}\n" for line in printed) + API_SERVER_GIVES_UP


def worker_failure(lines: str, *, workers: int = 2) -> str:
    """The same error in several workers at once, interleaved, and the echo of the engine."""
    body = [
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        '  File "/vllm/worker.py", line 5, in load',
        *lines.splitlines(),
    ]
    text = "".join(
        f"(Worker_TP{worker} pid={20 + worker}) ERROR {_TIME} [multiproc_executor.py:597] {line}\n"
        for line in body
        for worker in range(workers)
    )
    return text + engine_failure("Exception: WorkerProc initialization failed due to an exception in a background process.")


def crash_of(log: str) -> Crash:
    """The crash that a log shows."""
    parser = StartupParser(load_startup())
    parser.feed(log)
    crash = parser.final_state.crash
    assert crash is not None
    return crash


API_SERVER_GIVES_UP = """\
[rank0]:[W1121 09:21:01.698 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "<frozen runpy>", line 198, in _run_module_as_main
(APIServer pid=1)   File "/usr/lib/python3.12/vllm/v1/engine/utils.py", line 1057, in wait_for_engine_startup
(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
