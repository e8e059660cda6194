"""`spec.weights.prefetch`: a Job fetches the weights, then the engines start. On a cluster in memory."""

import json
from typing import Any

import pytest

from support.fleet import Fleet
from support.followed_logs import FOREVER, World
from support.gpus import device, real_node, resource_slice
from support.logs import RUNNING, line
from support.logs import pod as engine_pod
from support.operators import Bench, llama
from vllm_operator.api import labels, reading
from vllm_operator.api.resource import Role
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, JOB, POD, RESOURCE_SLICE, VLLM_DEPLOYMENT, Forbidden
from vllm_operator.logs.state import Progress, Stage, StartupState

COMMIT, OTHER = "8f3f9f1f1c0d5f4a0f6f0c7b5d7b1d2f0a4b8e6d", "1" * 40
PREFETCH = {"prefetch": "BeforeStart"}
FETCHED = {"result": "Fetched", "commit": COMMIT}


def jobs(bench: Bench) -> list[dict[str, Any]]:
    return [dict(job) for job in bench.cluster.all(JOB)]


def run_job(bench: Bench, job: dict[str, Any], *, node: str = "node-1", **state: Any) -> str:
    """The Pod of a Job is in this state; return its name."""
    is_over = state.get("state", {}).get("terminated", {}).get("exitCode") == 0
    container = {"name": labels.FETCH_WEIGHTS_CONTAINER, "restartCount": 0, "state": {}, "lastState": {}, **state}
    status = {"phase": "Succeeded" if is_over else "Running", "containerStatuses": [container]}
    return Fleet(bench).start_job(job, status, node=node)


def nodes_of(job: dict[str, Any]) -> list[str]:
    """The nodes that a Job names."""
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = [field for term in terms["nodeSelectorTerms"] for field in term.get("matchFields", ())]
    assert all((field["key"], field["operator"], len(field["values"])) == ("metadata.name", "In", 1) for field in fields)
    return [field["values"][0] for field in fields]


def pod_of(bench: Bench, name: str) -> dict[str, Any]:
    return next(dict(pod) for pod in bench.cluster.all(POD) if pod["metadata"]["name"] == name)


async def serve_and_change(bench: Bench, fleet: Fleet, **spec: Any) -> dict[str, Any]:
    """A replica serves, then another revision is asked for; return the Job that fetches it."""
    await fleet.serve(weights=PREFETCH, cache={"priming": "Never"}, **spec)
    pod = run_job(bench, jobs(bench)[0], state=ended(FETCHED))
    await fleet.settle()
    bench.cluster.remove(JOB, "default", jobs(bench)[0]["metadata"]["name"])  # its TTL has passed
    bench.cluster.remove(POD, "default", pod)
    for _ in range(fleet.replicas() or 0):
        fleet.ready(fleet.start())
    await fleet.settle()
    await fleet.change(model={"uri": bench.resource()["spec"]["model"]["uri"], "revision": "v2"})
    [job] = jobs(bench)
    return job


def ended(result: dict[str, Any], code: int = 0) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": json.dumps(result), "finishedAt": "2026-11-21T12:00:00Z"}}


def engine(fleet: Fleet) -> dict[str, Any]:
    containers = (fleet.deployment() or {})["spec"]["template"]["spec"]["containers"]
    return dict(next(each for each in containers if each["name"] == "vllm"))


def flag(fleet: Fleet, name: str) -> str | None:
    args = engine(fleet)["args"]
    return args[args.index(name) + 1] if name in args else None


def variables(fleet: Fleet) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in engine(fleet)["env"]}


async def test_no_pod_starts_before_the_weights_are_fetched_and_then_the_engines_use_that_commit(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=2, weights=PREFETCH, cache={"priming": "Never"})
    [job] = jobs(bench)
    assert fleet.replicas() == 0
    assert "--revision" not in engine(fleet)["args"]
    starting = bench.condition("Ready")
    assert (starting.status, starting.reason) == ("False", "FetchingWeights")
    assert "to PersistentVolumeClaim llama-weights before a Pod starts" in starting.message
    assert job["metadata"]["ownerReferences"][0]["kind"] == "VLLMDeployment"
    pod = job["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in json.dumps([pod["containers"], pod.get("resourceClaims")])
    run_job(bench, job, state=ended(FETCHED))
    await fleet.settle()
    assert list(fleet.annotations("llama-weights").values()) == [COMMIT]
    assert fleet.replicas() == 2
    assert flag(fleet, "--revision") == COMMIT
    assert flag(fleet, "--served-model-name") == bench.resource()["spec"]["model"]["uri"].removeprefix("hf://")
    assert variables(fleet)["HF_HUB_OFFLINE"] == "1"


async def test_a_later_start_and_a_new_operator_do_not_fetch_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH, cache={"priming": "Never"})
    pod = run_job(bench, jobs(bench)[0], state=ended(FETCHED))
    await fleet.settle()
    for job in jobs(bench):  # its TTL has passed
        bench.cluster.remove(JOB, "default", job["metadata"]["name"])
    bench.cluster.remove(POD, "default", pod)
    bench.restart()
    await fleet.change(replicas=3)
    assert jobs(bench) == []
    assert (fleet.replicas(), flag(fleet, "--revision")) == (3, COMMIT)


async def test_an_object_without_the_field_has_no_job_and_the_same_pods(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights={})
    assert (jobs(bench), fleet.replicas()) == ([], 1)
    assert "HF_HUB_OFFLINE" not in variables(fleet)


async def test_replicas_serve_the_previous_spec_while_another_revision_is_fetched(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=2, weights=PREFETCH, cache={"priming": "Never"})
    run_job(bench, jobs(bench)[0], state=ended(FETCHED))
    await fleet.settle()
    for _ in range(2):
        fleet.ready(fleet.start())
    await fleet.settle()
    before = json.dumps((fleet.deployment() or {})["spec"])
    uri = bench.resource()["spec"]["model"]["uri"]
    await fleet.change(model={"uri": uri, "revision": "v2"})
    assert json.dumps((fleet.deployment() or {})["spec"]) == before
    assert "2 replicas serve the previous spec until then" in bench.message("Ready")
    first, second = jobs(bench)
    new = second if "v2" in json.dumps(second["spec"]["template"]["spec"]["containers"][0]["env"]) else first
    assert nodes_of(new) == ["node-1"], "the PVC is mounted there"
    run_job(bench, new, state=ended({**FETCHED, "commit": OTHER}))
    await fleet.settle()
    assert flag(fleet, "--revision") == OTHER
    assert sorted(fleet.annotations("llama-weights").values()) == sorted([COMMIT, OTHER])


async def test_replicas_are_scaled_both_ways_while_another_revision_is_fetched(bench: Bench, fleet: Fleet) -> None:
    job = await serve_and_change(bench, fleet, replicas=2)
    run_job(bench, job, state={"running": {"startedAt": fleet.time()}})
    for replicas in (6, 1, 3):
        await fleet.change(replicas=replicas)
        assert (fleet.replicas(), flag(fleet, "--revision")) == (replicas, COMMIT)


async def test_a_job_follows_the_replicas_to_another_node(bench: Bench, fleet: Fleet) -> None:
    job = await serve_and_change(bench, fleet)
    assert nodes_of(job) == ["node-1"]
    pod = run_job(bench, job, state={"running": {"startedAt": fleet.time()}})
    [first] = [name for name in fleet.pods() if name != pod]
    fleet.gone(first)
    second = fleet.start()
    bench.cluster.edit(POD, "default", second, {"spec": {"nodeName": "node-2"}})
    fleet.ready(second)
    await fleet.settle()
    [replaced] = jobs(bench)
    assert nodes_of(replaced) == ["node-2"]
    assert replaced["metadata"]["uid"] != job["metadata"]["uid"]
    await fleet.settle()
    assert jobs(bench) == [replaced]


async def test_a_job_that_runs_stays_when_the_replicas_are_gone(bench: Bench, fleet: Fleet) -> None:
    job = await serve_and_change(bench, fleet)
    pod = run_job(bench, job, state={"running": {"startedAt": fleet.time()}})
    for name in fleet.pods():
        if name != pod:
            fleet.gone(name)
    await fleet.settle()
    assert [each["metadata"]["uid"] for each in jobs(bench)] == [job["metadata"]["uid"]]


async def test_a_job_that_waits_for_a_node_is_replaced_when_the_replicas_are_gone(bench: Bench, fleet: Fleet) -> None:
    job = await serve_and_change(bench, fleet)
    for name in fleet.pods():
        fleet.gone(name)
    await fleet.settle()
    [replaced] = jobs(bench)
    assert replaced["metadata"]["uid"] != job["metadata"]["uid"]
    assert nodes_of(replaced) == []


async def test_a_job_has_a_deadline_that_grows_with_the_weights_and_another_one_follows(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH, model={"uri": "hf://acme/large", "facts": {"weightSize": "600Gi"}})
    [job] = jobs(bench)
    assert job["spec"]["activeDeadlineSeconds"] > 4 * 3600
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"}
    bench.cluster.edit(JOB, "default", job["metadata"]["name"], {"status": {"conditions": [failed]}})
    await fleet.settle()
    assert "It waits: Job was active longer than specified deadline." in bench.message("Ready")
    result = await bench.reconciler.reconcile(("default", "llama"))
    assert result.requeue_seconds is not None
    assert result.requeue_seconds <= 30
    bench.cluster.remove(JOB, "default", job["metadata"]["name"])  # its TTL has passed
    await fleet.settle()
    assert [each["metadata"]["name"] for each in jobs(bench)] == [job["metadata"]["name"]]


async def test_a_short_deadline_of_starts_is_not_that_of_the_job(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH, startup={"deadlineSeconds": 600})
    assert jobs(bench)[0]["spec"]["activeDeadlineSeconds"] == 3600


async def test_a_quota_that_refuses_the_pod_of_the_job_is_named(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    fleet.tell(jobs(bench)[0], "FailedCreate", 'pods "llama-fetch-1" is forbidden: exceeded quota: small, requested: pods=1')
    bench.restart()
    await fleet.settle()
    starting = bench.condition("Ready")
    assert (starting.status, starting.reason) == ("False", "FetchFailed")
    assert "exceeded quota: small" in starting.message


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: Insufficient cpu.",
}


async def test_the_message_of_the_scheduler_is_shown(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    pod = run_job(bench, jobs(bench)[0], node="")
    bench.cluster.edit(POD, "default", pod, {"status": {"phase": "Pending", "conditions": [UNSCHEDULABLE], "containerStatuses": []}})
    await fleet.settle()
    assert bench.condition("Ready").reason == "FetchFailed"
    assert f"Its Pod {pod} waits: 0/3 nodes are available: Insufficient cpu." in bench.message("Ready")


async def test_a_volume_that_is_in_use_on_another_node_is_named(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    pod = run_job(bench, jobs(bench)[0], state={"waiting": {"reason": "ContainerCreating"}})
    fleet.tell(pod_of(bench, pod), "FailedAttachVolume", 'Multi-Attach error for volume "pvc-1". Volume is already used by pod(s) other-1')
    await fleet.settle()
    assert bench.condition("Ready").reason == "FetchingWeights"
    assert "Volume is already used by pod(s) other-1" in bench.message("Ready")


async def test_a_lost_node_is_named_and_stale_progress_is_not_shown(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    pod = run_job(bench, jobs(bench)[0], state={"running": {"startedAt": fleet.time()}})
    progress = Progress(4 << 30, 16 << 30, "Downloading files", 720)
    bench.logs.told = {(fleet.uid(pod), 0): StartupState(stage=Stage.WEIGHT_DOWNLOAD, progress=progress, lines=3)}
    bench.cluster.edit(POD, "default", pod, {"status": {"reason": "NodeLost"}})
    await fleet.settle()
    assert bench.condition("Ready").reason == "FetchFailed"
    assert "Node node-1 no longer reports." in bench.message("Ready")
    assert "12 min left" not in bench.message("Ready")


@pytest.mark.parametrize("spec", [{"volume": {"accessMode": "ReadWriteOncePod"}}, {"claimName": "theirs"}], ids=["own", "named"])
async def test_no_job_fetches_to_a_volume_for_one_pod(bench: Bench, fleet: Fleet, spec: dict[str, Any]) -> None:
    metadata = {"name": "theirs", "namespace": "default"}
    claim = {"spec": {"accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"}}
    bench.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, **claim})
    await fleet.serve(weights=spec)
    fleet.ready(fleet.start())
    await fleet.settle()
    await fleet.change(weights={**spec, **PREFETCH})
    assert jobs(bench) == []
    starting = bench.condition("Ready")
    assert (starting.status, starting.reason, fleet.replicas()) == ("False", "FetchFailed", 1)
    assert "Only one Pod can mount" in starting.message
    assert "Remove spec.weights.prefetch" in starting.message
    await fleet.change(weights={**spec, "prefetch": None})
    assert (fleet.replicas(), bench.condition("Ready").status) == (1, "True")


async def test_with_dynamic_resource_allocation_the_job_runs_only_where_the_gpus_of_the_plan_are() -> None:
    gpu_node = real_node("h100-sxm")
    other = {**gpu_node, "metadata": {"name": "no-gpu"}, "status": {}}
    bench = Bench(gpu_node, other)
    fleet = Fleet(bench)
    slices = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "slice"}, **resource_slice(gpu_node["metadata"]["name"], device())}
    bench.cluster.put(slices)
    bench.cluster.put(llama(weights=PREFETCH, accelerator={"allocation": "DRA"}))
    await fleet.settle()
    [job] = jobs(bench)
    assert nodes_of(job) == [gpu_node["metadata"]["name"]]
    assert "resourceClaims" not in job["spec"]["template"]["spec"]
    [term] = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["key"] == "kubernetes.io/arch", "what the engines require is required, too"
    run_job(bench, job, node=gpu_node["metadata"]["name"], state=ended(FETCHED))
    await fleet.settle()
    assert fleet.replicas() == 1


async def test_with_dynamic_resource_allocation_and_no_node_the_volume_is_not_bound_elsewhere() -> None:
    gpu_node = real_node("h100-sxm")
    bench = Bench(gpu_node)
    fleet = Fleet(bench)
    slices = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "slice"}, **resource_slice(gpu_node["metadata"]["name"], device())}
    bench.cluster.put(slices)
    bench.cluster.put(llama(weights=PREFETCH, accelerator={"allocation": "DRA"}))
    await fleet.settle()
    bench.cluster.remove(JOB, "default", jobs(bench)[0]["metadata"]["name"])
    bench.cluster.remove(RESOURCE_SLICE, None, "slice")
    bench.pass_time(60)
    await fleet.settle()
    assert jobs(bench) == []
    assert "no available node with the GPUs of the plan" in bench.message("Ready")
    bench.cluster.put(slices)
    bench.pass_time(60)
    await fleet.settle()
    assert nodes_of(jobs(bench)[0]) == [gpu_node["metadata"]["name"]]


async def test_a_job_that_the_spec_no_longer_asks_for_is_deleted(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    [old] = jobs(bench)
    run_job(bench, old, state={"running": {"startedAt": fleet.time()}})
    await fleet.change(model={"uri": bench.resource()["spec"]["model"]["uri"], "revision": "v2"})
    [new] = jobs(bench)
    assert new["metadata"]["name"] != old["metadata"]["name"]
    run_job(bench, new, state={"running": {"startedAt": fleet.time()}})
    await fleet.change(weights={"prefetch": None})
    assert jobs(bench) == []
    assert fleet.replicas() == 1


async def test_a_job_that_may_not_be_deleted_is_left_alone(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    run_job(bench, jobs(bench)[0], state={"running": {"startedAt": fleet.time()}})
    bench.cluster.fail("delete", JOB, Forbidden("jobs.batch is forbidden", verb="delete", resource="jobs"), times=100)
    await fleet.change(weights={"prefetch": None})
    assert fleet.replicas() == 1


async def test_a_job_of_somebody_else_with_our_labels_is_not_deleted(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    [job] = jobs(bench)
    foreign = {**job, "metadata": {**job["metadata"], "name": "llama-fetch-theirs", "uid": "theirs", "ownerReferences": []}}
    bench.cluster.put(foreign)
    run_job(bench, foreign, state={"running": {"startedAt": fleet.time()}})
    await fleet.settle()
    assert "llama-fetch-theirs" in [each["metadata"]["name"] for each in jobs(bench)]


async def test_progress_is_shown_as_a_stage_with_bytes_and_time(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    pod = run_job(bench, jobs(bench)[0], state={"running": {"startedAt": fleet.time()}})
    progress = Progress(4 << 30, 16 << 30, "Downloading files", 720)
    bench.logs.told = {(fleet.uid(pod), 0): StartupState(stage=Stage.WEIGHT_DOWNLOAD, progress=progress, lines=3)}
    await fleet.settle()
    assert "4.0 of 16.0 GiB, about 12 min left" in bench.message("Ready")
    block = bench.status().startup
    assert block is not None
    assert (block.stage, block.completed, block.total, block.eta_seconds) == ("WeightDownload", 4 << 30, 16 << 30, 720)
    assert (block.pod, block.pods) == (pod, None)


@pytest.mark.parametrize(
    ("result", "want"),
    [
        ({"result": "Denied", "message": "GatedRepoError: 403"}, "Set spec.model.tokenSecretRef to a Secret with a token of an account"),
        ({"result": "NotFound", "message": "RepositoryNotFoundError: 404"}, "Correct spec.model"),
        ({"result": "NoSpace", "needed": 20 << 30, "free": 5 << 30}, "20.0 GiB are needed and 5.0 GiB are free. Raise spec.weights.volume"),
        ({"result": "Unreachable", "message": "ConnectError: no route"}, "Check the network policy, the DNS and the proxy"),
        ({"result": "Failed", "message": "ValueError: odd"}, "See `kubectl logs llama-fetch-"),
        ({"result": "\x1b[2J", "message": "x" * 4000}, "failed: xxx"),
    ],
    ids=lambda value: value["result"][:8] if isinstance(value, dict) else "",
)
async def test_a_failure_has_its_remedy_and_is_tried_again(bench: Bench, fleet: Fleet, result: dict[str, Any], want: str) -> None:
    await fleet.serve(weights=PREFETCH)
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    run_job(bench, jobs(bench)[0], state=waiting, lastState=ended(result, code=1), restartCount=3)
    await fleet.settle()
    starting = bench.condition("Ready")
    assert (starting.status, starting.reason, fleet.replicas()) == ("False", "FetchFailed", 0)
    assert want in starting.message
    assert "The download is tried again" in starting.message
    assert bench.condition("Ready").reason == "FetchFailed"


@pytest.mark.parametrize("message", ["", "no JSON", "[]", '{"result": "Fetched", "commit": "../etc"}', '{"result": "Fetched"}'])
async def test_no_commit_is_taken_from_a_result_that_is_none(bench: Bench, fleet: Fleet, message: str) -> None:
    await fleet.serve(weights=PREFETCH)
    run_job(bench, jobs(bench)[0], state={"terminated": {"exitCode": 0, "message": message}})
    await fleet.settle()
    assert (fleet.annotations("llama-weights"), fleet.replicas()) == ({}, 0)
    assert bench.condition("Ready").reason == "FetchFailed"


async def test_a_new_volume_is_filled_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH)
    [before] = jobs(bench)
    run_job(bench, before, state=ended(FETCHED))
    await fleet.settle()
    bench.cluster.remove(CLAIM, "default", "llama-weights")
    await fleet.settle()
    assert len(jobs(bench)) == 2
    assert fleet.replicas() == 1, "what serves goes on"


async def test_with_other_repositories_the_engine_may_ask_the_hub(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH, engine={"args": [{"name": "--tokenizer", "value": "acme/tokenizer"}]})
    run_job(bench, jobs(bench)[0], state=ended(FETCHED))
    await fleet.settle()
    assert flag(fleet, "--revision") == COMMIT
    assert "HF_HUB_OFFLINE" not in variables(fleet)


async def test_adapters_are_still_fetched_from_the_hub(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights=PREFETCH, adapters=[{"name": "sql", "uri": "hf://acme/sql-lora", "rank": 16}])
    run_job(bench, jobs(bench)[0], state=ended(FETCHED))
    await fleet.settle()
    [adapters] = [each for each in (fleet.deployment() or {})["spec"]["template"]["spec"]["initContainers"] if "adapters" in each["name"]]
    assert variables(fleet)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in [each["name"] for each in adapters["env"]]


async def test_the_token_is_in_the_pod_of_the_job_only_as_a_file(bench: Bench, fleet: Fleet) -> None:
    model = {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "tokenSecretRef": {"name": "hub", "key": "token"}}
    await fleet.serve(model=model, weights=PREFETCH)
    pod = jobs(bench)[0]["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == "hub"
    [container] = pod["containers"]
    assert {"name": "HF_TOKEN_PATH", "value": "/etc/vllm-operator/hub/token"} in container["env"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["automountServiceAccountToken"] is False


async def test_a_job_that_may_not_be_created_is_reported(bench: Bench, fleet: Fleet) -> None:
    bench.cluster.fail("create", JOB, Forbidden("jobs.batch is forbidden", verb="create", resource="jobs"), times=100)
    await fleet.serve(weights=PREFETCH)
    assert bench.condition("Ready").reason == "FetchFailed"
    assert "cannot be fetched" in bench.message("Ready")
    assert reading.integer(bench.cluster.all(DEPLOYMENT)[0], "spec", "replicas") == 0
    assert bench.cluster.all(VLLM_DEPLOYMENT)


async def test_the_log_of_the_job_is_followed_although_its_pod_is_ready_as_soon_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.cluster.script_log("default", "p", [line(1, "progress 1/4"), FOREVER])
    pod = engine_pod(state=RUNNING, ready=True)
    pod["metadata"]["labels"] = {labels.COMPONENT_LABEL: Role.FETCHING.value}
    pod["status"]["containerStatuses"][0]["name"] = labels.FETCH_WEIGHTS_CONTAINER
    world.show(pod)
    await world.until(lambda: world.state() is not None)
    [request] = world.cluster.log_requests
    assert (request.container, request.follow) == (labels.FETCH_WEIGHTS_CONTAINER, True)
    await world.followers.close()
