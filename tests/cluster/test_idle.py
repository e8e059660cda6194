"""Nothing happens, so nothing is written: the API server's own audit log is the witness."""

import asyncio
import json
from typing import Any

import pytest

from support.cluster import Cluster, Simulator
from support.operator_process import OperatorProcess, has, llama

pytestmark = pytest.mark.cluster

IDLE_SECONDS = 6.0
# on a busy machine, a first report says that the Pod starts, and the one about its container waits up to five seconds for the log
QUIET_SECONDS = 6.0
NAMES = tuple(f"model-{number}" for number in range(6))


def requests_of(cluster: Cluster) -> list[Any]:
    """Everything that the operator has asked of the API server, writes and reads."""
    lines = cluster.environment.control_plane.audit_log.read_text().splitlines()
    return [json.loads(line) for line in lines if '"userAgent":"vllm-operator/' in line and "ResponseComplete" in line]


def writes(requests: list[Any]) -> list[tuple[str, str]]:
    """What changes something. The one exception is the holder of the Lease, who renews it every two seconds."""
    found = [
        (r["verb"], r["requestURI"], r.get("objectRef", {}).get("resource")) for r in requests if r["verb"] not in ("get", "list", "watch")
    ]
    return [(verb, uri) for verb, uri, resource in found if resource not in ("selfsubjectaccessreviews", "leases")]


async def until_quiet(cluster: Cluster) -> list[tuple[str, str]]:
    """Waits until what was begun is written: no write for `QUIET_SECONDS`. Returns all writes up to then."""
    async with asyncio.timeout(60):
        before = writes(requests_of(cluster))
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            now = writes(requests_of(cluster))
            if len(now) == len(before):
                return now
            before = now


async def test_an_idle_operator_writes_nothing(served: Cluster, sim: Simulator) -> None:
    async with OperatorProcess(served.kubeconfig, served.namespace, resync_seconds="2") as operator:
        await operator.until_ready()
        for name in NAMES:
            await served.create(llama(served.namespace, name))
        for name in NAMES:
            await served.wait_for("VLLMDeployment", name, has("Ready", "True"))
        await sim.script(path="ok", pull="0", load="hold")
        await served.create(llama(served.namespace, "starting"))
        await served.wait_for("VLLMDeployment", "starting", has("Ready", "False", "Starting"))
        before = await until_quiet(served)
        looked = sum((await operator.reconciles()).values())
        await asyncio.sleep(IDLE_SECONDS)
        assert writes(requests_of(served))[len(before) :] == []
        # it did look, several times, at each
        assert sum((await operator.reconciles()).values()) >= looked + 2 * len(NAMES)
