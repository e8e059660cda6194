"""What is planned for the examples and the demo fits the schema of a plan, and each example finds its GPU in a mixed fleet."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import machines_of_the_examples
from support.structural import PLAN, SPEC, violations
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.inventory.pools import Inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan

ROOT = Path(__file__).parent.parent.parent
MANIFESTS = {
    f"{path.stem}:{manifest['metadata']['name']}": manifest
    for folder in (ROOT / "examples", ROOT / "hack" / "demo" / "manifests")
    for path in sorted(folder.glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text("utf-8"))
    if manifest["kind"] == "VLLMDeployment"
}
WITHOUT_GPU = {
    "gpu-uuid-dra:llama-two-gpus": "no ResourceSlice is in the fleet",
    "mig-uuid-dra:tinyllama-pinned": "no ResourceSlice is in the fleet",
    "d-no-gpu:llama": "asks for sm_103, which is not in the fleet",
}


@cache
def fleet() -> Inventory:
    return read_inventory(machines_of_the_examples(), [], load_catalog().gpus)


@cache
def planned(name: str) -> Outcome:
    return plan(VLLMDeployment.parse(MANIFESTS[name]), fleet(), load_catalog())


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_fits_the_schema(name: str) -> None:
    assert list(violations(MANIFESTS[name]["spec"], SPEC, "spec")) == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_its_plan_fits_the_schema(name: str) -> None:
    made = planned(name).plan
    if made is None:
        assert name in WITHOUT_GPU
    else:
        assert list(violations(made.to_json(), PLAN, "data")) == []


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name not in WITHOUT_GPU])
def test_it_finds_its_gpu(name: str) -> None:
    outcome = planned(name)
    assert (outcome.accepted.status, outcome.planned.status) == ("True", "True"), f"{outcome.accepted.message} {outcome.planned.message}"


BROKEN: list[tuple[Any, str]] = [
    ({"model": {"uri": 3}}, "no string"),
    ({"model": {}}, "spec.model.uri: is missing"),
    ({"model": {"uri": "hf://a/b"}, "replicas": 1001}, "out of bounds"),
    ({"model": {"uri": "hf://a/b"}, "replicas": None}, "is null"),
    ({"model": {"uri": "hf://a/b"}, "modle": {}}, "no such field"),
    ({"model": {"uri": "hf://a/b"}, "engine": {"args": [{"name": "x"}, {"name": "x"}]}}, "['x'] is there 2 times"),
    ({"model": {"uri": "hf://a/b"}, "engine": {"distribution": "Other"}}, "none of"),
    ({"model": {"uri": "hf://" + "a" * 2000}}, "too many"),
]


@pytest.mark.parametrize(("spec", "want"), BROKEN, ids=[want for _, want in BROKEN])
def test_what_the_api_server_would_refuse_is_found(spec: dict[str, Any], want: str) -> None:
    assert any(want in violation for violation in violations(spec, SPEC, "spec"))
