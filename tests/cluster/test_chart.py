"""The chart on a real API server, by the real helm: checked, installed, upgraded, uninstalled. On a control plane of its own."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import helm
from support.chart_ways import WAYS
from support.cluster import Cluster, Manifest, RefusedError
from support.gpus import machines_of_the_examples
from support.operator_process import OperatorProcess, has, llama
from support.own_knowledge import EXPERTS_RULE, LICENCE_SIGNATURE
from support.verdicts import has_plan, plan_verdict
from testenv import Environment
from testenv.binaries import find_binary, kubernetes_minor

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

NAME = helm.RELEASE
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}
MONITORING_KINDS = Path(__file__).parent / "data" / "monitoring.yaml"
EXAMPLES = sorted((helm.ROOT / "examples").glob("*.yaml"))
CRD = "vllmdeployments.vllm-operator.dev"
IMAGES_SINCE = 35
"""The minor version of Kubernetes that mounts an image as a volume by default."""
CRDS = (CRD, "vllmpresets.vllm-operator.dev", "clustervllmpresets.vllm-operator.dev")


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """A control plane that no other test has installed the CRD on."""
    with Environment() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(running.kubeconfig))
        running.add_nodes("cpu")
        running.create_nodes(machines_of_the_examples())
        yield running


class Release:
    """The chart as a release in the namespace of the test."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder

    async def run(self, *arguments: str | Path) -> str:
        options = ("--namespace", self._cluster.namespace)
        return await asyncio.to_thread(helm.run, *arguments, *options, kubeconfig=self._cluster.kubeconfig)

    async def install(self, values: dict[str, Any] | None = None, *, chart: Path = helm.CHART) -> None:
        """Install or upgrade, and wait until the Pod is ready."""
        # the Pods of this control plane are simulated: any image will do
        await self.run("upgrade", "--install", NAME, chart, "--values", self.values(values or {}), "--wait", "--timeout", "60s")

    async def uninstall(self) -> None:
        await self.run("uninstall", NAME, "--wait")

    def values(self, values: dict[str, Any]) -> Path:
        path = self._folder / "values.yaml"
        path.write_text(yaml.safe_dump(values).replace("NAMESPACE", self._cluster.namespace))
        return path


@pytest.fixture
async def release(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Release]:
    await cluster.patch("Namespace", cluster.namespace, {"metadata": {"labels": RESTRICTED}})
    yield Release(cluster, tmp_path)
    # they belong to this release, and outlive it
    for name in CRDS:
        with contextlib.suppress(RefusedError):
            await cluster.delete("CustomResourceDefinition", name)
            await cluster.wait_until_gone("CustomResourceDefinition", name)


async def test_the_chart_has_no_faults_that_helm_finds(release: Release) -> None:
    assert "0 chart(s) failed" in await release.run("lint", helm.CHART, "--strict")


@pytest.fixture
async def monitoring(cluster: Cluster) -> None:
    """The kinds of the Prometheus operator, as it installs them. They stay: what a server knows is told with delay."""
    for definition in yaml.safe_load_all(MONITORING_KINDS.read_text("utf-8")):
        await cluster.apply(definition)
        await cluster.wait_for("CustomResourceDefinition", definition["metadata"]["name"], established)


@pytest.fixture
async def named_namespaces(cluster: Cluster) -> None:
    for name in ("team-a", "team-b", "platform"):
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("monitoring", "named_namespaces")
async def test_the_api_server_takes_every_manifest_as_it_is(release: Release, cluster: Cluster, way: str) -> None:
    manifests = helm.template(WAYS[way].values, namespace=cluster.namespace, kinds=WAYS[way].kinds)
    out = await kubectl(
        cluster, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=yaml.safe_dump_all(manifests)
    )
    assert out.count("serverside-applied") == len(manifests)


async def test_from_install_over_upgrade_to_uninstall(release: Release, cluster: Cluster, tmp_path: Path) -> None:
    await release.install(chart=earlier_chart(tmp_path))
    before = await cluster.get("CustomResourceDefinition", CRD)
    assert before["spec"]["versions"][0]["additionalPrinterColumns"][0]["name"] == "Modell"
    await cluster.create(llama(cluster.namespace, replicas=0))

    await release.install()
    after = await cluster.get("CustomResourceDefinition", CRD)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["versions"][0]["additionalPrinterColumns"][0]["name"] == "Model"
    await cluster.wait_for("Deployment", NAME, lambda it: it["status"]["replicas"] == it["status"].get("updatedReplicas") == 2)
    pods = [it for it in await cluster.list_all("Pod") if not it["metadata"].get("deletionTimestamp")]
    assert [pod["metadata"]["labels"]["helm.sh/chart"] for pod in pods] == [f"vllm-operator-{version()}"] * 2

    await release.uninstall()
    assert not await cluster.exists("Deployment", NAME)
    assert not await cluster.exists("ServiceAccount", NAME)
    assert await cluster.exists("VLLMDeployment", "llama")

    # and once more, over what was left
    await release.install()
    assert await cluster.exists("VLLMDeployment", "llama")
    await release.uninstall()


async def test_two_pods_run_on_two_nodes_and_a_drain_takes_one_at_a_time(release: Release, cluster: Cluster) -> None:
    await release.install()
    pods = await cluster.list_all("Pod")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2
    budget = await cluster.wait_for("PodDisruptionBudget", NAME, lambda it: it.get("status", {}).get("currentHealthy") == 2)
    status = budget["status"]
    assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == (2, 1, 1)
    await release.uninstall()


async def test_uninstalling_stops_no_engine_and_loses_no_cache(release: Release, cluster: Cluster, tmp_path: Path) -> None:
    await release.install({"namespaces": ["NAMESPACE"]})
    kubeconfig = await cluster.act_as(NAME, tmp_path / "kubeconfig")
    # engines need more than `restricted` allows: the image runs as root unless told otherwise
    await cluster.patch("Namespace", cluster.namespace, {"metadata": {"labels": dict.fromkeys(RESTRICTED)}})
    async with OperatorProcess(kubeconfig, cluster.namespace) as operator:
        await operator.until_ready()
        await cluster.create(llama(cluster.namespace))
        # an API server that enforces the permissions of owner references knows a new kind after some seconds
        await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)
    pods = await engines(cluster)
    await release.uninstall()
    assert await engines(cluster) == pods
    assert await cluster.exists("PersistentVolumeClaim", "llama-cache")
    assert has("Ready", "True")(await cluster.get("VLLMDeployment", "llama"))


async def test_every_example_is_served_through_the_installed_chart(release: Release, cluster: Cluster, tmp_path: Path) -> None:
    await release.install()
    kubeconfig = await cluster.act_as(NAME, tmp_path / "kubeconfig")
    await cluster.patch("Namespace", cluster.namespace, {"metadata": {"labels": dict.fromkeys(RESTRICTED)}})
    async with OperatorProcess(kubeconfig, cluster.namespace) as operator:
        await operator.until_ready()
        await kubectl(cluster, "apply", "--namespace", cluster.namespace, "-f", str(helm.ROOT / "examples"))
        names = [it["metadata"]["name"] for it in await cluster.list_all("VLLMDeployment")]
        assert len(names) >= len(EXAMPLES)
        for name in names:
            resource = await cluster.wait_for("VLLMDeployment", name, looked_at)
            assert plan_verdict(resource).reason not in ("InvalidSpec", "VersionUnknown", "Unsupported", "ArtifactNotAllowed"), name
            if "uuids" in str(resource["spec"].get("accelerator", {})):
                # no node here publishes devices
                assert "Install the NVIDIA DRA driver" in plan_verdict(resource).message
            elif resource["spec"].get("parallelism", {}).get("nodes"):
                await cluster.wait_for("VLLMDeployment", name, has("Ready", "False", "KindNotInstalled"))  # see test_groups.py
            elif name == "from-image" and kubernetes_minor() < IMAGES_SINCE:
                # an API server that does not know such a volume refuses it, one with the feature gate off drops it
                await cluster.wait_for(
                    "VLLMDeployment",
                    name,
                    lambda it: has("Ready", "False", "ApplyFailed")(it) or "The API server did not keep" in plan_verdict(it).message,
                    within=90,
                )
            else:
                # an API server that enforces the permissions of owner references knows a new kind after some seconds
                await cluster.wait_for("VLLMDeployment", name, has_plan("True"), within=90)
                await cluster.wait_for("Deployment", name, bool, within=90)
        assert "may not" not in operator.log, operator.log
        await kubectl(cluster, "delete", "--namespace", cluster.namespace, "-f", str(helm.ROOT / "examples"))
        for name in names:
            # the garbage collector looks for new kinds every 30 s, and this CRD has just been installed
            await cluster.wait_until_gone("Deployment", name, within=60)
    # caches outlive what filled them
    assert await cluster.list_all("PersistentVolumeClaim")
    await release.uninstall()


async def test_rules_among_the_values_are_read_and_broken_ones_are_said(release: Release, cluster: Cluster, tmp_path: Path) -> None:
    await release.install({"namespaces": ["NAMESPACE"], "extraRules": [EXPERTS_RULE, {"id": "broken"}]})
    kubeconfig = await cluster.act_as(NAME, tmp_path / "kubeconfig")
    async with OperatorProcess(kubeconfig, cluster.namespace, rules_config_map=f"{cluster.namespace}/{NAME}-rules") as operator:
        await operator.until_says("rules of the ConfigMap in use: 1")
        await operator.until_ready()
    said = [event for event in await cluster.list_all("Event") if event["involvedObject"]["kind"] == "ConfigMap"]
    assert ["broken" in event["message"] for event in said] == [True], said
    await release.uninstall()


async def test_secrets_and_config_maps_are_read_where_a_value_says_so_and_no_others(release: Release, cluster: Cluster) -> None:
    account = f"system:serviceaccount:{cluster.namespace}:{NAME}"

    async def reads(resource: str, name: str) -> bool:
        return await is_allowed(cluster, account, {"verb": "get", "resource": resource, "name": name})

    await release.install({"namespaces": ["NAMESPACE"]})
    assert not await reads("secrets", "hub")
    assert not await reads("configmaps", f"{NAME}-rules")
    await release.install({"namespaces": ["NAMESPACE"], "rbac": {"readTokens": True}, "extraSignatures": [LICENCE_SIGNATURE]})
    await until(lambda: reads("secrets", "hub"))
    await until(lambda: reads("configmaps", f"{NAME}-signatures"))
    assert not await reads("configmaps", "another")
    assert not await is_allowed(cluster, account, {"verb": "list", "resource": "secrets"})
    assert not await is_allowed(cluster, account, {"verb": "get", "resource": "secrets", "namespace": "kube-system"})
    await release.uninstall()


async def test_who_may_edit_the_namespace_may_serve_models_and_who_may_view_may_look(release: Release, cluster: Cluster) -> None:
    await release.install()
    allowed = {
        role: {verb for verb in ("get", "watch", "create", "delete") if await may(cluster, role, verb, "vllmdeployments")}
        for role in ("admin", "edit", "view")
    }
    changes = {"get", "watch", "create", "delete"}
    assert allowed == {"admin": changes, "edit": changes, "view": {"get", "watch"}}
    assert await may(cluster, "edit", "patch", "vllmdeployments", "scale")
    assert not await may(cluster, "view", "patch", "vllmdeployments", "scale")
    # what the operator says is not for users to write
    assert not await may(cluster, "admin", "patch", "vllmdeployments", "status")
    await release.uninstall()


async def kubectl(cluster: Cluster, *arguments: str, given: str = "") -> str:
    """What kubectl prints. It must not complain: a warning is what Pod Security says of a template, or an unknown field."""
    command = [str(find_binary("kubectl")), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, stderr=-1)
    out, errors = await process.communicate(given.encode())
    # on a busy machine it also says that it limits its own requests
    complaints = [line for line in errors.decode().splitlines() if "client-side throttling" not in line]
    assert (process.returncode, complaints) == (0, [])
    return out.decode()


def looked_at(resource: Manifest) -> bool:
    return bool(resource.get("status", {}).get("observedGeneration") == resource["metadata"]["generation"])


def established(definition: Manifest) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(it["type"] == "Established" and it["status"] == "True" for it in conditions)


async def engines(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["uid"] for pod in await cluster.list_all("Pod", selector="app.kubernetes.io/managed-by=vllm-operator")]


async def may(cluster: Cluster, role: str, verb: str, resource: str, subresource: str = "") -> bool:
    """Whether somebody with a role of Kubernetes in the namespace may do something there."""
    binding: Manifest = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": role}}
    binding["metadata"]["namespace"] = cluster.namespace
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    binding["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{cluster.namespace}-{role}"}]
    await cluster.apply(binding)
    attributes = {"group": "vllm-operator.dev", "verb": verb, "resource": resource, "subresource": subresource}
    # a controller adds the chart's roles to those of Kubernetes, and the authorizer learns of it by a watch
    for _ in range(10):
        if await is_allowed(cluster, f"{cluster.namespace}-{role}", attributes):
            return True
        await asyncio.sleep(0.1)
    return False


async def is_allowed(cluster: Cluster, user: str, attributes: dict[str, str]) -> bool:
    """Whether the API server would let somebody do something now, in the namespace of the test unless it names another one."""
    spec = {"user": user, "resourceAttributes": {"namespace": cluster.namespace, **attributes}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review)
    return bool(answer["status"]["allowed"])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds: the authorizer learns of a role by a watch."""
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110 - only the API server knows
            await asyncio.sleep(0.1)


def version() -> str:
    return str(yaml.safe_load((helm.CHART / "Chart.yaml").read_text("utf-8"))["version"])


def earlier_chart(folder: Path) -> Path:
    """The chart as it might have been before: an older version, a CRD with another column."""
    chart = folder / "earlier"
    shutil.copytree(helm.CHART, chart)
    for path, now, then in (
        (chart / "Chart.yaml", f"ersion: {version()}", "ersion: 0.0.9"),
        (chart / "files" / "vllmdeployments.yaml", "- name: Model\n", "- name: Modell\n"),
    ):
        text = path.read_text("utf-8")
        assert now in text
        path.write_text(text.replace(now, then, 1 if path.suffix == ".yaml" and path.parent.name == "files" else -1), "utf-8")
    return chart
