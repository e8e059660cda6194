"""What the tests on simulated nodes and those on a real one have in common: one cluster for all, a namespace for each."""

import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from support.cluster import Cluster, RefusedError
from testenv.binaries import BuildError, ensure_binaries
from testenv.controlplane import BaseEnvironment
from testenv.toolchain import ToolchainError


def needs_environment(session: pytest.Session, folder: Path) -> bool:
    """Whether a test of a folder is to run that needs the environment."""
    needed = any(item.path.is_relative_to(folder) and "environment" in getattr(item, "fixturenames", ()) for item in session.items)
    return needed and not session.config.option.collectonly


def build_before_tests(session: pytest.Session, folder: Path, names: Sequence[str]) -> str:
    """Build the binaries that the tests of a folder need, if any of them is to run; return why that cannot be done.

    It takes minutes the first time, shows progress, and is no test's time.
    """
    if not needs_environment(session, folder):
        return ""
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            ensure_binaries(names)
    except (BuildError, ToolchainError) as error:
        return str(error)
    return ""


def require_node(missing: str, broken: str) -> None:
    """Skip a test where there cannot be a node; fail it where there could be one and its parts were not built."""
    if missing:
        pytest.skip(f"There is no node to test on: {missing}")
    if broken:
        pytest.fail(f"The node could not be built: {broken}", pytrace=False)


@contextmanager
def only_cluster(environment: BaseEnvironment) -> Iterator[None]:
    """Whatever looks for a cluster by itself finds this one, never one of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(environment.kubeconfig))
        for name in [name for name in os.environ if name.startswith("KUBERNETES_SERVICE_")]:
            patch.delenv(name)
        yield


@asynccontextmanager
async def own_namespace(environment: BaseEnvironment, *, grace_seconds: int = 0) -> AsyncIterator[Cluster]:
    """A namespace with a client, removed afterwards. `grace_seconds`: how long its Pods may take to end."""
    namespace = f"test-{secrets.token_hex(4)}"
    async with aiohttp.ClientSession() as session:
        cluster = Cluster(environment, session, namespace)
        await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        await cluster.wait_for("ServiceAccount", "default", bool)
        yield cluster
        await cluster.delete("Namespace", namespace)
        await cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", params={"gracePeriodSeconds": str(grace_seconds)})
        for pod in await cluster.list_all("Pod"):
            if pod["metadata"].get("finalizers"):  # of a test that failed; they would hold GPUs on nodes of the same name in the next test
                with suppress(RefusedError):
                    await cluster.patch("Pod", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
