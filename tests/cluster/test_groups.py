"""Replicas on several nodes, with the real controller and webhooks of LeaderWorkerSet: from the first start to the last Pod."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.account import ACCOUNT, granted
from support.audit import AuditTrail
from support.cluster import Cluster, Manifest
from support.leader_worker_sets import LeaderWorkerSets
from support.operator_process import OperatorProcess, condition, has, llama, serves_its_spec
from testenv import Environment

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(300)]

LEADERS, FOLLOWERS = (f"app.kubernetes.io/component={role}" for role in ("engine", "follower"))
TWO_NODES: dict[str, Any] = {"parallelism": {"tensor": 8, "nodes": 2}, "cache": {"storage": "EmptyDir"}}
RACK, GROUP = "example.com/rack", "leaderworkerset.sigs.k8s.io/group-index"


@pytest.fixture
def sets(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaderWorkerSets]:
    """LeaderWorkerSet, not installed yet."""
    made = LeaderWorkerSets(environment.control_plane, tmp_path_factory.mktemp("lws"))
    yield made
    made.remove()


@pytest.fixture
def more_nodes(gpu_nodes: Callable[..., list[str]]) -> list[str]:
    return [*gpu_nodes("h100-sxm", name="second"), *gpu_nodes("h100-sxm", name="third"), *gpu_nodes("h100-sxm", name="fourth")]


def variables(pod: Manifest) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


async def test_a_group_from_its_first_start_to_its_end(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, more_nodes: list[str], audit: AuditTrail
) -> None:
    # nothing is installed, and the condition says how
    await served.create(llama(served.namespace, **TWO_NODES))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "KindNotInstalled"))
    assert "kubectl apply --server-side -f https://" in condition(told, "Ready")["message"]

    # its controller does not run: the webhooks refuse everything
    sets.install()
    await operator.kill()  # it would end by itself, after a minute, to watch the new kind
    await operator.start()
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    assert "kubectl logs -n lws-system" in condition(told, "Ready")["message"]

    # a leader and a follower, each with its part
    sets.start()
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
    assert await served.wait_for_pods(selector=LEADERS) == ["llama-0"]
    assert await served.wait_for_pods(selector=FOLLOWERS) == ["llama-0-1"]
    leader, follower = await served.get("Pod", "llama-0"), await served.get("Pod", "llama-0-1")
    assert leader["spec"]["nodeName"] != follower["spec"]["nodeName"]
    of_leader, of_follower = variables(leader), variables(follower)
    assert (of_leader["LWS_WORKER_INDEX"], of_follower["LWS_WORKER_INDEX"]) == ("0", "1")
    address = f"llama-0.llama-0.{served.namespace}"
    assert of_leader["LWS_LEADER_ADDRESS"] == of_follower["LWS_LEADER_ADDRESS"] == address
    assert "--headless" in follower["spec"]["containers"][0]["args"]
    assert "--headless" not in leader["spec"]["containers"][0]["args"]
    slices = await served.list_all("EndpointSlice", selector="kubernetes.io/service-name=llama")
    assert [each["targetRef"]["name"] for it in slices for each in it.get("endpoints") or ()] == ["llama-0"]
    assert not await served.exists("Deployment", "llama")

    await scale_while_the_operator_is_killed(served, operator)

    await meet_an_object_of_another(served, operator)

    # a rollout replaces both Pods
    uids = {name: (await served.get("Pod", name))["metadata"]["uid"] for name in ("llama-0", "llama-0-1")}
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}})
    for name in uids:
        await served.wait_for("Pod", name, lambda it: it["metadata"]["uid"] not in uids.values() and variables(it).get("CHANGED") == "yes")
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
    generation = (await served.get("LeaderWorkerSet", "llama"))["metadata"]["generation"]

    # a lost follower costs its group, and the group comes back; as with a kubelet, the Pod is not gone before LeaderWorkerSet has seen it
    old = (await served.get("Pod", "llama-0"))["metadata"]["uid"]
    await served.patch("Pod", "llama-0-1", {"metadata": {"finalizers": ["vllm-operator.dev/test"]}})
    await served.delete("Pod", "llama-0-1")
    await served.wait_for("Pod", "llama-0", lambda it: it["metadata"]["uid"] != old or "deletionTimestamp" in it["metadata"])
    await served.patch("Pod", "llama-0-1", {"metadata": {"finalizers": None}})
    await served.wait_for("Pod", "llama-0", lambda it: it["metadata"]["uid"] != old)
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
    assert (await served.get("LeaderWorkerSet", "llama"))["metadata"]["generation"] == generation  # nothing was written

    # back on one node, and then gone
    await served.patch("VLLMDeployment", "llama", {"spec": {"parallelism": {"nodes": None}}})
    await served.wait_until_gone("LeaderWorkerSet", "llama")
    await served.wait_for_pods(0, selector=FOLLOWERS)
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
    await served.delete("VLLMDeployment", "llama")
    await served.wait_for_pods(0)

    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    assert [it for it in requests if it.status in (401, 403)] == []
    used = {(it.group, it.resource, verb) for it in requests for verb in (it.verb, *(["create"] if it.status == 201 else []))}
    assert {right for right in granted(served.namespace) if right[1] == "leaderworkersets"} - used == set()


async def test_data_parallel_ranks_on_the_nodes_of_one_rack(
    served: Cluster, sets: LeaderWorkerSets, operator: OperatorProcess, more_nodes: list[str]
) -> None:
    sets.install()
    sets.start()
    await operator.kill()  # it would end by itself, after a minute, to watch the new kind
    await operator.start()
    others = sorted(name for node in await served.list_all("Node") if (name := node["metadata"]["name"]) not in more_nodes)
    racks = {name: "ab"[number % 2] for number, name in enumerate([*others, *more_nodes])}
    for name, rack in racks.items():
        await served.patch("Node", name, {"metadata": {"labels": {RACK: rack}}})
    term = {"topologyKey": RACK, "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": "llama"}}, "matchLabelKeys": [GROUP]}
    together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    experts = {"model": {"uri": "hf://Qwen/Qwen3-30B-A3B"}, "parallelism": {"data": 16, "expert": "Enabled", "nodes": 2}}
    await served.create(llama(served.namespace, **{**TWO_NODES, **experts}, podTemplate={"spec": {"affinity": together}}))
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=180)

    leader, follower = await served.get("Pod", "llama-0"), await served.get("Pod", "llama-0-1")
    assert racks[leader["spec"]["nodeName"]] == racks[follower["spec"]["nodeName"]]
    for pod, address in ((leader, "$(VLLM_HOST_IP)"), (follower, "$(LWS_LEADER_ADDRESS)")):
        [engine] = pod["spec"]["containers"]
        assert engine["args"][engine["args"].index("--data-parallel-address") + 1] == address
        names = [each["name"] for each in engine["env"]]
        assert {"VLLM_HOST_IP", "LWS_LEADER_ADDRESS"} <= {*names}
        # the API server has put the number of the group into the selector
        [found] = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert {"key": GROUP, "operator": "In", "values": ["0"]} in found["labelSelector"]["matchExpressions"]


async def scale_while_the_operator_is_killed(served: Cluster, operator: OperatorProcess) -> None:
    """A group is a replica, and an operator that is killed loses nothing."""
    await operator.kill()
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}}, subresource="scale")
    await operator.start()
    await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"].get("readyReplicas") == 2, within=120)
    assert await served.wait_for_pods(2, selector=LEADERS) == ["llama-0", "llama-1"]
    assert await served.wait_for_pods(2, selector=FOLLOWERS) == ["llama-0-1", "llama-1-1"]
    assert (await served.get("VLLMDeployment", "llama"))["status"]["replicas"] == 2
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1}}, subresource="scale")
    await served.wait_for_pods(1, selector=FOLLOWERS)


async def meet_an_object_of_another(served: Cluster, operator: OperatorProcess) -> None:
    """It is left alone, and the condition names it."""
    await operator.kill()
    ours = await served.get("LeaderWorkerSet", "llama")
    await served.delete("LeaderWorkerSet", "llama")
    await served.wait_until_gone("LeaderWorkerSet", "llama")
    template = {"spec": {"containers": [{"name": "theirs", "image": "example.com/theirs"}]}}
    spec = {"replicas": 0, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}
    await served.create({"apiVersion": ours["apiVersion"], "kind": ours["kind"], "metadata": {"name": "llama"}, "spec": spec})
    await operator.start()
    await served.wait_for("VLLMDeployment", "llama", lambda it: "was not created by the operator" in condition(it, "Ready")["message"])
    assert (await served.get("LeaderWorkerSet", "llama"))["spec"]["replicas"] == 0
    await served.delete("LeaderWorkerSet", "llama")
    await served.wait_for("VLLMDeployment", "llama", serves_its_spec, within=120)
