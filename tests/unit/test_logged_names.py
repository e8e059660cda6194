"""What the log calls a backend and what we call it: told apart where they differ, and never where they do not."""

from functools import cache
from pathlib import Path

import pytest

from support.backends import decide, knowledge
from vllm_operator.catalog.backends import load_logged_names
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser

NAMES = load_logged_names()
VERSIONS, _, RULES = knowledge()
CORPUS = Path(__file__).parents[1] / "corpus" / "h200"


@pytest.mark.parametrize(
    ("component", "logged", "planned"),
    [
        ("Attention", "Flash Attention", "FLASH_ATTN"),
        ("Attention", "FlashAttention-2", "FLASH_ATTN"),
        ("Attention", "FLASH_ATTN", "FLASH_ATTN"),
        ("Attention", "Triton", "TRITON_ATTN"),
        ("Attention", "FlexAttention", "FLEX_ATTENTION"),
        ("MLADecode", "Cutlass MLA", "CUTLASS_MLA"),
        ("MLADecode", "FlashAttention MLA", "FLASH_ATTN_MLA"),
        ("SparseAttention", "Sparse MLA", "FLASHMLA_SPARSE"),
        ("MLAPrefill", "FlashAttention", "FLASH_ATTN"),
        ("MLAPrefill", "TRT-LLM ragged DeepSeek", "TRTLLM_RAGGED"),
        ("MLAPrefill", "TRTLLM_RAGGED", "TRTLLM_RAGGED"),
        ("GEMM", "flashinfer-cutlass", "FLASHINFER_CUTLASS"),
        ("GEMM", "FLASHINFER_CUTLASS", "FLASHINFER_CUTLASS"),
        ("GEMM", "FlashInferCutlassNvFp4LinearKernel", "FLASHINFER_CUTLASS"),
        ("GEMM", "FlashInferCuteDslNvFp4LinearKernel", "FLASHINFER_CUTEDSL"),
        ("GEMM", "CutlassFP8ScaledMMLinearKernel", "CUTLASS"),
        ("GEMM", "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "DEEPGEMM"),
        ("GEMM", "DeepGemmFp8BlockScaledMMKernel", "DEEPGEMM"),
        ("GEMM", "ChannelWiseTorchFP8ScaledMMLinearKernel", "TORCH"),
        ("GEMM", "MacheteLinearKernel", "MACHETE"),
        ("MoE", "TRITON", "TRITON"),
        ("MoE", "vLLM CUTASS", "VLLM_CUTLASS"),
        ("MoE", "vLLM CUTLASS", "VLLM_CUTLASS"),
        ("MoE", "FLASHINFER_TRTLLM_MXFP4_MXFP8", "FLASHINFER_TRTLLM"),
        ("MoE", "FlashInfer MXFP4 MXFP8 CUTLASS", "FLASHINFER_CUTLASS"),
        ("MoE", "DEEPGEMM_MXFP4", "DEEPGEMM"),
        ("MoE", "BATCHED_DEEPGEMM", "DEEPGEMM"),
        ("AllToAll", "AgRsAll2AllManager", "ALLGATHER_REDUCESCATTER"),
        ("AllToAll", "AllGather-ReduceScatter", "ALLGATHER_REDUCESCATTER"),
        ("AllToAll", "DeepEPHTAll2AllManager", "DEEPEP_HIGH_THROUGHPUT"),
        ("AllToAll", "DeepEP Low-Latency", "DEEPEP_LOW_LATENCY"),
        ("AllToAll", "FlashInferAllToAllManager", "FLASHINFER_ALL2ALLV"),
        ("Sampler", "FlashInfer", "FLASHINFER"),
    ],
)
def test_the_log_means_what_was_planned(component: str, logged: str, planned: str) -> None:
    assert NAMES.agree(component, logged, planned)


@pytest.mark.parametrize(
    ("component", "logged", "planned"),
    [
        ("Attention", "FLASH_ATTN", "FLASHINFER"),
        ("MLADecode", "FLASHMLA", "FLASH_ATTN_MLA"),
        ("SparseAttention", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120"),
        ("GEMM", "FlashInferCutlassNvFp4LinearKernel", "CUTLASS"),
        ("GEMM", "CutlassNvFp4LinearKernel", "FLASHINFER_CUTLASS"),
        ("GEMM", "MarlinNvFp4LinearKernel", "FLASHINFER_CUTLASS"),
        ("MoE", "TRITON", "DEEPGEMM"),
        ("MoE", "FLASHINFER_CUTLASS", "VLLM_CUTLASS"),
        ("AllToAll", "DeepEPLLAll2AllManager", "DEEPEP_HIGH_THROUGHPUT"),
        ("MLAPrefill", "FLASHINFER", "FLASH_ATTN"),
    ],
)
def test_another_backend_than_planned_is_seen(component: str, logged: str, planned: str) -> None:
    assert not NAMES.agree(component, logged, planned)


def test_a_name_that_nobody_knows_is_compared_as_text() -> None:
    assert NAMES.agree("Attention", "BrandNewAttention", "BRAND_NEW_ATTENTION")
    assert not NAMES.agree("Attention", "BrandNewAttention", "FLASH_ATTN")


def test_every_name_that_a_version_can_be_asked_for_is_known_or_meant_literally() -> None:
    """A backend's own name, as vLLM logs it in newer versions, never means another one."""
    for component in NAMES.components:
        ours = {rule.backend for rule in RULES.rules if rule.component == component and rule.backend}
        ours |= {kernel.backend for kernel in RULES.kernels.entries if kernel.component == component}
        for table in VERSIONS.tables:
            ways = [way for way in RULES.invocations if way.component == component and way.when.versions.contains(table.release)]
            ours |= {name for way in ways for name in way.backends(table)}
        wrong = {name for name in ours if not NAMES.agree(component, name, name)}
        assert wrong == set(), component


def test_every_sample_of_a_line_that_names_a_backend_is_understood() -> None:
    stages = load_startup().stages
    for meaning in stages.lines:
        for sample in meaning.samples if meaning.component else ():
            parser = StartupParser(load_startup())
            parser.feed(f"{sample}\n".encode(), None)
            assert parser.state.observed_backends, sample
            for component, backend in parser.state.observed_backends:
                known = NAMES.meant(component, backend) or any(NAMES.meant(other, backend) for other in ("MLADecode", "SparseAttention"))
                assert known or component == "Attention", (component, backend)


@cache
def observed(name: str) -> dict[str, list[str]]:
    parser = StartupParser(load_startup())
    parser.feed((CORPUS / name).read_bytes(), None)
    found: dict[str, list[str]] = {}
    for component, backend in parser.state.observed_backends:
        found.setdefault(component, []).append(backend)
    return found


@pytest.mark.parametrize(
    ("recording", "uri", "facts"),
    [
        ("dsv3-fp8-cold-full.log", "hf://deepseek-ai/DeepSeek-V3", None),
        ("dsv3-fp8-cold-full-newline-bars.log", "hf://deepseek-ai/DeepSeek-V3", None),
        ("llama-bf16-cold.log", "hf://meta-llama/Llama-3.1-8B-Instruct", None),
        ("llama-bf16-warm.log", "hf://meta-llama/Llama-3.1-8B-Instruct", None),
        ("llama-tp2-cold.log", "hf://meta-llama/Llama-3.1-8B-Instruct", None),
    ],
)
def test_recordings_agree_with_what_the_catalog_says_the_engine_takes(recording: str, uri: str, facts: None) -> None:
    """vLLM 0.20.1 on an H200 has logged exactly what the rules of the kind `engine` foretell."""
    logged = observed(recording)
    choices = {choice.component: choice for choice in decide(uri, "0.20.1", "sm_90", facts=facts).choices}
    compared = 0
    for component, names in logged.items():
        choice = choices.get(component) or choices.get("MLADecode")
        assert choice is not None
        assert choice.chosen_by == "Engine"
        assert any(NAMES.agree(choice.component, name, choice.backend) for name in names), (component, names, choice.backend)
        compared += 1
    assert compared
