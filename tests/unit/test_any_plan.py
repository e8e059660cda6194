"""Whatever is asked for, on whatever nodes: planning ends in a plan or in a reason, and emits only what the version knows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.gpus import KINDS, bare_node, inventory_of, real_node
from support.plans import known
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.versions import parse_release
from vllm_operator.planning.planner import plan
from vllm_operator.planning.validation import violations
from vllm_operator.rendering.manifests import render

VERSIONS = ("0.11.0", "0.12.0", "0.16.0", "0.19.0", "0.20.1", "0.21.3", "0.24.0", "0.28.0", "0.33.0", "0.99.0", "0.8.5")
MODELS = (
    "hf://deepseek-ai/DeepSeek-V3",
    "hf://deepseek-ai/DeepSeek-V3.2",
    "hf://meta-llama/Llama-3.1-70B-Instruct",
    "hf://openai/gpt-oss-120b",
    "hf://nvidia/Qwen3-30B-A3B-NVFP4",
    "hf://Qwen/Qwen3-Next-80B-A3B-Instruct",
    "hf://unknown/model",
    "pvc://claim/some/path",
)
ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_120", "sm_121", "sm_999"]
ARGUMENTS = [{"name": "max_model_len", "value": "4096"}, {"name": "-O3"}]
size = st.sampled_from([1, 1, 2, 4, 8, 64])
SPECS = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries({"uri": st.sampled_from(MODELS)}),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "version": st.sampled_from(VERSIONS),
                "distribution": st.sampled_from(["vLLM", "nvLLM"]),
                "image": st.sampled_from(["vllm/vllm-openai:v0.20.1", "vllm/vllm-openai:latest", "own/vllm:1", "x@sha256:0"]),
                "env": st.just([{"name": "CUDA_VISIBLE_DEVICES", "value": "MIG-1"}, {"name": "HF_HOME", "valueFrom": {"fieldRef": {}}}]),
                "args": st.just(ARGUMENTS),
            },
        ),
    },
    optional={
        "accelerator": st.fixed_dictionaries(
            {},
            optional={
                "architectures": st.lists(st.sampled_from(ARCHITECTURES), min_size=1, max_size=3),
                "products": st.just(["NVIDIA-H200", "NVIDIA-H100-80GB-HBM3-SHARED"]),
                "count": size,
                "mig": st.sampled_from([{"profile": "1g.10gb"}, {"profile": "3g.40gb"}]),
                "allocation": st.sampled_from(["DevicePlugin", "DRA"]),
            },
        ),
        "parallelism": st.fixed_dictionaries(
            {}, optional={"tensor": size, "pipeline": size, "data": size, "expert": st.sampled_from(["Enabled", "Disabled"])}
        ),
        "backends": st.fixed_dictionaries(
            {},
            optional={
                "optimizeFor": st.sampled_from(["Throughput", "Latency"]),
                "attention": st.sampled_from(["Auto", "FLASHINFER", "NoSuchBackend"]),
                "moe": st.sampled_from(["MARLIN", "FLASHINFER_CUTLASS", "TRITON"]),
                "allToAll": st.just("deepep_low_latency"),
            },
        ),
        "podTemplate": st.sampled_from(
            [{}, {"spec": {"nodeSelector": {"a": "b"}}}, {"spec": {"containers": [{"name": "vllm", "env": []}]}}]
        ),
    },
)


@given(spec=SPECS, kinds=st.lists(st.sampled_from(KINDS), max_size=4, unique=True), insists=st.booleans())
def test_every_spec_ends_in_a_plan_or_in_a_reason(spec: dict[str, Any], kinds: list[str], insists: bool) -> None:
    annotations = {"vllm-operator.dev/allow-unsupported": "true"} if insists else {}
    manifest = {"metadata": {"name": "demo", "annotations": annotations}, "spec": spec}
    resource = VLLMDeployment.parse(manifest)
    outcome = plan(resource, inventory_of(*map(real_node, kinds)), known())
    true = [str(verdict.status) == "True" for verdict in (outcome.accepted, outcome.planned)]
    assert (outcome.plan is not None) is all(true)
    assert all(0 < len(verdict.message) < 4000 for verdict in (outcome.accepted, outcome.planned))
    if outcome.plan is None:
        return
    assert render(resource, outcome.plan)
    assert plan(resource, inventory_of(*map(real_node, reversed(kinds))), known()) == outcome
    table = known().versions.resolve(outcome.plan.engine_version or "0").table
    if table is None:
        release = parse_release(outcome.plan.engine_version or "")
        assert release is not None  # every version here can be read
        assert release < (0, 11, 0)
        return
    assert [a.name for a in outcome.plan.args if not table.knows_flag(a.name)] == []
    assert [v.name for v in outcome.plan.env if v.name.startswith("VLLM_") and not table.knows_variable(v.name)] == []


LABELS = st.dictionaries(
    st.sampled_from(
        [
            "nvidia.com/gpu.compute.major",
            "nvidia.com/gpu.compute.minor",
            "nvidia.com/gpu.product",
            "nvidia.com/cuda.runtime-version.major",
            "vllm-operator.dev/gpu-architecture",
            "kubernetes.io/arch",
        ]
    ),
    st.sampled_from(["9", "0", "12", "sm_90", "arm64", "999999", "", "-MIG-", "-SHARED", "x" * 500]) | st.text(max_size=80),
    max_size=6,
)


@given(labels=LABELS, amount=st.sampled_from(["1", "0", "99999", "many"]), profile=st.sampled_from(["1g.10gb", "", "x" * 300, "\n"]))
def test_no_node_makes_planning_fail(labels: dict[str, str], amount: str, profile: str) -> None:
    node = bare_node(labels=labels, allocatable={"nvidia.com/gpu": amount, f"nvidia.com/mig-{profile}": amount})
    mig = {"spec": {"model": {"uri": MODELS[0]}, "accelerator": {"mig": {"profile": "1g.10gb"}}}}
    for spec in ({"spec": {"model": {"uri": MODELS[0]}}}, mig):
        outcome = plan(VLLMDeployment.parse({"metadata": {"name": "demo"}, **spec}), inventory_of(node), known())
        assert outcome.plan is None or outcome.plan.count == 1


def test_the_specs_above_are_what_the_api_server_would_take() -> None:
    manifest = {
        "apiVersion": "vllm-operator.dev/v1alpha1",
        "kind": "VLLMDeployment",
        "metadata": {"name": "demo"},
        "spec": {"model": {"uri": MODELS[0]}, "engine": {"args": ARGUMENTS}},
    }
    assert violations(manifest) == []
