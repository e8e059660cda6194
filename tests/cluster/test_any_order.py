"""Whatever happens, in whatever order: once it is over, all serve, nothing is written any more and nothing was left behind.

What happens is drawn at random from a seed, so that the order is the same each time, but not what it meets: the operator, the
controllers and the nodes go on at their own pace meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import pytest

from support.cluster import Cluster, Manifest, RefusedError, Simulator
from support.operator_process import OperatorProcess, has, llama
from support.stories import LOADING, RUNNING, TOO_LONG, story

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

ACTS = 60
NAMES = ("first", "second", "third")
SPECS: tuple[Manifest, ...] = (
    {},
    {"replicas": 2},
    {"replicas": 0},
    {"parallelism": {"tensor": 2}},
    {"engine": {"version": "0.16.0"}, "replicas": 2},
    {"engine": {"version": "0.24.0"}},
    {"backends": {"attention": "TRITON_ATTN"}},
    {"remediation": {"mode": "Auto"}},
    {"parallelism": {"tensor": 16}},
    {"accelerator": {"products": ["NVIDIA-B200"]}},
    {"engine": {"version": "0.20.1", "args": [{"name": "--nonsense", "value": "1"}]}},
)
"""Most can be planned, some have no GPU."""
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200")
GONE, TAKEN, NOT_ALLOWED = 404, 409, 422
QUIET_SECONDS = 5.0


@dataclass
class Disorder:
    """Things that happen to a cluster."""

    cluster: Cluster
    sim: Simulator
    operator: OperatorProcess
    random: Random
    node: str

    async def act(self) -> None:
        """One of them, now; what it was meant for may have gone meanwhile."""
        acts: tuple[Callable[[], Awaitable[object]], ...] = (
            *(self._apply,) * 6,
            *(self._scale,) * 3,
            *(self._delete,) * 2,
            *(self._end_a_pod,) * 2,
            *(self._crash,) * 3,
            *(self._touch_a_child,) * 3,
            self._break_a_log,
            self._slow_down,
            self._relabel,
            self._restart,
        )
        try:
            await self.random.choice(acts)()
        except RefusedError as refused:
            if refused.status not in (GONE, TAKEN, NOT_ALLOWED):
                raise
        await asyncio.sleep(self.random.choice((0, 0.1, 0.5)))

    async def end(self) -> None:
        """What can be put right is; each VLLMDeployment asks for one replica, and for a plan for the node as it is."""
        await self._label(PRODUCTS[0])
        await self.sim.script(path="ok", pull="0", load="0")
        for pod in await self.cluster.list_all("Pod"):
            self.sim.fail_logs(pod["metadata"]["name"], "")
            await self._try(self.sim.change(pod["metadata"]["name"], path="ok", load="0", crash_after=None))
        for name in NAMES:
            manifest = llama(self.cluster.namespace, name)
            manifest["metadata"]["annotations"] = {"vllm-operator.dev/replan": "at the end"}
            await self.cluster.apply(manifest)

    async def _try(self, act: Awaitable[object]) -> None:
        try:
            await act
        except RefusedError as refused:
            if refused.status != GONE:
                raise

    async def _apply(self) -> None:
        await self.cluster.apply(llama(self.cluster.namespace, self.random.choice(NAMES), **self.random.choice(SPECS)))

    async def _scale(self) -> None:
        await self.cluster.patch("VLLMDeployment", self.random.choice(NAMES), {"spec": {"replicas": self.random.randrange(4)}})

    async def _delete(self) -> None:
        await self.cluster.delete("VLLMDeployment", self.random.choice(NAMES))

    async def _a_pod(self) -> str:
        pods = sorted(pod["metadata"]["name"] for pod in await self.cluster.list_all("Pod"))
        return str(self.random.choice(pods)) if pods else "none"

    async def _end_a_pod(self) -> None:
        await self.cluster.delete("Pod", await self._a_pod())

    async def _crash(self) -> None:
        pod = await self._a_pod()
        await self.sim.change(pod, path="crash", crash_after="0", crash_times=self.random.choice("19"), backoff="1")
        log = self.sim.log(pod)
        log.write(RUNNING + LOADING + TOO_LONG)
        log.exit()

    async def _touch_a_child(self) -> None:
        kind, name = self.random.choice(("Deployment", "Service")), self.random.choice(NAMES)
        if self.random.random() < 0.5:
            await self.cluster.delete(kind, name)
        else:
            await self.cluster.patch(kind, name, {"spec": {"replicas": 5} if kind == "Deployment" else {"selector": {"foreign": "yes"}}})

    async def _break_a_log(self) -> None:
        self.sim.fail_logs(await self._a_pod(), self.random.choice(("500", "reset", "hang", "unavailable")))

    async def _slow_down(self) -> None:
        await self.sim.script(path="ok", pull="0", load=self.random.choice(("0", "1", "hold")))

    async def _relabel(self) -> None:
        await self._label(self.random.choice(PRODUCTS))

    async def _label(self, product: str) -> None:
        await self.cluster.patch("Node", self.node, {"metadata": {"labels": {"nvidia.com/gpu.product": product}}})

    async def _restart(self) -> None:
        await (self.operator.kill() if self.random.random() < 0.5 else self.operator.stop())
        await self.operator.start()


def serves(resource: Manifest) -> bool:
    status = resource.get("status", {})
    is_new = status.get("observedGeneration") == resource["metadata"]["generation"]
    return bool(is_new and has("Ready", "True")(resource) and status.get("readyReplicas") == 1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_all_serve_when_it_is_over(served: Cluster, sim: Simulator, operator: OperatorProcess, seed: int) -> None:
    [node] = await served.list_all("Node")
    disorder = Disorder(served, sim, operator, Random(seed), node["metadata"]["name"])
    await sim.script(path="ok", pull="0", load="0")
    for _ in range(ACTS):
        await disorder.act()
    await disorder.end()
    for name in NAMES:
        await served.wait_for("VLLMDeployment", name, serves, within=90)
        await story(served, name)  # no message is empty, endless or unreadable
    await operator.until_quiet(seconds=QUIET_SECONDS)
    async with asyncio.timeout(60):  # a primer that is not needed any more may take its time
        while sorted(each["metadata"]["name"] for each in await served.list_all("Deployment")) != sorted(NAMES):  # noqa: ASYNC110 - only the API server knows
            await asyncio.sleep(0.5)
