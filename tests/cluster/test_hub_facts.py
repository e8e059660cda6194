"""Facts about a model from a hub on loopback: asked with the token of a Secret, once, and kept in the plan."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from support.cluster import Cluster
from support.operator_process import OperatorProcess, llama, pinned_plan
from support.verdicts import has_plan, plan_verdict

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

TOKEN = "hf_only_for_the_hub"
CONFIG = {"model_type": "brand_new", "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}


class Hub:
    """A model hub with one gated model; `asked` are paths with the token."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("Authorization", "")))
        if request.path.endswith("/config.json"):
            return web.Response(text=json.dumps(CONFIG))
        if request.path.endswith(".index.json"):
            return web.Response(text=json.dumps({"metadata": {"total_size": 16_060_522_496}, "weight_map": {"a": "model-1.safetensors"}}))
        return web.Response(status=404)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    app = web.Application()
    app.router.add_get("/{path:.*}", hub.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield hub
    await runner.cleanup()


async def looked(operator: OperatorProcess) -> None:
    """Wait until the operator has looked at what there is."""
    async with asyncio.timeout(60):
        while True:
            if (await operator.reconciles()).get("success"):
                return
            await asyncio.sleep(0.1)


async def test_a_plan_is_made_with_the_facts_of_a_gated_model_and_asks_once(served: Cluster, hub: Hub) -> None:
    data = {"token": base64.b64encode(TOKEN.encode()).decode()}
    await served.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": served.namespace}, "data": data})
    model = {"uri": "hf://someone/unheard-of", "tokenSecretRef": {"name": "hub"}}
    # generous: the test is about what is told, not about how fast a busy machine is
    async with OperatorProcess(served.kubeconfig, served.namespace, hub_endpoint=hub.url, hub_wait_seconds="20") as operator:
        await operator.until_ready(within=60)
        await served.create(llama(served.namespace, model=model))
        resource = await served.wait_for("VLLMDeployment", "llama", has_plan("True"), within=60)
        plan = await pinned_plan(served, resource)
        facts = {fact["name"]: (fact["value"], fact["source"]) for fact in plan["modelFacts"]}
        assert facts["attention"] == ("GQA", "config.json")
        assert facts["experts"] == ("0", "config.json")
        assert facts["quantization"] == ("BF16", "config.json")
        assert facts["weightBytes"] == ("16060522496", "weight files")
        files = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")
        assert sorted(hub.asked) == [(f"/someone/unheard-of/resolve/main/{file}", f"Bearer {TOKEN}") for file in files]
        assert TOKEN not in json.dumps(resource)
        assert TOKEN not in operator.log
        assert "Traceback" not in operator.log, operator.log
        await operator.kill()
        hub.asked.clear()
        await operator.start()
        await operator.until_says("serving", times=2, within=60)
        await looked(operator)
        resource = await served.get("VLLMDeployment", "llama")
        assert plan_verdict(resource).reason == "Planned"
        assert hub.asked == []
