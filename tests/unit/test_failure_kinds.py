"""An error that matches no signature says what the engine was doing, from the files in its traceback."""

import re

import pytest

from support.crash_messages import said, says_the_whole_remedy
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
    "KernelPreparationFailed": (["vllm/v1/executor/abstract.py"], "RuntimeError: b12x preparation failed on rank 0: ValueError: odd"),
    "RunnerPartMissing": ([WORKER], "AttributeError: 'GPUModelRunner' object has no attribute 'drafter'"),
    "MemoryNotShared": (["torch/multiprocessing/reductions.py"], "RuntimeError: pidfd_getfd: Operation not permitted"),
    "LayerPartitionInvalid": (["vllm/distributed/utils.py"], "ValueError: len(partitions)=2 does not match pp_size=1."),
    "KvCacheTypeRefused": (["vllm/models/qwen4_exp/nvidia/qsa.py"], "NotImplementedError: Qwen4Exp QSA requires a BF16 main KV cache"),
    "DeviceAccessTimedOut": (["vllm/v1/worker/gpu_worker.py"], "RuntimeError: MMIO per-op timeout: 4B load took 49571 us"),
    "DeviceRefused": (["vllm/v1/engine/core.py"], "RuntimeError: Current device xpu:0 is not supported"),
    "NvmlAllocatorAssertion": ([WORKER], 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1154'),
    "GpuNameUnknown": (["vllm/platforms/cuda.py"], "vllm.third_party.pynvml.NVMLError_NotFound: Not Found"),
    "CpuMemoryShort": (
        ["vllm/v1/worker/cpu_worker.py"],
        "ValueError: Available memory on node 0 (2.5/8.0 GiB) on startup is less than desired CPU memory utilization (0.7, 5.6 GiB).",
    ),
    "KernelRefusedInput": ([WORKER, "vllm/_custom_ops.py"], ODD),
    "NvmlFailed": (["vllm/platforms/cuda.py"], "vllm.third_party.pynvml.NVMLError_Unknown: Unknown Error"),
    "KvBlockSizeUnsupported": (["vllm/v1/worker/utils.py"], "ValueError: No common block size for 8."),
    "PaddedPageTooSmall": (["vllm/v1/kv_cache_interface.py"], "AssertionError: page_size_padded >= page_size"),
    "KvTypeUnknownToKernel": (["flashinfer/utils.py"], "AttributeError: module 'torch' has no attribute 'nvfp4'"),
    "AcceptedTokensRefused": (
        [WORKER, "vllm/model_executor/layers/mamba/ops/mamba_ssm.py"],
        "AssertionError: assert num_accepted_tokens.shape == (N,)",
    ),
    "KvPageSizesDiffer": (["vllm/v1/core/kv_cache_utils.py"], "NotImplementedError: The page size of the layer is not divisible"),
    "MambaCacheFailed": ([WORKER], "AssertionError: mamba_block_size must be set"),
    "EplbFailed": ([WORKER], "AssertionError: EPLB is not initialized"),
    "PipelineParallelFailed": ([WORKER], "AttributeError: 'IntermediateTensors' object has no attribute 'get'"),
    "GraphCaptureForbidden": ([WORKER], "RuntimeError: CUDA graphs must be captured on a non-default stream."),
    "InputCacheOutOfStep": (["vllm/multimodal/cache.py"], "AssertionError: Expected a cached item for mm_hash='a1'"),
    "WorkspaceTooSmall": (["vllm/v1/worker/workspace.py"], "AssertionError: Workspace is locked but allocation requires 8.12 MB"),
    "WebFrameworkMismatch": ([], "AttributeError: '_IncludedRouter' object has no attribute 'path'"),
    "StructuredOutputFailed": (["vllm/v1/structured_output/__init__.py"], "AssertionError: Failed to advance FSM"),
    "ImagePullFailed": ([], "RuntimeError: ErrImagePull: toomanyrequests"),
    "EncoderOutputMissing": ([WORKER], "AssertionError: Encoder cache miss for 5b0a"),
    "PodConfigMissing": ([], "RuntimeError: CreateContainerConfigError"),
    "DeviceNotAdmitted": ([], "RuntimeError: UnexpectedAdmissionError"),
    "ContainerRuntimeFailed": ([], "RuntimeError: OCI runtime error"),
    "TorchOpMissing": ([WORKER], "RuntimeError: operator torchvision::nms does not exist"),
    "DevicesDiffer": ([WORKER], "RuntimeError: Expected all tensors to be on the same device, but found at least two"),
    "PinnedMemoryFailed": ([WORKER], "RuntimeError: cudaHostRegister failed"),
    "RocmLibraryFailed": ([WORKER], "RuntimeError: rocBLAS error"),
    "CpuKernelFailed": ([WORKER], "RuntimeError: could not create a primitive"),
    "PythonStartFailed": ([], "Fatal Python error: init_fs_encoding: failed to get the Python codec"),
    "OpenFilesExhausted": ([WORKER], "RuntimeError: rv != -1. Too many open files"),
    "AllocatorSettingRefused": ([WORKER], "RuntimeError: stoull"),
    "ProgramFailed": ([WORKER], "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1."),
    "LoggingConfigFailed": (["vllm/logger.py"], "ValueError: Unable to configure handler 'vllm'"),
    "RustPanicked": ([], "pyo3_runtime.PanicException: odd"),
    "DeviceAbsent": ([WORKER], "RuntimeError: Unable to open TPU device /dev/vfio/0"),
    "RotaryEmbeddingFailed": ([WORKER, "vllm/model_executor/layers/rotary_embedding/common.py"], ODD),
    "TypesDiffer": ([WORKER], "AssertionError: Unsupported lhs dtype fp8e4nv"),
    "TritonAbsent": ([WORKER], "TypeError: 'function' object is not subscriptable"),
    "TorchWithoutDevice": ([WORKER], "AssertionError: Torch not compiled with CUDA enabled"),
    "DriverInitFailed": (
        ["torch/cuda/__init__.py"],
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 807: MPS server is not ready",
    ),
    "CublasFailed": ([WORKER], "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`"),
    "CudnnFailed": (["flashinfer/gemm/gemm_base.py"], "RuntimeError: Plan index 13 is invalid"),
    "FlashInferFilesMissing": (["flashinfer/jit/fused_moe.py"], "AssertionError: BatchedGemmEnums.h not found"),
    "PackageVersionMismatch": ([WORKER], "AttributeError: module 'cutlass.cute.nvgpu' has no attribute 'LoadCacheMode'"),
    "DeviceCommunicatorFailed": ([WORKER], "RuntimeError: symmetric memory rendezvous failed"),
    "GpuLibraryMissing": ([WORKER], "OSError: libfoo.so.2: cannot open shared object file: No such file or directory"),
    "CertificateFailed": (["aiohttp/client.py"], "ssl.SSLError: bad handshake"),
    "DynamoFailed": (["dynamo/runtime/__init__.py"], "Exception: Unable to connect to etcd server at http://etcd:2379"),
    "TpuFailed": (["tpu_inference/utils.py"], ODD),
    "AscendFailed": (["vllm_ascend/worker.py"], ODD),
    "GaudiFailed": (["vllm_gaudi/v1/worker.py"], ODD),
    "XpuFailed": (["vllm/v1/worker/xpu_worker.py"], ODD),
    "SleepModeFailed": (["vllm/device_allocator/cumem.py"], ODD),
    "OtherModelRunnerNeeded": ([WORKER], "NotImplementedError: Dual batch overlap is not supported by Model Runner V2"),
    "CallNotSupportedByDriver": ([WORKER], "torch.AcceleratorError: CUDA error: operation not supported"),
    "LayerNotHere": (["vllm/model_executor/models/qwen3_next.py"], "KeyError: 'model.layers.20.linear_attn'"),
    "LmcacheUnreachable": (
        ["lmcache/integration/vllm/vllm_multi_process_adapter.py"],
        "ConnectionError: Cannot reach the LMCache server at tcp://localhost:5555 (timed out).",
    ),
    "SettingsExcludeEachOther": (
        ["vllm/model_executor/model_loader/default_loader.py"],
        "ValueError: enable_multithread_load does not support safetensors_load_strategy='prefetch'",
    ),
    "LoaderSettingRefused": (
        ["vllm/model_executor/model_loader/runai_streamer_loader.py:__init__"],
        "ValueError: concurrency must be a positive integer, got '16'",
    ),
    "QuantizationRefused": (
        ["vllm/model_executor/layers/quantization/modelopt.py"],
        "ValueError: Missing 'quant_algo' in quantization config",
    ),
    "WindowsDiffer": (
        ["vllm/v1/attention/backends/flashinfer.py"],
        "ValueError: Window left is not the same for all layers. One potential fix is to set disable_sliding_window=True",
    ),
    "ArchitecturesUnknown": (["torch/utils/cpp_extension.py:_get_cuda_arch_flags"], "IndexError: list index out of range"),
    "PoolingModelGenerates": (["vllm/model_executor/models/bert.py"], "AssertionError: assert pooler_config is not None"),
    "DraftModelAlone": (
        ["vllm/model_executor/models/odd_mtp.py"],
        "AttributeError: 'NoneType' object has no attribute 'draft_model_config'",
    ),
    "CaptureSizesTooLarge": (
        ["vllm/v1/attention/backends/gdn_attn.py"],
        "AssertionError: GDN only supports decode-only full CUDAGraph capture. Make sure batch size (512) <= cudagraph capture sizes (256)",
    ),
    "KvLayoutRefused": (
        ["vllm/v1/attention/backends/utils.py"],
        "ValueError: VLLM_KV_CACHE_LAYOUT=HND does not satisfy every supported set; valid layouts: ['NHD']",
    ),
    "KvSettingRefused": (["vllm/v1/kv_offload/factory.py:get_spec_cls"], "ValueError: Unsupported spec type: OddSpec"),
    "NcclVersionTooOld": (
        ["vllm/distributed/device_communicators/pynccl_allocator.py"],
        "AssertionError: NCCL version 2.27.3 or higher is required for NCCL symmetric memory",
    ),
    "CpuBindingFailed": (["vllm/v1/worker/cpu_worker.py"], "AssertionError: VLLM_CPU_NUM_OF_RESERVED_CPU (1) should less than 1."),
    "PortRangeExhausted": (
        ["vllm/utils/network_utils.py"],
        "RuntimeError: Could not find open port after 100 attempts starting from port 29500",
    ),
    "RayNodesShareAddress": (
        ["vllm/v1/executor/ray_executor.py"],
        "RuntimeError: Every node should have a unique IP address. Got 2 nodes with 1 unique IP addresses",
    ),
    "RayHeadAddressUnknown": (["vllm/v1/engine/utils.py"], "AssertionError: The DP master node (ip: 0.0.0.0) is missing or dead"),
    "TritonDriverMissing": (["triton/runtime/driver.py"], "RuntimeError: 0 active drivers ([]). There should only be one."),
    "OneCclFailed": (["torch/distributed/distributed_c10d.py"], "ValueError: XCCL is not available"),
    "ModelSettingRefused": (
        ["vllm/model_executor/models/config.py"],
        "AssertionError: Chunked prefill is required for Mamba prefix caching.",
    ),
    "ModelClassNotFound": (["vllm/model_executor/models/registry.py"], "ValueError: No model architectures are specified"),
    "WorkerRefused": (["vllm/v1/worker/gpu_worker.py:init_device"], "RuntimeError: Unsupported device type: odd0"),
    "AttentionMetadataFailed": ([WORKER], "AttributeError: 'WidgetMetadataBuilder' object has no attribute 'layer_names'"),
    "RuntimeCompilerTooOld": ([WORKER], "RuntimeError: NVRTC error: nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    "ChatTemplateInvalid": (["vllm/entrypoints/chat_utils.py"], "jinja2.exceptions.TemplateSyntaxError: unexpected '}'"),
    "MultimodalTokensDiffer": (
        ["vllm/model_executor/models/utils.py"],
        "ValueError: Attempted to assign 1024 multimodal tokens to 1000 placeholders",
    ),
    "LogitsInvalid": (["vllm/v1/sample/sampler.py"], "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    "TokenOutOfVocabulary": (["vllm/model_executor/models/internlm2.py"], "IndexError: index out of range in self"),
    "StorageInitializerFailed": (["kserve_storage/kserve_storage.py"], ODD),
    "DynamoWorkerFailed": (["dynamo/vllm/main.py"], ODD),
    "RunPodWorkerFailed": (["runpod/serverless/worker.py"], ODD),
    "ExpertExchangeFailed": (["deep_ep/buffer.py"], ODD),
    "ParserFailed": (["vllm/tool_parsers/hermes_tool_parser.py"], ODD),
    "GgufFailed": (["vllm/model_executor/model_loader/gguf_loader.py"], ODD),
    "TileLangFailed": (["tilelang/jit/kernel.py"], ODD),
    "SamplerFailed": (["vllm/v1/sample/sampler.py"], ODD),
    "KvCacheLayoutFailed": (["vllm/v1/core/kv_cache_utils.py"], ODD),
    "SchedulerFailed": (["vllm/v1/core/sched/scheduler.py"], ODD),
    "ConfigurationFailed": (["argparse.py"], ODD),
    "PlatformFailed": (["vllm/platforms/cuda.py"], ODD),
    "NotOnThisDevice": (["vllm/platforms/cpu.py"], "NotImplementedError: Sparse Attention is not supported on CPU."),
    "ContextParallelRefused": (["vllm/v1/core/single_type_kv_cache_manager.py"], "AssertionError: DCP not support mamba now."),
    "GpuSelectionInvalid": (
        ["vllm/platforms/interface.py"],
        "IndexError: visible device ordinal 1 is out of range for CUDA_VISIBLE_DEVICES=0",
    ),
    "SeveralPlatformPlugins": (
        ["vllm/platforms/__init__.py"],
        "RuntimeError: Only one platform plugin can be activated, but got: ['ascend', 'metax']",
    ),
    "IoProcessorMissing": (
        ["vllm/plugins/io_processors/__init__.py"],
        "ValueError: No IOProcessor plugins installed but one is required (x).",
    ),
    "ConfigAskedTooEarly": (["vllm/config/vllm.py"], "AssertionError: Current vLLM config is not set."),
    "EncoderTransferFailed": (["vllm/distributed/ec_transfer/ec_connector/mooncake/worker.py"], ODD),
    "ElasticScalingFailed": (["vllm/distributed/elastic_ep/elastic_state.py"], ODD),
    "WeightTransferFailed": (["vllm/distributed/weight_transfer/nccl_engine.py"], ODD),
    "WeightOffloadingFailed": ([WORKER, "vllm/model_executor/offloader/prefetch.py"], ODD),
    "PoolingFailed": ([WORKER, "vllm/model_executor/layers/pooler/heads.py"], ODD),
    "LinearKernelFailed": ([WORKER, "vllm/model_executor/kernels/linear/scaled_mm/cutlass.py"], ODD),
    "RendererFailed": (["vllm/renderers/hf.py"], ODD),
    "LaunchFailed": (["vllm/v1/engine/coordinator.py"], ODD),
    "ProgramUnguarded": ([], "RuntimeError: An attempt has been made to start a new process before the"),
    "SocketFileRefused": (["zmq/sugar/socket.py"], "zmq.error.ZMQError: No such file or directory (addr='ipc:///tmp/vllm/0a1b')"),
    "HostUnreachable": (
        ["tiktoken/load.py"],
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='files.example', port=443): Max retries exceeded with url: /a",
    ),
    "ConfigFileInvalid": (['vllm/utils/argparse_utils.py", line 5, in load_config_file\n'], "yaml.parser.ParserError: odd"),
    "AddressRefused": (
        ['vllm/entrypoints/openai/api_server.py", line 5, in create_server_socket\n'],
        "PermissionError: [Errno 13] Permission denied",
    ),
    "EncoderCacheFailed": (["vllm/v1/core/encoder_cache_manager.py"], ODD),
    "DetokenizerFailed": (["vllm/v1/engine/detokenizer.py"], ODD),
    "BatchInvarianceRefused": ([WORKER], "RuntimeError: VLLM batch_invariant mode requires an attention backend in ['FLASH_ATTN']"),
    "TelemetryFailed": (["vllm/v1/metrics/loggers.py"], ODD),
    "MessagingFailed": (["zmq/sugar/socket.py"], ODD),
    "ModelRunnerFailed": ([WORKER], ODD),
    "PackageFailed": (["vllm/v1/engine/core.py", "/opt/venv/lib/python3.12/site-packages/sparkinfer/moe/plan.py"], ODD),
    "OperationNotPermitted": ([WORKER], "torch.AcceleratorError: CUDA error: operation not permitted"),
    "DuplicateMetrics": (["prometheus_client/registry.py"], "ValueError: Duplicated timeseries in CollectorRegistry: {'vllm:odd'}"),
    "ProgramOnStandardInput": ([], "FileNotFoundError: [Errno 2] No such file or directory: '/work/<stdin>'"),
    "AllReduceFailed": ([WORKER, "vllm/distributed/device_communicators/custom_all_reduce.py"], ODD),
    "CallMismatch": ([WORKER], "TypeError: propose() got an unexpected keyword argument 'req_ids'"),
    "EngineLoopFailed": (["vllm/v1/engine/core.py"], ODD),
    "CompilerMessage": ([], "RuntimeError: nvcc ended with status 4"),
    "ShapesDiffer": ([], "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    "MemoryShort": ([], "RuntimeError: std::bad_alloc"),
    "PermissionMissing": ([], "RuntimeError: Operation not permitted"),
    "FileMissing": ([], "RuntimeError: /odd does not exist"),
    "ConnectionFailed": ([], "RuntimeError: connection refused by 10.0.0.1"),
    "NotImplementedHere": ([], "NotImplementedError: odd"),
    "CodeMismatch": ([], "TypeError: odd"),
    "CheckFailed": ([], "AssertionError: odd"),
    "LookupFailed": ([], "IndexError: odd"),
    "ValueRefused": ([], "ValueError: odd"),
    "HandshakeFailed": (["zmq/sugar/socket.py"], "RuntimeError: NIXL handshake with 10.0.0.2 failed"),
    "TensorWithoutData": ([WORKER], "NotImplementedError: Cannot copy out of meta tensor; no data!"),
    "WeightNeverLoaded": ([WORKER], "RuntimeError: NVFP4 weight_scale for layer 'lm_head' was never loaded (still NaN)."),
    "GroupsNotInitialized": ([WORKER], "AssertionError: pipeline model parallel group is not initialized"),
    "KvHandshakeMismatch": ([WORKER], "RuntimeError: NIXL compatibility hash mismatch. Local: 4bd3, Remote: e07a."),
    "RequestGrammarInvalid": ([WORKER], "RuntimeError: [22:31:40] grammar_parser.cc:1402: EBNF parser error at line 2, column 1"),
    "PythonTooOld": (["flashinfer/fp4.py"], "TypeError: 'type' object is not subscriptable"),
    "PackageImportFailed": (["acme/odd.py"], "TypeError: odd"),
    "DecodeOnlyBackend": (
        ["vllm/model_executor/layers/attention/mla_attention.py"],
        "AssertionError: assert m.max_query_len <= self.reorder_batch_threshold  # decode only",
    ),
    "ModuleLoadFailed": (["acme/odd.py", "acme/parts.py"], ODD),
    "CudaBuildsDiffer": (
        ["transformers/audio_utils.py", "torchaudio/_extension/utils.py"],
        "RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA versions.",
    ),
    "LevelZeroFailed": (
        ["torch/xpu/__init__.py"],
        "RuntimeError: level_zero backend failed with error: 2147483646 (UR_RESULT_ERROR_UNKNOWN)",
    ),
    "StableOperatorFailed": (["torch/_ops.py"], 'RuntimeError: torch_call_dispatcher("aten::empty", "", stack.data()) API call failed'),
    "TransferredDataLost": (["lmcache/v1/storage_backend/pd_backend.py"], "AssertionError: Key 7 not found in local data."),
    "SizeNotDivisible": (["flashinfer/fused_moe/core.py"], "AssertionError: K must be divisible by blockK"),
    "GemmFailed": ([WORKER, "vllm/_custom_ops.py"], "RuntimeError: cutlass_gemm_caller, Error Internal at scaled_mm_c3x.cu:92"),
    "CompiledPartMissing": (["torch/_classes.py"], "RuntimeError: Tried to instantiate class '_core_C.ScalarType', but it does not exist!"),
    "DeviceNotReady": ([WORKER, "flashinfer/autotuner.py"], "RuntimeError: CUDA driver error: device not ready"),
    "LoadedDuringCapture": (
        ["vllm/compilation/cuda_graph.py", "triton/compiler/compiler.py"],
        "RuntimeError: Triton Error [CUDA]: operation not permitted",
    ),
    "EncoderGraphFailed": ([WORKER, "vllm/v1/worker/encoder_cudagraph.py"], "RuntimeError: the sizes of buffer and input differ"),
    "OutputTypeOfFp8": (["vllm/v1/attention/backends/flash_attn.py"], "RuntimeError: For FP8 input, output must have dtype BF16"),
    "TurboQuantTypeLost": (["vllm/v1/attention/backends/turboquant_attn.py"], "ValueError: Unknown TurboQuant cache dtype: 'auto'"),
    "TurboQuantRefused": (["vllm/engine/arg_utils.py"], "NotImplementedError: TurboQuant KV cache is not supported for hybrid models."),
    "NixlPluginsMissing": (["nixl_cu12/_api.py"], "RuntimeError: No plugins available for NIXL, cannot start transfers!"),
    "FlashInferWorkspaceTooSmall": (
        ["vllm/v1/attention/backends/flashinfer.py"],
        "RuntimeError: Buffer overflow when allocating memory for batch_prefill_tmp_v with size 536346624 and alignment 16, but only"
        " 413138944 bytes available in AlignedAllocator. Increase the workspace buffer size.",
    ),
    "MambaStatesMisplaced": (
        ["vllm/model_executor/layers/mamba/mamba_mixer2.py"],
        "RuntimeError: shape mismatch: value tensor of shape [0, 24] cannot be broadcast to indexing result of shape [4, 24]",
    ),
    "OperatorRegisteredTwice": (
        ["acme/odd.py", "vllm/utils/torch_utils.py"],
        "RuntimeError: Tried to register an operator (vllm::odd(Tensor x) -> ()) with the same name and overload name multiple times.",
    ),
    "OutputPlaceholdersMiscounted": (
        ["vllm/v1/core/sched/async_scheduler.py"],
        "AssertionError: assert request.num_output_placeholders >= 0",
    ),
    "ModelRunnersDiffer": ([WORKER], "AssertionError: assert new_req_data.prefill_token_ids is not None"),
    "FlashInferApiMissing": (
        ["vllm/models/deepseek_v4/nvidia/flashinfer_sparse.py"],
        "RuntimeError: it requires FlashInfer's sparse MLA API",
    ),
    "NeuronExecutionFailed": ([WORKER], "RuntimeError: Failed to execute the model status=1006 message=Out-Of-Bounds access"),
    "IndexOutOfBounds": (["vllm/v1/worker/gpu_input_batch.py"], "IndexError: index 306 is out of bounds for dimension 0 with size 306"),
    "LmcacheSerdeFailed": (["lmcache/storage_backend/serde/turboquant_serde.py"], "AssertionError: the tensor is not of a supported type"),
    "TransferredRequestLost": (["vllm/v1/core/sched/scheduler.py:_update_from_kv_xfer_finished"], "KeyError: 'chatcmpl-9b1e'"),
    "DeepGemmKernelAbsent": (
        ["vllm/utils/deep_gemm.py"],
        "RuntimeError: Failed to open: /opt/deep_gemm/include/impls/sm121_fp8_mqa_logits.cuh",
    ),
    "TpuDevicesTooFew": (["jax/_src/mesh.py"], "ValueError: Number of devices 4 must be >= the product of mesh_shape (1, 8)"),
    "KernelNotLaunched": (
        ["vllm/model_executor/layers/sparse_attn_indexer.py"],
        "RuntimeError: cooperative_topk.cu:48, cooperative_topk launch failed: invalid argument",
    ),
    "SpeculativeMethodMixedUp": (
        ["vllm/v1/spec_decode/dflash.py"],
        'odd.Stop: assert vllm_config.speculative_config.method == "dflash"',
    ),
    "SemaphoreLost": (["/usr/lib/python3.12/multiprocessing/synchronize.py:__setstate__"], "FileNotFoundError: [Errno 2] No such file"),
    "InductorFreezing": (["torch/_inductor/codecache.py"], "AssertionError: expected OutputCode, got function"),
    "GpuArchRefused": (
        ["aiter_meta/csrc/cpp_itfs/utils.py"],
        "AssertionError: One of GPU archs of ['gfx1151'] is invalid or not supported",
    ),
    "OutputTypeRefused": (["vllm/_custom_ops.py"], "NotImplementedError: SM120 NVFP4 MOE only supports bfloat16 output, got: Half"),
    "FlashInferCheckFailed": (["flashinfer/fused_moe/core.py"], "RuntimeError: Check failed: a == b (1280 vs. 640) : odd shape"),
    "LoraExpertsRefused": (["vllm/lora/layers/fused_moe.py:set_lora"], "AssertionError: odd"),
    "TransformersBackendFailed": (
        ["vllm/model_executor/models/transformers/base.py:forward", "vllm/model_executor/layers/attention/attention.py:forward"],
        "RuntimeError: shape '[-1, 8, 96]' is invalid for input of size 1024",
    ),
    "LoraRankRefused": (["vllm/lora/ops/triton_ops/odd.py"], "AssertionError: odd_kernel supports max_lora_rank <= 128, got 256"),
    "ModelConfigKindRefused": (
        ["vllm/multimodal/processing/context.py:get_hf_config"],
        "TypeError: Invalid type of HuggingFace config. Expected type: <class 'a.OddConfig'>, but found type: <class 'b.TextConfig'>",
    ),
    "EngineMethodMissing": (["vllm/v1/engine/core.py"], "AttributeError: 'EngineCoreProc' object has no attribute 'get_odd_metadata'"),
    "CompilationOff": (["vllm/compilation/wrapper.py:__init__"], "ValueError: No compilation mode is set."),
    "KernelSourceUnread": (["triton/runtime/jit.py:__init__"], "AttributeError: 'NoneType' object has no attribute 'start'"),
    "CacheViewedOtherwise": (
        ["vllm/v1/worker/gpu_model_runner.py:_reshape_kv_cache_tensors"],
        "RuntimeError: shape '[32, 64, 576]' is invalid for input of size 1343488",
    ),
    "CacheShapeRefused": (["vllm/third_party/flashmla/x.py"], "RuntimeError: kv must have shape (num_blocks, page_block_size, h_kv)"),
    "OffloadBlockSizesDiffer": (
        ["vllm/v1/simple_kv_offload/manager.py", "vllm/v1/core/kv_cache_utils.py"],
        "AssertionError: block_size=8 is no multiple of hash_block_size=32",
    ),
    "OffloadFilesMixedUp": (["llmd_fs_backend/worker.py:transfer_async"], "AssertionError: Expected group_idx=2 but key encodes 1"),
    "LoraSlicesDiffer": (["vllm/lora/layers/column_parallel_linear.py:slice_lora_b"], "IndexError: list index out of range"),
    "ModelWithoutStates": (
        ["vllm/v1/worker/gpu_model_runner.py:_get_mamba_bufs", "torch/nn/modules/module.py:__getattr__"],
        "AttributeError: 'OddForCausalLM' object has no attribute 'get_mamba_state_copy_func'",
    ),
    "InputSchemaRefused": (["vllm/utils/tensor_schema.py:validate"], "ValueError: image_sizes contains inconsistent shapes: (3) vs (2)"),
    "UnloadedPartRun": (
        ["vllm/v1/worker/gpu/model_runner.py:_dummy_run", "vllm/_custom_ops.py"],
        "NotImplementedError: _C::odd: attempted to run this operator with Meta tensors, but there was no fake impl",
    ),
    "TpuCoreHalted": (
        ["tpu_inference/runner/tpu_runner.py"],
        "jax.errors.JaxRuntimeError: INTERNAL: E0200: RuntimeUnexpectedCoreHalt: odd",
    ),
    "TpuModelUnsupported": (
        ["tpu_inference/models/vllm/wrapper.py", "vllm/model_executor/models/odd.py"],
        "TypeError: unsupported operand type(s) for *: 'Tensor' and 'Tensor'",
    ),
    "FlashInferKernelMissing": (
        ["vllm/v1/attention/backends/flashinfer.py", "flashinfer/decode.py"],
        "RuntimeError: Missing TRTLLM-GEN kernel (decode): headDimQk=512, headDimV=512",
    ),
    "FlashMlaFailed": (
        ["vllm/third_party/flashmla/flash_mla_interface.py:flash_mla_sparse_fwd"],
        "RuntimeError: CUDA error (/workspace/.deps/flashmla-src/csrc/sm90/prefill/sparse/phase1.cuh:614): invalid argument",
    ),
    "CachedGraphMisfits": (
        ["vllm/compilation/decorators.py", "torch/_dynamo/aot_compile.py", MODULE],
        "AttributeError: 'QKVParallelLinear' object has no attribute 'workspace'",
    ),
    "LoraBesideOtherFeature": (
        ["vllm/lora/layers/logits_processor.py"],
        "NotImplementedError: skip_gather=True is not supported with LoRA logits",
    ),
    "QuantizedFormRefused": (
        ["vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe/odd.py:__init__"],
        "AssertionError: assert self.group_size == -1",
    ),
    "AbortedRequestScheduled": (
        ["vllm/v1/core/sched/scheduler.py:schedule"],
        "RuntimeError: Invalid request status: RequestStatus.FINISHED_ABORTED",
    ),
    "CapturedCodeFailed": (
        ["vllm/v1/worker/gpu/model_runner.py:capture_model", "vllm/model_executor/layers/sparse_attn_indexer.py"],
        "torch.AcceleratorError: CUDA error: invalid argument",
    ),
    "LoaderPackageMismatch": (
        ["vllm/model_executor/model_loader/weight_utils.py:instanttensor_weights_iterator"],
        "TypeError: safe_open.__init__() got an unexpected keyword argument 'copy'",
    ),
    "ReplicasShareNodes": (["vllm/config/parallel.py:local_world_size"], "ZeroDivisionError: integer division or modulo by zero"),
    "ExpertSpaceTooSmall": (["flashinfer/fused_moe/cute_dsl/b12x_moe.py"], "ValueError: num_tokens (8192) exceeds max_num_tokens (4096)"),
    "TopkBufferMissing": (["vllm/models/deepseek_v4/nvidia/flashmla.py"], "AssertionError: assert self.topk_indices_buffer is not None"),
    "VllmNameMissing": (
        ["vllm/model_executor/layers/quantization/awq_marlin.py:get_quant_method"],
        "AttributeError: 'Logger' object has no attribute 'warning_one'. Did you mean: 'warning_once'?",
    ),
    "RequestUnknownToEngine": (["vllm/v1/worker/gpu_model_runner.py:_prepare_inputs"], "KeyError: 'embd-2f1c0e7b4b7e4b0f-0'"),
    "PipelineSamplesMistaken": (["vllm/v1/worker/gpu_model_runner.py:_pp_receive_sampled"], "AssertionError: assert not pp.is_last_rank"),
    "KvCopyFailed": (["vllm/_custom_ops.py:swap_blocks_batch"], "RuntimeError: cuMemcpyBatchAsync failed at index 1 with error 1"),
    "MediaPositionsMistaken": (
        ["vllm/model_executor/layers/rotary_embedding.py:get_input_positions_tensor"],
        "IndexError: list index out of range",
    ),
    "StepWithoutTokens": (["vllm/v1/core/sched/scheduler.py:schedule"], "AssertionError: assert num_new_tokens > 0"),
    "OperatorLacksType": (
        ["vllm/model_executor/models/llama4.py:load_weights"],
        "NotImplementedError: \"index_cpu\" not implemented for 'Float8_e4m3fn'",
    ),
    "TransferredBlocksDiffer": (
        ["vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:_apply_prefix_caching"],
        "AssertionError: assert num_local_blocks == num_remote_blocks",
    ),
    "InvalidBlocksUnhandled": (
        ["vllm/v1/core/sched/scheduler.py:_update_requests_with_invalid_blocks"],
        "ValueError: too many values to unpack (expected 1)",
    ),
    "LmcacheLayoutUnread": (
        ["lmcache/v1/gpu_connector/odd.py"],
        "ValueError: Unsupported kv_layout: none. Only NHD and HND are supported.",
    ),
    "CpuHeadSizeUnsupported": (["vllm/_custom_ops.py"], "RuntimeError: Unsupported CPU attention configuration: head_dim=512 isa=1"),
    "TenstorrentMemoryShort": (
        ["/tt-metal/models/odd/tt/decoder.py"],
        "RuntimeError: Out of Memory: Not enough space to allocate 402653184 B DRAM buffer across 8 banks",
    ),
    "TenstorrentBuffersClash": (
        ["/tt-metal/models/odd/tt/mlp.py"],
        "RuntimeError: Statically allocated circular buffers in program 51 clash with L1 buffers on core range [(x=0,y=0) - (x=9,y=7)]",
    ),
    "ConnectorMetricsMissing": (
        ["vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:observe"],
        "AssertionError: OddConnector is not contained in the list of registered connectors with Prometheus metrics support: dict_keys([])",
    ),
    "MooncakePluginMissing": ([WORKER], "RuntimeError: Unable to find metadata storage plugin odd with conn string odd://127.0.0.1"),
    "MooncakeMasterRefused": ([WORKER], "RuntimeError: RPC call failed: invalid rpc arg"),
    "RequestValueUnknown": (["vllm_omni/model_executor/models/odd/odd.py"], "ValueError: Unsupported voice: odd"),
    "DeepstackBufferTooSmall": (
        ["vllm/model_executor/models/odd_vl.py"],
        "ValueError: Requested more deepstack tokens than available in buffer: num_tokens=9 > buffer=8",
    ),
    "PrefillOfContextFailed": (
        ["vllm/model_executor/layers/attention/mla_attention.py:_compute_prefill_context", MODULE],
        "TypeError: odd",
    ),
    "EncoderQuantizedOnline": (
        ["vllm/model_executor/layers/quantization/odd.py"],
        "RuntimeError: expected odd input, got torch.float8_odd",
    ),
    "WeightPreparationFailed": (
        ["vllm/model_executor/kernels/linear/odd.py:process_weights_after_loading", "vllm/model_executor/utils.py"],
        "AssertionError: odd",
    ),
    "MoeTileMissing": (["flashinfer/fused_moe/core.py"], "RuntimeError: Unsupported tile shape config 256256128 for MoE gemm"),
    "MemoryHandleRefused": ([WORKER], "RuntimeError: hipIpcGetMemHandle -> 1 (invalid argument)"),
    "DoublePrecisionMissing": ([WORKER], "RuntimeError: Required aspect fp64 is not supported on the device"),
}


def crash_of(files: list[str], error: str) -> Crash:
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):"]
    for frame in files:  # a file, or file:function
        file, _, function = frame.partition(":")
        where = function or ("<module>" if file == "acme/odd.py" else "call")
        lines += [f'  File "{file if file.startswith("/") else PACKAGES + file}", line 10, in {where}', "    x = y()"]
    first = "(EngineCore pid=40) INFO 10-01 10:00:00 [core.py:123] Initializing a V1 LLM engine (v0.30.0) with config: model='/models/a'\n"
    crash = read_pasted(first + "".join(f"{PREFIX}{line}\n" for line in [*lines, error])).final_state.crash
    assert crash is not None
    return crash


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == {kind.id for kind in load_startup().kinds}


@pytest.mark.parametrize("kind", load_startup().kinds, ids=lambda kind: kind.id)
def test_an_error_without_a_signature_says_what_failed_and_what_to_try(kind: FailureKind) -> None:
    crash = crash_of(*CASES[kind.id])
    assert (crash.signature, crash.family) == ("Unknown", kind.id)
    assert f": {CASES[kind.id][1].rstrip('.')}" in crash.cause
    assert crash.remedy
    assert says_the_whole_remedy(crash), said(crash)


def test_what_the_message_tells_to_do_comes_first() -> None:
    crash = crash_of([WORKER], "ValueError: FP8 caches need FP8 queries; enable --attention-config '{\"a\": true}'.")
    assert (crash.remedy or "").startswith(
        "Do first what the message says: enable --attention-config '{\"a\": true}'. If that does not help: "
    )


@pytest.mark.parametrize(
    ("error", "first"),
    [
        ("ValueError: kv_cache_dtype must be auto for this layer", "First change what the message is about: --kv-cache-dtype."),
        ("RuntimeError: TP does not support this odd layer", "First change what the message is about: --tensor-parallel-size."),
        ("RuntimeError: no widget_size is set", "Start once with --enforce-eager"),
    ],
)
def test_a_condition_names_the_settings_that_the_message_is_about(error: str, first: str) -> None:
    assert (crash_of([WORKER], error).remedy or "").startswith(first)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("'max_num_seqs': 0", "The check is about --max-num-batched-tokens, which is not set, so it has its default, or follows"),
        ("'max_num_batched_tokens': 0", "The check is about --max-num-batched-tokens. Correct"),
    ],
)
def test_a_refused_value_that_nobody_gave_is_said_to_follow_from_others(given: str, said: str) -> None:
    arguments = f"(APIServer pid=7) INFO 10-01 10:01:00 [utils.py:253] non-default args: {{'model': '/m', {given}}}\n"
    lines = ("pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig", "max_num_batched_tokens")
    log = arguments + "".join(f"(APIServer pid=7) {line}\n" for line in (*lines, "  Input should be greater than or equal to 1 [type=x]"))
    crash = read_pasted(log).final_state.crash
    assert crash is not None
    assert (crash.remedy or "").startswith(said)


def test_an_error_of_an_engine_that_served_is_not_blamed_on_its_settings_first() -> None:
    log = f"INFO:     Application startup complete.\n{PREFIX}EngineCore encountered a fatal error.\n"
    lines = ["Traceback (most recent call last):", f'  File "{PACKAGES}{WORKER}", line 10, in call', "    x = y()", ODD]
    crash = read_pasted(log + "".join(f"{PREFIX}{line}\n" for line in lines)).final_state.crash
    assert crash is not None
    assert (crash.remedy or "").startswith("The engine was ready with these settings")


@pytest.mark.parametrize(
    ("before", "family", "shown"),
    [
        ("mem_heap.cpp:544: cuWidgetCreate: out of memory", "MemoryShort", "(before it: mem_heap.cpp:544: cuWidgetCreate: out of memory)"),
        ("widget.cu: failed to find a widget", "ExpertExchangeFailed", "(before it: widget.cu: failed to find a widget)"),
        ("widget.cu: failed, falling back", "ExpertExchangeFailed", "(deep_ep/buffer.py)"),
    ],
)
def test_a_line_right_before_an_error_says_why(before: str, family: str, shown: str) -> None:
    lines = ["WorkerProc failed to start.", "Traceback (most recent call last):"]
    lines += [f'  File "{PACKAGES}deep_ep/buffer.py", line 10, in call', "    x = y()", "RuntimeError: Failed: 'invalid argument'"]
    crash = read_pasted(f"{before}\n" + "".join(f"{PREFIX}{line}\n" for line in lines)).final_state.crash
    assert crash is not None
    assert crash.family == family
    assert crash.cause.endswith(shown)


def test_the_record_that_announces_a_traceback_says_what_failed() -> None:
    lines = ["The widget exchange failed with its peer", "Traceback (most recent call last):"]
    lines += [
        f'  File "{PACKAGES}zmq/sugar/socket.py", line 10, in recv',
        "    x = y()",
        "zmq.error.Again: Resource temporarily unavailable",
    ]
    crash = read_pasted("".join(f"{PREFIX}{line}\n" for line in [*lines, "EngineCore failed to start."])).final_state.crash
    assert crash is not None
    assert crash.cause.endswith("(after The widget exchange failed with its peer)")


def test_an_error_of_another_worker_is_preferred_to_the_report_that_a_peer_has_ended() -> None:
    ended = "torch.distributed.DistBackendError: NCCL error in: c10d.cpp:1, remote process exited or there was a network error, NCCL 2"
    log = ""
    for rank, file, error in ((1, "torch/distributed/distributed_c10d.py", ended), (0, "vllm/lora/layers.py", "KeyError: 'odd'")):
        lines = ["WorkerProc failed to start.", "Traceback (most recent call last):", f'  File "{PACKAGES}{file}", line 10, in call']
        log += "".join(f"(Worker_TP{rank} pid=4) ERROR 10-01 10:01:10 [m.py:9] {line}\n" for line in [*lines, "    x = y()", error])
    crash = read_pasted(log).final_state.crash
    assert crash is not None
    assert crash.family == "LoraFailed"


def test_what_a_native_exception_says_is_shown() -> None:
    crash = read_pasted("terminate called after throwing an instance of 'std::runtime_error'\n  what():  odd widget\n").final_state.crash
    assert crash is not None
    assert "what(): odd widget" in " ".join(crash.cause.split())


def test_the_dump_of_a_refused_input_is_not_part_of_the_cause() -> None:
    crash = crash_of([], "Value error, Odd setting [type=value_error, input_value=ArgsKwargs((), {'a': 1}), input_type=ArgsKwargs]")
    assert crash.cause == "vLLM refused its configuration: Value error, Odd setting"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("FlashInferFailed", "RuntimeError: Failed to initialize the TMA descriptor 1"),
        ("TritonFailed", "RuntimeError: Failed to import triton kernels"),
        ("KvTransferFailed", "RuntimeError: lmcache is odd"),
        ("LoraFailed", "RuntimeError: LoRA is odd"),
        ("KvCacheLayoutFailed", "RuntimeError: the KV cache is odd"),
        ("RayFailed", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
        ("ChatTemplateInvalid", "jinja2.exceptions.TemplateSyntaxError: Encountered unknown tag 'generation'"),
        ("ModelDownloadFailed", "RuntimeError: odd answer of https://hf.co"),
        ("ServerStartFailed", "RuntimeError: uvicorn is odd"),
        ("CollectiveFailed", "RuntimeError: NCCL is not amused"),
    ],
)
def test_without_frames_the_words_of_the_message_tell_the_family(kind: str, error: str) -> None:
    assert crash_of([], error).family == kind


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
        ("KeyError: 'abc'", DIRECT, "RuntimeError: no widget", "RuntimeError: no widget, in f (acme/b.py) (caused by KeyError: 'abc')"),
        ("StopIteration", HANDLED, "RuntimeError: no widget", "RuntimeError: no widget, in f (acme/b.py) (caused by StopIteration)"),
        ("KeyError: 'abc'", HANDLED, "TypeError: the handler failed", "KeyError: 'abc' at `x()`, in f (acme/a.py)"),
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
    assert "that the operator does not know" in crash_of(["/srv/acme/plugin.py"], ODD).cause


@pytest.mark.parametrize("kind", load_startup().kinds, ids=lambda kind: kind.id)
def test_a_kind_reads_well(kind: FailureKind) -> None:
    assert kind.frames is not None or kind.message is not None
    assert not kind.cause.endswith(".")
    assert kind.message is not None or not kind.first
    assert kind.remedy.endswith((".", "{% endif %}"))
    assert re.search(r"\s{2}", kind.remedy) is None
