"""An error that matches no signature says what the engine was doing, from the files in its traceback."""

import re

import pytest

from support.pasted import read_pasted
from vllm_operator.catalog.startup import FailureKind, load_startup
from vllm_operator.logs.state import Crash

PACKAGES = "/usr/local/lib/python3.12/dist-packages/"
WORKER, MODULE = "vllm/v1/worker/gpu_worker.py", "torch/nn/modules/module.py"
PREFIX = "(EngineCore pid=40) ERROR 10-01 10:01:10 [core.py:1366] "
ODD = "RuntimeError: odd"

CASES: dict[str, tuple[list[str], str]] = {
    "ObjectStoreFailed": ([WORKER, "runai_model_streamer/libstreamer/libstreamer.py"], ODD),
    "ModelDownloadFailed": ([WORKER, "huggingface_hub/file_download.py"], ODD),
    "CompileCacheReadFailed": (["vllm/compilation/decorators.py", "/cache/vllm/torch_compile_cache/torch_aot_compile/01/ab/cabc.py"], ODD),
    "FlashInferBuildFailed": (["vllm/v1/attention/backends/flashinfer.py", "flashinfer/jit/core.py"], ODD),
    "FlashInferFailed": (["vllm/v1/attention/backends/flashinfer.py", "flashinfer/prefill.py"], ODD),
    "DeepGemmFailed": (["vllm/model_executor/warmup/kernel_warmup.py", "vllm/utils/deep_gemm.py"], ODD),
    "TritonFailed": (["vllm/v1/attention/ops/triton_unified_attention.py", "triton/runtime/jit.py"], ODD),
    "CompilationFailed": ([WORKER, "torch/_inductor/codecache.py"], "AssertionError: odd"),
    "CudaGraphCaptureFailed": ([WORKER, "vllm/compilation/cuda_graph.py"], ODD),
    "CollectiveFailed": ([WORKER, "torch/distributed/distributed_c10d.py"], ODD),
    "CuteDslFailed": (
        ["vllm/models/deepseek_v4/nvidia/ops/gather.py", "nvidia_cutlass_dsl/python_packages/cutlass/base_dsl/compiler.py"],
        ODD,
    ),
    "AiterFailed": (["vllm/v1/worker/gpu/cudagraph_utils.py", "aiter/ops/gemm_op_a8w8.py"], ODD),
    "KvCacheTypeFailed": ([WORKER, "vllm/v1/attention/backends/turboquant_attn.py"], ODD),
    "KvOffloadFailed": (["vllm/v1/engine/core.py", "vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py"], "KeyError: 7"),
    "KvTransferFailed": (["vllm/v1/engine/core.py", "vllm/distributed/kv_transfer/kv_connector/factory.py"], "KeyError: 'odd'"),
    "SharedMemoryFailed": ([WORKER, "vllm/distributed/device_communicators/shm_broadcast.py"], ODD),
    "MemoryMeasurementFailed": ([WORKER, "vllm/utils/mem_utils.py"], "AssertionError: odd"),
    "DeviceFailed": (["vllm/v1/engine/core.py"], "torch.AcceleratorError: CUDA error: unknown error"),
    "TokenizerFailed": (["vllm/v1/engine/core.py", "transformers/tokenization_utils_base.py"], "TypeError: odd"),
    "ProcessorFailed": (["vllm/v1/engine/core.py", "transformers/processing_utils.py"], "TypeError: odd"),
    "ModelConfigFailed": (["vllm/v1/engine/core.py", "transformers/configuration_utils.py"], "TypeError: odd"),
    "LoraFailed": ([WORKER, "vllm/lora/worker_manager.py"], ODD),
    "SpeculativeDecodingFailed": ([WORKER, "vllm/v1/spec_decode/eagle.py"], ODD),
    "QuantizationFailed": ([WORKER, "vllm/model_executor/layers/quantization/fp8.py"], ODD),
    "MoeFailed": ([WORKER, "vllm/model_executor/layers/fused_moe/layer.py"], ODD),
    "AttentionFailed": ([WORKER, "vllm/v1/attention/backends/flash_attn.py"], ODD),
    "MambaFailed": ([WORKER, "vllm/model_executor/layers/mamba/mamba_mixer2.py"], ODD),
    "WeightsLoadFailed": ([WORKER, "vllm/model_executor/model_loader/default_loader.py"], ODD),
    "ModelCodeFailed": ([WORKER, "vllm/model_executor/models/glm4.py", MODULE], ODD),
    "RayFailed": (["vllm/v1/executor/ray_executor.py"], ODD),
    "ServerStartFailed": (["uvicorn/config.py"], ODD),
    "PluginFailed": (["vllm/plugins/__init__.py"], ODD),
    "ImportFailed": (["vllm/v1/engine/core.py"], "ImportError: odd"),
}


def crash_of(files: list[str], error: str) -> Crash:
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):"]
    for file in files:
        lines += [f'  File "{file if file.startswith("/") else PACKAGES + file}", line 10, in call', "    x = y()"]
    first = "(EngineCore pid=40) INFO 10-01 10:00:00 [core.py:123] Initializing a V1 LLM engine (v0.30.0) with config: model='/models/a'\n"
    crash = read_pasted(first + "".join(f"{PREFIX}{line}\n" for line in [*lines, error])).final_state.crash
    assert crash is not None
    return crash


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == {kind.id for kind in load_startup().kinds}


@pytest.mark.parametrize("kind", load_startup().kinds, ids=lambda kind: kind.id)
def test_an_error_without_a_signature_says_what_failed_and_what_to_try(kind: FailureKind) -> None:
    crash = crash_of(*CASES[kind.id])
    assert crash.signature == "Unknown"
    assert crash.cause == f"{kind.cause}: {CASES[kind.id][1]}"
    assert crash.remedy == kind.remedy


def test_the_innermost_file_that_says_something_decides() -> None:
    outer = crash_of(["vllm/model_executor/models/glm4.py", "vllm/model_executor/layers/fused_moe/layer.py", MODULE], ODD)
    inner = crash_of(["vllm/model_executor/layers/fused_moe/layer.py", "vllm/model_executor/models/glm4.py", MODULE], ODD)
    assert outer.cause.startswith("The code for mixture-of-experts layers failed")
    assert inner.cause.startswith("The code of the model failed")


DIRECT = "The above exception was the direct cause of the following exception:"
HANDLED = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize(
    ("first", "link", "last", "shown"),
    [
        ("KeyError: 'abc'", DIRECT, "RuntimeError: no widget", "RuntimeError: no widget (caused by KeyError: 'abc')"),
        ("StopIteration", HANDLED, "RuntimeError: no widget", "RuntimeError: no widget (caused by StopIteration)"),
        ("KeyError: 'abc'", HANDLED, "TypeError: the handler failed", "KeyError: 'abc'"),
    ],
)
def test_a_chain_of_exceptions_shows_what_failed_and_why(first: str, link: str, last: str, shown: str) -> None:
    lines = ["EngineCore failed to start."]
    for file, error in (("a.py", first), ("b.py", last)):
        lines += ["Traceback (most recent call last):", f'  File "{PACKAGES}acme/{file}", line 1, in f', "    x()", error, "", link, ""]
    crash = read_pasted("".join(f"{PREFIX}{line}\n" for line in lines[:-3])).final_state.crash
    assert crash is not None
    assert crash.cause.endswith(f": {shown}")


def test_an_error_in_unknown_files_is_reported_as_unknown() -> None:
    assert "matches no known signature" in crash_of(["acme/plugin.py"], ODD).cause


@pytest.mark.parametrize("kind", load_startup().kinds, ids=lambda kind: kind.id)
def test_a_kind_reads_well(kind: FailureKind) -> None:
    assert kind.frames is not None or kind.message is not None
    assert not kind.cause.endswith(".")
    assert kind.remedy.endswith(".")
    assert re.search(r"\s{2}", kind.remedy) is None
