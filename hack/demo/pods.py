"""Lets the engines of the demo's Pods start: writes recorded logs, and says when a container is Ready or has crashed.

A process of its own, so that it goes on while `make demo-keep` waits for a person to play with the cluster. Every run of
a container replays one recording: that of its situation, or for VLLMDeployments that the demo does not know, a cold
start of a small model and warm ones from then on.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.situations import RECORDINGS, SITUATIONS
from testenv.api import ApiClient, ApiError, client_of
from testenv.cri import LogWriter
from testenv.replay import Replay, read_recording
from testenv.stages import ANNOTATION_PREFIX

INSTANCE = "app.kubernetes.io/instance"
LOOK_EVERY = 0.1
BEFORE_FIRST_LINE = 10.0
"""Seconds in which an engine imports its modules and prints nothing: of the 458.8 s from the start of the process to its
first answer, the log covers 448."""
AFTER_LAST_WORDS = 0.8
"""Seconds between the last line of a crashing run and its end: who follows the log reads it before the run is over."""


@dataclass(frozen=True)
class Role:
    recording: Path
    crashes: bool = False


class Player:
    """Watches the Pods of a namespace and plays each run of their containers once."""

    def __init__(self, client: ApiClient, log_root: Path, *, namespace: str, speed: float) -> None:
        self._client = client
        self._log_root = log_root
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._speed = speed
        self._roles = {s.name: Role(s.recording, s.crashes) for s in SITUATIONS if s.recording}
        self._cast: dict[str, Role] = {}
        self._runs: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def play(self) -> None:
        while True:
            try:
                for pod in (await self._request("GET", self._pods))["items"]:
                    await self._look_at(pod)
            except (ApiError, OSError) as error:
                print(f"the API server does not answer: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(LOOK_EVERY)

    async def _look_at(self, pod: dict[str, Any]) -> None:
        instance = pod["metadata"].get("labels", {}).get(INSTANCE)
        if not instance:
            return
        uid = pod["metadata"]["uid"]
        if uid not in self._cast:
            self._cast[uid] = self._roles.get(instance, Role(RECORDINGS / "llama-bf16-cold.log"))
            self._roles.setdefault(instance, Role(RECORDINGS / "llama-bf16-warm.log"))
            await self._prepare(pod, self._cast[uid])
        for container in pod["status"].get("containerStatuses", [])[:1]:
            run = (uid, container["restartCount"])
            if "running" in container["state"] and run not in self._runs:
                self._runs[run] = asyncio.create_task(self._play_run(pod, container, self._cast[uid]))

    async def _prepare(self, pod: dict[str, Any], role: Role) -> None:
        if role.crashes:
            lasts = (BEFORE_FIRST_LINE + read_recording(role.recording)[-1].seconds) / self._speed
            await self._annotate(pod, {"path": "crash", "crash-after": f"{lasts + AFTER_LAST_WORDS:.1f}"})

    async def _play_run(self, pod: dict[str, Any], container: dict[str, Any], role: Role) -> None:
        metadata = pod["metadata"]
        folder = self._log_root / metadata["namespace"] / metadata["name"] / container["name"]
        writer = LogWriter(folder / f"{container['restartCount']}.log")
        await asyncio.sleep(BEFORE_FIRST_LINE / self._speed)
        await Replay(read_recording(role.recording), writer, speed=self._speed).play(exits=role.crashes)
        if not role.crashes:
            await self._annotate(pod, {"load": "0"})

    async def _annotate(self, pod: dict[str, Any], annotations: dict[str, str]) -> None:
        patch = {"metadata": {"annotations": {ANNOTATION_PREFIX + name: value for name, value in annotations.items()}}}
        path = f"{self._pods}/{pod['metadata']['name']}"
        while True:
            try:
                await self._request("PATCH", path, patch, content_type="application/merge-patch+json")
                return
            except ApiError as error:
                print(f"{pod['metadata']['name']}: {error}", file=sys.stderr, flush=True)  # it was deleted meanwhile
                return
            except OSError as error:
                # nobody else would do it: the Pod would never become Ready, or never crash
                print(f"the API server does not answer: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(LOOK_EVERY)

    async def _request(self, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(self._client.request, *arguments, **options)


def main(kubeconfig: str, log_root: str, namespace: str, speed: str) -> None:
    asyncio.run(Player(client_of(Path(kubeconfig)), Path(log_root), namespace=namespace, speed=float(speed)).play())


if __name__ == "__main__":
    main(*sys.argv[1:])
