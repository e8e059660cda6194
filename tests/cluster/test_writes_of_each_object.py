"""How often an object is written in its life. Counts of the API server's audit log, which a slow machine does not change much."""

from collections import Counter

import pytest

from support.audit import AuditTrail
from support.cluster import Cluster, Simulator
from support.operator_process import OperatorProcess, condition, has, llama
from vllm_operator.api import labels

pytestmark = pytest.mark.cluster

NAMES = tuple(f"model-{number}" for number in range(4))
ON_NODE = {"hostPath": "/var/cache/vllm"}


def written(audit: AuditTrail, served: Cluster) -> Counter[str]:
    """How many writes succeeded, by resource."""
    found = [it for it in audit.writes(agent="vllm-operator/", namespace=served.namespace) if it.status < 400 and it.resource != "leases"]
    return Counter("/".join(filter(None, (it.resource, it.subresource))) for it in found)


async def test_a_new_object_its_start_and_an_update_cost_few_writes(
    operator: OperatorProcess, served: Cluster, sim: Simulator, audit: AuditTrail
) -> None:
    await sim.script(path="ok", pull="0", load="1")
    for name in NAMES:
        await served.create(llama(served.namespace, name, cache=ON_NODE))
    for name in NAMES:
        await served.wait_for("VLLMDeployment", name, has("Ready", "True"), within=90)
    first = written(audit, served)
    assert first.pop("vllmdeployments/status") <= 4 * len(NAMES), "planned, Pod, stages, Ready"
    assert first.pop("events") <= len(NAMES), "Started"
    assert len(NAMES) < first.pop("controllerrevisions") <= 3 * len(NAMES), "the plan, and once each that it ran and served"
    assert first == dict.fromkeys(("deployments", "services"), len(NAMES))
    audit.mark()
    for name in NAMES:
        await served.patch("VLLMDeployment", name, {"spec": {"engine": {"version": "0.26.0"}}})
    for name in NAMES:
        await served.wait_for("VLLMDeployment", name, lambda it: is_updated(it), within=90)
    second = written(audit, served)
    assert second.pop("vllmdeployments/status") <= 4 * len(NAMES), "the new plan, Pod, stages, Ready"
    assert second.pop("events", 0) <= len(NAMES), "Started"
    assert len(NAMES) < second.pop("controllerrevisions") <= 3 * len(NAMES), "the plan, and once each that it ran and served"
    assert second == dict.fromkeys(("deployments",), len(NAMES))


def is_updated(resource: dict[str, object]) -> bool:
    ready = condition(resource, "Ready")
    return bool(ready and ready["status"] == "True" and resource["status"]["observedGeneration"] == 2)  # type: ignore[index]  # as above


async def test_the_record_of_a_claim_stays_when_the_claim_is_applied_again(
    operator: OperatorProcess, served: Cluster, sim: Simulator
) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    resource = await served.wait_for("VLLMDeployment", "llama", lambda it: (it.get("status") or {}).get("plan"))
    record = labels.USED_ANNOTATION_PREFIX + resource["status"]["cache"]["key"]
    claim = await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda it: record in (it["metadata"].get("annotations") or {}))
    since = claim["metadata"]["annotations"][record]
    changed = {"metadata": {"labels": {labels.COMPONENT_LABEL: "changed"}}}
    await served.patch("PersistentVolumeClaim", "llama-cache", changed)
    now = await served.wait_for(
        "PersistentVolumeClaim", "llama-cache", lambda it: it["metadata"]["labels"][labels.COMPONENT_LABEL] == "cache"
    )
    assert now["metadata"]["annotations"][record] == since, "applying the claim again keeps it"
