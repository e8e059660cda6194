"""Replicas on several nodes: one start, one crash."""

from dataclasses import replace
from typing import Any

import pytest

from support import observations as o
from vllm_operator.api.conditions import CRASHED, HUNG, PAGES, READY, find_condition
from vllm_operator.api.plan import PlannedArgument
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.logs.state import Crash, MeasuredMemory, Membership, Stage, StartupState
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import Report, report

LEADER, FOLLOWER = "vllm-a-0", "vllm-a-0-1"
WAITS = StartupState(
    stage=Stage.DISTRIBUTED_INIT,
    stage_since=o.at(-120),
    last_line_at=o.at(-120),
    membership=Membership(node=0, nodes=2, is_waiting=True),
)
READS = StartupState(stage=Stage.WEIGHT_LOAD, stage_since=o.at(-30), last_line_at=o.at(-1), membership=Membership(node=1, nodes=2))
NO_MODEL = Crash("HfRepoNotFound", "The model does not exist.", "Correct spec.model.uri.", None, "not found", time=o.at(-40))
LOST_PEER = Crash("DistributedTimeout", "A process did not respond.", "Look at the others.", None, "closed by peer", time=o.at(-31))


def group(leader: dict[str, Any], follower: dict[str, Any] | None, *, created: float = -400, **more: Any) -> Observation:
    followers = [o.member(follower, 1, created=created)] if follower is not None else []
    return o.observe(o.member(leader, 0, created=created), followers=followers, outcome=o.outcome(plan=o.plan(nodes=2)), **more)


def said(reported: Report, type: str) -> str:
    found = find_condition(reported.status.conditions, type)
    return found.message if found is not None else ""


def test_the_start_is_that_of_the_slowest_node() -> None:
    pulling = o.pending_pod("ContainerCreating", name=FOLLOWER)
    events = [o.event("Pulling", name=FOLLOWER, seconds=-100)]
    told = report(group(o.starting_pod(LEADER), pulling, states={(LEADER, 0): WAITS}, pod_events=events))

    assert told.status.startup is not None
    assert told.status.startup.stage == "ImagePull"
    assert told.status.startup.pod == FOLLOWER
    assert [pod.name for pod in told.status.startup.pods or ()] == [LEADER]
    assert (
        "It is rank 1 (of 0 to 1), on node node-b. The other Pods of the replica keep their GPUs, and wait for it. "
        "At 14:18 UTC they give up, and all Pods of this replica start again." in said(told, READY)
    )
    assert (told.status.replicas, told.status.ready_replicas) == (1, 0)


def test_a_follower_is_ready_at_once_and_still_starts() -> None:
    told = report(group(o.starting_pod(LEADER), o.ready_pod(FOLLOWER), states={(LEADER, 0): WAITS, (FOLLOWER, 0): READS}))

    assert told.status.ready_replicas == 0
    assert told.status.startup is not None
    assert {told.status.startup.pod, *(pod.name for pod in told.status.startup.pods or ())} == {LEADER, FOLLOWER}


def test_followers_which_do_not_log_it_wait_as_long_as_planned() -> None:
    waits = replace(WAITS, membership=Membership(node=1, nodes=2, is_waiting=True))
    observed = group(o.pending_pod("ContainerCreating", name=LEADER), o.ready_pod(FOLLOWER), states={(FOLLOWER, 0): waits})
    flag = PlannedArgument(name="--distributed-timeout-seconds", value="7200", reason="")
    told = report(replace(observed, outcome=o.outcome(plan=o.plan(nodes=2, args=[flag]))))

    assert "At 16:08 UTC they give up" in said(told, READY)


def test_a_node_that_never_comes() -> None:
    told = report(group(o.starting_pod(LEADER), None, states={(LEADER, 0): WAITS}))

    assert "Rank 1 has not connected, and the engine cannot start with fewer. 1 Pod of the group does not exist." in said(told, READY)
    assert "`kubectl logs -n lws-system deployment/lws-controller-manager`" in said(told, READY)
    assert "At 14:18 UTC they give up" in said(told, READY)


def test_a_group_without_any_pod_names_the_log_of_the_controller_that_creates_them() -> None:
    told = report(o.observe(outcome=o.outcome(plan=o.plan(nodes=2)), deployment={"kind": "LeaderWorkerSet"}))

    assert said(told, READY).startswith("No Pod exists yet. The controller of LeaderWorkerSet creates them.")
    assert "`kubectl logs -n lws-system deployment/lws-controller-manager`" in said(told, READY)


def test_it_serves_when_its_leader_does() -> None:
    told = report(group(o.ready_pod(LEADER), o.ready_pod(FOLLOWER), states={(LEADER, 0): StartupState(stage=Stage.READY)}))

    assert told.status.ready_replicas == 1
    assert said(told, CRASHED) == ""


def test_a_crash_is_told_once_with_rank_pod_node_and_what_the_others_lost() -> None:
    states = {(LEADER, 0): replace(WAITS, crash=LOST_PEER, is_final=True), (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}
    told = report(group(o.crashed_pod(LEADER), o.crashed_pod(FOLLOWER), states=states))

    text = said(told, CRASHED)
    assert text.startswith(f"Pod {FOLLOWER} crashed with exit code 1 (HfRepoNotFound). Rank 1 (of 0 to 1) on node node-b: The model")
    assert "Because of it, rank 0 reports DistributedTimeout." in text
    assert told.status.last_crash is not None
    assert told.status.last_crash.pod == FOLLOWER
    assert len([event for event in told.events if event.reason == "HfRepoNotFound"]) == 1


def test_what_others_lost_is_named_by_its_kind_if_it_has_no_name_of_its_own() -> None:
    lost = replace(LOST_PEER, signature="Unknown", family="CollectiveFailed")
    states = {(LEADER, 0): replace(WAITS, crash=lost, is_final=True), (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}
    told = report(group(o.crashed_pod(LEADER), o.crashed_pod(FOLLOWER), states=states))

    assert "Because of it, rank 0 reports CollectiveFailed." in said(told, CRASHED)


@pytest.mark.parametrize(("code", "how"), [(0, "has ended with exit code 0 and no error"), (137, "was killed (exit code 137)")])
def test_a_follower_that_has_ended_while_the_leader_answers_is_a_crash(code: int, how: str) -> None:
    states = {(LEADER, 0): StartupState(stage=Stage.READY), (FOLLOWER, 0): replace(READS, is_final=True)}
    told = report(group(o.ready_pod(LEADER, ready=-200), o.crashed_pod(FOLLOWER, code=code), states=states))

    assert f"Rank 1 {how}" in said(told, CRASHED)
    assert told.status.ready_replicas == 0


def test_the_crash_of_a_group_that_is_deleted_because_of_it_counts() -> None:
    dying = [o.terminating(it, seconds=20) for it in (o.starting_pod(LEADER), o.crashed_pod(FOLLOWER))]
    for it in dying:
        it["metadata"]["deletionGracePeriodSeconds"] = 30
    told = report(group(dying[0], dying[1], states={(FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}))

    assert "HfRepoNotFound" in said(told, CRASHED)


SERVED = {(LEADER, 0): StartupState(stage=Stage.READY)}


@pytest.mark.parametrize(
    "follower",
    [
        pytest.param(o.ready_pod(FOLLOWER, restarts=1, last=o.terminated(137, seconds=-1)), id="its container has been started again"),
        pytest.param(o.crashed_pod(FOLLOWER, code=137, seconds=-1), id="its container has not been started again"),
        pytest.param(
            o.pod(FOLLOWER, containers=[o.container(o.terminated(143, seconds=0), restarts=1, last=o.terminated(137, seconds=-1))]),
            id="its container was started again and told to stop",
        ),
    ],
)
def test_a_crash_is_told_before_the_pods_of_its_group_are_gone(follower: dict[str, Any]) -> None:
    pods = [o.terminating(it, seconds=30) for it in (o.ready_pod(LEADER, ready=-200), follower)]
    for it in pods:
        it["metadata"]["deletionGracePeriodSeconds"] = 30
    told = report(group(pods[0], pods[1], states=SERVED))

    assert f"Pod {FOLLOWER} crashed with exit code 137 (RankLost). Rank 1 (of 0 to 1) on node node-b" in said(told, CRASHED)
    assert [event.reason for event in told.events if event.reason == "RankLost"] == ["RankLost"]


@pytest.mark.parametrize("grace", [pytest.param(30, id="asked in that second"), pytest.param(0, id="the last request of the kubelet")])
def test_a_group_that_ends_when_it_is_told_to_has_not_crashed(grace: int) -> None:
    ended = 0 if grace else -2
    pods = [o.terminating(o.crashed_pod(name, code=0, seconds=ended), seconds=grace) for name in (LEADER, FOLLOWER)]
    for it in pods:
        it["metadata"]["deletionGracePeriodSeconds"] = grace
    told = report(group(pods[0], pods[1], states=SERVED))

    assert said(told, CRASHED) == ""


def test_a_crash_stays_in_force_while_the_last_pod_of_its_group_leaves() -> None:
    states = {(LEADER, 0): WAITS, (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}
    crashed = report(group(o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, seconds=-30), states=states))
    told = report(o.following(group(o.terminating(o.starting_pod(LEADER)), None), crashed.status))

    assert (said(told, CRASHED), told.events) == (said(crashed, CRASHED), ())


def test_the_followers_of_a_leader_that_is_removed_do_not_start() -> None:
    told = report(group(o.terminating(o.ready_pod(LEADER)), o.ready_pod(FOLLOWER), states={(FOLLOWER, 0): READS}))

    assert "loading" not in said(told, READY)
    assert said(told, CRASHED) == ""


def test_a_restart_before_the_group_served_is_no_crash_in_force() -> None:
    restarted = o.ready_pod(FOLLOWER, restarts=1, last=o.terminated(seconds=-300))
    told = report(group(o.ready_pod(LEADER, ready=-20), restarted))

    assert said(told, CRASHED) == ""
    assert told.status.ready_replicas == 1


def test_a_group_that_is_told_to_stop_has_not_crashed() -> None:
    dying = [o.terminating(it, seconds=-60) for it in (o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, code=143))]
    told = report(group(dying[0], dying[1]))

    assert said(told, CRASHED) == ""


def test_a_crash_after_the_group_has_served_again_is_another_one() -> None:
    states = {(LEADER, 0): WAITS, (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}
    first = report(group(o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, seconds=-390), states=states, created=-400))
    served = report(o.following(group(o.ready_pod(LEADER), o.ready_pod(FOLLOWER), created=-300), first.status))
    again = o.following(group(o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, seconds=-30), states=states, created=-300), served.status)
    told = report(again)

    assert said(told, CRASHED).startswith(f"Pod {FOLLOWER} crashed with exit code 1 (HfRepoNotFound).")
    assert [event.reason for event in told.events].count("HfRepoNotFound") == 1
    once_more = report(o.following(again, told.status))
    assert (once_more.events, said(once_more, CRASHED)) == ((), said(told, CRASHED))


def test_recreations_are_counted_and_the_crash_stays_in_force_until_the_group_serves() -> None:
    states = {(LEADER, 0): WAITS, (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}

    def crashed(created: float, status: VLLMDeploymentStatus) -> Report:
        pods = (o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, seconds=created + 10))
        return report(o.following(group(*pods, states=states, created=created), status))

    def recreated(created: float, status: VLLMDeploymentStatus) -> Report:
        return report(o.following(group(o.starting_pod(LEADER), o.ready_pod(FOLLOWER), created=created), status))

    status = crashed(-400, VLLMDeploymentStatus()).status
    for number in range(2, 6):
        between = recreated(-400 + 60 * number - 30, status)
        assert "HfRepoNotFound" in said(between, CRASHED)
        assert between.events == ()
        again = crashed(-400 + 60 * number - 30, between.status)
        assert again.status.last_crash is not None
        assert again.status.last_crash.restarts == number - 1
        assert f"crashed {number} times" in said(again, CRASHED)
        gone = report(o.following(group(o.starting_pod(LEADER), None), again.status)).status
        unsaid = {"exit_code": 1, "reference": f"{PAGES}/HfRepoNotFound"}
        assert gone.last_crash == again.status.last_crash.model_copy(update=unsaid), "no condition says it any more"
        status = again.status
    assert "Stalled" in {condition.type for condition in status.conditions}

    served = report(o.following(group(o.ready_pod(LEADER), o.ready_pod(FOLLOWER), created=-60), status))
    assert said(served, CRASHED) == ""
    later = crashed(-30, served.status)
    assert later.status.last_crash is not None
    assert later.status.last_crash.restarts is None


def test_crashes_of_different_ranks_are_counted_together_while_the_last_one_is_diagnosed() -> None:
    of_follower = {(LEADER, 0): WAITS, (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}
    of_leader = {(LEADER, 0): replace(WAITS, crash=LOST_PEER, is_final=True), (FOLLOWER, 0): READS}

    def crashed(status: VLLMDeploymentStatus, *, created: float, rank: int, seconds: float, is_read: bool = True) -> Report:
        ends = o.crashed_pod((LEADER, FOLLOWER)[rank], seconds=seconds)
        pods = (ends, o.ready_pod(FOLLOWER)) if rank == 0 else (o.starting_pod(LEADER), ends)
        states = (of_follower if rank else of_leader) if is_read else {}
        return report(o.following(group(*pods, states=states, created=created), status))

    status = crashed(VLLMDeploymentStatus(), created=-400, rank=1, seconds=-390).status
    unread = crashed(status, created=-300, rank=0, seconds=-1, is_read=False)
    assert said(unread, CRASHED).startswith(f"Pod {FOLLOWER} crashed with exit code 1 (HfRepoNotFound)")
    told = crashed(unread.status, created=-300, rank=0, seconds=-20)
    assert told.status.last_crash is not None
    assert (told.status.last_crash.pod, told.status.last_crash.restarts) == (LEADER, 1)
    unread = crashed(told.status, created=-15, rank=1, seconds=-1, is_read=False)
    assert "crashed 2 times" in said(unread, CRASHED)
    assert unread.status.last_crash == told.status.last_crash

    # after the group has served, the count begins again
    served = report(o.following(group(o.ready_pod(LEADER), o.ready_pod(FOLLOWER), created=-15), told.status))
    unread = crashed(served.status, created=-10, rank=0, seconds=-1, is_read=False)
    assert said(unread, CRASHED).startswith(f"Pod {LEADER} ended with exit code 1. The operator is reading its log.")


def test_a_crash_stays_in_force_while_its_group_has_no_pods_or_only_a_leader() -> None:
    states = {(LEADER, 0): WAITS, (FOLLOWER, 0): replace(READS, crash=NO_MODEL, is_final=True)}
    status = report(group(o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, seconds=-390), states=states)).status
    for observed in (o.observe(outcome=o.outcome(plan=o.plan(nodes=2))), group(o.starting_pod(LEADER), None, created=-300)):
        told = report(o.following(observed, status))
        assert "HfRepoNotFound" in said(told, CRASHED)
        assert told.events == ()
        status = told.status
    again = report(o.following(group(o.starting_pod(LEADER), o.crashed_pod(FOLLOWER, seconds=-290), states=states, created=-300), status))
    assert "crashed 2 times" in said(again, CRASHED)
    scaled_down = o.observe(outcome=o.outcome(plan=o.plan(nodes=2)), replicas=0)
    assert said(report(o.following(scaled_down, again.status)), CRASHED) == ""


def test_stalled_starts_of_a_group_are_restarted_as_often_as_the_spec_allows() -> None:
    spec = {"startup": {"onStall": "Restart", "maxStallRestarts": 2}}
    silent = replace(WAITS, stage_since=o.at(-900), last_line_at=o.at(-900))
    status, restarted = VLLMDeploymentStatus(), []
    for number in range(4):
        leader, follower = o.starting_pod(LEADER, since=-1000), o.ready_pod(FOLLOWER, since=-1000)
        for pod in (leader, follower):
            pod["metadata"]["uid"] += f"-{number}"
        states = {f"uid-{name}-{number}": silent for name in (LEADER, FOLLOWER)}
        observed = group(leader, follower, created=-1000, startups={(uid, 0): state for uid, state in states.items()}, spec=spec)
        told = report(o.following(observed, status))
        restarted.append(len(told.pods_to_delete))
        status = told.status

    assert restarted == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("on_hang", "next_step"),
    [
        ("Restart", "UTC the engine is killed, and all Pods of its replica are created again"),
        ("Report", f"To restart all Pods of its replica: `kubectl delete pod {LEADER} -n "),
    ],
)
def test_a_leader_that_hangs_is_a_hang_of_the_replica(on_hang: str, next_step: str) -> None:
    observed = group(o.unready_pod(LEADER), o.ready_pod(FOLLOWER), pod_events=[o.hang_event(LEADER)])
    told = report(replace(observed, outcome=o.outcome(plan=o.plan(nodes=2, on_hang=on_hang))))

    assert said(told, HUNG).startswith(f"The engine of Pod {LEADER} hangs")
    assert next_step in said(told, HUNG)
    assert "It is rank 0 (of 0 to 1), on node node-a." in said(told, HUNG)
    assert said(told, CRASHED) == ""
    assert told.status.ready_replicas == 0


@pytest.mark.parametrize("code", [0, 137, 143])
def test_a_leader_that_its_startup_probe_has_ended_has_missed_its_deadline(code: int) -> None:
    leader = o.starting_pod(LEADER, restarts=1, since=-2, last=o.terminated(code, seconds=-3))
    killed = o.event("Killing", "Container vllm failed startup probe, will be restarted", name=LEADER, seconds=-8)
    deleted = o.event("Killing", "Stopping container vllm", name=LEADER, seconds=-1)  # because its group is created again
    pods = [o.terminating(it, seconds=30) for it in (leader, o.ready_pod(FOLLOWER))]
    for it in pods:
        it["metadata"]["deletionGracePeriodSeconds"] = 30
    told = report(group(pods[0], pods[1], states={(LEADER, 0): READS, (FOLLOWER, 0): READS}, pod_events=[killed, deleted]))

    assert f"Pod {LEADER} crashed with exit code {code} (StartupProbeFailed). Rank 0 (of 0 to 1) on node node-a" in said(told, CRASHED)
    assert "spec.startup.deadlineSeconds" in said(told, CRASHED)


def test_a_follower_on_a_lost_node_is_told_although_the_leader_answers() -> None:
    lost = o.ready_pod(FOLLOWER)
    lost["status"]["conditions"] = [o.condition("ContainersReady", "True"), o.condition("Ready", "False", -5, reason="NodeStatusUnknown")]
    told = report(group(o.ready_pod(LEADER), lost))

    assert told.status.ready_replicas == 0
    assert f"Pod {FOLLOWER}" in said(told, READY)
    assert "node-b" in said(told, READY)


def test_nodes_that_differ_are_told() -> None:
    leader, follower = o.starting_pod(LEADER), o.ready_pod(FOLLOWER)
    for pod, digest in ((leader, "sha256:aa"), (follower, "sha256:bb")):
        pod["status"]["containerStatuses"][0]["imageID"] = f"vllm@{digest}"
    gpus = {"node-a": "NVIDIA-H100 with driver 580.65", "node-b": "NVIDIA-H100 with driver 550.54"}
    told = report(group(leader, follower, states={(LEADER, 0): WAITS}, gpus=gpus))

    assert (
        "All nodes must be alike, and differ in image: vllm@sha256:aa and vllm@sha256:bb; GPU: NVIDIA-H100 with driver 550.54 and"
        in said(told, READY)
    )


@pytest.mark.parametrize(
    ("of_leader", "of_follower", "want"),
    [
        pytest.param("--tensor-parallel-size 2", "--tensor-parallel-size 1", "--tensor-parallel-size: 1 and 2", id="a value"),
        pytest.param("--port 8000 --nnodes 2", "--nnodes 2 --headless", "", id="flags of the server and of followers"),
        pytest.param("--data-parallel-address $(VLLM_HOST_IP)", "--data-parallel-address r1-0", "", id="the address of engines"),
        pytest.param("--enforce-eager --nnodes 2", "--enforce-eager --nnodes 3", "--nnodes: 2 and 3", id="a flag without a value before"),
    ],
)
def test_flags_that_differ_between_nodes_are_told(of_leader: str, of_follower: str, want: str) -> None:
    leader, follower = o.starting_pod(LEADER), o.ready_pod(FOLLOWER)
    for pod, flags in ((leader, of_leader), (follower, of_follower)):
        pod["spec"]["containers"] = [{"name": "vllm", "args": flags.split()}]
    told = said(report(group(leader, follower, states={(LEADER, 0): WAITS})), READY)

    assert ("differ in" in told) == bool(want)
    assert want in told


def test_what_differs_between_nodes_is_told_before_a_long_cause() -> None:
    long = replace(NO_MODEL, cause="vLLM refuses it: " + "a long reason, " * 40)
    leader, follower = o.starting_pod(LEADER), o.crashed_pod(FOLLOWER)
    for pod, size in ((leader, "2"), (follower, "3")):
        pod["spec"]["containers"] = [{"name": "vllm", "args": ["--tensor-parallel-size", size]}]
    told = report(group(leader, follower, states={(LEADER, 0): WAITS, (FOLLOWER, 0): replace(READS, crash=long, is_final=True)}))

    assert "Rank 1 (of 0 to 1) on node node-b (the nodes differ in --tensor-parallel-size: 2 and 3): vLLM refuses" in said(told, CRASHED)


def test_the_rank_with_the_root_cause_is_named_although_only_the_leader_has_ended_and_reports_it() -> None:
    no_memory = Crash("NoKvCacheMemory", "No memory is left for the KV cache.", "Lower it.", None, "No available memory", time=o.at(-31))
    leader = replace(WAITS, stage=Stage.MEMORY_PROFILING, memory=MeasuredMemory(kv_cache_gib=22.2), crash=no_memory, is_final=True)
    follower = replace(READS, stage=Stage.MEMORY_PROFILING, memory=MeasuredMemory(kv_cache_gib=-1.2))
    told = report(group(o.crashed_pod(LEADER), o.ready_pod(FOLLOWER), states={(LEADER, 0): leader, (FOLLOWER, 0): follower}))

    want = (
        f"Pod {LEADER} crashed with exit code 1 (NoKvCacheMemory). Rank 1 (of 0 to 1) on node node-b: No memory is left for the KV cache."
    )
    assert said(told, CRASHED).startswith(want)
    assert "Because of it, rank 0 reports NoKvCacheMemory." in said(told, CRASHED)
