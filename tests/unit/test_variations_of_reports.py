"""Kinds of crashes that a report showed once, in other words, with another model or another value, and errors that only look alike."""

import pytest

from support.engine_logs import ENGINE_ERROR, failed
from support.pasted import read_pasted
from vllm_operator.cli.diagnose import headline
from vllm_operator.logs.state import Crash, Stage

READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
ENCODER = (
    "(APIServer pid=1) ValueError: The decoder prompt contains a(n) video item with 21504 embedding tokens, which exceeds the "
    "pre-allocated encoder cache size 16384. Please reduce the input size or increase the encoder cache size by setting "
    "--limit-mm-per-prompt at startup.\n"
)
NEO = "Abort was called at 288 line in file:\n../../neo/shared/source/os_interface/linux/drm_neo.cpp\n"
DIED = f"{ENGINE_ERROR}Worker proc VllmWorker-0 died unexpectedly, shutting down executor.\n"
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
LOADER, LAYERS = "vllm/model_executor/model_loader/", "vllm/model_executor/layers/"
NIXL = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py"
LORA_MOE = "vllm/lora/layers/fused_moe.py"
KV_MANAGER = "vllm/v1/core/single_type_kv_cache_manager.py"
LAUNCH = "vllm/v1/engine/utils.py"
RUNNER, PARALLEL = "vllm/v1/worker/gpu_model_runner.py", "vllm/distributed/parallel_state.py"
OMNI_DIED, IMAGES_DIED = "StageEngineCoreProc encountered a fatal error.", "StageDiffusionProc encountered a fatal error."
PIECEWISE = (
    "(Worker_TP1 pid=8) WARNING 11-02 10:00:20 [compilation.py:1405] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode "
    "for attention backend OddBackend (support: AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE\n"
)
MULTI = (
    "kv_connector='MultiConnector', kv_role='kv_consumer', kv_connector_extra_config={'connectors': [{'kv_connector': 'NixlConnector'}, "
    "{'kv_connector': 'OffloadingConnector'}]}"
)
KV_SHORT = (
    "ValueError: To serve at least one request with the model's max seq len (65536), 8.0 GiB KV cache is needed, which is larger than the "
    "available KV cache memory (6.0 GiB)."
)
OFFLOADING = "vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py"
ABORTED = "(APIServer pid=1) INFO 11-02 10:00:28 [async_llm.py:742] Aborted request(s) chatcmpl-8c41.\n"
NIGHTLY = "(EngineCore pid=7) INFO 11-02 10:00:20 [core.py:112] Initializing a V1 LLM engine (v0.27.1rc1.dev3) with config: model='org/m'\n"


def given(arguments: str) -> str:
    """The line in which the API server logs the arguments."""
    return f"(APIServer pid=1) INFO 11-02 10:00:00 [utils.py:233] non-default args: {{'model': 'org/m', {arguments}}}\n"


def lost(error: str, *files: str) -> str:
    """What an engine logs that serves and then fails."""
    return READY + failed(error, *files, title="EngineCore encountered a fatal error.")


FULL = (
    "ValueError: To serve at least one request with the model's max seq len ({0}), {1} GiB KV cache is needed, which is larger than the "
    "available KV cache memory ({2} GiB). Based on the available memory, the estimated maximum model length is {3}."
)
SHARED = (
    "(EngineCore pid=7) INFO 11-02 10:00:25 [gpu_worker.py:655] CUDA graph memory profiling is enabled (default since v0.21.0). The "
    "current --gpu-memory-utilization=0.8000 is equivalent to --gpu-memory-utilization=0.7710 without CUDA graph memory profiling. "
    "To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.8290. To disable, set ODD=0.\n"
)
PLUGIN = "INFO 11-02 09:59:59 [__init__.py:38] - {0}\n"
RENDERED = "vllm serve: error: argument {0}: Value {1} cannot be converted to <function loads at 0x7f>.\n"
UNLINKED = (
    "WARNING 11-02 10:00:00 [interface.py:226] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object "
    "file: No such file or directory')\nRuntimeError: Failed to infer device type, please set the environment variable `ODD`\n"
)
SPARE_TILES = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376."
CHOSEN = "(EngineCore pid=7) INFO 11-02 10:00:20 [cuda.py:390] Using TRITON_ATTN attention backend out of potential backends: {0}.\n"
NOT_FOUND = "Invalid repository ID or local directory specified: '{0}'."
NO_SPARSE = (
    "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=96, use_mla=True, use_sparse=True)"
)
FRAME = 'Traceback (most recent call last):\n  File "{0}/lib/python3.12/site-packages/vllm/odd.py", line 1, in odd\n    odd()\n'
SYMBOL = "ImportError: {0}/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9oddEv\n"
OFFLOADED = given("'kv_offloading_size': 16.0")
TRANSFERRED = given("'kv_transfer_config': KVTransferConfig(kv_connector='LMCacheConnectorV1')")


def refused(message: str) -> str:
    """What the API server logs if its configuration is invalid."""
    return (
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        f"(APIServer pid=1)   Value error, {message} [type=value_error, input_value=ArgsKwargs((), {{...}}), input_type=ArgsKwargs]\n"
    )


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
        f"{READY}{ENCODER}{ENGINE_ERROR}EngineCore encountered a fatal error.\n",
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
    "a key of the loader": (
        failed(
            "ValueError: Unexpected extra config keys for load format auto: dict_keys(['threads'])",
            f"{LOADER}default_loader.py:__init__",
        ),
        "LoaderSettingRefused",
        "--model-loader-extra-config",
        "hub",
    ),
    "a weight that does not fit, below the loader": (
        failed("ValueError: odd weight", f"{LOADER}base_loader.py:load_model", "vllm/model_executor/models/glm4.py"),
        "ModelCodeFailed",
        "newer vLLM",
        "--model-loader-extra-config",
    ),
    "shards that were never written": (
        failed("ValueError: Could not find checkpoint files '/m/model-rank-0-part-*.safetensors', only pre-sharded checkpoints are read"),
        "ModelFilesMissing",
        "Remove --load-format",
        "mount path",
    ),
    "a bucket without weights": (
        failed("RuntimeError: Cannot find any safetensors model weights with `s3://models/llama`"),
        "ModelFilesMissing",
        "credentials",
        "mount path",
    ),
    "a quantization without an algorithm": (
        failed("ValueError: Missing 'quant_algo' in quantization config", f"{LAYERS}quantization/modelopt.py:from_config"),
        "QuantizationRefused",
        "another quantization",
        "--linear-backend",
    ),
    "a quantized layer whose kernel failed": (
        failed("RuntimeError: Marlin W8A8 is not supported.", f"{LAYERS}quantization/utils/marlin_utils_fp8.py"),
        "QuantizationFailed",
        "--linear-backend",
        "config.json",
    ),
    "a type of the KV cache without a layer for it": (
        failed("NotImplementedError: TurboQuant KV cache requires full-attention layers", f"{LAYERS}quantization/turboquant/config.py"),
        "KvCacheTypeFailed",
        "--kv-cache-dtype",
        "checkpoint",
    ),
    "a field that compressed-tensors does not know": (
        failed(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for QuantizationArgs\nscale_dtype\n"
            "  Extra inputs are not permitted [type=extra_forbidden, input_value='fp8', input_type=str]"
        ),
        "UnknownQuantization",
        "newer vLLM image",
        "flag",
    ),
    "another name of a quantization": (
        failed(
            "ValueError: The `fp8` quantization method no longer supports online quantization. Please use `--quantization fp8_new` instead."
        ),
        "UnknownQuantization",
        "Set --quantization fp8_new",
        "page names",
    ),
    "quantized weights on several GPUs": (
        failed("ValueError: Prequant BitsAndBytes models with tensor parallelism is not supported. Please try with pipeline parallelism."),
        "UnknownQuantization",
        "--tensor-parallel-size 1",
        "page names",
    ),
    "an architecture of an old version": (
        failed("ValueError: Model architecture OddForCausalLM was supported in vLLM until v0.9.2, and is not supported anymore."),
        "ModelArchitectureUnsupported",
        "up to 0.9.2",
        "newer vLLM",
    ),
    "an architecture in a plugin": (
        failed(
            "ValueError: Model architecture OddForCausalLM is not supported in-tree anymore. Please install the plugin at "
            "https://github.com/org/odd-plugin if you want to use this model architecture."
        ),
        "ModelArchitectureUnsupported",
        "plugin at https://github.com/org/odd-plugin",
        "--model-impl transformers",
    ),
    "an architecture that transformers cannot replace": (
        failed("ValueError: The Transformers implementation of 'OddForCausalLM' is not compatible with vLLM."),
        "ModelArchitectureUnsupported",
        "remove --model-impl",
        "--model-impl transformers",
    ),
    "fewer GPUs than workers": (
        failed("AssertionError: local_world_size (8) exceeds assigned_physical_gpu_ids count (4). Check CUDA_VISIBLE_DEVICES."),
        "NotEnoughGpus",
        "at most 4",
        "--enforce-eager",
    ),
    "fewer GPUs of Intel than workers": (
        failed("ValueError: Local TP/PP/PCP replica size (4) exceeds the number of visible XPU devices (2)."),
        "NotEnoughGpus",
        "at most 2",
        "newer vLLM",
    ),
    "a GPU without FP8": (
        failed(
            "ValueError: FP8 KV cache is not supported by the Triton MLA backend on NVIDIA RTX A6000 (compute capability 8.6); native FP8 "
            "(fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16.",
            "vllm/v1/attention/backends/mla/triton_mla.py",
        ),
        "NoValidAttentionBackend",
        "Set --kv-cache-dtype bfloat16",
        "set it to fp8",
    ),
    "a device without FP8": (
        failed("NotImplementedError: FlashAttention does not support fp8 kv-cache on this device.", "vllm/v1/attention/backends/fa.py"),
        "NoValidAttentionBackend",
        "Remove --kv-cache-dtype",
        "set it to fp8",
    ),
    "another form of FP8": (
        failed("ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.", f"{LAYERS}attention/attention.py"),
        "NoValidAttentionBackend",
        "set it to fp8",
        "request another",
    ),
    "bits that a method does not have": (
        failed("ValueError: Currently, only 4-bit weight quantization is supported for AWQ, but got 8 bits."),
        "UnknownQuantization",
        "AWQ, but got 8 bits",
        "Remove --quantization",
    ),
    "experts that cannot be divided": (
        failed("ValueError: EPLB currently only supports even distribution of experts across ranks. Got 130 experts and 8 EP ranks."),
        "ParallelLayoutInvalid",
        "--enable-eplb",
        "--tensor-parallel-size",
    ),
    "a request without addresses": (
        failed("ValueError: Request id cmpl-1 does not contain hostname and port", "vllm/distributed/kv_transfer/kv_connector/v1/p2p.py"),
        "KvTransferFailed",
        "proxy of the connector",
        "same version",
    ),
    "experts on an old GPU of Intel": (
        failed("NotImplementedError: XPUExperts is only supported on Intel Xe2/Xe3 GPUs", f"{LAYERS}fused_moe/experts/xpu_moe.py"),
        "KernelUnsupportedOnGpu",
        "--moe-backend",
        "these sizes",
    ),
    "a store of a connector that does not answer": (
        failed(
            "redis.exceptions.ConnectionError: Error 111 connecting to redis:6379. Connection refused.", "lmcache/v1/x.py", "redis/a.py"
        ),
        "KvOffloadFailed",
        "Check that the store",
        "download",
    ),
    "credentials of Google": (
        failed("google.auth.exceptions.DefaultCredentialsError: odd", "vllm/config/model.py", "google/auth/_default.py"),
        "ObjectStoreFailed",
        "credentials",
        "flag",
    ),
    "a tokenizer that downloads": (
        failed("requests.exceptions.ConnectionError: Max retries exceeded with url: /odd", "tiktoken/load.py"),
        "HostUnreachable",
        "Let the Pod reach it",
        "transformers",
    ),
    "half a file": (
        failed("OSError: Consistency check failed: file should be of size 20 but has size 10", "huggingface_hub/file_download.py"),
        "ModelDownloadFailed",
        "Start again",
        "credentials",
    ),
    "weights with Python objects": (
        failed("_pickle.UnpicklingError: Weights only load failed.", f"{LOADER}weight_utils.py", "torch/serialization.py"),
        "WeightsLoadFailed",
        "safetensors",
        "Compare",
    ),
    "a GPU that is lost": (
        failed("torch.AcceleratorError: CUDA error: GPU is lost"),
        "GpuHardwareFault",
        "kubectl drain NODE",
        "newer vLLM",
    ),
    "fewer processes than the sizes need": (
        failed("RuntimeError: world_size (2) is not equal to tensor_model_parallel_size (4) x pipeline_model_parallel_size (1)"),
        "ParallelLayoutInvalid",
        "parallel sizes",
        "NCCL",
    ),
    "processes that cannot be divided": (
        failed("AssertionError: world size (8) is not divisible by tensor_model_parallel_size (3) x pipeline_model_parallel_size (1)"),
        "ParallelLayoutInvalid",
        "parallel sizes",
        "dimension of the model",
    ),
    "a quantization that AMD lacks": (
        failed("ValueError: awq quantization is currently not supported in rocm.", "vllm/config/model.py:_verify_quantization"),
        "QuantizationUnsupportedOnGpu",
        "on this kind of device (rocm)",
        "newer GPU",
    ),
    "a GPU of Intel that is not there": (
        failed(
            "RuntimeError: The number of XPU devices is 0. Please check your XPU driver installation.", "vllm/v1/worker/a.py:init_device"
        ),
        "DeviceAbsent",
        "Check that the Pod requests it",
        "Correct or remove",
    ),
    "an NPU without bfloat16": (
        failed("RuntimeError: The param dtype not implemented for DT_BFLOAT16", "vllm_ascend/ops/fused_moe.py"),
        "AscendFailed",
        "Set --dtype float16",
        "checkpoint",
    ),
    "a backend that needs FP8": (
        failed("NotImplementedError: OddMLAImpl requires an FP8 KV cache (--kv-cache-dtype fp8 or fp8_e4m3); got kv_cache_dtype=auto."),
        "NoValidAttentionBackend",
        "Set --kv-cache-dtype fp8",
        "lists backends",
    ),
    "an encoder with a backend of AMD": (
        failed("ValueError: Unsupported multi-modal encoder attention backend for CUDA: AttentionBackendEnum.ROCM_AITER_FA."),
        "NoValidAttentionBackend",
        "--mm-encoder-attn-backend",
        "AttentionBackendEnum",
    ),
    "an encoder in FP8": (
        failed(
            "ValueError: mm_encoder_attn_dtype='fp8' requires either the ROCM_AITER_FA backend on ROCm or the FlashInfer cuDNN backend on "
            "CUDA, got FLASH_ATTN."
        ),
        "NoValidAttentionBackend",
        "Remove --mm-encoder-attn-dtype",
        "--attention-backend",
    ),
    "a variable that asks for another GPU": (
        failed("ValueError: VLLM_GDN_DECODE_KERNEL=cuda is not supported: requires SM90", f"{LAYERS}mamba/gdn/odd_attn.py"),
        "KernelUnsupportedOnGpu",
        "Remove VLLM_GDN_DECODE_KERNEL",
        "--attention-backend",
    ),
    "an indexer without DeepGEMM": (
        failed("RuntimeError: Sparse Attention Indexer CUDA op requires DeepGEMM support in the current vLLM environment."),
        "DeepGemmUnavailable",
        "image that contains DeepGEMM",
        "VLLM_USE_DEEP_GEMM=0",
    ),
    "graphs for more requests than the layers take": (
        failed("AssertionError: Mamba only supports decode-only full CUDAGraph capture.", "vllm/v1/attention/backends/mamba_attn.py"),
        "CaptureSizesTooLarge",
        "--max-num-seqs",
        "--enforce-eager",
    ),
    "a connector without its file": (
        failed(
            "ValueError: The environment variable 'MOONCAKE_CONFIG_PATH' is not set.", "vllm/distributed/mooncake_store.py:load_from_config"
        ),
        "KvSettingRefused",
        "variables of the connector",
        "other side",
    ),
    "a connector that lost a chunk": (
        failed("AssertionError: Chunk b'aa' not found in cache", "vllm/v1/kv_offload/cpu/manager.py:_prepare_load"),
        "KvOffloadFailed",
        "--kv-offloading-size",
        "Correct what",
    ),
    "several connectors without HMA": (
        failed("AssertionError: HMA should not be enabled unless all sub-connectors support it"),
        "KvTransferConfigInvalid",
        "--disable-hybrid-kv-cache-manager",
        "Correct what",
    ),
    "two sides with other caches": (
        failed("AssertionError: Number of KV layers must match between prefill and decode", f"{NIXL}:_validate_remote_agent_handshake"),
        "KvHandshakeMismatch",
        "Make both sides equal",
        "Let it restart",
    ),
    "a peer that was replaced": (
        failed("RuntimeError: Remote NIXL agent engine ID mismatch. Expected a,received b.", f"{NIXL}:_nixl_handshake"),
        "HandshakeFailed",
        "other side first",
        "Make both sides equal",
    ),
    "a worker that refuses a task": (
        failed("RuntimeError: Model org/m does not support any pooling tasks.", "vllm/v1/worker/gpu_model_runner.py:_dummy_pooler_run"),
        "WorkerRefused",
        "Correct or remove",
        "--enforce-eager",
    ),
    "a worker that names Triton": (
        failed(
            "AssertionError: DCP requires attention impls to return the softmax lse, but the impl TritonAttentionImpl does not return it.",
            "vllm/v1/worker/cp_utils.py:check_attention_cp_compatibility",
        ),
        "ContextParallelRefused",
        "--decode-context-parallel-size",
        "TRITON_CACHE_DIR",
    ),
    "a worker whose step failed": (
        failed("RuntimeError: odd state of the step that nobody knows", "vllm/v1/worker/gpu_model_runner.py:execute_model"),
        "ModelRunnerFailed",
        "--enforce-eager",
        "Correct or remove",
    ),
    "a model that needs another flag": (
        failed("NotImplementedError: Odd QSA does not support attention sinks", "vllm/models/odd/nvidia/qsa.py:__init__"),
        "ModelSettingRefused",
        "Correct or remove the setting",
        "issues",
    ),
    "a model whose code failed": (
        failed("RuntimeError: odd input is required", "vllm/model_executor/models/odd.py:forward"),
        "ModelCodeFailed",
        "issues",
        "Correct or remove",
    ),
    "sleep mode and memory that may move": (
        failed("AssertionError: Expandable segments are not compatible with memory pool.", "vllm/device_allocator/cumem.py:__init__"),
        "SleepModeFailed",
        "expandable_segments:True",
        "build",
    ),
    "an old NCCL": (
        failed("AssertionError: NCCL version 2.27.3 or higher is required for NCCL symmetric memory"),
        "NcclVersionTooOld",
        "VLLM_USE_NCCL_SYMM_MEM=0",
        "peer access",
    ),
    "devices that oneCCL cannot open": (
        failed("RuntimeError: oneCCL: ze_fd_manager.cpp:144 init_device_fds: EXCEPTION: opendir failed: could not open device directory"),
        "OneCclFailed",
        "/dev/dri/by-path",
        "NCCL_SOCKET_IFNAME",
    ),
    "a fusion with all-reduce": (
        failed(
            "AssertionError: Flashinfer allreduce workspace must be initialized", "vllm/compilation/passes/fusion/allreduce_rms_fusion.py"
        ),
        "CompilationFailed",
        "fuse_allreduce_rms",
        "AITER",
    ),
    "more GPUs than heads": (
        failed("AssertionError: assert tp_size % self.total_num_kv_heads == 0", "vllm/model_executor/models/odd.py:__init__"),
        "TensorParallelNotDivisible",
        "key-value heads",
        "newer vLLM",
    ),
    "a draft model as the model": (
        failed("    assert speculative_config is not None\nAssertionError", "vllm/model_executor/models/odd_mtp.py:__init__"),
        "DraftModelAlone",
        "Serve the model that it belongs to",
        "newer vLLM",
    ),
    "a runner without a draft model": (
        failed("    assert self.speculative_config is not None\nAssertionError", "vllm/v1/worker/gpu_model_runner.py:propose"),
        "SpeculativeDecodingFailed",
        "--speculative-config",
        "Serve the model",
    ),
    "a peer that was built in another way": (
        failed("AssertionError: assert self.num_blocks >= nixl_agent_meta.num_blocks", f"{NIXL}:add_remote_agent"),
        "KvHandshakeMismatch",
        "Make both sides equal",
        "Let it restart",
    ),
    "memory that a connector cannot register": (
        failed("RuntimeError: Mooncake batch memory registration failed.", "vllm/distributed/kv_transfer/kv_connector/v1/mooncake.py"),
        "KvTransferFailed",
        "IPC_LOCK",
        "other side",
    ),
    "a kernel that prepares weights": (
        failed(
            "AssertionError: odd weights",
            f"{LOADER}base_loader.py:load_model",
            f"{LOADER}utils.py:process_weights_after_loading",
            "vllm/model_executor/kernels/linear/odd.py:process_weights_after_loading",
        ),
        "WeightPreparationFailed",
        "--linear-backend",
        "hub",
    ),
    "a layer that cannot be built": (
        failed("RuntimeError: odd layer", f"{LOADER}base_loader.py:load_model", f"{LOADER}utils.py:initialize_model"),
        "ModelCodeFailed",
        "newer vLLM",
        "those of the hub",
    ),
    "cuDNN without an engine": (
        failed("RuntimeError: GET was unable to find an engine to execute this computation", "torch/nn/modules/conv.py"),
        "CudnnFailed",
        "--gpu-memory-utilization",
        "loaded another cuDNN",
    ),
    "memory that may move": (
        "(APIServer pid=1)   Value error, KV connector NixlConnector is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "unless enable_cumem_allocator is also enabled. PyTorch's allocator can remap [type=value_error, input_value=ArgsKwargs]\n",
        "KvConnectorAllocatorConflict",
        "Remove expandable_segments",
        "--kv-transfer-config",
    ),
    "more requests than tokens": (
        refused("max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (256)."),
        "BatchedTokensBelowNeed",
        "lower --max-num-seqs",
        "chunked",
    ),
    "a context without chunked prefill": (
        refused("max_num_batched_tokens (1024) is smaller than max_model_len (4096)."),
        "BatchedTokensTooSmall",
        "--enable-chunked-prefill",
        "--max-num-seqs",
    ),
    "a quantization of another platform": (
        refused("awq_marlin quantization is currently not supported in rocm."),
        "QuantizationUnsupportedOnGpu",
        "on this kind of device (rocm)",
        "newer GPU",
    ),
    "a quantization of newer GPUs": (
        refused(
            "The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100. Current capability: 90."
        ),
        "QuantizationUnsupportedOnGpu",
        "needs a newer GPU",
        "--quantization",
    ),
    "an architecture that a platform lacks": (
        refused("Model architecture 'MptForCausalLM' is not supported by ROCm for now."),
        "ModelArchitectureUnsupported",
        "on ROCm",
        "older one",
    ),
    "an object store": (
        refused(
            "To load a model from object storage (S3/GCS/Azure), 'load_format' must be 'runai_streamer' or 'runai_streamer_sharded', "
            "but got 'auto'. Model: s3://models/llama"
        ),
        "ArgumentValueInvalid",
        "--load-format runai_streamer",
        "remove the argument",
    ),
    "a KV cache of another type": (
        refused('kv_cache_dtype="float16" is incompatible with dtype="bfloat16". Please set `--kv-cache-dtype` to one of auto, fp8.'),
        "ArgumentValueInvalid",
        "--kv-cache-dtype",
        "attention backend",
    ),
    "a model runner that was forced": (
        refused("Model Runner V2 does not yet support: pipeline parallelism with speculative decoding"),
        "RequestedBackendUnsupported",
        "Remove VLLM_USE_V2_MODEL_RUNNER, or set it to 0",
        "--speculative-config",
    ),
    "the older model runner": (
        refused("Model Runner V1 does not support: an index cache"),
        "RequestedBackendUnsupported",
        "set it to 1",
        "set it to 0",
    ),
    "scheduling with a draft model": (
        refused("Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU kind of speculative decoding"),
        "SpeculativeConfigInvalid",
        "--no-async-scheduling",
        "Correct",
    ),
    "a key of the speculative configuration": (
        failed("ValueError: 'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass 'draft_x' instead."),
        "SpeculativeConfigInvalid",
        "'draft_x' instead",
        "num_speculative_tokens",
    ),
    "ranks with other flags": (
        failed("RuntimeError: Configuration mismatch detected for engine 1. All DP workers must have identical configurations.", LAUNCH),
        "ParallelLayoutInvalid",
        "same image, flags",
        "--tensor-parallel-size",
    ),
    "an encoder": (
        failed("AssertionError: Backend FLASHINFER is not supported for vit attention. Supported backends are: [TORCH_SDPA]"),
        "NoValidAttentionBackend",
        "--mm-encoder-attn-backend",
        "--kv-cache-dtype",
    ),
    "experts without LoRA": (
        refused("LoRA is not supported with moe_backend=flashinfer_trtllm. Disable LoRA or select a MoE backend that supports LoRA."),
        "LoraUnsupported",
        "Remove --moe-backend",
        "trained for this model",
    ),
    "experts of LoRA on several ranks": (
        failed(
            "AssertionError: Fused MoE LoRA with EP currently only supports all2all_backend='allgather_reducescatter', got 'x'.", LORA_MOE
        ),
        "LoraUnsupported",
        "--all2all-backend allgather_reducescatter",
        "trained for this model",
    ),
    "sharded adapters on experts": (
        failed(
            "AssertionError: Fused MoE LoRA does not support enable_expert_parallel=True together with fully_sharded_loras=True. "
            "Disable one of them.",
            LORA_MOE,
        ),
        "LoraUnsupported",
        "--fully-sharded-loras",
        "trained for this model",
    ),
    "an adapter that changes other layers": (
        failed("ValueError: While loading /loras/a, expected target modules in {'q_proj'} but received ['router']."),
        "LoraUnsupported",
        "Remove these modules",
        "--moe-backend",
    ),
    "a vocabulary too large for LoRA": (
        failed("ValueError: When using LoRA, vocab size must be <= 258048", "vllm/lora/layers/logits_processor.py"),
        "LoraFailed",
        "Start without --enable-lora",
        "trained for exactly",
    ),
    "more adapters than slots": (
        failed("ValueError: Call to add_lora method failed: No free lora slots", "vllm/entrypoints/openai/models/serving.py"),
        "LoraFailed",
        "--max-loras",
        "Correct",
    ),
    "tokens that a parser needs": (
        failed("RuntimeError: Llama3JsonToolParser could not locate the bot token '<|python_tag|>' in the tokenizer."),
        "InvalidToolOrReasoningParser",
        "the Llama3JsonTool parser",
        "the :",
    ),
    "graphs with a draft model": (
        failed(
            "ValueError: CUDAGraphMode.FULL is not supported with spec-decode for attention backend CPUAttentionBackend (support: NEVER)"
        ),
        "CudaGraphModeUnsupported",
        "PIECEWISE",
        "Correct",
    ),
    "context parallelism of a hybrid model": (
        failed("AssertionError: DCP not support mamba now.", KV_MANAGER),
        "ContextParallelRefused",
        "--decode-context-parallel-size",
        "--block-size",
    ),
    "another check of the KV cache": (
        failed("AssertionError: DCP sizes are odd", KV_MANAGER),
        "KvCacheLayoutFailed",
        "block-size",
        "to 1.",
    ),
    "planning of the KV cache": (
        failed("AssertionError: Some layers are not assigned to any group.", "vllm/v1/core/kv_cache_planning.py"),
        "KvCacheLayoutFailed",
        "--kv-cache-dtype",
        "main loop",
    ),
    "Ray without the node of rank 0": (
        failed("AssertionError: The DP master node (ip: 10.2.3.4) is missing or dead", "vllm/v1/engine/coordinator.py"),
        "LaunchFailed",
        "ray status",
        "optional features",
    ),
    "nodes of Ray that are too few": (
        failed("AssertionError: Not enough total available nodes (1) and devices per node (8) to satisfy required world size 16", LAUNCH),
        "NotEnoughGpus",
        "Ray cluster",
        "CUDA_VISIBLE_DEVICES",
    ),
    "a front end that failed": (
        failed("RuntimeError: Frontend process failed during engine core initialization. See root cause above.", LAUNCH),
        "EngineCoreInitFailed",
        "first error",
        "optional features",
    ),
    "a GPU that is not visible": (
        failed("IndexError: visible device ordinal 1 is out of range for CUDA_VISIBLE_DEVICES=0", "vllm/platforms/interface.py"),
        "GpuSelectionInvalid",
        "Remove CUDA_VISIBLE_DEVICES",
        "nvidia-smi",
    ),
    "threads that cannot be bound": (
        failed("AssertionError: Not enough allowed NUMA nodes to bind threads of 4 local CPUWorkers. Please try to decrease DP/TP/PP."),
        "CpuBindingFailed",
        "VLLM_CPU_OMP_THREADS_BIND",
        "pipeline",
    ),
    "a model without pipeline stages": (
        failed("RuntimeError: PP is broken for this class", PARTS),
        "PipelineParallelFailed",
        "--pipeline-parallel-size 1",
        "NUMA",
    ),
    "settings that need each other": (
        failed("ValueError: seed-host and seed-port must be provided together", "vllm/entrypoints/cli/preload.py"),
        "ValueRefused",
        "Correct",
        "Remove one",
    ),
    "settings that exclude each other": (
        failed("ValueError: attention_backend and attention_config.backend are mutually exclusive"),
        "SettingsExcludeEachOther",
        "attention_backend or attention_config.backend",
        "Correct",
    ),
    "an unknown error that says what to do": (
        failed("RuntimeError: Neither 127.0.0.1 nor ::1 are bound to a local interface. Set the VLLM_LOOPBACK_IP environment variable."),
        "Unknown",
        "says: Set the VLLM_LOOPBACK_IP",
        "main loop",
    ),
    "a plugin that a model needs": (
        failed("ValueError: No IOProcessor plugins installed but one is required (x).", "vllm/plugins/io_processors/__init__.py"),
        "IoProcessorMissing",
        "Install the package",
        "VLLM_PLUGINS",
    ),
    "a package for one model": (
        failed("RuntimeError: numba is required for fused Kimi image preprocessing"),
        "PythonPackageMissing",
        "numba",
        "processor of transformers",
    ),
    "a request that ended the engine": (
        READY
        + failed(
            "vllm.exceptions.VLLMValidationError: Structured output processing only supports one backend per engine.",
            "vllm/v1/structured_output/__init__.py",
            title="EngineCore encountered a fatal error.",
        ),
        "StructuredOutputFailed",
        "--structured-outputs-config",
        "ends before",
    ),
    "a transfer that the scheduler checks": (
        READY
        + failed(
            "RuntimeError: Invalid request status: WAITING_FOR_REMOTE_KVS",
            "vllm/v1/core/sched/scheduler.py",
            title="EngineCore encountered a fatal error.",
        ),
        "SchedulerFailed",
        "without --kv-transfer-config",
        "--no-async-scheduling",
    ),
    "a file of the encoder's cache": (
        failed("RuntimeError: odd", "vllm/v1/engine/core.py", "vllm/v1/core/encoder_cache_manager.py"),
        "EncoderCacheFailed",
        "odd",
        "parallel requests",
    ),
    "the server of the API": (
        failed("RuntimeError: odd", "vllm/entrypoints/serve/x.py").replace("in call", "in create_server_socket"),
        "ServerStartFailed",
        "HTTP server",
        "main loop",
    ),
    "a vocabulary that is downloaded": (
        failed(
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='files.example', port=443): Max retries exceeded with url: "
            "/o200k_base.tiktoken (Caused by NameResolutionError(\"Failed to resolve 'files.example'\"))",
            "vllm/tokenizers/hf.py",
            "tiktoken/load.py",
        ),
        "HostUnreachable",
        "(files.example)",
        "tokenizer files",
    ),
    "a tokenizer that cannot be read": (
        failed("RuntimeError: Internal: could not parse ModelProto from /models/m/tokenizer.model", "sentencepiece/__init__.py"),
        "ModelFileDamaged",
        "/models/m/tokenizer.model",
        "JSON file",
    ),
    "a model without a processor": (
        failed("ValueError: Unrecognized processing class in /models/m. Can't instantiate a processor, a tokenizer, an image processor."),
        "ModelFilesMissing",
        "copy them from the base model",
        "transformers of the image",
    ),
    "a program without a guard": (
        failed("RuntimeError: An attempt has been made to start a new process before the"),
        "ProgramUnguarded",
        "__main__",
        "bug in vLLM",
    ),
    "a socket file": (
        failed("zmq.error.ZMQError: Permission denied (addr='ipc:///run/vllm/0a1b')", "zmq/sugar/socket.py"),
        "SocketFileRefused",
        "VLLM_RPC_BASE_PATH",
        "fsGroup",
    ),
    "a socket of the network": (
        failed("zmq.error.ZMQError: Permission denied (addr='tcp://10.0.0.1:80')", "zmq/sugar/socket.py"),
        "PermissionMissing",
        "security context",
        "VLLM_RPC_BASE_PATH",
    ),
    "keys of the rotary embedding": (
        failed(
            "KeyError: \"Missing required keys in `rope_parameters` for 'rope_type'='yarn': {'factor'}\"",
            "transformers/modeling_rope_utils.py",
        ),
        "ModelConfigFailed",
        "Complete the rope_parameters",
        "trust-remote-code",
    ),
    "a low port": (
        failed("PermissionError: [Errno 13] Permission denied", "vllm/entrypoints/openai/api_server.py").replace(
            "in call", "in create_server_socket"
        ),
        "AddressRefused",
        "Set --port to 8000",
        "fsGroup",
    ),
    "an address of another host": (
        failed("OSError: [Errno 99] Cannot assign requested address", "vllm/entrypoints/openai/api_server.py").replace(
            "in call", "in create_server_socket"
        ),
        "AddressRefused",
        "Set --host to 0.0.0.0",
        "--port",
    ),
    "context parallelism with a backend": (
        failed(
            "AssertionError: Decode Context Parallelism (DCP) requires attention implementations to return the softmax LSE during decode, "
            "but TritonAttentionImpl does not. Try a different backend by setting --attention-backend or disable DCP.",
            "vllm/v1/worker/cp_utils.py",
        ),
        "ContextParallelRefused",
        "says: Try a different backend",
        "TRITON_CACHE_DIR",
    ),
    "a word about Triton": (failed("RuntimeError: Triton is odd", "vllm/v1/worker/cp_utils.py"), "TritonFailed", "TRITON_CACHE_DIR", "DCP"),
    "adapters of the command line": (
        failed("ValueError: Loading failed: odd", "vllm/entrypoints/openai/api_server.py", "vllm/entrypoints/openai/models/serving.py")
        .replace("in call", "in init_app_state", 1)
        .replace("in call", "in init_static_loras"),
        "LoraFailed",
        "without adapters",
        "certificate",
    ),
    "blocks while serving": (
        READY
        + failed("ValueError: No free blocks available", "vllm/v1/core/kv_cache_utils.py", title="EngineCore encountered a fatal error."),
        "KvCacheLayoutFailed",
        "--no-enable-prefix-caching",
        "--block-size",
    ),
    "a model name after a flag": (
        failed("ValueError: `model` should be provided as the first positional argument when using `vllm serve`."),
        "UnknownCliArgument",
        "first argument after `vllm serve`",
        "Remove the argument",
    ),
    "a parser for Mistral's tokenizer": (
        failed("ValueError: The tokenizer must be an instance of MistralTokenizer.", "vllm/reasoning/mistral_reasoning_parser.py"),
        "ParserFailed",
        "Set --tokenizer-mode mistral",
        "transformers of the image",
    ),
    "a tokenizer instead of a processor": (
        failed(
            "TypeError: Invalid type of HuggingFace processor. Expected type: <class 'transformers.processing_utils.ProcessorMixin'>, "
            "but found type: <class 'transformers.tokenization_utils_tokenizers.TokenizersBackend'>",
            "vllm/transformers_utils/processor.py",
        ),
        "ProcessorFailed",
        "preprocessor_config.json",
        "main loop",
    ),
    "a request that offloading lost": (
        OFFLOADED + lost("KeyError: 'chatcmpl-77aa'", "vllm/v1/kv_offload/tiering/manager.py:complete_store"),
        "TransferredRequestLost",
        "serve without --kv-offloading-size",
        "--kv-transfer-config",
    ),
    "a request that offloading lost after an abort": (
        OFFLOADED + ABORTED + lost("AssertionError", f"{OFFLOADING}:request_finished"),
        "TransferredRequestLost",
        "after a client had aborted one (chatcmpl-8c41)",
        "AIBrix",
    ),
    "a request that LMCache lost after an abort": (
        TRANSFERRED + ABORTED + lost("AssertionError", "vllm/v1/core/sched/scheduler.py:_update_from_kv_xfer_finished"),
        "TransferredRequestLost",
        "newer vLLM and LMCache",
        "can be reached",
    ),
    "a setting of offloading": (
        lost("ValueError: block_size must be a multiple of 16", f"{OFFLOADING}:__init__"),
        "KvSettingRefused",
        "Correct what the message is about",
        "lost track",
    ),
    "a kernel of DeepGEMM for experts that the image lacks": (
        failed("RuntimeError: Failed to open: /opt/deep_gemm/include/deep_gemm/impls/sm103_fp8_gemm_1d1d.cuh", "vllm/utils/deep_gemm.py"),
        "DeepGemmKernelAbsent",
        "VLLM_USE_DEEP_GEMM=0, so that vLLM uses",
        "DG_JIT_CACHE_DIR",
    ),
    "a kernel of DeepGEMM for the sparse indexer": (
        failed("RuntimeError: odd", f"{LAYERS}sparse_attn_indexer.py", "vllm/utils/deep_gemm.py:fp8_fp4_mqa_logits"),
        "DeepGemmFailed",
        "also with VLLM_USE_DEEP_GEMM=0",
        "Set VLLM_USE_DEEP_GEMM=0",
    ),
    "an illegal access in the sparse indexer": (
        failed(
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "vllm/v1/worker/gpu_model_runner.py:capture_model",
            "vllm/utils/deep_gemm.py:get_paged_mqa_logits_metadata",
            "deep_gemm/__init__.py",
        ),
        "IllegalMemoryAccess",
        "cudagraph_mode to PIECEWISE",
        "Set VLLM_USE_DEEP_GEMM=0",
    ),
    "a machine without its TPU": (
        "(EngineCore pid=7) INFO 11-02 10:00:20 [tpu_runner.py:402] Init mesh; jax devices: [CpuDevice(id=0)]\n"
        + failed("ValueError: Insufficient devices for 2D mesh: found 2, expected 4", "tpu_inference/runner/tpu_runner.py"),
        "TpuDevicesTooFew",
        "found no TPU, only CpuDevice",
        "Set --tensor-parallel-size",
    ),
    "a variable that libtpu refuses": (
        "E0000 00:00:17 225 common_lib.cc:650] INVALID_ARGUMENT: unexpected worker hostname 'odd' from env var TPU_WORKER_HOSTNAMES.\n"
        + failed("ValueError: Insufficient devices for 2D mesh: found 1, expected 8", "tpu_inference/runner/tpu_runner.py"),
        "TpuDevicesTooFew",
        "Unset TPU_WORKER_HOSTNAMES",
        "is attached",
    ),
    "a slice that is too small": (
        failed("ValueError: Number of devices 8 must be >= the product of mesh_shape (2, 16)", "jax/_src/mesh.py"),
        "TpuDevicesTooFew",
        "Set --tensor-parallel-size to 8",
        "attached",
    ),
    "experts that ranks cannot share": (
        failed("AssertionError: num_experts=160 must be divisible by ep_size=6. Adjust num_redundant_experts."),
        "TensorParallelNotDivisible",
        "160 experts of the model cannot be divided among 6",
        "pipeline",
    ),
    "another method than the one that is set": (
        given("'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}")
        + failed('    assert self.speculative_config.method == "eagle3"\nAssertionError', "vllm/v1/spec_decode/eagle.py"),
        "SpeculativeMethodMixedUp",
        "(eagle3) for the method in --speculative-config (mtp)",
        "draft model fits",
    ),
    "a plugin that the message asks for": (
        failed("ValueError: This checkpoint requires the 'vllm-odd-plugin' package, which is not installed.", "vllm/config/model.py"),
        "PythonPackageMissing",
        "Install vllm-odd-plugin in the image",
        "--trust-remote-code",
    ),
    "a package that a nightly lacks": (
        NIGHTLY + failed("ModuleNotFoundError: No module named 'odd'", "acme/x.py"),
        "PythonPackageMissing",
        "image of a release",
        "Use the official vLLM image",
    ),
    "an argument that an older package does not know": (
        failed("TypeError: run() got an unexpected keyword argument 'odd_lens'", "flashinfer/decode.py"),
        "CallMismatch",
        "does not know odd_lens, usually because it is older",
        "newer DeepGEMM",
    ),
    "an argument that a newer package requires": (
        failed("TypeError: run() missing 1 required positional argument: 'x'", "flashinfer/decode.py"),
        "CallMismatch",
        "FlashInfer of the vLLM image",
        "older",
    ),
    "a GPU that AITER does not know": (
        failed("AssertionError: One of GPU archs of ['gfx1201'] is invalid or not supported", "aiter_meta/csrc/utils.py"),
        "GpuArchRefused",
        "AITER does not support this GPU (gfx1201)",
        "FlashInfer",
    ),
    "a sampler of AITER": (
        failed("RuntimeError: odd", "vllm/v1/sample/ops/topk.py", "aiter_meta/csrc/cpp_itfs/utils.py"),
        "AiterFailed",
        "VLLM_ROCM_USE_AITER=0",
        "logits",
    ),
    "a kernel for half of the types": (
        failed("RuntimeError: odd_moe only supports torch.bfloat16, got torch.float16", "vllm/_custom_ops.py"),
        "OutputTypeRefused",
        "Set --dtype bfloat16",
        "--moe-backend",
    ),
    "LoRA for experts in FP8": (
        given("'enable_lora': True")
        + failed("AssertionError: Unsupported lhs dtype fp8e5", "vllm/lora/ops/triton_ops/fused_moe_lora_op.py:_fused_moe_lora"),
        "LoraExpertsRefused",
        "Start without --enable-lora",
        "--speculative-config",
    ),
    "LoRA for experts of vllm-omni": (
        given("'enable_lora': True, 'omni': True") + failed("AssertionError", "vllm/lora/layers/fused_moe.py:set_lora"),
        "LoraExpertsRefused",
        "newer vllm-omni",
        "--max-lora-rank",
    ),
    "speculative steps that a kernel of FlashInfer refuses": (
        given("'speculative_config': {'method': 'dspark'}")
        + failed(
            "RuntimeError: Check failed: n > 64 (7 vs. 64) : use sparse_mla_sm121_decode", "flashinfer/mla/_core.py:sparse_mla_decode"
        ),
        "FlashInferCheckFailed",
        "A kernel of FlashInfer for sm121 refused",
        "Set --attention-backend",
    ),
    "two packages that do not fit": (
        failed("AttributeError: module 'cutlass.cute' has no attribute 'odd'", "quack/gemm.py:<module>"),
        "PackageImportFailed",
        "does not fit the version of nvidia-cutlass-dsl",
        "Python, PyTorch or CUDA",
    ),
    "a connector without its flag": (
        OFFLOADED
        + failed(
            "AssertionError: External KV connector is not verified yet", "vllm/v1/core/sched/scheduler.py", title="EngineCore failed."
        ),
        "KvTransferConfigInvalid",
        "remove --kv-offloading-size",
        "--kv-transfer-config",
    ),
    "flags that are not set": (
        given("'kv_cache_dtype': 'fp8'") + failed("ValueError: same dtype expected", "vllm/v1/worker/gpu_worker.py"),
        "TypesDiffer",
        "Start once without --kv-cache-dtype, and with --dtype auto",
        "--speculative-config",
    ),
    "flags that are set": (
        given("'kv_cache_dtype': 'fp8', 'block_size': 64") + failed("ValueError: page size cannot be unified", KV_MANAGER),
        "KvPageSizesDiffer",
        "Remove --kv-cache-dtype and --block-size: such a setting",
        "--speculative-config",
    ),
    "a process whose parent has ended": (
        failed("FileNotFoundError: [Errno 2] No such file or directory", "multiprocessing/synchronize.py:__setstate__"),
        "SemaphoreLost",
        "semaphore",
        "ConfigMap",
    ),
    "a name that resolves to loopback": (
        failed(
            "RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] timed out connecting, remote=[127.0.1.1]:2485, rank=0, size=2"
        ),
        "NetworkInterfaceMisdetected",
        "gave 127.0.1.1 as its address",
        "earlier error",
    ),
    "a barrier": (
        failed("RuntimeError: Timed out waiting 1800000ms for recv operation to complete", "torch/distributed/x.py:barrier"),
        "DistributedTimeout",
        "did not respond in a barrier (Gloo)",
        "hangs, or did not start",
    ),
    "an encoder in quantized form": (
        failed("ValueError: There is no module or parameter named 'visual.blocks.0.qkv.weight_scale' in OddForCausalLM", PARTS),
        "WeightNameOrShapeMismatch",
        "encoder is not quantized",
        "page names",
    ),
    "a plugin for a quantization": (
        failed("ValueError: Method 'odd' is provided by the plugin vllm-odd-plugin, which is not installed.", "vllm/config/model.py"),
        "PythonPackageMissing",
        "Install vllm-odd-plugin in the image",
        "flag, environment variable",
    ),
    "a plugin before its name": (
        failed("ValueError: This model is served by the vllm-odd plugin. Please install it first.", "vllm/config/model.py"),
        "PythonPackageMissing",
        "Install vllm-odd in the image",
        "flag, environment variable",
    ),
    "a newer transformers": (
        failed("RuntimeError: OddForCausalLM needs transformers>=5.2, but 4.57.1 is installed.", "vllm/transformers_utils/config.py"),
        "TransformersTooOld",
        "newer transformers",
        "--trust-remote-code",
    ),
    "a kernel that needs another GPU": (
        failed("AssertionError: Odd sparse needs sm90 or sm100, got sm120", "vllm/v1/attention/backends/mla/odd.py"),
        "KernelUnsupportedOnGpu",
        "does not run on this GPU: Odd sparse needs sm90",
        "--kv-cache-dtype",
    ),
    "a kernel that expects another type": (
        failed("ValueError: Unsupported output dtype Half for NVFP4, expected BFloat16", "vllm/_custom_ops.py"),
        "OutputTypeRefused",
        "Set --dtype bfloat16",
        "--linear-backend",
    ),
    "an argument that an older DeepGEMM does not know": (
        failed("TypeError: fp8_gemm_nt() got an unexpected keyword argument 'recipe'", "vllm/utils/deep_gemm.py", "deep_gemm/__init__.py"),
        "CallMismatch",
        "newer DeepGEMM",
        "VLLM_USE_DEEP_GEMM",
    ),
    "a TPU that is not there": (
        failed("RuntimeError: Unable to initialize backend 'tpu': UNAVAILABLE: odd", "jax/_src/xla_bridge.py"),
        "TpuDevicesTooFew",
        "Check that a TPU is attached",
        "more",
    ),
    "a request that the scheduler lost after an abort": (
        READY + ABORTED + lost("AssertionError", "vllm/v1/core/sched/scheduler.py:_free_request"),
        "SchedulerFailed",
        "after a client had aborted a request (chatcmpl-8c41)",
        "two features",
    ),
    "a name that another package lacks": (
        failed("ImportError: cannot import name 'Odd' from 'cutlass.cute.core' (/usr/lib/x.py)", "quack/gemm.py:<module>"),
        "PackageVersionMismatch",
        "nvidia-cutlass-dsl",
        "installed cutlass",
    ),
    "a file without a path": (
        failed("FileNotFoundError: [Errno 2] No such file or directory", "vllm/v1/x.py"),
        "FileMissing",
        "names no path",
        "ConfigMap",
    ),
    "slots of LMCache": (
        "[2026-11-02 10:00:20,511] LMCache INFO: LMCache Configuration: {'extra_config': {'nixl_pool_size': 9000000000}}\n"
        "/run.sh: line 4: 3270 Killed                  vllm serve org/m\n",
        "OOMKilled",
        "Set nixl_pool_size",
        "10 GiB per process",
    ),
    "a rank that a kernel of LoRA does not support": (
        failed("ValueError: max_lora_rank must be at most 64 for this kernel, found 320", "vllm/lora/punica_wrapper/odd.py"),
        "LoraRankRefused",
        "at most 64",
        "without weights for the experts",
    ),
    "experts that cannot have adapters": (
        given("'enable_lora': True") + failed("AssertionError: odd", "vllm/lora/layers/fused_moe.py:set_lora"),
        "LoraExpertsRefused",
        "without weights for the experts",
        "at most",
    ),
    "a configuration for text only": (
        failed(
            "TypeError: Invalid type of HuggingFace config. Expected type: <class 'vllm.a.OddVLConfig'>, but found type: "
            "<class 'transformers.b.OddTextConfig'>",
            "vllm/multimodal/processing/context.py:get_hf_config",
        ),
        "ModelConfigKindRefused",
        "read as OddTextConfig, and the code for the model expects OddVLConfig",
        "--limit-mm-per-prompt",
    ),
    "a configuration of another model": (
        failed(
            "TypeError: Invalid type of HuggingFace config. Expected type: <class 'a.OddConfig'>, but found type: <class 'b.EvenConfig'>",
            "vllm/multimodal/processing/context.py:get_hf_config",
        ),
        "ModelConfigKindRefused",
        "read as EvenConfig",
        "for text only",
    ),
    "a program around vLLM that expects another one": (
        failed("AttributeError: 'AsyncLLM' object has no attribute 'get_odd_kv_cache_events'", "dynamo/vllm/main.py"),
        "EngineMethodMissing",
        "Install the vLLM version that the program or plugin requires",
        "--block-size",
    ),
    "a backend for the exchange between ranks": (
        given("'enable_expert_parallel': True, 'all2all_backend': 'deepep_high_throughput'")
        + failed("NotImplementedError: No MXFP8 MoE backend supports the deployment configuration.", f"{LAYERS}fused_moe/oracle/mxfp8.py"),
        "MoeBackendUnsupported",
        "with this --all2all-backend (deepep_high_throughput)",
        "Remove --moe-backend",
    ),
    "the usual exchange between ranks": (
        given("'enable_expert_parallel': True, 'all2all_backend': 'allgather_reducescatter'")
        + failed("NotImplementedError: No MXFP8 MoE backend supports the deployment configuration.", f"{LAYERS}fused_moe/oracle/mxfp8.py"),
        "MoeBackendUnsupported",
        "on this GPU",
        "allgather_reducescatter, or remove it",
    ),
    "memory that the engine itself holds": (
        failed(
            "ValueError: Free memory on device cuda:1 (76.9/79.1 GiB) on startup is less than desired GPU memory utilization "
            "(0.98, 77.5 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "GpuMemoryInUse",
        "of this engine hold",
        "earlier engine left",
    ),
    "memory that another process holds": (
        failed(
            "ValueError: Free memory on device cuda:1 (60.1/79.1 GiB) on startup is less than desired GPU memory utilization "
            "(0.98, 77.5 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "GpuMemoryInUse",
        "earlier engine left",
        "of this engine hold",
    ),
    "a check of a compiler before the abort": (
        LOADED
        + 'python3: /src/llvm/lib/CodeGen/Odd.cpp:69: llvm::Value* f(int, std::map<int, int>&): Assertion `isa<A>(x) && "odd"\' failed.\n'
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n",
        "NativeCodeCrash",
        "a check in Odd.cpp failed",
        "VLLM_CACHE_ROOT",
    ),
    "an error of LLVM before the abort": (
        LOADED
        + "LLVM ERROR: Cannot select: intrinsic %llvm.odd.mma\nFatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n",
        "NativeCodeCrash",
        "a check in LLVM failed, Cannot select: intrinsic %llvm.odd.mma",
        "VLLM_CACHE_ROOT",
    ),
    "an abort without a reason": (
        LOADED + "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n",
        "NativeCodeCrash",
        "VLLM_CACHE_ROOT",
        "a check in",
    ),
    "compilation that is off for another feature": (
        given("'enforce_eager': True") + failed("ValueError: No compilation mode is set.", "vllm/compilation/wrapper.py:__init__"),
        "CompilationOff",
        "remove enforce_eager",
        "ngram",
    ),
    "a source that Triton cannot read": (
        failed("AttributeError: 'NoneType' object has no attribute 'start'", "triton/runtime/jit.py:__init__"),
        "KernelSourceUnread",
        "files of the official image",
        "TRITON_CACHE_DIR",
    ),
    "a drafter with input of another size": (
        given("'speculative_config': {'method': 'eagle3', 'model': 'org/d'}")
        + failed(
            "RuntimeError: The size of tensor a (4096) must match the size of tensor b (5120) at non-singleton dimension 1",
            "vllm/model_executor/models/llama_eagle3.py",
        ),
        "SpeculativeDecodingFailed",
        "If the draft model was made for this model, this release has a bug",
        "VLLM_USE_V2_MODEL_RUNNER",
    ),
    "a grammar without speculative decoding": (
        given("'kv_transfer_config': {'kv_connector': 'NixlConnector'}")
        + lost("AssertionError: Failed to advance FSM for request chatcmpl-1", "vllm/v1/structured_output/__init__.py"),
        "StructuredOutputFailed",
        "Start once without --kv-transfer-config",
        "peculative decoding",
    ),
    "a grammar and speculated tokens": (
        given("'speculative_config': {'method': 'mtp'}")
        + lost("AssertionError: Failed to advance FSM for request chatcmpl-1", "vllm/v1/structured_output/__init__.py"),
        "StructuredOutputFailed",
        "out of step",
        "If speculative decoding",
    ),
    "a stage of vLLM-Omni that dies": (
        READY + failed("RuntimeError: odd", "vllm_omni/model_executor/models/odd.py:forward", title=OMNI_DIED),
        "ModelCodeFailed",
        "Try a newer vLLM-Omni",
        "vllm-project/vllm/issues",
    ),
    "a stage of vLLM-Omni of which only the requests tell": (
        f"{READY}(APIServer pid=1) ERROR 11-02 10:00:40 [orchestrator.py:912] [Orchestrator] req=chatcmpl-1: stage-1 has no live replica; "
        "failing the request\n",
        "EngineDead",
        "engine",
        "odd",
    ),
    "a stage of vLLM-Omni that makes images and dies": (
        READY
        + failed("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "vllm_omni/diffusion/x.py", title=IMAGES_DIED),
        "CudaOutOfMemory",
        "GPU memory",
        "StageDiffusionProc",
    ),
    "a stage of vLLM-Omni that makes images and does not start": (
        failed("ValueError: odd", "vllm_omni/diffusion/stage_diffusion_proc.py:run_diffusion_proc", title=IMAGES_DIED)
        + "(APIServer pid=1) RuntimeError: StageDiffusionProc died during handshake (exit code 1)\n",
        "PackageFailed",
        "ValueError: odd",
        "handshake",
    ),
    "a quota of the home directory": (
        failed("odd.InternalError: filesystem error: cannot create directories: Disk quota exceeded [/home/a/.tensorrt_llm/tmp/b]"),
        "DiskFull",
        "TRTLLM_DG_CACHE_DIR",
        "spec.cache.volume",
    ),
    "a quota of another cache": (
        failed("OSError: [Errno 122] Disk quota exceeded: '/home/a/.triton/cache/b'"),
        "DiskFull",
        "set VLLM_CACHE_ROOT",
        "TRTLLM_DG_CACHE_DIR",
    ),
    "too many KV heads for context parallelism": (
        failed(
            "ValueError: tensor parallel size 4 must be greater than total num kv heads 4 when enable decode context parallel for GQA/MQA.",
            "vllm/config/vllm.py",
        ),
        "ParallelLayoutInvalid",
        "Remove --decode-context-parallel-size",
        "If in doubt",
    ),
    "another error of a program that ends itself": (
        LOADED + "FATAL ERROR: no odd pages\nSegmentation fault (core dumped)\n",
        "NativeCodeCrash",
        "no odd pages",
        "PYTHONPATH",
    ),
    "a runner that fails while it makes drafts": (
        given("'max_num_seqs': 4") + lost("RuntimeError: odd", f"{RUNNER}:propose_draft_token_ids", f"{RUNNER}:_odd"),
        "SpeculativeDecodingFailed",
        "without it",
        "optional",
    ),
    "a check of a store": (
        lost("AssertionError: odd state", "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/worker.py"),
        "KvTransferFailed",
        "the master of Mooncake",
        "the other side",
    ),
    "a check of NIXL": (
        lost("AssertionError: odd state", NIXL),
        "KvTransferFailed",
        "the version of the connector (nixl)",
        "Mooncake",
    ),
    "a model whose code a TPU runs": (
        failed("NotImplementedError: odd", "tpu_inference/models/vllm/vllm_model_wrapper.py:step_fun", "vllm/model_executor/models/odd.py"),
        "TpuModelUnsupported",
        "serve the model on GPUs",
        "recipe",
    ),
    "a named model that torchax does not translate": (
        "(APIServer pid=1) INFO 11-02 10:00:00 [model.py:621] Resolved architecture: OddForConditionalGeneration\n"
        + failed("TypeError: odd", "vllm/model_executor/models/odd.py", "torchax/tensor.py"),
        "TpuModelUnsupported",
        "does not support this model (OddForConditionalGeneration)",
        "recipe",
    ),
    "a package of the image for TPUs": (
        failed(
            "AttributeError: module 'jax.odd' has no attribute 'x'", "tpu_inference/models/vllm/vllm_model_wrapper.py", "torchax/interop.py"
        ),
        "PackageVersionMismatch",
        "packages of the vLLM image",
        "serve the model on GPUs",
    ),
    "a check of the scheduler without asynchronous scheduling": (
        given("'async_scheduling': False") + lost("AssertionError: odd", "vllm/v1/core/sched/scheduler.py"),
        "SchedulerFailed",
        "Start once with --no-enable-prefix-caching",
        "async-scheduling",
    ),
    "a check of the scheduler without prefix caching": (
        given("'enable_prefix_caching': False") + lost("AssertionError: odd", "vllm/v1/core/sched/scheduler.py"),
        "SchedulerFailed",
        "Start once with --no-async-scheduling",
        "prefix-caching",
    ),
    "weights that are not offloaded and do not fit": (
        given("'cpu_offload_gb': 20.0")
        + "(EngineCore pid=7) INFO 11-02 10:00:20 [gpu_worker.py:288] Using V2 Model Runner\n"
        + LOADING
        + failed(OOM, f"{LOADER}base_loader.py"),
        "CudaOutOfMemory",
        "here --cpu-offload-gb has no effect",
        "expandable_segments",
    ),
    "weights that the first runner offloads and that do not fit": (
        given("'cpu_offload_gb': 20.0") + LOADING + failed(OOM, f"{LOADER}base_loader.py"),
        "CudaOutOfMemory",
        "GPU",
        "has no effect",
    ),
    "inputs of different sizes in a batch": (
        READY
        + failed(
            "ValueError: pixel_values contains inconsistent shapes: torch.Size([3, 4]) (index 0) vs torch.Size([3, 5]) (index 1)",
            "vllm_omni/model_executor/models/odd.py:_parse_and_validate_image_input",
            "vllm/utils/tensor_schema.py:validate",
            title=OMNI_DIED,
        ),
        "InputSchemaRefused",
        "a bug of vLLM-Omni for this model. It ended the engine",
        "recipe",
    ),
    "an input of an odd shape at the start": (
        failed("ValueError: image_grid_thw has rank 3 but expected 2", "vllm/utils/tensor_schema.py:validate"),
        "InputSchemaRefused",
        "a bug of this vLLM for this model",
        "Restart it",
    ),
    "a library that needs AVX": (
        "[engine-0:1] FATAL: UCX library was compiled with avx2 but CPU does not support it.\n!!!!!!! Segfault encountered !!!!!!!\n",
        "IllegalInstruction",
        "needs the CPU instructions AVX2",
        "AVX-512",
    ),
    "a library of JAX that needs AVX": (
        "RuntimeError: This version of jaxlib was built using AVX instructions, which your CPU and/or operating system do not support.\n",
        "IllegalInstruction",
        "jaxlib in the image needs",
        "VLLM_CACHE_ROOT",
    ),
    "an instruction that is missing, without a library": (
        "run.sh: line 3:    12 Illegal instruction     (core dumped) vllm serve org/m\n",
        "IllegalInstruction",
        "usually AVX-512",
        "host-passthrough",
    ),
    "what a native library says before a signal": (
        "[engine-0:77:0:77] ib_odd.c:143  Fatal: no odd device\n!!!!!!! Segfault encountered !!!!!!!\n",
        "NativeCodeCrash",
        "no odd device",
        "(Segfault)",
    ),
    "a launch failure after hours of service": (
        given("'max_num_seqs': 4") + lost("RuntimeError: CUDA driver error: unspecified launch failure", RUNNER),
        "IllegalMemoryAccess",
        "The GPU, the driver or the host failed",
        "speculative decoding",
    ),
    "a launch failure of a start": (
        given("'max_num_seqs': 4") + failed("torch.AcceleratorError: CUDA error: unspecified launch failure", RUNNER),
        "IllegalMemoryAccess",
        "usually a bug in a kernel",
        "speculative decoding",
    ),
    "a launch failure with drafts": (
        given("'speculative_config': {'method': 'eagle3'}")
        + lost("torch.AcceleratorError: CUDA error: unspecified launch failure", RUNNER),
        "IllegalMemoryAccess",
        "Start without --speculative-config",
        "ECC",
    ),
    "an illegal access with drafts and piecewise graphs": (
        given("'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 5}")
        + PIECEWISE
        + lost("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", RUNNER),
        "IllegalMemoryAccess",
        "Lower num_speculative_tokens in --speculative-config (3 or fewer)",
        "Retry once",
    ),
    "a misaligned address on a follower with drafts": (
        PIECEWISE + lost("torch.AcceleratorError: CUDA error: misaligned address", f"{LAYERS}mamba/gdn/odd_gdn_linear_attn.py"),
        "IllegalMemoryAccess",
        "memory at a misaligned address, usually a bug in a kernel, here with speculative decoding in a linear-attention layer",
        "num_speculative_tokens",
    ),
    "a misaligned address without drafts": (
        given("'enable_lora': False") + lost("torch.AcceleratorError: CUDA error: misaligned address", RUNNER),
        "IllegalMemoryAccess",
        "Retry once",
        "speculative decoding",
    ),
    "expandable segments and a handle of HIP": (
        "PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True\n"
        + failed("RuntimeError: hipIpcGetMemHandle [HIP error](invalid argument)", "aiter/dist/device_communicators/custom_all_reduce.py"),
        "MemoryHandleRefused",
        "The cause is expandable_segments:True",
        "A kernel of AITER",
    ),
    "a handle of HIP in the legacy mode": (
        ":1:rocmemory.cpp :1043: Failed to create memory for IPC, failed with hsa_status: 4097\n"
        + failed("RuntimeError: hipIpcOpenMemHandle -> 1", "vllm/distributed/device_communicators/quick_all_reduce.py"),
        "MemoryHandleRefused",
        "Set HSA_ENABLE_IPC_MODE_LEGACY=0",
        "The cause is expandable_segments",
    ),
    "expandable segments and a handle of CUDA": (
        "export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'\n"
        + failed("RuntimeError: custom_all_reduce.cuh:455 'invalid argument'", "vllm/_custom_ops.py"),
        "CustomAllReduceFailed",
        "Or remove expandable_segments:True",
        "Possible causes",
    ),
    "expandable segments and an error of the runtime in the all-reduce": (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
        + failed("RuntimeError: CUDART error: invalid argument", "vllm/distributed/device_communicators/custom_all_reduce.py"),
        "AllReduceFailed",
        "Remove expandable_segments:True",
        "odd",
    ),
    "an error of the runtime in the all-reduce": (
        failed("RuntimeError: CUDART error: invalid argument", "vllm/distributed/device_communicators/custom_all_reduce.py"),
        "AllReduceFailed",
        "Set --disable-custom-all-reduce",
        "expandable_segments",
    ),
    "segments that are not expandable": (
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\n"
        + failed("RuntimeError: custom_all_reduce.cuh:455 'invalid argument'", "vllm/_custom_ops.py"),
        "CustomAllReduceFailed",
        "a container that does not permit CUDA IPC",
        "remove expandable_segments",
    ),
    "a leader on a loopback address": (
        given("'master_addr': '127.0.0.1', 'master_port': 29501")
        + failed("torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/4 clients joined.", PARALLEL),
        "LeaderAddressLoopback",
        "1 of 4 processes have connected",
        "NetworkPolicy",
    ),
    "a follower that looks for the leader on itself": (
        given("'node_rank': 1, 'master_addr': 'localhost', 'nnodes': 2")
        + failed(
            "torch.distributed.DistNetworkError: The client socket has timed out after 9000ms while trying to connect to (localhost, 25).",
            PARALLEL,
        ),
        "LeaderAddressLoopback",
        "--master-addr is localhost",
        "NetworkPolicy",
    ),
    "a leader with an address of the network": (
        given("'master_addr': '10.0.0.1', 'nnodes': 4")
        + failed("torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/4 clients joined.", PARALLEL),
        "RankMissing",
        "Find the Pods of the missing processes",
        "loopback",
    ),
    "a connector of another package": (
        given("'kv_transfer_config': KVTransferConfig(kv_connector='OddConnector', kv_role='kv_both')")
        + failed("ValueError: Unsupported connector type: OddConnector", "vllm/distributed/kv_transfer/kv_connector/factory.py"),
        "KvTransferConfigInvalid",
        "add kv_connector_module_path to --kv-transfer-config",
        "aibrix_kvcache",
    ),
    "a refused connector of an engine that only decodes": (
        given("'kv_transfer_config': KVTransferConfig(kv_connector='AIBrixPDReuseConnector', kv_role='kv_consumer')")
        + failed("ValueError: Unsupported connector type: AIBrixPDReuseConnector", "vllm/distributed/kv_transfer/kv_connector/factory.py"),
        "KvTransferConfigInvalid",
        "to serve with one engine that prefills and decodes",
        "Correct what the message is about",
    ),
    "offloading beside another connector": (
        given(f"'kv_transfer_config': KVTransferConfig({MULTI})") + lost("AssertionError", f"{OFFLOADING}:_build_store_jobs"),
        "TransferredRequestLost",
        "take the OffloadingConnector out of the MultiConnector",
        "NixlConnector",
    ),
    "a request that a store saves after a failed load": (
        given("'kv_transfer_config': KVTransferConfig(kv_connector='MooncakeStoreConnector', kv_role='kv_both')")
        + lost(
            "AssertionError: Missing current block table for store request cmpl-1",
            "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/scheduler.py:_apply_current_save_block_ids",
        ),
        "TransferredRequestLost",
        "(MooncakeStoreConnector) lost track of a request, which it wanted to save",
        "the other side",
    ),
    "block sizes that offloading cannot use": (
        given("'block_size': 128, 'kv_transfer_config': KVTransferConfig(kv_connector='OffloadingConnector')")
        + failed("AssertionError: gpu_block_size=48 not divisible by hash_block_size=128.", "vllm/v1/kv_offload/spec.py"),
        "OffloadBlockSizesDiffer",
        "or without --block-size",
        "LMCache",
    ),
    "block sizes that simple offloading cannot use": (
        given("'kv_cache_dtype': 'fp8', 'kv_transfer_config': KVTransferConfig(kv_connector='SimpleCPUOffloadConnector')")
        + lost(
            "AssertionError: block_size % hash_block_size == 0",
            "vllm/v1/simple_kv_offload/manager.py",
            "vllm/v1/core/kv_cache_utils.py:resolve_block_hashes",
        ),
        "OffloadBlockSizesDiffer",
        "(SimpleCPUOffloadConnector) cannot use the block sizes",
        "--block-size",
    ),
    "a block size without offloading": (
        given("'block_size': 7") + failed("ValueError: block_size must be a multiple of 16", "vllm/v1/core/kv_cache_utils.py"),
        "KvBlockSizeUnsupported",
        "Remove --block-size",
        "offloading",
    ),
    "a connector of llm-d": (
        given("'kv_transfer_config': KVTransferConfig(kv_connector='OffloadingConnector')")
        + lost("RuntimeError: odd", "llmd_fs_backend/mediums.py", f"{OFFLOADING}:f", "llmd_fs_backend/worker.py"),
        "KvOffloadFailed",
        "the release of llmd_fs_backend",
        "LMCache",
    ),
    "an adapter and a layer with more slices": (
        given("'enable_lora': True, 'max_loras': 2")
        + failed(
            "IndexError: tuple index out of range", "vllm/lora/model_manager.py", "vllm/lora/layers/row_parallel_linear.py:slice_lora_a"
        ),
        "LoraSlicesDiffer",
        "a bug of this vLLM with LoRA",
        "base_model_name_or_path",
    ),
    "an adapter of another model": (
        given("'enable_lora': True") + failed("KeyError: 'odd'", "vllm/lora/lora_model.py"),
        "LoraFailed",
        "base_model_name_or_path",
        "slices",
    ),
    "an input of a request whose places are too many": (
        given("'mm_processor_cache_gb': 8")
        + lost("ValueError: Attempted to assign 20 + 30 = 50 multimodal tokens to 60 placeholders", "vllm/model_executor/models/utils.py"),
        "MultimodalTokensDiffer",
        "set --mm-processor-cache-gb 0",
        "--mm-processor-kwargs",
    ),
    "places of a start that are too many": (
        given("'mm_processor_kwargs': {'size': 1}")
        + failed("ValueError: Attempted to assign 5 multimodal tokens to 6 placeholders", "vllm/model_executor/models/utils.py"),
        "MultimodalTokensDiffer",
        "Remove --mm-processor-kwargs",
        "Restart",
    ),
    "a lost result of the encoder and drafts": (
        lost("AssertionError: Encoder cache miss for 0a1b.", f"{RUNNER}:propose_draft_token_ids", f"{RUNNER}:_gather_mm_embeddings"),
        "EncoderOutputMissing",
        "start without --speculative-config",
        "--no-async-scheduling",
    ),
    "a lost result of the encoder": (
        lost("AssertionError: Encoder cache miss for 0a1b.", f"{RUNNER}:execute_model", f"{RUNNER}:_gather_mm_embeddings"),
        "EncoderOutputMissing",
        "--no-async-scheduling",
        "--speculative-config",
    ),
    "a part that an encoder does not load": (
        "(EngineCore pid=7) INFO 11-02 10:00:20 [gpu_worker.py:288] Using V2 Model Runner\n"
        + failed(
            "NotImplementedError: _C::silu_and_mul: attempted to run this operator with Meta tensors, but there was no fake impl",
            "vllm/v1/worker/gpu/model_runner.py:profile_run",
            "vllm/_custom_ops.py",
        ),
        "UnloadedPartRun",
        "Set VLLM_USE_V2_MODEL_RUNNER=0",
        "sleep mode",
    ),
    "an operator that the compiler does not know": (
        failed(
            "NotImplementedError: _C::odd: attempted to run this operator with Meta tensors, but there was no fake impl or Meta kernel",
            "torch/_dynamo/utils.py",
            "torch/_subclasses/fake_tensor.py",
        ),
        "UnloadedPartRun",
        "Start with --enforce-eager",
        "MODEL_RUNNER",
    ),
    "tensors without data after sleep mode": (
        lost("NotImplementedError: _C::odd: attempted to run this operator with Meta tensors", f"{RUNNER}:execute_model"),
        "TensorWithoutData",
        "After sleep mode",
        "MODEL_RUNNER",
    ),
    "weights that are not offloaded": (
        given("'cpu_offload_gb': 20.0")
        + "(EngineCore pid=7) INFO 11-02 10:00:20 [gpu_worker.py:288] Using V2 Model Runner\n"
        + failed(KV_SHORT),
        "MaxModelLenExceedsKvCache",
        "--cpu-offload-gb has no effect here",
        "odd",
    ),
    "weights that are offloaded": (
        given("'cpu_offload_gb': 20.0")
        + "(EngineCore pid=7) INFO 11-02 10:00:20 [gpu_worker.py:288] Using V2 Model Runner\n"
        + "(EngineCore pid=7) INFO 11-02 10:00:21 [base.py:58] Offloader set to PrefetchOffloader\n"
        + failed(KV_SHORT),
        "MaxModelLenExceedsKvCache",
        "Set --max-model-len",
        "--cpu-offload-gb",
    ),
    "states of Mamba for a model without them": (
        given("'mamba_cache_mode': 'all', 'async_scheduling': False")
        + lost("AttributeError", f"{RUNNER}:_get_mamba_bufs", "vllm/compilation/cuda_graph.py:__getattr__"),
        "ModelWithoutStates",
        "because --mamba-cache-mode is set",
        "--async-scheduling",
    ),
    "a part that the model lacks in its wrapper of graphs": (
        given("'async_scheduling': False")
        + lost("AttributeError: odd", f"{RUNNER}:execute_model", "vllm/compilation/cuda_graph.py:__getattr__"),
        "ModelRunnerFailed",
        "use a newer vLLM. Until then, or if that does not help: Start once with --enforce-eager.",
        "optional",
    ),
    "a halted TPU with a kernel that is off by default": (
        "INFO 11-02 10:00:01 [tpu_platform.py:214] USE_MOE_EP_KERNEL=1\n"
        + lost("jax.errors.JaxRuntimeError: INTERNAL: E0200: RuntimeUnexpectedCoreHalt: odd", "tpu_inference/runner/tpu_runner.py"),
        "TpuCoreHalted",
        "Set USE_MOE_EP_KERNEL=0",
        "Ray",
    ),
    "a halted TPU": (
        "INFO 11-02 10:00:01 [tpu_platform.py:214] USE_MOE_EP_KERNEL=0\n"
        + lost("jax.errors.JaxRuntimeError: INTERNAL: E0200: RuntimeUnexpectedCoreHalt: odd", "tpu_inference/runner/tpu_runner.py"),
        "TpuCoreHalted",
        "usually a kernel (Pallas) with a bug",
        "USE_MOE_EP_KERNEL=",
    ),
    "a model that torchax does not translate": (
        failed("AttributeError: 'Tensor' object has no attribute '_elem'", "vllm/model_executor/models/odd.py", "torchax/ops/jaten.py"),
        "TpuModelUnsupported",
        "MODEL_IMPL_TYPE=flax_nnx",
        "vllm-project/vllm/issues",
    ),
    "a model of which a GPU refuses an operation": (
        failed("TypeError: unsupported operand type(s) for +: 'Tensor' and 'Tensor'", "vllm/model_executor/models/odd.py"),
        "ModelCodeFailed",
        "newer vLLM",
        "TPU",
    ),
    "memory of another GPU that oneCCL cannot open": (
        failed("RuntimeError: oneCCL: ze_fd.cpp:9 f: EXCEPTION: ze error at zeMemGetIpcHandle, code: ZE_RESULT_ERROR_UNKNOWN", PARALLEL),
        "OneCclFailed",
        "CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD",
        "without another PyTorch",
    ),
    "oneCCL without its library": (
        failed("RuntimeError: oneCCL: odd", PARALLEL),
        "OneCclFailed",
        "without another PyTorch",
        "CCL_SYCL",
    ),
    "an Intel GPU without double precision": (
        failed("RuntimeError: Double precision is not supported on this device", RUNNER),
        "DoublePrecisionMissing",
        "Battlemage",
        "setting that the message names",
    ),
    "a cache that is read in another layout": (
        given("'max_num_seqs': 16")
        + failed(
            "RuntimeError: shape '[8, 64, 576]' is invalid for input of size 335872",
            "vllm/v1/worker/gpu_model_runner.py:_reshape_kv_cache_tensors",
        ),
        "CacheViewedOtherwise",
        "Use another release, newer or older",
        "--kv-cache-dtype",
    ),
    "a cache of another shape than the kernel expects": (
        NIGHTLY + failed("RuntimeError: k_cache must have shape (blocks, 64, 1, 584)", "vllm/third_party/flashmla/x.py"),
        "CacheShapeRefused",
        "Use a newer build, or a release",
        "another --attention-backend",
    ),
    "blocks that were evicted between two looks": (
        TRANSFERRED + lost("AssertionError: Expected 1024 hit tokens, got 512", f"{OFFLOADING}:update_state_after_alloc"),
        "TransferredRequestLost",
        "(LMCacheConnectorV1) lost track of a request, because blocks that it had found were evicted",
        "AIBrix",
    ),
    "a flag with one hyphen": (
        "vllm: error: unrecognized arguments: -enable_prefix_caching\n",
        "UnknownCliArgument",
        "two hyphens: --enable_prefix_caching",
        "entrypoint",
    ),
    "a flag that this version does not have": (
        "vllm: error: unrecognized arguments: --odd-flag\n",
        "UnknownCliArgument",
        "use its name in this version",
        "two hyphens",
    ),
    "a transformers that is too new": (
        failed("AttributeError: TokenizersBackend has no attribute build_odd", "vllm/tokenizers/hf.py"),
        "TransformersApiMismatch",
        "Install transformers below 5",
        "ships with",
    ),
    "a name that DNS does not know": (
        "(APIServer pid=1) Traceback (most recent call last):\n"
        '(APIServer pid=1)   File "/usr/lib/python3/dist-packages/huggingface_hub/x.py", line 5, in get\n'
        "(APIServer pid=1) httpx.ConnectError: [Errno -2] Name or service not known\n",
        "HfOfflineOrUnreachable",
        "Check DNS",
        "HF_HUB_OFFLINE",
    ),
    "a library of the driver that is not found": (
        "WARNING 11-02 10:00:00 [interface.py:226] Failed to import from vllm._moe_C with ImportError('libcuda.so.1: cannot open "
        "shared object file: No such file or directory')\n"
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`\n",
        "NoGpuVisible",
        "The driver library libcuda.so.1 was not found",
        "vendor",
    ),
    "no device, and no word about a library": (
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`\n",
        "NoGpuVisible",
        "vendor of the GPU",
        "LD_LIBRARY_PATH",
    ),
    "a package that the official image lacks": (
        failed("ImportError: Install it first: pip install terratorch"),
        "PythonPackageMissing",
        "the official image does not have it",
        "Use the official vLLM image",
    ),
    "a crash within UCX": (
        READY + "[decode-0:245:0:555] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)\n"
        " 4  /x/plugins/libplugin_UCX.so(_ZN13nixlUcxEngine8postXferE+0x21c) [0x7f2184c0421c]\n"
        "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n" + DIED,
        "NixlTransferFailed",
        "NIXL (with UCX) crashed in its own code",
        "--tensor-parallel-size",
    ),
    "FP8 in the warm-up": (
        failed("triton.compiler.errors.CompilationError: type fp8e4nv not supported in this architecture", "vllm/x/jit_warmup.py"),
        "Fp8DtypeUnsupportedOnGpu",
        '"enable_jit_warmup": false',
        "odd",
    ),
    "FP8 in the model": (
        given("'kv_cache_dtype': 'fp8'")
        + failed("triton.compiler.errors.CompilationError: type fp8e4nv not supported in this architecture", "vllm/x/attn.py"),
        "Fp8DtypeUnsupportedOnGpu",
        "Use --kv-cache-dtype auto",
        "jit_warmup",
    ),
    "a compiler that is too old for an option": (
        "nvcc fatal   : Unknown option '--split-compile'\n" + failed("RuntimeError: Ninja build failed. Ninja output:"),
        "FlashInferJitBuildFailed",
        "nvcc is too old",
        "TRITON_ATTN",
    ),
    "a draft model with attention in both directions": (
        given("'kv_cache_dtype': 'fp8', 'speculative_config': {'method': 'dflash'}")
        + failed(
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(kv_cache_dtype=fp8, use_mla=False, "
            "use_non_causal=True). Reasons: {FLASH_ATTN: [kv_cache_dtype not supported], TRITON_ATTN: [non-causal not supported]}."
        ),
        "NoValidAttentionBackend",
        "such as mtp, whose attention is causal",
        "set it to fp8",
    ),
    "a feature that says that it needs the compiler": (
        given("'optimization_level': 0")
        + failed("ValueError: odd_fusion requires torch.compile, but it is disabled", "vllm/config/vllm.py"),
        "CompilationOff",
        "compilation is off (--optimization-level 0)",
        "Set --enforce-eager",
    ),
    "a check of a compiler in the output of a process": (
        LOADED + "(EngineCore pid=7) python3: ../lib/Analysis/Even.cc:7: bool g(): Assertion `n > 0' failed.\n"
        "(EngineCore pid=7) Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n",
        "NativeCodeCrash",
        "a check in Even.cc failed",
        "VLLM_CACHE_ROOT",
    ),
    "an exception of C++ before the abort": (
        LOADED + "terminate called after throwing an instance of 'odd::Error'\n"
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n",
        "NativeCodeCrash",
        "'odd::Error'",
        "a check in",
    ),
    "experts that are divided among ranks already": (
        given("'tensor_parallel_size': 16, 'enable_expert_parallel': True")
        + failed(
            "ValueError: Weight input_size_per_partition = 192 is not divisible by weight quantization block_k = 128.", f"{LAYERS}x.py"
        ),
        "TensorParallelNotDivisible",
        "does not change dense layers",
        "avoids splitting",
    ),
    "a package that the connector needs": (
        given("'kv_transfer_config': {'kv_connector': 'MooncakeConnector'}") + failed("ModuleNotFoundError: No module named 'mooncake'"),
        "PythonPackageMissing",
        "The connector in --kv-transfer-config needs it",
        "odd",
    ),
    "a library in the environment of a user": (
        SYMBOL.format("/srv/app/.venv/lib/python3.12/site-packages").replace(
            "ImportError: ", FRAME.format("/srv/app/.venv") + "ImportError: "
        ),
        "AbiSymbolMismatch",
        "Install vllm and its torch in a new environment",
        "Use the official vLLM image.",
    ),
    "no compiler in the environment of a user": (
        FRAME.format("/home/user/miniconda3") + "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist\n",
        "FlashInferNvccMissing",
        "If the machine has it",
        "Use the official vLLM image",
    ),
    "no compiler in the environment of an image": (
        FRAME.format("/opt/venv") + "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist\n",
        "FlashInferNvccMissing",
        "Use the official vLLM image",
        "If the machine has it",
    ),
    "a second model on the command line": (
        "+ exec vllm serve /models/a /models/b --port 8000\nvllm: error: unrecognized arguments: /models/b\n",
        "UnknownCliArgument",
        "Give the model once: the command takes one, and this is a second one, as the command in the log shows",
        "its name in this version",
    ),
    "a second model without the command": (
        "vllm: error: unrecognized arguments: org/odd-model\n",
        "UnknownCliArgument",
        "Give the model once",
        "as the command in the log shows",
    ),
    "a shell in the place of flags": (
        "Start command: sh -c 'run.sh'\nvllm serve: error: argument --compilation-config/-cc: Value run.sh cannot be converted to json\n",
        "ArgumentValueInvalid",
        "read the command sh -c 'run.sh' as its own arguments",
        "Correct the JSON",
    ),
    "another command, which the log does not show": (
        "vllm serve: error: argument --compilation-config/-cc: Value import cannot be converted to <function loads at 0x7f>\n",
        "ArgumentValueInvalid",
        "such as bash -c or python3 -c",
        "removed the quotation marks",
    ),
    "a configuration of the compiler without quotation marks": (
        RENDERED.format("--compilation-config/-cc", "{mode:3}"),
        "ArgumentValueInvalid",
        "removed the quotation marks",
        "bash -c",
    ),
    "doubled braces": (
        RENDERED.format("--speculative-config", '{{"method":"mtp"}}'),
        "ArgumentValueInvalid",
        "Its braces are doubled",
        "other JSON arguments",
    ),
    "doubled braces in several arguments": (
        """Running: vllm serve m --a '{{"b":1}}' --c '{{"d":2}}'\n""" + RENDERED.format("--a", '{{"b":1}}'),
        "ArgumentValueInvalid",
        "also in the other JSON arguments of this command",
        "Quote it once more",
    ),
    "nested braces of JSON": (
        RENDERED.format("--hf-overrides", '{"a":{"b":{c}}}'),
        "ArgumentValueInvalid",
        "Quote it once more",
        "doubled",
    ),
    "a variable that Compose does not know": (
        'WARN[0000] The "TP_SIZE" variable is not set. Defaulting to a blank string.\n'
        "vllm serve: error: argument --tensor-parallel-size/-tp: expected one argument\n",
        "ArgumentValueInvalid",
        "because variables such as TP_SIZE are not set",
        "begins with a hyphen",
    ),
    "no value, and no warning": (
        "vllm serve: error: argument --tensor-parallel-size/-tp: expected one argument\n",
        "ArgumentValueInvalid",
        "Set it, or write --tensor-parallel-size=VALUE",
        "Compose",
    ),
    "a draft model that is not mounted": (
        given("'speculative_config': {'method': 'eagle3', 'model': '/host/odd-draft'}") + refused(NOT_FOUND.format("/host/odd-draft")),
        "HfRepoNotFound",
        "Correct `model` in --speculative-config",
        "spec.model",
    ),
    "a model that is not mounted, beside a draft model": (
        given("'speculative_config': {'method': 'eagle3', 'model': '/host/odd-draft'}") + refused(NOT_FOUND.format("/models/main")),
        "HfRepoNotFound",
        "Mount the folder of the model",
        "--speculative-config",
    ),
    "a model behind a link": (
        "[entrypoint] lrwxrwxrwx 1 1000 1000 52 Oct  3 17:58 /models/main -> /mnt/disk/main\n"
        + given("'max_model_len': 8192")
        + refused(NOT_FOUND.format("/models/main")),
        "HfRepoNotFound",
        "is a symbolic link to /mnt/disk/main",
        "spec.model.uri",
    ),
    "an interface that a variable names": (
        "[entrypoint] NCCL_SOCKET_IFNAME=ib1 GLOO_SOCKET_IFNAME=ib7\n"
        + given("'max_model_len': 8192")
        + failed("RuntimeError: ifa != nullptr. Unable to find address for: ib7"),
        "NetworkInterfaceMisdetected",
        "such as ib1 of NCCL_SOCKET_IFNAME",
        "eth0",
    ),
    "GPUs that Ray has reserved": (
        "Total Usage:\n 4.0/4.0 GPU (4.0 used of 4.0 reserved in placement groups)\n"
        + given("'distributed_executor_backend': 'ray'")
        + failed("ValueError: Current node has no GPU available. current_node_resource={'CPU': 32.0}."),
        "NotEnoughGpus",
        "`ray stop` on all nodes",
        "VLLM_HOST_IP",
    ),
    "experts that cannot be invariant": (
        "+ export VLLM_BATCH_INVARIANT=1\n"
        + given("'max_model_len': 8192")
        + failed("NotImplementedError: No MXFP4 MoE backend supports the deployment configuration."),
        "MoeBackendUnsupported",
        "Remove VLLM_BATCH_INVARIANT",
        "another GPU",
    ),
    "a tokenizer that is not mounted": (
        given("'tokenizer': '/host/tok'") + refused(NOT_FOUND.format("/host/tok")),
        "HfRepoNotFound",
        "Correct --tokenizer",
        "spec.model",
    ),
    "a container that was recreated": (
        " Container odd-vllm-1  Recreate\n" + given("'max_model_len': 8192") + failed(FULL.format(8192, "2.0", "0.45", 1856)),
        "MaxModelLenExceedsKvCache",
        "Start again first, once the old container has ended",
        "needs a little more",
    ),
    "a container that was created": (
        " Container odd-vllm-1  Created\n" + given("'max_model_len': 8192") + failed(FULL.format(8192, "2.0", "0.45", 1856)),
        "MaxModelLenExceedsKvCache",
        "Lower --max-model-len to at most 1856",
        "recreated",
    ),
    "memory of CUDA graphs in the share": (
        given("'max_model_len': 4096") + SHARED + failed(FULL.format(4096, "0.81", "0.80", 4000)),
        "MaxModelLenExceedsKvCache",
        "Raise --gpu-memory-utilization to 0.829, or lower --max-model-len to at most 4000",
        "(now 0.8)",
    ),
    "a shortage beyond that of CUDA graphs": (
        given("'max_model_len': 4096") + SHARED + failed(FULL.format(4096, "8.0", "2.0", 1000)),
        "MaxModelLenExceedsKvCache",
        "raise --gpu-memory-utilization (now 0.8)",
        "0.829",
    ),
    "blocks of state-space layers": (
        given("'max_model_len': 4096, 'mamba_cache_mode': 'align'") + failed(FULL.format(4096, "9.29", "9.28", 4000)),
        "MaxModelLenExceedsKvCache",
        "Start without prefix caching (--no-enable-prefix-caching)",
        "CUDA graphs",
    ),
    "a length that was not set": (
        given("'tensor_parallel_size': 2") + failed(FULL.format(262144, "12.0", "10.59", 231328)),
        "MaxModelLenExceedsKvCache",
        "Set --max-model-len to at most 231328",
        "A request of --max-model-len",
    ),
    "a plugin with a class of the model": (
        PLUGIN.format("odd -> odd_models:register")
        + failed("ValueError: Following weights were not initialized from checkpoint: {'odd_head.bias'}", f"{LOADER}x.py"),
        "WeightNameOrShapeMismatch",
        "the plugin odd",
        "Usually no setting",
    ),
    "a plugin of vLLM itself": (
        PLUGIN.format("lora_filesystem_resolver -> vllm.plugins.lora_resolvers.filesystem_resolver:register")
        + failed("ValueError: Following weights were not initialized from checkpoint: {'odd_head.bias'}", f"{LOADER}x.py"),
        "WeightNameOrShapeMismatch",
        "this vLLM version's implementation",
        "plugin",
    ),
    "a plugin for a platform": (
        PLUGIN.format("ascend -> vllm_ascend:register")
        + failed("ValueError: Following weights were not initialized from checkpoint: {'odd_head.bias'}", f"{LOADER}x.py"),
        "WeightNameOrShapeMismatch",
        "this vLLM version's implementation",
        "plugin",
    ),
    "a class that was forced": (
        given("'hf_overrides': {'architectures': ['OddForCausalLM']}")
        + failed("ValueError: There is no module or parameter named 'vision_tower' in OddModel.", f"{LOADER}x.py"),
        "WeightNameOrShapeMismatch",
        "forces, which is one for text only",
        "page names",
    ),
    "overrides without a class": (
        given("'hf_overrides': {'rope_theta': 1}")
        + failed("ValueError: There is no module or parameter named 'odd' in OddModel.", f"{LOADER}x.py"),
        "WeightNameOrShapeMismatch",
        "Start without --hf-overrides",
        "forces",
    ),
    "a GPU that only two backends support": (
        given("'dtype': 'auto'") + CHOSEN.format("['TRITON_ATTN', 'FLEX_ATTENTION']") + failed(SPARE_TILES, "vllm/v1/attention/ops/odd.py"),
        "TritonOutOfResources",
        "no other attention backend for this model on this GPU than TRITON_ATTN, FLEX_ATTENTION",
        "Use another --attention-backend",
    ),
    "a GPU that more backends support": (
        given("'kv_cache_dtype': 'fp8'")
        + CHOSEN.format("['TRITON_ATTN', 'FLASH_ATTN']")
        + failed(SPARE_TILES, "vllm/v1/attention/ops/odd.py"),
        "TritonOutOfResources",
        "Use another --attention-backend than TRITON_ATTN, or --kv-cache-dtype auto",
        "float32",
    ),
    "a container without a GPU": (
        UNLINKED,
        "NoGpuVisible",
        "Check that the Pod requests a GPU",
        "vendor",
    ),
    "a torch in the home directory": (
        "Name: torch\nLocation: /home/user/.local/lib/python3.11/site-packages\n"
        + SYMBOL.format("/opt/conda/envs/a/lib/python3.11/site-packages"),
        "AbiSymbolMismatch",
        "PYTHONNOUSERSITE=1",
        "official vLLM image",
    ),
    "a torch in the environment": (
        "Name: torch\nLocation: /opt/a/lib/python3.11/site-packages\n" + SYMBOL.format("/usr/local/lib/python3.12/dist-packages"),
        "AbiSymbolMismatch",
        "Use the official vLLM image",
        "PYTHONNOUSERSITE",
    ),
    "sparse attention, and no flag is set": (
        given("'max_model_len': 8192") + failed(NO_SPARSE),
        "NoValidAttentionBackend",
        "sparse MLA (head_size 96)",
        "If that fails too",
    ),
    "sparse attention, and a flag is set": (
        given("'kv_cache_dtype': 'fp8'") + failed(NO_SPARSE),
        "NoValidAttentionBackend",
        "If that fails too, use a newer vLLM",
        "No flag helps",
    ),
    "a model of the transformers library that was asked for": (
        given("'model_impl': 'transformers'")
        + failed("TypeError: forward() got an unexpected keyword argument 'odd'", "vllm/model_executor/models/transformers/base.py"),
        "TransformersBackendFailed",
        "Remove --model-impl transformers",
        "attention-backend",
    ),
    "a model that only the transformers library has": (
        given("'dtype': 'auto'")
        + failed(
            "RuntimeError: The size of tensor a (4) must match the size of tensor b (8)", "vllm/model_executor/models/transformers/moe.py"
        ),
        "TransformersBackendFailed",
        "Use a vLLM that has this model itself",
        "Remove --model-impl",
    ),
    "memory that ran out within the transformers library": (
        given("'model_impl': 'transformers'") + failed(OOM, "vllm/model_executor/models/transformers/base.py"),
        "CudaOutOfMemory",
        "memory",
        "--model-impl",
    ),
    "a package that is too old for transformers": (
        failed("ImportError: cannot import name 'Odd' from 'tiktoken.core' (/x/tiktoken/core.py)", "transformers/odd.py:<module>"),
        "PackageVersionMismatch",
        "too old for the installed transformers",
        "without installing others",
    ),
    "a package of another caller": (
        failed("ImportError: cannot import name 'Odd' from 'tiktoken.core' (/x/tiktoken/core.py)", "odd/x.py:<module>"),
        "PackageVersionMismatch",
        "without installing others",
        "too old",
    ),
    "a model in the place of a flag": (
        "vllm: error: unrecognized arguments: serve org/model\n",
        "UnknownCliArgument",
        "entrypoint of the image",
        "Pin the version",
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


def test_a_request_that_the_engine_refuses_is_no_notice() -> None:
    error = "vllm.exceptions.VLLMValidationError: Structured output processing only supports one backend per engine."
    log = READY + failed(error, "vllm/v1/structured_output/__init__.py", title="Unexpected error pre-processing request chatcmpl-1")

    parser = read_pasted(log)
    assert parser.final_state.crash is None
    assert not any("grammar" in notice.cause for notice in parser.notices_beside(None))


def test_a_peer_with_another_configuration_is_told_in_the_first_line() -> None:
    warning = "(EngineCore pid=7) WARNING 11-02 10:00:30 [base_worker.py:1] NIXL transfer failure: handshake_failed\n"
    mismatch = failed("RuntimeError: NIXL compatibility hash mismatch. Local: 7a, Remote: e0.", NIXL, title="Handshake failed")

    parser = read_pasted(f"{READY}{warning}{mismatch}")
    assert headline(parser.final_state) == "Started, but transfers of KV cache fail, and so do requests"
    (notice,) = parser.notices_beside(None)
    assert "another configuration" in notice.cause
    assert "--speculative-config" in (notice.remedy or "")
    assert "The network is not the cause" in (notice.remedy or "")


@pytest.mark.parametrize(
    "end",
    [
        "INFO 11-02 10:00:31 [async_llm.py:415] Added request test-1.\n",
        "INFO 11-02 10:00:31 [async_llm.py:721] Aborted request(s) test-1.\n",
        "Processed prompts: 100%|██████████| 8/8 [00:08<00:00,  1.23s/it]\n",
        "Running loglikelihood requests: 100%|██████████| 1319/1319 [27:08<00:00,  1.23s/it]\n",
    ],
)
def test_an_engine_without_a_server_is_ready_when_it_answers_requests(end: str) -> None:
    initialized = "(EngineCore pid=7) INFO 11-02 10:00:30 [core.py:302] init engine (profile, create kv cache, warmup model) took 36.07 s\n"

    state = read_pasted(LOADING + initialized + end).final_state
    assert (state.stage, state.crash) == (Stage.READY, None)


def test_weights_that_are_loaded_have_no_bar_that_goes_on() -> None:
    bar = "(EngineCore pid=7) Loading safetensors checkpoint shards:  92% Completed | 12/13 [01:00<00:05,  5.08s/it]\n"

    state = read_pasted(LOADING + bar + LOADED + failed("RuntimeError: odd", PARTS)).final_state
    assert (state.is_stage_over, state.progress) == (True, None)
