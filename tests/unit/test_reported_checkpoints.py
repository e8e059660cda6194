"""Manifests and config.json files about which a plan once said something other than vLLM does: `tests/corpus/plans`.

Each was compared with the configuration and the model class that vLLM makes from the same files on such a GPU.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import real_node
from vllm_operator.__main__ import main

INPUTS = Path(__file__).parents[1] / "corpus/plans"

TAKEN = [
    # input, node, component, what vLLM takes
    ("kv-cache-in-checkpoint", "rtx-pro-6000", "Attention", "FLASHINFER"),
    ("kv-cache-in-checkpoint", "a100", "Attention", "FLASHINFER"),
    ("kv-cache-in-checkpoint-sparse", "b200", "SparseAttention", "FLASHINFER_MLA_SPARSE"),
    ("kv-cache-in-checkpoint-sparse", "h200", "SparseAttention", "FLASHMLA_SPARSE"),
    ("uneven-blocks", "h200", "MoE", "TRITON"),
    ("gptq-int8", "a100", "GEMM", "MARLIN"),
    ("gptq-int8", "h100-sxm", "GEMM", "MACHETE"),
    ("kv-cache-turboquant", "h100-sxm", "Attention", "TURBOQUANT"),
    ("kv-cache-nvfp4", "h100-sxm", "Attention", "FLASHINFER"),
    ("kv-cache-nvfp4", "a100", "Attention", "FLASHINFER"),
    ("kv-cache-nvfp4", "rtx-pro-6000", "Attention", "FLASHINFER"),
    ("gemma-images", "h100-sxm", "Attention", "TRITON_FLASH_ATTN"),
    ("mig-sampler", "h100-mig-single", "Sampler", "NATIVE"),
]
REFUSED = [
    # input, node, words that say why, words that say what to do
    ("uneven-blocks", "a100", "divides the 128x128 blocks", "Set spec.parallelism.expert to Enabled"),
    ("uneven-groups", "a100", "divisible by group_size", "Set spec.parallelism.expert to Enabled"),
    ("gptq-act-order", "h100-sxm", "desc_act=True", "Use a checkpoint without desc_act"),
    ("kv-cache-wrong-kind", "h100-sxm", "fp8_ds_mla is for sparse MLA", ", or remove --kv-cache-dtype."),
]


def planned(name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The result of `vllm-operator plan` for an input on eight large GPUs of a kind."""
    labels = {} if "mig" in kind else {"nvidia.com/gpu.memory": "1000000", "nvidia.com/gpu.count": "8"}
    node = real_node(kind, labels=labels, allocatable={} if "mig" in kind else {"nvidia.com/gpu": "8"})
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(yaml.safe_dump(node), "utf-8")
    config = INPUTS / f"{name}.config.json"
    files = ["--model-config", str(config)] if config.exists() else []
    main(["plan", "-f", str(INPUTS / f"{name}.yaml"), "--nodes", str(nodes), *files, "-o", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("name", "kind", "component", "taken"), TAKEN)
def test_the_plan_expects_the_backend_that_vllm_takes(
    name: str, kind: str, component: str, taken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(name, kind, tmp_path, capsys)
    assert {each["component"]: each["backend"] for each in found["plan"]["backends"]}[component] == taken


@pytest.mark.parametrize(("name", "kind", "why", "advice"), REFUSED)
def test_an_engine_that_would_not_start_is_refused(
    name: str, kind: str, why: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(name, kind, tmp_path, capsys)
    message = found["result"]["message"]
    assert found["plan"] is None
    assert why in message
    assert advice in message


def test_vllm_chooses_the_number_format_of_gemma_on_turing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = planned("turing-float16", "t4", tmp_path, capsys)["plan"]["args"]
    assert "--dtype" not in {each["name"] for each in arguments}


def test_every_input_is_asked() -> None:
    assert {path.stem for path in INPUTS.glob("*.yaml")} == {"turing-float16", *(name for name, *_ in (*TAKEN, *REFUSED))}
