"""Plan the product of versions, machines, models, goals and parallel shapes; print the outcomes and the CPU time.

    python hack/bench/plans.py [--sample N]

Exit status 1 if a plan contains a flag or variable that its version does not know. A plan should take at most 2 ms.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testenv.nodes import gpu_node
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.planning.inventory.nodes import read_inventory
from vllm_operator.planning.planner import plan

MACHINES = (
    "a100",
    "l40s",
    "h100-sxm",
    "h200",
    "gh200",
    "b200",
    "gb200",
    "b300",
    "rtx-pro-6000",
    "rtx-5090",
    "gb10",
    "h100-mig-mixed",
    "nfd-only",
)
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "openai/gpt-oss-120b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "google/gemma-3-27b-it",
    "nvidia/Qwen3-30B-A3B-NVFP4",
    "MiniMaxAI/MiniMax-M2",
    "zai-org/GLM-4.5-FP8",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "moonshotai/Kimi-K2-Instruct",
    "unknown/model",
)
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"tensor": 8},
    {"tensor": 4, "data": 2},
    {"data": 8, "expert": "Enabled"},
    {"tensor": 8, "expert": "Enabled"},
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="plan only this many, a fixed random sample")
    arguments = parser.parse_args()
    catalog = load_catalog()
    nodes = {machine: read_inventory([node_with_room(machine)], [], catalog.gpus) for machine in MACHINES}
    versions = [table.version for table in catalog.versions.tables]
    product = list(itertools.product(versions, MACHINES, MODELS, ("Throughput", "Latency"), range(len(SHAPES))))
    if arguments.sample:
        product = random.Random(0).sample(product, arguments.sample)
    unknown, reasons, seconds = Counter[str](), Counter[str](), 0.0
    for version, machine, model, favour, shape in product:
        resource = deployment(version, machine, model, favour, SHAPES[shape])
        begun = time.process_time()
        outcome = plan(resource, nodes[machine], catalog)
        seconds += time.process_time() - begun
        reasons[outcome.planned.reason if outcome.accepted.reason == "Valid" else outcome.accepted.reason] += 1
        if outcome.plan is not None:
            table = catalog.versions.resolve(version).table
            assert table is not None
            unknown.update(f"{version} {a.name}" for a in outcome.plan.args if not table.knows_flag(a.name))
            unknown.update(
                f"{version} {v.name}" for v in outcome.plan.env if v.name.startswith("VLLM_") and not table.knows_variable(v.name)
            )
    print(f"{'plans':28} {len(product):10,}")
    print(f"{'CPU time for all':28} {seconds:10.1f} s")
    print(f"{'CPU time for one':28} {seconds / len(product) * 1000:10.2f} ms")
    for reason, count in reasons.most_common():
        print(f"{'  ' + reason:28} {count:10,}")
    print(f"{'emitted, unknown to version':28} {sum(unknown.values()):10,}")
    for what, count in unknown.most_common(20):
        print(f"  {what} ({count})")
    return 1 if unknown else 0


def node_with_room(machine: str) -> dict[str, Any]:
    """Return a node with enough GPUs for the largest shape, so that every shape is planned on every GPU."""
    node = gpu_node(machine)
    if "mig" not in machine:
        node["metadata"]["labels"] |= {"nvidia.com/gpu.count": "8"} if "nvidia.com/gpu.count" in node["metadata"]["labels"] else {}
        node["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    return node


def deployment(version: str, machine: str, model: str, favour: str, shape: dict[str, Any]) -> VLLMDeployment:
    spec = {
        "model": {"uri": f"hf://{model}"},
        "engine": {"version": version},
        "backends": {"optimizeFor": favour},
        "parallelism": shape,
        "accelerator": {"mig": {"profile": "3g.40gb"}} if "mig" in machine else None,
    }
    return VLLMDeployment.parse({"metadata": {"name": "demo"}, "spec": spec})


if __name__ == "__main__":
    sys.exit(main())
