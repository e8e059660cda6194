"""Which engines have model runner V2, by version (vllm/config/vllm.py use_v2_model_runner)."""

from typing import Any

import pytest

from support.estimates import engine
from vllm_operator.sizing.engine import read_runner
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.model_shape import read_shape
from vllm_operator.sizing.overhead import has_runner_v2, steps_in_flight
from vllm_operator.sizing.parallelism import ParallelShape

SIZES: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 4096,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
MAMBA = {"layers_block_type": ["mamba", "attention"] * 2, "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 16}


@pytest.mark.parametrize(
    ("architecture", "more", "quantized", "since"),
    [
        ("Qwen3ForCausalLM", {}, False, (0, 22, 0)),
        ("Qwen3ForCausalLM", {}, True, (0, 24, 0)),
        ("LlamaForCausalLM", {}, False, (0, 23, 0)),
        ("LlamaForCausalLM", {}, True, (0, 24, 0)),
        ("Qwen2MoeForCausalLM", EXPERTS, False, (0, 24, 0)),
        ("Gemma3ForCausalLM", {}, False, (0, 25, 0)),
        ("Qwen3MoeForCausalLM", EXPERTS, False, (0, 29, 0)),
        ("NemotronHForCausalLM", MAMBA, False, (0, 29, 0)),
    ],
)
def test_a_model_has_model_runner_v2_since_the_version_that_lists_it(
    architecture: str, more: dict[str, Any], quantized: bool, since: tuple[int, int, int]
) -> None:
    shape = read_shape(SIZES | more | {"architectures": [architecture]})
    assert shape is not None
    minors, form = range(21, 34), WeightFormat("", 1.0 if quantized else 2.0)
    having = [minor for minor in minors if has_runner_v2(engine(shape, form, release=(0, minor, 0)))]
    assert having == list(range(since[1], 34))


def test_the_variable_decides_before_the_table_and_drafts_without_a_model_fall_back() -> None:
    shape = read_shape(SIZES | {"architectures": ["LlamaForCausalLM"]})
    assert shape is not None
    asked = [read_runner({"VLLM_USE_V2_MODEL_RUNNER": value}) for value in ("0", "1", "maybe", None)]
    having = [has_runner_v2(engine(shape, release=(0, 26, 0), runner_v2=each)) for each in asked]
    assert having == [False, True, True, True]
    assert not has_runner_v2(engine(shape, release=(0, 26, 0), speculative=1))


@pytest.mark.parametrize(("v2", "pipeline", "steps"), [(True, 1, 2), (True, 4, 5), (False, 1, 2), (False, 4, 4)])
def test_a_window_keeps_the_tokens_of_all_steps_at_a_time(v2: bool, pipeline: int, steps: int) -> None:
    shape = read_shape(SIZES)
    assert shape is not None
    for drafted, expected in ((0, steps), (1, pipeline)):
        assert steps_in_flight(engine(shape, parallel=ParallelShape(pipeline=pipeline), speculative=drafted), v2=v2) == expected
