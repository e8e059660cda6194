"""The Service in front of the replicas."""

from typing import Any

from vllm_operator.api.metadata import metadata_of, selector_of
from vllm_operator.api.operation import ServiceSpec, ServiceType
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.rendering.container import PORT, PORT_NAME


def render_service(resource: VLLMDeployment) -> dict[str, Any]:
    """Render the Service, named as the VLLMDeployment."""
    service = resource.spec.service or ServiceSpec()
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(resource, resource.metadata.name),
        "spec": {
            "type": (service.type or ServiceType.CLUSTER_IP).value,
            "selector": selector_of(resource),
            "ports": [{"name": PORT_NAME, "port": service.port or PORT, "targetPort": PORT_NAME, "protocol": "TCP"}],
        },
    }
