"""Measure the memory of the operator: on a real API server without objects, after a burst, and after a restart.

    python hack/bench/memory.py --objects 500

`imports.py` shows what is imported.

Prints a table. RSS and PSS are from /proc/PID/smaps_rollup, peaks are VmHWM. The difference between RSS and PSS are pages of libraries
that other Python processes of the machine use as well.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.imports import memory
from bench.load import GROUP, Api, Seen, prepare
from bench.running import Bench, Operator
from testenv import Environment
from testenv.nodes import gpu_node


def row(bench: Bench, what: str) -> None:
    now = memory(bench.operator.process.pid)
    bench.row(what, f"RSS {now['Rss']:.0f} MiB, PSS {now['Pss']:.0f} MiB, peak {now['Peak']:.0f} MiB, {bench.operator.cpu():.1f} s CPU")


def is_ready(item: Any) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


async def burst(api: Api, bench: Bench, objects: int) -> None:
    """Create objects, and wait until all are Ready however long it takes: time is not what this measures."""
    seen = Seen(api, "/apis/apps/v1/deployments", lambda _: True)
    ready = Seen(api, f"{GROUP}/vllmdeployments", is_ready)
    await asyncio.sleep(0.2)
    names = [f"burst-{index}" for index in range(objects)]
    cpu = bench.operator.cpu()
    await asyncio.gather(*map(bench.create, names))
    await seen.until(names, seconds=1800)
    seen.stop()
    row(bench, f"{objects} objects, when all have a Deployment")
    await ready.until(names, seconds=1800)
    ready.stop()
    await bench.settle()
    bench.row("CPU of the operator for them", f"{(bench.operator.cpu() - cpu) / objects * 1000:.0f} ms each")
    await asyncio.sleep(10)
    row(bench, f"{objects} objects")


async def serve(objects: int) -> None:
    with Environment() as environment:
        environment.create_nodes(gpu_node("h100-sxm", f"gpu-{index}") for index in range(objects // 8 + 2))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
            api = Api(environment, session)
            await prepare(api)
            operator = Operator(environment.kubeconfig)
            began = time.monotonic()
            await operator.start()
            bench = Bench(environment, api, operator)
            try:
                bench.row("from process start to serving", f"{time.monotonic() - began:.2f} s, {operator.cpu():.2f} s CPU")
                await asyncio.sleep(10)
                row(bench, "no objects")
                await burst(api, bench, objects)
                await bench.restart()
                await asyncio.sleep(10)
                row(bench, f"{objects} objects, after a restart")
            finally:
                await operator.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=500)
    options = parser.parse_args()
    asyncio.run(serve(options.objects))


if __name__ == "__main__":
    main()
