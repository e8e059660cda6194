"""Plans of real configurations, compared with the model that vLLM builds from the same configuration, flags and variables.

`models.yaml` has the configurations. A seed chooses the GPUs, sizes and versions, so that a check can ask cases that nobody mended.
"""

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from oracle.tables import release
from oracle.wheels import HACK, sources_of
from testenv.nodes import gpu_node
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.versions import load_versions
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan
from vllm_operator.sizing.model_facts import ModelFiles

GPUS: Mapping[str, tuple[str, tuple[int, int], int]] = {
    "T4": ("Tesla-T4", (7, 5), 40),
    "A100": ("NVIDIA-A100-SXM4-80GB", (8, 0), 108),
    "A10": ("NVIDIA-A10", (8, 6), 72),
    "A10G": ("NVIDIA-A10G", (8, 6), 80),
    "L4": ("NVIDIA-L4", (8, 9), 58),
    "L40S": ("NVIDIA-L40S", (8, 9), 142),
    "H100": ("NVIDIA-H100-80GB-HBM3", (9, 0), 132),
    "H200": ("NVIDIA-H200", (9, 0), 132),
    "H20": ("NVIDIA-H20", (9, 0), 78),
    "B200": ("NVIDIA-B200", (10, 0), 148),
    "B300": ("NVIDIA-B300-SXM6-AC", (10, 3), 148),
    "RTX 5090": ("NVIDIA-GeForce-RTX-5090", (12, 0), 170),
    "RTX PRO 6000": ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", (12, 0), 188),
    "GB10": ("NVIDIA-GB10", (12, 1), 48),
    "H100 1g.10gb": ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", (9, 0), 16),
}
"""Product, compute capability and multiprocessors."""
CACHES = 0.2  # share of the cases with a `--kv-cache-dtype`
ONLINE = ("fp8", "fp8_per_block", "mxfp8", "experts_int8", None)  # of `--quantization`; None: --enable-lora
VERSIONS = ("0.25.1", "0.29.0", "0.33.0")
COMPONENTS = {"MLAPrefill": "prefill", "MoE": "moe", "GEMM": "gemm", "Sampler": "sampler"} | dict.fromkeys(
    ("Attention", "MLADecode", "SparseAttention"), "attention"
)
"""The name in an answer of a component of plans."""


@dataclass(frozen=True, slots=True)
class Case:
    """A repository on GPUs, and the user's flags: `--kv-cache-dtype` and at most one other."""

    repository: str
    gpu: str
    version: str
    tensor: int = 1
    cache: str | None = None
    flag: tuple[str, str | None] | None = None

    def __str__(self) -> str:
        flags = "".join(f", {name}{f' {value}' if value else ''}" for name, value in self.flags)
        return f"{self.repository} on {self.tensor} {self.gpu}, vLLM {self.version}{flags}"

    @property
    def flags(self) -> list[tuple[str, str | None]]:
        return [*([("--kv-cache-dtype", self.cache)] if self.cache else []), *([self.flag] if self.flag else [])]

    def outcome(self) -> Outcome:
        """The plan, or why there is none. The memory of the GPUs is large enough for everything."""
        product, (major, minor), _ = GPUS[self.gpu]
        node = gpu_node("h100-mig-single" if "g." in self.gpu else "b200")
        labels = {"product": product, "memory": "4000000", "count": "8", "compute.major": str(major), "compute.minor": str(minor)}
        node["metadata"]["labels"] |= {f"nvidia.com/gpu.{name}": value for name, value in labels.items()}
        node["status"]["allocatable"]["nvidia.com/gpu"] = "8"
        arguments = [{"name": name.removeprefix("--"), "value": value} for name, value in self.flags]
        engine = {"version": self.version, "args": arguments}
        spec = {"model": {"uri": f"hf://{self.repository}"}, "engine": engine, "parallelism": {"tensor": self.tensor}}
        resource = VLLMDeployment.parse({"metadata": {"name": "model", "generation": 1}, "spec": spec})
        catalog = load_catalog()
        return plan(resource, read_inventory([node], [], catalog.gpus), catalog, files=ModelFiles(config=configuration(self.repository)))

    def question(self, outcome: Outcome) -> dict[str, Any]:
        """What vLLM is asked: to start with the flags and variables of the plan, or as the user would start it."""
        arguments = self.flags
        variables = {}
        if outcome.plan is None:
            arguments.append(("--tensor-parallel-size", str(self.tensor)))
        else:
            arguments += [(each.name, each.value) for each in outcome.plan.args]
            variables = {each.name: each.value for each in outcome.plan.env if each.value is not None}
        _, capability, multiprocessors = GPUS[self.gpu]
        given = {"config": configuration(self.repository), "arguments": arguments, "environment": variables, "tensor": self.tensor}
        return {**given, "capability": capability, "multiprocessors": multiprocessors}


@cache
def written() -> Mapping[str, Any]:
    """The content of `models.yaml`."""
    read: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text())
    return read


def configuration(repository: str) -> dict[str, Any]:
    """The config.json of a repository."""
    known = written()
    model, quantization, _ = known["checkpoints"][repository]
    quantized = {"quantization_config": known["formats"][quantization]} if quantization else {}
    return {**known["models"][model], **quantized}


def all_cases(versions: Sequence[str], seed: int, count: int) -> list[Case]:
    chance, known = random.Random(seed), written()["checkpoints"]
    tables = {table.version: table.backends.get("kvCacheDtype", ("auto",)) for table in load_versions().tables}
    found: dict[str, Case] = {}
    while len(found) < count:
        repository, gpu, version = chance.choice(list(known)), chance.choice(list(GPUS)), chance.choice(versions)
        tensor = 1 if "g." in gpu else int(chance.choice(str(known[repository][2]).split()))
        cache, flag = (chance.choice(tables[version]) if chance.random() < CACHES else None), None
        if known[repository][1] is None and chance.random() < CACHES:
            flag = ("--quantization", online) if (online := chance.choice(ONLINE)) else ("--enable-lora", None)
        case = Case(repository, gpu, version, tensor, cache, flag)
        found[str(case)] = case
    return list(found.values())


def ask(version: str, cases: Sequence[Case], python: str, sources: Path) -> Iterator[tuple[Case, Outcome, dict[str, Any]]]:
    """Plan each case, build its model with the flags and variables of the plan, and tell both."""
    outcomes = [case.outcome() for case in cases]
    questions = [{"id": number, **case.question(outcomes[number])} for number, case in enumerate(cases)]
    command = [python, "-m", "oracle.models", *map(str, sources_of(version, sources))]
    text, environment = "".join(f"{json.dumps(question)}\n" for question in questions), os.environ | {"PYTHONPATH": str(HACK)}
    done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True, check=False)
    answers = {found["id"]: found for line in done.stdout.splitlines() if line.startswith("{") for found in [json.loads(line)]}
    if len(answers) < len(cases):
        print(done.stderr[-3000:])
    for number, case in enumerate(cases):
        yield case, outcomes[number], answers.get(number, {"raises": "no answer"})


def judge(outcome: Outcome, answer: Mapping[str, Any]) -> list[str]:
    """What a plan says otherwise than vLLM. An image that does not run on the GPU cannot be judged."""
    made, raises = outcome.plan, answer.get("raises")
    if made is None:
        message = outcome.accepted.message if outcome.accepted.reason != "Valid" else outcome.planned.message
        return [] if raises or outcome.planned.reason == "NoMatchingGPU" else [f"refused without need: {message}"]
    if raises:
        return [f"planned, and vLLM raises: {raises}"]
    taken = [(choice, answer.get(COMPONENTS.get(choice.component, ""), {})) for choice in made.backends]
    return [
        f"{choice.component} {choice.backend} planned, vLLM takes {found}"
        for choice, found in taken
        if found and not {choice.backend, *(choice.alternatives or ())} & found.keys()
    ]


def check(versions: Sequence[str], seed: int, count: int, python: str, sources: Path) -> int:
    """Ask cases of all versions, print what is wrong without a reason, and how much. Return the exit status."""
    allowed = yaml.safe_load(Path(__file__).with_name("allowed.yaml").read_text())
    cases, wrong = all_cases(versions, seed, count), 0
    for version in sorted({case.version for case in cases}, key=release):
        for case, outcome, answer in ask(version, [each for each in cases if each.version == version], python, sources):
            lines = [f"{case}: {text}" for text in judge(outcome, answer)]
            lines = [line for line in lines if not any(re.search(each["line"], line) for each in allowed)]
            wrong += bool(lines)
            print("".join(f"{line}\n" for line in lines), end="", flush=True)
    print(f"{len(cases)} plans, {wrong} of them wrong")
    return 1 if wrong else 0
