"""Permissions that only features of the operator need: with those of its preconditions, all that the chart grants."""

from vllm_operator.controller.preconditions import permissions
from vllm_operator.kube import client as kube

OPTIONAL = (
    # API servers that check the permission to set owners, such as those of OpenShift, demand it
    *permissions("update", kube.VLLM_DEPLOYMENT, subresource="finalizers"),
    *permissions("delete", kube.DEPLOYMENT, kube.LEADER_WORKER_SET, kube.SERVICE, kube.REVISION, kube.POD),
    *permissions("get create patch", kube.LEADER_WORKER_SET),
    *permissions("patch", kube.REVISION),
    *permissions("get list patch", kube.EVENT),
    *permissions("list", kube.RESOURCE_SLICE, kube.NODE_POOL),
    *permissions("get create delete", kube.JOB),
    *permissions("get list create patch delete", kube.CLAIM_TEMPLATE, kube.NETWORK_POLICY, kube.DISRUPTION_BUDGET, kube.AUTOSCALER),
)
"""Without one of these, a feature does not work (docs/security.md). Not checked: a request shows it."""
ALL_NAMESPACES = permissions("list", kube.RESOURCE_CLAIM)
"""With these, a cluster-wide operator counts free devices for dynamic resource allocation. Not checked."""
GATEWAY = permissions("get list create patch delete", kube.HTTP_ROUTE, kube.INFERENCE_POOL)
"""Needed only for the integration `gateway`. Not checked: the kinds may be missing."""
KEDA = permissions("get list create patch delete", kube.SCALED_OBJECT)
"""Needed only for the integration `keda`. Not checked: the kind may be missing."""
