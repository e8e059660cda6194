"""The operator in its Pods, as the chart installs it."""

from support import helm
from support.cluster import Cluster, is_ready
from support.engines import eventually

OPERATOR = "app.kubernetes.io/name=vllm-operator"


async def leader(cluster: Cluster) -> str:
    """The name of the Pod that leads."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{helm.NAMESPACE}/leases/{helm.RELEASE}"
    return str((await cluster.request("GET", lease))["spec"]["holderIdentity"]).partition("_")[0]


async def kill_operator(cluster: Cluster) -> None:
    """Delete the operator's Pod that leads, without grace; return when the other one leads."""
    killed = await leader(cluster)
    path = f"/api/v1/namespaces/{helm.NAMESPACE}/pods/{killed}"
    await cluster.request("DELETE", path, params={"gracePeriodSeconds": "0"})

    async def is_back() -> bool:
        leads, pods = await leader(cluster), await cluster.list_all("Pod", namespace=helm.NAMESPACE, selector=OPERATOR)
        return leads != killed and any(it["metadata"]["name"] == leads and is_ready(it) for it in pods)

    await eventually(is_back, within=90)
