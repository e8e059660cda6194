"""From a spec and nodes to a plan: every step, what the user overrides, and how a plan is kept."""

import json
import time
from typing import Any

import pytest

from support.gpus import KINDS, real_node
from support.plans import deployment, known, made, planned, refusal
from vllm_operator.api.plan import Plan
from vllm_operator.catalog.versions import load_engine_facts
from vllm_operator.hub.client import slim
from vllm_operator.sizing.model_facts import ModelFiles

MIG_UUID = "MIG-8949ea7d-9166-53ce-9bac-6c58262addf9"
DEEPSEEK = "hf://deepseek-ai/DeepSeek-V3"
SMALL = "hf://Qwen/Qwen3-0.6B"
OWN_IMAGE = "registry.example/own/vllm:0.20.1"


def args(made_plan: Plan) -> dict[str, str | None]:
    return {argument.name: argument.value for argument in made_plan.args}


def env(made_plan: Plan) -> dict[str, str]:
    return {variable.name: variable.value for variable in made_plan.env}


# The model and the flags that follow from the spec.


@pytest.mark.parametrize(
    ("uri", "model", "want", "served"),
    [
        ("hf://meta-llama/Llama-3.1-8B", {}, "meta-llama/Llama-3.1-8B", None),
        ("hf://meta-llama/Llama-3.1-8B", {"servedName": "llama"}, "meta-llama/Llama-3.1-8B", "llama"),
        ("pvc://models/llama/8b", {}, "/models/llama/8b", "models/llama/8b"),
        ("pvc://models/llama/8b/", {"servedName": "llama"}, "/models/llama/8b", "llama"),
        ("pvc://models", {}, "/models", "models"),
    ],
)
def test_the_model_as_the_engine_takes_it(uri: str, model: dict[str, Any], want: str, served: str | None) -> None:
    got = made(deployment(uri, model=model), real_node("h200"))
    assert (got.model, args(got).get("--served-model-name")) == (want, served)


def test_a_model_with_several_names_answers_to_all_of_them() -> None:
    def names(**model: Any) -> list[str] | None:
        got = made(deployment("hf://meta-llama/Llama-3.1-8B", model=model), real_node("h200"))
        return next(each.values for each in got.args if each.name == "--served-model-name")

    assert names(aliases=["old", "older"]) == ["meta-llama/Llama-3.1-8B", "old", "older"]
    assert names(servedName="llama", aliases=["old", "llama"]) == ["llama", "old"]


def test_parallelism_becomes_flags() -> None:
    parallelism = {"tensor": 2, "pipeline": 2, "data": 2, "expert": "Enabled"}
    got = made(deployment(DEEPSEEK, parallelism=parallelism), real_node("h200"))
    assert got.count == 8
    flags = args(got)
    assert [flags[f"--{name}-parallel-size"] for name in ("tensor", "pipeline", "data")] == ["2", "2", "2"]
    assert "--enable-expert-parallel" in flags


def test_all_gpus_that_are_asked_for_are_used() -> None:
    got = made(deployment(accelerator={"count": 4}), real_node("h200"))
    assert (got.count, args(got)["--tensor-parallel-size"]) == (4, "4")
    assert any("parallelism.tensor is not set" in note for note in got.notes)


def test_gpus_that_stay_idle_are_noted() -> None:
    got = made(deployment(accelerator={"count": 4}, parallelism={"tensor": 2}), real_node("h200"))
    assert any("2 stay idle" in note for note in got.notes)


@pytest.mark.parametrize(
    ("spec", "reason", "want"),
    [
        ({"accelerator": {"count": 2}, "parallelism": {"tensor": 4}}, "InvalidSpec", "needs 4 GPUs"),
        (
            {"accelerator": {"mig": {"profile": "1g.10gb"}}, "parallelism": {"tensor": 2}},
            "InvalidSpec",
            "do not work with MIG slices",
        ),
        ({"engine": {"image": "vllm/vllm-openai:latest"}}, "VersionUnknown", "spec.engine.version"),
        ({"podTemplate": {"containers": []}}, "InvalidSpec", "only metadata and spec"),
    ],
)
def test_a_spec_that_cannot_be_used_is_not_accepted(spec: dict[str, Any], reason: str, want: str) -> None:
    got, message = refusal(deployment(**spec), real_node("h200"))
    assert got == reason
    assert want in message
    outcome = planned(deployment(**spec), real_node("h200"))
    assert outcome.planned.reason == "NotAccepted"
    assert f"not accepted ({reason})" in outcome.planned.message


# What is known to fail.


def visible(value: str | None) -> dict[str, Any]:
    source = {"value": value} if value is not None else {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpu']"}}}
    return {
        "engine": {"version": "0.20.1", "env": [{"name": "CUDA_VISIBLE_DEVICES", **source}]},
        "accelerator": {"mig": {"profile": "1g.10gb"}},
    }


def test_a_mig_uuid_that_the_version_crashes_on_is_refused() -> None:
    reason, message = refusal(deployment(SMALL, **visible(MIG_UUID)), real_node("h100-mig-single"))
    assert reason == "Unsupported"
    assert "CUDA_VISIBLE_DEVICES" in message
    assert "vllm-operator.dev/allow-unsupported" in message


def test_who_insists_gets_the_mig_uuid_and_a_note() -> None:
    request = deployment(SMALL, annotations={"vllm-operator.dev/allow-unsupported": "true"}, **visible(MIG_UUID))
    got = made(request, real_node("h100-mig-single"))
    assert "CUDA_VISIBLE_DEVICES" not in env(got)
    assert any("CUDA_VISIBLE_DEVICES" in note for note in got.notes)


@pytest.mark.parametrize("value", ["0", "0,1", None])
def test_indices_and_values_from_elsewhere_are_not_refused(value: str | None) -> None:
    assert made(deployment(SMALL, **visible(value)), real_node("h100-mig-single")).count == 1


def test_a_gpu_that_the_model_does_not_run_on_is_passed_over() -> None:
    order = {"architectures": ["sm_90", "sm_120"]}
    request = deployment("hf://nvidia/Qwen3-30B-A3B-NVFP4", engine={"version": "0.14.0"}, accelerator=order)
    assert refusal(request, real_node("h200"))[0] == "Unsupported"
    got = made(request, real_node("h200"), real_node("rtx-pro-6000"))
    assert got.architecture == "sm_120"
    assert any(note.startswith("NVIDIA H200 141GB (sm_90) comes first in the order of GPUs, but cannot be used:") for note in got.notes)


def test_a_gpu_of_which_nothing_is_known_is_no_way_around_what_is_known_to_fail() -> None:
    request = deployment("hf://nvidia/Qwen3-30B-A3B-NVFP4", engine={"version": "0.14.0"})
    assert refusal(request, real_node("h200"), real_node("nfd-only"))[0] == "Unsupported"


# The user wins.


def test_a_variable_of_the_user_beats_ours_and_the_plan_says_so() -> None:
    request = deployment(
        engine={"version": "0.20.1", "env": [{"name": "HF_HOME", "value": "/mine"}, {"name": "TRITON_CACHE_DIR", "value": "/cache/triton"}]}
    )
    got = made(request, real_node("h200"))
    assert not {"HF_HOME", "TRITON_CACHE_DIR"} & env(got).keys()
    notes = [note for note in got.notes if note.startswith("You set")]
    assert len(notes) == 1
    assert "HF_HOME to '/mine'" in notes[0]


def test_the_pod_template_beats_ours_too() -> None:
    template = {"spec": {"containers": [{"name": "vllm", "env": [{"name": "HF_HOME", "value": "/mine"}]}]}}
    assert "HF_HOME" not in env(made(deployment(podTemplate=template), real_node("h200")))


def test_the_image_of_the_pod_template_is_the_one_that_runs() -> None:
    template = {"spec": {"containers": [{"name": "vllm", "image": "registry.example/vllm-openai:v0.24.0", "args": ["--help"]}]}}
    got = made(deployment(podTemplate=template), real_node("b200"))
    assert (got.image, got.engine_version) == ("registry.example/vllm-openai:v0.24.0", "0.20.1")
    assert any("the image tag is 0.24.0" in note for note in got.notes)
    assert any("replaces the command line" in note for note in got.notes)


def test_only_nodes_with_the_labels_of_the_pod_template_count() -> None:
    def request(value: str) -> Any:
        return deployment(podTemplate={"spec": {"nodeSelector": {"team": value}}})

    nodes = (real_node("b200", labels={"team": "a"}), real_node("h200", labels={"team": "b"}))
    assert made(request("b"), *nodes).product == "NVIDIA-H200"
    assert made(request("a"), *nodes).product == "NVIDIA-B200"
    message = refusal(request("c"), *nodes)[1]
    assert "Each replica needs 1 GPU on nodes with labels team=c, and no node has one." in message
    assert "do not have the labels in spec.podTemplate.spec.nodeSelector" in message


def test_the_labels_of_the_pod_template_are_to_blame_only_for_nodes_that_would_do() -> None:
    request = deployment(accelerator={"architectures": ["sm_121"]}, podTemplate={"spec": {"nodeSelector": {"kubernetes.io/arch": "amd64"}}})
    assert "do not have the labels in spec.podTemplate.spec.nodeSelector" in refusal(request, real_node("gb10"), real_node("h200"))[1]
    assert "Add sm_90 to spec.accelerator.architectures" in refusal(request, real_node("h200"))[1]


def test_a_null_in_the_pod_template_asks_for_no_label_and_gives_no_value() -> None:
    variable = {"name": "HF_HOME", "value": None}
    template = {"spec": {"nodeSelector": {"team": None}, "containers": [{"name": "vllm", "env": [variable]}]}}
    got = made(deployment(podTemplate=template), real_node("h200"))
    assert got.product == "NVIDIA-H200"
    assert any("You set HF_HOME to ''" in note for note in got.notes)


def test_thousands_of_unknown_names_are_counted_and_only_some_are_named() -> None:
    env = [{"name": f"VLLM_USE_FLASHINFR_MOE_{number}", "value": "1"} for number in range(3000)]
    template = {"spec": {"containers": [{"name": "vllm", "env": env}]}}
    began = time.perf_counter()
    notes = made(deployment(podTemplate=template), real_node("b200")).notes
    assert time.perf_counter() - began < 5
    assert any("does not know 2984 more variables and flags." in note for note in notes)


def test_a_config_of_wild_texts_and_numbers_is_planned_with() -> None:
    config = slim(json.loads(f'{{"model_type": "\\ud800\\u0000x", "num_attention_heads": 1{"0" * 4000}, "num_experts": 7}}'))
    facts = {fact.name: fact.value for fact in made(deployment(), real_node("b200"), files=ModelFiles(config)).model_facts}
    assert (facts["modelType"], facts["experts"]) == ("??x", "7")
    assert "attentionHeads" not in facts


def test_names_that_the_version_does_not_know_are_noted() -> None:
    engine = {"image": OWN_IMAGE, "env": [{"name": "VLLM_USE_V1", "value": "1"}], "args": [{"name": "no-such-flag"}]}
    notes = made(deployment(engine=engine), real_node("b200")).notes
    assert "does not know the flag --no-such-flag and does not start with it, unless a plugin in the image adds the flag." in notes[0]
    assert "does not know the variable VLLM_USE_V1, so it has no effect." in notes[1]
    assert "Did you mean" not in notes[0] + notes[1]


def test_a_name_that_is_misspelled_is_noted_with_the_one_that_was_meant() -> None:
    engine = {"image": OWN_IMAGE, "env": [{"name": "VLLM_USE_DEEPGEMM", "value": "0"}], "args": [{"name": "max-model-length"}]}
    notes = " ".join(made(deployment(engine=engine), real_node("b200")).notes)
    assert "VLLM_USE_DEEPGEMM, so it has no effect. Did you mean VLLM_USE_DEEP_GEMM?" in notes
    assert "Did you mean --max-model-len?" in notes


def test_a_flag_that_the_version_does_not_know_is_refused_in_an_image_of_the_vllm_project() -> None:
    engine = {"version": "0.20.1", "args": [{"name": "max-model-length", "value": "4096"}]}
    reason, message = refusal(deployment(engine=engine), real_node("b200"))
    assert reason == "Unsupported"
    assert message.startswith(
        "vLLM 0.20.1 does not know the flag --max-model-length and does not start with it. Did you mean --max-model-len?"
    )
    insisted = deployment(engine=engine, annotations={"vllm-operator.dev/allow-unsupported": "true"})
    assert "--max-model-length" in made(insisted, real_node("b200")).notes[0]


@pytest.mark.parametrize(
    "engine",
    [
        {"version": "0.20.3"},
        {"version": "0.99.0"},
        {"version": "0.10.0"},
        {"image": "registry.example/own/vllm:0.20.1"},
        {"version": "0.20.1", "distribution": "nvLLM"},
    ],
    ids=["a version in between", "a newer version", "an older version", "an image of the user", "a fork"],
)
def test_a_flag_is_not_refused_where_the_catalog_cannot_be_sure(engine: dict[str, Any]) -> None:
    engine = {**engine, "args": [{"name": "no-such-flag"}]}
    assert made(deployment(engine=engine), real_node("gb10")).count == 1


@pytest.mark.parametrize("version", ["0.8.5", "0.9.2", "0.10.2"])
def test_a_version_older_than_the_catalog_gets_only_the_flags_of_the_spec(version: str) -> None:
    plan = made(deployment(engine={"version": version}, parallelism={"tensor": 2}), real_node("h200"))
    assert {arg.name for arg in plan.args} <= {"--port", "--served-model-name", "--tensor-parallel-size"}


def test_the_beginning_of_several_flags_and_a_field_of_its_json_are_noted_and_not_refused() -> None:
    given = [{"name": "max-num", "value": "4096"}, {"name": "attention-config", "value": '{"no_such": 1}'}]
    notes = made(deployment(engine={"version": "0.20.1", "args": given}), real_node("b200")).notes
    assert "--max-num " in notes[0]
    assert "--attention-config.no_such" in notes[1]


@pytest.mark.parametrize(
    ("version", "engine", "said"),
    [
        ("0.24.0", {"env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}]}, "Use spec.backends.attention instead."),
        ("0.33.0", {"env": [{"name": "VLLM_USE_FLASHINFER_MOE_FP8", "value": "1"}]}, "Use spec.backends.moe instead."),
        (
            "0.22.0",
            {"args": [{"name": "attention-config", "value": '{"use_cudnn_prefill": true}'}]},
            "Use spec.backends.mlaPrefill instead.",
        ),
        ("0.20.1", {"args": [{"name": "attention-config", "value": '{"no_such": [1]}'}]}, "the flag --attention-config.no_such"),
    ],
)
def test_what_is_gone_is_noted_with_what_took_its_place(version: str, engine: dict[str, Any], said: str) -> None:
    assert said in " ".join(made(deployment(engine={"version": version, **engine}), real_node("b200")).notes)


@pytest.mark.parametrize("value", ["", "{", "[1]", "{1: 2}", "9" * 5000, "{" * 5000])
def test_json_that_is_none_is_left_to_vllm(value: str) -> None:
    engine = {"version": "0.24.0", "args": [{"name": "attention-config", "value": value}]}
    assert not any("attention-config" in note for note in made(deployment(engine=engine), real_node("b200")).notes)


def test_what_is_not_known_of_a_model_is_said_with_how_to_give_it() -> None:
    notes = made(deployment("hf://someone/something"), real_node("b200")).notes
    assert any("are unknown" in note and "spec.model.facts.quantization" in note for note in notes)
    assert not any("are unknown" in note for note in made(deployment("hf://Qwen/Qwen3-8B"), real_node("b200")).notes)


def test_a_replacement_is_named_only_for_what_some_version_does_not_know() -> None:
    tables = known().versions.tables
    for name in load_engine_facts().replacements:
        knows = [table.knows_flag(name) if name.startswith("--") else table.knows_variable(name) for table in tables]
        assert any(knows), f"{name} was never known"
        assert not all(knows), f"{name} is still known"


def test_a_forced_backend_is_the_users_choice() -> None:
    got = made(deployment("hf://Qwen/Qwen3-30B-A3B", backends={"moe": "TRITON"}, engine={"version": "0.24.0"}), real_node("h200"))
    moe = next(choice for choice in got.backends if choice.component == "MoE")
    assert (moe.backend, moe.chosen_by) == ("TRITON", "User")


# Nothing restarts unasked.


def test_a_plan_in_force_stays_as_it_is() -> None:
    pinned = made(deployment(), real_node("h200"))
    outcome = planned(deployment(), real_node("h200"), pinned=pinned)
    assert outcome.plan == pinned
    assert (outcome.planned.reason, outcome.drift) == ("Planned", ())


def test_what_would_be_chosen_otherwise_today_is_reported() -> None:
    fresh = made(deployment(), real_node("h200"))
    pinned = fresh.model_copy(update={"catalog_version": "old", "image": "vllm/vllm-openai:v0.19.0", "env": fresh.env[1:]})
    outcome = planned(deployment(), real_node("h200"), pinned=pinned)
    assert outcome.plan == pinned
    assert (str(outcome.planned.status), outcome.planned.reason) == ("True", "PlanDrifted")
    assert "The image would change from vllm/vllm-openai:v0.19.0 to vllm/vllm-openai:v0.20.1-cu129." in outcome.drift
    assert "vllm-operator.dev/replan" in outcome.planned.message


def test_a_plan_that_stays_in_force_although_none_is_possible_today_says_so_in_few_words() -> None:
    resource = deployment(accelerator={"products": ["NVIDIA-H200"]})
    pinned = made(resource, real_node("h200"))
    others = [real_node(kind) for kind in KINDS if kind != "h200"]
    outcome = planned(resource, *others, pinned=pinned)
    assert outcome.plan == pinned
    assert (str(outcome.planned.status), outcome.planned.reason) == ("True", "PlanDrifted")
    message = outcome.planned.message
    assert message.startswith(
        "Planned for NVIDIA H200 141GB (sm_90), 1 GPU per replica, vLLM 0.20.1. The current plan stays. A new plan is not possible now:"
    )
    assert "replan" not in message, "a new plan would stop the Pods"
    assert len(message) <= 500


def test_a_new_catalog_that_decides_alike_is_not_worth_a_word() -> None:
    pinned = made(deployment(), real_node("h200")).model_copy(update={"catalog_version": "old"})
    assert planned(deployment(), real_node("h200"), pinned=pinned).drift == ()


def test_a_plan_in_force_survives_nodes_that_go_away() -> None:
    pinned = made(deployment(), real_node("h200"))
    outcome = planned(deployment(), real_node("h200", cordoned=True), pinned=pinned)
    assert outcome.plan == pinned
    assert "it is cordoned" in outcome.drift[0]


def test_scaling_makes_no_new_plan_however_much_is_known_anew() -> None:
    pinned = made(deployment(), real_node("h200")).model_copy(update={"image": "old"})
    assert made(deployment(generation=2, replicas=5), real_node("h200"), pinned=pinned) == pinned
    before_there_were_digests = pinned.model_copy(update={"spec_digest": None})
    assert made(deployment(generation=2, replicas=5), real_node("h200"), pinned=before_there_were_digests).image != "old"


@pytest.mark.parametrize("change", [{"generation": 2, "service": {"port": 80}}, {"annotations": {"vllm-operator.dev/replan": "now"}}])
def test_a_changed_spec_or_a_wish_brings_a_new_plan(change: dict[str, Any]) -> None:
    pinned = made(deployment(), real_node("h200")).model_copy(update={"image": "old"})
    outcome = planned(deployment(**change), real_node("h200"), pinned=pinned)
    assert outcome.plan is not None
    assert outcome.plan.image == "vllm/vllm-openai:v0.20.1-cu129"
    assert outcome.plan.replan_token == (change.get("annotations") or {}).get("vllm-operator.dev/replan")


def test_a_wish_that_is_taken_back_brings_no_new_plan() -> None:
    """Flux removes what kubectl wrote; that would restart the Pods once more."""
    asked = deployment(annotations={"vllm-operator.dev/replan": "now"})
    pinned = made(asked, real_node("h200")).model_copy(update={"image": "old"})
    assert made(deployment(), real_node("h200"), pinned=pinned) == pinned
    assert made(asked, real_node("h200"), pinned=pinned) == pinned


def test_a_changed_spec_does_not_move_the_replicas_to_another_gpu() -> None:
    pinned = made(deployment(), real_node("h200"))
    nodes = (real_node("h200"), real_node("h100-sxm"))
    assert made(deployment(generation=2, service={"port": 80}), *nodes, pinned=pinned).product == "NVIDIA-H200"
    asked = deployment(generation=2, annotations={"vllm-operator.dev/replan": "1"})
    assert made(asked, *nodes, pinned=pinned).product == "NVIDIA-H100-80GB-HBM3"


def test_a_damaged_cache_is_quarantined_without_a_new_plan() -> None:
    pinned = made(deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb"}}), real_node("h100-mig-single"))
    fresh = made(deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb"}}), real_node("h100-mig-single"), cache_generation=1)
    kept = made(
        deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb"}}), real_node("h100-mig-single"), pinned=pinned, cache_generation=1
    )
    assert kept.cache_key == fresh.cache_key != pinned.cache_key
    assert (
        planned(
            deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb"}}), real_node("h100-mig-single"), pinned=kept, cache_generation=1
        ).plan
        == kept
    )


# Messages, stability, speed.


def test_the_message_says_it_in_one_line() -> None:
    outcome = planned(deployment(DEEPSEEK, parallelism={"tensor": 8}), real_node("h200"))
    assert outcome.planned.message.startswith("Planned for NVIDIA H200 141GB (sm_90), 8 GPUs per replica, vLLM 0.20.1.")
    sliced = planned(deployment(SMALL, accelerator={"mig": {"profile": "1g.10gb"}}), real_node("h100-mig-single"))
    assert "1 MIG slice 1g.10gb per replica" in sliced.planned.message


@pytest.mark.parametrize(
    ("uri", "least", "most"),
    [
        ("hf://deepseek-ai/DeepSeek-V4-Flash", 160, 200),
        ("hf://nvidia/Gemma-4-31B-IT-NVFP4", 40, 60),
        ("hf://deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", 20, 30),
    ],
)
def test_the_volume_of_the_weights_holds_what_the_estimate_says(uri: str, least: int, most: int) -> None:
    """The family says no number of parameters, or that of another size."""
    got = made(deployment(uri, engine={"version": "0.33.0"}), real_node("h200"))
    assert got.weights.volume_size
    assert least <= int(got.weights.volume_size.removesuffix("Gi")) <= most
    assert not any("size of the weights is unknown" in note for note in got.notes)


def test_the_volume_of_the_weights_follows_a_config() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }
    got = made(deployment("hf://acme/large", engine={"version": "0.33.0"}), real_node("h200"), files=ModelFiles(config=config))
    assert got.weights.volume_size == "170Gi"


def test_other_products_are_offered_by_what_they_can_do_and_not_by_how_they_are_spelled() -> None:
    asked = deployment(accelerator={"products": ["NVIDIA-GB200"], "count": 4})
    message = planned(asked, real_node("gb10"), real_node("h100-sxm"), real_node("b200"), real_node("rtx-pro-6000")).planned.message
    assert "(label nvidia.com/gpu.product: NVIDIA-B200, NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition, NVIDIA-H100-80GB-HBM3)" in message
    misspelled = deployment(accelerator={"products": ["NVIDIA-H100-80GB-HBM"]})
    message = planned(misspelled, real_node("gb10"), real_node("h100-sxm"), real_node("b200")).planned.message
    assert "(label nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3, NVIDIA-B200, NVIDIA-GB10)" in message


def test_more_gpus_than_a_node_has_are_not_to_be_added() -> None:
    asked = deployment("hf://meta-llama/Llama-3.3-70B-Instruct", parallelism={"tensor": 16})
    message = planned(asked, real_node("h100-sxm")).planned.message
    assert "A Pod has at most as many GPUs as a node" in message
    assert "add nodes with 16" not in message
