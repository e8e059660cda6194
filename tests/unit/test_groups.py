"""Replicas on several nodes: which sizes are accepted, what leader and followers get, and what a cluster without LeaderWorkerSet says."""

from itertools import pairwise
from typing import Any

import pytest

from support.gpus import inventory_of, real_node
from support.operators import Bench, llama
from support.plans import known
from vllm_operator.api.conditions import Verdict
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment, template_spec
from vllm_operator.kube.client import DEPLOYMENT, LEADER_WORKER_SET, Unavailable
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.exposure import render_disruption_budget, render_exposure
from vllm_operator.rendering.manifests import render
from vllm_operator.sizing.parallelism import resolve_shape

R1, QWEN = "hf://deepseek-ai/DeepSeek-R1", "hf://Qwen/Qwen3-32B"
SHARED = {"volume": {"accessMode": "ReadWriteMany"}}
TWO = {"tensor": 8, "nodes": 2}
RANKS = {"data": 16, "expert": "Enabled", "nodes": 2}


def deployment(uri: str = R1, name: str = "demo", version: str = "0.33.0", **spec: Any) -> VLLMDeployment:
    given = {"model": {"uri": uri}, "engine": {"version": version}, "cache": SHARED, **spec}
    return VLLMDeployment.parse({"metadata": {"name": name, "namespace": "default"}, "spec": given})


def outcome(resource: VLLMDeployment, nodes: int = 2, kind: str = "h100-sxm") -> Outcome:
    return plan(resource, inventory_of(*(real_node(kind, f"{kind}-{number}") for number in range(nodes))), known())


def planned(resource: VLLMDeployment, nodes: int = 2, kind: str = "h100-sxm") -> Plan:
    made = outcome(resource, nodes, kind).plan
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"parallelism": TWO}, ("tp8-pp2", 8, 2), id="the pipeline has a stage on each node"),
        pytest.param({"parallelism": {**TWO, "pipeline": 1}}, ("tp8", 4, 2), id="tensor parallelism over both nodes"),
        pytest.param({"parallelism": {**TWO, "pipeline": 4}}, ("tp8-pp4", 16, 2), id="two stages on each node"),
        pytest.param({"parallelism": {"nodes": 2}, "accelerator": {"count": 16}}, ("tp8-pp2", 8, 2), id="all GPUs of the count"),
        pytest.param({"parallelism": {"tensor": 8, "nodes": 1}}, ("tp8", 8, 1), id="one node"),
        pytest.param({"parallelism": {"tensor": 3, "pipeline": 1, "nodes": 2}}, "3 GPUs cannot be divided by 2 nodes", id="indivisible"),
        pytest.param({"parallelism": {**TWO, "data": 2}}, ("tp8-dp2", 8, 2), id="a data-parallel rank on each node"),
        pytest.param({"parallelism": {"data": 16, "expert": "Enabled", "nodes": 2}}, ("tp1-dp16-ep", 8, 2), id="eight ranks on each node"),
        pytest.param({"parallelism": {"tensor": 16, "data": 2, "nodes": 4}}, ("tp16-dp2", 8, 4), id="two nodes for each rank"),
        pytest.param({"parallelism": {**TWO, "data": 3}}, "Set spec.parallelism.data to a multiple of 2", id="one and a half ranks"),
        pytest.param({"parallelism": {"data": 3, "nodes": 2}}, "and spec.parallelism.data to 2", id="indivisible ranks"),
    ],
)
def test_sizes(spec: dict[str, Any], want: tuple[str, int, int] | str) -> None:
    shape = resolve_shape(deployment(**spec).spec)
    if isinstance(want, str):
        assert isinstance(shape, Verdict)
        assert want in shape.message
    else:
        assert not isinstance(shape, Verdict)
        assert (str(shape.parallel), shape.count, shape.nodes) == want


@pytest.mark.parametrize(
    ("resource", "nodes", "want"),
    [
        pytest.param(deployment(), 2, (8, 2), id="too large for a node"),
        pytest.param(deployment(parallelism={"nodes": 2}), 2, (8, 2), id="only the number of nodes is given"),
        pytest.param(deployment(QWEN), 2, (2, None), id="small"),
        pytest.param(deployment(QWEN, parallelism=TWO), 2, (8, 2), id="small, and several nodes are asked for"),
        pytest.param(deployment(parallelism={"nodes": 1}), 2, "does not fit on 8 NVIDIA H100", id="several nodes are forbidden"),
        pytest.param(deployment(), 1, "does not fit on 8 NVIDIA H100", id="the cluster has one node"),
        pytest.param(deployment(parallelism=TWO), 1, "Add nodes, or lower spec.parallelism.nodes", id="more nodes than there are"),
        pytest.param(deployment(version="0.17.1"), 2, "Set spec.engine.version to 0.18.0 or later", id="an older version"),
        pytest.param(deployment(cache={}), 2, "Set spec.cache.volume.accessMode to ReadWriteMany", id="a volume for one node"),
        pytest.param(
            deployment(weights={"volume": {"accessMode": "ReadWriteOnce"}}), 2, "spec.weights.storage to HostPath", id="of weights"
        ),
        pytest.param(deployment(cache={"claimName": "mine"}), 2, (8, 2), id="a volume of the user"),
        pytest.param(deployment(name="n" * 49), 2, "at most 48 characters", id="a long name"),
        pytest.param(
            deployment(parallelism=TWO, podTemplate={"spec": {"containers": [{"name": "vllm", "args": ["--x"]}]}}),
            2,
            "Use spec.engine.args",
            id="own arguments",
        ),
        pytest.param(deployment(parallelism=RANKS), 2, (8, 2), id="data and expert parallel"),
        pytest.param(
            deployment(QWEN, parallelism={**TWO, "data": 2}), 2, "raise spec.replicas instead", id="data parallel without experts"
        ),
        pytest.param(
            deployment(engine={"version": "0.33.0", "args": [{"name": "data-parallel-hybrid-lb"}]}), 2, "one serves", id="two serve"
        ),
        pytest.param(
            deployment(engine={"version": "0.33.0", "extraArgs": ["--data-parallel-backend=ray"]}),
            2,
            "refuses --data-parallel-backend ray",
            id="Ray",
        ),
        pytest.param(deployment(accelerator={"count": 16}), 2, "Set spec.parallelism.nodes to 2", id="more GPUs than a node has"),
    ],
)
def test_when_a_replica_gets_several_nodes(resource: VLLMDeployment, nodes: int, want: tuple[int, int | None] | str) -> None:
    found = outcome(resource, nodes)
    if isinstance(want, str):
        assert found.refusal is not None
        assert want in found.refusal.message
    else:
        assert found.plan is not None
        assert (found.plan.count, found.plan.nodes) == want


def test_the_current_plan_keeps_its_nodes() -> None:
    resource = deployment()
    made = planned(resource, nodes=4)
    again = plan(resource, inventory_of(*(real_node("h100-sxm", f"other-{number}") for number in range(4))), known(), pinned=made)
    assert again.plan == made
    assert again.drift == ()


def rendezvous_seconds(made: Plan) -> int | None:
    """How long the nodes of a replica wait for each other."""
    values = [int(argument.value or "") for argument in made.args if argument.name == "--distributed-timeout-seconds"]
    return values[0] if values else None


def test_time_limits_of_ranks_are_shorter_than_the_startup_probe_and_longer_than_a_start_on_one_node() -> None:
    several, one = planned(deployment(), kind="h200"), planned(deployment(parallelism=TWO), kind="h200")
    assert several.nodes is None
    assert one.deadline_seconds > (rendezvous_seconds(one) or 0) >= several.deadline_seconds - 1
    asked = planned(deployment(startup={"deadlineSeconds": 900}))
    assert (asked.deadline_seconds, rendezvous_seconds(asked)) == (900, 600)
    assert rendezvous_seconds(several) is None


def test_followers_have_no_server_and_otherwise_the_arguments_of_their_leader() -> None:
    args = [{"name": "api-server-count", "value": "3"}, {"name": "max-num-seqs", "value": "64"}]
    resource = deployment(engine={"version": "0.33.0", "args": args}, network={"interface": "eth1", "rdmaResource": "rdma/hca"})
    [workload] = [each for each in render(resource, planned(resource)) if each["kind"] == "LeaderWorkerSet"]
    template = workload["spec"]["leaderWorkerTemplate"]
    [leader], [follower] = template_spec(workload)["containers"], template["workerTemplate"]["spec"]["containers"]
    assert {*leader} - {*follower} == {"ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"}
    assert "--api-server-count" in leader["args"]
    assert {*leader["args"]} - {*follower["args"]} == {
        *("--port", "8000", "--api-server-count", "3", "--enable-server-load-tracking", "--shutdown-timeout", "60")
    }
    assert {*follower["args"]} - {*leader["args"]} == {"--headless"}
    assert leader["env"] == follower["env"]
    assert {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in leader["env"]
    assert {"name": "GLOO_SOCKET_IFNAME", "value": "eth1"} in leader["env"]
    assert follower["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert follower["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_the_pods_of_a_group_are_on_different_nodes_unless_the_user_spreads_them() -> None:
    zones = [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    for given, want in (
        (None, ("kubernetes.io/hostname", 2)),
        ({"spec": {"topologySpreadConstraints": zones}}, (zones[0]["topologyKey"], None)),
    ):
        resource = deployment(QWEN, parallelism={"tensor": 4, "nodes": 2}, podTemplate=given)
        [workload] = [each for each in render(resource, planned(resource)) if each["kind"] == "LeaderWorkerSet"]
        for template in ("leaderTemplate", "workerTemplate"):
            [rule] = workload["spec"]["leaderWorkerTemplate"][template]["spec"]["topologySpreadConstraints"]
            assert (rule["topologyKey"], rule.get("minDomains")) == want


def test_one_node_with_gpus_for_two_ranks_is_not_enough() -> None:
    told = outcome(deployment(QWEN, parallelism={"tensor": 4, "nodes": 2}), nodes=1)
    assert (told.plan, told.refusal and told.refusal.reason) == (None, "NoMatchingGPU")


@pytest.mark.parametrize("version", ["0.18.0", "0.26.0", "0.33.0"])
def test_the_leader_listens_at_its_address_for_the_ranks_of_other_nodes_which_get_its_name(version: str) -> None:
    resource = deployment(version=version, parallelism=RANKS)
    [workload] = [each for each in render(resource, planned(resource, kind="h200")) if each["kind"] == "LeaderWorkerSet"]
    [follower] = workload["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    for args, address in (
        (template_spec(workload)["containers"][0]["args"], "$(VLLM_HOST_IP)"),
        (follower["args"], "$(LWS_LEADER_ADDRESS)"),
    ):
        values = dict(pairwise(args))
        assert (values["--data-parallel-size"], values["--data-parallel-address"]) == ("16", address)
        assert (values["--nnodes"], values["--node-rank"]) == ("$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)")
        assert values["--data-parallel-rpc-port"] == "29550"
        assert "--enable-expert-parallel" in args
        assert not {"--data-parallel-start-rank", "--data-parallel-size-local"} & {*args}  # vLLM derives them from the rank of the node


@pytest.mark.parametrize(
    ("rollout", "want"),
    [
        pytest.param({}, {"maxSurge": 0, "maxUnavailable": 1}, id="one group after the other"),
        pytest.param({"strategy": "Recreate"}, {"maxSurge": 0, "maxUnavailable": "100%"}, id="all at once"),
        pytest.param({"maxSurge": 1, "maxUnavailable": 0}, {"maxSurge": 1, "maxUnavailable": 0}, id="with spare nodes"),
    ],
)
def test_rollouts_count_groups(rollout: dict[str, Any], want: dict[str, Any]) -> None:
    resource = deployment(replicas=2, rollout=rollout)
    [workload] = [each for each in render(resource, planned(resource, nodes=8)) if each["kind"] == "LeaderWorkerSet"]
    assert workload["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] == {"partition": 0, **want}


def test_a_network_policy_opens_all_ports_within_groups_and_a_budget_counts_all_pods() -> None:
    resource = deployment(replicas=2, networkPolicy={})
    [policy] = render_exposure(resource, has_groups=True)
    server, between = policy["spec"]["ingress"]
    assert server == {"ports": [{"port": 8000, "protocol": "TCP"}]}
    assert between == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    budget = render_disruption_budget(resource, has_groups=True)
    assert budget is not None
    roles = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["engine", "follower"]}
    assert budget["spec"]["selector"]["matchExpressions"] == policy["spec"]["podSelector"]["matchExpressions"] == [roles]


GROUPS: dict[str, Any] = {"parallelism": TWO, "cache": {"storage": "EmptyDir"}}


@pytest.fixture
def two_nodes() -> Bench:
    return Bench(real_node("h100-sxm", "one"), real_node("h100-sxm", "two"))


def timed_out() -> Unavailable:
    error = Unavailable("The API server did not answer in time")
    error.__cause__ = TimeoutError()
    return error


@pytest.mark.parametrize(
    "broken",
    [Unavailable('Internal error occurred: failed calling webhook "mleaderworkerset.kb.io": connection refused'), timed_out()],
    ids=["the API server gives up", "the operator gives up"],
)
async def test_a_broken_webhook_is_told_with_the_way_to_its_log(two_nodes: Bench, broken: Unavailable) -> None:
    two_nodes.cluster.fail("apply", LEADER_WORKER_SET, broken, times=99)
    two_nodes.cluster.put(llama(**GROUPS))
    await two_nodes.settle()
    ready = two_nodes.condition("Ready")
    assert ready.reason == "ApplyFailed"
    assert "kubectl logs -n lws-system deployment/lws-controller-manager" in ready.message


async def test_a_changed_number_of_nodes_replaces_one_kind_of_object_by_the_other(two_nodes: Bench) -> None:
    two_nodes.cluster.put(llama(**GROUPS))
    await two_nodes.settle()
    [workload] = two_nodes.cluster.all(LEADER_WORKER_SET)
    assert two_nodes.cluster.all(DEPLOYMENT) == []
    assert workload["spec"]["leaderWorkerTemplate"]["size"] == 2
    writes = len(two_nodes.cluster.writes)
    two_nodes.restart()
    await two_nodes.settle()
    assert len(two_nodes.cluster.writes) == writes  # nothing has changed
    two_nodes.cluster.put(llama(**{**GROUPS, "parallelism": {"tensor": 8}}))
    await two_nodes.settle()
    assert two_nodes.cluster.all(LEADER_WORKER_SET) == []
    assert len(two_nodes.cluster.all(DEPLOYMENT)) == 1
