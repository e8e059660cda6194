"""LeaderWorkerSet is too old, does not answer, or its controller does not run: each is told with the command that mends it."""

import copy
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.cluster import Cluster, Manifest
from support.leader_worker_sets import LeaderWorkerSets
from support.operator_process import OperatorProcess, has, llama, problem
from testenv import Environment

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

TWO_NODES: dict[str, Any] = {"parallelism": {"tensor": 8, "nodes": 2}, "cache": {"storage": "EmptyDir"}}
UPDATE = "kubectl apply --server-side -f https://github.com/kubernetes-sigs/lws/releases/download/"
LOG = "kubectl logs -n lws-system deployment/lws-controller-manager"


@pytest.fixture
def sets(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory, gpu_nodes: Callable[..., list[str]]
) -> Iterator[LeaderWorkerSets]:
    """LeaderWorkerSet, not installed yet, and a second node."""
    gpu_nodes("h100-sxm", name="second")
    made = LeaderWorkerSets(environment.control_plane, tmp_path_factory.mktemp("lws"))
    yield made
    made.remove()


@pytest.mark.parametrize(
    "field",
    [
        "networkConfig",
        "rolloutStrategy",
        "startupPolicy",
        "leaderWorkerTemplate.restartPolicy",
        "rolloutStrategy.rollingUpdateConfiguration.partition",
    ],
)
async def test_a_version_without_a_field_is_too_old(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    old = [copy.deepcopy(each) for each in sets.definitions()]
    for definition in old:
        if definition["spec"]["names"]["kind"] == "LeaderWorkerSet":
            place: Manifest = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            *parents, last = field.split(".")
            for name in parents:
                place = place["properties"][name]
            del place["properties"][last]
            place["required"] = [name for name in place.get("required", ()) if name != last]
    monkeypatch.setattr(sets, "definitions", lambda: iter(old))
    sets.install()
    sets.start()
    await operator.kill()
    await operator.start()
    await served.create(llama(served.namespace, **TWO_NODES))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    assert UPDATE in problem(told)
    assert field.rpartition(".")[2] in problem(told)


async def test_a_webhook_that_does_not_answer(served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess) -> None:
    sets.install()
    await operator.kill()
    await operator.start()
    with socket.create_server(("127.0.0.1", sets.port)):  # connects, and says nothing
        await served.create(llama(served.namespace, **TWO_NODES))
        told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
        assert LOG in problem(told)
    sets.start()
    await served.wait_for("LeaderWorkerSet", "llama", bool)


async def test_a_controller_that_is_gone_while_groups_serve(served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess) -> None:
    sets.install()
    sets.start()
    await operator.kill()
    await operator.start()
    await served.create(llama(served.namespace, **TWO_NODES))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True", "Serving"), within=120)
    sets.kill()
    await served.delete("Pod", "llama-0")
    await served.wait_for("VLLMDeployment", "llama", lambda it: LOG in problem(it))


async def test_a_controller_that_is_gone_together_with_its_webhooks(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess
) -> None:
    sets.install()
    sets.remove_webhooks()
    await operator.kill()
    await operator.start()
    await served.create(llama(served.namespace, **TWO_NODES))
    await served.wait_for("LeaderWorkerSet", "llama", bool)
    await served.wait_for("VLLMDeployment", "llama", lambda it: LOG in problem(it))
