"""A line far from the error, or an argument, decides what the diagnosis says. Without it, the diagnosis says something else."""

import pytest

from support.pasted import read_pasted
from vllm_operator.logs.state import Crash

PACKAGES = "/usr/local/lib/python3.12/dist-packages/"
READY = "(APIServer pid=7) INFO:     Application startup complete.\n"
ENGINE = "(EngineCore pid=40) INFO 10-01 10:00:03 [core.py:105] Initializing a V1 LLM engine (v0.30.0) with config: model='/m/odd'"
RECORD = "(EngineCore pid=40) ERROR 10-01 10:01:10 [core.py:1366] "
INFER = "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`"
NOT_READY = "torch.AcceleratorError: CUDA error: device not ready"
SCALAR = "RuntimeError: expected scalar type BFloat16 but found Float"
FREE = " GPU 0 has a total capacity of 47.43 GiB of which 411.62 MiB is free."
HELD = " Of the allocated memory 45.02 GiB is allocated by PyTorch, and 768.41 MiB is reserved by PyTorch but unallocated."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB." + FREE + HELD
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB." + FREE
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
STORE = "RuntimeError: Initialize MooncakeDistributedStore failed."
UNQUANTIZED = "vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py:create_weights"
ALLOCATES = "vllm/v1/worker/gpu_model_runner.py:_allocate_kv_cache_tensors"
WORKER, STORED = "vllm/v1/worker/gpu_worker.py", "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/worker.py"
READS = "vllm/distributed/device_communicators/shm_broadcast.py:acquire_read"
MERGED = f'  File "{PACKAGES}vllm/odd.py", line 715\n    <<<<<<< HEAD\n    ^^\n'
CONDA = "ImportError: /lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by {}/libicui18n.so.78)"
PARSER = "KeyError: \"Reasoning parser 'odd_tools' not found. Available parsers: deepseek_r1, qwen3\""
TRITON = "ImportError: cannot import name 'odd' from 'triton.runtime.jit' ({}triton/runtime/jit.py)"


def crash_of(error: str, *files: str, before: str = "", given: str = "", engine: str = "", beside: str = "", source: str = "f()") -> Crash:
    arguments = f"(APIServer pid=7) INFO 10-01 10:00:00 [utils.py:253] non-default args: {{'model': '/m/odd'{given}}}\n"
    title = "EngineCore encountered a fatal error." if READY in beside else "EngineCore failed to start."
    lines = [title, "Traceback (most recent call last):"]
    for each in files:
        file, _, function = each.partition(":")
        lines += [f'  File "{file if file.startswith("/") else PACKAGES + file}", line 10, in {function or "call"}', f"    {source}"]
    log = f"{before}{arguments}{ENGINE}{engine}\n{beside}" + "".join(f"{RECORD}{line}\n" for line in (*lines, *error.splitlines()))
    crash = read_pasted(log).final_state.crash
    assert crash is not None
    return crash


def said(crash: Crash) -> str:
    return f"{crash.signature} {crash.cause} {crash.remedy}"


CAST = "(APIServer pid=7) WARNING 10-01 10:00:01 [model.py:2044] Casting torch.bfloat16 to torch.float16.\n"
WSL = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
WSL += "WARNING 10-01 09:13:50 [interface.py:540] Using 'pin_memory=False' as WSL is detected.\n"
AVX = "WARNING 10-01 09:13:50 [cpu.py:31] Failed to import from vllm._C_AVX512: No module named 'vllm._C_AVX512'\n"
XPU = "/torch/xpu/__init__.py:61: UserWarning: XPU device count is zero! (Triggered internally at /pytorch/c10/xpu/XPUFunctions.cpp:115.)\n"
CUDA = "WARNING 10-01 09:13:50 [ops.py:20] Failed to import from vllm._C: ImportError('libcuda.so.1: cannot open shared object file')\n"
PLUGIN = (
    "E0622 15:40:12.220145  1320 transfer_metadata_plugin.cpp:560] Unable to find metadata storage plugin odd with conn string odd://h\n"
)
REFUSED = "E0824 12:31:07.551120   880 master_client.cpp:411] RPC call failed: invalid rpc arg\n"
BOUND = (
    "E0922 08:11:40.118231   412 transfer_metadata_plugin.cpp:921] SocketHandShakePlugin: bind (port 12300): Address already in use [98]\n"
)
CUSTOM = "[usercustomize] import vllm.model_executor.models.registry\n"
BOTH = "torch 2.8.0+rocm6.4  pytorch-triton-rocm 3.4.0  triton 3.7.1\n"


@pytest.mark.parametrize(
    ("with_it", "without", "words"),
    [
        pytest.param(crash_of(SCALAR, WORKER, beside=CAST), crash_of(SCALAR, WORKER), "Set --dtype bfloat16", id="cast-of-the-type"),
        pytest.param(crash_of(NOT_READY, before=WSL), crash_of(NOT_READY), "expandable_segments:False", id="wsl"),
        pytest.param(crash_of(INFER, before=AVX), crash_of(INFER), "VLLM_TARGET_DEVICE=cpu", id="build-without-code-for-cpus"),
        pytest.param(crash_of(INFER, before=XPU), crash_of(INFER), "XPU device count is zero", id="no-intel-gpu"),
        pytest.param(crash_of(INFER, before=CUDA), crash_of(INFER), "use the vLLM for ROCm or XPU", id="build-for-cuda"),
        pytest.param(crash_of(STORE, STORED, beside=PLUGIN), crash_of(STORE, STORED), "no plugin for the metadata server odd", id="plugin"),
        pytest.param(crash_of(STORE, STORED, beside=REFUSED), crash_of(STORE, STORED), "mooncake_master", id="refused-by-the-master"),
        pytest.param(crash_of(STORE, STORED, beside=BOUND), crash_of(STORE, STORED), "--port has no effect", id="ports-of-mooncake"),
        pytest.param(
            crash_of(ILLEGAL, ALLOCATES, before="+ getconf PAGESIZE\n65536\n", source="torch.zeros("),
            crash_of(ILLEGAL, ALLOCATES, before="+ ulimit -n\n65536\n", source="torch.zeros("),
            "Boot a kernel with pages of 4 KiB",
            id="pages-of-64-kib",
        ),
        pytest.param(crash_of(OOM.format("562.00")), crash_of(OOM.format("862.00")), "fragmentation)", id="reserved-but-unallocated"),
        pytest.param(
            crash_of(MEMORY, UNQUANTIZED, engine=", quantization=compressed-tensors, x=1"),
            crash_of(MEMORY, UNQUANTIZED, engine=", quantization=None, x=1"),
            "quantization_config",
            id="experts-without-quantization",
        ),
        pytest.param(
            crash_of(PARSER, given=", 'tool_call_parser': 'odd_tools'"),
            crash_of(PARSER, given=", 'tool_call_parser': 'hermes'"),
            "Remove --reasoning-parser",
            id="parser-of-tool-calls",
        ),
        pytest.param(
            crash_of(CONDA.format("/home/u/conda-envs/odd/lib")), crash_of(CONDA.format("/usr/lib")), "$CONDA_PREFIX/lib", id="conda"
        ),
        pytest.param(
            crash_of(TRITON.format(PACKAGES), "triton/language/core.py"),
            crash_of(TRITON.format(PACKAGES), "vllm/odd.py"),
            "the folder triton has files of two packages",
            id="mixed-packages",
        ),
        pytest.param(
            crash_of("ModuleNotFoundError: No module named 'vllm._C'", "/src/vllm/vllm/platforms/xpu.py"),
            crash_of("ModuleNotFoundError: No module named 'vllm._C'", "vllm/platforms/xpu.py"),
            "Start vLLM in another directory",
            id="sources-in-the-working-directory",
        ),
    ],
)
def test_a_line_or_an_argument_decides(with_it: Crash, without: Crash, words: str) -> None:
    assert words in said(with_it)
    assert words not in said(without)


def test_the_packages_that_share_a_folder_are_named() -> None:
    crash = crash_of(TRITON.format(PACKAGES), "triton/language/core.py", before=BOTH)
    assert "(pytorch-triton-rocm 3.4.0, triton 3.7.1)" in crash.cause


def test_a_syntax_error_at_a_mark_of_a_merge_is_no_matter_of_the_python_version() -> None:
    error = f"{MERGED}SyntaxError: invalid syntax"
    assert crash_of(error, WORKER).signature == "MergeConflictInSource"
    assert crash_of("SyntaxError: invalid syntax", WORKER).signature == "PythonVersionIncompatible"


@pytest.mark.parametrize(("before", "said_so"), [(CUSTOM, True), ("", False), ("[usercustomize] patched odd\n", False)])
def test_an_engine_that_ends_without_a_word_may_have_been_ended_by_a_file_that_python_runs_first(before: str, said_so: bool) -> None:
    lines = ("Traceback (most recent call last):", "RuntimeError: Engine core initialization failed. See root cause above.")
    arguments = "(APIServer pid=7) INFO 10-01 10:00:00 [utils.py:253] non-default args: {'model': '/m/odd'}\n"
    crash = read_pasted(f"{before}{arguments}" + "".join(f"(APIServer pid=7) {line}\n" for line in lines)).final_state.crash
    assert crash is not None
    assert ("take its folder out of PYTHONPATH" in (crash.remedy or "")) == said_so


def test_the_reason_after_an_exception_of_tt_metal_is_shown() -> None:
    error = "RuntimeError: TT_FATAL @ odd.cpp:46\ninfo:\nOut of Memory: Not enough space to allocate 1048576 B DRAM buffer across 8 banks"
    crash = crash_of(error, "/tt-metal/models/odd/tt/decoder.py")
    assert crash.family == "TenstorrentMemoryShort"
    assert "for 1.0 MiB more" in crash.cause


def test_a_silent_worker_of_an_engine_that_served_may_share_its_gpu() -> None:
    assert "another program uses the GPUs" in said(crash_of("TimeoutError", READS, beside=READY))
    assert "another program uses the GPUs" not in said(crash_of("TimeoutError", READS))


@pytest.mark.parametrize(("count", "is_told"), [(1, False), (3, False), (4, True), (18, True)])
def test_only_repeated_requests_that_are_no_http_are_told(count: int, is_told: bool) -> None:
    parser = read_pasted(READY + "(APIServer pid=7) WARNING:  Invalid HTTP request received.\n" * count)
    assert parser.final_state.crash is None
    assert [each.signature for each in parser.notices_beside(None)] == ["PlainPortGetsTls"] * is_told


DRAFTS = ", 'speculative_config': {'method': 'mtp'}"


@pytest.mark.parametrize(("given", "words"), [(DRAFTS, "without --speculative-config"), ("", "--dtype")])
def test_answers_that_json_cannot_hold_are_told(given: str, words: str) -> None:
    arguments = f"(APIServer pid=7) INFO 10-01 10:00:00 [utils.py:253] non-default args: {{'model': '/m/odd'{given}}}\n"
    lines = (
        "Traceback (most recent call last):",
        f'  File "{PACKAGES}starlette/responses.py", line 187, in render',
        "    return json.dumps(",
    )
    error = "ValueError: Out of range float values are not JSON compliant: nan"
    log = arguments + READY + "".join(f"(APIServer pid=7) ERROR 10-01 10:02:00 [serving.py:1143] {line}\n" for line in (*lines, error))
    parser = read_pasted(log)
    assert parser.final_state.crash is None
    assert [(each.signature, words in (each.remedy or "")) for each in parser.notices_beside(None)] == [("LogprobsNotANumber", True)]


@pytest.mark.parametrize(
    ("given", "named"), [(", 'port': 8001", "the port 8001 that"), (", 'port': 80, 'seed': 1", "the port 80 that"), ("", "the port that")]
)
def test_the_port_that_is_taken_is_that_of_the_arguments(given: str, named: str) -> None:
    crash = crash_of(
        "OSError: [Errno 98] Address already in use", "vllm/entrypoints/openai/api_server.py:create_server_socket", given=given
    )
    assert named in crash.cause


@pytest.mark.parametrize(("given", "first"), [(", 'quantization': 'mxfp8'", "without --quantization"), (", 'seed': 1", "Use a newer vLLM")])
def test_an_encoder_that_got_data_in_fp8_is_not_to_be_started_without_a_flag_that_is_not_set(given: str, first: str) -> None:
    files = ("vllm/model_executor/models/odd_mm.py:embed_multimodal", "vllm/model_executor/layers/quantization/odd.py")
    crash = crash_of("AssertionError: Input dtype must be odd, got torch.float8_e4m3fn", *files, given=given)
    assert crash.family == "EncoderQuantizedOnline"
    assert first in (crash.remedy or "")


FOUND = "(EngineCore pid=40)     Found GPU0 NVIDIA {} which is of cuda capability 12.1.\n"
DUMP = RECORD + "Dumping scheduler output for model execution: SchedulerOutput(scheduled_spec_decode_tokens={a-1: [%s]})\n"


@pytest.mark.parametrize(("gpu", "first"), [("GB10", "--kv-cache-memory-bytes"), ("RTX PRO 6000", "0.95")])
def test_a_gpu_that_shares_the_memory_of_the_cpu_decides_how_to_make_room_for_the_kv_cache(gpu: str, first: str) -> None:
    assert first in (crash_of("ValueError: No available memory for the cache blocks.", beside=FOUND.format(gpu)).remedy or "")


@pytest.mark.parametrize(("tokens", "is_told"), [("-1, -1", True), ("271, 31", False)])
def test_drafted_tokens_that_are_placeholders_tell_where_an_index_came_from(tokens: str, is_told: bool) -> None:
    crash = crash_of("torch.AcceleratorError: CUDA error: device-side assert triggered", beside=READY + DUMP % tokens)
    assert ("placeholders" in crash.cause) is is_told
    assert ("--no-async-scheduling" in (crash.remedy or "")) is is_told


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("vllm/model_executor/layers/fused_moe/odd_moe.py:_ensure_workspace", "Choose another --moe-backend"),
        ("vllm/v1/attention/backends/odd.py:allocate_workspace", "Choose another --attention-backend"),
        ("vllm/v1/attention/backends/odd.py:forward", "Lower --max-num-batched-tokens"),
    ],
)
def test_memory_that_ran_out_before_the_kv_cache_is_that_of_a_step_or_of_the_work_space_of_a_kernel(file: str, first: str) -> None:
    loaded = "(EngineCore pid=40) INFO 10-01 10:01:00 [gpu_model_runner.py:5132] Model loading took 21.82 GiB memory and 22.1 seconds\n"
    crash = crash_of(MEMORY, f"{WORKER}:determine_available_memory", "vllm/v1/worker/gpu_model_runner.py:profile_run", file, beside=loaded)
    assert (crash.remedy or "").startswith(first)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("transformers/odd.py:<module>", "kernels/layer.py:__init__"), "The package kernels, which transformers uses,"),
        (("vllm/odd.py", "acme/odd.py:<module>"), "The package acme could"),
    ],
)
def test_the_package_at_fault_is_that_of_the_last_frame(files: tuple[str, ...], named: str) -> None:
    assert named in crash_of("ValueError: odd", *files).cause
