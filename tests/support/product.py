"""The product of versions, architectures, kinds of models, goals and parallel shapes, and what must hold for each plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from support.backends import decide, describe, knowledge
from vllm_operator.catalog.rule_matching import RuleInput
from vllm_operator.planning.engine.backends import BackendDecision

ARCHITECTURES = (
    "sm_70 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_100 sm_103 sm_110 sm_120 sm_121".split()  # noqa: SIM905  # reads better
)
MODELS = {
    "Llama BF16": "hf://meta-llama/Llama-3.1-70B-Instruct",
    "Llama FP8": "hf://RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8",
    "Llama INT4": "hf://hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
    "Llama 4 FP8": "hf://meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    "Qwen3 FP8": "hf://Qwen/Qwen3-32B-FP8",
    "Qwen3 MoE BF16": "hf://Qwen/Qwen3-30B-A3B-Instruct-2507",
    "Qwen3 MoE FP8": "hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
    "Qwen3-Next FP8": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",
    "Qwen3.5 NVFP4": "hf://nvidia/Qwen3.5-27B-NVFP4",
    "gpt-oss MXFP4": "hf://openai/gpt-oss-120b",
    "Mixtral BF16": "hf://mistralai/Mixtral-8x7B-Instruct-v0.1",
    "Gemma 3 BF16": "hf://google/gemma-3-27b-it",
    "Gemma 4 NVFP4": "hf://nvidia/Gemma-4-31B-IT-NVFP4",
    "Nemotron 3 Nano BF16": "hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Nemotron 3 Super NVFP4": "hf://nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "MiniMax M2.5 FP8": "hf://MiniMaxAI/MiniMax-M2.5",
    "GLM-4.5 FP8": "hf://zai-org/GLM-4.5-FP8",
    "GLM-5 FP8": "hf://zai-org/GLM-5-FP8",
    "DeepSeek R1 FP8": "hf://deepseek-ai/DeepSeek-R1",
    "DeepSeek R1 NVFP4": "hf://nvidia/DeepSeek-R1-0528-FP4",
    "DeepSeek V3.2 FP8": "hf://deepseek-ai/DeepSeek-V3.2",
    "DeepSeek V4 MXFP4": "hf://deepseek-ai/DeepSeek-V4",
    "Kimi K2 FP8": "hf://moonshotai/Kimi-K2-Instruct",
    "Kimi K2 INT4": "hf://moonshotai/Kimi-K2-Thinking",
    "unknown": "hf://someone/something",
}
SHAPES: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "TP8": {"tensor": 8},
    "TP8 with experts apart": {"tensor": 8, "expert": "Enabled"},
    "DP8 with experts apart": {"data": 8, "expert": "Enabled"},
    "TP2 PP2": {"tensor": 2, "pipeline": 2},
    "TP4 DP2": {"tensor": 4, "data": 2},
}
GOALS = ("Throughput", "Latency")
DISTRIBUTION_VARIABLES = {"nvLLM": {"CUTE_WO_SPLIT"}}
ENUMERATED = {
    "--attention-backend": "attention",
    "--moe-backend": "moe",
    "--linear-backend": "linear",
    "--all2all-backend": "all2all",
    "--kv-cache-dtype": "kvCacheDtype",
    "--attention-config.mla_prefill_backend": "mlaPrefill",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the product, with names that a person can read."""

    version: str
    architecture: str | None
    model: str
    goal: str
    shape: str
    distribution: str = "vLLM"

    def decide(self) -> BackendDecision:
        return decide(MODELS[self.model], self.version, self.architecture, **self._spec())

    def situation(self) -> RuleInput:
        return describe(MODELS[self.model], self.version, self.architecture, **self._spec())[1]

    def _spec(self) -> dict[str, Any]:
        return {
            "engine": {"distribution": self.distribution},
            "backends": {"optimizeFor": self.goal},
            "parallelism": SHAPES[self.shape],
        }


def cases() -> Iterator[Case]:
    """The whole product, in a fixed order."""
    versions = [table.version for table in knowledge()[0].tables]
    for version, architecture, model, goal, shape in product(versions, (None, *ARCHITECTURES), MODELS, GOALS, SHAPES):
        if architecture != "sm_110" or SHAPES[shape].get("expert") is None:  # Jetson Thor has one GPU, so experts are never apart
            yield Case(version, architecture, model, goal, shape)
    for version, model, goal in product(versions, MODELS, GOALS):
        yield Case(version, "sm_121", model, goal, "one GPU", "nvLLM")


def faults(case: Case, decision: BackendDecision) -> list[str]:
    """What is wrong with a decision: whatever it sets that the version does not know, or that cannot work."""
    table = next(table for table in knowledge()[0].tables if table.version == case.version)
    found = []
    for variable in decision.env:
        values = table.variables[variable.name].values if table.knows_variable(variable.name) else ()
        if not table.knows_variable(variable.name) and variable.name not in DISTRIBUTION_VARIABLES.get(case.distribution, ()):
            found.append(f"variable {variable.name} is not known")
        if values and variable.value not in values:
            found.append(f"{variable.name} does not take {variable.value}")
    for argument in decision.args:
        if not table.knows_flag(argument.name):
            found.append(f"flag {argument.name} is not known")
        kind = ENUMERATED.get(argument.name)
        allowed = {"CUTE_PAGED"} if case.distribution == "nvLLM" else set()
        if kind and argument.value not in {*table.backends[kind], *allowed}:
            found.append(f"{argument.name} does not take {argument.value}")
    if decision.refusal is None and case.architecture:
        chosen = {choice.component: choice.backend for choice in decision.choices}
        kernels, situation = knowledge()[2].kernels, case.situation()
        for component, backend in chosen.items():
            if kernels.find(component, backend) and backend not in kernels.working(component, situation, chosen):
                found.append(f"{component} {backend} does not work")
    components = [choice.component for choice in decision.choices]
    if len(components) != len(set(components)):
        found.append(f"a component is decided twice: {components}")
    return found
