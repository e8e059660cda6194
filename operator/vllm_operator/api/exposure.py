"""Parts of `spec` about who reaches the engine: the gateway in front of it, and its NetworkPolicy."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from vllm_operator.api.base import Model, Name, list_atomic, open_objects

Hostname = Annotated[str, Field(min_length=1, max_length=253)]
Peer = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra=open_objects(
            podSelector="Pods by label, in this namespace or in the selected ones.",
            namespaceSelector="Namespaces by label.",
            ipBlock="A range of addresses.",
        )
    ),
]


class NetworkPolicySpec(Model):
    """A NetworkPolicy for the Pods. Only the port of the engine can be reached."""

    ingress_from: list[Peer] | None = Field(
        default=None,
        max_length=32,
        description="Who may connect to the engine, as in `ingress[].from` of a NetworkPolicy. It includes the scraper of metrics. "
        "Default: everybody who can reach the Pods.",
        json_schema_extra=list_atomic(),
    )


class GatewayReference(Model):
    """A Gateway, as in `parentRefs` of an HTTPRoute."""

    name: Name = Field(description="Name of the Gateway.")
    namespace: Name | None = Field(default=None, description="Namespace of the Gateway. Default: that of this object.")
    section_name: Name | None = Field(default=None, description="Listener of the Gateway. Default: all.")


class FailureMode(StrEnum):
    """What a gateway does while the endpoint picker does not answer."""

    FAIL_OPEN = "FailOpen"
    FAIL_CLOSE = "FailClose"


class EndpointPicker(Model):
    """The Service of an endpoint picker. The operator does not create it."""

    name: Name = Field(description="Name of the Service, in the same namespace.")
    port: int = Field(default=9002, ge=1, le=65535, description="Port of the Service. Default: 9002.")
    failure_mode: FailureMode | None = Field(
        default=None, description="FailClose: refuse requests while it does not answer. FailOpen: pick any Pod. Default: FailClose."
    )


class InferencePoolSpec(Model):
    """An InferencePool of the Pods, for gateways that choose a Pod by its load and its cached prefixes."""

    endpoint_picker: EndpointPicker = Field(description="The endpoint picker that chooses a Pod for each request.")


class GatewaySpec(Model):
    """An HTTPRoute from a Gateway to the engine. The chart of the operator must allow it (`integrations.gateway`)."""

    parent_refs: list[GatewayReference] = Field(
        min_length=1, max_length=8, description="Gateways that serve the route.", json_schema_extra=list_atomic()
    )
    hostnames: list[Hostname] | None = Field(
        default=None,
        max_length=16,
        description="Hosts of the route. Default: all hosts of the Gateway.",
        json_schema_extra=list_atomic(),
    )
    inference_pool: InferencePoolSpec | None = Field(default=None, description="Route to an InferencePool instead of to the Service.")
