"""Objects that few VLLMDeployments have, as recorded: the PodDisruptionBudget, autoscalers, and what exposes an engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.operators import llama
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.rendering.exposure import render_autoscaler, render_disruption_budget, render_exposure

FOLDER = Path(__file__).parent / "optional"
SPECS: dict[str, dict[str, Any]] = {
    "two-replicas": {"replicas": 2},
    "autoscaled": {"autoscaling": {"minReplicas": 2, "maxReplicas": 6}},
    "autoscaled-by-kv-cache": {"autoscaling": {"maxReplicas": 6, "metric": "KVCacheUsage", "target": 75}},
    "autoscaled-to-zero": {
        "autoscaling": {
            "minReplicas": 0,
            "maxReplicas": 4,
            "keda": {"prometheusAddress": "http://prometheus.monitoring.svc:9090", "activationQuery": "sum(gateway_waiting)"},
        }
    },
    "gateway": {
        "networkPolicy": {"ingressFrom": [{"podSelector": {"matchLabels": {"app": "chat"}}}]},
        "gateway": {
            "parentRefs": [{"name": "public", "namespace": "gateways"}],
            "hostnames": ["llama.example.com"],
            "inferencePool": {"endpointPicker": {"name": "llama-epp"}},
        },
    },
}
MEASURED = {"cache": {"coldStartSeconds": 1900, "warmStartSeconds": 95}}


@pytest.mark.parametrize("name", SPECS)
def test_they_are_as_recorded(name: str, golden: Callable[[Path, str], None]) -> None:
    resource = VLLMDeployment.parse({**llama(**SPECS[name]), "status": MEASURED})
    manifests = [render_disruption_budget(resource), render_autoscaler(resource), *render_exposure(resource)]
    golden(FOLDER / f"{name}.yaml", yaml.safe_dump_all([each for each in manifests if each is not None], sort_keys=False))
