"""A fleet of GPUs in simulated time: the operator's inside is real, the controllers, the scheduler, the kubelet and the users are played.

Time passes in steps of a second. Users create, delete, resize and change VLLMDeployments at random, and nodes go and come back. A user who
reads in a status that another GPU is free requests a new plan. After each step, the cluster is compared with what the operator says.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any

from support.gpus import known_gpus, real_node
from support.operators import Bench, llama
from support.plans import deployment, planned
from support.verdicts import plan_verdict
from vllm_operator.api import reading
from vllm_operator.api.conditions import REFUSALS
from vllm_operator.api.labels import INSTANCE_LABEL, PLAN_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.caches.address import claims_of
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, NODE, POD, REVISION, VLLM_DEPLOYMENT, Kind

Manifest = dict[str, Any]
Key = tuple[str, str]

PRODUCT = "nvidia.com/gpu.product"
GPU = "nvidia.com/gpu"
KINDS = {"l40s": 3, "h100-sxm": 2, "h200": 1, "b200": 1, "rtx-pro-6000": 2}
"""Nodes of each kind: 60 GPUs."""
MODELS = ("hf://Qwen/Qwen3-8B", "hf://meta-llama/Llama-3.1-8B-Instruct", "hf://Qwen/Qwen3-32B", "hf://meta-llama/Llama-3.3-70B-Instruct")
LONGEST_WAIT, LONGEST_LIE = 60.0, 10.0
MOST_OBJECTS = 28
STORAGE: tuple[Manifest, ...] = ({}, {}, {"storage": "ClaimPerReplica"}, {"hostPath": "/var/cache/vllm"})
HELD = re.compile(r"begun: (\d+) new Pods? needs? (\d+) (.+?)(?: each)?(?: on one node)?, and (?:there|no|none)")
NO_NODE = re.compile(r"when a node that it may use has (\d+) GPUs? free \(([^)]+)\)")
FREE_NOW = re.compile(r"(?:Free now, but not allowed by the spec: ([^.]+)\.|, and (\S+) is free now\.)")


def machines() -> list[Manifest]:
    """The nodes of the fleet."""
    return [real_node(kind, f"{kind}-{number}") for kind, nodes in KINDS.items() for number in range(nodes)]


@cache
def products() -> Mapping[str, str]:
    """The kind of each product."""
    return {real_node(kind)["metadata"]["labels"][PRODUCT]: kind for kind in KINDS}


@cache
def titles() -> Mapping[str, str]:
    """The product of each name of a GPU in messages."""
    made = [planned(deployment(MODELS[0]), real_node(kind)).plan for kind in KINDS]
    return {known_gpus().title(plan.product, plan.architecture): plan.product for plan in made if plan is not None and plan.product}


@cache
def needed(model: str, kind: str) -> int | None:
    """How many GPUs of one kind a replica of a model needs; None if it does not fit well."""
    made = planned(deployment(model), real_node(kind)).plan
    return None if made is None or any("near the limit" in note or "out of memory" in note for note in made.notes) else made.count


@dataclass
class Truth:
    """What is free on which node, and which Pods start, according to the Pods."""

    nodes: Mapping[str, Manifest]
    used: Counter[str]
    starting: set[str]
    single: set[str]

    def is_bound(self, pods: list[Manifest]) -> bool:
        """Whether some Pods have mounted a volume for one node, so that the others may only run there."""
        return any(pod["spec"].get("nodeName") and claims_of(pod["spec"]) & self.single for pod in pods)

    def free(self, node: str) -> int:
        return int(self.nodes[node]["status"]["allocatable"][GPU]) - self.used[node]

    def replicas(self, product: str, count: int) -> int:
        """For how many replicas with so many GPUs a product is free."""
        own = (name for name, node in self.nodes.items() if node["metadata"]["labels"][PRODUCT] == product)
        return sum(max(self.free(name), 0) // count for name in own)


@dataclass
class Measured:
    """The figures of a run, and what was wrong."""

    operations: Counter[str] = field(default_factory=Counter)
    plans: int = 0
    moved: int = 0
    requested: int = 0
    overtaken: int = 0
    longest_wait: float = 0.0
    longest_lie: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = ", ".join(f"{number} {name}" for name, number in sorted(self.operations.items()))
        return (
            f"{done}; {self.plans} plans, {self.moved} chosen again, {self.requested} requested by users, "
            f"{self.overtaken} Pods of rolling updates whose GPUs others took meanwhile; longest wait beside a free GPU "
            f"{self.longest_wait:.0f} s, longest untrue status {self.longest_lie:.0f} s, {len(self.wrong)} violations"
        )


class GPUFleet:
    """The cluster, its users and what they expect. `run` plays so many operations."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = Bench(*machines())
        self.measured = Measured()
        self.cluster = self.bench.cluster
        self.time = 0.0
        self.due: dict[Key, float] = {}
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.made, self.seen = 0, (-1, -1)
        self.since: dict[tuple[str, ...], float] = {}
        self.known: set[str] = set()

    async def run(self, operations: int) -> Measured:
        for _ in range(operations):
            self._operate()
            await self._pass(self.random.randint(1, 6))
        await self._pass(90)
        return self.measured

    # users

    def _operate(self) -> None:
        names = sorted(each["metadata"]["name"] for each in self._all(VLLM_DEPLOYMENT))
        number = {"create": 12 if len(names) < MOST_OBJECTS else 0, "delete": 6, "resize": 4, "change": 4, "node": 2}
        choices = [name for name, times in number.items() for _ in range(times)]
        act = self.random.choice(choices)
        if act == "node":
            act = self._lose_or_return_node()
        elif act == "create":
            for _ in range(self.random.choice((1, 1, 1, 2, 5))):  # some are applied together
                self._create()
        elif not names:
            return
        elif act == "delete":
            self._delete(self.random.choice(names))
        elif act == "change":
            self._change(self.random.choice(names))
        else:
            name = self.random.choice(names)
            self.cluster.edit(VLLM_DEPLOYMENT, "default", name, {"spec": {"replicas": self.random.choice((0, 1, 2, 3, 5))}})
            self._wake(name)
        self.measured.operations[act] += 1

    def _create(self) -> None:
        self.made += 1
        accelerator = self.random.choice(
            (*([None] * 8), self._products(1), self._products(2), {"policy": "MostCapable"}, {"policy": "MostFree"})
        )
        spec = {"model": {"uri": self.random.choice(MODELS)}, "replicas": self.random.choice((1, 1, 2, 3, 4))}
        spec |= {"cache": self.random.choice(STORAGE)}
        self.cluster.put(llama(f"m{self.made}", **spec, **({"accelerator": accelerator} if accelerator else {})))
        self._wake(f"m{self.made}")

    def _products(self, number: int) -> Manifest:
        return {"products": sorted(self.random.sample(list(products()), number))}

    def _change(self, name: str) -> None:
        """Another version of vLLM on the same GPU, or other GPUs."""
        version = {"engine": {"version": self.random.choice(("0.20.1", "0.26.0"))}}
        change = self.random.choice((version, {"accelerator": self._products(1)}, {"accelerator": self._products(3)}))
        self.cluster.edit(VLLM_DEPLOYMENT, "default", name, {"spec": change})
        self._wake(name)

    def _delete(self, name: str) -> None:
        self.cluster.remove(VLLM_DEPLOYMENT, "default", name)
        for kind in (DEPLOYMENT, POD, REVISION, CLAIM):  # garbage collection
            for each in self._all(kind):
                if each["metadata"]["labels"].get(INSTANCE_LABEL) == name:
                    self.cluster.remove(kind, "default", each["metadata"]["name"])
        self._wake(name)

    def _lose_or_return_node(self) -> str:
        present = {node["metadata"]["name"] for node in self._all(NODE)}
        gone = [node for node in machines() if node["metadata"]["name"] not in present]
        if gone and (len(gone) > 1 or self.random.random() < 0.6):
            self.cluster.put({"apiVersion": "v1", "kind": "Node", **self.random.choice(gone)})
            return "return of a node"
        lost = self.random.choice(sorted(present))
        self.cluster.remove(NODE, None, lost)
        for pod in self._all(POD):
            if pod["spec"].get("nodeName") == lost:
                self._remove_pod(pod)
        return "loss of a node"

    def _obey(self, name: str, resource: Manifest) -> None:
        """A user who reads of a free GPU requests a new plan some time later."""
        message = self._condition(resource, "Ready").get("message", "")
        if "kubectl annotate vllm" not in message or ("obey", name) in self.since:
            return
        self.since["obey", name] = self.time

        def request() -> None:
            self.since.pop(("obey", name), None)
            found = self._find(VLLM_DEPLOYMENT, name)
            if found is not None and "kubectl annotate vllm" in self._condition(found, "Ready").get("message", ""):
                self.cluster.edit(VLLM_DEPLOYMENT, "default", name, {"metadata": {"annotations": {REPLAN_ANNOTATION: f"{self.time:.0f}"}}})
                self.measured.requested += 1
                self._wake(name)

        self._later(self.random.randint(5, 30), request)

    # time

    async def _pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time += 1
            self.bench.pass_time(1)
            due = [action for when, action in self.timers if when <= self.time]
            self.timers = [entry for entry in self.timers if entry[0] > self.time]
            for action in due:
                action()
            self._run_controllers()
            for key in sorted(key for key, when in self.due.items() if when <= self.time):
                await self._reconcile(key)
            self._run_controllers()
            self._check()

    async def _reconcile(self, key: Key) -> None:
        del self.due[key]
        before = len(self.cluster.writes)
        result = await self.bench.reconciler.reconcile(key)
        if len(self.cluster.writes) != before:
            self.due[key] = self.time + 1
        if result.name != "gone" and result.requeue_seconds is not None:
            self.due[key] = min(self.due.get(key, 1e9), self.time + max(result.requeue_seconds, 1))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.timers.append((self.time + seconds, action))

    def _wake(self, name: str) -> None:
        self.due["default", name] = min(self.due.get(("default", name), 1e9), self.time + 1)

    # controllers

    def _run_controllers(self) -> None:
        while self.seen != (seen := (self.cluster.changes, len(self._all(POD)))):
            self.seen = seen
            for claim in self._all(CLAIM):
                if "status" not in claim:
                    self.cluster.set_status(CLAIM, "default", claim["metadata"]["name"], {"phase": "Bound"})
            pods = defaultdict[str, list[Manifest]](list)
            for pod in self._all(POD):
                pods[pod["metadata"]["labels"]["deployment"]].append(pod)
            existing = {each["metadata"]["name"]: each for each in self._all(DEPLOYMENT)}
            for name in pods.keys() - existing.keys():
                for pod in pods[name]:
                    self._remove_pod(pod)
            for name, each in existing.items():
                self._run_deployment(each, pods[name])
            self._schedule()

    def _run_deployment(self, each: Manifest, pods: list[Manifest]) -> None:
        name, wanted = each["metadata"]["name"], each["spec"]["replicas"]
        mark = mark_of(each)
        new = [pod for pod in pods if pod["metadata"]["labels"]["pod-template-hash"] == mark]
        old = [pod for pod in pods if pod not in new]
        serving = [pod for pod in old if is_ready(pod)]
        # with Recreate, all go first; with RollingUpdate and no surge, one that serves goes at a time, and others at once
        going = old if each["spec"]["strategy"]["type"] == "Recreate" else [pod for pod in old if pod not in serving]
        if not going and serving and sum(map(is_ready, new)) + len(serving) >= wanted:
            going = serving[:1]
        for pod in going:
            self._remove_pod(pod)
        if wanted and any(map(is_ready, going)):
            self._check_stopped(each, is_begin=not new)
        kept = [pod for pod in old if pod not in going]
        for pod in sorted(new, key=lambda pod: (is_ready(pod), bool(pod["spec"].get("nodeName"))))[: max(0, len(new) + len(kept) - wanted)]:
            self._remove_pod(pod)
            new.remove(pod)
        for _ in range(wanted - len(new) - len(kept)):
            new.append(self._create_pod(each, mark))
        status = {
            "observedGeneration": each["metadata"]["generation"],
            "replicas": len(new) + len(kept),
            "updatedReplicas": len(new),
            "readyReplicas": sum(map(is_ready, (*new, *kept))),
            "availableReplicas": sum(map(is_ready, (*new, *kept))),
        }
        if status != each.get("status"):
            self.cluster.set_status(DEPLOYMENT, "default", name, status)
            self._wake(each["metadata"]["labels"][INSTANCE_LABEL])

    def _create_pod(self, owner: Manifest, mark: str) -> Manifest:
        self.made += 1
        name, template = owner["metadata"]["name"], owner["spec"]["template"]
        replica_set = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": f"{name}-{mark}",
            "uid": f"rs-{name}-{mark}",
            "controller": True,
        }
        metadata = {
            "name": f"{name}-{mark}-{self.made}",
            "namespace": "default",
            "labels": {**template["metadata"]["labels"], "pod-template-hash": mark, "deployment": name},
            "ownerReferences": [replica_set],
            "creationTimestamp": reading.stamp(self.bench.now),
        }
        return self.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {}})

    def _remove_pod(self, pod: Manifest) -> None:
        self.cluster.remove(POD, "default", pod["metadata"]["name"])
        self._wake(pod["metadata"]["labels"][INSTANCE_LABEL])

    def _schedule(self) -> None:
        truth = self._truth()
        for pod in self._all(POD):
            if pod["spec"].get("nodeName"):
                continue
            name, count = pod["metadata"]["name"], gpus_of(pod)
            mounted = self._node_of_claim(pod)
            matching = [node for node, manifest in truth.nodes.items() if matches(pod, manifest) and mounted in (None, node)]
            fitting = [node for node in matching if truth.free(node) >= count]
            if fitting:
                node = self.random.choice(fitting)
                truth.used[node] += count
                self.cluster.edit(POD, "default", name, {"spec": {"nodeName": node}})
                self._show(name, {"type": "PodScheduled", "status": "True"})
                self._later(self.random.randint(3, 20), partial(self._start, name))
            else:
                others = len(truth.nodes) - len(matching)
                why = [f"{len(matching)} Insufficient {GPU}"] if matching else []
                why += [f"{others} node(s) didn't match Pod's node affinity/selector"] if others else []
                message = f"0/{len(truth.nodes)} nodes are available: {', '.join(why)}."
                self._show(name, {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message})

    def _node_of_claim(self, pod: Manifest) -> str | None:
        """The only node that can mount the volumes of a Pod: the one where another Pod has mounted them."""
        own = claims_of(pod["spec"]) & self._single()
        users = (each for each in self._all(POD) if each["spec"].get("nodeName") and own & claims_of(each["spec"]))
        return next((str(each["spec"]["nodeName"]) for each in users), None)

    def _start(self, name: str) -> None:
        if self._find(POD, name) is not None:
            self._show(name, {"type": "Ready", "status": "False"}, phase="Running")
            self._later(self.random.randint(10, 60), lambda: self._serve(name))

    def _serve(self, name: str) -> None:
        if self._find(POD, name) is not None:
            self._show(name, {"type": "Ready", "status": "True"}, phase="Running")

    def _show(self, name: str, condition: Manifest, phase: str = "Pending") -> None:
        pod = self._find(POD, name)
        assert pod is not None
        before = reading.named(pod, condition["type"], "status", "conditions")
        if condition.items() <= before.items():
            return
        now = reading.stamp(self.bench.now)
        ready = condition == {"type": "Ready", "status": "True"}
        engine = {
            "name": "vllm",
            "state": {"running": {"startedAt": now}},
            "lastState": {},
            "restartCount": 0,
            "ready": ready,
            "started": ready,
        }
        containers = [engine] if phase == "Running" else []
        status = {"phase": phase, "conditions": [{**condition, "lastTransitionTime": now}], "containerStatuses": containers}
        self.cluster.set_status(POD, "default", name, status)
        self._wake(pod["metadata"]["labels"][INSTANCE_LABEL])

    # the truth

    def _check(self) -> None:
        truth, pods = self._truth(), defaultdict[str, list[Manifest]](list)
        for pod in self._all(POD):
            if "primer" not in pod["metadata"]["labels"]["deployment"]:
                pods[pod["metadata"]["labels"][INSTANCE_LABEL]].append(pod)
        resources = {each["metadata"]["name"]: each for each in self._all(VLLM_DEPLOYMENT)}
        deployments = {each["metadata"]["name"]: each for each in self._all(DEPLOYMENT)}
        promised = self._promised(resources, deployments, pods)
        found = set[tuple[str, ...]]()
        for name, resource in resources.items():
            self._obey(name, resource)
            found |= {("lie", name, lie) for lie in lies(resource, pods[name], deployments.get(name), truth)}
            if self._is_held_beside_free(resource, truth, promised):
                found.add(("wait", name))
            if self._waits_beside_free(resource, pods[name], truth, promised):
                is_told = "kubectl annotate vllm" in self._condition(resource, "Ready").get("message", "")
                has_run = self._has_run(resource)
                found |= {("lie", name, "it does not say that a new plan would find a free GPU")} if has_run and not is_told else set()
                found |= set() if has_run else {("wait", name)}
        for entry in {each for each in self.since if each[0] in ("lie", "wait")} - found:
            del self.since[entry]
        for entry in found:
            seconds = self.time - self.since.setdefault(entry, self.time)
            if entry[0] == "lie":
                self._note(seconds, "longest_lie", LONGEST_LIE, f"{entry[1]}: {entry[2]}")
            else:
                self._note(seconds, "longest_wait", LONGEST_WAIT, f"{entry[1]} waits beside a free GPU")
        self._check_history(resources, truth)

    def _note(self, seconds: float, figure: str, limit: float, text: str) -> None:
        setattr(self.measured, figure, max(getattr(self.measured, figure), seconds))
        if seconds == limit + 1:
            self.measured.wrong.append(f"after {self.time:.0f} s: {text}")

    def _promised(
        self, resources: Mapping[str, Manifest], deployments: Mapping[str, Manifest], pods: Mapping[str, list[Manifest]]
    ) -> Counter[str]:
        """GPUs of each product for Pods that are wanted and do not exist yet, for example until the first one has filled the caches."""
        found: Counter[str] = Counter()
        for name, each in deployments.items():
            if name in resources:
                current = [pod for pod in pods[name] if pod["metadata"]["labels"]["pod-template-hash"] == mark_of(each)]
                missing = resources[name]["spec"]["replicas"] - len(current)
                found[product_of(each)] += max(0, missing) * gpus_of(each["spec"]["template"])
        return found

    def _waits_beside_free(self, resource: Manifest, pods: list[Manifest], truth: Truth, promised: Counter[str]) -> bool:
        if not pods or any(pod["spec"].get("nodeName") for pod in pods):
            return False
        spec = resource["spec"]
        for product in (spec.get("accelerator") or {}).get("products") or products():
            count = needed(spec["model"]["uri"], products()[product])
            if count is not None and truth.replicas(product, count) * count - promised[product] >= count:
                return True
        return False

    def _is_held_beside_free(self, resource: Manifest, truth: Truth, promised: Counter[str]) -> bool:
        """A rollout waits for GPUs, and enough are free: of the kind it waits for, or if its plan has not run, of another one."""
        message = self._condition(resource, "Ready").get("message", "")
        if (held := HELD.search(message)) is None or "the only one that can mount" in message:
            return False
        replicas, spec = int(held[1]), resource["spec"]
        allowed = (spec.get("accelerator") or {}).get("products") or products()
        for product in [titles()[held[3]]] if self._has_run(resource) else allowed:
            count = needed(spec["model"]["uri"], products()[product])
            if count is not None and truth.replicas(product, count) * count - promised[product] >= count * replicas:
                return True
        return False

    def _has_run(self, resource: Manifest) -> bool:
        revision = self._find(REVISION, reading.text(resource, "status", "revision"))
        return bool(reading.text(revision, "metadata", "annotations", "vllm-operator.dev/ran"))

    def _check_stopped(self, each: Manifest, *, is_begin: bool) -> None:
        """A Pod that served was just stopped by a rollout: there must be a place for the one that replaces it.

        Later in a rolling update, others may have scaled out and taken it.
        """
        truth, pod = self._truth(), each["spec"]["template"]
        mounted = self._node_of_claim(pod)
        nodes = (node for node, manifest in truth.nodes.items() if matches(pod, manifest) and mounted in (None, node))
        has_place = any(truth.free(node) >= gpus_of(pod) for node in nodes)
        self.measured.overtaken += not has_place and not is_begin
        if is_begin and not has_place:
            name = each["metadata"]["labels"][INSTANCE_LABEL]
            self.measured.wrong.append(f"after {self.time:.0f} s: a Pod of {name} that served was stopped for one that fits no node")

    def _check_history(self, resources: Mapping[str, Manifest], truth: Truth) -> None:
        revisions = self._all(REVISION)
        for each in revisions:
            name, data = each["metadata"]["name"], each["data"]
            if name in self.known:
                continue
            self.known.add(name)
            self.measured.plans += 1
            owner = each["metadata"]["labels"][INSTANCE_LABEL]
            own = [it for it in revisions if it["metadata"]["labels"][INSTANCE_LABEL] == owner and it["revision"] < each["revision"]]
            before = max(own, key=lambda it: it["revision"], default=None)
            why = data.get("chosenAgain")
            self.measured.moved += bool(why)
            if before is None:
                continue
            asked = any(before["data"].get(part) != data.get(part) for part in ("specDigest", "replanToken"))
            is_moved = any(before["data"].get(part) != data.get(part) for part in ("product", "count"))
            if is_moved and not why and not asked:
                self.measured.wrong.append(f"after {self.time:.0f} s: the GPU of {owner} changed without a reason")
            if why and "vllm-operator.dev/ran" in (before["metadata"].get("annotations") or {}):
                self.measured.wrong.append(f"after {self.time:.0f} s: a plan of {owner} that had run changed by itself")

    # the cluster

    def _truth(self) -> Truth:
        used: Counter[str] = Counter()
        for pod in self._all(POD):
            if node := pod["spec"].get("nodeName"):
                used[node] += gpus_of(pod)
        starting = {pod["metadata"]["name"] for pod in self._all(POD) if not is_ready(pod)}
        return Truth({node["metadata"]["name"]: node for node in self._all(NODE)}, used, starting, self._single())

    def _single(self) -> set[str]:
        """The claims that only one node can mount."""
        return {each["metadata"]["name"] for each in self._all(CLAIM) if reading.is_one_node(reading.access_modes(each))}

    def _all(self, kind: Kind) -> list[Manifest]:
        return self.cluster.peek(kind)

    def _find(self, kind: Kind, name: str) -> Manifest | None:
        return next((each for each in self._all(kind) if each["metadata"]["name"] == name), None)

    def _condition(self, resource: Manifest, type: str) -> Manifest:
        return dict(reading.named(resource, type, "status", "conditions"))


def mark_of(deployment: Manifest) -> str:
    """The label of the Pods that have the template of a Deployment."""
    return hashlib.sha256(json.dumps(deployment["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]


def is_ready(pod: Manifest) -> bool:
    return reading.named(pod, "Ready", "status", "conditions").get("status") == "True"


def gpus_of(pod: Manifest) -> int:
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"]["containers"])


def product_of(each: Manifest) -> str:
    """The product that the Pods of a Deployment need."""
    return next(str(need["values"][0]) for need in requirements(each["spec"]["template"]) if need["key"] == PRODUCT)


def requirements(pod: Manifest) -> list[Manifest]:
    affinity = reading.mapping(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return [dict(need) for term in reading.objects(affinity, "nodeSelectorTerms") for need in reading.objects(term, "matchExpressions")]


def matches(pod: Manifest, node: Manifest) -> bool:
    """Whether a node has the labels that a Pod needs."""
    labels = node["metadata"]["labels"]
    checks = {
        "In": lambda need: labels.get(need["key"]) in need["values"],
        "DoesNotExist": lambda need: need["key"] not in labels,
        "Exists": lambda need: need["key"] in labels,
    }
    return all(checks[need["operator"]](need) for need in requirements(pod))


def lies(resource: Manifest, pods: list[Manifest], live: Manifest | None, truth: Truth) -> Iterator[str]:
    """What a status says that is not true."""
    yield from untrue_numbers(resource, pods, live)
    yield from untrue_plan(resource, live)
    yield from untrue_messages(resource, pods, truth)


def verdict(resource: Manifest, type: str) -> str:
    return reading.text(reading.named(resource, type, "status", "conditions"), "status")


def is_begun(resource: Manifest, live: Manifest | None) -> bool:
    """Whether the Deployment follows the plan in the status: no rollout is held."""
    return live is not None and live["metadata"]["annotations"][PLAN_ANNOTATION] == reading.text(resource, "status", "revision")


def untrue_numbers(resource: Manifest, pods: list[Manifest], live: Manifest | None) -> Iterator[str]:
    """REPLICAS, READY, STATUS and the conditions that follow from the number of Pods."""
    status, wanted, ready = resource.get("status") or {}, resource["spec"]["replicas"], sum(map(is_ready, pods))
    for name, number in (("readyReplicas", ready), ("replicas", len(pods))):
        if (status.get(name) or 0) != number:
            yield f"{name} is {status.get(name)}, and there are {number}"
    current = [pod for pod in pods if live is not None and pod["metadata"]["labels"]["pod-template-hash"] == mark_of(live)]
    is_done = ready == wanted == len(pods) == len(current) and (is_begun(resource, live) or not wanted)
    if live is not None and wanted and product_of(live) not in ((resource["spec"].get("accelerator") or {}).get("products") or products()):
        is_done = False  # the Pods have the previous spec, because no node has a GPU that the current one allows
    expected = {"Ready": is_done, "Available": ready > 0, "Crashed": False, "Stalled": False}
    for type, holds in expected.items():
        if (verdict(resource, type) == "True") != holds:
            yield f"{type} is {verdict(resource, type)} with {ready} of {wanted} replicas"


def untrue_plan(resource: Manifest, live: Manifest | None) -> Iterator[str]:
    """GPU and what is said of the plan."""
    if live is None or not is_begun(resource, live):
        return
    title = known_gpus().title(product_of(live), None).removesuffix(" of unknown architecture")
    reason = reading.text(reading.named(resource, "Ready", "status", "conditions"), "reason")
    if title not in plan_verdict(resource).message and reason not in REFUSALS:
        yield f"the plan does not name {title}, for which the Deployment is"


def untrue_messages(resource: Manifest, pods: list[Manifest], truth: Truth) -> Iterator[str]:
    """STAGE, and what Ready says of Pods and GPUs."""
    startup = reading.mapping(resource, "status", "startup")
    shown = {str(each["name"]) for each in reading.objects(startup, "pods")} | ({startup["pod"]} if "pod" in startup else set())
    if finished := shown - truth.starting:
        yield f"a start of {sorted(finished)} is shown"
    said = reading.named(resource, "Ready", "status", "conditions")
    if said.get("reason") == "Unschedulable" and all(pod["spec"].get("nodeName") for pod in pods):
        nodes = {pod["spec"]["nodeName"] for pod in pods}  # of a volume that only one node can mount
        if "the node of their volume has too few free GPUs" not in said["message"] or any(
            truth.free(node) >= gpus_of(pods[0]) for node in nodes
        ):
            yield "Ready says that a Pod has no node"
    message = reading.text(said, "message")
    for count, product in NO_NODE.findall(message) if not truth.is_bound(pods) else ():
        if truth.replicas(product, int(count)):
            yield f"{count} {product} are said not to be free"
    for listed, single in FREE_NOW.findall(message):
        for product in (listed or single).split(", "):
            if not truth.replicas(product, 1):
                yield f"{product} is said to be free"
