"""Read the number of unfinished requests of draining Pods from the ends of their logs."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.kube.client import ClusterClient, ClusterError, LogRequest, Manifest
from vllm_operator.kube.recent import Recent
from vllm_operator.status.observation import DrainingPod, draining_until, read_requests

LOOK_SECONDS = 10
"""Interval between reads of a draining Pod's log. vLLM logs the number at the same interval."""
WINDOW_SECONDS = 25
"""Age of the oldest log line to read."""
LIMIT_BYTES = 256 * 1024
"""Maximum number of bytes to read. With more log output in that time, the number is older."""
MAX_PODS = 8
"""Maximum number of draining Pods per VLLMDeployment whose logs are read."""
TIMEOUT_SECONDS = 5.0
MAX_REMEMBERED = 1000


class DrainReader:
    """Reads the draining Pods of VLLMDeployments. Each log is read at most once per `LOOK_SECONDS`."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._looks: Recent[tuple[datetime, int | None]] = Recent(MAX_REMEMBERED)  # by uid of the Pod

    async def read(self, pods: Sequence[Manifest], now: datetime) -> tuple[DrainingPod, ...]:
        """Return the Pods that are draining. If a log cannot be read, only the number of requests is missing."""
        draining = [(pod, until) for pod in pods if (until := draining_until(pod)) is not None and until > now]
        if not draining:
            return ()
        numbers = await asyncio.gather(*(self._requests(pod, now) for pod, _ in draining[:MAX_PODS]))
        unread = [None] * (len(draining) - len(numbers))
        return tuple(
            DrainingPod(pod["metadata"]["name"], until, number) for (pod, until), number in zip(draining, [*numbers, *unread], strict=True)
        )

    async def _requests(self, pod: Manifest, now: datetime) -> int | None:
        uid = str(pod["metadata"].get("uid", ""))
        if (look := self._looks.get(uid)) is not None and now < look[0] + timedelta(seconds=LOOK_SECONDS):
            return look[1]
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                number = read_requests(await self._lines(pod, now))
        except (ClusterError, TimeoutError):
            number = None
        self._looks.put(uid, (now, number))
        return number

    async def _lines(self, pod: Manifest, now: datetime) -> list[str]:
        metadata = pod["metadata"]
        since = reading.stamp(now - timedelta(seconds=WINDOW_SECONDS))
        request = LogRequest(metadata["namespace"], metadata["name"], CONTAINER, follow=False, since=since, limit_bytes=LIMIT_BYTES)
        content = b""
        async with self._client.stream_log(request) as stream:
            async for chunk in stream:
                content += chunk
                if len(content) >= LIMIT_BYTES:
                    break
        return content[:LIMIT_BYTES].decode("utf-8", "replace").splitlines()
