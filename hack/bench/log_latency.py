"""How long it takes from a line in a container's log to the condition that tells it, with many Pods starting at once.

`python hack/bench/log_latency.py [PODS]`

A real control plane with simulated nodes, and the operator as a process. All Pods start; then each writes the line of
the next stage, all at the same time. The watch of a client that sees every change of a VLLMDeployment says when it is
told. The last rounds have one Pod that writes as fast as it can.
"""

import asyncio
import contextlib
import json
import os
import ssl
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from testenv.cri import LogWriter
from testenv.environment import Environment
from testenv.nodes import gpu_node
from vllm_operator.cluster.client import POD, VLLM_DEPLOYMENT
from vllm_operator.cluster.connection import load_configuration
from vllm_operator.cluster.kube import KubeClient

ROOT = Path(__file__).parent.parent.parent
NAMESPACE = "bench"
BEGIN = b"INFO 11-21 12:00:00 [api_server.py:1] vLLM API server version 0.20.1\n"
ROUNDS = {
    "WeightLoad": b"INFO 11-21 12:00:01 [gpu_model_runner.py:3000] Starting to load model org/model...\n",
    "MemoryProfiling": b"INFO 11-21 12:00:09 [gpu_worker.py:1] Available KV cache memory: 10.0 GiB\n",
    "ServerStart": b"INFO 11-21 12:00:10 [api_server.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000\n",
    "Ready": b"INFO:     Application startup complete.\n",
}
FLOOD = b"INFO 11-21 12:00:05 [loggers.py:1] " + b"x" * 200 + b"\n"
FLOOD_BYTES_PER_SECOND = 10_000_000
WITHIN = 120.0


class Seen:
    """When each VLLMDeployment was first seen in each stage, by a watch."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.times: dict[tuple[str, str], float] = {}
        self.changed = asyncio.Event()

    async def look(self) -> None:
        """Watch for ever."""
        path = VLLM_DEPLOYMENT.path(NAMESPACE)
        configuration = self._client.configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        headers = {"Authorization": token} if token else {}
        async with aiohttp.ClientSession(read_bufsize=1 << 22) as session:
            url = f"{configuration.host}{path}?watch=1"
            async with session.get(url, headers=headers, ssl=context, timeout=aiohttp.ClientTimeout(total=None)) as response:
                async for line in response.content:
                    self._note(line)

    def _note(self, line: bytes) -> None:
        resource = json.loads(line)["object"]
        stage = ((resource.get("status") or {}).get("startup") or {}).get("stage")
        if stage:
            self.times.setdefault((resource["metadata"]["name"], stage), time.time())
            self.changed.set()


def deployment(name: str) -> dict[str, Any]:
    spec = {"model": {"uri": "hf://org/model"}, "engine": {"version": "0.20.1"}}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": VLLM_DEPLOYMENT.api_version, "kind": VLLM_DEPLOYMENT.kind, "metadata": metadata, "spec": spec}


async def main(number: int) -> None:
    with Environment() as environment:
        os.environ["KUBECONFIG"] = str(environment.kubeconfig)
        prepare(environment, number)
        client = KubeClient(await load_configuration(), timeout_seconds=60)
        settings = {"VLLM_OPERATOR_NAMESPACES": NAMESPACE, "VLLM_OPERATOR_HTTP_HOST": "127.0.0.1", "VLLM_OPERATOR_HTTP_PORT": "0"}
        log = (environment.folder / "operator.log").open("wb")
        command = [sys.executable, "-m", "vllm_operator", "run"]
        operator = await asyncio.create_subprocess_exec(*command, env=os.environ | settings, stderr=log)
        try:
            await measure(environment, client, operator.pid, number)
        finally:
            operator.terminate()
            await operator.wait()
            await client.close()


def prepare(environment: Environment, number: int) -> None:
    """The CRD, nodes with a GPU for each Pod, and a namespace whose Pods start and do not become Ready."""
    admin = environment.control_plane.client()
    admin.apply(yaml.safe_load((ROOT / "crds" / "vllmdeployments.yaml").read_text("utf-8")))
    nodes = []
    for index in range(-(-number // 8)):
        node = gpu_node("h100-sxm")
        node["metadata"]["name"] = f"bench-{index}"
        node["metadata"].setdefault("labels", {})["kubernetes.io/hostname"] = f"bench-{index}"
        nodes.append(node)
    environment.create_nodes(nodes)
    script = {"path": "ok", "pull": "0", "load": "hold"}
    annotations = {f"sim.vllm-operator.dev/{key}": value for key, value in script.items()}
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "annotations": annotations}})


async def measure(environment: Environment, client: KubeClient, pid: int, number: int) -> None:
    await asyncio.sleep(5)
    before = resident_mebibytes(pid)
    begun = time.time()
    for index in range(number):
        await client.create(deployment(f"d{index:03}"))
    logs: dict[str, LogWriter] = {}
    while len(logs) < number:
        await asyncio.sleep(0.5)
        for pod in await client.find(POD, NAMESPACE):
            running = [c for c in (pod.get("status") or {}).get("containerStatuses") or () if "running" in (c.get("state") or {})]
            name = pod["metadata"]["labels"]["app.kubernetes.io/instance"]
            if running and name not in logs:
                logs[name] = LogWriter(environment.log_root / NAMESPACE / pod["metadata"]["name"] / "vllm" / "0.log")
                logs[name].write(BEGIN)
    print(f"{number} Pods run {time.time() - begun:.1f} s after the first was asked for")
    await asyncio.sleep(10)
    streaming = resident_mebibytes(pid)
    print(
        f"memory: {before:.0f} MiB before, {streaming:.0f} MiB with {number} streams: {(streaming - before) * 1024 / number:.0f} KiB each"
    )
    seen = Seen(client)
    watching = asyncio.create_task(seen.look())
    await asyncio.sleep(1)
    stages = list(ROUNDS)
    for stage in stages[:2]:
        await one_round(stage, logs, seen, list(logs))
    stop = threading.Event()
    flooded, *others = sorted(logs)
    writer = threading.Thread(target=flood, args=(logs[flooded], stop), daemon=True)
    writer.start()
    await asyncio.sleep(3)
    for stage in stages[2:]:
        await one_round(stage, logs, seen, others, note=" with one Pod at 10 MB/s")
    stop.set()
    writer.join()
    print(f"memory: {resident_mebibytes(pid):.0f} MiB at the end")
    watching.cancel()


async def one_round(stage: str, logs: dict[str, LogWriter], seen: Seen, names: list[str], note: str = "") -> None:
    written = {}
    for name in names:
        written[name] = time.time()
        logs[name].write(ROUNDS[stage])
        await asyncio.sleep(0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WITHIN):
            while any((name, stage) not in seen.times for name in names):
                seen.changed.clear()
                await seen.changed.wait()
    delays = sorted(seen.times[name, stage] - written[name] for name in names if (name, stage) in seen.times)
    missing = len(names) - len(delays)
    percentile = delays[int(len(delays) * 0.95) - 1] if len(delays) > 1 else float("nan")
    print(
        f"{stage:18} median {statistics.median(delays):.2f} s, p95 {percentile:.2f} s, max {delays[-1]:.2f} s"
        f"{f', {missing} never' if missing else ''}{note}"
    )


def flood(log: LogWriter, stop: threading.Event) -> None:
    """Write 10 MB/s."""
    lines = FLOOD * (FLOOD_BYTES_PER_SECOND // 20 // len(FLOOD))
    while not stop.is_set():
        begun = time.time()
        log.write(lines)
        stop.wait(max(0.0, 0.05 - (time.time() - begun)))


def resident_mebibytes(pid: int) -> float:
    """What the operator holds in memory."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
