"""The lines in which each vLLM version names a backend, as its sources write them, and what the operator makes of them.

Each message is a format string of the wheel of that version with its arguments filled in; `where` is the file and line.
"""

import pytest

from vllm_operator.catalog.backends import load_logged_names
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser

NAMES = load_logged_names()
KNOWLEDGE = load_startup()
LISTED = "['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION']"
OUT = "out of potential backends: ['X']."
REDUCE = "['CUSTOM', 'SYMM_MEM', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0' out of potential backends: ['CUSTOM']."

LINES = [
    # attention
    ("0.11.0", "cuda.py:366", "Using Flash Attention backend on V1 engine.", "Attention", "FLASH_ATTN"),
    ("0.11.0", "cuda.py:361", "Using Triton backend on V1 engine.", "Attention", "TRITON_ATTN"),
    ("0.11.0", "cuda.py:312", "Using FlashInfer backend on V1 engine.", "Attention", "FLASHINFER"),
    ("0.12.0", "cuda.py:411", f"Using FLASH_ATTN attention backend out of potential backends: {LISTED}", "Attention", "FLASH_ATTN"),
    ("0.12.0", "cuda.py:372", "Using AttentionBackendEnum.TRITON_ATTN backend.", "Attention", "TRITON_ATTN"),
    ("0.16.0", "cuda.py:367", f"Using FLASHINFER attention backend out of potential backends: {LISTED}.", "Attention", "FLASHINFER"),
    ("0.33.0", "cuda.py:448", "Using FLASH_ATTN backend.", "Attention", "FLASH_ATTN"),
    # MLA and its sparse form
    ("0.11.0", "cuda.py:271", "Using Cutlass MLA backend on V1 engine.", "MLADecode", "CUTLASS_MLA"),
    ("0.11.0", "cuda.py:288", "Using FlashMLA backend on V1 engine.", "MLADecode", "FLASHMLA"),
    ("0.11.0", "cuda.py:292", "Using FlashAttention MLA backend on V1 engine.", "MLADecode", "FLASH_ATTN_MLA"),
    ("0.11.0", "cuda.py:297", "Using Triton MLA backend on V1 engine.", "MLADecode", "TRITON_MLA"),
    ("0.11.0", "cuda.py:253", "Using Sparse MLA backend on V1 engine.", "SparseAttention", "FLASHMLA_SPARSE"),
    ("0.24.0", "cuda.py:498", f"Using FLASHINFER_MLA attention backend {OUT}", "MLADecode", "FLASHINFER_MLA"),
    (
        "0.33.0",
        "cuda.py:508",
        f"Using FLASHMLA_SPARSE attention backend {OUT}",
        "SparseAttention",
        "FLASHMLA_SPARSE",
    ),
    # prefill of MLA
    ("0.16.0", "mla_attention.py:1911", "Using TRT-LLM ragged DeepSeek prefill for MLA", "MLAPrefill", "TRTLLM_RAGGED"),
    ("0.16.0", "mla_attention.py:1920", "Using FlashInfer prefill for MLA", "MLAPrefill", "FLASHINFER"),
    ("0.20.1", "mla_attention.py:1936", "Using FlashAttention prefill for MLA", "MLAPrefill", "FLASH_ATTN"),
    ("0.16.0", "mla_attention.py:1925", "Using CUDNN prefill for MLA", "MLAPrefill", "CUDNN"),
    ("0.21.0", "selector.py:163", "Using TRTLLM_RAGGED MLA prefill backend.", "MLAPrefill", "TRTLLM_RAGGED"),
    # experts
    ("0.11.0", "fp8.py:462", "Using DeepGemm kernels for Fp8MoEMethod.", "MoE", "DEEPGEMM"),
    ("0.11.0", "fp8.py:475", "Using CutlassBlockScaledGroupedGemm kernels for Fp8MoEMethod.", "MoE", "VLLM_CUTLASS"),
    ("0.11.0", "fp8.py:442", "Using FlashInfer TensorRT-LLM kernels", "MoE", "FLASHINFER_TRTLLM"),
    ("0.11.0", "modelopt.py:1066", "Using FlashInfer CUTLASS kernels for ModelOptNvFp4FusedMoE.", "MoE", "FLASHINFER_CUTLASS"),
    ("0.11.0", "mxfp4.py:64", "Using FlashInfer MXFP4 BF16 backend for SM90", "MoE", "FLASHINFER_CUTLASS"),
    ("0.11.0", "mxfp4.py:98", "Using Marlin backend", "MoE", "MARLIN"),
    ("0.12.0", "fp8.py:138", "Using FlashInfer FP8 MoE TRTLLM backend for SM100", "MoE", "FLASHINFER_TRTLLM"),
    ("0.12.0", "fp8.py:148", "Using FlashInfer FP8 MoE CUTLASS backend for SM90/SM100", "MoE", "FLASHINFER_CUTLASS"),
    ("0.12.0", "fp8.py:167", "Using DeepGEMM backend for FP8 MoE", "MoE", "DEEPGEMM"),
    ("0.12.0", "fp8.py:176", "Using Cutlass BlockScaled GroupedGemm backend for FP8 MoE", "MoE", "VLLM_CUTLASS"),
    ("0.14.0", "fp8.py:103", "Using FlashInfer TRTLLM backend for FP8 MoE", "MoE", "FLASHINFER_TRTLLM"),
    ("0.14.0", "fp8.py:180", "Using vLLM CUTLASS backend for FP8 MoE", "MoE", "VLLM_CUTLASS"),
    ("0.16.0", "compressed_tensors_moe.py:1253", "Using Marlin backend for WNA16 MoE (group_size=32, num_bits=4)", "MoE", "MARLIN"),
    ("0.16.0", "fp8.py:170", f"Using FLASHINFER_CUTLASS Fp8 MoE backend {OUT}", "MoE", "FLASHINFER_CUTLASS"),
    ("0.20.1", "mxfp4.py:300", "Using 'FLASHINFER_TRTLLM_MXFP4_BF16' Mxfp4 MoE backend.", "MoE", "FLASHINFER_TRTLLM"),
    ("0.24.0", "unquantized.py:266", f"Using TRITON Unquantized MoE backend {OUT}", "MoE", "TRITON"),
    (
        "0.33.0",
        "nvfp4.py:242",
        f"Using 'FLASHINFER_CUTEDSL' NvFp4 MoE backend {OUT}",
        "MoE",
        "FLASHINFER_CUTEDSL",
    ),
    ("0.33.0", "mxfp8.py:76", "Using 'MARLIN' MxFp8 MoE backend (user-requested).", "MoE", "MARLIN"),
    # dense layers
    ("0.12.0", "modelopt.py:968", "Using flashinfer-cutlass for NVFP4 GEMM", "GEMM", "FLASHINFER_CUTLASS"),
    ("0.16.0", "nvfp4_utils.py:85", "Using NvFp4LinearBackend.MARLIN for NVFP4 GEMM", "GEMM", "MARLIN"),
    ("0.16.0", "modelopt.py:1685", "Using flashinfer-cutlass backend for MXFP8 GEMM", "GEMM", "FLASHINFER_CUTLASS"),
    ("0.20.1", "__init__.py:648", "Using EmulationNvFp4LinearKernel for NVFP4 GEMM", "GEMM", "EMULATION"),
    ("0.33.0", "__init__.py:1303", "Using HummingNvFp4LinearKernel for NVFP4 GEMM", "GEMM", "HUMMING"),
    ("0.33.0", "__init__.py:500", "Selected CutlassFP8ScaledMMLinearKernel for CompressedTensorsW8A8Fp8", "GEMM", "CUTLASS"),
    ("0.11.0", "gptq_marlin.py:316", "Using MarlinLinearKernel for GPTQMarlinLinearMethod", "GEMM", "MARLIN"),
    ("0.20.1", "awq_marlin.py:420", "Using MacheteLinearKernel for AWQMarlinLinearMethod", "GEMM", "MACHETE"),
    ("0.26.0", "compressed_tensors_wNa16.py:137", "Using MacheteLinearKernel for CompressedTensorsWNA16", "GEMM", "MACHETE"),
    ("0.33.0", "__init__.py:945", "Using MarlinLinearKernel for mixed-precision linear", "GEMM", "MARLIN"),
    # communication
    ("0.11.0", "cuda_communicator.py:96", "Using naive all2all manager.", "AllToAll", "NAIVE"),
    ("0.11.0", "cuda_communicator.py:100", "Using AllGather-ReduceScatter all2all manager.", "AllToAll", "ALLGATHER_REDUCESCATTER"),
    ("0.11.0", "cuda_communicator.py:108", "Using DeepEP High-Throughput all2all manager.", "AllToAll", "DEEPEP_HIGH_THROUGHPUT"),
    ("0.11.0", "cuda_communicator.py:117", "Using Flashinfer all2allv manager.", "AllToAll", "FLASHINFER_ALL2ALLV"),
    ("0.33.0", "cuda_communicator.py:280", "Using DeepEPLLAll2AllManager all2all manager.", "AllToAll", "DEEPEP_LOW_LATENCY"),
    ("0.22.0", "cuda_communicator.py:232", f"Using {REDUCE}", "AllReduce", "CUSTOM"),
    # the rest
    ("0.17.1", "qwen3_next.py:158", "Using FlashInfer GDN prefill kernel on CUDA compute capability 90", "LinearAttention", "FLASHINFER"),
    ("0.19.1", "gdn_linear_attn.py:147", "Using Triton/FLA GDN prefill kernel", "LinearAttention", "TRITON"),
    ("0.33.0", "qwen_gdn_linear_attn.py:284", "Using FlashInfer GDN prefill kernel (head_k_dim=128).", "LinearAttention", "FLASHINFER"),
    ("0.20.1", "ssu_dispatch.py:222", "Using triton Mamba SSU backend.", "LinearAttention", "TRITON"),
    ("0.24.0", "mla_attention.py:420", "Using fp8_ds_mla KV cache format for FLASHMLA_SPARSE backend.", "KVCache", "FP8_DS_MLA"),
    ("0.33.0", "topk_topp_sampler.py:149", "Using FlashInfer for top-p & top-k sampling.", "Sampler", "FLASHINFER"),
]

OTHER = [
    "Using HND KV cache layout for FLASHINFER backend.",
    "Using Transformers modeling backend.",
    "Using backend AttentionBackendEnum.FLASH_ATTN for vit attention",
    "Using AttentionBackendEnum.FLASH_ATTN for MMEncoderAttention.",
    "Using Marlin backend for mxfp4 lora",
    "Using FlashInfer KDA prefill backend.",
    "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /x",
    "Using configuration from /x.json for W8A8 Block FP8 kernel.",
    "Using ray distributed inference because data_parallel_backend is ray",
]
"""Lines of the same versions that look alike and name no backend of the plan."""


def observed(line: str) -> list[tuple[str, str]]:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(f"{line}\n".encode(), None)
    return list(parser.state.observed_backends)


@pytest.mark.parametrize(("version", "where", "message", "component", "backend"), LINES)
@pytest.mark.parametrize("process", ["(Worker_TP0 pid=201) ", ""], ids=["prefixed", "plain"])
def test_the_line_names_the_backend(version: str, where: str, message: str, component: str, backend: str, process: str) -> None:
    found = observed(f"{process}INFO 11-21 09:32:20 [{where}] {message}")
    # vLLM 0.11 calls the kernel of an MLA model its attention backend, too
    accepted = {component, "Attention"} if component in ("MLADecode", "SparseAttention") else {component}
    assert len(found) == 1, (version, found)
    assert found[0][0] in accepted, (version, found)
    assert NAMES.agree(component, found[0][1], backend), (version, found)
    assert NAMES.meant(component, found[0][1]), f"{found[0][1]} is compared as text only"


@pytest.mark.parametrize("message", OTHER)
def test_a_line_that_names_none_is_left_alone(message: str) -> None:
    assert observed(f"(EngineCore pid=9) INFO 11-21 09:32:20 [x.py:1] {message}") == []
