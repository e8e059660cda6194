"""What the operator says about a backend that a user pins: nothing, a note, or a refusal. One line of `pins.txt` for each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.backends import decide, notes_of
from vllm_operator.cli.terminal import wrap

LLAMA, GPT_OSS = "hf://meta-llama/Llama-3.1-8B-Instruct", "hf://openai/gpt-oss-120b"
DEEPSEEK, SPARSE = "hf://deepseek-ai/DeepSeek-R1", "hf://deepseek-ai/DeepSeek-V3.2"
QWEN_FP8, UNKNOWN = "hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "hf://someone/something"


def flag(name: str, value: str) -> dict[str, Any]:
    return {"engine": {"args": [{"name": name, "value": value}]}}


def variable(name: str, value: str) -> dict[str, Any]:
    return {"engine": {"env": [{"name": name, "value": value}]}}


def pin(**backends: str) -> dict[str, Any]:
    return {"backends": backends}


PINS: list[tuple[str, str, str | None, dict[str, Any]]] = [
    # the catalog knows that it works
    (LLAMA, "0.20.1", "sm_90", pin(attention="FLASHINFER")),
    (DEEPSEEK, "0.20.1", "sm_90", pin(moe="TRITON")),
    (QWEN_FP8, "0.33.0", "sm_90", pin(moe="HUMMING")),
    (DEEPSEEK, "0.20.1", "sm_90", pin(sampler="FLASHINFER")),
    (DEEPSEEK, "0.24.0", "sm_100", pin(gemm="DEEPGEMM")),
    # it has no effect
    (LLAMA, "0.20.1", "sm_90", pin(moe="TRITON")),
    (LLAMA, "0.20.1", "sm_90", flag("--moe-backend", "triton")),
    (LLAMA, "0.20.1", "sm_90", pin(mlaPrefill="FLASH_ATTN")),
    (LLAMA, "0.20.1", "sm_90", pin(allToAll="deepep_low_latency")),
    (DEEPSEEK, "0.20.1", "sm_90", pin(allToAll="deepep_low_latency")),
    # this version has no setting for it
    (LLAMA, "0.20.1", "sm_90", pin(gemm="DEEPGEMM")),
    (UNKNOWN, "0.20.1", "sm_90", pin(gemm="CUTLASS")),
    (DEEPSEEK, "0.24.0", "sm_100", pin(mlaPrefill="CUDNN")),
    (DEEPSEEK, "0.20.1", "sm_90", pin(moe="NO_SUCH_BACKEND")),
    (DEEPSEEK, "0.99.0", "sm_90", pin(moe="NO_SUCH_BACKEND")),
    (DEEPSEEK, "0.10.2", "sm_90", pin(moe="TRITON")),
    # the catalog knows that it does not work
    (LLAMA, "0.20.1", "sm_90", pin(attention="FLASHINFER_MLA")),
    (LLAMA, "0.20.1", "sm_90", flag("--attention-backend", "FLASHINFER_MLA")),
    (DEEPSEEK, "0.20.1", "sm_90", pin(attention="FLASH_ATTN")),
    (SPARSE, "0.24.0", "sm_90", pin(attention="FLASHMLA")),
    (DEEPSEEK, "0.20.1", "sm_90", pin(moe="FLASHINFER_TRTLLM")),
    (DEEPSEEK, "0.20.1", "sm_90", flag("--moe-backend", "flashinfer_trtllm")),
    (DEEPSEEK, "0.20.1", "sm_90", flag("--moe-backend", "no_such_backend")),
    # the catalog does not know it
    (LLAMA, "0.33.0", "sm_90", pin(attention="TREE_ATTN")),
    (DEEPSEEK, "0.24.0", "sm_90", pin(gemm="CONCH")),
    (UNKNOWN, "0.24.0", "sm_90", pin(attention="FLASHINFER")),
    (UNKNOWN, "0.24.0", "sm_90", pin(attention="FLASHINFER_MLA")),
    (UNKNOWN, "0.24.0", "sm_90", pin(moe="TRITON")),
    (LLAMA, "0.24.0", None, pin(attention="FLASHINFER")),
    (DEEPSEEK, "0.20.3", "sm_90", pin(moe="TRITON")),
    (DEEPSEEK, "0.99.0", "sm_90", flag("--moe-backend", "triton")),
    (DEEPSEEK, "0.99.0", "sm_90", flag("--moe-backend", "no_such_backend")),
    (LLAMA, "0.20.1", "sm_121", {**pin(attention="FLASHINFER"), "engine": {"distribution": "nvLLM"}}),
    (DEEPSEEK, "0.16.0", "sm_100", variable("VLLM_FLASHINFER_MOE_BACKEND", "throughput")),
    (GPT_OSS, "0.20.1", "sm_90", pin(moe="TRITON")),
]


def described(uri: str, version: str, architecture: str | None, spec: dict[str, Any]) -> list[str]:
    engine = {key: value for key, value in spec.get("engine", {}).items() if key != "distribution"}
    setting = ", ".join([*(f"{name}: {value}" for name, value in spec.get("backends", {}).items()), *set_on_engine(engine)])
    vllm = spec.get("engine", {}).get("distribution", "vLLM")
    lines = [f"{uri.rpartition('/')[2]} on {architecture or 'an unknown GPU'} with {vllm} {version}, {setting}"]
    decision = decide(uri, version, architecture, **spec)
    if decision.refusal is not None:
        return lines + wrap(f"refused: {decision.refusal}", "  ")
    users = [f"{choice.component} {choice.backend}" for choice in decision.choices if choice.chosen_by == "User"]
    lines.append(f"  planned: {', '.join(users) or 'without it'}")
    return lines + [line for text in notes_of(decision) for line in wrap(f"note: {text}", "  ")]


def set_on_engine(engine: dict[str, Any]) -> list[str]:
    entries = [entry for part in ("args", "env") for entry in engine.get(part, ())]
    return [f"{entry['name']} {entry['value']}" for entry in entries]


def test_what_is_said_about_a_pin_is_as_recorded(golden: Callable[[Path, str], None]) -> None:
    golden(Path(__file__).parent / "pins.txt", "\n\n".join("\n".join(described(*each)) for each in PINS) + "\n")


@pytest.mark.parametrize("row", PINS[23:-1], ids=lambda row: f"{row[0].rpartition('/')[2]} {row[1]} {row[2]}")
def test_a_pin_that_no_table_knows_is_never_planned_in_silence(row: tuple[str, str, str | None, dict[str, Any]]) -> None:
    uri, version, architecture, spec = row
    decision = decide(uri, version, architecture, **spec)
    assert decision.refusal is not None or decision.notes
