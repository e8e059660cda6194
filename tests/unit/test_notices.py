"""A harmless remark is shown beside the crash that it explains, and nowhere else; and texts tell what the log knows."""

from pathlib import Path

import pytest
import yaml

from support import observations as o
from support.engine_logs import HEALTHY_START, READY, crash_of, engine_failure
from support.own_knowledge import LICENCE_SIGNATURE
from vllm_operator.__main__ import main
from vllm_operator.catalog.rules import load_rules
from vllm_operator.catalog.startup import Severity, load_startup
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.terminations import diagnose_termination

SIGNATURES = {signature.id: signature for signature in load_startup().signatures}
BENIGN = [signature for signature in SIGNATURES.values() if signature.severity is Severity.BENIGN]
MOE = "(EngineCore pid=7) WARNING 11-21 09:20:42 [fused_moe.py:1] Using default MoE config. Performance might be sub-optimal!\n"
TOO_MANY = "OSError: [Errno 24] Too many open files"
SERVING = "(EngineCore pid=7) ERROR 11-21 09:40:00 [core.py:1136] EngineCore encountered a fatal error.\n"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ASKED = "(APIServer pid=1) INFO 11-21 09:20:13 [utils.py:233] non-default args: {'model': 'm', 'gpu_memory_utilization': 0.012}\n"
"""Follows the beginning of a healthy start, whose own arguments do not name it."""


def page(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str) -> str:
    path = tmp_path / "engine.log"
    path.write_text(log, "utf-8")
    assert main(["diagnose", str(path)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(HEALTHY_START, id="a start that is under way"),
        pytest.param(HEALTHY_START + READY, id="a start that became ready"),
        pytest.param(HEALTHY_START + engine_failure(OUT_OF_MEMORY), id="a crash of another kind"),
        pytest.param(HEALTHY_START + MOE + engine_failure("RuntimeError: something odd happened 17"), id="a crash that is not known"),
    ],
)
def test_harmless_remarks_are_not_shown_where_they_explain_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str) -> None:
    assert "Also in the log" not in page(tmp_path, capsys, log)


def test_a_low_limit_of_open_files_is_shown_beside_a_crash_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = page(tmp_path, capsys, HEALTHY_START + engine_failure(TOO_MANY))

    assert "FileDescriptorLimitReached" in shown
    assert "Also in the log FileDescriptorLimitLow: The limit of open files is low (20000)" in shown
    assert "UnknownVllmEnvVar" not in shown


def test_a_notice_of_what_makes_a_start_worse_is_always_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stalled = (
        "(EngineCore pid=7) INFO 11-21 09:22:00 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds.\n"
    )

    assert "Also in the log SharedMemoryBroadcastStall" in page(tmp_path, capsys, HEALTHY_START + stalled)


def test_every_harmless_signature_says_which_crashes_it_explains() -> None:
    for each in BENIGN:
        assert each.explains is not None
        assert set(each.explains) <= set(SIGNATURES)
        assert all(SIGNATURES[name].severity is Severity.FATAL for name in each.explains)


def test_what_a_line_overrules_exists() -> None:
    named = {name for signature in SIGNATURES.values() for pattern in signature.patterns for name in pattern.overrules}

    assert named
    assert named <= set(SIGNATURES)


@pytest.mark.parametrize(("explains", "is_shown"), [(None, True), ([], False), (["Unknown"], True)])
def test_a_remark_of_the_owner_of_the_cluster_is_shown_as_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], explains: list[str] | None, is_shown: bool
) -> None:
    remark = {**LICENCE_SIGNATURE, "severity": "benign"} | ({} if explains is None else {"explains": explains})
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump([remark]), "utf-8")
    log = tmp_path / "engine.log"
    line = "WARNING 11-21 09:20:42 [x.py:1] licence server lic-1 did not answer\n"
    log.write_text(HEALTHY_START + line + engine_failure("RuntimeError: something odd happened 17"), "utf-8")

    assert main(["diagnose", str(log), "--signatures", str(own)]) == 0
    assert (f"{remark['id']}:" in capsys.readouterr().out) == is_shown


def test_out_of_memory_while_serving_is_distinguished_from_weights_that_do_not_fit() -> None:
    loading = crash_of(HEALTHY_START + engine_failure(OUT_OF_MEMORY))
    serving = crash_of(HEALTHY_START + ASKED + READY + SERVING + engine_failure(OUT_OF_MEMORY))

    assert loading.signature == serving.signature == "CudaOutOfMemory"
    assert "The weights do not fit" in str(loading.remedy)
    assert "weights fit" in str(serving.remedy)
    assert "(now 0.012)" in str(serving.remedy)
    assert "tensor" not in str(serving.remedy)


@pytest.mark.parametrize(
    "asked",
    [
        ASKED,
        "INFO 05-01 09:20:13 [api_server.py:1034] args: Namespace(host=None, gpu_memory_utilization=0.012, seed=0)\n",
        "(APIServer pid=1) INFO 11-21 09:20:13 [utils.py:233] non-default args: {'gpu_memory_utilization': 0.012}\n",
    ],
)
def test_a_share_of_the_gpu_that_is_too_small_is_named(asked: str) -> None:
    crash = crash_of(HEALTHY_START + asked + engine_failure("ValueError: No available memory for the cache blocks."))

    assert crash.signature == "NoKvCacheMemory"
    assert "If no other engine uses this GPU, set --gpu-memory-utilization to 0.9 (now 0.012)." in str(crash.remedy)
    assert "1.2 %" in crash.cause


def test_without_a_share_in_the_log_the_advice_is_general() -> None:
    crash = crash_of(HEALTHY_START + engine_failure("ValueError: No available memory for the cache blocks."))

    assert str(crash.remedy).startswith("Raise --gpu-memory-utilization")


@pytest.mark.parametrize(
    ("stage", "says", "says_not"),
    [
        ("WeightLoad", "checkpoint", "MAX_JOBS"),
        ("FlashInferWarmup", "MAX_JOBS=4", "Serving"),
        ("Ready", "--kv-offloading-size", "checkpoint"),
        ("", "checkpoint", "MAX_JOBS"),
    ],
)
def test_advice_about_ram_is_for_the_stage_in_which_it_ran_out(stage: str, says: str, says_not: str) -> None:
    ended = diagnose_termination(load_knowledge(), o.termination(137, reason="OOMKilled"), log_crash=None, stage=stage)

    assert ended is not None
    assert ended.signature == "OOMKilled"
    assert says in str(ended.remedy)
    assert says_not not in str(ended.remedy)
    assert SIGNATURES["OOMKilled"].environment == ()
    assert [change.name for change in SIGNATURES["CompilerOutOfMemory"].environment] == ["MAX_JOBS"]


@pytest.mark.parametrize(
    ("error", "instead"),
    [
        ("ValueError: vLLM CUTLASS FP8 MoE backend is disabled for this configuration.", "triton, then marlin"),
        ("ValueError: NVFP4 MoE backend TRITON does not support the deployment configuration.", "flashinfer_cutlass or flashinfer_trtllm"),
        (
            "ValueError: moe_backend='deep_gemm' is not supported for NvFP4 MoE. Expected one of ['cutlass', 'marlin'].",
            "'cutlass', 'marlin'",
        ),
        ("NotImplementedError: DeepSeek V4 MegaMoE currently requires expert parallel. Enable it with x.", "--enable-expert-parallel"),
        ("ValueError: RecoverSSM requires --mamba-backend triton", "Set --mamba-backend triton."),
    ],
)
def test_a_refused_backend_is_reported_with_what_can_be_asked_for(error: str, instead: str) -> None:
    crash = crash_of(HEALTHY_START + engine_failure(error))

    assert instead in str(crash.remedy)


@pytest.mark.parametrize(
    ("quantization", "names"),
    [
        ("FP8", ["TRITON", "MARLIN", "FLASHINFER_CUTLASS"]),
        ("FP8Block", ["DEEPGEMM", "FLASHINFER_CUTLASS", "TRITON"]),
        ("NVFP4", ["MARLIN", "FLASHINFER_CUTLASS", "FLASHINFER_TRTLLM"]),
        ("MXFP4", ["MARLIN", "TRITON", "FLASHINFER_CUTLASS"]),
        ("MXFP8", ["MARLIN", "DEEPGEMM", "FLASHINFER_TRTLLM"]),
        ("INT4", ["MARLIN", "TRITON"]),
    ],
)
def test_what_the_advice_names_for_experts_is_in_the_catalog(quantization: str, names: list[str]) -> None:
    works = {kernel.backend for kernel in load_rules().kernels.entries if kernel.component == "MoE" and quantization in str(kernel.works)}

    assert set(names) <= works
