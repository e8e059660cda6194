"""Kinds of crashes that a report showed once, in other words, with another model or another value, and errors that only look alike."""

import pytest

from support.pasted import read_pasted
from vllm_operator.logs.state import Crash

PREFIX = "(EngineCore pid=7) ERROR 11-02 10:00:30 [core.py:1231] "
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
ENCODER = (
    "(APIServer pid=1) ValueError: The decoder prompt contains a(n) video item with 21504 embedding tokens, which exceeds the "
    "pre-allocated encoder cache size 16384. Please reduce the input size or increase the encoder cache size by setting "
    "--limit-mm-per-prompt at startup.\n"
)
NEO = "Abort was called at 288 line in file:\n../../neo/shared/source/os_interface/linux/drm_neo.cpp\n"
DIED = f"{PREFIX}Worker proc VllmWorker-0 died unexpectedly, shutting down executor.\n"
CACHED = (
    "(EngineCore pid=7) INFO 11-02 10:00:20 [backends.py:310] Directly load the compiled graph(s) for compile range (1, 8) from the cache\n"
)
BUILT = "(EngineCore pid=7) INFO 11-02 10:00:20 [backends.py:376] Cache the graph of compile range (1, 8192) for later use\n"
LOADED = "(EngineCore pid=7) INFO 11-02 10:00:20 [gpu_model_runner.py:5132] Model loading took 34.91 GiB memory and 30.1 seconds\n"
LOADING = "(EngineCore pid=7) INFO 11-02 10:00:20 [gpu_model_runner.py:4978] Starting to load model org/m...\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RAY = "ValueError: Current node has no GPU available. current_node_resource={%s'CPU': 2.0}. vLLM engine cannot start without GPU."
STORE = "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
FLASH = "AssertionError: FlashAttention-4 only supports Hopper and Blackwell"
NO_TARGET = "RuntimeError: No supported CUDA architectures found for major versions [12]."
PASSES = "RuntimeError: PassManager::run failed"
STABLE = 'RuntimeError: torch_call_dispatcher( "aten::empty", "memory_format", stack.data(), TORCH_ABI_VERSION) API call failed at ops.h'
PARTS = "vllm/model_executor/models/gemma4.py"


def failed(error: str, *files: str, title: str = "EngineCore failed to start.") -> str:
    frames = [f'  File "/usr/local/lib/python3.12/dist-packages/{file}", line 5, in call' for file in files]
    return "".join(f"{PREFIX}{line}\n" for line in (title, "Traceback (most recent call last):", *frames, error))


# log, name or family, what the texts say, and what they do not
CASES = {
    "a value after a switch": ("vllm: error: unrecognized arguments: true\n", "UnknownCliArgument", "takes no value", "its name in this"),
    "a value of a switch": (
        "vllm serve: error: argument --enforce-eager/--no-enforce-eager: ignored explicit argument 'True'\n",
        "ArgumentValueInvalid",
        "takes no value",
        "Correct the value",
    ),
    "no value": ("vllm serve: error: argument --max-model-len: expected one argument\n", "ArgumentValueInvalid", "VALUE", "switch"),
    "a video too long": (
        f"{READY}{ENCODER}{PREFIX}EngineCore encountered a fatal error.\n",
        "InputExceedsEncoderCache",
        "21504",
        "transformers",
    ),
    "another error after it": (
        READY
        + ENCODER
        + failed(
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", title="EngineCore encountered a fatal error."
        ),
        "IllegalMemoryAccess",
        "invalid memory",
        "encoder cache",
    ),
    "Intel's runtime": (READY + NEO + DIED, "IntelRuntimeAborted", "drm_neo.cpp", "/dev/shm"),
    "a fault of an Intel GPU": (
        f"Segmentation fault from GPU at 0xff06001ba9400000, ctx_id: 1 (CCS) type: 0 (NotPresent), banned: 1, aborting.\n{NEO}{DIED}",
        "IntelRuntimeAborted",
        "newer compute runtime",
        "/dev/shm",
    ),
    "a hang of a GPU of AMD": (
        f"{READY}HW Exception by GPU node-3 (Agent handle: 0x55d0c8d1d2a0) reason :GPU Hang\n{DIED}",
        "AmdGpuHang",
        "amdgpu",
        "/dev/shm",
    ),
    "a peer that has gone": (
        READY
        + failed(
            "nixl_cu13._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT", title="EngineCore encountered a fatal error."
        ),
        "KvTransferPeerLost",
        "other role",
        "IPC_LOCK",
    ),
    "NIXL without a backend": (failed("nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND"), "NixlUnavailable", "IPC_LOCK", "other role"),
    "a worker without a word": (READY + DIED, "EngineDead", "/dev/shm", "Intel"),
    "memory of an Intel GPU": (
        failed(
            "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "vllm/v1/worker/xpu_worker.py"
        ),
        "LevelZeroFailed",
        "--gpu-memory-utilization",
        "ZE_AFFINITY_MASK",
    ),
    "torchvision": (
        failed(
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions.",
            "torchvision/extension.py",
        ),
        "CudaBuildsDiffer",
        "torchvision is built",
        "processor",
    ),
    "a GPU of Ray that is taken": (failed(RAY % "'accelerator_type:L4': 1.0, "), "NotEnoughGpus", "knows one (L4)", "nvidia-smi"),
    "a node of Ray without a GPU": (failed(RAY % ""), "NotEnoughGpus", "ray status", "placement group"),
    "ranks that wait": (
        failed(f"{STORE}store by key '0:1', but store->get('0:1') got error: Socket Timeout"),
        "DistributedTimeout",
        "Rank 3",
        "first error",
    ),
    "a rank that has ended": (
        failed(f"{STORE}store by key '0:1', but store->get('0:1') got error: Connection reset by peer"),
        "DistributedTimeout",
        "first error",
        "Rank 3",
    ),
    "a kernel of the encoder": (
        failed(FLASH, "vllm/v1/attention/ops/vit_attn_wrappers.py"),
        "KernelUnsupportedOnGpu",
        "--mm-encoder-attn-backend",
        "request",
    ),
    "a kernel of the decoder": (
        failed(FLASH, "vllm/v1/attention/backends/flash_attn.py"),
        "KernelUnsupportedOnGpu",
        "--attention-backend",
        "--mm-encoder",
    ),
    "no target for experts": (
        failed(NO_TARGET, "flashinfer/jit/fused_moe.py"),
        "FlashInferJitBuildFailed",
        "--moe-backend",
        "--attention-backend",
    ),
    "no target for a GEMM": (failed(NO_TARGET, "flashinfer/jit/gemm/core.py"), "FlashInferJitBuildFailed", "--linear-backend", "SAMPLER"),
    "compiled code of another model": (
        CACHED + failed("AttributeError: odd", PARTS),
        "ModelCodeFailed",
        "VLLM_DISABLE_COMPILE_CACHE=1",
        "Inductor",
    ),
    "compiled code of this start": (
        BUILT + failed("KeyError: 'abc'", PARTS),
        "ModelCodeFailed",
        "newer vLLM",
        "VLLM_DISABLE_COMPILE_CACHE",
    ),
    "AITER": (
        failed(PASSES, "aiter/fused_moe.py", "triton/backends/amd/compiler.py"),
        "TritonAmdCompileFailed",
        "VLLM_ROCM_USE_AITER_MOE=0",
        "--dtype",
    ),
    "Triton on AMD": (
        failed(PASSES, "vllm/v1/ops.py", "triton/backends/amd/compiler.py"),
        "TritonAmdCompileFailed",
        "newer vLLM",
        "AITER_",
    ),
    "Triton on an old GPU": (failed(PASSES, "triton/backends/nvidia/compiler.py"), "TritonPassManagerFailed", "--dtype half", "AMD"),
    "the peak after the weights": (
        LOADED + failed(OOM, "vllm/v1/worker/gpu_worker.py"),
        "CudaOutOfMemory",
        "--max-num-seqs",
        "weights do not fit",
    ),
    "weights too large": (LOADING + failed(OOM, "vllm/v1/worker/gpu_worker.py"), "CudaOutOfMemory", "weights do not fit", "--max-num-seqs"),
    "an operator that failed": (failed(STABLE, "torch/_ops.py"), "StableOperatorFailed", "aten::empty", "GPU memory ran out"),
    "an operator that got no memory": (
        "[rank0]:[W823 12:13:20.2 HIPCachingAllocator.cpp:3934] memory allocation failed with OOM on device 0 while trying to "
        "allocate 178257920 bytes\n" + failed(STABLE, "torch/_ops.py"),
        "CudaOutOfMemory",
        "GPU memory ran out",
        "linear-backend",
    ),
    "no device": (
        failed("RuntimeError: Failed to infer device type", "vllm/config/device.py"),
        "NoGpuVisible",
        "VLLM_LOGGING_LEVEL=DEBUG",
        "CUDA_VISIBLE",
    ),
    "no GPU of NVIDIA": (
        failed("RuntimeError: No CUDA GPUs are available", "torch/cuda/__init__.py"),
        "NoGpuVisible",
        "nvidia.com/gpu",
        "rocminfo",
    ),
    "a proxy that asks for a password": (
        failed(
            "requests.exceptions.ProxyError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded (Caused by "
            "ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 407 Proxy Authentication Required')))",
            "requests/adapters.py",
        ),
        "HfOfflineOrUnreachable",
        "HTTPS_PROXY",
        "HF_HUB_OFFLINE",
    ),
    "a hub that cannot be reached": (
        failed("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "transformers/utils/hub.py"),
        "HfOfflineOrUnreachable",
        "HF_HUB_OFFLINE",
        "HTTPS_PROXY",
    ),
    "a transfer engine that does not start": (
        failed("RuntimeError: Mooncake Transfer Engine initialization failed."),
        "KvTransferConfigInvalid",
        "lines of Mooncake",
        "Correct what",
    ),
    "a draft model with other words": (
        failed("AssertionError: draft model and target model must have the same vocab size"),
        "SpeculativeConfigInvalid",
        "draft model with the same vocabulary",
        "Correct",
    ),
    "a queue pair that gets no memory": (
        failed("misc/ibvwrap.cc:252 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory"),
        "RdmaRegistrationFailed",
        "IPC_LOCK",
        "emptyDir",
    ),
    "memory that may move": (
        "(APIServer pid=1)   Value error, KV connector NixlConnector is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "unless enable_cumem_allocator is also enabled. PyTorch's allocator can remap [type=value_error, input_value=ArgsKwargs]\n",
        "KvConnectorAllocatorConflict",
        "Remove expandable_segments",
        "--kv-transfer-config",
    ),
}


@pytest.mark.parametrize(("log", "name", "said", "not_said"), CASES.values(), ids=CASES)
def test_a_kind_of_crash_is_recognized_in_other_words(log: str, name: str, said: str, not_said: str) -> None:
    crash = read_pasted(log).final_state.crash

    assert isinstance(crash, Crash)
    assert name == (crash.family or crash.signature)
    text = f"{crash.cause} {crash.remedy}"
    assert said in text
    assert not_said not in text


def test_a_request_that_is_refused_for_its_video_is_no_crash() -> None:
    refused = ENCODER.replace("(APIServer pid=1) ", "(APIServer pid=1) ERROR 11-02 10:00:00 [serving.py:300] ")

    assert read_pasted(READY + refused).final_state.crash is None
