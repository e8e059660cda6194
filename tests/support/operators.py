"""The operator's inside on a cluster in memory: everything real but the API server."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

from support.fake_cluster import FakeCluster
from support.gpus import real_node
from support.verdicts import cache_verdict, plan_verdict
from vllm_operator.api import labels
from vllm_operator.api.conditions import Verdict, find_condition, without_link
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import CacheStatus, Condition, VLLMDeploymentStatus
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.startup import load_startup
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.log_followers import Followers
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.reconciler import Reconciler
from vllm_operator.controller.report import Result
from vllm_operator.controller.settings import Settings
from vllm_operator.controller.user_data import KnownCatalog, KnownStarts
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.kube.client import DEPLOYMENT, POD, REVISION, VLLM_DEPLOYMENT, ClusterClient
from vllm_operator.logs.state import StartupState, UnreadLog
from vllm_operator.planning.validation import ArtifactTrust
from vllm_operator.pods.tools import TOOLS_IMAGE
from vllm_operator.rendering.revision import read_revision

Manifest = dict[str, Any]
KEY = ("default", "llama")


@cache
def known_catalog() -> KnownCatalog:
    return KnownCatalog.of(load_catalog())


@cache
def known_crashes() -> KnownStarts:
    return KnownStarts.of(load_startup())


def llama(name: str = "llama", **spec: Any) -> Manifest:
    content = {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"}, "engine": {"version": "0.20.1"}, "replicas": 1, **spec}
    return {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": {"name": name, "namespace": "default"}, "spec": content}


class FakeLogs(Followers):
    """Logs that have told what a test says."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, int], StartupState] = {}
        self.ready = True
        self.forgotten: list[tuple[str, str]] = []
        self.starting: Collection[str] = ()
        """The Pods whose start or crash was not reported at the last reconciliation."""

    def sync(self, key: tuple[str, str], pods: Iterable[Manifest], starting: Collection[str] = (), **_: object) -> None:
        """Nothing to follow."""
        self.starting = starting

    def states(self, key: tuple[str, str]) -> Mapping[tuple[str, int], StartupState]:
        return self.told

    def unread(self, key: tuple[str, str]) -> Mapping[tuple[str, int], UnreadLog]:
        return {}

    def caught_up(self, key: tuple[str, str]) -> bool:
        return self.ready

    def forget(self, key: tuple[str, str]) -> None:
        self.forgotten.append(key)


class Bench:
    """A cluster in memory with one GPU node, and reconcilers that can be thrown away as by a restart."""

    def __init__(self, *nodes: Manifest) -> None:
        self.cluster = FakeCluster()
        for node in nodes or (real_node("h100-sxm"),):
            self.cluster.put({"apiVersion": "v1", "kind": "Node", **node})
        self.logs = FakeLogs()
        self.integrations: tuple[str, ...] = ()
        self.trust = ArtifactTrust()
        self.tools_image = TOOLS_IMAGE
        self.now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
        self.read_inventory = partial(read_inventory, gpus=known_catalog().shipped.gpus)
        self.restart()

    def restart(self) -> None:
        """The operator forgets everything."""
        self.metrics = Metrics()
        self.inventory = InventoryCache(self.cluster, self.read_inventory, clock=lambda: self.now.timestamp())
        self.reconciler = self.make_reconciler()

    def make_reconciler(
        self, catalog: KnownCatalog | None = None, configs: ModelConfigs | None = None, client: ClusterClient | None = None
    ) -> Reconciler:
        """A reconciler with what ships with the operator, or with this catalog; with this hub, and this way to the cluster."""
        client = client or self.cluster
        return Reconciler(
            client,
            catalog or known_catalog(),
            known_crashes(),
            inventory=self.inventory,
            logs=self.logs,
            metrics=self.metrics,
            configs=configs,
            settings=Settings(
                integrations=self.integrations,
                tools_image=self.tools_image,
                artifact_repositories=self.trust.repositories,
                artifact_naming="digest" if self.trust.needs_digest else "tag",
            ),
            now=lambda: self.now,
        )

    async def settle(self, key: tuple[str, str] = KEY) -> Result:
        """Reconcile until nothing changes any more."""
        for _ in range(10):
            before = len(self.cluster.writes)
            result = await self.reconciler.reconcile(key)
            if len(self.cluster.writes) == before:
                return result
        raise AssertionError(f"it does not settle: {self.cluster.writes}")

    def resource(self, name: str = "llama") -> Manifest:
        return next(item for item in self.cluster.all(VLLM_DEPLOYMENT) if item["metadata"]["name"] == name)

    def status(self, name: str = "llama") -> VLLMDeploymentStatus:
        return VLLMDeploymentStatus.model_validate(self.resource(name).get("status") or {})

    def plan(self, name: str = "llama") -> Plan:
        """The current plan, from the ControllerRevision that the status names."""
        named, resource = self.status(name).revision, VLLMDeployment.parse(self.resource(name))
        [revision] = [item for item in self.cluster.all(REVISION) if item["metadata"]["name"] == named]
        return read_revision(resource, revision)

    def condition(self, type: str, name: str = "llama") -> Condition:
        """A condition, its message without the link to the page about its reason."""
        found = next(condition for condition in self.status(name).conditions if condition.type == type)
        return found.model_copy(update={"message": without_link(found.message)})

    def message(self, type: str, name: str = "llama") -> str:
        """The message of a condition without its link; empty if the condition is absent."""
        found = find_condition(self.status(name).conditions, type)
        return without_link(found.message) if found is not None else ""

    def plan_verdict(self, name: str = "llama") -> Verdict:
        """What the status says about the plan, or why there is none."""
        return plan_verdict(self.status(name))

    def cache_verdict(self, name: str = "llama") -> Verdict:
        """What the status says about the caches."""
        return cache_verdict(self.status(name))

    def cache(self) -> CacheStatus:
        found = self.status().cache
        assert found is not None
        return found

    def deployment(self) -> Manifest:
        return self.cluster.all(DEPLOYMENT)[0]

    def container(self) -> Manifest:
        """Our container in the template of the Deployment."""
        [container] = self.deployment()["spec"]["template"]["spec"]["containers"]
        return dict(container)

    def add_pod(self, name: str = "llama-1", **status: Any) -> Manifest:
        deployment = self.deployment()
        marks = controlled_by_deployment(deployment["metadata"]["name"], deployment["spec"]["template"]["metadata"]["labels"])
        metadata = {"name": name, "namespace": "default", **marks}
        return self.cluster.put({"apiVersion": "v1", "kind": POD.kind, "metadata": metadata, "status": status})

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def controlled_by_deployment(name: str, template_labels: Mapping[str, str]) -> Manifest:
    """Labels and owner of a Pod of a Deployment."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-abc", "uid": f"uid-{name}-abc", "controller": True}
    return {"labels": {**template_labels, "pod-template-hash": "abc"}, "ownerReferences": [owner]}


def content_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest asks for, without what the API server adds."""
    return {"spec": manifest["spec"], "labels": manifest["metadata"]["labels"]}
