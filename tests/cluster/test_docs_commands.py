"""Every command of the docs, run as it stands there, page by page, on a control plane of its own."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import pytest
import yaml

from support import helm
from support.cluster import Cluster, RefusedError, Simulator, is_ready, simulated
from support.docs_commands import GUIDES, ROOT, WALK, Command, to_run
from support.operator_process import OperatorProcess, has, llama
from support.wheels import write_wheel
from testenv import Environment
from testenv.binaries import find_binary

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

CORPUS = ROOT / "tests" / "corpus" / "h200"
IMPORTED = {
    "deployment-serve": "deployment",
    "kserve-runtime": "kserve",
    "production-stack": "values",
    "llmkube": "llmkube",
}
"""Files of other tools, by the names that the pages give them."""
REFUSED = """kubectl patch vllm qwen --type merge -p '{"spec":{"model":{"uri":"qwen"}}}'"""
"""The page says that it is."""
DIFFERENCE = " plan", "--diff"
CHECK = "kubectl vllm check"
"""Ends with 1 where something is to do."""
OF_A_CRASH = "vllm-operator diagnose --exit-code"
"""Ends with 3 where the log contains a crash, as that of `with_a_crashed_pod` does."""


def documented_statuses(text: str) -> set[int]:
    """The exit statuses that a command may end with, as its page says."""
    if text == REFUSED:
        return {1}
    if OF_A_CRASH in text:
        return {3}
    return {0, 1} if all(part in text for part in DIFFERENCE) or CHECK in text else {0}


@pytest.fixture
def environment() -> Iterator[Environment]:
    """A control plane that nothing is installed on, with a node that has no GPU."""
    with Environment() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(running.kubeconfig))
        running.add_nodes("cpu")
        yield running


class Reader:
    """Somebody who follows the docs in a checkout, with kubectl, helm and vllm-operator on the PATH."""

    def __init__(self, environment: Environment, session: aiohttp.ClientSession, folder: Path) -> None:
        self.environment = environment
        self.session = session
        self.cluster = self.namespace("default")
        self.folder = folder
        self.failures: list[str] = []
        for name in ("charts", "examples", "crds"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "examples" / "minimal.yaml", folder / "model.yaml")
        shutil.copy(CORPUS / "poison-triton-cubin-empty.log", folder / "engine.log")
        for rank in (0, 1):
            shutil.copy(CORPUS.parent / "nodes" / f"h100-follower-model-missing-rank{rank}.log", folder / f"r{rank}.log")
        for source, name in IMPORTED.items():
            shutil.copy(ROOT / "tests" / "golden" / "imports" / f"{source}.yaml", folder / f"{name}.yaml")
        write_wheel(folder / "vllm-0.34.0rc1.dev12-cp38-abi3-manylinux_2_31_x86_64.whl", "0.34.0rc1.dev12+gabc")
        helm.run("package", helm.CHART, "--destination", folder / "dist")
        programs = folder / "bin"
        programs.mkdir()
        for name in ("kubectl", "helm"):
            (programs / name).symlink_to(str(find_binary(name)))
        installed = folder / ".venv" / "bin"
        installed.mkdir(parents=True)
        for name, start in (("vllm-operator", "main"), ("kubectl-vllm", "kubectl_plugin")):
            program = installed / name
            program.write_text(
                f"#!{sys.executable}\nimport sys\nfrom vllm_operator.__main__ import {start}\nsys.exit({start}())\n", "utf-8"
            )
            program.chmod(0o755)
        self._environment = {
            "PATH": f"{programs}:{installed}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(sys.path),
            "HOME": str(folder),
            "KUBECONFIG": str(environment.kubeconfig),
        }

    def namespace(self, name: str) -> Cluster:
        return Cluster(self.environment, self.session, name)

    async def run(self, text: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", text),
            env=self._environment,
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode("utf-8", "replace")

    async def follow(self, command: Command) -> None:
        """Run a command, and note it if it does not do what the page says."""
        if command.text.startswith("helm install"):
            # the page shows several ways; a reader takes one
            await self.run("helm uninstall vllm-operator --namespace vllm-system --ignore-not-found --wait")
        status, out = await self.run(command.text)
        if status not in documented_statuses(command.text):
            self.failures.append(f"{command} ended with {status}:\n{out}")


@pytest.fixture
async def reader(environment: Environment, tmp_path: Path) -> AsyncIterator[Reader]:
    async with aiohttp.ClientSession() as session:
        yield Reader(environment, session, tmp_path)


async def on_kind(reader: Reader) -> None:
    await reader.run("helm install vllm-operator charts/vllm-operator --namespace vllm-system --create-namespace --wait")


async def with_gpus(reader: Reader) -> None:
    await reader.run("kubectl label nodes --all vllm-operator.dev/gpu-architecture- nvidia.com/gpu.product-")
    none = '{"status":{"capacity":{"nvidia.com/gpu":null},"allocatable":{"nvidia.com/gpu":null}}}'
    await reader.run(f"""kubectl patch "$(kubectl get nodes -o name)" --subresource status --type merge -p '{none}'""")
    reader.environment.add_nodes("h100-sxm", "h200")


async def with_namespaces(reader: Reader) -> None:
    await reader.run("kubectl create namespace team-a && kubectl create namespace team-b")


async def with_models(reader: Reader) -> None:
    """Served models of the names that the pages use, in the namespaces that they use."""
    await reader.run("helm upgrade --install vllm-operator charts/vllm-operator --namespace vllm-system --wait")
    for namespace, name in (("models", "deepseek"), ("models", "my-model"), ("models", "llama"), ("default", "llama")):
        cluster = reader.namespace(namespace)
        await cluster.create(llama(namespace, name))
        await cluster.wait_for("VLLMDeployment", name, has("Ready", "True"))
    await reader.run("kubectl get nodes -o yaml > nodes.yaml")


async def with_a_deployment(reader: Reader) -> None:
    """An engine that nobody of ours deployed."""
    await reader.run("kubectl apply -f deployment.yaml")


async def with_what_guides_begin_with(reader: Reader) -> None:
    """A cluster with GPUs, teams and served models, and an engine of somebody else with its Service."""
    await with_gpus(reader)
    await with_namespaces(reader)
    await reader.run("kubectl create namespace models")
    await with_models(reader)
    await reader.run("cp deployment.yaml chat.yaml && kubectl apply --namespace models -f chat.yaml")


async def make_crashed_pod(cluster: Cluster, name: str) -> None:
    """Make a Pod as another tool would: its engine has crashed once and runs again."""
    sim = Simulator(cluster)
    # on the Pod itself: what a namespace says may be known a moment after the Pod is there
    script = simulated(pull="0", path="crash", crash_after="0.5", crash_times="1", load="0")
    container = {"name": "engine", "image": "vllm/vllm-openai:v0.20.1"}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    metadata = {"name": name, "namespace": cluster.namespace, "annotations": script}
    await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    log = sim.log(name, container="engine")
    log.write((CORPUS / "gpu-util-too-low.log").read_bytes())
    log.exit()
    sim.log(name, container="engine", run=1).write(b"INFO 11-21 12:00:00 [api_server.py:1] vLLM API server version 0.20.1\n")
    await cluster.wait_for("Pod", name, lambda pod: "'restartCount': 1" in str(pod) and is_ready(pod))


async def with_observed_models(reader: Reader) -> None:
    """Served models, and a Pod of KServe."""
    await with_models(reader)
    await reader.run("kubectl create namespace kserve")
    await make_crashed_pod(reader.namespace("kserve"), "llama3-predictor-7d4-x")


async def with_a_crashed_pod(reader: Reader) -> None:
    """A crashed Pod `my-pod` in both namespaces, and a log of the operator."""
    for namespace in ("default", "models"):
        await make_crashed_pod(reader.namespace(namespace), "my-pod")
    system = reader.namespace("vllm-system")
    for pod in await system.list_all("Pod"):
        Simulator(system).log(pod["metadata"]["name"], container="operator").write(b"serving\n")


PREPARATIONS: Mapping[str, Callable[[Reader], Awaitable[None]]] = {
    "docs/quickstart-kind.md": on_kind,
    "docs/install.md": with_namespaces,
    "docs/quickstart-gpu.md": with_gpus,
    "docs/operations.md": with_observed_models,
    "docs/importing.md": with_a_deployment,
    "docs/guides/migrating.md": with_what_guides_begin_with,
    "docs/troubleshooting.md": with_a_crashed_pod,
}
"""What has to be there before a page, besides what the pages before it have left."""


@pytest.mark.timeout(500)
async def test_every_command_does_what_its_page_says(reader: Reader) -> None:
    await follow(reader, WALK)
    backup = yaml.safe_load((reader.folder / "vllmdeployments.yaml").read_text("utf-8"))
    assert {it["metadata"]["name"] for it in backup["items"]} == {"deepseek", "my-model", "llama"}
    # the one who was refused learned why
    with pytest.raises(RefusedError, match="hf://"):
        await reader.cluster.create(llama("default", "wrong", model={"uri": "llama"}))


@pytest.mark.timeout(500)
async def test_every_command_does_what_its_guide_says(reader: Reader) -> None:
    await follow(reader, GUIDES)
    assert {it["metadata"]["name"] for it in await reader.namespace("models").list_all("VLLMDeployment")} >= {"chat-next", "llama"}


async def follow(reader: Reader, pages: Sequence[str]) -> None:
    """Run the commands of pages, each page after its preparation."""
    # its Lease is where the chart's operator would have it, whose Pod is simulated here
    await reader.run("kubectl create namespace vllm-system")
    async with OperatorProcess(reader.environment.kubeconfig, lease="vllm-system/vllm-operator"):
        for page in pages:
            if prepare := PREPARATIONS.get(page):
                await prepare(reader)
            for command in to_run(ROOT / page):
                await reader.follow(command)
    assert reader.failures == [], "\n".join(reader.failures)
