"""The account that the chart gives to the operator, in a namespace of a test: what it may do there, and nothing more."""

from pathlib import Path
from typing import Any

from support import helm
from support.cluster import Cluster, Manifest

ACCOUNT = "vllm-operator"
ROLE_GROUP = "rbac.authorization.k8s.io"


def _values(namespace: str, **values: Any) -> Manifest:
    settings = {"rules_config_map": rules_of(namespace)}
    return {"namespaces": [namespace], "settings": settings, "crds": {"install": False}, "rbac": {"aggregate": False}, **values}


def rules_of(namespace: str) -> str:
    """The ConfigMap that the account may read."""
    return f"{namespace}/rules"


async def make_account(cluster: Cluster, path: Path, **values: Any) -> Path:
    """Create the account with the chart's roles for the test's namespace and these values; write a kubeconfig that acts as it."""
    # the release lies in the namespace itself: its cluster-wide objects are named after it
    for manifest in helm.template(_values(cluster.namespace, **values), namespace=cluster.namespace):
        if manifest["kind"] == "ServiceAccount" or manifest["apiVersion"].startswith(ROLE_GROUP):
            await cluster.apply(manifest)
    return await cluster.act_as(ACCOUNT, path)


async def add_account(cluster: Cluster, name: str, path: Path) -> Path:
    """Create another account with the same rights, so that the audit log tells who has written; write its kubeconfig."""
    kubeconfig = await cluster.act_as(name, path)
    made, added = ({"kind": "ServiceAccount", "name": each, "namespace": cluster.namespace} for each in (ACCOUNT, name))
    for kind, place in (("RoleBinding", f"/namespaces/{cluster.namespace}"), ("ClusterRoleBinding", "")):
        for binding in (await cluster.request("GET", f"/apis/{ROLE_GROUP}/v1{place}/{kind.lower()}s"))["items"]:
            if made in (binding.get("subjects") or ()):
                await cluster.patch(kind, binding["metadata"]["name"], {"subjects": [*binding["subjects"], added]})
    return kubeconfig


async def remove_account(cluster: Cluster) -> None:
    """Remove what does not go with the namespace."""
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        await cluster.delete(kind, f"{cluster.namespace}-{helm.RELEASE}")


def granted(namespace: str, **values: Any) -> set[tuple[str, str, str]]:
    """What the account may do with these values: (group, resource, verb)."""
    manifests: list[Manifest] = helm.template(_values(namespace, **values), namespace=namespace)
    return helm.rules(manifests, "Role") | helm.rules(manifests, "ClusterRole")
