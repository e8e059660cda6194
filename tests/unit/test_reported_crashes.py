"""Crashes from reports that an earlier table of signatures explained wrongly: the cause, and what the remedy says and does not say."""

from pathlib import Path

import pytest

from support.pasted import read_pasted

REPORTED = Path(__file__).parent.parent / "corpus/reported"

CASES: dict[str, tuple[str, str, str]] = {
    # file: signature, part of cause and remedy, what they must not contain
    "aibrix-offload-stale": ("Unknown", "offloading of the KV cache failed", "other side"),
    "aiter-splitk": ("Unknown", "VLLM_ROCM_USE_AITER=0", "capture of CUDA graphs"),
    "aot-needs-standalone": ("EnvironmentValueInvalid", "needed: VLLM_USE_STANDALONE_COMPILE=1", "--enforce-eager"),
    "attention-all-refused": ("NoValidAttentionBackend", "Remove --attention-backend and --kv-cache-dtype", "request another backend"),
    "capture-unsupported": ("Unknown", "The capture of CUDA graphs failed", "the operator does not know"),
    "connector-mamba-align": ("KvTransferConfigInvalid", "Use a newer vLLM", "the operator does not know"),
    "cpu-kv-space": ("MaxModelLenExceedsKvCache", "VLLM_CPU_KVCACHE_SPACE to at least 5", "--gpu-memory-utilization"),
    "cpu-no-kv-memory": ("NoKvCacheMemory", "VLLM_CPU_KVCACHE_SPACE", "GPU"),
    "cubin-invalid-image": ("TritonKernelImageInvalid", "VLLM_USE_DEEP_GEMM=0", "the operator does not know"),
    "cuda-headers-mixed": ("FlashInferJitBuildFailed", "parts of several CUDA versions", "the operator does not know"),
    "cuda-too-old-for-sm12": ("FlashInferJitBuildFailed", "nvcc is too old for this GPU", "the operator does not know"),
    "cutedsl-arch": ("KernelUnsupportedOnGpu", "sm_120a", "the operator does not know"),
    "cutedsl-ptx": ("Unknown", "CuTe DSL could not compile a kernel", "The code of the model"),
    "cutedsl-sm90": ("Unknown", "CuTe DSL could not compile a kernel", "The code of the model"),
    "cutedsl-unstable-join": ("Unknown", "CuTe DSL could not compile a kernel", "the operator does not know"),
    "deepgemm-scales": ("DeepGemmUnknownRecipe", "VLLM_USE_DEEP_GEMM=0", "the operator does not know"),
    "deepgemm-tool": ("DeepGemmToolFailed", "VLLM_USE_DEEP_GEMM=0", "not support"),
    "download-volume": ("DiskFull", "spec.weights.volume.size", "spec.cache"),
    "dp-coordinator": ("DistributedTimeout", "Give the Pod more CPUs", "logs of the other processes"),
    "draft-kv-dtype": ("Unknown", "kv_cache_dtype in --speculative-config", "the operator does not know"),
    "efa-endpoint": ("EfaUnavailable", "vpc.amazonaws.com/efa", "IPC_LOCK"),
    "efa-group-size": ("EfaUnavailable", "aws-ofi-nccl", "/dev/shm"),
    "efa-nvshmem": ("DeepEpNvshmemInitFailed", "vpc.amazonaws.com/efa", "nvidia_peermem"),
    "failed-backend": ("NoValidAttentionBackend", "Remove --kv-cache-dtype", "another backend"),
    "flash-attn-old": ("PythonPackageMissing", "needs another version of the package", "lacks the Python package"),
    "flashinfer-arguments": ("Unknown", "FlashInfer and vLLM do not fit each other", "the operator does not know"),
    "fp8-triton-3090": ("Fp8DtypeUnsupportedOnGpu", "--kv-cache-dtype auto", "the operator does not know"),
    "full-compile-cache": ("DiskFull", "spec.cache.volume.size", "spec.weights"),
    "full-shared-memory": ("DiskFull", "larger size at /dev/shm", "spec.cache"),
    "full-temporary": ("DiskFull", "ephemeral-storage limit", "spec.cache"),
    "full-weights": ("DiskFull", "spec.weights.volume.size", "spec.cache"),
    "host-memory-cpu": ("HostMemoryExhausted", "32 GiB more were needed", "GPU memory utilization"),
    "host-memory-spark": ("UnifiedMemoryExhausted", "--gpu-memory-utilization to 0.7", "the operator does not know"),
    "hub-quota": ("DiskFull", "quota", "spec.cache"),
    "ib-port-flap": ("RdmaLinkLost", "mlx5_32:1", "did not respond"),
    "ibgda-no-devx": ("DeepEpNvshmemInitFailed", "IPC_LOCK", "EFA"),
    "indexer-needs-deepgemm": ("DeepGemmUnavailable", "compute capability 12", "VLLM_USE_DEEP_GEMM=0"),
    "layer-types-renamed": ("TransformersApiMismatch", "linear_attention", "lacks an attribute"),
    "libcudart12": ("CudaRuntimeLibraryMissing", "libcudart.so.12", "the operator does not know"),
    "libcudart13": ("CudaRuntimeLibraryMissing", "libcudart.so.13", "the operator does not know"),
    "lm-head-scale": ("WeightNameOrShapeMismatch", "lm_head.input_scale", "the operator does not know"),
    "lmcache-hybrid": ("HybridKvCacheDisabled", "Remove --kv-transfer-config", "the operator does not know"),
    "mamba-blocks": ("MambaCacheTooSmall", "--max-num-seqs to at most 95", "VLLM_CPU_KVCACHE_SPACE"),
    "memory-query": ("GpuMemoryInUse", "wait and retry", "--max-num-seqs"),
    "moe-refused-cutlass": ("MoeBackendUnsupported", "request marlin, or on Blackwell flashinfer_trtllm", "or flashinfer_cutlass"),
    "moe-refused-marlin": ("MoeBackendUnsupported", "triton or flashinfer_cutlass", "request marlin"),
    "moe-refused-triton": ("MoeBackendUnsupported", "Remove --moe-backend", "request triton"),
    "mtp-reduction-dim": ("Unknown", "Speculative decoding failed", "The code of the model"),
    "nixl-handshake": ("NixlTransferFailed", "--tensor-parallel-size", "lacks NIXL"),
    "nixl-metadata-segfault": ("NixlTransferFailed", "restart instances for prefill and decode together", "PYTHONFAULTHANDLER"),
    "numba-numpy": ("PythonPackageMissing", "NumPy 2.4 or less", "Speculative decoding"),
    "nvcc-single-input": ("FlashInferJitBuildFailed", "A single input file is required", "the operator does not know"),
    "nvfp4-no-moe-backend": ("MoeBackendUnsupported", "NvFp4 experts", "the operator does not know"),
    "offload-pending-jobs": ("Unknown", "offloading of the KV cache failed", "other side"),
    "offload-region": ("OffloadRegionTooLarge", "Delete the Pod", "Unknown"),
    "op-missing-in-compiled-file": ("StaleCompileCache", "Delete the compile cache", "the operator does not know"),
    "plugin-moved-module": ("PythonPackageMissing", "This vLLM has no vllm.entrypoints.openai.engine", "lacks the Python package"),
    "processor": ("ProcessorIncompatible", "--limit-mm-per-prompt", "StopIteration"),
    "shm-needs-more": ("BusErrorSharedMemory", "at least 20 GiB at /dev/shm", "download"),
    "sm120-only-kernel": ("KernelUnsupportedOnGpu", "only supports sm120", "invalid memory"),
    "spark-rdma-memory": ("RdmaRegistrationFailed", "IPC_LOCK", "/dev/shm"),
    "streamer-access": ("Unknown", "AWS_ENDPOINT_URL", "the hub"),
    "tokenizer-attribute": ("TransformersApiMismatch", "Install transformers below 5", "the operator does not know"),
    "torch-too-old": ("PythonPackageMissing", "needs another version of the package", "lacks the Python package"),
    "transformers-str-module": ("TransformersApiMismatch", "transformers version that the vLLM image ships with", "config.json"),
    "transformers-too-old-gemma4": ("TransformersTooOld", "gemma4_unified", "the operator does not know"),
    "triton-home": ("CacheDirNotWritable", "not writable", "the operator does not know"),
    "turboquant-auto": ("Unknown", "Remove --kv-cache-dtype", "--tensor-parallel-size"),
    "turboquant-backend": ("NoValidAttentionBackend", "Remove --kv-cache-dtype", "another backend"),
    "unified-memory-free": ("GpuMemoryInUse", "page cache", "the operator does not know"),
    "unified-memory-query": ("GpuMemoryInUse", "page cache", "--max-num-seqs"),
    "workspace-locked": ("Unknown", "Remove --kv-cache-dtype", "another backend"),
    "xpu-device-lost": ("XpuDeviceLost", "kernel log of the node", "another process"),
    "xpu-gdn-memory": ("CudaOutOfMemory", "--max-num-seqs", "PYTORCH_CUDA_ALLOC_CONF"),
    "xpu-memory-query": ("GpuMemoryQueryUnsupported", "image for CPUs", "the operator does not know"),
    "zmq-port": ("PortInUse", "--data-parallel-rpc-port", "the operator does not know"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reported_crash_has_its_cause_and_a_remedy_that_fits(name: str) -> None:
    signature, part, other = CASES[name]
    crash = read_pasted((REPORTED / f"{name}.log").read_text()).final_state.crash
    assert crash is not None
    text = f"{crash.cause} {crash.remedy}"
    assert crash.signature == signature
    assert part in text
    assert other not in text


def test_a_setting_whose_name_begins_like_a_token_is_shown() -> None:
    crash = read_pasted((REPORTED / "masked-name.log").read_text()).final_state.crash
    assert crash is not None
    assert "hf_overrides must be a dict" in f"{crash.cause} {crash.excerpt}"


def test_a_line_that_reports_the_end_of_a_stage_is_not_its_beginning() -> None:
    state = read_pasted((REPORTED / "timeline-without-compile.log").read_text()).final_state
    begun = {stage.value: since.strftime("%M:%S") for stage, since in state.entered if since is not None}
    assert begun == {
        "ProcessStart": "00:00",
        "DistributedInit": "00:10",
        "WeightLoad": "00:20",
        "MemoryProfiling": "01:00",
        "KernelWarmup": "04:10",
        "Autotune": "05:10",
        "CUDAGraphCapture": "06:10",
        "ServerStart": "09:12",
        "Ready": "09:12",
    }
