"""Starts on an H200 as the operator planned them: what the plan of today expects is what the log of the engine chose."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import inventory_of, real_node
from support.pasted import read_either_way
from support.plans import deployment, known
from vllm_operator.api.plan import Plan
from vllm_operator.catalog.backends import load_logged_names
from vllm_operator.logs.state import StartupState
from vllm_operator.planning.planner import plan
from vllm_operator.sizing.model_facts import ModelFiles

PLANNED = Path(__file__).parent.parent / "corpus" / "planned"
LABELS: dict[str, dict[str, Any]] = yaml.safe_load((PLANNED / "labels.yaml").read_text("utf-8"))
CONFIGS: dict[str, dict[str, Any]] = json.loads((PLANNED / "models.json").read_text("utf-8"))
NAMES = load_logged_names()
NODE = real_node(
    "h200",
    labels={"nvidia.com/cuda.driver-version.full": "580.159.04", "nvidia.com/cuda.driver-version.major": "580"},
    allocatable={"nvidia.com/gpu": "2"},
)


@cache
def read(name: str) -> StartupState:
    return read_either_way((PLANNED / f"{name}.log").read_bytes()).final_state


def planned(name: str) -> Plan | None:
    label = LABELS[name]
    resource = deployment(
        f"hf://{label.get('uri') or 'example/' + label['model']}", engine={"version": label["version"]}, backends=label.get("backends", {})
    )
    return plan(resource, inventory_of(NODE), known(), files=ModelFiles(CONFIGS[label["model"]])).plan


def test_every_recording_has_a_label() -> None:
    assert {path.stem for path in PLANNED.glob("*.log")} == set(LABELS)


@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_planned_start_ends_where_its_label_says(name: str) -> None:
    state, label = read(name), LABELS[name]

    assert (state.crash and state.crash.signature) == label["signature"]
    assert state.stage == label["stage"]
    assert state.engine_version == label["version"]


@pytest.mark.parametrize("name", sorted(name for name, label in LABELS.items() if label.get("refused")))
def test_the_plan_refuses_what_the_engine_refused(name: str) -> None:
    assert planned(name) is None


@pytest.mark.parametrize("name", sorted(name for name, label in LABELS.items() if not label.get("refused")))
def test_the_plan_expects_what_the_engine_chose(name: str) -> None:
    made, logged = planned(name), read(name).observed_backends
    assert made is not None
    expected = {choice.component: choice.backend for choice in made.backends}
    compared = set()
    for component, backend in logged:
        # A requested MLA backend is logged as one for attention.
        ours = "MLADecode" if component == "Attention" and "Attention" not in expected else component
        if ours in expected:
            assert NAMES.agree(component, backend, expected[ours]), (component, backend, expected[ours])
            compared.add(ours)
    assert compared & {"Attention", "MLADecode"}
    assert compared >= {component for component, backend in expected.items() if component in ("MoE", "GEMM") and backend != "TORCH"}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nvfp4-cutlass-v0260", "No kernel that --linear-backend allows can run the NVFP4 linear layers of this model on this GPU."),
        (
            "nvfp4-cutlass-v0201",
            "The requested kernel CutlassNvFp4LinearKernel is not available for NVFP4 linear layers "
            "(CUTLASS FP4 kernels not available). The GPU or this build of vLLM does not support it.",
        ),
        ("fp8-fi-v0260", "No kernel that --linear-backend allows can run the quantized linear layers of this model on this GPU."),
        ("fp8-triton-v0260", "The kernel triton cannot run the quantized linear layers of this model on this GPU."),
        (
            "moe-fp8-cutlass-v0260",
            "The backend CUTLASS cannot run the FP8 experts of this model on this GPU (disabled for this configuration).",
        ),
        (
            "mla-prefill-trtllm-v0260",
            "The MLA prefill backend TRTLLM_RAGGED cannot run this model on this GPU: 'compute capability 9.0 not supported'.",
        ),
        ("oss-attn-fi-v0260", "The attention backend FLASHINFER cannot run this model on this GPU: 'attention sinks not supported'."),
    ],
)
def test_the_cause_names_the_refused_backend_and_the_reason(name: str, cause: str) -> None:
    crash = read(name).crash

    assert crash is not None
    assert crash.cause == cause
