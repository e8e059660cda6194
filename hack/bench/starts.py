"""Measure how soon the status shows the stages of many Pods that start at once.

    python hack/bench/starts.py --pods 1000

Each VLLMDeployment has one Pod. Objects and Pods are written to etcd as in `scale.py`, so no controller runs. The logs are read through
the API server from the log endpoint of the simulated kubelets. Each line is written to all logs at the same moment; the delay is the time
until a watch shows the stage in the status of the object.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.contenders import busy_seconds
from bench.imports import memory
from bench.load import GROUP, Api, Seen, spread
from bench.running import Operator
from bench.scale import NAMESPACES, Copies, Scale, settled
from testenv import Environment
from testenv.cri import LogWriter

HEAD = "INFO 11-21 12:00:00 "
FIRST = f"{HEAD}[api_server.py:100] vLLM API server version 0.20.1\n"
STAGES = (
    (f"{HEAD}[gpu_model_runner.py:3000] Starting to load model m...\n", "WeightLoad"),
    (f"{HEAD}[backends.py:643] Using cache directory: /cache/vllm/a/rank_0_0/backbone for vLLM's torch.compile\n", "TorchCompile"),
    (f"{HEAD}[gpu_worker.py:1] Available KV cache memory: 10.0 GiB\n", "MemoryProfiling"),
)
LIMIT_SECONDS = 300.0


async def measure(environment: Environment, api: Api, pods: int, scale: Scale) -> None:
    names = [f"object-{number:05}" for number in range(pods)]
    folders = [environment.log_root / f"fleet-{number % NAMESPACES:02}" / f"{name}-0" / "vllm" for number, name in enumerate(names)]
    writers = [LogWriter(folder / "0.log") for folder in folders]
    for writer in writers:
        writer.write(FIRST.encode())
    await asyncio.to_thread(scale.grow, pods)
    operator = Operator(environment.kubeconfig)
    try:
        await operator.start()
        await asyncio.sleep(10)
        await settled(operator)
        await describe(operator, "all logs open or read in turn")
        for text, stage in STAGES:
            seen = Seen(
                api, f"{GROUP}/vllmdeployments", lambda r, s=stage: ((r.get("status") or {}).get("startup") or {}).get("stage") == s
            )
            await asyncio.sleep(1)
            cpu, busy, writes = operator.cpu(), busy_seconds(), await operator.writes()
            began = time.monotonic()
            wrote = {}
            for name, writer in zip(names, writers, strict=True):
                writer.write(text.encode())
                wrote[name] = time.monotonic()
            await seen.until(names, LIMIT_SECONDS)
            seen.stop()
            seconds = time.monotonic() - began
            delays = [seen.at[name] - wrote[name] for name in names]
            busy = (busy_seconds() - busy) / seconds
            print(f"{stage}: {spread(delays)}; {await operator.writes() - writes} writes, {busy:.1f} CPUs busy on the machine", flush=True)
            await settled(operator)
            await describe(operator, f"after {stage}, {(operator.cpu() - cpu) / pods * 1000:.1f} ms CPU for each Pod")
    finally:
        await operator.stop()


def stage_of(item: Any) -> str | None:
    """The stage in the status of a VLLMDeployment."""
    return ((item.get("status") or {}).get("startup") or {}).get("stage")


async def describe(operator: Operator, what: str) -> None:
    used = memory(operator.process.pid)
    print(f"{what}: RSS {used['Rss']:.0f} MiB, peak {used['Peak']:.0f} MiB, {operator.cpu():.1f} s CPU", flush=True)


async def serve(pods: int) -> None:
    copies = await Copies.make(1, ready=False)
    with Environment() as environment:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
            api = Api(environment, session)
            scale = Scale(environment, api, copies)
            await scale.prepare()
            await measure(environment, api, pods, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    options = parser.parse_args()
    asyncio.run(serve(options.pods))


if __name__ == "__main__":
    main()
