"""Ways to install the chart that matter: each is rendered, read, and shown to a real API server."""

from dataclasses import dataclass, field
from typing import Any

from support.own_knowledge import EXPERTS_RULE, LICENCE_SIGNATURE

MONITORING = "monitoring.coreos.com/v1"
MONITORS = tuple(f"{MONITORING}/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"))


@dataclass(frozen=True, slots=True)
class Way:
    """Values of the chart, and kinds that the cluster knows beyond Kubernetes' own."""

    values: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()


WAYS: dict[str, Way] = {
    "default": Way(),
    "two-namespaces": Way({"namespaces": ["team-a", "team-b"]}),
    "two-namespaces-without-nodes": Way({"namespaces": ["team-a", "team-b"], "rbac": {"readNodes": False, "aggregate": False}}),
    "prometheus-operator": Way(
        {"metrics": {"monitor": {"labels": {"release": "prometheus"}}, "alerts": {"labels": {"release": "prometheus"}}}}, MONITORS
    ),
    "dashboards": Way(
        {"namespaces": ["team-a"], "metrics": {"dashboards": {"enabled": True}, "engines": {"monitor": "Enabled"}}}, MONITORS
    ),
    "service-monitor": Way(
        {"metrics": {"service": {"enabled": False}, "monitor": {"kind": "ServiceMonitor"}, "alerts": {"mode": "Disabled"}}}, MONITORS
    ),
    "no-monitor-wanted": Way(
        {"metrics": {"service": {"enabled": False}, "monitor": {"kind": "None"}, "alerts": {"mode": "Disabled"}}}, MONITORS
    ),
    "closed-network": Way(
        {
            "networkPolicy": {
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
                "egressPorts": [6443],
            },
            "hub": {"endpoint": ""},
        }
    ),
    "own-account": Way({"rbac": {"create": False, "aggregate": False}, "serviceAccount": {"create": False, "name": "operators"}}),
    "behind-a-proxy": Way(
        {
            "image": {"repository": "registry.example.com/mirror/vllm-operator", "digest": f"sha256:{'0' * 64}"},
            "imagePullSecrets": [{"name": "registry"}],
            "proxy": {"url": "http://proxy.example.com:3128", "noProxy": ".example.com,10.0.0.7"},
            "caBundle": {"configMap": "authorities", "key": "bundle.pem"},
        }
    ),
    "own-mirror-of-the-hub": Way(
        {"hub": {"endpoint": "https://hub.example.com/mirror"}, "caBundle": {"configMap": "authorities"}, "rbac": {"readTokens": True}}
    ),
    "own-rules-and-signatures": Way({"extraRules": [EXPERTS_RULE], "extraSignatures": [LICENCE_SIGNATURE]}),
    "observing": Way({"observe": {"enabled": True}, "settings": {"observe_pods": 500}}),
    "observing-two-namespaces": Way(
        {
            "namespaces": ["team-a"],
            "observe": {"enabled": True, "namespaces": ["team-b", "platform"], "labels": {"app": "vllm", "tier": "prod"}},
        }
    ),
    "own-rules-for-two-namespaces": Way({"extraRules": [EXPERTS_RULE], "namespaces": ["team-a", "team-b"]}),
    "rules-of-another-namespace": Way({"settings": {"rules_config_map": "platform/vllm-rules"}, "namespaces": ["team-a"]}),
    "placed-and-tuned": Way(
        {
            "settings": {"workers": 16, "resync_seconds": 31536000, "hub_wait_seconds": 7.5},
            "log": {"format": "text", "level": "DEBUG"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "control-plane", "operator": "Exists"}],
            "priorityClassName": "system-cluster-critical",
            "podLabels": {"team": "platform"},
            "podAnnotations": {"note": "one"},
            "replicas": 1,
            "leaderElection": {"enabled": False},
            "podDisruptionBudget": {"enabled": False},
            "env": [{"name": "TZ", "value": "Europe/Berlin"}],
            "volumes": [{"name": "more", "emptyDir": {}}],
            "volumeMounts": [{"name": "more", "mountPath": "/more"}],
            "fullnameOverride": "models",
        }
    ),
}
