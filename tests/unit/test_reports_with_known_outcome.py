"""The reports of failures with a known outcome: those before July 2026 shaped the signatures and families, and stay right.

The later ones are scored by hand, once for each state of the product (docs/accuracy.md), so that their figures say what a new log gets.
"""

from pathlib import Path

import pytest

from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.scoring import Label, Verdict, read_labels, score

REPORTS = Path(__file__).parents[1] / "corpus/reports"
SPLIT = "2026-07"
NOT_TOLD = {
    "hardware/gb10-cutlass-moe-sm100-symbol.log",  # a warning alone is no crash
    "platforms/ray-plasma-shm.log",  # likewise
    "serving/mm-hash-after-sleep.log",  # the request failed, not the engine
    "serving/mm-hash-not-cached.log",  # likewise
}
NOTES = [REPORTS.parent / name for name in ("field", "later", "recent", "independent")]
TOLD_OTHERWISE = {
    "arm-64k-pages-xid-31.log": Verdict.PARTLY,  # the illegal access, not the Xid before it
    "powershell-quotes.log": Verdict.PARTLY,  # only the remedy speaks of quotation marks
    "ple-warmup-illegal-access.log": Verdict.PARTLY,  # only the remedy names the variable
    "compile-fake-tensors.log": Verdict.PARTLY,  # the sizes are in the next line
    "hub-trust-remote-code.log": Verdict.PARTLY,  # the headline says it in plain words
    "import-segfault-lock.log": Verdict.PARTLY,  # the line of the allocator is shown, not the signal
    "hang-dp-draft-moe.log": Verdict.PARTLY,  # another line says that the engine stands still
    "oomkilled-loading-kimi.log": Verdict.UNKNOWN,  # the log of an engine that still loads ends in the same way
    "engine-sigsegv-uv-sync-downgrade.log": Verdict.PARTLY,  # likewise
    "p2p-bar1-nccl-init-hang-5090.log": Verdict.UNKNOWN,  # the log of an engine that still connects ends in the same way
    "silent-after-args-hub-unreachable.log": Verdict.UNKNOWN,  # likewise, while it reads the configuration
    "plugin-block-size-m.log": Verdict.PARTLY,  # a package that nothing is known about
    "b200-flashinfer-bf16-moe-autotune-coredump.log": Verdict.PARTLY,  # the line of the bar names the kernel
    "ascend-fia-v3-561002-transposekvcache.log": Verdict.UNKNOWN,  # the lines after the error name the operator
    "flashinfer-fd-exchange-array-subscript-py311.log": Verdict.PARTLY,  # the frames name the file
    "spark-log-ends-after-compile-uma-oom-kill.log": Verdict.PARTLY,  # the headline says OOM killer in plain words
    "nvml-device-not-injected.log": Verdict.PARTLY,  # the headline says it in plain words
    "rocm-c-abi-mismatch.log": Verdict.PARTLY,  # the line of the operator is shown, not the one of the symbol
    "lmcache-nixl-pool-oomkill.log": Verdict.PARTLY,  # the headline says OOM killer in plain words
    "ep16-util-098.log": Verdict.PARTLY,  # the headline has the flag, not the name of the field
    "curand-missing.log": Verdict.UNKNOWN,  # the server lives, and a notice says it
    "mtp-pp-supportspp.log": Verdict.PARTLY,  # the headline says draft model, not its method
    "harmony-header.log": Verdict.UNKNOWN,  # one request failed, which a notice says: the engine goes on
    "b200-gemma4-stands.log": Verdict.UNKNOWN,  # the log of an engine that still starts ends in the same way
    "health-500-includedrouter.log": Verdict.UNKNOWN,  # the server lives, and a notice says it
    "tpu-qwen3vl-deepstack.log": Verdict.UNKNOWN,  # the headline has neither the model nor its module
    "uv-sync-segfault.log": Verdict.PARTLY,  # a notice names the replaced packages, not the command
    "bad-marshal-pyc.log": Verdict.PARTLY,  # the headline says bytecode cache in plain words
    "tool-calls-500-fsm.log": Verdict.UNKNOWN,  # requests failed, which a notice says: the engine goes on
    "spark-cold-start-negative-cache.log": Verdict.PARTLY,  # the headline says it in other words
    "gemma4-12b-qat-first-forward.log": Verdict.UNKNOWN,  # the headline has neither the model nor its class
    "structured-output-500-on-three-gpus.log": Verdict.UNKNOWN,  # requests failed, which a notice says: the engine goes on
    "engine-died-service-stayed-down.log": Verdict.UNKNOWN,  # the headline has no name of the process
    "v4-pro-eight-h200.log": Verdict.PARTLY,  # the headline says loading the model
    "v100-qwen38-awq-int4.log": Verdict.PARTLY,  # only the frames name the method
    "statefulset-pod-restarts-under-traffic.log": Verdict.UNKNOWN,  # the log of a server that runs ends in the same way
    "mi300x-aiter-sampler-segfault.log": Verdict.PARTLY,  # only the remedy names AITER
    "otlp-endpoint-on-cpu.log": Verdict.UNKNOWN,  # only the remedy names the flag
    "spec-config-object-has-no-get.log": Verdict.UNKNOWN,  # likewise
    "turboquant-4bit-on-gdn-hybrid.log": Verdict.UNKNOWN,  # likewise
    "r9700-unified-attn-lds.log": Verdict.PARTLY,  # the log names the backend
    "custom-allreduce-no-p2p-hang.log": Verdict.UNKNOWN,  # a slow start ends in the same way, and a notice says that it may hang
}
LABELS = read_labels(REPORTS, before=SPLIT)
OF_NOTES = [(folder, label) for folder in NOTES for label in read_labels(folder)]


def verdict_of(folder: Path, label: Label) -> Verdict:
    """What the scorer says of the diagnosis of one report."""
    [scored] = score(folder, [label], load_startup())
    return scored.verdict


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label.file)
def test_a_report_from_before_the_split_is_diagnosed_as_it_turned_out(label: Label) -> None:
    assert verdict_of(REPORTS, label) is (Verdict.UNKNOWN if label.file in NOT_TOLD else Verdict.RIGHT)


@pytest.mark.parametrize(("folder", "label"), OF_NOTES, ids=[label.file for _, label in OF_NOTES])
def test_a_failure_from_a_note_is_diagnosed_as_it_turned_out(folder: Path, label: Label) -> None:
    assert verdict_of(folder, label) is TOLD_OTHERWISE.get(label.file, Verdict.RIGHT)


def test_the_reports_are_split_by_date() -> None:
    later = read_labels(REPORTS, since=SPLIT)
    assert (len(LABELS), len(later)) == (120, 107)
    assert not {each.file for each in LABELS} & {each.file for each in later}
