"""What a release has, used as users use it: install.yaml by kubectl on a cluster without the operator, the chart from a registry."""

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import release
from support import helm
from support.cluster import Cluster, Manifest
from support.operator_process import OperatorProcess, has, llama
from support.registry import PASSWORD, USER, Registry
from testenv import Environment
from testenv.binaries import find_binary
from vllm_operator import __version__

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

SYSTEM = release.NAMESPACE
NAME = release.NAME
CRD = "vllmdeployments.vllm-operator.dev"


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    """A control plane that nothing is installed on, with a node for the operator and one with GPUs."""
    with Environment() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(running.kubeconfig))
        running.add_nodes("cpu", "h100-sxm")
        yield running


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("release") / "install.yaml"
    path.write_text(release.install_manifest(), "utf-8")
    return path


async def kubectl(cluster: Cluster, *arguments: str | Path) -> str:
    """What kubectl prints. It must not complain."""
    command = [str(find_binary("kubectl")), "--kubeconfig", str(cluster.kubeconfig), *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, complaints = await process.communicate()
    assert (process.returncode, complaints.decode()) == (0, "")
    return out.decode()


async def test_one_file_installs_the_operator_which_then_serves_a_model(cluster: Cluster, manifest: Path, tmp_path: Path) -> None:
    await kubectl(cluster, "apply", "--server-side", "--validate=strict", "-f", manifest)
    await kubectl(cluster, "rollout", "status", f"deployment/{NAME}", "--namespace", SYSTEM, "--timeout=60s")
    await kubectl(cluster, "wait", f"crd/{CRD}", "--for=condition=Established", "--timeout=60s")
    system = cluster_in(cluster, SYSTEM)
    kubeconfig = await system.act_as(NAME, tmp_path / "kubeconfig")
    # its Pod is simulated, so a process does its work, with the account of the file
    async with OperatorProcess(kubeconfig, lease=f"{SYSTEM}/{NAME}") as operator:
        await operator.until_ready()
        await cluster.create(llama(cluster.namespace))
        await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)
        await operator.stop()
    assert "may not" not in operator.log, operator.log

    # the same file once more changes nothing
    before = await versions(cluster, manifest)
    await kubectl(cluster, "apply", "--server-side", "-f", manifest)
    assert await versions(cluster, manifest) == before

    # from the file to the chart
    take_over = ("--take-ownership", "--force-conflicts", "--wait", "--timeout", "60s", "--namespace", SYSTEM)
    await asyncio.to_thread(helm.run, "upgrade", "--install", NAME, helm.CHART, *take_over, kubeconfig=cluster.kubeconfig)
    assert (await system.get("Deployment", NAME))["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert has("Ready", "True")(await cluster.get("VLLMDeployment", "llama"))

    # as the docs say: what runs stays
    await kubectl(cluster, "delete", "namespace", SYSTEM)
    selector = f"--selector=app.kubernetes.io/instance={NAME}"
    await kubectl(cluster, "delete", "clusterroles,clusterrolebindings", selector)
    assert await cluster.exists("VLLMDeployment", "llama")
    assert await cluster.exists("Deployment", "llama")


def cluster_in(cluster: Cluster, namespace: str) -> Cluster:
    return Cluster(cluster.environment, cluster._session, namespace)


async def versions(cluster: Cluster, manifest: Path) -> dict[str, str]:
    """The generation of everything in the file; the status of a Deployment may still change."""
    listed: Manifest = yaml.safe_load(await kubectl(cluster, "get", "-f", manifest, "-o", "yaml"))
    return {
        f"{it['kind']}/{it['metadata']['name']}": str((it["metadata"].get("generation"), it["metadata"]["uid"])) for it in listed["items"]
    }


@pytest.fixture(scope="module")
def registry(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    control_plane = environment.control_plane
    running = Registry(tmp_path_factory.mktemp("registry"), control_plane.authority, control_plane.authority_key)
    running.start()
    yield running
    running.stop()


def test_the_chart_is_pushed_and_pulled_as_the_workflow_does_it(environment: Environment, registry: Registry, tmp_path: Path) -> None:
    helm_is_logged_in = tmp_path / "config.json"
    authority = environment.control_plane.authority
    command = [str(find_binary("helm")), "registry", "login", registry.host, "--username", USER, "--password-stdin"]
    options = ["--registry-config", str(helm_is_logged_in)]
    subprocess.run([*command, "--ca-file", str(authority), *options], input=PASSWORD, text=True, check=True, capture_output=True)
    helm.run("package", helm.CHART, "--destination", tmp_path)
    pushing = [str(find_binary("helm")), "push", f"{tmp_path}/{NAME}-{__version__}.tgz", f"oci://{registry.host}/charts"]
    pushed = subprocess.run([*pushing, "--ca-file", str(authority), *options], capture_output=True, text=True, check=True)
    workflow = (helm.ROOT / ".github" / "workflows" / "release.yaml").read_text("utf-8")
    [expression] = re.findall(r"sed -n '(.+?)' push\.log", workflow)
    both = pushed.stdout + pushed.stderr
    digest = subprocess.run(["sed", "-n", expression], input=both, capture_output=True, text=True, check=True).stdout.strip()
    assert release.DIGEST.fullmatch(digest), both
    reference = f"oci://{registry.host}/charts/{NAME}@{digest}"
    rendered = helm.run("template", NAME, reference, "--ca-file", authority, *options)
    assert "kind: CustomResourceDefinition" in rendered
