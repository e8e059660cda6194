"""Fixtures of the tests that need a real API server: one control plane for all of them, a namespace for each."""

import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from support.account import make_account, remove_account, rules_of
from support.artifacts import fill
from support.audit import AuditTrail
from support.cluster import Cluster, RefusedError, Simulator
from support.crd import install_crd
from support.operator_process import OperatorProcess
from support.registry import Registry
from support.registry_programs import Programs
from support.sessions import build_before_tests, only_cluster, own_namespace
from testenv import Environment
from testenv.binaries import TEST_ENVIRONMENT
from testenv.nodes import gpu_node

_NO_BINARIES = pytest.StashKey[str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_NO_BINARIES] = build_before_tests(
        session, Path(__file__).parent, (*TEST_ENVIRONMENT, "prometheus", "registry", "lws")
    )


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """The control plane with its simulator, shared by all tests of the session."""
    if reason := request.config.stash.get(_NO_BINARIES, ""):
        pytest.skip(f"There is no control plane to test on: {reason}")
    with Environment(audit_level="Metadata") as running, only_cluster(running):
        yield running


@pytest.fixture
async def cluster(environment: Environment) -> AsyncIterator[Cluster]:
    """A namespace of the test's own, removed afterwards, with a client."""
    async with own_namespace(environment) as own:
        yield own
    environment.clear_logs_of(own.namespace)


@pytest.fixture
def sim(cluster: Cluster) -> Simulator:
    """Says how the Pods of the test's namespace behave."""
    return Simulator(cluster)


@pytest.fixture
def audit(environment: Environment) -> AuditTrail:
    """What is asked of the API server from the start of the test on."""
    return AuditTrail(environment.control_plane.audit_log)


@pytest.fixture
async def gpu_nodes(cluster: Cluster) -> AsyncIterator[Callable[..., list[str]]]:
    """Creates nodes, `gpu_nodes("h100-sxm", "gb10")` or `gpu_nodes("h100-sxm", name="another")`; they go when the test ends."""
    created: list[str] = []

    def create(*kinds: str, name: str | None = None) -> list[str]:
        names = cluster.simulated.create_nodes(gpu_node(kind, name) for kind in kinds)
        created.extend(names)
        return names

    yield create
    for name in created:
        try:
            await cluster.delete("Node", name)
        except RefusedError as refused:
            # a test may have removed its node itself
            if refused.status != 404:
                raise


@pytest.fixture
async def served(cluster: Cluster, gpu_nodes: Callable[..., list[str]]) -> Cluster:
    """The test's namespace in a cluster with the CRD and a node of eight H100."""
    await install_crd(cluster)
    gpu_nodes("h100-sxm")
    return cluster


@pytest.fixture
async def operator(served: Cluster, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    """The operator as a process, serving the test's namespace, with the rights that the chart gives to it."""
    kubeconfig = await make_account(served, tmp_path / "operator.kubeconfig")
    async with OperatorProcess(kubeconfig, served.namespace, rules_config_map=rules_of(served.namespace)) as process:
        await process.until_ready(within=60)
        yield process
    await remove_account(served)
    assert "Traceback" not in process.log, process.log
    assert not re.search("may not (?!be )", process.log), process.log  # as it names a permission that is missing


@pytest.fixture(scope="module")
def registry(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with TLS and an account."""
    control_plane = environment.control_plane
    running = Registry(tmp_path_factory.mktemp("registry"), control_plane.authority, control_plane.authority_key)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache directory that nothing has written to for a while."""
    root = fill(tmp_path / "filled")
    for path in root.rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100.5))
    return root


@pytest.fixture
def programs(registry: Registry, tmp_path: Path) -> Programs:
    """The programs that publish to that registry and fetch from it."""
    return Programs(registry, tmp_path)
