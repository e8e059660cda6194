"""The next plan of an engine uses the memory that its last start measured."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gpus import real_node
from support.plans import deployment, made, planned
from vllm_operator.api.plan import LearnedMemory, MeasuredMemory, Plan, PlannedMemory, PlanSummary
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.planning.memory.estimate import learn

MODEL, H100, H200 = "hf://meta-llama/Llama-3.1-8B-Instruct", real_node("h100-sxm"), real_node("h200")
SAID = "as measured at the last start"


def served(resource: VLLMDeployment, plan: Plan, weights: int = 0, kv_cache: int = 0) -> VLLMDeployment:
    """The object after its engine measured so many MiB more than the plan predicted."""
    assert plan.memory is not None
    measured = MeasuredMemory(
        weights_mebibytes=plan.memory.weights_mebibytes + weights, kv_cache_mebibytes=plan.memory.kv_cache_mebibytes + kv_cache
    )
    return with_measured(resource, plan, measured)


def with_measured(resource: VLLMDeployment, plan: Plan, measured: MeasuredMemory | None) -> VLLMDeployment:
    summary = PlanSummary(revision="demo-1", image=plan.image, measured=measured)
    return resource.model_copy(update={"status": resource.status.model_copy(update={"pinned_plan": summary})})


def changed(uri: str = MODEL, *, generation: int = 2, **spec: Any) -> VLLMDeployment:
    return deployment(uri, generation=generation, startup={"stallSeconds": 900 + generation}, **spec)


def memory(plan: Plan) -> PlannedMemory:
    assert plan.memory is not None
    return plan.memory


def test_the_next_plan_has_what_was_measured_and_says_so() -> None:
    first = made(deployment(MODEL), H100)
    second = made(served(changed(), first, weights=500, kv_cache=-900), H100, pinned=first)
    assert memory(second).weights_mebibytes == memory(first).weights_mebibytes + 500
    assert memory(second).kv_cache_mebibytes == pytest.approx(memory(first).kv_cache_mebibytes - 900, abs=2)
    assert any(SAID in note for note in second.notes)
    assert not any(SAID in note for note in first.notes)


def test_what_was_measured_stays_over_plans_whose_engine_has_not_started_and_is_replaced_by_the_next_start() -> None:
    first = made(deployment(MODEL), H100)
    second = made(served(changed(), first, kv_cache=-900), H100, pinned=first)
    third = made(with_measured(changed(generation=3), second, None), H100, pinned=second)
    assert memory(third) == memory(second)
    fourth = made(served(changed(generation=4), third, kv_cache=300), H100, pinned=third)
    assert memory(fourth).kv_cache_mebibytes == pytest.approx(memory(first).kv_cache_mebibytes - 600, abs=3)
    learned = memory(fourth).learned
    assert learned is not None
    assert learned.estimated_weights_mebibytes == memory(first).weights_mebibytes


def test_a_plan_in_force_does_not_change_when_its_engine_has_measured_its_memory() -> None:
    first = made(deployment(MODEL), H100)
    again = planned(served(deployment(MODEL), first, weights=500, kv_cache=-900), H100, pinned=first)
    assert again.plan == first
    assert not again.drift


@pytest.mark.parametrize(
    ("uri", "spec", "node"),
    [
        ("hf://Qwen/Qwen3-8B", {}, H100),
        (MODEL, {"engine": {"version": "0.20.0"}}, H100),
        (MODEL, {}, H200),
        (MODEL, {"parallelism": {"tensor": 2}}, H100),
        (MODEL, {"engine": {"version": "0.20.1", "args": [{"name": "--quantization", "value": "fp8"}]}}, H100),
    ],
    ids=["another model", "another version", "another GPU", "other sizes", "other weights"],
)
def test_what_was_measured_says_nothing_about(uri: str, spec: dict[str, Any], node: dict[str, Any]) -> None:
    first = made(deployment(MODEL), H100)
    without = made(changed(uri, **spec), node)
    second = made(served(changed(uri, **spec), first, weights=500, kv_cache=-900), node, pinned=first)
    assert memory(second) == memory(without)
    assert memory(second).learned is None


def test_with_other_flags_only_a_surplus_counts_besides_the_weights() -> None:
    few: dict[str, Any] = {"engine": {"version": "0.20.1", "args": [{"name": "--max-num-seqs", "value": "8"}]}}
    first, without = made(deployment(MODEL), H100), made(changed(**few), H100)
    surplus = made(served(changed(**few), first, kv_cache=-900), H100, pinned=first)
    less = made(served(changed(**few), first, kv_cache=900), H100, pinned=first)
    assert memory(surplus).kv_cache_mebibytes == pytest.approx(memory(without).kv_cache_mebibytes - 900, abs=2)
    assert memory(less).kv_cache_mebibytes == memory(without).kv_cache_mebibytes


def test_the_context_follows_from_what_was_measured() -> None:
    node, uri = real_node("l4"), "hf://meta-llama/Llama-3.1-8B-Instruct"
    fixed: dict[str, Any] = {"parallelism": {"tensor": 1}}

    def length(plan: Plan) -> int:
        return next(int(argument.value or 0) for argument in plan.args if argument.name == "--max-model-len")

    first = made(deployment(uri, **fixed), node)
    second = made(served(changed(uri, **fixed), first, kv_cache=-512), node, pinned=first)
    assert length(second) < length(first)


@pytest.mark.parametrize(
    ("weights", "kv_cache"),
    [(0, -30_000), (0, 30_000), (-15_000, 0), (9_000, -9_000)],
    ids=["another process on the GPU", "another budget", "no weights", "other weights"],
)
def test_what_cannot_be_this_engine_alone_is_not_learned(weights: int, kv_cache: int) -> None:
    first = made(deployment(MODEL), H100)
    second = made(served(changed(), first, weights, kv_cache), H100, pinned=first)
    assert memory(second) == memory(first)


@pytest.mark.parametrize(
    "memory",
    [None, PlannedMemory(weights_mebibytes=15_000, kv_cache_mebibytes=50_000)],
    ids=["no prediction", "of an earlier version of the operator"],
)
def test_from_a_plan_without_all_of_a_prediction_nothing_is_learned(memory: PlannedMemory | None) -> None:
    first = made(deployment(MODEL), H100).model_copy(update={"memory": memory})
    assert learn(first, MeasuredMemory(weights_mebibytes=15_000, kv_cache_mebibytes=49_000), first.model) is None


SIZE = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.hypothesis
@given(SIZE, SIZE, SIZE, SIZE)
def test_no_measurement_raises_an_error_or_refuses_an_engine_that_fits(weights: int, kv_cache: int, estimated: int, other: int) -> None:
    first = made(deployment(MODEL), H100)
    known = LearnedMemory(
        engine_version="0.20.1",
        architecture="sm_90",
        product=first.product,
        parallelism="tp1",
        weights_mebibytes=weights,
        estimated_weights_mebibytes=estimated,
        other_mebibytes=other,
        estimated_other_mebibytes=estimated,
    )
    pinned = first.model_copy(update={"memory": memory(first).model_copy(update={"learned": known})})
    learn(pinned, MeasuredMemory(weights_mebibytes=weights, kv_cache_mebibytes=kv_cache), pinned.model)
    planned(with_measured(changed(), first, MeasuredMemory(weights_mebibytes=weights, kv_cache_mebibytes=kv_cache)), H100, pinned=pinned)
    fresh = with_measured(changed(), first, MeasuredMemory(weights_mebibytes=weights, kv_cache_mebibytes=kv_cache))
    assert planned(fresh, H100, pinned=first).plan is not None
