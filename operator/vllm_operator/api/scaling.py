"""`spec.autoscaling`: the autoscaler that the operator creates."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.base import SPACES, Model, checked_by


class ScalingMetric(StrEnum):
    """What of an engine is compared with the target."""

    WAITING_REQUESTS = "WaitingRequests"
    RUNNING_REQUESTS = "RunningRequests"
    KV_CACHE_USAGE = "KVCacheUsage"


class KedaSpec(Model):
    """KEDA asks Prometheus itself, so no adapter is needed, and can scale to zero and back."""

    prometheus_address: str = Field(
        min_length=1,
        max_length=1024,
        pattern=rf"^https?://[^{SPACES}]+$",
        description="URL of the Prometheus that scrapes the engines, for example http://prometheus.monitoring.svc:9090.",
    )
    activation_query: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="PromQL for the number of requests that wait in front of the engines, for example in a gateway. Replicas are created "
        "when it is above 0. Required with `minReplicas: 0`, because without replicas there are no metrics of engines.",
    )


class AutoscalingSpec(Model):
    """A HorizontalPodAutoscaler, or a ScaledObject of KEDA, that sets `spec.replicas`."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.AUTOSCALING))
    min_replicas: int | None = Field(default=None, ge=0, le=1000, description="Minimum number of replicas. 0 needs `keda`. Default: 1.")
    max_replicas: int = Field(ge=1, le=1000, description="Maximum number of replicas.")
    metric: ScalingMetric | None = Field(
        default=None,
        description="WaitingRequests: requests in the queue. RunningRequests: requests in progress. KVCacheUsage: used part of the KV "
        "cache. Default: WaitingRequests.",
    )
    target: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Target of the metric per replica: a number of requests, or a percentage for KVCacheUsage. Default: 5 waiting or 64 "
        "running requests, 80 percent.",
    )
    keda: KedaSpec | None = Field(
        default=None,
        description="Use a ScaledObject of KEDA instead of a HorizontalPodAutoscaler. The chart of the operator must allow it "
        "(`integrations.keda`).",
    )
