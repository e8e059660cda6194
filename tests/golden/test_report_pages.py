"""The pages that `kubectl describe` shows in the main situations, to be read by people."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support import kstatus
from support import observations as o
from support.describe import describe, lines_above_events, most_lines
from support.engine_logs import crash_of, engine_failure
from testenv.replay import SERVING, read_recording
from vllm_operator.api.conditions import EventDraft, Reason, Verdict
from vllm_operator.api.crd import custom_resource_definition
from vllm_operator.api.labels import SERVED_ANNOTATION
from vllm_operator.api.plan import BackendChoice, PlannedVariable, PlannedWeights
from vllm_operator.api.status import ConditionStatus, VLLMDeploymentStatus
from vllm_operator.catalog.startup import load_startup
from vllm_operator.inventory.pools import Inventory, Room
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import CacheEvidence, Crash, Membership, Progress, Stage, StartupState
from vllm_operator.planning.outcome import Outcome, not_accepted
from vllm_operator.planning.pinning import changed_fields
from vllm_operator.rendering.revision import with_applied_revision
from vllm_operator.status.observation import DrainingPod, ObjectProblem, Observation
from vllm_operator.status.report import report, status_with_failure

FOLDER = Path(__file__).parent / "reports"
INDUCED = Path(__file__).parents[1] / "corpus" / "induced"
X1 = ("vllm-a-x1", 0)
CRD = custom_resource_definition()
DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
HEALTH_CHECK = DOCS.read_text("utf-8").split("```lua\n")[1].split("```")[0]
NOT_DIVISIBLE = (
    "vLLM cannot split meta-llama/Llama-3.1-8B over the GPUs of a replica: 32 attention heads cannot be divided by 3. Set "
    "spec.parallelism.tensor to 1, 2, 4 or 8. To let the operator choose, remove spec.parallelism and spec.accelerator.count. To start it "
    'anyway, set the annotation vllm-operator.dev/allow-unsupported to "true": it will probably crash and keep its GPUs.'
)
NO_GPU = (
    "Each replica needs 8 whole GPUs of architecture sm_100 (Blackwell), and no node has them. The cluster has 3 nodes with 8x NVIDIA H200 "
    "141GB (sm_90). Add sm_90 to spec.accelerator.architectures, remove that field, or add nodes with sm_100 GPUs."
)
FORBIDDEN = (
    'poddisruptionbudgets.policy "vllm-a" is forbidden: User "system:serviceaccount:vllm-operator:vllm-operator" cannot patch resource '
    '"poddisruptionbudgets" in API group "policy" in the namespace "models"'
)
ELSEWHERE = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."
SLICE = "MIG-4cae0ba7-1f2c-5f9b-8b5e-0c6f7d0a9a11"
MIG = crash_of(engine_failure(f"ValueError: invalid literal for int() with base 10: '{SLICE}'"))
ECC = crash_of(engine_failure("RuntimeError: CUDA error: uncorrectable ECC error encountered"))
NO_ROOM = crash_of(
    "INFO 05-01 09:20:13 [api_server.py:1034] args: Namespace(host=None, gpu_memory_utilization=0.9, seed=0)\n"
    + engine_failure("ValueError: No available memory for the cache blocks.")
)
DEEPSEEK: dict[str, Any] = {
    "accelerator": {"products": ["NVIDIA-H200"]},
    "cache": {"storage": "SharedClaim"},
    "engine": {"version": "0.20.1"},
}
"""What the spec says besides model and replicas: `kubectl describe` shows ten lines of it."""
LLAMA = {**DEEPSEEK, "model": {"uri": "hf://meta-llama/Llama-3.1-8B"}}
TINY: dict[str, Any] = {
    "accelerator": {"mig": {"profile": "1g.10gb"}},
    "engine": {"version": "0.20.1", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": SLICE}]},
    "model": {"uri": "hf://TinyLlama/TinyLlama-1.1B-Chat-v1.0"},
}


MENDED = {**TINY, "engine": {"version": "0.20.1"}}
CHANGES = tuple(changed_fields(MENDED, {**TINY, "engine": {**TINY["engine"], "args": [{"name": "--max-num-seqs", "value": "1024"}]}}))


def planned(said: str, **plan: Any) -> Outcome:
    return o.outcome(plan=o.plan(**plan), planned=Verdict(ConditionStatus.TRUE, "Planned", f"Planned for {said}"))


PLANS = {
    "DeepSeek-V3": planned(
        "NVIDIA H200 141GB (sm_90), 8 GPUs per replica, vLLM 0.20.1.", weights=PlannedWeights(size_bytes=688_586_727_753)
    ),
    "TinyLlama-1.1B-Chat-v1.0": planned(
        "NVIDIA H100 80GB (sm_90), 1 MIG slice 1g.10gb per replica, vLLM 0.20.1.",
        model="TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        product="NVIDIA-H100-80GB-HBM3",
        cache_key_parts=[PlannedVariable(name="migProfile", value="1g.10gb", reason="")],
        count=1,
        backends=[],
    ),
    "Llama-3.1-8B": planned(
        "NVIDIA H200 141GB (sm_90), 1 GPU per replica, vLLM 0.20.1.",
        model="meta-llama/Llama-3.1-8B",
        count=1,
        backends=[BackendChoice(component="Attention", backend="FLASHINFER", chosen_by="User", reason="spec.backends.attention says so.")],
    ),
}
"""By the name of the model in the spec."""


def observe(*pods: dict[str, Any], spec: Mapping[str, Any] = DEEPSEEK, **more: Any) -> Observation:
    """An observation of an object with this spec, and with the plan for its model."""
    name = spec.get("model", {"uri": "DeepSeek-V3"})["uri"].rpartition("/")[2]
    return o.observe(*pods, spec=spec, **{"outcome": PLANS[name], **more})


DEEP = (("MoE", "DEEPGEMM"),)
ENTERED = (
    (Stage.PROCESS_START, o.at(0)),
    (Stage.WEIGHT_LOAD, o.at(20)),
    (Stage.TORCH_COMPILE, o.at(62)),
    (Stage.KERNEL_WARMUP, o.at(90)),
    (Stage.CUDA_GRAPH_CAPTURE, o.at(382)),
    (Stage.READY, o.at(459)),
)


WARM = ((Stage.PROCESS_START, o.at(0)), (Stage.WEIGHT_LOAD, o.at(12)), (Stage.TORCH_COMPILE, o.at(26)), (Stage.READY, o.at(35)))


def _until(stage: Stage) -> tuple[tuple[Stage, datetime], ...]:
    order = list(Stage)
    return tuple(entry for entry in ENTERED if order.index(entry[0]) <= order.index(stage))


def at_work(stage: Stage, *, seconds: float, since: float, progress: Progress | None = None) -> Observation:
    state = StartupState(
        stage=stage, progress=progress, stage_since=o.at(since), started_at=o.at(0), last_line_at=o.at(seconds - 1), entered=_until(stage)
    )
    return observe(o.starting_pod(since=0), states={X1: state}, now=o.at(seconds))


def recorded(name: str, *, until: bytes = SERVING) -> StartupState:
    """What a recorded start has told when a line of it came, or once it served; its first line was written at `o.at(0)`."""
    parser, untimed, outputs = StartupParser(load_startup()), b"", read_recording(INDUCED / f"{name}.log", until=until)
    for output in outputs:
        untimed += output.data
        if b" 11-21 " in output.data or output is outputs[-1]:  # a bar has no time of its own: it is over when the next line comes
            parser.feed(untimed, o.at(output.seconds))
            untimed = b""
    return parser.state


def at_the_end_of(state: StartupState, *, after_seconds: float) -> Observation:
    """Some seconds after the last line of a recorded start."""
    assert state.last_line_at is not None
    now = state.last_line_at + timedelta(seconds=after_seconds)
    seconds = (now - o.NOW).total_seconds()
    pod = o.ready_pod(since=0, ready=seconds) if state.stage is Stage.READY else o.starting_pod(since=0)
    return observe(pod, states={X1: state}, now=now, spec={**LLAMA, "backends": {"attention": "FLASHINFER"}})


def serving(
    seconds: float, cache: CacheEvidence, entered: tuple[tuple[Stage, datetime], ...] = ENTERED, spec: Mapping[str, Any] = DEEPSEEK
) -> Observation:
    state = StartupState(stage=Stage.READY, stage_since=o.at(seconds), cache=cache, observed_backends=DEEP, entered=entered)
    return observe(o.ready_pod(since=0, ready=seconds), states={X1: state}, now=o.at(seconds), spec=spec)


def crash(restarts: int, *, seconds: float) -> Observation:
    state = StartupState(stage=Stage.CONFIGURATION, started_at=o.at(seconds - 20), crash=MIG)
    pod = o.crashed_pod(restarts=restarts, seconds=seconds)
    return observe(pod, states={("vllm-a-x1", restarts): state}, now=o.at(seconds + 1), spec=TINY)


PROVED: dict[str, Any] = {"metadata": {"name": "vllm-a-9876543210", "annotations": {SERVED_ANNOTATION: o.stamp(-86_400)}}, "revision": 1}
FAILS: dict[str, Any] = {"metadata": {"name": "vllm-a-0123456789"}, "revision": 2}


def rolled_back() -> tuple[Observation, ...]:
    """The second revision crashes at its start, and the first one serves again 40 s later."""
    applied = with_applied_revision(o.deployment(), "vllm-a-0123456789")
    failed = replace(crash(0, seconds=20), revisions=(PROVED, FAILS), deployment=applied)
    back = observe(o.ready_pod("vllm-a-w0"), revisions=(PROVED, FAILS), revision="vllm-a-9876543210", now=o.at(61), spec=MENDED)
    by_operator = {"is_rolled_back_by_operator": True, "rolled_back_to": 1, "rolled_back_changes": CHANGES}
    return failed, replace(back, resource=back.resource.model_copy(update=by_operator))


def broken_gpu(*pods: dict[str, Any], run: int = 0, other: int = 8, seconds: float = 0) -> Observation:
    """A Pod on gpu-node-1 that crashes because of its GPU; gpu-node-2 has `other` GPUs. `pods`: those that exist instead."""
    crashed = StartupState(stage=Stage.READY, started_at=o.at(-90), crash=ECC)
    return observe(
        *(pods or (o.crashed_pod(restarts=run),)),
        states={("vllm-a-x1", run): crashed},
        spec={**DEEPSEEK, "remediation": {"onBadNode": "Avoid"}},
        inventory=Inventory(boots={"gpu-node-1": "a", "gpu-node-2": "b"}),
        room=Room(("gpu-node-1", "gpu-node-2"), 8, {"gpu-node-1": 8, "gpu-node-2": other}, None),
        now=o.at(seconds),
    )


PULLING = observe(o.pending_pod("ContainerCreating"), pod_events=(o.event("Pulling", seconds=-60),), now=o.at(-20))
WEIGHTS = at_work(Stage.WEIGHT_LOAD, seconds=40, since=20, progress=Progress(12, 163, "Loading weights", 240))
DEEP_GEMM = at_work(Stage.KERNEL_WARMUP, seconds=330, since=90, progress=Progress(1436, 1735, "DeepGEMM warm-up", 52))
GRAPHS = at_work(Stage.CUDA_GRAPH_CAPTURE, seconds=400, since=382, progress=Progress(12, 35, "CUDA graph capture", 20))
COMPILING_BEGINS, COMPILING_ENDS = recorded("good-flashinfer", until=b"Warming up FlashInfer attention"), recorded("good-flashinfer")
DRAINING = (DrainingPod("vllm-a-x2", o.at(530), 3),)
HUNG = replace(at_work(Stage.DISTRIBUTED_INIT, seconds=30, since=28), now=o.at(700))


def on_nodes(*pods: dict[str, Any], states: dict[int, StartupState], **more: Any) -> Observation:
    """A replica on several nodes, the leader first. `states` are by rank."""
    leader, *followers = (o.member(pod, rank) for rank, pod in enumerate(pods))
    logged = {(pods[rank]["metadata"]["name"], 0): state for rank, state in states.items()}
    outcome = planned(f"NVIDIA H200 141GB (sm_90), {len(pods)} nodes with 8 GPUs each per replica, vLLM 0.20.1.", nodes=len(pods))
    spec = {**DEEPSEEK, "parallelism": {"nodes": len(pods)}}
    return observe(leader, followers=followers, states=logged, outcome=outcome, spec=spec, **more)


def with_container(pod: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The same Pod, with an engine container that has these fields."""
    return pod | {"spec": pod["spec"] | {"containers": [{"name": "vllm", **fields}]}}


def waits(rank: int, **more: Any) -> StartupState:
    place = Membership(node=rank, nodes=4, timeout_seconds=900, is_waiting=True)
    return StartupState(stage=Stage.DISTRIBUTED_INIT, stage_since=o.at(-200), last_line_at=o.at(-200), membership=place, **more)


LOST = o.pod(
    containers=[o.container(o.running(), started=True, ready=True)],
    conditions=[o.condition("ContainersReady", "True"), o.condition("Ready", "False", -20)],
)
HANGS = planned("NVIDIA H200 141GB (sm_90), 8 GPUs per replica, vLLM 0.20.1.", on_hang="Restart")
ON_NODES = [o.starting_pod("vllm-a-0", since=-300), *(o.ready_pod(f"vllm-a-0-{rank}", since=-300) for rank in (1, 2, 3))]
CLOSED = Crash("DistributedTimeout", "A process did not respond.", "Look at the others.", None, "Connection closed by peer")

STORIES: dict[str, tuple[Observation, ...]] = {
    "compiling": (observe(), PULLING, WEIGHTS, DEEP_GEMM),
    "first-start-serves": (observe(), WEIGHTS, DEEP_GEMM, GRAPHS, serving(459, CacheEvidence(misses=31))),
    "second-start-serves": (observe(), serving(35, CacheEvidence(hits=31), WARM)),
    "silent-jit": (
        at_the_end_of(COMPILING_BEGINS, after_seconds=0),
        at_the_end_of(COMPILING_BEGINS, after_seconds=21),
    ),
    "silent-jit-over": (
        at_the_end_of(COMPILING_BEGINS, after_seconds=0),
        at_the_end_of(COMPILING_BEGINS, after_seconds=100),
        at_the_end_of(COMPILING_ENDS, after_seconds=1),
    ),
    "stalled": (observe(), HUNG),
    "crash-loop": (observe(spec=TINY), *(crash(restarts, seconds=60 * restarts) for restarts in range(3))),
    "unknown-crash": (observe(o.crashed_pod(message="Traceback (most recent call last):\nRuntimeError: NVLS init failed: rank 3\n")),),
    "out-of-memory": (observe(with_container(o.crashed_pod(code=137, reason="OOMKilled"), resources={"limits": {"memory": "512Gi"}})),),
    "startup-probe-killed": (
        observe(
            with_container(o.crashed_pod(code=137, seconds=0, ran=10810), startupProbe={"periodSeconds": 5, "failureThreshold": 2160}),
            states={X1: StartupState(stage=Stage.KERNEL_WARMUP, started_at=o.at(-10810), last_line_at=o.at(-2))},
            now=o.at(30),
            pod_events=(o.event("Killing", "Container vllm failed startup probe, will be restarted", seconds=-10),),
        ),
    ),
    "recovered": (
        crash(0, seconds=0),
        observe(o.ready_pod(since=2, ready=40, restarts=1, last=o.terminated(seconds=0)), now=o.at(41), spec=MENDED),
    ),
    "one-of-four-crashed": (
        observe(
            *(o.ready_pod(f"vllm-a-x{n}") for n in (2, 3, 4)),
            o.crashed_pod(),
            replicas=4,
            states={X1: StartupState(crash=NO_ROOM)},
            spec=LLAMA,
        ),
    ),
    "rolled-back": rolled_back(),
    "bad-node": (broken_gpu(), broken_gpu(run=1)),
    "bad-node-is-avoided": (broken_gpu(run=1), broken_gpu(o.unschedulable_pod("vllm-a-x2", ELSEWHERE, seconds=30), run=1, seconds=60)),
    "bad-node-is-the-only-one": (broken_gpu(run=1, other=0),),
    "unschedulable": (observe(o.unschedulable_pod()),),
    "no-such-image": (
        observe(o.pending_pod("ErrImagePull", 'failed to pull and unpack image "docker.io/vllm/vllm-openai:v0.20.1": not found')),
    ),
    "no-matching-gpu": (
        observe(
            outcome=o.outcome(planned=Verdict(ConditionStatus.FALSE, "NoMatchingGPU", NO_GPU), plan=None),
            deployment=None,
            spec={**DEEPSEEK, "accelerator": {"architectures": ["sm_100"]}},
        ),
    ),
    "claim-not-bound": (
        observe(
            o.unschedulable_pod(message="0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
            claim=o.claim("Pending", storage_class="fsat"),
            spec={**DEEPSEEK, "cache": {"volume": {"size": "200Gi", "storageClassName": "fsat"}}},
            pod_events=(
                o.event(
                    "ProvisioningFailed", 'storageclass.storage.k8s.io "fsat" not found', name="vllm-a-cache", kind="PersistentVolumeClaim"
                ),
            ),
        ),
    ),
    "scaled-to-zero": (observe(replicas=0, deployment=o.deployment(0)),),
    "draining": (replace(serving(459, CacheEvidence(misses=31)), draining=DRAINING),),
    "not-autoscaled": (
        replace(
            serving(459, CacheEvidence(misses=31), spec={**DEEPSEEK, "autoscaling": {"maxReplicas": 4}}),
            scaling=(
                ObjectProblem(Reason.METRICS_API_MISSING, "HorizontalPodAutoscaler", "custom.metrics.k8s.io"),
                ObjectProblem(Reason.APPLY_FAILED, "PodDisruptionBudget", FORBIDDEN),
            ),
        ),
    ),
    "nodes-starting": (
        on_nodes(
            *ON_NODES[:3],
            o.pending_pod("ContainerCreating", name="vllm-a-0-3"),
            states={rank: waits(rank) for rank in range(3)},
            pod_events=[o.event("Pulling", name="vllm-a-0-3", seconds=-420)],
        ),
    ),
    "nodes-crashed": (
        on_nodes(
            o.crashed_pod("vllm-a-0", seconds=-20),
            *ON_NODES[1:3],
            o.crashed_pod("vllm-a-0-3", seconds=-25),
            states={0: waits(0, crash=CLOSED, is_final=True), 1: waits(1), 2: waits(2), 3: StartupState(crash=ECC, is_final=True)},
        ),
    ),
    "unrecoverable-crash": (observe(spec=TINY), *(crash(restarts, seconds=60 * restarts) for restarts in range(5))),
    "hung": (observe(o.unready_pod(), pod_events=(o.hang_event(),), outcome=HANGS),),
    "hung-and-ended": (
        observe(o.unready_pod(), pod_events=(o.hang_event(),), outcome=HANGS),
        observe(
            o.crashed_pod(code=137, seconds=85, message=o.HANG, ran=500),
            now=o.at(100),
            outcome=HANGS,
        ),
    ),
    "node-lost": (observe(LOST),),
    "unsupported": (
        observe(
            outcome=not_accepted(Verdict(ConditionStatus.FALSE, "Unsupported", NOT_DIVISIBLE)),
            deployment=None,
            spec={**LLAMA, "parallelism": {"tensor": 3}},
        ),
    ),
}
KSTATUS = {
    "compiling": "InProgress",
    "first-start-serves": "Current",
    "second-start-serves": "Current",
    "silent-jit": "InProgress",
    "silent-jit-over": "Current",
    "stalled": "InProgress",
    "crash-loop": "InProgress",
    "unknown-crash": "InProgress",
    "out-of-memory": "InProgress",
    "startup-probe-killed": "InProgress",
    "recovered": "Current",
    "one-of-four-crashed": "InProgress",
    "rolled-back": "Failed",
    "bad-node": "InProgress",
    "bad-node-is-avoided": "InProgress",
    "bad-node-is-the-only-one": "InProgress",
    "unschedulable": "InProgress",
    "no-such-image": "InProgress",
    "no-matching-gpu": "InProgress",
    "claim-not-bound": "InProgress",
    "scaled-to-zero": "Current",
    "draining": "Current",
    "not-autoscaled": "InProgress",
    "nodes-starting": "InProgress",
    "nodes-crashed": "InProgress",
    "hung": "InProgress",
    "hung-and-ended": "InProgress",
    "node-lost": "InProgress",
    "unrecoverable-crash": "Failed",
    "unsupported": "Failed",
}
"""What kstatus makes of the last page of each story."""
DEGRADED = {
    "rolled-back",
    "bad-node",
    "bad-node-is-the-only-one",
    "crash-loop",
    "unknown-crash",
    "out-of-memory",
    "startup-probe-killed",
    "one-of-four-crashed",
    "unrecoverable-crash",
    "unsupported",
    "nodes-crashed",
    "hung-and-ended",
}
"""Stories that Argo CD shows as degraded although kstatus may still wait."""


def told(story: tuple[Observation, ...]) -> tuple[VLLMDeploymentStatus, list[EventDraft]]:
    """Report on each observation with the status of the one before; the last status, and all events."""
    status, events = story[0].resource.status, list[EventDraft]()
    for observed in story:
        written = report(o.following(observed, status))
        status = written.status
        events += written.events
    return status, events


def manifest(status: VLLMDeploymentStatus, *, generation: int = 3, **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": "vllm-a", "generation": generation, **metadata}, "status": status.to_json()}


@pytest.mark.parametrize("name", STORIES)
def test_page(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(FOLDER / f"{name}.txt", describe(*told(STORIES[name]), spec=STORIES[name][-1].resource.spec.to_json()))


@pytest.mark.parametrize("name", STORIES)
def test_a_page_fits_on_a_screen(name: str) -> None:
    status, _ = told(STORIES[name])
    assert len(json.dumps(status.to_json())) <= 4096, "it is written often"
    assert all(condition.observed_generation is not None for condition in status.conditions)
    page = describe(status, spec=STORIES[name][-1].resource.spec.to_json())
    assert lines_above_events(page) <= most_lines(page, status), page


@pytest.mark.parametrize("name", STORIES)
def test_kstatus_reads_what_is_the_case(name: str) -> None:
    status, _ = told(STORIES[name])
    assert kstatus.compute(manifest(status))[0] == KSTATUS[name]
    assert kstatus.compute(manifest(status, generation=4))[0] == "InProgress"
    assert kstatus.compute(manifest(status, deletionTimestamp="2026-11-21T14:10:00Z"))[0] == "Terminating"


def test_an_object_that_was_never_reconciled_is_in_progress() -> None:
    status = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    assert kstatus.compute({"metadata": {"generation": 1}, "status": status})[0] == "InProgress"
    assert VLLMDeploymentStatus.model_validate(status) == VLLMDeploymentStatus(observed_generation=-1)


@pytest.mark.parametrize("name", STORIES)
def test_the_health_check_for_argo_cd_reads_what_is_the_case(name: str) -> None:
    status, _ = told(STORIES[name])
    ready = next(condition for condition in status.conditions if condition.type == "Ready")
    expected = "Degraded" if name in DEGRADED else "Healthy" if KSTATUS[name] == "Current" else "Progressing"
    assert health(manifest(status)) == ("Suspended" if name == "scaled-to-zero" else expected, ready.message)
    assert health(manifest(status, generation=4))[0] == "Progressing"


@pytest.mark.parametrize("status", [{}, {"observedGeneration": -1}, {"observedGeneration": 3}], ids=["none", "default", "no conditions"])
def test_the_health_check_waits_for_the_first_status(status: dict[str, Any]) -> None:
    assert health({"metadata": {"generation": 3}} | ({"status": status} if status else {})) == ("Progressing", "Waiting for the operator")


def health(manifest: dict[str, Any]) -> tuple[str, str]:
    """Status and message by the Lua script in the docs; Argo CD gives it the object as `obj`."""
    # the version of Argo CD's interpreter; an environment from before this test has none
    lua = pytest.importorskip("lupa.lua51").LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(manifest, recursive=True)
    found = lua.execute(HEALTH_CHECK)
    return found.status, found.message


FAILURES = {"a spec that cannot be read": ("InvalidSpec", "Failed"), "a bug of the operator": ("OperatorFailed", "InProgress")}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", ["second-start-serves", "unrecoverable-crash"])
def test_kstatus_reads_a_failure_of_the_operator(name: str, failure: str) -> None:
    reason, expected = FAILURES[failure]
    before, _ = told(STORIES[name])
    status = status_with_failure(before, reason=reason, message="It failed.", generation=4, now=o.stamp(900))
    assert kstatus.compute(manifest(status, generation=4))[0] == expected
