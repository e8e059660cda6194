"""What happens to the control plane and to machines: the API server, etcd's history, the controllers, a node."""

import asyncio
from random import Random

from chaos.acts import Acts, Background
from chaos.client import GONE, PatientCluster
from chaos.journal import Journal
from support.cluster import Manifest, RefusedError, simulated
from testenv import gpu_node

API_SERVER, CONTROLLERS = "kube-apiserver", "kube-controller-manager"
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200")


class Outages:
    """Outages of the control plane and of one node."""

    def __init__(self, client: PatientCluster, journal: Journal, node: str, node_kind: str) -> None:
        self._client = client
        self._plane = client.environment.control_plane
        self._journal = journal
        self._node, self._node_kind = node, node_kind
        self._background = Background()
        self._api_server = asyncio.Lock()
        self.acts: Acts = {
            self._kill_api_server: 1,
            self._freeze_api_server: 1,
            self._kill_controllers: 1,
            self._expire_watches: 2,
            self._lose_node: 2,
            self._remove_node: 1,
            self._relabel_node: 2,
        }

    async def end(self) -> None:
        """Waits until what is under way is over, and puts right what can be."""
        await self._background.finish()
        await self._restore_node()

    async def expire_watches(self) -> None:
        """Makes every watch begin anew: etcd forgets its history, and the API server starts without one."""
        async with self._api_server:
            await asyncio.to_thread(self._plane.compact_history)
            await asyncio.to_thread(self._plane.stop_component, API_SERVER, kill=True)
            await asyncio.to_thread(self._plane.start_component, API_SERVER)

    async def _kill_api_server(self, random: Random) -> str:
        self._background.begin(self._restart_api_server(random.choice((0.0, 2.0))))
        return "kill the API server"

    async def _restart_api_server(self, pause: float) -> None:
        async with self._api_server:
            await asyncio.to_thread(self._plane.stop_component, API_SERVER, kill=True)
            await asyncio.sleep(pause)
            await asyncio.to_thread(self._plane.start_component, API_SERVER)
            self._journal.note("the API server is back")

    async def _freeze_api_server(self, random: Random) -> str:
        seconds = random.choice((1.0, 4.0))
        self._background.begin(self._freeze_for(seconds))
        return f"freeze the API server for {seconds:g} s"

    async def _freeze_for(self, seconds: float) -> None:
        async with self._api_server:
            self._plane.pause_component(API_SERVER)
            await asyncio.sleep(seconds)
            self._plane.resume_component(API_SERVER)

    async def _kill_controllers(self, random: Random) -> str:
        await self.restart_controllers()
        return "kill the controller manager and start it again"

    async def restart_controllers(self) -> None:
        """Kills the controller manager and starts it again: its garbage collector then looks at all objects anew."""
        async with self._api_server:
            await asyncio.to_thread(self._plane.stop_component, CONTROLLERS, kill=True)
            await asyncio.to_thread(self._plane.start_component, CONTROLLERS)

    async def _expire_watches(self, random: Random) -> str:
        self._background.begin(self.expire_watches())
        return "compact etcd and kill the API server"

    async def _lose_node(self, random: Random) -> str:
        seconds = random.choice((1.0, 5.0))
        self._background.begin(self._lose(seconds))
        return f"the node does not report for {seconds:g} s"

    async def _lose(self, seconds: float) -> None:
        await self._annotate_node(simulated(node="down"))
        await asyncio.sleep(seconds)
        await self._annotate_node(simulated(node=None))

    async def _annotate_node(self, annotations: Manifest) -> None:
        try:
            await self._client.patch("Node", self._node, {"metadata": {"annotations": annotations}})
        except RefusedError as refused:
            if refused.status != GONE:
                raise

    async def _remove_node(self, random: Random) -> str:
        await self._client.delete("Node", self._node)
        seconds = random.choice((0.0, 3.0))
        self._background.begin(self._bring_node(seconds))
        return f"remove the node for {seconds:g} s"

    async def _bring_node(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._create_node()

    async def _create_node(self) -> None:
        if await self._client.find("Node", self._node) is None:
            await self._client.create(gpu_node(self._node_kind, self._node))

    async def _relabel_node(self, random: Random) -> str:
        product = random.choice(PRODUCTS)
        await self._client.patch("Node", self._node, {"metadata": {"labels": {"nvidia.com/gpu.product": product}}})
        return f"the node's GPUs are {product}"

    async def _restore_node(self) -> None:
        await self._create_node()
        metadata = {"labels": {"nvidia.com/gpu.product": PRODUCTS[0]}, "annotations": simulated(node=None)}
        await self._client.patch("Node", self._node, {"metadata": metadata})
