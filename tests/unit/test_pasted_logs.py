"""Logs as people paste them: wrapped, cut, quoted, without indentation or ends of lines."""

import sys

import pytest

from support.pasted import read_pasted


def named(text: str) -> str | None:
    parser = read_pasted(text)
    crash = parser.final_state.crash
    return crash.signature if crash else None


SURVIVED_BY_A_NEIGHBOUR = """\
(VllmWorker rank=0 pid=3781015) ERROR 08-16 11:45:16 [multiproc_executor.py:511]     param = params_dict[name_mapped]
(VllmWorker rank=0 pid=3781015) ERROR 08-16 11:45:16 [multiproc_executor.py:511] KeyError: 'layers.1.mlp.experts.w13_weight'
Loading safetensors checkpoint shards:  47% Completed | 7/15 [00:20<00:23,  2.93s/it]
ERROR 08-16 11:45:17 [core.py:632] EngineCore failed to start.
"""
"""A log that begins in the middle (https://github.com/vllm-project/vllm/issues/23025)."""

WRAPPED_MESSAGE = """\
ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than
desired GPU memory utilization (0.85, 103.38 GiB).
"""
"""https://github.com/eugr/spark-vllm-docker/issues/257"""

INDENTATION_LOST = """\
ERROR 09-30 01:24:08 [multiproc_executor.py:597] File "/opt/torch/distributed/_symmetric_memory/__init__.py", line 1711, in rendezvous
ERROR 09-30 01:24:08 [multiproc_executor.py:597] return _SymmetricMemory.rendezvous(tensor, group_name)
ERROR 09-30 01:24:08 [multiproc_executor.py:597] ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ERROR 09-30 01:24:08 [multiproc_executor.py:597] RuntimeError: CUDA driver error: invalid argument
"""

WORKER_GONE_WHILE_SERVING = """\
(APIServer pid=1) INFO 05-13 10:46:43 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 5 reqs
(EngineCore pid=196) ERROR 05-13 10:46:43 [multiproc_executor.py:283] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.
"""
"""https://github.com/vllm-project/vllm/issues/40756"""

SYMMETRIC_MEMORY_IN_ONE_LINE = """\
RuntimeError: CUDA driver error: invalid device ordinal (EngineCore_DP0 pid=11546) ERROR [symm_mem.py:88] handle = symm_mem.rendezvous
"""
"""https://github.com/vllm-project/vllm/pull/33274: the driver says the same of a device that does not exist."""

HUB_IS_DOWN = (
    "huggingface_hub.utils._errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/x\n"
)
"""https://github.com/runpod-workers/worker-vllm/issues/46"""

CACHE_OF_ANOTHER_USER = "error: failed to create directory `/.cache/uv`: Permission denied (os error 13)\n"
"""https://github.com/llama-farm/llamafarm/issues/268"""


UNKNOWN_BEFORE_A_NEIGHBOUR = """\
(RayWorkerWrapper pid=335, ip=10.1.0.67) ERROR 01-29 07:44:33 worker_base.py:467] RuntimeError: the fabric sulks
(RayWorkerWrapper pid=336, ip=10.1.0.67) INFO 01-29 07:44:27 pynccl.py:69] vLLM is using nccl==2.21.5 [repeated 14x across cluster]
(RayWorkerWrapper pid=994) ERROR 01-29 07:44:33 worker_base.py:467] Error executing method init_device. \
This might cause deadlock in distributed execution.
"""
"""Ray delivers what other workers wrote earlier after the error (https://github.com/NVIDIA/nccl/issues/1591)."""

RAY_GUESSES = """\
(EngineCore pid=1879) (raylet) Worker exit detail: Some common causes include: \
(1) the process was killed by the OOM killer due to high memory usage.
(EngineCore pid=1879) ERROR 03-29 12:59:53 [core.py:1099] EngineCore failed to start.
"""
"""What it was is not said (https://github.com/vllm-project/vllm/pull/38529: a segmentation fault)."""


@pytest.mark.parametrize(
    ("log", "signature"),
    [
        (UNKNOWN_BEFORE_A_NEIGHBOUR, "Unknown"),
        (RAY_GUESSES, "EngineCoreInitFailed"),
        (SYMMETRIC_MEMORY_IN_ONE_LINE, "TorchSymmMemMulticastFailed"),
        (HUB_IS_DOWN, "HfOfflineOrUnreachable"),
        (CACHE_OF_ANOTHER_USER, "CacheDirNotWritable"),
        (SURVIVED_BY_A_NEIGHBOUR, "WeightNameOrShapeMismatch"),
        (WRAPPED_MESSAGE, "GpuMemoryInUse"),
        (INDENTATION_LOST, "TorchSymmMemMulticastFailed"),
        (INDENTATION_LOST.replace("\n", " "), "TorchSymmMemMulticastFailed"),
        (WORKER_GONE_WHILE_SERVING, "EngineDead"),
    ],
    ids=[
        "unknown before a neighbour goes on",
        "what Ray guesses",
        "symmetric memory",
        "the hub is down",
        "a folder of another user",
        "another process goes on",
        "a message over two lines",
        "no indentation",
        "no line ends",
        "a worker is gone",
    ],
)
def test_a_log_as_people_paste_it(log: str, signature: str) -> None:
    assert named(log) == signature


def test_a_source_line_without_its_indentation_is_no_exception() -> None:
    cut = 'Traceback (most recent call last):\nFile "/opt/vllm/scripts.py", line 204, in main\nargs.dispatch_function(args)\n'
    assert named(cut) is None


FAULT_OF_A_REQUEST = """\
(APIServer pid=1) ERROR 04-28 14:17:50 [serving_chat.py:257] Traceback (most recent call last):
(APIServer pid=1) ERROR 04-28 14:17:50 [serving_chat.py:257]   File "/opt/vllm/entrypoints/openai/serving_chat.py", line 231, in create
(APIServer pid=1) ERROR 04-28 14:17:50 [serving_chat.py:257] ValueError: 'max_tokens' is too large: 8192.
"""
"""https://github.com/opendatalab/MinerU/issues/4868"""


def test_the_fault_of_a_request_is_no_crash() -> None:
    assert named(FAULT_OF_A_REQUEST) is None


DESCRIBED = """\
Annotations:    autoscaling.knative.dev/class: kpa.autoscaling.knative.dev
                internal.serving.kubeflow.org/storage-initializer-sourceuri: gs://models/resnet50
Status:         Pending
IP:             10.8.1.91
"""
"""What kubectl prints is indented like a traceback (https://github.com/kserve/kserve/issues/817)."""


def test_a_description_of_a_pod_is_no_traceback() -> None:
    assert named(DESCRIBED) is None


@pytest.mark.parametrize("escape", ["\x1b", "^[", "#033", "\\u001b", "\\033"])
def test_colours_are_taken_off_however_they_are_written(escape: str) -> None:
    end = "#015\n" if escape == "#033" else "\n"
    head = f"{escape}[1;36m(VllmWorker TP1 pid=413){escape}[0;0m ERROR 09-01 04:36:17 [multiproc_executor.py:559]"
    assert (
        named(f"{head} WorkerProc failed to start.{end}{head} AssertionError: 12 is not divisible by 8{end}")
        == "TensorParallelNotDivisible"
    )


ASIDE = """\
Traceback (most recent call last):
  File "/workspace/collect_env.py", line 174, in get_vllm_ascend_version
    from vllm_ascend._version import __version__
ModuleNotFoundError: No module named 'vllm_ascend._version'
"""
"""What people paste before the log (https://github.com/vllm-project/vllm-ascend/issues)."""


def test_the_script_that_collects_the_environment_is_not_the_engine() -> None:
    failed = "ERROR 05-26 02:41:53 [core.py:1136] EngineCore failed to start.\n"
    unknown = f"{failed}ERROR 05-26 02:41:53 [core.py:1136] RuntimeError: the fabric sulks\n"
    assert named(ASIDE + unknown) == "Unknown"
    assert named(ASIDE) == "PythonPackageMissing"


FAULT_OF_A_REQUEST_BEFORE_UVICORN = """\
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/lmformatenforcer/integrations/transformers.py", line 5, in <module>
    from transformers.generation.logits_process import LogitsWarper
ImportError: cannot import name 'LogitsWarper' from 'transformers.generation.logits_process' (/opt/transformers/logits_process.py)
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "/opt/uvicorn/protocols/http/httptools_impl.py", line 409, in run_asgi
    result = await app(
ImportError: transformers is not installed.
"""
"""A request that cannot be served (https://github.com/vllm-project/vllm/issues/14401)."""


def test_what_uvicorn_says_of_a_request_is_no_crash() -> None:
    assert named(FAULT_OF_A_REQUEST_BEFORE_UVICORN) is None
    assert named(FAULT_OF_A_REQUEST_BEFORE_UVICORN + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore\n") == "EngineDead"


@pytest.mark.parametrize(
    "line",
    [
        "CRITICAL 02-25 11:11:34 launcher.py:101] MQLLMEngine is already dead, terminating server process",
        "ERROR 01-22 00:13:32 client.py:282] RuntimeError('Engine process (pid 77) died.')",
        "ERROR 12-17 09:16:13 [async_llm.py:480] AsyncLLM output_handler failed.",
    ],
)
def test_an_engine_that_died_while_it_served_is_dead(line: str) -> None:
    serving = "INFO 02-25 11:11:31 metrics.py:455] Avg prompt throughput: 2082.8 tokens/s, Running: 3 reqs\n"
    assert named(serving + line + "\n") == "EngineDead"


def test_a_request_that_finds_the_engine_dead_tells_of_a_crash() -> None:
    line = "ERROR 08-07 19:11:43 [serving_chat.py:1050] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    assert named(line) == "EngineDead"


def test_an_exception_in_backticks_is_one() -> None:
    assert named("`RuntimeError: something that nobody knows`\n") == "Unknown"


FAULT_OF_A_REQUEST_WITHOUT_ITS_HEAD = """\
  File "/opt/venv/lib/python3.12/site-packages/starlette/_exception_handler.py", line 62, in wrapped_app
    raise exc
  File "/opt/venv/lib/python3.12/site-packages/vllm/entrypoints/openai/serving_chat.py", line 254, in create_chat_completion
    return await self.chat_completion_full_generator(
KeyError: '<tool_call>'
"""
"""https://github.com/vllm-project/vllm/issues/8912"""


def test_what_answers_a_request_is_known_by_its_frames() -> None:
    assert named(FAULT_OF_A_REQUEST_WITHOUT_ITS_HEAD) is None
    assert named(FAULT_OF_A_REQUEST_WITHOUT_ITS_HEAD + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore\n") == "EngineDead"


def test_what_a_parser_of_answers_logs_is_the_fault_of_a_request() -> None:
    line = "(APIServer pid=1) ERROR 08-19 06:54:43 [mistral_tool_parser.py:365] json.decoder.JSONDecodeError: Expecting value\n"
    assert named(line) is None


def test_an_error_that_a_bar_of_another_process_follows_at_the_end_is_the_crash() -> None:
    error = "(EngineCore_DP0 pid=556790) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 MiB.\n"
    bar = "Loading safetensors checkpoint shards:   3% Completed | 1/37 [00:02<01:39,  2.77s/it]\n"
    going_on = "(EngineCore_DP0 pid=556790) INFO 12-24 08:50:36 [core.py:61] Something of this engine\n" * 20
    assert named(error + bar) == "CudaOutOfMemory"
    assert named(error + bar + going_on) is None


def test_the_error_of_a_client_is_not_the_engines() -> None:
    assert named("openai.BadRequestError: Error code: 400 - {'object': 'error', 'message': 'no chat template'}\n") is None


def test_a_port_that_is_in_use_is_found_only_when_the_application_is_up() -> None:
    up = "INFO:     Waiting for application startup.\nINFO:     Application startup complete.\n"
    down = "INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\n"
    refused = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"
    assert named(up + refused + down) == "PortInUse"
    assert named(up + down) is None


def test_a_runtime_that_finds_no_gpu_is_not_a_process_that_wants_too_many() -> None:
    line = "Error: OCI runtime create failed: stderr: nvidia-container-cli: detection error: cuda error: invalid device ordinal: unknown\n"
    assert named(line) == "NoGpuVisible"
    assert named("RuntimeError: CUDA error: invalid device ordinal\n") == "NotEnoughGpus"


def crash_line(log: str) -> tuple[str, str] | None:
    parser = read_pasted(log)
    crash = parser.final_state.crash
    return None if crash is None else (crash.signature, crash.line)


@pytest.mark.parametrize(
    ("log", "signature", "line"),
    [
        # https://github.com/vllm-project/vllm/issues/15300
        (
            '  File "/opt/vllm/transformers_utils/config.py", line 623, in load_params_config\n'
            "    assert isinstance(config_dict, dict)\nAssertionError`\n",
            "Unknown",
            "AssertionError",
        ),
        # https://github.com/sgl-project/sglang/issues/13352
        ("RuntimeError: the fabric sulks.```\n", "Unknown", "RuntimeError: the fabric sulks."),
        # https://github.com/vllm-project/vllm/issues/13451
        ('"ValueError: No supported config format found in"\n', "Unknown", "ValueError: No supported config format found in"),
        # https://github.com/vllm-project/vllm/pull/45320
        (
            "- it aborts with\n\n  ```\n  ValueError: the fabric sulks\n  ```\n\n  and never binds.\n",
            "Unknown",
            "ValueError: the fabric sulks",
        ),
        # https://github.com/vllm-project/vllm/issues/4655
        (
            "ValueError: The number of required GPUs exceeds the total\n",
            "NotEnoughGpus",
            "ValueError: The number of required GPUs exceeds the total",
        ),
    ],
)
def test_the_marks_of_a_post_are_no_part_of_the_error(log: str, signature: str, line: str) -> None:
    assert crash_line(log) == (signature, line)


def test_a_quotation_that_began_earlier_is_not_captured() -> None:
    """https://github.com/vllm-project/vllm/issues/2915."""
    parser = read_pasted('it says "api_server.py: error: unrecognized arguments: --lora-modules name=a/b"\n')

    crash = parser.final_state.crash
    assert crash is not None
    assert "--lora-modules name=a/b." in crash.cause


def test_what_is_indented_below_a_program_stays_so() -> None:
    """A fence that is not closed moves nothing."""
    assert crash_line("  ```\n  ValueError: the fabric sulks\n") is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: llama-2-7b-chat does not appear to have a file named config.json.\n", "incomplete. llama-2-7b-chat lacks config.json."),
        ("ImportError: cannot import name 'activation_ops' from 'vllm'\n", "This vLLM has no vllm.activation_ops. "),
        ("ModuleNotFoundError: No module named 'vllm.entrypoints.serve.render'\n", "This vLLM has no vllm.entrypoints.serve.render. "),
        (
            "```SSLError: host='huggingface.co' (Caused by SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')))```\n",
            "The Pod does not trust the TLS certificate",
        ),
        ("ModuleNotFoundError: No module named 'cachetools'\n", "The image lacks the Python package cachetools."),
    ],
)
def test_what_was_captured_reads_well_in_a_sentence(line: str, cause: str) -> None:
    parser = read_pasted(line)

    crash = parser.final_state.crash
    assert crash is not None
    assert cause in crash.cause


@pytest.mark.parametrize(
    "form", ['{{"line": "x", "a": {}}}', '[{{"line": "x", "a": {}}}]', '{{"a": {}}}'], ids=["entry", "list", "no text"]
)
def test_json_that_is_nested_as_deep_as_it_can_be_read_is_read(form: str) -> None:
    """Python reads JSON that is nested a little deeper than what it can write."""
    for depth in range(sys.getrecursionlimit() - 60, sys.getrecursionlimit() + 10):
        assert named(form.format("[" * depth + "]" * depth) + "\n") is None
