"""Each way in the message DoesNotFit is a command; who runs it gets a plan without a warning about the size."""

import json
import re
import shlex
from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, planned, refusal
from vllm_operator.api.resource import VLLMDeployment

LLAMA_8B, LLAMA_70B, QWEN_30B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-30B-A3B"
LONG = [{"name": "--enable-prefix-caching"}, {"name": "max_model_len", "value": "131072"}]


def commands(message: str) -> list[str]:
    return re.findall(r"`(kubectl patch [^`]*)`", message)


def merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            kept.pop(name, None)
        else:
            kept[name] = merged(kept.get(name), change)
    return kept


def patched(resource: VLLMDeployment, command: str) -> VLLMDeployment:
    words = shlex.split(command)
    patch = json.loads(words[words.index("-p") + 1])
    manifest: dict[str, Any] = {"metadata": {"name": "demo", "generation": 2}, "spec": resource.spec.to_json()}
    if words[words.index("--type") + 1] == "merge":
        return VLLMDeployment.parse(merged(manifest, patch))
    for operation in patch:
        *path, last = operation["path"].removeprefix("/").split("/")
        at: Any = manifest
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key = int(last) if isinstance(at, list) else last
        if operation["op"] == "test":
            assert at[key] == operation["value"]
        elif operation["op"] == "remove":
            del at[key]
        elif isinstance(at, list) and operation["op"] == "add":
            at.insert(key, operation["value"])
        else:
            at[last] = operation["value"]
    return VLLMDeployment.parse(manifest)


CASES: list[tuple[str, str, tuple[str, ...], dict[str, Any], int]] = [
    ("more of the same GPU", LLAMA_70B, ("h100-sxm",), {"parallelism": {"tensor": 1}}, 1),
    ("more GPUs than the count", LLAMA_70B, ("h100-sxm",), {"accelerator": {"count": 1}}, 1),
    ("another size of all", LLAMA_70B, ("h100-sxm",), {"parallelism": {"tensor": 1, "data": 2, "expert": "Disabled"}}, 1),
    ("another GPU", "Qwen/Qwen3-32B", ("l4", "h200"), {"accelerator": {"products": ["NVIDIA-L4"]}, "parallelism": {"tensor": 1}}, 2),
    ("another architecture", "Qwen/Qwen3-32B", ("t4", "h200"), {"accelerator": {"architectures": ["sm_75"]}}, 1),
    ("a larger slice", LLAMA_8B, ("h100-mig-mixed",), {"accelerator": {"mig": {"profile": "1g.10gb"}}}, 1),
    ("whole GPUs in place of small slices", LLAMA_70B, ("h100-mig-mixed", "b200"), {"accelerator": {"mig": {"mode": "Enabled"}}}, 1),
    ("whole GPUs", LLAMA_70B, ("h100-mig-mixed", "b200"), {"accelerator": {"mig": {"profile": "3g.40gb"}}}, 1),
    ("a shorter context by flag", LLAMA_8B, ("l4",), {"parallelism": {"tensor": 1}, "engine": {"version": "0.20.1", "args": LONG}}, 1),
    ("a shorter context", LLAMA_8B, ("l4",), {"accelerator": {"count": 1}, "sizing": {"contextLength": 131072}}, 1),
    ("a quantized checkpoint", QWEN_30B, ("l40s",), {"accelerator": {"count": 1}}, 2),
]


@pytest.mark.parametrize(("model", "machines", "spec", "least"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_who_does_what_the_message_says_gets_a_plan(model: str, machines: tuple[str, ...], spec: dict[str, Any], least: int) -> None:
    request, nodes = deployment(f"hf://{model}", **spec), [real_node(machine) for machine in machines]
    reason, message = refusal(request, *nodes)
    assert reason == "DoesNotFit"
    found = commands(message)
    assert len(found) >= least, message
    for command in found:
        outcome = planned(patched(request, command), *nodes)
        assert outcome.plan is not None, (command, outcome.planned.message)
        assert not [note for note in outcome.plan.notes if "memory" in note or "near the limit" in note], command


SIZES: list[tuple[str, str, tuple[str, ...], dict[str, Any], str, dict[str, Any] | None]] = [
    (
        "fewer GPUs that the model can be divided by",
        LLAMA_8B,
        ("h100-x7",),
        {"parallelism": {"tensor": 8}},
        "Lower spec.parallelism or spec.accelerator.count to 4 GPUs, or add nodes with 8 GPUs.",
        {"parallelism": {"tensor": 4}},
    ),
    (
        "no size of one node holds the model",
        "deepseek-ai/DeepSeek-V3",
        ("h100-x7",),
        {"parallelism": {"tensor": 8}},
        "Add nodes with 8 GPUs.",
        None,
    ),
    (
        "several nodes, which there are not",
        LLAMA_70B,
        ("h100-sxm",),
        {"parallelism": {"tensor": 16}},
        "A Pod has at most as many GPUs as a node. Lower spec.parallelism or spec.accelerator.count to 8 GPUs.",
        {"parallelism": {"tensor": 8}},
    ),
]


@pytest.mark.parametrize(("model", "machines", "spec", "said", "instead"), [case[1:] for case in SIZES], ids=[case[0] for case in SIZES])
def test_a_number_of_gpus_that_a_message_names_gets_a_plan(
    model: str, machines: tuple[str, ...], spec: dict[str, Any], said: str, instead: dict[str, Any] | None
) -> None:
    nodes = [machine(name) for name in machines]
    reason, message = refusal(deployment(f"hf://{model}", **spec), *nodes)
    assert reason == "NoMatchingGPU"
    assert message.endswith(said), message
    if instead is not None:
        assert planned(deployment(f"hf://{model}", **instead), *nodes).plan is not None


def machine(name: str) -> dict[str, Any]:
    """A node; `h100-x7` has lost one of its GPUs."""
    node = real_node("h100-sxm" if name == "h100-x7" else name)
    if name == "h100-x7":
        for amounts in (node["status"]["allocatable"], node["status"]["capacity"]):
            amounts["nvidia.com/gpu"] = "7"
    return node


def test_the_message_fits_into_a_condition() -> None:
    for _, model, machines, spec, _ in CASES:
        _, message = refusal(deployment(f"hf://{model}", **spec), *map(real_node, machines))
        assert len(message) <= 1024, message


@pytest.mark.parametrize("profile", ["7g.80gb", None])
def test_a_hint_names_only_slices_on_which_the_model_fits(profile: str | None) -> None:
    spec: dict[str, Any] = {"accelerator": {"mig": {"profile": profile}} if profile else {"products": ["NVIDIA-H100-80GB-HBM3"]}}
    reason, message = refusal(deployment(**spec), real_node("h100-mig-mixed"))
    assert reason == "NoMatchingGPU"
    named = re.search(r"([0-9]g\.[0-9]+gb)[,)]", message.partition("The cluster has")[2].partition(". ")[2])
    assert named is not None, message
    assert planned(deployment(accelerator={"mig": {"profile": named[1]}}), real_node("h100-mig-mixed")).plan is not None


def test_a_hint_names_no_slice_if_all_are_too_small() -> None:
    whole = {"products": ["NVIDIA-H100-80GB-HBM3"]}
    _, message = refusal(deployment(f"hf://{LLAMA_70B}", accelerator=whole), real_node("h100-mig-mixed"))
    assert message.endswith("None of the MIG slices is large enough for the model. Change the MIG layout of a node, or disable MIG on it.")
