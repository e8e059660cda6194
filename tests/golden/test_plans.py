"""Plans of whole situations: a VLLMDeployment and nodes in, the plan with its reasons and the manifests out.

Each folder of `cases` is one situation. What is the same everywhere (the variables of the caches and of the log, the
parts of the cache key, the predicted memory) is left out of the recordings; it is tested where it is made.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import inventory_of, real_node
from support.manifests import MAX_TEMPLATE_BYTES, TOOLS_IMAGE
from support.plans import known
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment, is_workload, template_field
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.cli.plan import merge_preset_of, result_of
from vllm_operator.inventory.devices import read_used
from vllm_operator.inventory.pools import Inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan
from vllm_operator.planning.validation import violations
from vllm_operator.rendering.container import LOG_ENVIRONMENT
from vllm_operator.rendering.manifests import render

CASES = sorted(folder for folder in (Path(__file__).parent / "cases").iterdir() if folder.is_dir())


def read_nodes(folder: Path) -> list[dict[str, Any]]:
    """Nodes in the short form of the cases: the machine, how many of it, and what differs."""
    nodes = []
    for entry in yaml.safe_load((folder / "nodes.yaml").read_text("utf-8")):
        changes = dict(entry)
        machine, count = changes.pop("machine"), changes.pop("count", 1)
        nodes += [real_node(machine, f"{machine}-{number}", **changes) for number in range(count)]
    return nodes


def read_slices(folder: Path) -> tuple[dict[str, Any], ...]:
    path = folder / "slices.yaml"
    return tuple(yaml.safe_load_all(path.read_text("utf-8"))) if path.exists() else ()


def read_resource(folder: Path) -> VLLMDeployment:
    manifest = yaml.safe_load((folder / "resource.yaml").read_text("utf-8"))
    path = folder / "preset.yaml"
    presets = list(yaml.safe_load_all(path.read_text("utf-8"))) if path.exists() else []
    assert [problem for each in (manifest, *presets) for problem in violations(each)] == []
    merged = merge_preset_of(VLLMDeployment.parse(manifest), presets)
    assert isinstance(merged, VLLMDeployment)
    return merged


def read_inventory(folder: Path) -> Inventory:
    """The nodes and ResourceSlices, and what the Pods of others hold if there is a file with them."""
    inventory, path = inventory_of(*read_nodes(folder), slices=read_slices(folder)), folder / "pods.yaml"
    return replace(inventory, used=read_used(yaml.safe_load_all(path.read_text("utf-8"))).all) if path.exists() else inventory


@cache
def outcome_of(folder: Path) -> Outcome:
    return plan(read_resource(folder), read_inventory(folder), known(), tools_image=TOOLS_IMAGE)


def common_variables() -> set[str]:
    caches = known().caches
    table = (variable.name for entry in (*caches.compiled, caches.weights) for variable in entry.variables)
    return {*table, *(variable.name for variable in LOG_ENVIRONMENT)}


def recording_of_plan(outcome: Outcome) -> dict[str, Any]:
    content = outcome.plan.to_json() if outcome.plan else {}
    for name in ("catalogVersion", "toolsImage", "cacheKeyParts", "observedGeneration", "memory"):
        content.pop(name, None)
    if content:
        content["env"] = [variable for variable in content["env"] if variable["name"] not in common_variables()]
    return {"result": "{reason}: {message}".format(**result_of(outcome)), "plan": content or None}


def recording_of_manifests(resource: VLLMDeployment, outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.plan is not None
    manifests: list[dict[str, Any]] = render(resource, outcome.plan)
    for manifest in manifests:
        for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            container["env"] = [variable for variable in container["env"] if variable["name"] not in common_variables()]
    return manifests


def write(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_plan_is_as_recorded(folder: Path, golden: Callable[[Path, str], None]) -> None:
    golden(folder / "plan.yaml", write(recording_of_plan(outcome_of(folder))))


PLANNED = [folder for folder in CASES if outcome_of(folder).plan is not None]


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
def test_the_manifests_are_as_recorded(folder: Path, golden: Callable[[Path, str], None]) -> None:
    manifests = recording_of_manifests(read_resource(folder), outcome_of(folder))
    golden(folder / "manifests.yaml", "---\n".join(map(write, manifests)))


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
def test_nothing_is_emitted_that_the_version_does_not_know(folder: Path) -> None:
    made = outcome_of(folder).plan
    assert made is not None
    assert made.engine_version is not None
    table = known().versions.resolve(made.engine_version).table
    assert table is not None
    assert [argument.name for argument in made.args if not table.knows_flag(argument.name)] == []
    assert [v.name for v in made.env if v.name.startswith("VLLM_") and not table.knows_variable(v.name)] == []


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
def test_planning_again_with_everything_shuffled_gives_the_same(folder: Path) -> None:
    nodes = list(reversed(read_nodes(folder)))
    for node in nodes:
        node["metadata"]["labels"] = dict(reversed(node["metadata"]["labels"].items()))
    inventory = replace(inventory_of(*nodes, slices=read_slices(folder)), used=read_inventory(folder).used)
    again = plan(read_resource(folder), inventory, known(), tools_image=TOOLS_IMAGE)
    assert again == outcome_of(folder)


OBSERVED = {
    "observedGeneration": 3,
    "replicas": 2,
    "readyReplicas": 1,
    "plan": "Planned for another GPU.",
    "revision": "demo-1",
    "engine": {"memory": "4.2 GiB of weights and 1.2 GiB of KV cache, as measured."},
    "cache": {"claimName": "another", "coldStartSeconds": 900, "artifact": {"rejected": [f"sha256:{'0' * 64}"], "digest": "sha256:1"}},
    "lastCrash": {"signature": "unknown", "pod": "demo-1", "time": "2026-11-21T12:00:00Z", "restarts": 3},
    "startup": {"stage": "LoadingWeights"},
}
"""Observations in a status. Decisions of the operator (remedies, the generation of the caches) change Pods, so they are left out."""


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
@pytest.mark.parametrize("replicas", [0, 3])
def test_scaling_a_new_status_and_an_upgrade_leave_the_pod_template_byte_equal(folder: Path, replicas: int) -> None:
    resource, pinned = read_resource(folder), outcome_of(folder).plan
    assert pinned is not None
    scaled = VLLMDeployment(
        metadata=resource.metadata.model_copy(update={"generation": resource.metadata.generation + 1}),
        spec=resource.spec.model_copy(update={"replicas": replicas}),
        status=VLLMDeploymentStatus.model_validate(OBSERVED),
        preset=resource.preset,
    )
    upgraded = "registry.example/vllm-operator:2"
    kept = plan(scaled.with_pinned(pinned), read_inventory(folder), known(), pinned=pinned, tools_image=upgraded).plan
    assert kept is not None
    assert template_of(scaled, kept) == template_of(resource, pinned)


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
def test_pod_templates_are_small(folder: Path) -> None:
    made = outcome_of(folder).plan
    assert made is not None
    assert len(template_of(read_resource(folder), made)) < MAX_TEMPLATE_BYTES


def template_of(resource: VLLMDeployment, made: Plan) -> str:
    [deployment] = [manifest for manifest in render(resource, made) if is_workload(manifest)]
    return json.dumps(deployment["spec"][template_field(deployment)])
