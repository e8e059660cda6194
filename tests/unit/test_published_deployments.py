"""Deployments that others published, on one and on several nodes: whether the estimate says that they start.

Each row is a command that a recipe, a guide or a manifest gives for these GPUs, or a statement that these GPUs are too few. `fits: False`
means that the source says so. Rows in `OTHERWISE` are those of which the estimate says the opposite, with the reason as far as it is known.

Sources: vllm-project/recipes at 8959cf6 (paths without a prefix), MoonshotAI/Kimi-K2 docs/deploy_guidance.md, zai-org/GLM-4.5 README.md at
08158da (its tables were made with SGLang, and say that the model runs, not with which context), skypilot-org/skypilot at 3339bb2,
kubernetes-sigs/lws at 0e2e095 and its website, blog.vllm.ai/2025/04/05/llama4.html. The version is the one in the source, or the lowest
that the recipe names.
"""

import json
from typing import Any

import pytest

from vllm_operator.__main__ import main
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.sizing.cases import predict
from vllm_operator.sizing.estimate import Estimate, Prediction

A100, H100, H200, B200 = "A100 80GB", "H100 80GB", "H200 141GB", "B200"
KIMI, R1, GLM = "moonshotai/Kimi-K2-Instruct", "deepseek-ai/DeepSeek-R1-0528", "zai-org/GLM-4.5"
CODER, VL = "Qwen/Qwen3-Coder-480B-A35B-Instruct", "Qwen/Qwen3-VL-235B-A22B-Instruct"
SCOUT, MAVERICK = "meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8"
WIDE = {"dp": 16, "ep": True, "gpu_memory_utilization": 0.85, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
CODER_FP8 = {"dp": 8, "ep": True}
RING = {"tp": 8, "gpu_memory_utilization": 0.97, "max_num_seqs": 32, "kv_cache_dtype": "fp8"}

DEPLOYMENTS: dict[str, tuple[bool, str, str, str, dict[str, Any]]] = {
    # several nodes
    "skypilot llm/kimi-k2": (True, KIMI, H100, "0.10.0", {"tp": 8, "pp": 2, "max_model_len": 32768}),
    "moonshotai/Kimi-K2.md 16xH800": (
        True,
        KIMI,
        "H800 80GB",
        "0.12.0",
        {"tp": 8, "pp": 2, "dcp": 8, "max_model_len": 65536, "kv_cache_dtype": "fp8", "max_num_seqs": 1, "max_num_batched_tokens": 1024},
    ),
    "Kimi-K2 deploy_guidance.md TP16": (True, KIMI, H200, "0.10.0", {"tp": 16, "max_model_len": 131072}),
    "Kimi-K2 deploy_guidance.md DP16": (True, KIMI, H200, "0.10.0", {**WIDE, "max_model_len": 131072}),
    "Kimi-K2 deploy_guidance.md: 16 is the least": (False, KIMI, H200, "0.10.0", {"tp": 8, "max_model_len": 131072}),
    "moonshotai/Kimi-K2.md DP16 on H800": (True, KIMI, "H800 80GB", "0.12.0", {**WIDE, "max_model_len": 65536}),
    "lws tas example": (True, "deepseek-ai/DeepSeek-R1", H100, "0.8.5", {"tp": 8, "pp": 2, "max_model_len": 4096}),
    "lws docs/examples/vllm/GPU": (True, "meta-llama/Llama-3.1-405B-Instruct", H100, "0.8.5", {"tp": 8, "pp": 2}),
    "GLM-4.5 README BF16 on 16 H100": (True, GLM, H100, "0.11.0", {"tp": 16}),
    "Ernie/Ernie4.5.md on 16": (True, "baidu/ERNIE-4.5-300B-A47B-PT", H100, "0.11.0", {"tp": 16}),
    # one node
    "moonshotai/Kimi-K2-Think.md": (True, "moonshotai/Kimi-K2-Thinking", H200, "0.11.0", {"tp": 8}),
    "moonshotai/Kimi-K2.5.md": (True, "moonshotai/Kimi-K2.5", H200, "0.19.1", {"tp": 8}),
    "models/moonshotai/Kimi-K2.6.yaml": (True, "moonshotai/Kimi-K2.6", H200, "0.19.1", {"tp": 8}),
    "DeepSeek/DeepSeek-V3.md TP": (True, R1, H200, "0.12.0", {"tp": 8, "ep": True}),
    "DeepSeek/DeepSeek-V3.md DP": (True, R1, H200, "0.12.0", {"dp": 8, "ep": True}),
    "DeepSeek/DeepSeek-V3.md FP4": (True, "nvidia/DeepSeek-R1-FP4", B200, "0.12.0", {"tp": 4, "ep": True}),
    "DeepSeek/DeepSeek-V3_1.md": (True, "deepseek-ai/DeepSeek-V3.1", H200, "0.12.0", {"tp": 8, "ep": True}),
    "DeepSeek/DeepSeek-V3_2.md": (True, "deepseek-ai/DeepSeek-V3.2", H200, "0.18.0", {"tp": 8}),
    "GLM-4.5 README BF16 on 8 H200": (True, GLM, H200, "0.11.0", {"tp": 8}),
    "GLM-4.5 README FP8 on 8 H100": (True, f"{GLM}-FP8", H100, "0.11.0", {"tp": 8}),
    "GLM-4.5 README FP8 on 4 H200": (True, f"{GLM}-FP8", H200, "0.11.0", {"tp": 4}),
    "GLM-4.5 README: 8 H100 need offloading": (False, GLM, H100, "0.11.0", {"tp": 8}),
    "GLM-4.5 README Air BF16 on 4 H100": (True, f"{GLM}-Air", H100, "0.11.0", {"tp": 4}),
    "GLM-4.5 README Air FP8 on 2 H100": (True, f"{GLM}-Air-FP8", H100, "0.11.0", {"tp": 2}),
    "GLM-4.5 README Air BF16 on 2 H200": (True, f"{GLM}-Air", H200, "0.11.0", {"tp": 2}),
    "GLM-4.5 README Air FP8 on 1 H200": (True, f"{GLM}-Air-FP8", H200, "0.11.0", {"max_model_len": 65536}),
    "GLM-4.5 README: full context not on 1 H200": (False, f"{GLM}-Air-FP8", H200, "0.11.0", {"max_model_len": 131072}),
    "GLM/GLM.md": (True, "zai-org/GLM-4.7-FP8", H200, "0.11.0", {"tp": 4}),
    "GLM/GLM5.md": (True, "zai-org/GLM-5-FP8", H200, "0.19.0", {"tp": 8}),
    "Qwen/Qwen3-Coder-480B-A35B.md BF16": (True, CODER, H200, "0.10.0", {"tp": 8, "ep": True, "max_model_len": 32000}),
    "Qwen/Qwen3-Coder-480B-A35B.md: BF16, 262144": (False, CODER, H200, "0.10.0", {"tp": 8, "ep": True, "max_model_len": 262144}),
    "Qwen/Qwen3-Coder-480B-A35B.md FP8": (True, f"{CODER}-FP8", H200, "0.10.0", {**CODER_FP8, "max_model_len": 131072}),
    "Qwen/Qwen3-Coder-480B-A35B.md: FP8, 262144": (False, f"{CODER}-FP8", H200, "0.10.0", {**CODER_FP8, "max_model_len": 262144}),
    "Qwen/Qwen3-Coder-480B-A35B.md: FP8, TP8": (False, f"{CODER}-FP8", H200, "0.10.0", {"tp": 8, "max_model_len": 131072}),
    "Qwen/Qwen3-VL.md BF16": (True, VL, H100, "0.11.0", {"tp": 8, "max_model_len": 128000}),
    "Qwen/Qwen3-VL.md: BF16, full context": (False, VL, H100, "0.11.0", {"tp": 8, "max_model_len": 262144}),
    "Qwen/Qwen3-VL.md FP8 on 4": (True, f"{VL}-FP8", H100, "0.11.0", {"tp": 4, "gpu_memory_utilization": 0.95, "max_num_seqs": 128}),
    "Qwen/Qwen3-VL.md FP8 on 8": (True, f"{VL}-FP8", H100, "0.11.0", {"tp": 8, "ep": True}),
    "Qwen/Qwen3-VL.md H200": (True, VL, H200, "0.11.0", {"tp": 8}),
    "Qwen/Qwen2.5-VL.md": (True, "Qwen/Qwen2.5-VL-72B-Instruct", A100, "0.11.0", {"tp": 4}),
    "Qwen/Qwen2.5-VL.md: 2 are too few": (False, "Qwen/Qwen2.5-VL-72B-Instruct", A100, "0.11.0", {"tp": 2, "max_model_len": 128000}),
    "Qwen/Qwen3.5.md": (True, "Qwen/Qwen3.5-397B-A17B-FP8", H200, "0.17.0", {"tp": 8}),
    "Qwen/Qwen3.5.md NVFP4": (True, "nvidia/Qwen3.5-397B-A17B-NVFP4", "GB200", "0.17.0", {"tp": 4}),
    "MiniMax/MiniMax-M2.md H100": (True, "MiniMaxAI/MiniMax-M2.7", H100, "0.20.0", {"tp": 4}),
    "MiniMax/MiniMax-M2.md A100": (True, "MiniMaxAI/MiniMax-M2.7", A100, "0.20.0", {"tp": 4}),
    "MiniMax/MiniMax-M2.md H200": (True, "MiniMaxAI/MiniMax-M2", H200, "0.11.0", {"tp": 4}),
    "llama4 Scout on H100": (True, SCOUT, H100, "0.8.3", {"tp": 8, "max_model_len": 1000000}),
    "llama4 Scout on H200": (True, SCOUT, H200, "0.8.3", {"tp": 8, "max_model_len": 3600000}),
    "llama4 Maverick on H100": (True, MAVERICK, H100, "0.8.3", {"tp": 8, "max_model_len": 430000}),
    "llama4 Maverick on H200": (True, MAVERICK, H200, "0.8.3", {"tp": 8}),
    "inclusionAI/Ring-1T-FP8.md": (True, "inclusionAI/Ring-1T-FP8", H200, "0.11.0", RING),
    "Mistral/Mistral-Large-3.md": (True, "mistralai/Mistral-Large-3-675B-Instruct-2512", H200, "0.12.0", {"tp": 8}),
    "Mistral/Mistral-Large-3.md NVFP4": (True, "mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4", B200, "0.12.0", {"tp": 4}),
    "MiMo/MiMo-V2-Flash.md": (True, "XiaomiMiMo/MiMo-V2-Flash", H200, "0.14.0", {"tp": 4, "gpu_memory_utilization": 0.9}),
    "OpenAI/GPT-OSS.md: defaults on H100": (False, "openai/gpt-oss-120b", H100, "0.10.2", {}),
    "OpenAI/GPT-OSS.md H100": (
        True,
        "openai/gpt-oss-120b",
        H100,
        "0.10.2",
        {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024, "max_model_len": 131072},
    ),
}
OTHERWISE = {
    # 24 experts on a GPU are 59 GiB, and what data parallelism does not divide another 14. 0.85 of the GPU are 67 GiB. Moonshot's guide has
    # the same command for H200.
    "moonshotai/Kimi-K2.md DP16 on H800",
    # 1024 requests at a time are the default there, and the sampler's share of the activations is estimated for all of them.
    "OpenAI/GPT-OSS.md H100",
}


def estimate(deployment: str) -> Estimate:
    _, model, gpu, version, settings = DEPLOYMENTS[deployment]
    case = {"model": model, "gpu": gpu, "vllm_version": version, **settings}
    return predict(case, load_shapes(), load_catalog().gpus, load_memory())


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_published_deployment_is_estimated_to_start(deployment: str) -> None:
    starts = DEPLOYMENTS[deployment][0]
    made = estimate(deployment)
    enough = made.prediction in (Prediction.STARTED, Prediction.TIGHT) and (made.kv_cache or 0.0) >= (made.kv_needed or 0.0)
    assert enough == (starts != (deployment in OTHERWISE)), (made.prediction, made.limit)


def test_the_kv_cache_of_kimi_k2_thinking_is_that_of_the_published_log() -> None:
    made = estimate("moonshotai/Kimi-K2-Think.md")
    assert made.kv_cache == pytest.approx(46.80, abs=1.5)
    assert made.tokens == pytest.approx(715_072, rel=0.03)


@pytest.mark.parametrize(
    ("model", "gpu", "context"),
    [
        ("moonshotai/Kimi-K2-Instruct", "H100", "32k"),
        ("moonshotai/Kimi-K2-Instruct", "H200", "128k"),
        ("deepseek-ai/DeepSeek-R1", "H100", "128k"),
        ("zai-org/GLM-4.5", "H100", "128k"),
        ("meta-llama/Llama-3.1-405B-Instruct", "H100", "128k"),
    ],
)
def test_fit_offers_the_two_nodes_that_others_use(capsys: pytest.CaptureFixture[str], model: str, gpu: str, context: str) -> None:
    assert main(["fit", model, "--gpu", gpu, "--context", context, "-o", "json"]) == 0
    fitting = [each for each in json.loads(capsys.readouterr().out)["sizes"] if each["outcome"] in ("started", "tight")]
    assert [(each["count"], each.get("nodes")) for each in fitting] == [(16, 2)]
