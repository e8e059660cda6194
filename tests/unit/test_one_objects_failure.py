"""The state of one object, and what cannot be read for one, changes no other object."""

import pytest

from support.operators import Bench, llama
from vllm_operator.cluster.client import VLLM_DEPLOYMENT


@pytest.mark.parametrize("order", [("bad", "good"), ("good", "bad")])
async def test_objects_with_equal_specs_and_different_status_get_their_own_plans(order: tuple[str, str]) -> None:
    bench, digest = Bench(), f"sha256:{'0' * 64}"
    for name in order:
        bench.cluster.put(llama(name, cache={"artifact": {"repository": "registry.example/team/caches"}}))
        await bench.settle(("default", name))
    status = {**bench.resource("bad")["status"]}
    status["cache"] = {**status["cache"], "artifact": {"rejected": [digest]}}  # a start with this artifact has crashed
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "bad", {"status": status})
    for name in order:
        bench.cluster.edit(VLLM_DEPLOYMENT, "default", name, {"spec": {"engine": {"version": "0.24.0"}}})
    for name in order:
        await bench.settle(("default", name))
    rejected = {name: artifact.rejected for name in order if (artifact := bench.plan(name).cache_artifact) is not None}
    assert rejected == {"bad": [digest], "good": []}
