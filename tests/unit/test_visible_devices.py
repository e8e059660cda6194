"""Devices named in variables: translated where that is right, refused where the version ends on it, warned of otherwise."""

from typing import Any

import pytest
import yaml

from support.gpus import real_node
from support.plans import deployment, planned
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.planning.engine.overrides import Translation, translate
from vllm_operator.planning.outcome import Outcome
from vllm_operator.rendering.manifests import render

ONE, OTHER = "MIG-8949ea7d-9166-53ce-9bac-6c58262addf9", "MIG-1d47f2d1-0dbc-5a9d-8c5e-77d15d5a6bd3"
GPU = "GPU-a4f34abc-7715-3560-dcea-7238b9611a45"


def device(uuid: str) -> dict[str, Any]:
    attributes = {
        "type": {"string": "mig"},
        "uuid": {"string": uuid},
        "parentUUID": {"string": GPU},
        "profile": {"string": "3g.40gb"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "driverVersion": {"version": "580.95.5"},
    }
    return {"name": uuid.lower(), "attributes": attributes, "capacity": {"memory": {"value": "40192Mi"}}}


SLICES: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "slice"},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "h100-mig-mixed", "pool": {"name": "p"}, "devices": [device(ONE), device(OTHER)]},
}


def resource(value: str, *, version: str = "0.20.1", variable: str = "CUDA_VISIBLE_DEVICES", **spec: Any) -> VLLMDeployment:
    env = [{"name": variable, "value": value}, {"name": "MINE", "value": "1"}]
    return deployment("hf://TinyLlama/TinyLlama-1.1B-Chat-v1.0", engine={"version": version, "env": env}, **spec)


def outcome(wanted: VLLMDeployment) -> Outcome:
    node = real_node("h100-mig-mixed", "h100-mig-mixed")
    return planned(wanted, node, slices=(SLICES,) if "DRA" in str(wanted.spec.accelerator) else ())


def claims(**mig: Any) -> dict[str, Any]:
    return {"accelerator": {"allocation": "DRA", "mig": mig or {"profile": "3g.40gb"}}}


@pytest.mark.parametrize("version", ["0.16.0", "0.20.1", "0.24.0", "0.33.0"])
@pytest.mark.parametrize(
    ("value", "mig", "pinned"),
    [
        (ONE, {}, [ONE]),
        (f"{ONE}, {OTHER}", {}, [ONE, OTHER]),
        (ONE, {"uuids": [ONE]}, [ONE]),
    ],
)
def test_a_claim_asks_for_the_devices_that_the_variable_names(version: str, value: str, mig: dict[str, Any], pinned: list[str]) -> None:
    wanted = resource(value, version=version, **claims(**mig))
    found = outcome(wanted)
    assert found.plan is not None, (found.accepted.message, found.planned.message)
    assert any("The operator requests exactly these in the ResourceClaim" in note for note in found.plan.notes)
    text = yaml.safe_dump_all(render(wanted, found.plan))
    assert "CUDA_VISIBLE_DEVICES" not in text
    assert "MINE" in text
    assert all(uuid in text for uuid in pinned)


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        pytest.param(ONE, {"accelerator": {"mig": {"profile": "1g.10gb"}}}, id="the device plugin cannot pin"),
        pytest.param(ONE, claims(uuids=[OTHER]), id="another device is pinned"),
        pytest.param(ONE, {**claims(), "replicas": 2}, id="two replicas, one device"),
        pytest.param(f"{ONE},0", claims(), id="a number beside the UUID"),
        pytest.param(f"{ONE},{ONE}", claims(), id="the same device twice"),
        pytest.param(GPU, claims(), id="a whole GPU"),
        pytest.param(GPU, {}, id="a whole GPU from the device plugin"),
    ],
)
def test_what_cannot_be_translated_is_refused_or_warned_of(value: str, spec: dict[str, Any]) -> None:
    node = real_node("h100-mig-mixed", "h100-mig-mixed") if spec else real_node("h100-sxm")
    slices = (SLICES,) if "DRA" in str(spec) else ()
    old = planned(resource(value, **spec), node, slices=slices)
    assert (old.accepted.reason, old.plan) == ("Unsupported", None), old
    assert "vLLM before 0.24 fails on it" in old.accepted.message
    new = planned(resource(value, version="0.24.0", **spec), node, slices=slices)
    assert new.plan is not None, new
    assert any("has the UUID of a device" in note for note in new.plan.notes)


def whole(uuid: str) -> dict[str, Any]:
    made = device(uuid)
    attributes = {name: value for name, value in made["attributes"].items() if name not in ("profile", "parentUUID")}
    return {**made, "attributes": attributes | {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "81559Mi"}}}


OTHER_GPU = "GPU-fbc2c554-4d37-8938-0032-f923bad0f716"
WHOLE = {**SLICES, "spec": {**SLICES["spec"], "nodeName": "h100-sxm", "devices": [whole(GPU), whole(OTHER_GPU)]}}


@pytest.mark.parametrize("given", ["accelerator.uuids", "CUDA_VISIBLE_DEVICES"])
def test_a_claim_asks_for_the_whole_gpus_that_are_named(given: str) -> None:
    accelerator: dict[str, Any] = {"allocation": "DRA"} | ({"uuids": [OTHER_GPU, GPU]} if given == "accelerator.uuids" else {})
    env = [{"name": "CUDA_VISIBLE_DEVICES", "value": f"{OTHER_GPU},{GPU}"}] if given == "CUDA_VISIBLE_DEVICES" else []
    wanted = deployment(engine={"version": "0.20.1", "env": env}, accelerator=accelerator, parallelism={"tensor": 2})
    found = planned(wanted, real_node("h100-sxm", "h100-sxm"), slices=(WHOLE,))
    assert found.plan is not None, (found.accepted.message, found.planned.message)
    template = next(manifest for manifest in render(wanted, found.plan) if manifest["kind"] == "ResourceClaimTemplate")
    request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert request["count"] == 2
    assert any(f".uuid in ['{OTHER_GPU}', '{GPU}']" in selector["cel"]["expression"] for selector in request["selectors"])
    assert "CUDA_VISIBLE_DEVICES" not in yaml.safe_dump_all(render(wanted, found.plan))


@pytest.mark.parametrize(("replicas", "scaled"), [(1, 3), (2, 3), (2, 0)])
def test_scaling_keeps_the_devices_of_the_plan_in_force(replicas: int, scaled: int) -> None:
    def of(number: int) -> VLLMDeployment:
        return resource(f"{GPU},{OTHER_GPU}", accelerator={"allocation": "DRA"}, replicas=number)

    made = planned(of(replicas), real_node("h100-sxm", "h100-sxm"), slices=(WHOLE,)).plan
    assert made is not None
    assert made.uuids == [GPU, OTHER_GPU]
    kept = planned(of(scaled), real_node("h100-sxm", "h100-sxm"), slices=(WHOLE,), pinned=made).plan
    assert kept is not None
    before, after = (
        [
            each["spec"]["template"] if each["kind"] == "Deployment" else each
            for each in render(*it)
            if each["kind"] in ("Deployment", "ResourceClaimTemplate")
        ]
        for it in ((of(replicas), made), (of(scaled), kept))
    )
    assert before == after


def test_a_gpu_that_no_node_has_is_named() -> None:
    wanted = deployment(accelerator={"allocation": "DRA", "uuids": ["GPU-00000000-0000-0000-0000-000000000000"]})
    found = planned(wanted, real_node("h100-sxm", "h100-sxm"), slices=(WHOLE,))
    assert found.planned.reason == "NoMatchingGPU"
    assert "with UUID GPU-00000000" in found.planned.message
    assert "nvidia-smi -L" in found.planned.message


@pytest.mark.parametrize("value", ["0", "0,1", "", "all"])
def test_other_values_are_the_users_own(value: str) -> None:
    found = outcome(resource(value, **claims()))
    assert found.plan is not None
    assert not any("UUID" in note for note in found.plan.notes)
    assert "CUDA_VISIBLE_DEVICES" in yaml.safe_dump_all(render(resource(value, **claims()), found.plan))


@pytest.mark.parametrize("value", ["all", "0", ONE, "void"])
@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
def test_the_variable_of_the_container_runtime_is_warned_of(value: str, version: str) -> None:
    found = planned(resource(value, version=version, variable="NVIDIA_VISIBLE_DEVICES"), real_node("h100-sxm"))
    assert found.plan is not None
    assert any(note.startswith("NVIDIA_VISIBLE_DEVICES is set in spec.engine.env.") for note in found.plan.notes)


def test_a_variable_from_elsewhere_is_left_alone() -> None:
    env = [{"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    given = deployment(engine={"version": "0.20.1", "env": env}, **claims())
    assert translate(given) == Translation(given)
    assert outcome(given).plan is not None
