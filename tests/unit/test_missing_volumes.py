"""A PersistentVolumeClaim or StorageClass that does not exist is an error at once, and not a start that is late after an hour."""

from dataclasses import replace

import pytest

from support import observations as o
from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api.conditions import find_condition
from vllm_operator.kube.client import CLAIM
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import report

NOT_FOUND = '0/3 nodes are available: persistentvolumeclaim "modelz" not found.'
NO_CLASS = o.event("ProvisioningFailed", 'storageclass.storage.k8s.io "fastt" not found', name="vllm-a-cache", kind="PersistentVolumeClaim")
WAITING = o.unschedulable_pod(message="0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
NEW_CLAIM = o.claim("Pending")
NEW_CLAIM["metadata"]["creationTimestamp"] = o.stamp(-3)
MISSING = {
    "the volume of the model": (
        replace(o.observe(o.unschedulable_pod(message=NOT_FOUND)), missing_claims={"modelz": "spec.model.uri"}),
        "ClaimMissing",
        "PersistentVolumeClaim modelz (spec.model.uri) does not exist in namespace models",
    ),
    "a volume of podTemplate": (
        replace(
            o.observe(o.unschedulable_pod(message=NOT_FOUND)),
            missing_claims={"modelz": "spec.podTemplate.spec.volumes[0].persistentVolumeClaim.claimName"},
        ),
        "ClaimMissing",
        "(spec.podTemplate.spec.volumes[0].persistentVolumeClaim.claimName) does not exist",
    ),
    "the volume of the caches": (
        o.observe(WAITING, claim=None, claim_name="shared", spec={"cache": {"claimName": "shared"}}),
        "ClaimMissing",
        "PersistentVolumeClaim shared (spec.cache.claimName) does not exist",
    ),
    "the storage class of the caches": (
        o.observe(WAITING, claim=o.claim("Pending", storage_class="fastt"), pod_events=(NO_CLASS,)),
        "StorageClassMissing",
        "Correct spec.cache.volume.storageClassName, then delete the PVC",
    ),
}


@pytest.mark.parametrize(("observed", "reason", "words"), MISSING.values(), ids=MISSING)
def test_it_is_an_error_and_names_the_field(observed: Observation, reason: str, words: str) -> None:
    reported = report(observed)
    ready = find_condition(reported.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", reason)
    assert words in ready.message
    assert reported.start is None, "it is not a start that takes long"


@pytest.mark.parametrize(
    "observed",
    [
        o.observe(WAITING, claim=NEW_CLAIM),
        o.observe(o.unschedulable_pod(), claim=o.claim("Bound")),
    ],
)
def test_a_volume_that_is_being_made_is_progress(observed: Observation) -> None:
    progress = find_condition(report(observed).status.conditions, "Ready")
    assert progress is not None
    assert progress.reason in ("WaitingForVolume", "Unschedulable")


async def test_the_claim_of_the_model_is_looked_for_while_its_pod_waits(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(model={"uri": "pvc://modelz/llama"})
    pod = fleet.start()
    fleet.unschedulable(pod)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NOT_FOUND}
    fleet.show(pod, condition, phase="Pending")
    await fleet.settle()
    assert bench.condition("Ready").reason == "ClaimMissing"
    assert "spec.model.uri" in bench.message("Ready")
    bench.cluster.put({"apiVersion": "v1", "kind": CLAIM.kind, "metadata": {"name": "modelz", "namespace": "default"}})
    await fleet.settle()
    assert bench.condition("Ready").reason != "ClaimMissing"
