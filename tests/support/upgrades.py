"""Upgrades in simulated time: the operator's inside is real; the Deployment controller, the scheduler, the kubelet and engines are played.

Time jumps from one event to the next. What an engine does depends on its version (`Fate`): how long it starts, how long it serves, and how
each of its runs ends.
"""

import hashlib
import heapq
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.fake_cluster import FakeCluster
from support.gpus import real_node
from support.operators import KEY, Bench, llama
from vllm_operator.api import reading
from vllm_operator.api.labels import INSTANCE_LABEL
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, EVENT, NODE, POD, REVISION, VLLM_DEPLOYMENT, Conflict, Kind
from vllm_operator.logs.state import Crash, Stage, StartupState
from vllm_operator.pods.view import meets

Manifest = dict[str, Any]
OLD, NEW, NEWER = "0.20.1", "0.24.0", "0.26.0"
GPU = "nvidia.com/gpu"


class Killed(BaseException):
    """The operator's process ends here. Not an Exception, so that nothing handles it."""


class MortalCluster(FakeCluster):
    """A cluster that kills the operator after a number of its writes."""

    writes_left: int = -1

    def _written(self, verb: str, kind: Kind, before: Manifest | None, after: Manifest) -> Manifest:
        count = len(self.writes)
        written = super()._written(verb, kind, before, after)
        if len(self.writes) > count:
            self.writes_left -= 1
            if self.writes_left == 0:
                raise Killed
        return written


@dataclass(frozen=True)
class Run:
    """One run of an engine: it serves after `start` seconds, unless it ends during the start, and ends after `lasts` seconds of service."""

    start: float = 40
    lasts: float | None = None
    crash: str = ""
    """Signature of the crash; empty: it ends with an error that nobody knows."""
    fails: bool = False
    """Whether it ends instead of serving."""
    exit_code: int = 1
    phase: str = ""
    """`Evicted`, or the reason for which the container waits, with its message after a colon; for `lasts` seconds, or for ever."""


BROKEN_GPU = Run(lasts=60, crash="GpuHardwareFault")


@dataclass(frozen=True)
class Fate:
    """What the engines of a version do: the runs of each Pod in order, the last of which repeats. `once`: only the first Pod does so."""

    runs: Sequence[Run] = (Run(),)
    once: bool = False

    def run(self, pod: int, number: int) -> Run:
        return Run() if self.once and pod else self.runs[min(number, len(self.runs) - 1)]


@dataclass
class Upgrades:
    """One VLLMDeployment, and what has become of its replicas."""

    fates: Mapping[str, Fate] = field(default_factory=dict)
    """By version; others serve for ever."""
    replicas: int = 1
    surge: bool = True
    rollout: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 1
    bad: set[str] = field(default_factory=set)
    """The nodes on which the GPU of each engine breaks after a minute of service."""

    def __post_init__(self) -> None:
        self.bench = Bench()
        self.cluster = MortalCluster()
        self.bench.cluster = self.cluster
        for number in range(self.nodes):
            node = real_node("h100-sxm", f"node-{number}")
            node["metadata"]["labels"]["kubernetes.io/hostname"] = f"node-{number}"
            self.cluster.put({"apiVersion": "v1", "kind": "Node", **node})
        self.bench.restart()
        self.time, self.kills = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._made = itertools.count(), itertools.count()
        self._due: float | None = 0.0
        self._seen = (-1, -1)
        self.fewest = self.replicas
        """The fewest replicas that served at a time since `create`."""
        self.images: list[str] = []
        """The versions in the Deployment, one after another."""
        self._of_version: dict[str, int] = {}

    # the user

    async def create(self, version: str = OLD, *, until: float = 900) -> None:
        """Create the object, and let its first revision prove itself."""
        rollout = {"strategy": "RollingUpdate", "maxSurge": 1} if self.surge else {}
        cache = {"hostPath": "/var/cache/vllm", "priming": "Never"}
        spec = {"cache": cache, "replicas": self.replicas, "rollout": {**rollout, **self.rollout}, **self.spec}
        self.cluster.put(llama(engine={"version": version}, **spec))
        self.wake()
        await self.wait(until)
        self.fewest = self.replicas

    def change(self, **spec: Any) -> None:
        self.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": spec})
        self.wake()

    def annotate(self, name: str, value: str | None) -> None:
        self.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {name: value or ""}}})
        self.wake()

    async def upgrade(self, version: str = NEW, *, until: float = 3600) -> None:
        self.change(engine={"version": version})
        await self.wait(until)

    # what there is

    @property
    def version(self) -> str:
        return _version_of(self.bench.deployment()["spec"]["template"])

    @property
    def serving(self) -> list[str]:
        """The versions of the Pods that serve."""
        return sorted(_version_of(pod) for pod in self.pods() if _is_ready(pod))

    def pods(self) -> list[Manifest]:
        return self.cluster.peek(POD)

    def condition(self, type: str) -> tuple[str, str] | None:
        found = next((it for it in self.bench.status().conditions if it.type == type), None)
        return (found.status.value, found.reason) if found is not None else None

    def message(self, type: str) -> str:
        return self.bench.message(type)

    def revisions(self) -> list[Manifest]:
        return sorted(self.cluster.all(REVISION), key=lambda it: int(it["revision"]))

    def events(self) -> list[str]:
        return [str(each["reason"]) for each in self.cluster.all(EVENT)]

    # time

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.time + seconds
        while True:
            self._run_controllers()
            upcoming = [when for when in (self._due, self._events[0][0] if self._events else None) if when is not None]
            if not upcoming or (following := min(upcoming)) > end:
                break
            self.bench.pass_time(max(0.0, following - self.time))
            self.time = max(self.time, following)
            while self._events and self._events[0][0] <= self.time:
                heapq.heappop(self._events)[2]()
            self._run_controllers()
            if self._due is not None and self._due <= self.time:
                await self._reconcile()
        self.bench.pass_time(end - self.time)
        self.time = end

    async def _reconcile(self) -> None:
        before, self._due = len(self.cluster.writes), None
        try:
            result = await self.bench.reconciler.reconcile(KEY)
        except Killed:
            self.kills += 1
            self.bench.restart()
            self.wake()
            return
        except Conflict:
            self.wake()
            return
        if len(self.cluster.writes) != before:
            self.wake()
        if result.requeue_seconds is not None:
            self._due = min(self._due or 1e12, self.time + max(result.requeue_seconds, 0.5))
        version = self.version if self.cluster.all(DEPLOYMENT) else ""
        if version and self.images[-1:] != [version]:
            self.images.append(version)

    def wake(self) -> None:
        self._due = min(self._due if self._due is not None else 1e12, self.time + 0.5)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._order), action))

    # controllers

    def _run_controllers(self) -> None:
        while self._seen != (seen := (self.cluster.changes, len(self.pods()))):
            self._seen = seen
            for claim in self.cluster.peek(CLAIM):
                if "status" not in claim:
                    self.cluster.set_status(CLAIM, "default", claim["metadata"]["name"], {"phase": "Bound"})
            for each in self.cluster.peek(DEPLOYMENT):
                self._run_deployment(each)
            self.fewest = min(self.fewest, sum(map(_is_ready, self.pods())))

    def _run_deployment(self, each: Manifest) -> None:
        """Bring a Deployment closer to its template, as its strategy says."""
        template, wanted, strategy = each["spec"]["template"], int(each["spec"]["replicas"]), each["spec"]["strategy"]
        mark = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        for pod in self.pods():
            if reading.text(pod, "status", "phase") == "Failed":
                self._remove(pod)
        new = [pod for pod in self.pods() if pod["metadata"]["labels"]["pod-template-hash"] == mark]
        old = sorted((pod for pod in self.pods() if pod not in new), key=_is_ready)
        rolling = strategy.get("rollingUpdate") or {}
        most, least = wanted + int(rolling.get("maxSurge", 0)), wanted - int(rolling.get("maxUnavailable", 0))
        going = old if strategy["type"] == "Recreate" else [pod for pod in old if not _is_ready(pod)]
        spare = sum(self._is_available(pod, int(each["spec"].get("minReadySeconds", 0))) for pod in (*new, *old)) - least
        if strategy["type"] != "Recreate":
            going = [*going, *[pod for pod in old if _is_ready(pod)][: max(0, spare)]]
        going += sorted(new, key=_is_ready)[: max(0, len(new) - wanted)]
        for pod in going:
            self._remove(pod)
        left = [pod for pod in (*new, *old) if pod not in going]
        count = sum(pod in left for pod in new)
        for _ in range(min(wanted - count, most - len(left))):
            self._create_pod(each, mark)
            count += 1
        ready = sum(map(_is_ready, self.pods()))
        reason = "NewReplicaSetAvailable" if count == ready == len(self.pods()) else "ReplicaSetUpdated"
        status = {
            "observedGeneration": each["metadata"]["generation"],
            "replicas": len(self.pods()),
            "updatedReplicas": count,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [{"type": "Progressing", "status": "True", "reason": reason}],
        }
        if status != each.get("status"):
            self.cluster.set_status(DEPLOYMENT, "default", each["metadata"]["name"], status)
            self.wake()

    def _is_available(self, pod: Manifest, seconds: int) -> bool:
        """Whether a Pod has been ready for so long. If not yet, the controller looks again then."""
        since = reading.moment(reading.named(pod, "Ready", "status", "conditions").get("lastTransitionTime"))
        if not _is_ready(pod) or since is None:
            return False
        left = seconds - (self.bench.now - since).total_seconds()
        if left > 0:
            self.later(left, self._look_again)
        return left <= 0

    def _look_again(self) -> None:
        self._seen = (-1, -1)

    def _create_pod(self, owner: Manifest, mark: str) -> None:
        name, template = f"llama-{mark}-{next(self._made)}", owner["spec"]["template"]
        replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"llama-{mark}", "uid": f"rs-{mark}", "controller": True}
        metadata = {
            "name": name,
            "namespace": "default",
            "labels": {**template["metadata"]["labels"], "pod-template-hash": mark, INSTANCE_LABEL: "llama"},
            "ownerReferences": [replica_set],
            "creationTimestamp": reading.stamp(self.bench.now),
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        self.cluster.put(pod)
        self._place(name)

    def _place(self, name: str) -> None:
        """Give a Pod a node with a free GPU, as soon as there is one."""
        pod = self._find(name)
        if pod is None:
            return
        used = [each["spec"]["nodeName"] for each in self.pods() if each["spec"].get("nodeName")]
        own = int(next(it for it in pod["spec"]["containers"] if it["name"] == "vllm")["resources"]["limits"].get(GPU, 1))
        sizes = {it["metadata"]["name"]: int(it["status"]["allocatable"][GPU]) for it in self.cluster.peek(NODE)}
        labels = {it["metadata"]["name"]: it["metadata"]["labels"] for it in self.cluster.peek(NODE)}
        affinity = reading.mapping(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        terms = [list(reading.objects(term, "matchExpressions")) for term in reading.objects(affinity, "nodeSelectorTerms")]
        allowed = [
            node for node in sorted(sizes) if any(all(meets(labels[node], each) is not False for each in term) for term in terms or [[]])
        ]
        node = next((node for node in allowed if (used.count(node) + 1) * own <= sizes[node]), None)
        if node is None:
            self._show(name, {}, scheduled=False)
            self.later(5, lambda: self._place(name))
            return
        self.cluster.edit(POD, "default", name, {"spec": {"nodeName": node}})
        version = _version_of(pod)
        number = self._of_version[version] = self._of_version.get(version, -1) + 1
        self._start(name, version, number, 0)

    def _start(self, name: str, version: str, number: int, run: int) -> None:
        pod = self._find(name)
        fate = self._run(pod, version, number, run)
        if pod is None:
            return
        if fate.phase == "Evicted":
            self.later(fate.start, lambda: self._evict(name))
        elif fate.phase:
            reason, _, message = fate.phase.partition(":")
            self._show(name, {"waiting": {"reason": reason, "message": message}}, run=run)
            if fate.lasts is not None:
                self.later(fate.lasts, lambda: self._start(name, version, number, run + 1))
            return
        started = reading.stamp(self.bench.now) or ""
        self._log(pod, run, StartupState(stage=Stage.WEIGHT_LOAD, stage_since=self.bench.now, last_line_at=self.bench.now))
        self._show(name, {"running": {"startedAt": started}}, run=run)
        if fate.phase == "Evicted":
            return
        if not fate.fails:
            self.later(fate.start, lambda: self._serve(name, run))
        if fate.fails or fate.lasts is not None:
            self.later(fate.start + (fate.lasts or 0), lambda: self._end(name, version, number, run, started))

    def _run(self, pod: Manifest | None, version: str, number: int, run: int) -> Run:
        is_bad = pod is not None and pod["spec"].get("nodeName") in self.bad
        return BROKEN_GPU if is_bad else self.fates.get(version, Fate()).run(number, run)

    def _serve(self, name: str, run: int) -> None:
        pod = self._find(name)
        if pod is not None:
            self._log(pod, run, StartupState(stage=Stage.READY, stage_since=self.bench.now, last_line_at=self.bench.now))
            self._show(name, {"running": {"startedAt": reading.stamp(self.bench.now)}}, run=run, ready=True)

    def _end(self, name: str, version: str, number: int, run: int, started: str) -> None:
        pod = self._find(name)
        if pod is None:
            return
        fate = self._run(pod, version, number, run)
        stage = Stage.WEIGHT_LOAD if fate.fails else Stage.READY
        crash = Crash(fate.crash or "Unknown", "The engine broke", "mend it", None, line="It broke")
        self._log(pod, run, StartupState(stage=stage, crash=crash if fate.exit_code != 143 else None, is_final=True))
        ended = {"exitCode": fate.exit_code, "reason": "Error", "startedAt": started, "finishedAt": reading.stamp(self.bench.now)}
        self._show(name, {"terminated": ended}, run=run)
        self.later(min(300, 10 * 2**run), lambda: self._start(name, version, number, run + 1))

    def _evict(self, name: str) -> None:
        if self._find(name) is not None:
            self.cluster.set_status(POD, "default", name, {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"})
            self.wake()

    def _show(self, name: str, state: Manifest, *, run: int = 0, ready: bool = False, scheduled: bool = True) -> None:
        pod = self._find(name)
        assert pod is not None
        now, before = reading.stamp(self.bench.now), reading.named(pod, "vllm", "status", "containerStatuses", key="name")
        ended = reading.mapping(before, "state", "terminated")
        last = {"terminated": dict(ended)} if ended else dict(reading.mapping(before, "lastState"))
        why = {} if scheduled else {"reason": "Unschedulable", "message": f"0/1 nodes are available: 1 Insufficient {GPU}."}
        conditions = [{"type": "PodScheduled", "status": str(scheduled), "lastTransitionTime": now, **why}]
        conditions += [{"type": "Ready", "status": str(ready), "lastTransitionTime": now}]
        engine = {"name": "vllm", "state": state, "lastState": last, "restartCount": run, "ready": ready, "started": ready}
        phase = "Running" if "running" in state else "Pending"
        containers = [engine] if scheduled else []
        self.cluster.set_status(POD, "default", name, {"phase": phase, "conditions": conditions, "containerStatuses": containers})
        self.wake()

    def _log(self, pod: Manifest, run: int, state: StartupState) -> None:
        self.bench.logs.told[pod["metadata"]["uid"], run] = state

    def _remove(self, pod: Manifest) -> None:
        self.cluster.remove(POD, "default", pod["metadata"]["name"])
        self.wake()

    def _find(self, name: str) -> Manifest | None:
        return next((pod for pod in self.pods() if pod["metadata"]["name"] == name), None)


def _is_ready(pod: Manifest) -> bool:
    return reading.named(pod, "Ready", "status", "conditions").get("status") == "True"


def _version_of(each: Manifest) -> str:
    [engine] = [it for it in each["spec"]["containers"] if it["name"] == "vllm"]
    return str(engine["image"]).partition(":v")[2].partition("-")[0]
