"""CPU and memory of the engine container: requested by new plans, left to the user where they set them, absent in older plans."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.planning.engine.serving import plan_requests
from vllm_operator.rendering.manifests import render

LLAMA_70B = "hf://meta-llama/Llama-3.3-70B-Instruct"


def resources(plan: Any, **spec: Any) -> dict[str, Any]:
    manifests = render(deployment(**spec), plan)
    [pod] = [manifest["spec"]["template"]["spec"] for manifest in manifests if manifest["kind"] == "Deployment"]
    [engine] = pod["containers"]
    found: dict[str, Any] = engine["resources"]
    return found


def engine(**resources: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "vllm", "resources": resources}]}}}


def test_the_engine_requests_cpu_and_memory_by_the_number_of_its_gpus() -> None:
    node = real_node("h100-sxm")
    one, four = made(deployment(), node), made(deployment(LLAMA_70B), node)
    assert resources(one) == {"requests": {"cpu": "2", "memory": "6Gi"}, "limits": {"nvidia.com/gpu": "1"}}
    assert resources(four)["requests"] == {"cpu": "5", "memory": "18Gi"}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"requests": {"cpu": "8"}}, {"requests": {"cpu": "8", "memory": "6Gi"}}),
        ({"limits": {"memory": "4Gi"}}, {"requests": {"cpu": "2"}}),
        ({"limits": {"cpu": "1", "memory": "4Gi"}}, {}),
        ({"requests": {"cpu": None, "memory": None}}, {}),
        ({"limits": "many"}, {"requests": {"cpu": "2", "memory": "6Gi"}}),
    ],
)
def test_what_the_user_requests_or_limits_is_left_to_them(given: dict[str, Any], want: dict[str, Any]) -> None:
    asked = plan_requests(1, 0.0, engine(**given)["podTemplate"]).to_json()
    own = {name: value for name, value in (given.get("requests") or {}).items() if value}
    assert {**asked, **own} == want.get("requests", {})


def test_weights_in_the_memory_of_the_host_are_requested() -> None:
    args = [{"name": "--cpu-offload-gb", "value": "9.5"}]
    plan = made(deployment(engine={"version": "0.20.1", "args": args}), real_node("h100-sxm"))
    assert plan.requests is not None
    assert plan.requests.memory == "16Gi"


def test_a_claim_for_devices_stands_beside_the_requests() -> None:
    plan = made(deployment(), real_node("h100-sxm")).model_copy(update={"resource": "gpu.nvidia.com"})
    assert resources(plan) == {"requests": {"cpu": "2", "memory": "6Gi"}, "claims": [{"name": "gpu"}]}
