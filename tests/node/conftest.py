"""Fixtures of the tests on a real node: the operator's image installed by the chart, an engine that needs no GPU."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodeenv import NodeEnvironment, NodeError, missing_requirements
from nodeenv.configuration import MACHINE_ADDRESS
from nodeenv.images import ImageStore
from support import helm
from support.cluster import Cluster
from support.cluster_dns import ClusterDns
from support.engine_image import gather_compiled_engine, gather_engine
from support.engines import COMPILED_ENGINE_IMAGE, ENGINE_IMAGE, eventually
from support.groups import Orders
from support.kubectl import Kubectl
from support.leader_worker_sets import LeaderWorkerSets
from support.operator_pods import OPERATOR
from support.sessions import build_before_tests, needs_environment, only_cluster, own_namespace, require_node
from testenv.binaries import CONTROL_PLANE
from vllm_operator import __version__

OPERATOR_IMAGE = f"ghcr.io/vllm-operator/vllm-operator:{__version__}"
BINARIES = (*CONTROL_PLANE, "kubelet", "kube-proxy", "kubectl", "helm", "registry", "lws")
VOLUMES = 120
"""Each claim takes one for good, and each VLLMDeployment has two: for caches and for weights."""


_HERE = Path(__file__).parent
_MISSING, _BROKEN = pytest.StashKey[str](), pytest.StashKey[str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_MISSING] = missing_requirements()
    session.config.stash[_BROKEN] = "" if session.config.stash[_MISSING] else build(session)


def build(session: pytest.Session) -> str:
    """Build what takes minutes the first time and is no test's time; return why that cannot be done."""
    if broken := build_before_tests(session, _HERE, BINARIES):
        return broken
    try:
        if needs_environment(session, _HERE):
            ImageStore().ensure_base()
    except NodeError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> Iterator[NodeEnvironment]:
    """The node with both images, shared by all tests of the session."""
    require_node(request.config.stash[_MISSING], request.config.stash[_BROKEN])
    with NodeEnvironment() as running, only_cluster(running):
        running.add_volumes(VOLUMES)
        running.images.build_operator(OPERATOR_IMAGE)
        running.images.build(ENGINE_IMAGE, gather_engine(running.folder / "engine"))
        running.images.build(COMPILED_ENGINE_IMAGE, gather_compiled_engine(running.folder / "compiled", ENGINE_IMAGE))
        for image in (OPERATOR_IMAGE, ENGINE_IMAGE, COMPILED_ENGINE_IMAGE):
            running.load_image(image)
        install(running)
        yield running


def install(environment: NodeEnvironment) -> None:
    """Install the packaged chart as a user would, in a namespace that demands the most of Pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": helm.NAMESPACE, "labels": labels}}
    environment.control_plane.client().apply(namespace)
    helm.run("package", helm.CHART, "--destination", environment.folder)
    package = environment.folder / f"vllm-operator-{__version__}.tgz"
    settings = ("--namespace", helm.NAMESPACE, "--wait", "--timeout", "90s")
    helm.run("install", helm.RELEASE, package, *settings, kubeconfig=environment.kubeconfig)


@pytest.fixture(scope="module")
def sets(environment: NodeEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaderWorkerSets]:
    """LeaderWorkerSet, a second node, and a DNS server, for the tests of one file."""
    client = environment.control_plane.client()
    made = LeaderWorkerSets(environment.control_plane, tmp_path_factory.mktemp("lws"))
    with environment.second_node(OPERATOR_IMAGE, ENGINE_IMAGE), ClusterDns(client, MACHINE_ADDRESS):
        made.install()
        made.start()
        # it would notice within a minute
        client.request("DELETE", f"/api/v1/namespaces/{helm.NAMESPACE}/pods?labelSelector={OPERATOR.replace('=', '%3D')}")
        yield made
        made.remove()


@pytest.fixture
def orders(environment: NodeEnvironment, cluster: Cluster, sets: LeaderWorkerSets) -> Orders:
    """The orders for the engines of the test."""
    return Orders(environment.folder / "orders" / cluster.namespace)


@pytest.fixture
async def cluster(environment: NodeEnvironment) -> AsyncIterator[Cluster]:
    """A namespace of the test's own, removed afterwards, with a client."""
    async with own_namespace(environment, grace_seconds=1) as own:
        yield own
        await own.request("DELETE", f"/apis/vllm-operator.dev/v1alpha1/namespaces/{own.namespace}/vllmdeployments")
        await own.request("DELETE", f"/api/v1/namespaces/{own.namespace}/pods", params={"gracePeriodSeconds": "1"})

        async def is_empty() -> bool:
            return not await own.list_all("Pod")

        # the next test may want all the GPUs
        await eventually(is_empty, within=120)


@pytest.fixture
def kubectl(cluster: Cluster) -> Kubectl:
    """kubectl of an administrator, in the test's namespace."""
    return Kubectl(cluster.kubeconfig, cluster.namespace)
