"""What `kubectl describe` tells of a VLLMDeployment on a real API server: its conditions and its events, as one page."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from support.cluster import PATIENCE, Cluster
from vllm_operator.api.conditions import without_link

RUNNING = b"INFO 11-21 12:00:00 [api_server.py:1] vLLM API server version 0.20.1\n"
LOADING = b"INFO 11-21 12:00:01 [gpu_model_runner.py:3000] Starting to load model meta-llama/Llama-3.1-8B-Instruct...\n"
TOO_LONG = (
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] EngineCore failed to start.\n"
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] Traceback (most recent call last):\n"
    b'(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1]   File "/x/vllm/v1/core/kv_cache_utils.py", line 1, in check\n'
    b"(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] ValueError: To serve at least one request with the models's max seq len "
    b"(131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.68 GiB). Based on the available "
    b"memory, the estimated maximum model length is 5568. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
    b"initializing the engine.\n"
    b"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}\n"
)
"""The end of a start whose model length does not fit into the KV cache."""


async def story(cluster: Cluster, name: str = "llama") -> str:
    """The page. Nothing that happened may be told by a machine's word alone, and nothing secret or endless is in it."""
    resource = await cluster.get("VLLMDeployment", name)
    events = await cluster.events(name=name)
    lines = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in resource["status"]["conditions"]]
    lines += [f"{event['type']} {event['reason']} x{event.get('count', 1)}: {event['message']}" for event in events]
    for line in lines:
        message = line.split(": ", 1)[1]
        assert 0 < len(without_link(message)) <= 500, line
        assert message.isprintable(), line
    return "\n".join(lines)


async def wait_for_story(cluster: Cluster, *words: str, name: str = "llama", within: float = PATIENCE) -> str:
    """Wait until these words come one after the other in the page, because Events are written after the status; return the page.

    Raises:
        AssertionError: They do not in time; shows the page.
    """
    page = ""
    try:
        async with asyncio.timeout(within):
            while not in_order(page := await story(cluster, name), *words):  # noqa: ASYNC110 - they are in the API server
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{words} are not in order in\n{page}") from None
    return page


async def own_events(cluster: Cluster, name: str = "llama") -> Mapping[str, int]:
    """The events about a VLLMDeployment: how often each reason is counted in all."""
    counted: dict[str, int] = {}
    for event in await cluster.events(name=name):
        if event["involvedObject"]["kind"] == "VLLMDeployment":
            counted[event["reason"]] = counted.get(event["reason"], 0) + int(event.get("count", 1))
    return counted


def in_order(page: str, *words: str) -> bool:
    """Whether these words come one after the other."""
    place = 0
    for word in words:
        place = page.find(word, place)
        if place < 0:
            return False
    return True


def arguments(deployment: Mapping[str, Any]) -> Sequence[str]:
    """The command line of the engine."""
    found: Sequence[str] = deployment["spec"]["template"]["spec"]["containers"][0].get("args") or []
    return found
