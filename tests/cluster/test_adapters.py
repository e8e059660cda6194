"""Adapters that the log of a serving engine does not name, on the real API server."""

import pytest

from support.cluster import Cluster, Simulator, the_pod
from support.operator_process import OperatorProcess, has, llama
from support.verdicts import plan_verdict

pytestmark = pytest.mark.cluster

ADAPTERS = [{"name": name, "uri": f"hf://acme/{name}-lora", "rank": 16} for name in ("sql", "support")]
LOG = (
    b"INFO 11-21 12:00:00 [core.py:97] Initializing a V1 LLM engine (v0.20.1) with config\n",
    b"INFO 11-21 12:00:01 [serving.py:200] Loaded new LoRA adapter: name 'sql', path '/adapters/adapters/sql'\n",
    b"INFO:     Application startup complete.\n",
)


async def test_an_adapter_that_a_serving_engine_has_not_loaded_is_named(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace, adapters=ADAPTERS))
    pod = await the_pod(served)
    await served.wait_until_runs(pod)
    log = sim.log(pod)
    for line in LOG:
        log.write(line)
    await served.wait_for("VLLMDeployment", "llama", lambda r: (r["status"].get("startup") or {}).get("stage") == "Ready")
    await sim.change(pod, load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    told = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("engine", {}).get("unservedAdapters") == ["support"])
    assert "has not loaded support of spec.adapters" in plan_verdict(told).message
