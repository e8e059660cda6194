"""What is certain to fail is refused with both numbers and a way out, in `plan` and in `fit` alike, and never decides about the GPU."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made, planned, refusal
from vllm_operator.__main__ import main
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.sizing.engine import read_flags
from vllm_operator.sizing.estimate import Estimate
from vllm_operator.sizing.model_facts import ModelFiles
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.sizing.resolve import device_of, predict_model, resolve_model

INPUTS = Path(__file__).parents[1] / "corpus" / "inputs"
FLEET = ("l4", "h100-sxm", "h200", "b200")
LLAMA_70B, QWEN_8B, MOE = "hf://meta-llama/Llama-3.3-70B-Instruct", "hf://Qwen/Qwen3-8B", "hf://Qwen/Qwen3-30B-A3B"
INSIST = {"vllm-operator.dev/allow-unsupported": "true"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 16,
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_attention_heads": 24,
    "num_key_value_heads": 24,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
LONG = {"version": "0.33.0", "args": [{"name": "max-model-len", "value": "1M"}]}


def flags(*words: str) -> dict[str, Any]:
    args = [{"name": name, "value": value} for name, value in zip(words[::2], words[1::2], strict=True)]
    return {"engine": {"version": "0.33.0", "args": args}}


def on_fleet(resource: VLLMDeployment, **options: Any) -> Any:
    return planned(resource, *map(real_node, FLEET), **options)


def fit(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["fit", *arguments])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.mark.parametrize(
    ("uri", "spec", "said"),
    [
        (LLAMA_70B, {"parallelism": {"tensor": 3}}, ("64 attention heads cannot be divided by 3", "tensor to 1, 2, 4 or 8. ")),
        (LLAMA_70B, {"accelerator": {"count": 3}}, ("64 attention heads cannot be divided by 3", "remove spec.parallelism and")),
        (LLAMA_70B, {"parallelism": {"tensor": 4}} | flags("--decode-context-parallel-size", "2"), ("needs 16 tensor-parallel ranks",)),
        ("hf://Qwen/Qwen2.5-7B-Instruct", {"parallelism": {"tensor": 7}}, ("4 KV heads cannot be divided by 7", "1, 2 or 4")),
        (MOE, {"parallelism": {"tensor": 1, "expert": "Enabled"}}, ()),
        (QWEN_8B, {"parallelism": {"tensor": 1, "expert": "Enabled"}}, ("no experts", "Remove expert parallelism")),
        (MOE, {"parallelism": {"data": 7, "tensor": 1}}, ("Experts of width 768 cannot be divided by 7", "Use expert parallelism")),
        (QWEN_8B, {"parallelism": {"pipeline": 64}}, ("36 layers cannot be spread over 64 stages",)),
        (QWEN_8B, {"engine": LONG}, ("a context of 1048576 tokens, since Qwen/Qwen3-8B has 40960", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")),
        (QWEN_8B, {"sizing": {"contextLength": 262144}}, ("a context of 262144 tokens", "spec.sizing.contextLength to 40960")),
        ("hf://Qwen/Qwen3-8B-FP8", {"sizing": {"contextLength": 262144}}, ("a context of 262144 tokens",)),
    ],
)
def test_what_vllm_refuses_by_the_models_configuration_is_refused(uri: str, spec: dict[str, Any], said: tuple[str, ...]) -> None:
    resource = deployment(uri, **spec)
    if not said:
        assert on_fleet(resource).plan is not None
        return
    for nodes in (FLEET, ()):  # a missing GPU is not what stands against it
        reason, message = refusal(resource, *map(real_node, nodes))
        assert reason == "Unsupported"
        assert [part for part in said if part not in message] == []
        assert message.endswith(
            'To start it anyway, set the annotation vllm-operator.dev/allow-unsupported to "true": it will probably crash and keep '
            "its GPUs."
        )
    assert planned(deployment(uri, annotations=INSIST, **spec), *map(real_node, FLEET)).accepted.reason == "Valid"


def test_a_vocabulary_is_divided_after_it_was_padded() -> None:
    resource = deployment("hf://acme/own", parallelism={"tensor": 3})
    reason, message = refusal(resource, real_node("h100-sxm"), files=ModelFiles(CONFIG))
    assert (reason, "A vocabulary of 151936 tokens cannot be divided by 3." in message) == ("Unsupported", True)
    even = {**CONFIG, "vocab_size": 151_873}  # with the padding, 151,872 + 64 would be even as well
    assert planned(resource, real_node("h100-sxm"), files=ModelFiles({**even, "vocab_size": 196_600})).plan is not None


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {**LONG, "env": [{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}]}},
        flags("--max-model-len", "1M", "--hf-overrides", '{"max_position_embeddings": 1048576}'),
        flags("--max-model-len", "auto"),
        flags("--max-model-len", "40960"),
    ],
)
def test_a_context_that_vllm_accepts_is_planned(spec: dict[str, Any]) -> None:
    assert on_fleet(deployment(QWEN_8B, **spec)).plan is not None


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": 8192, "seq_length": 4096}, 4096),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}, 32768),
    ],
)
def test_the_longest_context_is_that_of_vllm(config: dict[str, Any], longest: int) -> None:
    files = ModelFiles({**CONFIG, **config}, 2_000_000_000)
    own, longer = (deployment("hf://acme/own", sizing={"contextLength": longest + more}) for more in (0, 1))
    assert on_fleet(own, files=files).plan is not None
    assert f"since acme/own has {longest}." in on_fleet(longer, files=files).accepted.message


def test_a_similar_model_refuses_nothing() -> None:
    plan = made(deployment("hf://Qwen/Qwen2.5-7B", sizing={"contextLength": 131072}), real_node("h100-sxm"))
    assert any(argument.name == "--max-model-len" and argument.value == "131072" for argument in plan.args)


def test_requests_that_no_gpu_holds_are_refused_and_every_way_out_works() -> None:
    resource = deployment(QWEN_8B, sizing={"concurrency": 10000})
    outcome = on_fleet(resource)
    message = outcome.planned.message
    assert (outcome.plan, outcome.planned.reason) == (None, "DoesNotFit")
    assert re.search(r"10000 requests of 32768 tokens .* the most are [0-9.]+, on 8 NVIDIA B200", message)
    commands = [shlex.split(command) for command in re.findall(r"`(kubectl patch [^`]*)`", message)]
    assert len(commands) == 2
    for command in commands:
        change = json.loads(command[command.index("-p") + 1])["spec"]
        assert on_fleet(deployment(QWEN_8B, **change)).plan is not None


def test_requests_that_another_gpu_holds_are_refused_with_its_name() -> None:
    narrow = deployment(QWEN_8B, accelerator={"products": ["NVIDIA-L4"]}, sizing={"concurrency": 20})
    assert "use 1 NVIDIA H200 141GB (sm_90): `kubectl patch" in on_fleet(narrow).planned.message.replace("Use", "use")


def test_a_short_context_on_a_small_gpu_holds_no_requests_of_a_long_one() -> None:
    reason, message = refusal(deployment(QWEN_8B, accelerator={"count": 1}, sizing={"concurrency": 8}), real_node("l4"))
    assert (reason, "the most are 0." in message, "Lower spec.sizing to 1 request of " in message) == ("DoesNotFit", True, True)


def test_plan_and_fit_refuse_with_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    refused = on_fleet(deployment(QWEN_8B, engine=LONG)).accepted.message.partition(" To start it anyway")[0]
    status, page = fit(capsys, "Qwen/Qwen3-8B", "--context", "1M", "--gpu", "H100")
    assert (status, refused in " ".join(page.split())) == (1, True)
    rows = json.loads(fit(capsys, "Qwen/Qwen3-8B", "--context", "1M", "-o", "json")[1])["sizes"]
    assert {(row["outcome"], row["limit"]) for row in rows} == {("refused", refused)}
    line = {"model": "Qwen/Qwen3-8B", "gpu": "H100 80GB", "tp": 3, "vllm_version": "0.20.1"}
    divided = refusal(deployment(QWEN_8B, parallelism={"tensor": 3}), real_node("h100-sxm"))[1]
    assert divided.startswith(predicted(line)["limit"])


def predicted(line: dict[str, Any]) -> dict[str, Any]:
    from vllm_operator.cli.fit import estimate_lines, load_predictor

    return next(estimate_lines([json.dumps(line)], load_predictor()))


# Unknown sizes: the smallest GPU that may hold what the name or the files suggest, or a question.


@pytest.mark.parametrize(
    ("uri", "model", "chosen"),
    [
        ("hf://acme/secret-8B", {}, ("NVIDIA-L4", 1)),
        ("hf://acme/secret-32B-instruct", {}, ("NVIDIA-H100-80GB-HBM3", 1)),
        ("hf://acme/secret-32B-AWQ", {}, ("NVIDIA-L4", 1)),
        ("hf://acme/secret-70B", {}, ("NVIDIA-B200", 1)),
        ("hf://acme/secret-8x22B", {}, ("NVIDIA-H200", 4)),
        ("hf://acme/chat-235B-A22B", {}, ("NVIDIA-B200", 4)),
        ("pvc://models/in-house", {"facts": {"weightSize": "16Gi"}}, ("NVIDIA-L4", 1)),
        ("pvc://models/in-house", {"facts": {"weightSize": "300Gi"}}, ("NVIDIA-H200", 4)),
        ("hf://acme/secret", {}, "ModelSizeUnknown"),
        ("hf://acme/secret-1T", {}, "DoesNotFit"),
    ],
)
def test_an_unknown_size_takes_the_smallest_gpu_that_may_hold_it_or_asks(uri: str, model: dict[str, Any], chosen: Any) -> None:
    outcome = on_fleet(deployment(uri, model=model))
    if isinstance(chosen, str):
        assert (outcome.plan, outcome.planned.reason) == (None, chosen)
        assert "spec.model.facts.weightSize" in outcome.planned.message
        return
    assert outcome.plan is not None
    assert (outcome.plan.product, outcome.plan.count) == chosen
    tensor = [argument.value for argument in outcome.plan.args if argument.name == "--tensor-parallel-size"]
    assert tensor == ([str(chosen[1])] if chosen[1] > 1 else [])


@pytest.mark.parametrize("accelerator", [{"products": ["NVIDIA-H200"]}, {"architectures": ["sm_90"]}, {"policy": "MostCapable"}])
def test_who_names_the_gpu_of_an_unknown_model_is_not_asked(accelerator: dict[str, Any]) -> None:
    assert on_fleet(deployment("hf://acme/secret", accelerator=accelerator)).plan is not None


def test_the_files_say_more_than_the_name() -> None:
    plan = on_fleet(deployment("hf://acme/own-70B"), files=ModelFiles({"model_type": "brand_new"}, 9_000_000_000)).plan
    assert plan is not None
    assert plan.product == "NVIDIA-L4"


# Versions.


@pytest.mark.parametrize(
    ("given", "version", "noted"),
    [
        ("0.33", "0.33.0", "0.33 is not the full number of a release, so the operator uses vLLM 0.33.0"),
        ("v0.24", "0.24.0", "the newest release of 0.24"),
        ("0.20", "0.20.2", "so the operator uses vLLM 0.20.2"),
        ("0.33.0rc1", "0.33.0rc1", "vLLM 0.33.0rc1 is not in the catalog. The operator treats it like 0.33.0."),
        ("0.33.0.post1", "0.33.0.post1", "treats it like 0.33.0."),
        ("0.20.1.dev12", "0.20.1.dev12", "treats it like 0.20.0."),
        ("0.33.0rc1", "0.33.0rc1", "The image vllm/vllm-openai:v0.33.0rc1 is a guess"),
        ("0.34.0", "0.34.0", "The image vllm/vllm-openai:v0.34.0 is a guess"),
    ],
)
def test_a_version_is_a_release_or_its_note_says_so(given: str, version: str, noted: str) -> None:
    plan = made(deployment(QWEN_8B, engine={"version": given}), real_node("h100-sxm"))
    assert (plan.engine_version, [note for note in plan.notes if noted in note] != []) == (version, True)
    assert f":v{version}" in plan.image


def test_half_a_version_of_no_known_release_is_refused() -> None:
    reason, message = refusal(deployment(QWEN_8B, engine={"version": "0.99"}), real_node("h100-sxm"))
    assert (reason, message.startswith("0.99 is not a release of vLLM that the catalog knows: write all three")) == ("InvalidSpec", True)


def test_half_a_version_in_the_tag_of_an_image_keeps_the_image() -> None:
    plan = made(deployment(QWEN_8B, engine={"image": "vllm/vllm-openai:v0.24-cu129"}), real_node("h100-sxm"))
    assert (plan.image, plan.engine_version) == ("vllm/vllm-openai:v0.24-cu129", "0.24.0")


# `fit`.


@pytest.mark.parametrize("gpu", ["V100", "L40S"])
def test_fit_answers_every_spelling_alike(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    names = ("Qwen/Qwen3-32B", "hf://Qwen/Qwen3-32B", "Qwen3-32B", "qwen3-32b", "pvc://models/Qwen3-32B")
    answers = [json.loads(fit(capsys, name, "--gpu", gpu, "-o", "json")[1])["sizes"] for name in names]
    assert answers.count(answers[0]) == len(names)


def test_no_memory_is_less_than_none(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(fit(capsys, "moonshotai/Kimi-K2-Instruct", "-o", "json")[1])["sizes"]
    assert min(row["kvCacheGiB"] for row in rows) == 0


@pytest.mark.parametrize(("gpu", "most"), [("GB200", 4), ("GH200", 1)])
def test_more_gpus_than_a_node_has_are_told(capsys: pytest.CaptureFixture[str], gpu: str, most: int) -> None:
    rows = json.loads(fit(capsys, "Qwen/Qwen3-32B", "--gpu", gpu, "-o", "json")[1])["sizes"]
    assert {row["count"]: row["fits"] for row in rows} == {count: count <= most for count in (1, 2, 4, 8)}
    assert {row["limit"].partition(" GB")[0].partition(" GH")[0] for row in rows if not row["fits"]} == {f"A node has at most {most}"}


@pytest.mark.parametrize(
    ("model", "gpu", "advice"),
    [
        ("openai/gpt-oss-120b", "RTX 4060", "Its weights already have 4.5 bits. Use a smaller model"),
        ("deepseek-ai/DeepSeek-V4-Pro", "H100 PCIe 80GB", "Its weights already have 4"),
        ("deepseek-ai/DeepSeek-V3", "L40S", "(--quantization awq or nvfp4)"),
        ("meta-llama/Llama-3.1-405B-Instruct", "RTX 4060", "(--quantization fp8, awq or nvfp4)"),
    ],
)
def test_no_format_is_advised_that_the_checkpoint_has(capsys: pytest.CaptureFixture[str], model: str, gpu: str, advice: str) -> None:
    assert advice in " ".join(fit(capsys, model, "--gpu", gpu, "--version", "0.33.0")[1].split())


@pytest.mark.parametrize(("written", "tokens"), [("128k", 128_000), ("32K", 32_768), ("4096", 4096)])
def test_a_context_is_written_as_for_vllm(capsys: pytest.CaptureFixture[str], written: str, tokens: int) -> None:
    assert f"Context {tokens} tokens" in fit(capsys, "meta-llama/Llama-3.3-70B-Instruct", "--context", written, "--gpu", "H200")[1]


# What was reported: names, formats, abbreviations, images, other devices.


def plan_of(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> dict[str, Any]:
    nodes = tmp_path / "nodes.json"
    nodes.write_text(json.dumps({"kind": "List", "items": [real_node("h200")]}), "utf-8")
    main(["plan", *arguments, "--nodes", str(nodes), "-o", "json"])
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_a_tag_of_another_project_is_no_version_of_vllm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["import", str(INPUTS / "import-lmcache-tag.yaml")]) == 0
    captured = capsys.readouterr()
    assert "In a cluster, the operator reads the" in captured.err
    (tmp_path / "made.yaml").write_text(captured.out, "utf-8")
    accepted = plan_of(capsys, tmp_path, "-f", str(tmp_path / "made.yaml"))["result"]
    assert (accepted["reason"], "lmcache/vllm-openai:v0.4.2 is not a vLLM release" in accepted["message"]) == ("VersionUnknown", True)


def test_an_image_for_cpus_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    accepted = plan_of(capsys, tmp_path, "-f", str(INPUTS / "plan-cpu-image.yaml"))["result"]
    assert (accepted["reason"], "is for CPUs and has no CUDA build" in accepted["message"]) == ("Unsupported", True)


def test_an_abbreviated_flag_counts_as_the_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = plan_of(capsys, tmp_path, "-f", str(INPUTS / "plan-abbreviated-flag.yaml"))["plan"]
    assert plan["memory"]["kvCacheMebibytes"] == 8192
    assert not any("kv-cache-memory" in note for note in plan["notes"])


def test_a_name_of_the_log_is_the_format_of_the_checkpoint() -> None:
    (line,) = (INPUTS / "fit-format-name.jsonl").read_text("utf-8").splitlines()
    made = predicted(json.loads(line))
    assert (made["outcome"], made["weightsGiB"]) == ("started", pytest.approx(150, rel=0.05))


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi"])
def test_devices_of_others_are_refused(resource: str) -> None:
    template = {"spec": {"containers": [{"name": "vllm", "resources": {"limits": {resource: "1"}}}]}}
    reason, message = refusal(deployment(QWEN_8B, podTemplate=template), real_node("h100-sxm"))
    assert (reason, f"requests {resource}, which is for " in message) == ("Unsupported", True)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("zai-org/GLM-5", "glm-5"),
        ("zai-org/GLM-5.2-FP8", "glm-5"),
        ("zai-org/GLM-5.3-Flash", "glm-5-next"),
        ("zai-org/GLM-5-Air", None),
        ("zai-org/GLM-50", None),
        ("zai-org/GLM-4.7-Flash", "glm-4.7-flash"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1-distill"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
    ],
)
def test_the_name_of_a_family_is_matched_whole(name: str, family: str | None) -> None:
    found = load_catalog().models.find(name)
    assert (found.name if found is not None and found.name not in ("glm-4",) else None) == family


def test_a_name_decides_nothing_that_config_json_contradicts() -> None:
    config = {**CONFIG, "num_attention_heads": 24, "num_key_value_heads": 4, "model_type": "brand_new", "n_routed_experts": 64}
    plan = made(deployment("hf://zai-org/GLM-5"), real_node("h200"), files=ModelFiles(config, 60_000_000_000))
    facts = {fact.name: (fact.value, fact.source) for fact in plan.model_facts}
    assert (facts["attention"], facts["experts"]) == (("GQA", "config.json"), ("64", "config.json"))
    assert "mlaDims" not in facts


# Known trouble, and what takes memory.


@pytest.mark.parametrize(
    ("kind", "spec", "said", "wanted"),
    [
        ("rtx-pro-6000", {"parallelism": {"tensor": 2}}, "NCCL_P2P_DISABLE", True),
        ("rtx-pro-6000", {"parallelism": {"tensor": 1}}, "NCCL_P2P_DISABLE", False),
        ("h100-sxm", {"parallelism": {"tensor": 2}}, "NCCL_P2P_DISABLE", False),
        ("gb10", {}, "Set the flag to 0.85 or less", True),
        ("gb10", flags("--gpu-memory-utilization", "0.95"), "--gpu-memory-utilization 0.95 the engine also takes", True),
        ("gb10", flags("--gpu-memory-utilization", "0.8"), "Set the flag to 0.85 or less", False),
        ("h100-sxm", {}, "Set the flag to 0.85 or less", False),
    ],
)
def test_known_trouble_is_told_where_it_will_hit(kind: str, spec: dict[str, Any], said: str, wanted: bool) -> None:
    notes = made(deployment(QWEN_8B, **spec), real_node(kind)).notes
    assert any(said in note for note in notes) is wanted


def estimated(**speculative: Any) -> Estimate:
    catalog = load_catalog()
    model, options = resolve_model("Qwen/Qwen3-8B", catalog.shapes), read_flags({"--speculative-config": json.dumps(speculative)})
    assert model is not None
    assert options is not None
    product = catalog.gpus.product("NVIDIA-H100-80GB-HBM3")
    device = device_of(product, "sm_90", None, catalog.gpus, catalog.memory)
    return predict_model(model, ParallelShape(), device, options, catalog.memory, (0, 33, 0))


def test_the_layers_of_a_draft_take_memory() -> None:
    none = estimated(method="ngram", num_speculative_tokens=3)
    eagle = estimated(method="eagle3", model="acme/Qwen3-8B-EAGLE3", num_speculative_tokens=3)
    block = estimated(method="dflash", model="z-lab/Qwen3-8B-DFlash-b16")
    named = estimated(model="acme/Qwen3-8B-eagle3", num_speculative_tokens=3)
    sizes = [each.weights or 0.0 for each in (none, eagle, block)]
    assert sizes == sorted(set(sizes))
    assert named.weights == eagle.weights
    assert (block.tokens or 0) < (eagle.tokens or 0) < (none.tokens or 0)


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "dspark"])
def test_a_draft_in_the_checkpoint_takes_its_own_layers(method: str) -> None:
    options = read_flags({"--speculative-config": json.dumps({"method": method, "num_speculative_tokens": 2})})
    assert options is not None
    assert (options.speculative, options.own_draft_layers, options.eagle) == (2, True, 0)


def test_a_plan_has_every_object_that_the_spec_asks_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = {
        "model": {"uri": QWEN_8B},
        "networkPolicy": {},
        "gateway": {"parentRefs": [{"name": "public"}], "inferencePool": {"endpointPicker": {"name": "picker"}}},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 4},
    }
    manifest = {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "metadata": {"name": "chat"}, "spec": spec}
    (tmp_path / "chat.json").write_text(json.dumps(manifest), "utf-8")
    manifests = plan_of(capsys, tmp_path, "-f", str(tmp_path / "chat.json"))["manifests"]
    optional = {"NetworkPolicy", "InferencePool", "HTTPRoute", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    assert {each["kind"] for each in manifests} - {"PersistentVolumeClaim", "Service", "Deployment"} == optional
