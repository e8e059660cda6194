"""The phases of the comparison. Each measures from the audit log, so that measuring costs the machine almost nothing.

A delay is the time between two answers of the API server, by its own clock: the one to the cause (an object was created), and the one to
its effect (the Deployment was applied). A phase ends when the contender has written nothing for some seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bench.contenders import Contender, cpu_of
from bench.figures import READS, WRITES, Figure, Request, asked_by, delays, for_each, of, parse_requests, quantile
from bench.load import AGENT, GROUP, NAMESPACE, VERSIONS, Api, model, peak_memory
from testenv import Environment
from testenv.cri import LogWriter

QUIET_SECONDS = 6.0
"""After so long without a write a phase is over. The controllers count Pods for some seconds longer, which would add to the next phase."""
LIMIT_SECONDS = 300.0
IDLE_SECONDS = 15.0
OUTAGE_SECONDS = 40.0
OBJECTS = f"{GROUP}/namespaces/{NAMESPACE}/vllmdeployments"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
MERGE = "application/merge-patch+json"
CONTROLLERS = "kube-controller-manager"


class Turn:
    """The phases of one contender, on a control plane of its own."""

    def __init__(self, environment: Environment, api: Api, contender: Contender, objects: int) -> None:
        self.figures: list[Figure] = []
        self.names = [f"object-{number:04}" for number in range(objects)]
        self._environment, self._api, self._contender = environment, api, contender
        self._position = 0
        self._reconciled = 0.0
        self._requests: list[Request] = []
        self._started: set[str] = set()

    # ---- phases

    async def burst(self) -> None:
        """All objects at once. The controllers stand still, so no Pod changes anything meanwhile."""
        self._environment.control_plane.pause_component(CONTROLLERS)
        async with self._phase("burst", self.names) as phase:
            await asyncio.gather(*map(self._create, self.names))
            await self._until_applied("create", self.names)
        created = self._own("create", "vllmdeployments")
        self._add_delays(phase, "object to Deployment", delays(created, self._theirs("deployments")))
        self._add_delays(phase, "object to last write of its status", delays(created, self._theirs("vllmdeployments/status"), last=True))
        self._environment.control_plane.resume_component(CONTROLLERS)

    async def ready(self) -> None:
        """The Pods of all objects become Ready at once."""
        async with self._phase("starting", self.names) as phase:
            pods = await self._running_pods()
        names = [pod["metadata"]["name"] for pod in pods[:100]]
        wrote = [Request("", "", _owner(name), AGENT, 200, (at := self._write_log(name)), at) for name in names]
        await self._until_quiet()
        self._add_delays(phase, "log line to status, 100 at once", delays(wrote, self._theirs("vllmdeployments/status")))
        async with self._phase("ready", self.names) as phase:
            await asyncio.gather(*(self._make_ready(pod) for pod in pods))
        cause = [replace(request, name=_owner(request.name)) for request in self._own("patch", "pods/status")]
        self._add_delays(phase, "Pod Ready to last write of the status", delays(cause, self._theirs("vllmdeployments/status"), last=True))

    async def down(self) -> None:
        """One Pod after another is not Ready for two seconds, and with it its Deployment."""
        async with self._phase("down", self.names) as phase:
            for pod in (pods := (await self._running_pods())[:100]):
                await self._make_ready(pod, is_ready=False)
                await asyncio.sleep(2)
                await self._make_ready(pod)
        went = {name: request for request in reversed(self._own("patch", "pods/status")) if (name := _owner(request.name))}
        found = delays([replace(request, name=name) for name, request in went.items()], self._theirs("vllmdeployments/status"))
        self._add_delays(phase, "Pod not Ready to status", found)
        self._add(phase, "outages of 2 s that were not in the status within them", "", len(pods) - sum(at <= 2 for at in found.values()))

    async def steady(self) -> None:
        async with self._phase("steady", self.names):
            await asyncio.sleep(IDLE_SECONDS)

    async def update(self) -> None:
        """Another version of the engine for all objects at once. New Pods become Ready at once."""
        await self._api.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"annotations": _pods_are("ok", "0")}}, MERGE)
        async with self._phase("update", self.names) as phase:
            await asyncio.gather(*map(self._update, self.names))
            await self._until_applied("patch", self.names)
            await self._until(self._is_rolled_out, "not all new Pods are Ready", pause=3)
        updated = self._own("patch", "vllmdeployments")
        self._add_delays(phase, "object to Deployment", delays(updated, self._theirs("deployments")))

    async def restart(self) -> None:
        """The program ends and starts again, and nothing has changed."""
        await self._contender.stop()
        async with self._phase("restart", self.names, fresh=True) as phase:
            began = time.monotonic()
            await self._contender.start(self._environment.kubeconfig)
            self._add(phase, "until it serves", "s", time.monotonic() - began)

    async def outage(self) -> None:
        """The API server is killed, and comes back after a while. An object is created then."""
        plane = self._environment.control_plane
        await asyncio.to_thread(plane.stop_component, "kube-apiserver", kill=True)
        await asyncio.sleep(OUTAGE_SECONDS)
        await asyncio.to_thread(plane.start_component, "kube-apiserver")
        name = "after-outage"
        async with self._phase("outage", [name]) as phase:
            await self._create(name)
            await self._until_applied("create", [name])
        found = delays(self._own("create", "vllmdeployments"), self._theirs("deployments"))
        self._add(phase, "object to Deployment", "s", found.get(name))

    async def churn(self) -> None:
        """Objects are created and deleted again, five each second."""
        names = [f"churn-{number:03}" for number in range(50)]
        async with self._phase("churn", names) as phase:
            for name in names:
                await self._create(name)
                await asyncio.sleep(0.2)
            await self._until_applied("create", names)
            await asyncio.gather(*(self._api.call("DELETE", f"{OBJECTS}/{name}") for name in names))
        self._add_delays(phase, "object to Deployment", delays(self._own("create", "vllmdeployments"), self._theirs("deployments")))

    # ---- parts

    @asynccontextmanager
    async def _phase(self, name: str, objects: Sequence[str], *, fresh: bool = False) -> AsyncIterator[str]:
        """Measure until the contender writes nothing any more. `fresh`: its process starts in this phase."""
        self._read()
        self._requests.clear()
        began, reconciled, count = time.monotonic(), 0.0 if fresh else self._reconciled, len(objects)
        server = self._environment.control_plane.processes.pid("kube-apiserver")
        before = (0.0 if fresh else cpu_of(self._contender.pid()), cpu_of(server))
        yield name
        worked = max(0.0, await self._until_quiet() - began)
        self._add(name, "CPU of the operator for each object", "ms", 1000 * (cpu_of(self._contender.pid()) - before[0]) / count)
        self._add(name, "CPU of the API server for each object", "ms", 1000 * (cpu_of(server) - before[1]) / count)
        self._reconciled = await self._contender.count("reconcile")
        if not self._contender.is_floor:
            self._add(name, "reconciliations of each object", "", (self._reconciled - reconciled) / count)
        for what, verbs in (("writes", WRITES), ("reads", READS)):
            found = for_each(self._requests, self._contender.agent, verbs, count)
            for target, number in found.items():
                self._add(name, f"{what} of {target} for each object", "", number)
            self._add(name, f"{what} for each object", "", sum(found.values()))
        self._add(name, "peak memory of the operator", "MiB", peak_memory(self._contender.pid()))
        self._add(name, "until the last write", "s", worked)

    def _read(self) -> None:
        with self._environment.control_plane.audit_log.open("rb") as file:
            file.seek(self._position)
            data = file.read().rpartition(b"\n")
        agents = (self._contender.agent.encode(), AGENT.encode())
        lines = [line for line in data[0].splitlines() if any(agent in line for agent in agents)]
        self._position += len(data[0]) + len(data[1])
        self._requests += parse_requests(lines, self._started)

    async def _until(self, done: Callable[[], bool | Awaitable[bool]], what: str, *, pause: float = 0.5) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            self._read()
            answer = done()
            if answer if isinstance(answer, bool) else await answer:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._contender.name}: {what} within {LIMIT_SECONDS:.0f} s")
            await asyncio.sleep(pause)

    async def _until_applied(self, verb: str, names: Iterable[str]) -> None:
        wanted = set(names)
        await self._until(
            lambda: wanted <= delays(self._own(verb, "vllmdeployments"), self._theirs("deployments")).keys(),
            f"not all of {len(wanted)} Deployments were applied",
        )

    async def _until_quiet(self) -> float:
        """Wait until the contender has written nothing for a while; return when it wrote last, as of the monotonic clock."""
        began, skew = time.time(), time.time() - time.monotonic()

        def last() -> float:
            return max((request.answered for request in asked_by(self._requests, self._contender.agent, WRITES)), default=0.0)

        await self._until(lambda: time.time() - max(began, last()) >= QUIET_SECONDS, "it does not stop to write")
        return last() - skew

    async def _running_pods(self) -> list[Any]:
        found: list[Any] = []

        async def run() -> bool:
            answer = await self._api.call("GET", PODS, resourceVersion="0")
            found[:] = [pod for pod in answer["items"] if pod["status"].get("phase") == "Running"]
            return len(found) >= len(self.names)

        await self._until(run, "not all Pods run")
        return found

    async def _is_rolled_out(self) -> bool:
        found = (await self._api.call("GET", DEPLOYMENTS, resourceVersion="0"))["items"]
        states = [(item["metadata"]["generation"], item.get("status") or {}) for item in found]
        return all(
            state.get("observedGeneration") == generation
            and state.get("updatedReplicas") == state.get("readyReplicas") == state.get("replicas") == 1
            for generation, state in states
        )

    def _write_log(self, pod: str) -> float:
        line = b"INFO 11-21 12:00:00 [gpu_model_runner.py:3000] Starting to load model m...\n"
        LogWriter(self._environment.log_root / NAMESPACE / pod / "vllm" / "0.log").write(line)
        return time.time()

    async def _make_ready(self, pod: Any, *, is_ready: bool = True) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = [{"type": name, "status": str(is_ready), "lastTransitionTime": now} for name in ("Ready", "ContainersReady")]
        containers = [{**container, "ready": is_ready, "started": True} for container in pod["status"]["containerStatuses"]]
        path, kind = f"{PODS}/{pod['metadata']['name']}/status", "application/strategic-merge-patch+json"
        await self._api.call("PATCH", path, {"status": {"conditions": ready, "containerStatuses": containers}}, kind)

    async def _create(self, name: str) -> None:
        await self._api.call("POST", OBJECTS, model(name))

    async def _update(self, name: str) -> None:
        await self._api.call("PATCH", f"{OBJECTS}/{name}", {"spec": {"engine": {"version": VERSIONS[1]}}}, MERGE)

    def _own(self, verb: str, target: str) -> list[Request]:
        return of(self._requests, AGENT, target, verbs=(verb,))

    def _theirs(self, target: str) -> list[Request]:
        return of(self._requests, self._contender.agent, target, verbs=("patch", "create", "update"))

    def _add(self, phase: str, name: str, unit: str, value: float | None) -> None:
        self.figures.append(Figure(phase, name, unit, value))

    def _add_delays(self, phase: str, name: str, found: dict[str, float]) -> None:
        for part in (0.5, 0.99):
            self._add(phase, f"{name}, p{part * 100:.0f}", "s", quantile(found.values(), part))


def held_pods() -> dict[str, str]:
    """Annotations of a namespace whose Pods run, and become Ready only when they are told."""
    return _pods_are("ok", "hold")


def _pods_are(path: str, load: str) -> dict[str, str]:
    prefix = "sim.vllm-operator.dev/"
    return {f"{prefix}path": path, f"{prefix}pull": "0", f"{prefix}load": load}


def _owner(pod: str) -> str:
    return pod.rsplit("-", 2)[0]
