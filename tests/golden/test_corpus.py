"""Recorded starts of real engines: how far they came, what they were doing, why they crashed."""

from pathlib import Path

import pytest

from support.pasted import read_either_way
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import CacheEvidence, Stage

CORPUS = Path(__file__).parent.parent / "corpus" / "h200"
KNOWLEDGE = load_startup()
COLD = CacheEvidence(misses=1)
WARM = CacheEvidence(hits=2)
NOTHING = CacheEvidence()

EXPECTED: dict[str, tuple[Stage, str | None, CacheEvidence]] = {
    "dsv3-fp8-cold-full": (Stage.READY, None, COLD),
    "dsv3-fp8-cold-full-newline-bars": (Stage.READY, None, COLD),
    "gpu-util-too-low": (Stage.MEMORY_PROFILING, "NoKvCacheMemory", COLD),
    "hf-offline-missing": (Stage.PROCESS_START, "HfOfflineOrUnreachable", NOTHING),
    "llama-bf16-cold": (Stage.READY, None, COLD),
    "llama-bf16-warm": (Stage.READY, None, WARM),
    "llama-bf16-warm-bytecode": (Stage.READY, None, WARM),
    "llama-tp2-cold": (Stage.READY, None, COLD),
    "mig-uuid": (Stage.PROCESS_START, "MigUuidNotInteger", NOTHING),
    "no-c-compiler": (Stage.TORCH_COMPILE, "TritonLauncherCompileFailed", NOTHING),
    "poison-triton-cubin-empty": (Stage.TORCH_COMPILE, "TritonKernelImageInvalid", NOTHING),
}


def parse(data: bytes, chunk: int = 1 << 20) -> StartupParser:
    parser = StartupParser(KNOWLEDGE)
    for start in range(0, len(data), chunk):
        parser.feed(data[start : start + chunk])
    parser.end()
    return parser


def test_every_recording_is_expected_to_be_something() -> None:
    assert {path.stem for path in CORPUS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_start(name: str) -> None:
    parser = read_either_way((CORPUS / f"{name}.log").read_bytes())

    stage, signature, cache = EXPECTED[name]
    assert parser.state.stage is stage
    assert (parser.state.crash and parser.state.crash.signature) == signature
    assert (parser.final_state.crash and parser.final_state.crash.signature) == signature
    assert (parser.state.is_final, parser.final_state.is_final) == (False, True)
    assert parser.state.cache == cache
    assert parser.state.engine_version == "0.20.1"


@pytest.mark.parametrize("chunk", [1, 7, 4096, 16384])
@pytest.mark.parametrize("name", ["dsv3-fp8-cold-full", "mig-uuid"])
def test_how_a_stream_is_cut_changes_nothing(name: str, chunk: int) -> None:
    data = (CORPUS / f"{name}.log").read_bytes()

    assert parse(data, chunk).final_state == parse(data).final_state


def test_the_deepgemm_warm_up_is_counted_while_its_one_line_grows() -> None:
    data = (CORPUS / "dsv3-fp8-cold-full.log").read_bytes()
    parser = StartupParser(KNOWLEDGE)
    parser.feed(data[: data.index(b"1455/1735")])

    progress = parser.state.progress
    assert parser.state.stage is Stage.KERNEL_WARMUP
    assert progress is not None
    assert (progress.completed, progress.total, progress.label) == (1436, 1735, "DeepGEMM warm-up")
    assert progress.eta_seconds == 121


def test_the_backends_that_the_engine_chose_are_known() -> None:
    parser = parse((CORPUS / "dsv3-fp8-cold-full.log").read_bytes())

    assert ("MoE", "TRITON") in parser.state.observed_backends
    assert ("MLAPrefill", "FlashAttention") in parser.state.observed_backends
