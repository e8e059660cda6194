"""Crashes from reports that an earlier table of signatures explained wrongly: the cause, and what the remedy says and does not say."""

from pathlib import Path

import pytest

from support.pasted import read_pasted

REPORTED = Path(__file__).parent.parent / "corpus/reported"

CASES: dict[str, tuple[str, str, str]] = {
    # file: signature, part of cause and remedy, what they must not contain
    "deepgemm-tool": ("DeepGemmToolFailed", "VLLM_USE_DEEP_GEMM=0", "not support"),
    "download-volume": ("DiskFull", "spec.weights.volume.size", "spec.cache"),
    "failed-backend": ("NoValidAttentionBackend", "Remove --kv-cache-dtype", "another backend"),
    "hub-quota": ("DiskFull", "quota", "spec.cache"),
    "memory-query": ("GpuMemoryInUse", "wait and retry", "--max-num-seqs"),
    "offload-region": ("OffloadRegionTooLarge", "Delete the Pod", "Unknown"),
    "op-missing-in-compiled-file": ("StaleCompileCache", "Delete the compile cache", "matches no known"),
    "processor": ("ProcessorIncompatible", "--limit-mm-per-prompt", "StopIteration"),
    "shm-needs-more": ("BusErrorSharedMemory", "at least 20 GiB at /dev/shm", "download"),
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
