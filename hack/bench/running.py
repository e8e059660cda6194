"""Measure the speed and the idle load of the operator on a real API server.

    python hack/bench/running.py [--burst 100] [--starts 100] [--idle 60] [--outage 40] [--no-volumes]

Prints a table. All numbers are measured from outside, with watches on the API server and from /proc. Other work of the machine
affects them, so compare only numbers of one machine.
"""

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.contenders import Contender, cpu_of, this_checkout
from bench.load import GROUP, NAMESPACE, Api, Seen, memory, model, prepare, spec_of, spread
from testenv import Environment
from testenv.cri import LogWriter
from testenv.nodes import gpu_node

ANNOTATION = "sim.vllm-operator.dev/"


def flood_log(log: LogWriter, stop: threading.Event) -> None:
    """Write 10 MB/s until stopped."""
    line = b"INFO 11-21 12:00:05 [loggers.py:1] " + b"x" * 200 + b"\n"
    while not stop.wait(0.05):
        log.write(line * (500_000 // len(line)))


class Bench:
    """The measurements and their table."""

    def __init__(self, environment: Environment, api: Api, operator: Contender, spec: Mapping[str, Any] | None = None) -> None:
        """`spec` has fields of all CRs."""
        self.spec = spec or {}
        self.environment = environment
        self.api = api
        self.operator = operator
        self.rows: list[tuple[str, str]] = []

    def row(self, what: str, value: str) -> None:
        self.rows.append((what, value))
        print(f"{what:<52} {value}", flush=True)

    async def create(self, name: str) -> float:
        await self.api.call("POST", f"{GROUP}/namespaces/{NAMESPACE}/vllmdeployments", model(name, **self.spec))
        return time.monotonic()

    async def one_at_a_time(self, number: int) -> None:
        seen = Seen(self.api, "/apis/apps/v1/deployments", lambda _: True)
        await asyncio.sleep(0.2)
        delays = []
        for index in range(number):
            name = f"single-{index}"
            started = await self.create(name)
            await seen.until([name])
            delays.append(seen.at[name] - started)
            await asyncio.sleep(0.2)
        seen.stop()
        self.row(f"CR created -> Deployment, {number} one at a time", spread(delays))

    async def burst(self, number: int) -> None:
        deployments = Seen(self.api, "/apis/apps/v1/deployments", lambda _: True)
        answers = Seen(self.api, f"{GROUP}/vllmdeployments", lambda r: (r.get("status") or {}).get("pinnedPlan"))
        await asyncio.sleep(0.2)
        names = [f"burst-{index}" for index in range(number)]
        cpu, began = cpu_of(self.operator.pid()), time.monotonic()
        created = dict(zip(names, await asyncio.gather(*map(self.create, names)), strict=True))
        made = time.monotonic() - began
        await deployments.until(names)
        await answers.until(names)
        total = max(deployments.at[name] for name in names) - began
        self.row(f"burst of {number}: CR created -> Deployment", spread([deployments.at[name] - created[name] for name in names]))
        self.row(f"burst of {number}: all Deployments (CRs took {made:.1f} s)", f"{total:.1f} s")
        self.row(f"burst of {number}: all have a status", f"{max(answers.at[name] for name in names) - began:.1f} s")
        deployments.stop()
        answers.stop()
        await self.settle()
        spent = cpu_of(self.operator.pid()) - cpu
        self.row(f"burst of {number}: operator's CPU until all is quiet", f"{spent:.1f} s, {spent / number * 1000:.0f} ms each")

    async def settle(self) -> None:
        before = -1.0
        async with asyncio.timeout(300):
            while before != (before := await self.operator.count("writes")):  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(3)

    async def logs(self, starts: int) -> None:
        """Measure from a line in a log to the status, with many Pods that start at once; then also with one that floods its log."""
        script = {f"{ANNOTATION}path": "ok", f"{ANNOTATION}pull": "0", f"{ANNOTATION}load": "hold"}
        await self.api.call(
            "PATCH", f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"annotations": script}}, "application/merge-patch+json"
        )
        names = [f"start-{index}" for index in range(starts)]
        running = Seen(
            self.api, "/api/v1/pods", lambda pod: any("running" in c["state"] for c in pod["status"].get("containerStatuses", ()))
        )
        await asyncio.sleep(0.2)
        await asyncio.gather(*map(self.create, names))
        async with asyncio.timeout(120):
            while sum(name.startswith("start-") for name in running.at) < starts:  # noqa: ASYNC110 - good enough here
                await asyncio.sleep(0.2)
        running.stop()
        pods = {name.rsplit("-", 2)[0]: name for name in running.at if name.startswith("start-")}
        writers = {name: LogWriter(self.environment.log_root / NAMESPACE / pods[name] / "vllm" / "0.log") for name in names}
        await self.settle()
        delays: list[float] = []
        head = "INFO 11-21 12:00:00 "
        stages = [
            (f"{head}[gpu_model_runner.py:3000] Starting to load model m...\n", "WeightLoad"),
            (f"{head}[backends.py:643] Using cache directory: /cache/vllm/a/rank_0_0/backbone for vLLM's torch.compile\n", "TorchCompile"),
        ]
        for text, stage in stages:
            delays += await self._stage(stage, text, {name: writers[name] for name in names})
        self.row(f"log line -> status, {starts} Pods starting, all at once", spread(delays))
        stop, (flooded, *others) = threading.Event(), names
        flood = asyncio.create_task(asyncio.to_thread(flood_log, writers[flooded], stop))
        await asyncio.sleep(3)
        text = f"{head}[gpu_worker.py:1] Available KV cache memory: 10.0 GiB\n"
        delays = await self._stage("MemoryProfiling", text, {name: writers[name] for name in others})
        stop.set()
        await flood
        self.row("the same, while another Pod writes 10 MB/s", spread(delays))

    async def _stage(self, stage: str, text: str, writers: Mapping[str, LogWriter]) -> list[float]:
        """Write a line to logs at once; return the seconds until the status of each shows the stage."""
        seen = Seen(self.api, f"{GROUP}/vllmdeployments", lambda r: ((r.get("status") or {}).get("startup") or {}).get("stage") == stage)
        await asyncio.sleep(0.3)
        wrote = {}
        for name, writer in writers.items():
            writer.write(text.encode())
            wrote[name] = time.monotonic()
        await seen.until(list(writers), 60)
        seen.stop()
        return [seen.at[name] - wrote[name] for name in writers]

    async def idle(self, seconds: float) -> None:
        await self.settle()
        before, cpu = await self.operator.count("writes"), cpu_of(self.operator.pid())
        await asyncio.sleep(seconds)
        self.row(f"writes in {seconds:.0f} idle seconds", f"{await self.operator.count('writes') - before:.0f}")
        self.row(f"operator's CPU in {seconds:.0f} idle seconds", f"{cpu_of(self.operator.pid()) - cpu:.2f} s")

    async def restart(self) -> None:
        started = time.monotonic()
        await self.operator.stop()
        self.row("operator stops within", f"{time.monotonic() - started:.2f} s")
        started = time.monotonic()
        await self.operator.start(self.environment.kubeconfig)
        self.row("operator starts and serves within", f"{time.monotonic() - started:.2f} s")
        await asyncio.sleep(2)
        await self.settle()
        self.row("writes at a restart, nothing changed", f"{await self.operator.count('writes'):.0f}")

    async def outage(self, seconds: float) -> None:
        plane = self.environment.control_plane
        plane.stop_component("kube-apiserver", kill=True)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(plane.start_component, "kube-apiserver")
        back = time.monotonic()
        seen = Seen(self.api, "/apis/apps/v1/deployments", lambda _: True)
        await asyncio.sleep(0.1)
        await self.create("after-outage")
        await seen.until(["after-outage"])
        seen.stop()
        self.row(f"after an outage of {seconds:.0f} s a new CR is served within", f"{seen.at['after-outage'] - back:.1f} s")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--single", type=int, default=30, help="CRs created one at a time")
    parser.add_argument("--burst", type=int, default=100, help="CRs created at once")
    parser.add_argument("--starts", type=int, default=100, help="Pods that start at once")
    parser.add_argument("--idle", type=float, default=60, help="seconds")
    parser.add_argument("--outage", type=float, default=0, help="seconds; 0 leaves it out")
    parser.add_argument("--no-volumes", dest="volumes", action="store_false", help="CRs without PVCs, with caches on the node")
    options = parser.parse_args()
    nodes = (options.single + options.burst + options.starts) // 8 + 2
    began = time.monotonic()
    with Environment() as environment:
        ready = time.monotonic() - began
        environment.create_nodes(gpu_node("h100-sxm", f"gpu-{index}") for index in range(nodes))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
            api = Api(environment, session)
            await prepare(api)
            operator = this_checkout()
            await operator.start(environment.kubeconfig)
            try:
                await measure(Bench(environment, api, operator, spec_of(volumes=options.volumes)), options, ready)
            finally:
                await operator.stop()


async def measure(bench: Bench, options: argparse.Namespace, ready: float) -> None:
    def used() -> str:
        now = memory(bench.operator.pid())
        return f"{now['Rss']:.0f} MiB, peak {now['Peak']:.0f} MiB"

    bench.row("control plane ready within", f"{ready:.1f} s")
    bench.row("RSS of the operator, nothing to serve", used())
    await bench.one_at_a_time(options.single)
    await bench.burst(options.burst)
    bench.row("RSS of the operator after that", used())
    if options.starts:
        await bench.logs(options.starts)
        bench.row("RSS of the operator after that", used())
    await bench.idle(options.idle)
    await bench.restart()
    if options.outage:
        await bench.outage(options.outage)


if __name__ == "__main__":
    asyncio.run(main())
