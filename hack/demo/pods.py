"""Lets the engines of the demo's Pods start: writes recorded logs, and says when a container is Ready or has crashed.

A process of its own, so that it goes on while `make demo-keep` waits for a person to play with the cluster. Every run of a container
replays one recording, which follows from its Pod: the model, the variables, and whether an earlier start has filled its caches. For a model
that was not recorded, it is the start of a small one, without the figures of that model.
"""

import asyncio
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.situations import COLD, MIG_UUID, NO_MEMORY, RECORDED_MODEL, RECORDINGS, WARM
from testenv.api import ApiClient, ApiError, client_of
from testenv.cri import LogWriter
from testenv.replay import Output, Replay, read_recording
from testenv.stages import ANNOTATION_PREFIX

PODS = "/api/v1/pods?labelSelector=app.kubernetes.io/name=vllm"
COMPONENT = "app.kubernetes.io/component"
LOOK_EVERY = 0.1
BEFORE_FIRST_LINE = 10.0
"""Seconds in which an engine imports its modules and prints nothing: of the 458.8 s from the start of the process to its
first answer, the log covers 448."""
AFTER_LAST_WORDS = 0.8
"""Seconds between the last line of a crashing run and its end: who follows the log reads it before the run is over."""


FIGURES = re.compile(rb"GiB|tokens|attention backend|args: |config: model=|  model  ")
"""In lines about the recorded model and its GPU."""
FETCHED = f'{{"result": "Fetched", "commit": "{40 * "0"}"}}'
ELSEWHERE = b"The demo simulates engines in namespace %s only: this Pod is Ready without an engine, and prints nothing else.\n"


@dataclass(frozen=True)
class Role:
    recording: Path
    crashes: bool = False
    with_figures: bool = True

    def outputs(self) -> Sequence[Output]:
        return [each for each in read_recording(self.recording) if self.with_figures or not FIGURES.search(each.data)]


def role_of(pod: dict[str, Any], filled: Collection[str]) -> Role:
    """How the engine of a Pod starts. `filled` are directories of caches that starts have filled."""
    container = pod["spec"]["containers"][0]
    values = {each["name"]: each.get("value", "") for each in container.get("env", ())}
    if values.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return Role(MIG_UUID, crashes=True)
    if {"--gpu-memory-utilization", "0.012"} <= {*container.get("args", ())}:  # as recorded
        return Role(NO_MEMORY, crashes=True)
    is_warm, is_recorded = caches_of(pod) in filled, any(RECORDED_MODEL in part for part in container["command"])
    if is_recorded:
        return Role(WARM if is_warm else COLD)
    return Role(RECORDINGS / f"llama-bf16-{'warm' if is_warm else 'cold'}.log", with_figures=False)


def caches_of(pod: dict[str, Any]) -> str:
    """The directory of its caches on a PersistentVolumeClaim; empty if the caches end with the Pod."""
    kind = "persistentVolumeClaim"
    claims = {each["name"]: each[kind]["claimName"] for each in pod["spec"]["volumes"] if kind in each}
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    return next((f"{claims[m['name']]}/{m['subPath']}" for m in mounts if m["mountPath"] == "/cache" and m["name"] in claims), "")


class Player:
    """Plays each run of the engines of a namespace once, and says in other namespaces that it does not."""

    def __init__(self, client: ApiClient, log_root: Path, *, namespace: str, speed: float) -> None:
        self._client = client
        self._log_root = log_root
        self._namespace = namespace
        self._speed = speed
        self._filled: set[str] = set()
        self._roles: dict[str, Role | None] = {}
        self._runs: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def play(self) -> None:
        while True:
            try:
                for pod in (await self._request("GET", PODS))["items"]:
                    await self._look_at(pod)
            except (ApiError, OSError) as error:
                print(f"the API server does not answer: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(LOOK_EVERY)

    async def _look_at(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._roles:
            self._roles[uid] = await self._prepare(pod)
        for container in pod["status"].get("containerStatuses", [])[:1]:
            run = (uid, container["restartCount"])
            if "running" in container["state"] and run not in self._runs:
                self._runs[run] = asyncio.create_task(self._play_run(pod, container, self._roles[uid]))

    async def _prepare(self, pod: dict[str, Any]) -> Role | None:
        """Choose the role of a Pod; None if it has no engine, or is in another namespace. A Pod of a Job completes, with a report."""
        if pod["metadata"]["namespace"] != self._namespace:
            return None
        if (component := pod["metadata"]["labels"].get(COMPONENT)) not in ("engine", "primer"):
            await self._annotate(pod, {"load": "0", **({"report": FETCHED} if component == "fetching" else {})})
            return None
        role = role_of(pod, self._filled)
        if role.crashes:
            lasts = (BEFORE_FIRST_LINE + role.outputs()[-1].seconds) / self._speed
            await self._annotate(pod, {"path": "crash", "crash-after": f"{lasts + AFTER_LAST_WORDS:.1f}"})
        return role

    async def _play_run(self, pod: dict[str, Any], container: dict[str, Any], role: Role | None) -> None:
        metadata = pod["metadata"]
        writer = LogWriter(
            self._log_root / metadata["namespace"] / metadata["name"] / container["name"] / f"{container['restartCount']}.log"
        )
        if role is None:
            if metadata["namespace"] != self._namespace:
                writer.write(ELSEWHERE % self._namespace.encode())
            return
        await asyncio.sleep(BEFORE_FIRST_LINE / self._speed)
        await Replay(role.outputs(), writer, speed=self._speed).play(exits=role.crashes)
        if not role.crashes:
            self._filled |= {caches_of(pod)} - {""}
            await self._annotate(pod, {"load": "0"})

    async def _annotate(self, pod: dict[str, Any], annotations: dict[str, str]) -> None:
        patch = {"metadata": {"annotations": {ANNOTATION_PREFIX + name: value for name, value in annotations.items()}}}
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}"
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
