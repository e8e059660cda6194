"""What vLLM's own sources raise and warn of during a start, by kind: some messages of each family, with plausible values.

Nobody has to have pasted a log for a message to be known by name. The rows are facts of the sources of the versions that
they name; each is read at the end of the traceback in which the engine prints it.
"""

import pytest

from vllm_operator.catalog.startup import load_startup
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import Crash

KNOWLEDGE = load_startup()
PACKAGES = "/usr/local/lib/python3.12/dist-packages/"

CONFIGURATION = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=7)     sys.exit(main())
(APIServer pid=7)   File "{path}", line 100, in __post_init__
(APIServer pid=7)     s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
(APIServer pid=7)   {kind}, {message} [type=value_error, input_value=ArgsKwargs((), {{'model': 'm'}}), input_type=ArgsKwargs]
(APIServer pid=7)     For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""
API_SERVER = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=7)     sys.exit(main())
(APIServer pid=7)   File "{path}", line 100, in make
(APIServer pid=7)     raise {exception}(
(APIServer pid=7) {exception}: {message}
"""
ENGINE_CORE = """\
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136] EngineCore failed to start.
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136] Traceback (most recent call last):
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136]   File "{path}", line 100, in make
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136]     raise {exception}(
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136] {exception}: {message}
(EngineCore pid=77) Process EngineCore:
(EngineCore pid=77) Traceback (most recent call last):
(EngineCore pid=77)   File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap
(EngineCore pid=77)     self.run()
(EngineCore pid=77)   File "{path}", line 100, in make
(EngineCore pid=77)     raise {exception}(
(EngineCore pid=77) {exception}: {message}
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=7)     sys.exit(main())
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
API_SERVER_FILES = ("engine/", "entrypoints/", "config/", "transformers_utils/", "tokenizers/", "platforms/", "envs.py")

MESSAGES: list[tuple[str, str, str, str]] = [
    # signature, module, version, exception and message
    (
        "KvTransferConfigInvalid",
        "config/kv_transfer.py",
        "0.22.1",
        "ValueError: Please specify kv_role when kv_connector is set, supported roles are kv_both",
    ),
    (
        "KvTransferConfigInvalid",
        "distributed/kv_transfer/kv_connector/factory.py",
        "0.22.1",
        "ValueError: Connector P2pNcclConnector does not support HMA but HMA is enabled.",
    ),
    (
        "KvTransferConfigInvalid",
        "v1/kv_offload/cpu/spec.py",
        "0.22.1",
        "Exception: cpu_bytes_to_use must be specified in kv_connector_extra_config",
    ),
    (
        "ModelTaskMismatch",
        "config/model.py",
        "0.22.1",
        "ValueError: Embedding models do not support `--runner generate`. Use `--runner pooling`.",
    ),
    ("ParallelLayoutInvalid", "config/model.py", "0.33.0", "NotImplementedError: Pipeline parallelism is not supported for this model."),
    (
        "ParallelLayoutInvalid",
        "engine/arg_utils.py",
        "0.22.1",
        "AssertionError: nnodes > 1 is only supported with data_parallel_backend=mp",
    ),
    (
        "ParallelLayoutInvalid",
        "engine/arg_utils.py",
        "0.33.0",
        "ValueError: Invalid data-parallel launch options: `--node-rank` must be between 0 and 1; got `--node-rank 2`.",
    ),
    (
        "ParallelLayoutInvalid",
        "model_executor/layers/quantization/gguf.py",
        "0.14.1",
        "NotImplementedError: EPLB not supported for `GGUFMoEMethod` yet.",
    ),
    (
        "BatchedTokensBelowNeed",
        "config/vllm.py",
        "0.33.0",
        "AssertionError: In Mamba cache align mode, block_size (2096) must be <= max_num_batched_tokens (2048).",
    ),
    (
        "BatchedTokensBelowNeed",
        "config/vllm.py",
        "0.22.1",
        "ValueError: VllmConfig does not have enough slots to schedule a token and support the speculative decoding settings.",
    ),
    (
        "BusErrorSharedMemory",
        "distributed/device_communicators/shm_broadcast.py",
        "0.33.0",
        "RuntimeError: Insufficient space in /dev/shm for 2 queues: 164 MiB required, 64 MiB free. Increase /dev/shm "
        "(e.g. --shm-size or --ipc=host).",
    ),
    (
        "DeepGemmUnavailable",
        "utils/deep_gemm.py",
        "0.33.0",
        "RuntimeError: DeepGEMM backend is unavailable in the current vLLM environment, or the available DeepGEMM "
        "package does not provide the required API.",
    ),
    (
        "InvalidToolOrReasoningParser",
        "entrypoints/openai/serving_engine.py",
        "0.14.1",
        "TypeError: Error: --enable-auto-tool-choice requires tool_parser:'hermez' which has not been registered",
    ),
    (
        "InvalidToolOrReasoningParser",
        "entrypoints/openai/serving_chat.py",
        "0.11.0",
        "TypeError: reasoning_parser='deep' has not been registered",
    ),
    (
        "InvalidToolOrReasoningParser",
        "entrypoints/openai/tool_parsers/kimi_k2_tool_parser.py",
        "0.11.0",
        "RuntimeError: Kimi-K2 Tool parser could not locate tool call start/end tokens in the tokenizer!",
    ),
    (
        "LoraUnsupported",
        "config/lora.py",
        "0.33.0",
        "ValueError: LoRA is not supported with moe_backend='flashinfer_trtllm'. Disable LoRA or select a MoE backend that supports LoRA.",
    ),
    ("LoraUnsupported", "lora/layers/fused_moe.py", "0.14.1", "AssertionError: EP support for Fused MoE LoRA is not implemented yet."),
    (
        "ModelArchitectureUnsupported",
        "model_executor/model_loader/gguf_loader.py",
        "0.22.1",
        "RuntimeError: Unknown gguf model_type: minimax-m2",
    ),
    (
        "ModelArchitectureUnsupported",
        "platforms/rocm.py",
        "0.22.1",
        "ValueError: Model architecture 'PhiMoEForCausalLM' is not supported by ROCm for now.",
    ),
    ("MoeBackendUnsupported", "model_executor/layers/fused_moe/oracle/mxfp8.py", "0.22.1", "ValueError: No MXFP8 MoE backends available."),
    (
        "MoeBackendUnsupported",
        "model_executor/kernels/linear/__init__.py",
        "0.33.0",
        "ValueError: Forced NVFP4 kernel FlashInferCutlassNvFp4LinearKernel is not supported: needs compute capability 10.0",
    ),
    (
        "MoeBackendUnsupported",
        "model_executor/layers/quantization/mxfp4.py",
        "0.14.1",
        "AssertionError: No MXFP4 MoE backend (FlashInfer/Marlin/Triton) available.Please check your environment and try again.",
    ),
    (
        "NixlUnavailable",
        "config/parallel.py",
        "0.33.0",
        "ValueError: Elastic EP with async EPLB requires the NIXL package. Either install NIXL or set --eplb-config.use_async=false.",
    ),
    (
        "NotEnoughGpus",
        "v1/executor/ray_utils.py",
        "0.33.0",
        "ValueError: Cannot provide a placement group requiring 16 GPUs (placement_group_specs=[{'GPU': 1.0}]) within 1800 seconds.",
    ),
    (
        "NotEnoughGpus",
        "v1/engine/core.py",
        "0.22.1",
        'Exception: Error setting CUDA_VISIBLE_DEVICES: local range: [2, 4) base value: "0,1"',
    ),
    (
        "NoValidAttentionBackend",
        "v1/attention/backends/flash_attn.py",
        "0.11.0",
        "ValueError: Head size 40 is not supported by FlashAttentionBackend. Supported head sizes are: [32, 64, 96, 128].",
    ),
    (
        "NoValidAttentionBackend",
        "v1/attention/backends/flash_attn.py",
        "0.22.1",
        "NotImplementedError: FlashAttention does not support fp8 kv-cache on this device.",
    ),
    (
        "NoValidAttentionBackend",
        "v1/attention/backends/flashinfer.py",
        "0.22.1",
        "AssertionError: FlashInfer backend currently only supports models in which all layers share the same values "
        "for the following hyperparameters: `window_left`.",
    ),
    (
        "NoValidAttentionBackend",
        "v1/attention/backends/mla/triton_mla.py",
        "0.14.1",
        "NotImplementedError: TritonMLA V1 with FP8 KV cache not yet supported",
    ),
    (
        "NoValidAttentionBackend",
        "v1/attention/backends/triton_attn.py",
        "0.33.0",
        "ValueError: FP8 KV cache is not supported by the Triton attention backend on NVIDIA A10 (compute capability "
        "8.6); native FP8 (fp8e4nv) requires 8.9",
    ),
    (
        "NoValidAttentionBackend",
        "config/vllm.py",
        "0.33.0",
        "ValueError: nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a "
        "different --kv-cache-dtype.",
    ),
    (
        "PythonPackageMissing",
        "model_executor/model_loader/bitsandbytes_loader.py",
        "0.22.1",
        "ImportError: Please install bitsandbytes>=0.46.1 via `pip install bitsandbytes>=0.46.1` to use bitsandbytes quantizer.",
    ),
    (
        "PythonPackageMissing",
        "distributed/device_communicators/all2all.py",
        "0.14.1",
        "AssertionError: DeepEP kernels not found. Please follow "
        "https://github.com/vllm-project/vllm/blob/main/tools/ep_kernels/README.md to install DeepEP kernels.",
    ),
    (
        "PythonPackageMissing",
        "config/speculative.py",
        "0.14.1",
        "ImportError: Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`.",
    ),
    (
        "PythonPackageMissing",
        "distributed/kv_transfer/kv_connector/v1/flexkv_connector.py",
        "0.22.1",
        "ImportError: FlexKV is not installed. Please install it to use FlexKVConnectorV1.",
    ),
    (
        "QuantDtypeMismatch",
        "model_executor/layers/quantization/fp_quant.py",
        "0.14.1",
        "ValueError: Only bfloat16 is currently supported by FPQuant",
    ),
    (
        "QuantizationUnsupportedOnGpu",
        "model_executor/layers/quantization/modelopt.py",
        "0.11.0",
        "ValueError: Current platform does not support NVFP4 quantization. Please use Blackwell and above.",
    ),
    (
        "QuantizationUnsupportedOnGpu",
        "platforms/interface.py",
        "0.22.1",
        "ValueError: bitsandbytes quantization is currently not supported in rocm.",
    ),
    (
        "SamplerWarmupOom",
        "v1/worker/gpu_model_runner.py",
        "0.22.1",
        "RuntimeError: CUDA out of memory occurred when warming up pooler (task='embed') with 256 dummy requests.",
    ),
    (
        "SpeculativeConfigInvalid",
        "config/speculative.py",
        "0.22.1",
        "ValueError: Either prompt_lookup_max or prompt_lookup_min must be provided when using the ngram method.",
    ),
    (
        "SpeculativeConfigInvalid",
        "config/vllm.py",
        "0.22.1",
        "ValueError: Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU kind of speculative decoding",
    ),
    (
        "SpeculativeConfigInvalid",
        "v1/worker/gpu_model_runner.py",
        "0.22.1",
        "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
    ),
    ("TensorParallelNotDivisible", "config/parallel.py", "0.22.1", "ValueError: tp_size=4 must be divisible bydcp_size=3."),
    (
        "TensorParallelNotDivisible",
        "model_executor/layers/quantization/gptq_marlin_24.py",
        "0.14.1",
        "ValueError: Weight output_size_per_partition = 96 is not divisible by min_n_threads = 128.",
    ),
    (
        "TransformersTooOld",
        "transformers_utils/config.py",
        "0.28.0",
        "ImportError: Support for Transformers v4 is deprecated and was removed in vLLM v0.24.0. Please upgrade to "
        "Transformers v5: pip install -U transformers",
    ),
    (
        "UnknownCliArgument",
        "utils/argparse_utils.py",
        "0.22.1",
        "ValueError: With `vllm serve`, you should provide the model as a positional argument or in a config file "
        "instead of via the `--model` option.",
    ),
    (
        "UnknownCliArgument",
        "config/vllm.py",
        "0.22.1",
        "ValueError: To load a model from S3, 'load_format' must be 'runai_streamer' or 'runai_streamer_sharded', but "
        "got 'auto'. Model: s3://models/m",
    ),
    (
        "UnknownCliArgument",
        "config/multimodal.py",
        "0.14.1",
        "ValueError: Attention backend 'XFORMERS' has been removed (See PR #29262 for details). Please select a "
        "supported attention backend.",
    ),
    (
        "UnknownQuantization",
        "model_executor/layers/quantization/utils/gptq_utils.py",
        "0.33.0",
        "ValueError: GPTQ group activation ordering (desc_act=True) is no longer supported. Use a checkpoint with "
        "static activation ordering.",
    ),
    (
        "UnknownQuantization",
        "model_executor/model_loader/bitsandbytes_loader.py",
        "0.22.1",
        "ValueError: Prequant BitsAndBytes models with tensor parallelism is not supported. Please try with pipeline parallelism.",
    ),
    (
        "UnknownQuantization",
        "model_executor/layers/quantization/compressed_tensors/utils.py",
        "0.22.1",
        "ValueError: Unable to find matching target for model.layers.0.mlp.gate in the compressed-tensors config.",
    ),
]
"""Signature, module, version, exception with its message."""

RIGHTLY_UNKNOWN: list[tuple[str, str, str]] = [
    ("v1/core/kv_cache_coordinator.py", "0.22.1", "AssertionError: UnitaryKVCacheCoordinator assumes only one kv cache group"),
    ("v1/core/kv_cache_manager.py", "0.33.0", "AssertionError: Hybrid KV cache is not supported for eagle + chunked local attention."),
    (
        "config/vllm.py",
        "0.33.0",
        "ValueError: --per-request-spec-decode-metrics requires speculative decoding to be enabled (via --speculative-config).",
    ),
    ("config/vllm.py", "0.33.0", "ValueError: FlashInfer ReplaySSM does not support prefix caching yet; use --disable-prefix-caching"),
    ("model_executor/layers/rotary_embedding/__init__.py", "0.22.1", "ValueError: Unknown RoPE scaling type odd"),
    ("v1/engine/utils.py", "0.22.1", "AssertionError: Nodes are not homogenous, {1, 2}"),
    ("model_executor/layers/fused_moe/layer.py", "0.22.1", "ValueError: EPLB requires logical_replica_count != None"),
]
"""Module, version, exception with its message: a signature that is near by would mislead."""


WARNINGS: list[tuple[str, str, str]] = [
    ("config/parallel.py", "0.22.1", "Address already in use. Retrying with a new port."),
    (
        "entrypoints/openai/tool_parsers/minimax_tool_parser.py",
        "0.11.0",
        "Minimax Tool parser could not locate tool call start/end tokens in the tokenizer. Falling back to string matching.",
    ),
    (
        "utils/argparse_utils.py",
        "0.22.1",
        "With `vllm serve`, you should provide the model as a positional argument or in a config file instead of via the `--model` option.",
    ),
    (
        "model_executor/layers/fused_moe/oracle/mxfp4.py",
        "0.33.0",
        "No Mxfp4 MoE backend supports activation=mxfp8 for the deployment configuration. Falling back to 'MARLIN' with BF16 activations.",
    ),
]
"""Module, version, warning of a start that goes on."""


def crash_of(module: str, error: str) -> Crash:
    exception, _, message = error.partition(": ")
    form = API_SERVER if module.startswith(API_SERVER_FILES) else ENGINE_CORE
    if module.startswith("config/") and exception in ("ValueError", "AssertionError"):
        form = CONFIGURATION
    kind = "Assertion failed" if exception == "AssertionError" else "Value error"
    parser = StartupParser(KNOWLEDGE)
    parser.feed(form.format(path=f"{PACKAGES}vllm/{module}", exception=exception, message=message, kind=kind))
    parser.end()
    crash = parser.final_state.crash
    assert crash is not None
    return crash


@pytest.mark.parametrize(
    ("signature", "module", "error"), [pytest.param(row[0], row[1], row[3], id=f"{row[0]}-{row[1]}") for row in MESSAGES]
)
def test_a_message_of_the_sources_is_known_by_its_kind(signature: str, module: str, error: str) -> None:
    crash = crash_of(module, error)

    assert crash.signature == signature
    assert error.partition(": ")[2][:60] in crash.line
    assert crash.cause.endswith(".")
    assert ".." not in crash.cause


@pytest.mark.parametrize(("module", "error"), [pytest.param(row[0], row[2], id=row[0]) for row in RIGHTLY_UNKNOWN])
def test_a_message_that_is_near_to_a_signature_is_not_taken_for_it(module: str, error: str) -> None:
    crash = crash_of(module, error)

    assert crash.signature == "Unknown"
    assert error.partition(": ")[2][:60] in crash.cause


@pytest.mark.parametrize("warning", [pytest.param(row[2], id=row[0]) for row in WARNINGS])
def test_a_warning_is_no_alarm_and_is_not_blamed_for_what_comes_later(warning: str) -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(f"(EngineCore pid=77) WARNING 11-21 09:33:11 [some.py:1] {warning}\n")
    assert parser.state.crash is None

    parser.feed("(EngineCore pid=77) ERROR 11-21 09:33:12 [core.py:1136] EngineCore failed to start.\n")
    parser.end()
    assert parser.final_state.crash is not None
    assert parser.final_state.crash.signature == "EngineCoreInitFailed"


@pytest.mark.parametrize(
    ("module", "error"),
    [
        pytest.param("engine/arg_utils.py", "ValueError: --device-ids must not contain duplicates: 0,0", id="arguments"),
        pytest.param("config/cache.py", "NotImplementedError: Prefix caching is not supported with sliding window.", id="configuration"),
        pytest.param(
            "entrypoints/openai/cli_args.py", "TypeError: Error: --enable-log-outputs requires --enable-log-requests", id="command line"
        ),
    ],
)
def test_an_unknown_error_of_the_configuration_is_said_to_be_one(module: str, error: str) -> None:
    crash = crash_of(module, error)

    assert crash.signature == "Unknown"
    assert crash.cause.startswith("vLLM refused its configuration")
    assert error in crash.cause
