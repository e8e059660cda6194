"""What `kubectl get`, `kubectl describe` and `kubectl vllm status` show in rarer situations, on a cluster in memory."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.builds import IMAGE
from support.describe import describe_live, get, lines_above_events, most_lines
from support.engine_logs import crash_of, engine_failure
from support.fleet import NOT_READY, Fleet
from support.gpus import real_node
from support.measured_runs import Course, Gate
from support.operators import Bench
from vllm_operator.api.labels import FETCH_WEIGHTS_CONTAINER
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.plan import revisions_of
from vllm_operator.cli.revisions import HEADER, history
from vllm_operator.cli.status import newest, status_page
from vllm_operator.cli.terminal import age, plain, table
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, EVENT, JOB, POD, REVISION, Forbidden
from vllm_operator.logs.state import Membership, Progress, Stage, StartupState
from vllm_operator.rendering.image_reading import READER

FOLDER = Path(__file__).parent / "situations"
PREFETCH: dict[str, Any] = {"weights": {"prefetch": "BeforeStart"}, "cache": {"priming": "Never"}}
NOT_RESIZED = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
LARGE = {"uri": "hf://Qwen/Qwen3-32B"}
NO_ROOM = crash_of(
    "INFO 05-01 09:20:13 [api_server.py:1034] args: Namespace(host=None, gpu_memory_utilization=0.9, seed=0)\n"
    + engine_failure("ValueError: No available memory for the cache blocks.")
)


async def measured(fleet: Fleet) -> None:
    gate = Gate(fleet.bench, fleet)
    await gate.begin()
    await gate.measured(noise=0.01)
    fleet.bench.pass_time(40)
    fleet.start("llama.primer")
    await fleet.settle()


async def held_by_the_gate(fleet: Fleet) -> None:
    gate = Gate(fleet.bench, fleet)
    await gate.begin()
    while gate.run():
        fleet.bench.pass_time(180)
        await gate.measured(noise=0.01, speed=0.7 if gate.version() == "v0.24.0" else 1.0)


async def race(fleet: Fleet) -> Course:
    course = Course(fleet.bench, fleet)
    await course.begin()
    await course.measured(FLASHINFER=1.8)
    return course


async def race_runs(fleet: Fleet) -> None:
    await race(fleet)
    fleet.start("llama.primer")
    await fleet.settle()


async def race_has_a_winner(fleet: Fleet) -> None:
    course = await race(fleet)
    await course.to_the_end(FLASHINFER=1.8)
    fleet.gone(course.serving)
    fleet.ready(fleet.start())
    await course.settle()


async def race_has_no_winner(fleet: Fleet) -> None:
    await (await race(fleet)).to_the_end()


async def image_is_read(fleet: Fleet) -> None:
    await fleet.serve(engine={"image": IMAGE})
    [job] = fleet.bench.cluster.all(JOB)
    fleet.start_job(job, {"phase": "Running", "containerStatuses": [{"name": READER, "state": {"running": {}}}]})
    await fleet.settle()


async def image_cannot_be_read(fleet: Fleet) -> None:
    await fleet.serve(engine={"image": IMAGE})
    [job] = fleet.bench.cluster.all(JOB)
    why = "no vLLM that can be read below /: it contains no vllm/envs.py with variables"
    ended = {"name": READER, "state": {"terminated": {"exitCode": 1, "message": why, "reason": "Error"}}}
    fleet.start_job(job, {"phase": "Failed", "containerStatuses": [ended]})
    await fleet.settle()


async def weights_are_downloaded(fleet: Fleet) -> None:
    await fleet.serve(**PREFETCH)
    [job] = fleet.bench.cluster.all(JOB)
    container = {"name": FETCH_WEIGHTS_CONTAINER, "restartCount": 0, "state": {"running": {"startedAt": fleet.time()}}}
    pod = fleet.start_job(job, {"phase": "Running", "containerStatuses": [container]})
    progress = Progress(4 << 30, 16 << 30, "Downloading files", 720)
    state = StartupState(stage=Stage.WEIGHT_DOWNLOAD, stage_since=fleet.bench.now, progress=progress, lines=3)
    fleet.bench.logs.told = {(fleet.uid(pod), 0): state}
    fleet.bench.pass_time(240)
    await fleet.settle()


async def volume_of_weights_is_too_small(fleet: Fleet) -> None:
    await fleet.serve(model={"uri": "hf://Qwen/Qwen3-8B"})
    bound = {"spec": {"storageClassName": "fast"}, "status": {"phase": "Bound", "capacity": {"storage": "30Gi"}}}
    fleet.bench.cluster.edit(CLAIM, "default", "llama-weights", bound)
    fleet.ready(fleet.start())
    await fleet.settle()
    fleet.bench.cluster.fail("apply", CLAIM, Forbidden(NOT_RESIZED), times=99)
    await fleet.change(model=LARGE)


async def rolled_back(fleet: Fleet) -> None:
    """A version is rolled out, and its successor crashes at its start."""
    bench = fleet.bench
    await fleet.serve(engine={"version": "0.20.1"}, cache={"priming": "Never"})
    for version in ("0.24.0", "0.33.0"):
        served = fleet.start()
        fleet.ready(served)
        await fleet.settle()
        bench.pass_time(86_400)
        await fleet.change(engine={"version": version})
        fleet.gone(served)
    third = fleet.start()
    bench.pass_time(30)
    bench.logs.told[fleet.uid(third), 0] = StartupState(crash=NO_ROOM, is_final=True)
    fleet.show(third, NOT_READY, state={"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": fleet.time()}})
    await fleet.settle()
    fleet.gone(third)
    again = fleet.start()
    bench.pass_time(90)
    fleet.ready(again)
    await fleet.settle()


async def rank_waits(fleet: Fleet) -> None:
    await fleet.serve(parallelism={"nodes": 2}, cache={"volume": {"accessMode": "ReadWriteMany"}})
    leader, follower = fleet.start_group(nodes=("node-1", ""))
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    fleet.bench.cluster.set_status(POD, "default", follower, {"phase": "Pending", "conditions": [waiting]})
    state = StartupState(
        stage=Stage.DISTRIBUTED_INIT,
        stage_since=fleet.bench.now,
        last_line_at=fleet.bench.now,
        membership=Membership(0, 2, timeout_seconds=600, is_waiting=True),
    )
    fleet.bench.logs.told = {(fleet.uid(leader), 0): state}
    fleet.bench.pass_time(90)
    await fleet.settle()


async def pod_waits_for_its_predecessor(fleet: Fleet) -> None:
    await fleet.serve(parallelism={"tensor": 8}, cache={"priming": "Never"})
    old = fleet.start(node="node-1")
    fleet.ready(old)
    complete = {"observedGeneration": 1, "updatedReplicas": 1, "replicas": 1}
    fleet.bench.cluster.set_status(DEPLOYMENT, "default", "llama", complete)
    await fleet.settle()
    await fleet.change(engine={"version": "0.24.0"})
    fleet.bench.cluster.set_status(DEPLOYMENT, "default", "llama", {**complete, "observedGeneration": 2})
    fleet.bench.cluster.edit(POD, "default", old, {"metadata": {"deletionTimestamp": "2026-11-21T12:01:20Z"}})
    fleet.unschedulable(fleet.start(node="node-1"))
    await fleet.settle()


SITUATIONS: dict[str, Callable[[Fleet], Awaitable[None]]] = {
    "gate-measures": measured,
    "gate-holds": held_by_the_gate,
    "race-runs": race_runs,
    "race-with-winner": race_has_a_winner,
    "race-without-winner": race_has_no_winner,
    "image-is-read": image_is_read,
    "image-cannot-be-read": image_cannot_be_read,
    "weights-are-downloaded": weights_are_downloaded,
    "weights-volume-too-small": volume_of_weights_is_too_small,
    "history-with-rollback": rolled_back,
    "pod-waits-for-its-predecessor": pod_waits_for_its_predecessor,
    "rank-waits": rank_waits,
}
"""How each comes about."""


@pytest.mark.parametrize("name", SITUATIONS)
async def test_pages(name: str, golden: Callable[[Path, str], None]) -> None:
    bench = Bench(real_node("h100-sxm", "node-1"), real_node("h100-sxm", "node-2"))
    bench.cluster.clock = lambda: bench.now
    await SITUATIONS[name](Fleet(bench))
    bench.pass_time(5)
    resource, events = bench.resource(), newest(bench.cluster.all(EVENT))
    rows = [(it["type"], it["reason"], age(when, bench.now), "vllm-operator", it["message"]) for when, it in reversed(events)]
    described = describe_live(resource, rows)
    pages = {"get vllm llama": get(resource, bench.now), "describe vllm llama": described}
    pages["vllm status llama"] = plain(status_page(resource, [it for _, it in events], bench.now, width=100)) + "\n"
    if len(revisions := revisions_of(VLLMDeployment.parse(resource), bench.cluster.all(REVISION))) > 1:
        plans = history(VLLMDeployment.parse(resource), revisions, bench.now)
        pages["vllm history llama"] = "\n".join(table(HEADER, [list(map(str, row.values())) for row in plans])) + "\n"
    text = "\n".join(f"$ kubectl {command}\n{page}" for command, page in pages.items())
    for number, revision in enumerate(revisions, 1):  # its name follows from the plan, and so from all data of the catalog
        text = text.replace(revision["metadata"]["name"], f"llama-{number:010}")
    golden(FOLDER / f"{name}.txt", text)
    assert lines_above_events(described) <= most_lines(described, bench.status())
