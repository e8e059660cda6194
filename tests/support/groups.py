"""VLLMDeployments whose replicas are groups over two real nodes, with the stand-in engine that replays recorded ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.cluster import Cluster, Manifest
from support.engines import ENGINE_IMAGE, eventually, model
from support.operator_process import condition, has

LEADER, FOLLOWER = "llama-0", "llama-0-1"
FOLLOWERS = "app.kubernetes.io/component=follower"
SERVING = has("Ready", "True", "Serving")


class Orders:
    """What the engines of a namespace do, by the names of their Pods; a folder that the Pods of both nodes see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def give(self, pod: str, **orders: str) -> None:
        """From its next start on: `ranks="h100-good"` is ENGINE_RANKS."""
        self._write(pod, "\n".join(f"ENGINE_{name.upper()}={value}" for name, value in orders.items()))

    def fail(self, status: int = 1) -> None:
        """Let rank 1 find no model at its next starts, and let it end; rank 0 waits for it."""
        self.give(FOLLOWER, ranks="h100-follower-model-missing", exit=str(status))
        self.give(LEADER, ranks="h100-follower-model-missing")

    def succeed(self) -> None:
        for pod in (LEADER, FOLLOWER, f"{LEADER}-hang"):
            (self.folder / pod).unlink(missing_ok=True)

    def hang(self, pod: str) -> None:
        """Stop the engine core of a Pod now, while it has requests, and of its successors until `succeed`."""
        self._write(f"{pod}-hang", "")

    def end(self, pod: str, status: int) -> None:
        """End an engine now."""
        self._write(f"{pod}-exit-{status}", "")

    def _write(self, name: str, content: str) -> None:
        unfinished = self.folder / ".unfinished"
        unfinished.write_text(content)
        unfinished.rename(self.folder / name)


def group(cluster: Cluster, orders: Orders, *, gpus: int = 8, image: str = ENGINE_IMAGE, speed: str = "20", **spec: Any) -> Manifest:
    """A VLLMDeployment over two nodes with so many GPUs of each."""
    pod = {
        "containers": [{"name": "vllm", "volumeMounts": [{"name": "orders", "mountPath": "/orders"}]}],
        "volumes": [{"name": "orders", "hostPath": {"path": str(orders.folder)}}],
    }
    over_two: dict[str, Any] = {"parallelism": {"tensor": gpus, "nodes": 2}, "cache": {"storage": "EmptyDir"}}
    rollout = {"drainSeconds": 0, **spec.pop("rollout", {})}
    made = model(cluster, spec={**over_two, "rollout": rollout, **spec}, pod=pod, speed=speed, orders="/orders")
    made["spec"]["engine"] |= {"version": "0.26.0", "image": image}
    return made


async def uids(cluster: Cluster) -> Mapping[str, str]:
    """The UID of each Pod of the groups that is not being deleted, by name."""
    pods = [it["metadata"] for it in await cluster.list_all("Pod", selector="app.kubernetes.io/name=vllm")]
    return {it["name"]: it["uid"] for it in pods if "deletionTimestamp" not in it}


async def until_replaced(cluster: Cluster, before: Mapping[str, str], *, within: float = 120) -> None:
    """Wait until each of these Pods is another one, under the same name."""

    async def are_others() -> bool:
        now = await uids(cluster)
        return before.keys() <= now.keys() and not set(before.values()) & set(now.values())

    await eventually(are_others, within=within)


async def until_serving(cluster: Cluster, *, within: float = 120) -> Manifest:
    return await cluster.wait_for("VLLMDeployment", "llama", SERVING, within=within)


async def until_crashed(cluster: Cluster, reason: str, *words: str, within: float = 60) -> str:
    """Wait until the condition Crashed has the reason and the words; return its message."""

    def is_told(it: Manifest) -> bool:
        return bool(has("Crashed", "True", reason)(it)) and all(word in condition(it, "Crashed")["message"] for word in words)

    return str(condition(await cluster.wait_for("VLLMDeployment", "llama", is_told, within=within), "Crashed")["message"])


async def told(cluster: Cluster, reason: str) -> int:
    """How many events with the reason there are. One that comes again has a count."""
    return [it["reason"] for it in await cluster.events(name="llama")].count(reason)


async def until_nothing_is_left(cluster: Cluster, *, within: float = 90) -> None:
    """Wait until no object of a group exists."""
    kinds = ("VLLMDeployment", "LeaderWorkerSet", "Pod", "ControllerRevision", "PodDisruptionBudget", "NetworkPolicy", "Service")

    async def is_empty() -> bool:
        left = [it["metadata"]["name"] for kind in kinds for it in await cluster.list_all(kind)]
        path = f"/apis/apps/v1/namespaces/{cluster.namespace}/statefulsets"
        left += [it["metadata"]["name"] for it in (await cluster.request("GET", path))["items"]]
        return not left

    await eventually(is_empty, within=within)
