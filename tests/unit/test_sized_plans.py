"""Plans with a size: how many GPUs, which of several, how long a context, and what is refused because it does not fit."""

import re
from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made, planned, refusal
from vllm_operator.api.plan import Plan
from vllm_operator.sizing.engine import read_flags
from vllm_operator.sizing.model_facts import ModelFiles

LLAMA_70B, DEEPSEEK = "hf://meta-llama/Llama-3.3-70B-Instruct", "hf://deepseek-ai/DeepSeek-V3"
INSIST = {"vllm-operator.dev/allow-unsupported": "true"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def flags(plan: Plan) -> dict[str, str | None]:
    return {argument.name: argument.value for argument in plan.args}


@pytest.mark.parametrize(
    ("uri", "kinds", "product", "count"),
    [
        ("hf://Qwen/Qwen3-0.6B", ("b200", "l40s"), "NVIDIA-L40S", 1),
        (LLAMA_70B, ("h100-sxm",), "NVIDIA-H100-80GB-HBM3", 4),
        (LLAMA_70B, ("h100-sxm", "b200"), "NVIDIA-B200", 1),
        (DEEPSEEK, ("h100-sxm", "h200"), "NVIDIA-H200", 8),
        ("hf://meta-llama/Llama-3.1-8B-Instruct", ("gb10", "h100-sxm"), "NVIDIA-H100-80GB-HBM3", 1),
    ],
)
def test_the_smallest_number_of_the_smallest_gpus_is_chosen(uri: str, kinds: tuple[str, ...], product: str, count: int) -> None:
    plan = made(deployment(uri), *map(real_node, kinds))
    assert (plan.product, plan.count) == (product, count)
    assert flags(plan).get("--tensor-parallel-size") == (str(count) if count > 1 else None)


def test_a_size_of_the_spec_is_not_changed() -> None:
    assert made(deployment(LLAMA_70B, parallelism={"tensor": 8}), real_node("h100-sxm")).count == 8
    assert made(deployment("hf://Qwen/Qwen3-0.6B", accelerator={"count": 2}), real_node("h100-sxm")).count == 2


@pytest.mark.parametrize(
    ("uri", "tensor", "said"),
    [
        ("hf://Qwen/Qwen2.5-7B-Instruct", 8, "28 attention heads cannot be divided by 8."),
        ("hf://Qwen/Qwen3-30B-A3B-FP8", 4, "Use expert parallelism."),
        ("hf://Qwen/Qwen2.5-7B-Instruct", 4, ""),
    ],
)
def test_who_insists_on_a_size_that_vllm_refuses_to_divide_is_told(uri: str, tensor: int, said: str) -> None:
    plan = made(deployment(uri, parallelism={"tensor": tensor}, annotations=INSIST), real_node("h100-sxm"))
    notes = [note for note in plan.notes if "vLLM cannot split" in note]
    assert [said in note for note in notes] == ([True] if said else [])


@pytest.mark.parametrize(("version", "refused"), [("0.28.0", True), ("0.29.0", False), ("0.33.0", False)])
def test_blocks_that_vllm_divides_are_not_said_to_be_indivisible(version: str, refused: bool) -> None:
    resource = deployment("hf://Qwen/Qwen3-30B-A3B-FP8", parallelism={"tensor": 4}, engine={"version": version})
    assert ("vLLM cannot split" in planned(resource, real_node("h100-sxm")).accepted.message) is refused


def test_experts_are_spread_whole_where_their_blocks_cannot_be_divided() -> None:
    plan = made(deployment("hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"), real_node("l40s"), real_node("h100-sxm"))
    assert plan.count == 8 or "--enable-expert-parallel" not in flags(plan)


@pytest.mark.parametrize(
    ("uri", "kind", "spec", "said"),
    [
        (
            DEEPSEEK,
            "gb10",
            {},
            "does not fit on 1 NVIDIA GB10 (sm_121). The weights take 628.8 GiB per device of 121.6 GiB.",
        ),
        (DEEPSEEK, "h100-sxm", {}, "does not fit on 8 NVIDIA H100 80GB (sm_90). Weights and activations take"),
        (LLAMA_70B, "h100-sxm", {"parallelism": {"tensor": 1}}, "Use 4 NVIDIA H100 80GB (sm_90): `kubectl patch"),
        ("hf://meta-llama/Llama-3.1-8B-Instruct", "t4", {"parallelism": {"tensor": 1}}, "a 4-bit checkpoint of the same model"),
        (
            "hf://meta-llama/Llama-3.1-8B-Instruct",
            "l4",
            {"parallelism": {"tensor": 1}, "engine": {"version": "0.20.1", "args": [{"name": "--max-model-len", "value": "131072"}]}},
            "Set --max-model-len to ",
        ),
    ],
)
def test_what_surely_does_not_fit_is_refused_with_what_would(uri: str, kind: str, spec: dict[str, Any], said: str) -> None:
    reason, message = refusal(deployment(uri, **spec), real_node(kind))
    assert reason == "DoesNotFit"
    assert said in message
    assert message.endswith(
        'To start it anyway, set the annotation vllm-operator.dev/allow-unsupported to "true": it will probably crash and keep its GPUs.'
    )


def test_who_insists_gets_a_plan_with_a_warning() -> None:
    plan = made(deployment(DEEPSEEK, annotations=INSIST), real_node("gb10"))
    assert plan.notes[0].startswith("deepseek-ai/DeepSeek-V3 will probably run out of memory on NVIDIA GB10 (sm_121)")


def test_the_ways_out_name_another_gpu_of_the_cluster() -> None:
    request = deployment("hf://Qwen/Qwen3-32B", accelerator={"products": ["NVIDIA-L4"]}, parallelism={"tensor": 1})
    _, message = refusal(request, real_node("l4"), real_node("h200"))
    patch = '{"spec":{"accelerator":{"products":["NVIDIA-H200"]}}}'
    assert f"Use 1 NVIDIA H200 141GB (sm_90): `kubectl patch vllm demo -n default --type merge -p '{patch}'`" in message


def test_a_slice_that_is_too_small_names_one_that_is_not() -> None:
    request = deployment(accelerator={"mig": {"profile": "1g.10gb"}})
    _, message = refusal(request, real_node("h100-mig-mixed"))
    assert "1 MIG slice 3g.40gb of NVIDIA H100 80GB (sm_90)" in message


def test_a_context_that_does_not_fit_is_shortened_and_said() -> None:
    plan = made(deployment(parallelism={"tensor": 1}), real_node("l4"))
    length = int(flags(plan)["--max-model-len"] or 0)
    assert 4096 <= length < 131072
    assert f"the operator sets --max-model-len to {length}" in plan.notes[0]


def test_a_context_of_the_user_stays() -> None:
    args = [{"name": "--max-model-len", "value": "8k"}]
    plan = made(deployment(engine={"version": "0.20.1", "args": args}, parallelism={"tensor": 1}), real_node("l4"))
    assert "--max-model-len" not in flags(plan)


@pytest.mark.parametrize(
    ("sizing", "count", "length"),
    [
        (None, 4, None),
        ({"contextLength": 4096}, 4, "4096"),
        ({"contextLength": 8192, "concurrency": 32}, 4, "8192"),
        ({"contextLength": 8192, "concurrency": 64}, 8, "8192"),
        ({"concurrency": 4}, 4, None),
        ({"concurrency": 24}, 8, None),
    ],
)
def test_the_size_follows_from_the_context_and_the_requests_wanted(sizing: dict[str, int] | None, count: int, length: str | None) -> None:
    plan = made(deployment(LLAMA_70B, sizing=sizing), real_node("h100-sxm"))
    assert (plan.count, flags(plan).get("--max-model-len")) == (count, length)


def test_a_context_that_is_wanted_is_not_shortened() -> None:
    request = deployment(parallelism={"tensor": 1}, sizing={"contextLength": 131072})
    reason, message = refusal(request, real_node("l4"))
    assert reason == "DoesNotFit"
    assert "Lower spec.sizing.contextLength to " in message


def test_who_insists_on_more_requests_than_any_size_holds_is_told() -> None:
    plan = made(deployment(LLAMA_70B, sizing={"concurrency": 5000}, annotations=INSIST), real_node("h100-sxm"))
    assert plan.count == 8
    assert not any("smallest number" in note for note in plan.notes)
    assert re.match(r"On 8 NVIDIA H100 80GB \(sm_90\), the KV cache holds [0-9.]+ requests of 32768 tokens at a time", plan.notes[0])


def test_a_flag_of_the_user_goes_before_the_context_wanted() -> None:
    args = [{"name": "--max-model-len", "value": "4096"}]
    plan = made(deployment(sizing={"contextLength": 8192}, engine={"version": "0.20.1", "args": args}), real_node("l40s"))
    assert "--max-model-len" not in flags(plan)
    assert any("You set --max-model-len 4096, which replaces --max-model-len 8192." in note for note in plan.notes)


@pytest.mark.parametrize(("length", "said"), [("131072", False), ("131073", True), ("200k", True)])
def test_a_flag_for_a_context_longer_than_that_of_the_model_is_refused(length: str, said: bool) -> None:
    args = [{"name": "--max-model-len", "value": length}]
    outcome = planned(deployment(LLAMA_70B, engine={"version": "0.20.1", "args": args}), real_node("b200"))
    assert ("has 131072. Lower --max-model-len or spec.sizing.contextLength to 131072." in outcome.accepted.message) is said
    assert (outcome.plan is None) is said


@pytest.mark.parametrize(
    ("uri", "spec", "said"),
    [
        (DEEPSEEK, {}, True),
        (DEEPSEEK, {"parallelism": {"tensor": 8}}, False),  # the user chose
        (LLAMA_70B, {}, False),  # tensor parallelism divides its KV heads
    ],
)
def test_data_parallelism_is_suggested_where_each_gpu_would_keep_the_same_cache(uri: str, spec: dict[str, Any], said: bool) -> None:
    notes = made(deployment(uri, **spec), real_node("h200")).notes
    found = [note for note in notes if "spec.parallelism {tensor: 1, data: 8, expert: Enabled} they hold" in note]
    assert bool(found) is said
    for note in found:
        alone, together = (int(number) for number in re.findall(r"[0-9]{5,}", note))
        assert together > 3 * alone
        advised = made(deployment(uri, parallelism={"tensor": 1, "data": 8, "expert": "Enabled"}), real_node("h200"))
        assert advised.count == 8


def test_adapters_of_the_user_count() -> None:
    args = [{"name": "--enable-lora"}, {"name": "--max-loras", "value": "16"}, {"name": "--max-lora-rank", "value": "256"}]
    engines = ({"version": "0.20.1", "args": each} for each in ([], args))
    plain, adapted = (made(deployment(engine=each, parallelism={"tensor": 1}), real_node("h100-sxm")) for each in engines)
    assert plain.memory is not None
    assert adapted.memory is not None
    assert adapted.memory.weights_mebibytes > plain.memory.weights_mebibytes + 1024


def test_the_context_wanted_is_set_for_a_model_of_unknown_sizes() -> None:
    plan = made(deployment("hf://acme/unheard-of", sizing={"contextLength": 8192}), real_node("t4"))
    assert flags(plan)["--max-model-len"] == "8192"


def test_the_size_is_chosen_anew_when_something_else_is_wanted() -> None:
    node = real_node("h100-sxm")
    pinned = made(deployment(LLAMA_70B, sizing={"concurrency": 24}), node)
    assert made(deployment(LLAMA_70B, generation=2, sizing={"contextLength": 4096}), node, pinned=pinned).count == 4
    assert made(deployment(LLAMA_70B, generation=2, sizing={"concurrency": 24}), node, pinned=pinned).count == 8


@pytest.mark.parametrize("sizing", [{"contextLength": 8192}, {"concurrency": 24}, {"contextLength": 2048, "concurrency": 100}])
def test_a_plan_in_force_stays_with_what_was_wanted(sizing: dict[str, int]) -> None:
    request, node = deployment(LLAMA_70B, sizing=sizing), real_node("h100-sxm")
    pinned = made(request, node)
    outcome = planned(request, node, pinned=pinned)
    assert (outcome.plan, outcome.drift) == (pinned, ())


def test_a_gpu_of_unknown_memory_comes_after_one_that_is_large_enough() -> None:
    unknown = real_node("h200", "unknown", labels={"nvidia.com/gpu.product": "NVIDIA-Future", "nvidia.com/gpu.memory": None})
    assert made(deployment(), unknown, real_node("l40s")).product == "NVIDIA-L40S"
    alone = made(deployment(), unknown)
    assert any("unknown, so the operator cannot check whether" in note for note in alone.notes)


def test_a_model_of_unknown_size_is_not_refused() -> None:
    assert made(deployment("hf://acme/unheard-of"), real_node("t4")).count == 1


def test_a_model_whose_files_have_no_size_is_planned_with_a_warning() -> None:
    plan = made(deployment("hf://acme/own-70b"), real_node("t4"), files=ModelFiles(CONFIG))
    assert plan.notes[0].startswith("acme/own-70b will probably run out of memory")


def test_a_command_line_of_the_user_is_not_judged() -> None:
    template = {"spec": {"containers": [{"name": "vllm", "args": ["--model", "x"]}]}}
    assert made(deployment(DEEPSEEK, podTemplate=template), real_node("t4")).count == 1


@pytest.mark.parametrize("files", [ModelFiles(CONFIG, 141_107_396_608), ModelFiles()], ids=["with config.json", "without"])
def test_a_plan_in_force_keeps_its_size(files: ModelFiles) -> None:
    request, node = deployment("hf://acme/own-70b"), real_node("h100-sxm")
    pinned = made(request, node, files=ModelFiles(CONFIG, 141_107_396_608))
    assert pinned.count == 4
    outcome = planned(request, node, pinned=pinned, files=files)
    assert (outcome.plan, outcome.drift) == (pinned, ())


def test_an_upgrade_of_the_operator_does_not_resize_a_plan_in_force() -> None:
    request, node = deployment(LLAMA_70B), real_node("h100-sxm")
    sized = made(request, node)
    args = [argument for argument in sized.args if argument.name != "--tensor-parallel-size"]
    old = sized.model_copy(update={"count": 1, "args": args})
    assert planned(request, node, pinned=old).plan == old


def test_a_shortened_context_stays_in_force() -> None:
    request, node = deployment(parallelism={"tensor": 1}), real_node("l4")
    pinned = made(request, node)
    outcome = planned(request, node, pinned=pinned)
    assert (outcome.plan, outcome.drift) == (pinned, ())


def test_an_edit_of_the_spec_keeps_the_number_of_gpus() -> None:
    node = real_node("h100-sxm")
    pinned = made(deployment(parallelism={"tensor": 2}), node)
    assert made(deployment(generation=2), node, pinned=pinned).count == 2


def test_a_damaged_cache_keeps_the_size_in_its_key() -> None:
    request, node = deployment(LLAMA_70B), real_node("h100-sxm")
    pinned = made(request, node)
    assert "-tp4-" in made(request, node, pinned=pinned, cache_generation=1).cache_key


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ({}, {"max_length": None, "speculative": 0}),
        ({"--max-model-len": "32k"}, {"max_length": 32000}),
        ({"--max-model-len": "32K"}, {"max_length": 32768}),
        ({"--max-model-len": "auto"}, {"max_length": 0}),
        ({"--gpu-memory-utilization": "0.8", "--enforce-eager": None}, {"utilization": 0.8, "eager": True}),
        ({"--max-num-seqs": "64", "--max-num-batched-tokens": "4096"}, {"sequences": 64, "batched_tokens": 4096}),
        ({"--speculative-config": '{"method": "mtp", "num_speculative_tokens": 2}'}, {"speculative": 2, "own_draft_layers": True}),
        ({"--enable-lora": None}, {"adapters": 1, "adapter_rank": 16}),
        ({"--enable-lora": None, "--max-loras": "4", "--max-lora-rank": "64"}, {"adapters": 4, "adapter_rank": 64}),
        ({"--max-loras": "4"}, {"adapters": 0, "adapter_rank": 0}),
        ({"--skip-mm-profiling": None}, {"vision": True, "profiled_encoder": False}),
        ({"--language-model-only": None}, {"vision": False}),
        ({"--limit-mm-per-prompt": '{"image": 0, "video": 0}'}, {"vision": False}),
        ({"--limit-mm-per-prompt.image": "0", "--limit-mm-per-prompt.video": "0"}, {"vision": False}),
        ({"--limit-mm-per-prompt": '{"image": 0}'}, {"vision": True}),
        ({"--limit-mm-per-prompt": '{"image": 4, "video": 0}'}, {"vision": True}),
        ({"--limit-mm-per-prompt": "[0]"}, {"vision": True}),
        ({"--limit-mm-per-prompt": "{"}, {"vision": True}),
    ],
)
def test_flags_that_decide_about_memory(arguments: dict[str, str | None], want: dict[str, Any]) -> None:
    options = read_flags(arguments)
    assert options is not None
    assert {name: getattr(options, name) for name in want} == want


@pytest.mark.parametrize(
    "arguments",
    [
        {"--max-model-len": "long"},
        {"--hf-overrides": "{}"},
        {"--gpu-memory-utilization": "much"},
        {"--speculative-config": "{"},
        {"--speculative-config": '{"model": "acme/draft", "num_speculative_tokens": 5}'},
        {"--enable-lora": None, "--max-lora-rank": "much"},
    ],
)
def test_with_a_flag_that_is_not_understood_nothing_is_said_about_the_size(arguments: dict[str, str | None]) -> None:
    assert read_flags(arguments) is None
    args = [{"name": name, **({"value": value} if value is not None else {})} for name, value in arguments.items()]
    plan = made(deployment(DEEPSEEK, engine={"version": "0.20.1", "args": args}), real_node("t4"))
    assert plan.count == 1
