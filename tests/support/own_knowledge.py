"""A rule and a signature as the owner of a cluster writes them: what the operator reads from his ConfigMaps."""

from typing import Any

import yaml

ATTENTION_RULE = {
    "id": "our-attention",
    "component": "Attention",
    "kind": "choice",
    "when": {"versions": ">=0.17", "attention": "GQA"},
    "backend": "FLASHINFER",
    "because": "We have measured it.",
    "source": "our benchmark",
}
EXPERTS_RULE = {
    "id": "our-experts-on-b200",
    "component": "MoE",
    "kind": "choice",
    "when": {"versions": ">=0.20", "architectures": "sm_100", "quantizations": "FP8Block", "mixtureOfExperts": True},
    "backend": "TRITON",
    "because": "We have tuned it for our shapes.",
    "source": "our benchmark of November",
}
LICENCE_SIGNATURE = {
    "id": "LicenceServerAway",
    "severity": "fatal",
    "priority": 90,
    "patterns": [{"anchor": "licence server", "regex": r"licence server (?P<host>[\w.-]+) did not answer"}],
    "cause": "The licence server {{ host or 'of the plugin' }} did not answer.",
    "remedy": "Start it, or set OUR_LICENCE_HOST.",
    "references": ["https://wiki.example.com/licences"],
}


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which the operator refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def written(entries: Any) -> str:
    """Entries as YAML without aliases."""
    return yaml.dump(entries, Dumper=_Dumper)


def config_map(name: str, namespace: str, *entries: Any, **texts: str) -> dict[str, Any]:
    """A ConfigMap with entries under one key, and other texts beside it."""
    data = {"ours.yaml": written(list(entries)), **texts}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
