"""An object that is nested very deep, or very large, is its author's problem alone."""

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from support.cluster import Cluster, Simulator
from support.operator_process import OperatorProcess, has, llama
from support.verdicts import has_plan

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.extended,
    pytest.mark.skipif(sys.version_info < (3, 13), reason="json of Python 3.13 reads 10,000 levels, that of earlier versions about 1,000"),
]

DEEP: Mapping[str, Any] = {"spec": {"affinity": "DEEP"}}


DEPTHS = (200, 700, 980, 3000, 9000)


def nested(depth: int) -> str:
    return '{"a":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize("when", ["before it starts", "while it runs"])
async def test_an_object_that_is_nested_deep_hides_no_other(served: Cluster, sim: Simulator, when: str) -> None:
    await sim.script(path="ok", pull="0")

    async def create() -> None:
        for depth in DEPTHS:
            await served.create_text(llama(served.namespace, f"deep-{depth}", podTemplate=DEEP), {'"DEEP"': nested(depth)})

    if when == "before it starts":
        await create()
    async with OperatorProcess(served.kubeconfig, served.namespace) as operator:
        await operator.until_ready(within=60)
        if when == "while it runs":
            await create()
        await served.create(llama(served.namespace))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
        for depth in DEPTHS:
            await served.wait_for("VLLMDeployment", f"deep-{depth}", has_plan("False", "InvalidSpec"), within=30)
        assert (await operator.fetch("/readyz"))[0] == 200
        assert "RecursionError" not in operator.log, operator.log
        await served.delete("VLLMDeployment", "llama")
        await served.wait_until_gone("VLLMDeployment", "llama", within=30)
