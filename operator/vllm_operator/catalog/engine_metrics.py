"""Names of the metrics of vLLM by which replicas are scaled."""

from collections.abc import Mapping
from functools import cache

from vllm_operator.api.scaling import ScalingMetric
from vllm_operator.catalog.entry import Entry, load_file


class EngineMetrics(Entry):
    """The content of `engine_metrics.yaml`."""

    source: str
    names: Mapping[ScalingMetric, str]


@cache
def load_engine_metrics() -> Mapping[ScalingMetric, str]:
    """Read the name of each metric."""
    return load_file(EngineMetrics, "engine_metrics.yaml").names
