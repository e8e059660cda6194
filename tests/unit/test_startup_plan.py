"""The size of the KV cache that a start has measured is taken over by later ones, where nothing else can have changed it."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.status import RemediationStatus
from vllm_operator.catalog.caches import STARTUP_PLAN
from vllm_operator.status.remedies import remedied

MEMORY = {"name": "gpu-memory-utilization", "value": "0.8"}


def variables(**spec: Any) -> dict[str, str]:
    return {each.name: each.value for each in made(deployment(**spec), real_node("b200")).env}


@pytest.mark.parametrize(
    ("engine", "is_set"),
    [
        ({"version": "0.25.1"}, False),
        ({"version": "0.26.0"}, True),
        ({"version": "0.33.0"}, True),
        ({"version": "0.33.0", "args": [{"name": "max-model-len", "value": "4096"}]}, True),
        ({"version": "0.33.0", "args": [MEMORY]}, False),
        ({"version": "0.33.0", "args": [{"name": "max_num_seqs", "value": "8"}]}, False),
        ({"version": "0.33.0", "extraArgs": ["--config=/etc/vllm.yaml"]}, False),
    ],
    ids=str,
)
def test_a_start_takes_over_what_an_earlier_one_has_measured_unless_a_flag_changes_it(engine: dict[str, Any], is_set: bool) -> None:
    assert (STARTUP_PLAN in variables(engine=engine)) is is_set


def test_a_part_of_a_shared_gpu_is_measured_at_each_start() -> None:
    shared = deployment("hf://Qwen/Qwen3-0.6B", engine={"version": "0.33.0"}, accelerator={"products": ["NVIDIA-H100-80GB-HBM3-SHARED"]})
    plan = made(shared, real_node("h100-time-sliced"))
    assert "--gpu-memory-utilization" in [each.name for each in plan.args]
    assert STARTUP_PLAN not in [each.name for each in plan.env]


def test_after_a_remedy_the_memory_is_measured_anew() -> None:
    plan = made(deployment(engine={"version": "0.33.0"}), real_node("b200"))
    change = {"kind": "Argument", "action": "Set", "name": "--gpu-memory-utilization", "value": "0.85"}
    applied = {"signature": "CudaOutOfMemory", "reason": "Less memory.", "changes": [change], "attempt": 1, "since": "2026-11-29T00:00:00Z"}
    decided = RemediationStatus.model_validate({"applied": [applied]})
    assert STARTUP_PLAN in [each.name for each in plan.env]
    assert STARTUP_PLAN not in [each.name for each in remedied(plan, decided).env]
