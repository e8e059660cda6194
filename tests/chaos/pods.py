"""What happens to Pods: they are deleted, crash with a recorded log, start slowly, and their logs cannot be read."""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from chaos.acts import Acts
from chaos.client import GONE, PatientCluster
from support.cluster import Manifest, RefusedError, Simulator

RECORDINGS = Path(__file__).parent.parent / "corpus" / "induced"
ENGINE = "app.kubernetes.io/name=vllm,app.kubernetes.io/component in (engine,primer),pod-template-hash"
FULL_VOLUME = "DiskFull"


@cache
def crashes() -> dict[str, str]:
    """Recorded starts that crashed, each with the name of its crash."""
    labels: dict[str, Any] = yaml.safe_load((RECORDINGS / "labels.yaml").read_text("utf-8"))
    return {name: label["signature"] for name, label in sorted(labels.items()) if label["signature"]}


class Pods:
    """The Pods of the namespace that run engines."""

    def __init__(self, client: PatientCluster, simulator: Simulator) -> None:
        self._client = client
        self._simulator = simulator
        self.acts: Acts = {self._delete: 2, self._crash: 5, self._fill_volume: 5, self._break_log: 2, self._slow_down: 2}

    async def names(self) -> list[str]:
        """Names of the Pods that run engines, in order."""
        return sorted(pod["metadata"]["name"] for pod in await self._client.list_all("Pod", selector=ENGINE))

    async def crash(self, name: str, recording: str, *, times: int = 1, backoff: int = 1) -> None:
        """Lets a Pod crash so many times with a recorded log; then it goes on."""
        pod = await self._client.get("Pod", name)
        run = _restarts(pod)
        for number in range(run, run + times):
            log = self._simulator.log(name, run=number)
            try:
                log.write((RECORDINGS / f"{recording}.log").read_bytes())
                log.exit()
            except FileNotFoundError as error:  # it was removed with the Pod
                raise RefusedError(GONE, f"Pod {name} is gone") from error
        ready = any(status.get("started") for status in pod.get("status", {}).get("containerStatuses", ())[:1])
        await self._simulator.change(
            name,
            path="crash",
            crash_after="0",
            crash_phase="ready" if ready else "loading",
            crash_times=str(run + times),
            backoff=str(backoff),
        )

    async def heal(self) -> None:
        """Lets all Pods, present and future, start at once and stay."""
        await self._simulator.script(path="ok", pull="0", load="0")
        for name in await self.names():
            self._simulator.fail_logs(name, "")
            self._simulator.fail_logs(name, "", previous=True)
            try:
                await self._simulator.change(name, path="ok", load="0", crash_after=None)
            except RefusedError as refused:
                if refused.status != GONE:
                    raise

    async def _one(self, random: Random) -> str | None:
        names = await self.names()
        return random.choice(names) if names else None

    async def _delete(self, random: Random) -> str:
        if (name := await self._one(random)) is None:
            return "no Pod to delete"
        await self._client.delete("Pod", name)
        return f"delete Pod {name}"

    async def _crash(self, random: Random) -> str:
        recording, times = random.choice(list(crashes())), random.choice((1, 1, 2, 3))
        if (name := await self._one(random)) is None:
            return "no Pod to crash"
        await self.crash(name, recording, times=times)
        return f"crash Pod {name} {times} times with {recording} ({crashes()[recording]})"

    async def _fill_volume(self, random: Random) -> str:
        recording = random.choice([name for name, crash in crashes().items() if crash == FULL_VOLUME])
        if (name := await self._one(random)) is None:
            return "no Pod whose volume could be full"
        await self.crash(name, recording, times=2, backoff=4)
        return f"Pod {name} finds its volume full ({recording})"

    async def _break_log(self, random: Random) -> str:
        fault = random.choice(("500", "reset", "hang", "unavailable"))
        if (name := await self._one(random)) is None:
            return "no Pod whose log could break"
        self._simulator.fail_logs(name, fault)
        return f"requests for the log of {name} fail: {fault}"

    async def _slow_down(self, random: Random) -> str:
        load = random.choice(("0", "1", "3", "hold"))
        await self._simulator.script(path="ok", pull="0", load=load)
        return f"new Pods take {load} to load"


def _restarts(pod: Manifest) -> int:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0))
