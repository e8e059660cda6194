"""Render a plan as manifests: plain dictionaries in the form of the API server.

The result depends only on the name, namespace, uid and spec of the VLLMDeployment and on the plan. It contains no null, no status and no
field that the API server fills in, so applying it twice changes nothing and keeps the fields of other managers.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import HOSTNAME_LABEL, INSTANCE_LABEL, LWS_GROUP
from vllm_operator.api.operation import RolloutSpec, ServiceSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import access_modes, is_one_node
from vllm_operator.api.resource import LEADER_WORKER_SET_KIND, VLLMDeployment, metadata_of, selector_of, template_spec
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.caches.address import claims_of
from vllm_operator.planning.engine.overrides import with_uuids
from vllm_operator.rendering.container import PORT, PORT_NAME
from vllm_operator.rendering.pod import render_follower_template, render_pod_template
from vllm_operator.rendering.resource_claim import render_resource_claim_template
from vllm_operator.rendering.volumes import render_claims

IMAGE_PULL_SECONDS = 3600
"""Time in seconds to find a node and pull an image of 10 to 25 GB before a start begins."""
REVISIONS = 3


def render(resource: VLLMDeployment, plan: Plan, live: Mapping[str, Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Render all children of a VLLMDeployment. `live` are existing PVCs. Raises SpecError if `spec.podTemplate` cannot be merged."""
    resource = with_uuids(resource, plan.uuids or ())
    deployment = render_group_set(resource, plan) if plan.nodes else render_deployment(resource, plan)
    # If spec.podTemplate mounts another volume for the caches or weights, the Pods do not use the operator's PVC.
    mounted = claims_of(template_spec(deployment))
    claims = [claim for claim in render_claims(resource, plan) if claim["metadata"]["name"] in mounted]
    volumes = {claim["metadata"]["name"]: claim for claim in claims} | dict(live or {})
    if not plan.nodes and any(is_one_node(access_modes(claim)) for name, claim in volumes.items() if name in mounted):
        _prefer_node_of_replicas(deployment["spec"]["template"]["spec"], selector_of(resource))
    template = render_resource_claim_template(resource, plan)
    return [*claims, render_service(resource), *([template] if template is not None else []), deployment]


def render_service(resource: VLLMDeployment) -> dict[str, Any]:
    """Render the Service of the replicas."""
    service = resource.spec.service or ServiceSpec()
    metadata = metadata_of(resource, resource.metadata.name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**metadata, "annotations": dict(service.annotations)} if service.annotations else metadata,
        "spec": {
            "type": service.type or "ClusterIP",
            **({"loadBalancerClass": service.load_balancer_class} if service.load_balancer_class else {}),
            "selector": selector_of(resource),
            "ports": [{"name": PORT_NAME, "port": service.port or PORT, "targetPort": PORT_NAME, "protocol": "TCP"}],
        },
    }


def render_deployment(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the Deployment of the replicas. Raises SpecError."""
    strategy, rollout = _strategy(resource.spec), resource.spec.rollout or RolloutSpec()
    proves = (rollout.prove_seconds or 0) if strategy.get("rollingUpdate", {}).get("maxSurge") else 0
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata_of(resource, resource.metadata.name),
        "spec": {
            "replicas": resource.spec.replicas,
            "selector": {"matchLabels": selector_of(resource)},
            "strategy": strategy,
            **({"minReadySeconds": proves} if proves else {}),
            "revisionHistoryLimit": REVISIONS,
            # Longer than the deadline of a start: the startup probe fails first, with a more precise reason.
            "progressDeadlineSeconds": plan.deadline_seconds + IMAGE_PULL_SECONDS + proves,
            "template": render_pod_template(resource, plan),
        },
    }


def render_group_set(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the LeaderWorkerSet of replicas on several nodes. Raises SpecError."""
    template = render_pod_template(resource, plan)
    template["spec"].setdefault("topologySpreadConstraints", [_one_pod_per_node(resource, plan)])
    metadata = metadata_of(resource, resource.metadata.name)
    update = _strategy(resource.spec).get("rollingUpdate") or {"maxSurge": 0, "maxUnavailable": "100%"}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": LEADER_WORKER_SET_KIND,
        # A group with a Pod that still waits for a node or an image is not created again when another Pod restarts.
        "metadata": {**metadata, "annotations": {f"{LWS_GROUP}/experimental-recreate-group-after-start": ""}},
        "spec": {
            "replicas": resource.spec.replicas,
            # The leader is Ready only after its followers have loaded.
            "startupPolicy": "LeaderCreated",
            # By default a rollout adds no groups, which would need spare nodes.
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": {"partition": 0, **update}},
            # A common subdomain would be a Service with the name of the LeaderWorkerSet, which is the Service of the replicas.
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "leaderWorkerTemplate": {
                "size": plan.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": template,
                "workerTemplate": render_follower_template(template, resource, plan),
            },
        },
    }


def _one_pod_per_node(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Return what keeps the Pods of a group on different nodes, as planned, also where a node has GPUs for two of them.

    With fewer than `minDomains` nodes, no Pod joins another. Unlike for an anti-affinity, Pods that are being deleted do not count: those
    of a group that is created again have the same key.
    """
    return {
        "topologyKey": HOSTNAME_LABEL,
        "maxSkew": 1,
        "minDomains": plan.nodes,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {INSTANCE_LABEL: resource.metadata.name}},
        "matchLabelKeys": [f"{LWS_GROUP}/group-key"],
    }


def _prefer_node_of_replicas(pod: dict[str, Any], selector: Mapping[str, str]) -> None:
    """Let the scheduler prefer the node of the replicas, because only one node can mount their volume.

    It is not required: a Pod that replaces one on a lost node must start elsewhere although the lost one still exists.
    """
    affinity = pod.get("affinity") or {}
    if not {"podAffinity", "podAntiAffinity"} & affinity.keys():
        term = {"topologyKey": HOSTNAME_LABEL, "labelSelector": {"matchLabels": dict(selector)}}
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
        pod["affinity"] = {**affinity, "podAffinity": preferred}


def _strategy(spec: VLLMDeploymentSpec) -> dict[str, Any]:
    """Return the update strategy. By default there is no surge Pod, which would wait for the GPU of the old Pod.

    Kubernetes refuses 0 for both fields: a Pod is replaced either before or after its successor is ready.
    """
    rollout = spec.rollout or RolloutSpec()
    strategy = rollout.strategy or "Auto"
    is_tuned = rollout.max_surge is not None or rollout.max_unavailable is not None
    if strategy == "Auto":
        strategy = "RollingUpdate" if spec.replicas > 1 or is_tuned else "Recreate"
    if strategy == "Recreate":
        return {"type": strategy}
    surge = rollout.max_surge if rollout.max_surge is not None else int(rollout.max_unavailable == 0)
    unavailable = rollout.max_unavailable if rollout.max_unavailable is not None else int(surge == 0)
    return {"type": strategy, "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
