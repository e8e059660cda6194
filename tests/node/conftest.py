"""Fixtures of the tests on a real node: the operator's image installed by the chart, an engine that needs no GPU."""

import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from nodeenv import NodeEnvironment, missing_requirements
from support import helm
from support.cluster import Cluster
from vllm_operator import __version__

ROOT = Path(__file__).parent.parent.parent
OPERATOR_IMAGE = f"ghcr.io/vllm-operator/vllm-operator:{__version__}"
ENGINE_IMAGE = "docker.io/library/vllm-engine:test"
SYSTEM = "vllm-system"
RECORDINGS = {
    "cold": "llama-bf16-cold.log",
    "warm": "llama-bf16-warm.log",
    "damaged-cache": "poison-triton-cubin-empty.log",
    "no-compiler": "no-c-compiler.log",
}


@pytest.fixture(scope="session")
def environment() -> Iterator[NodeEnvironment]:
    """The node with both images, shared by all tests of the session."""
    if reason := missing_requirements():
        pytest.skip(f"There is no node to test on: {reason}.")
    with NodeEnvironment() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(running.kubeconfig))
        running.add_volumes(20)
        running.images.build_operator(OPERATOR_IMAGE)
        running.images.build(ENGINE_IMAGE, engine_folder(running.folder / "engine"))
        for image in (OPERATOR_IMAGE, ENGINE_IMAGE):
            running.load_image(image)
        install(running)
        yield running


def engine_folder(folder: Path) -> Path:
    """What the engine's image is built from."""
    shutil.copytree(ROOT / "hack" / "engine", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "testenv").mkdir()
    (folder / "testenv" / "__init__.py").touch()
    for module in ("replay", "cri"):
        shutil.copy(ROOT / "hack" / "testenv" / f"{module}.py", folder / "testenv")
    (folder / "recordings").mkdir()
    for name, file in RECORDINGS.items():
        shutil.copy(ROOT / "tests" / "corpus" / "h200" / file, folder / "recordings" / f"{name}.log")
    return folder


def install(environment: NodeEnvironment) -> None:
    """Install the packaged chart as a user would, in a namespace that demands the most of Pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    environment.control_plane.client().apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM, "labels": labels}})
    helm.run("package", helm.CHART, "--destination", environment.folder)
    package = environment.folder / f"vllm-operator-{__version__}.tgz"
    helm.run(*("install", helm.RELEASE, package, "--namespace", SYSTEM, "--wait", "--timeout", "90s"), kubeconfig=environment.kubeconfig)


@pytest.fixture
async def cluster(environment: NodeEnvironment) -> AsyncIterator[Cluster]:
    """A namespace of the test's own, removed afterwards, with a client."""
    namespace = f"test-{secrets.token_hex(4)}"
    async with aiohttp.ClientSession() as session:
        client = Cluster(environment, session, namespace)
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        await client.wait_for("ServiceAccount", "default", bool)
        yield client
        await client.delete("Namespace", namespace)
        await client.wait_until_gone("Namespace", namespace, within=60)
