"""Models in object stores and in images: what engines get, and which versions are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.fleet import Fleet
from support.operators import Bench

EXAMPLES = Path(__file__).parents[2] / "examples"


def pod(fleet: Fleet) -> dict[str, Any]:
    return dict((fleet.deployment() or {})["spec"]["template"]["spec"])


@pytest.mark.parametrize("uri", ["s3://models/llama", "gs://models/llama", "az://models/llama"])
async def test_an_engine_gets_the_uri_of_an_object_store_and_no_volume_for_weights(fleet: Fleet, bench: Bench, uri: str) -> None:
    await fleet.serve(model={"uri": uri, "facts": {"weightSize": "16Gi"}}, engine={"version": "0.20.1"})
    [engine] = pod(fleet)["containers"]
    assert engine["command"] == ["vllm", "serve", uri]
    assert engine["args"][engine["args"].index("--served-model-name") + 1] == "models/llama"
    assert [volume["name"] for volume in pod(fleet)["volumes"]] == ["cache", "shared-memory", "temporary", "operator-tools"]
    assert "runai-model-streamer" not in str(bench.plan().notes)


@pytest.mark.parametrize(
    ("uri", "version", "accepted"),
    [
        ("s3://models/llama", "0.11.0", True),
        ("az://models/llama", "0.18.0", True),
        ("az://models/llama", "0.17.1", False),
        ("gs://models/llama", "0.10.2", False),
        ("hf://models/llama", "0.10.2", True),
    ],
)
async def test_a_version_that_cannot_read_the_store_is_refused_with_the_way(
    fleet: Fleet, bench: Bench, uri: str, version: str, accepted: bool
) -> None:
    await fleet.serve(model={"uri": uri}, engine={"version": version, "introspect": "Disabled"})
    refused = bench.plan_verdict().message
    assert ("cannot read a model from" in refused) is not accepted
    assert accepted or "use pvc://" in refused


async def test_the_plan_says_what_another_image_needs(fleet: Fleet, bench: Bench) -> None:
    engine = {"image": "registry.example.com/ml/engine:1", "version": "0.20.1"}
    await fleet.serve(model={"uri": "s3://models/llama"}, engine=engine)
    assert "runai-model-streamer" in str(bench.plan().notes)


async def test_an_image_volume_takes_the_place_of_the_claim(fleet: Fleet) -> None:
    spec = yaml.safe_load((EXAMPLES / "model-in-image.yaml").read_text("utf-8"))["spec"]
    await fleet.serve(**spec)
    [volume] = [each for each in pod(fleet)["volumes"] if each["name"] == "model"]
    assert volume == spec["podTemplate"]["spec"]["volumes"][0]
    [engine] = pod(fleet)["containers"]
    assert engine["command"][-1] == "/models/llama-3.1-8b-instruct"
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in engine["volumeMounts"]
