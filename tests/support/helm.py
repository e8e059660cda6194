"""Helm, and the chart of this repository."""

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testenv.binaries import find_binary

Manifest = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts" / "vllm-operator"
RELEASE = "vllm-operator"
NAMESPACE = "vllm-system"


class HelmError(Exception):
    """Helm refused; the message is its own."""


def run(*arguments: str | Path, kubeconfig: Path | None = None) -> str:
    """Run helm and return what it prints. It sees no cluster unless given one, and no settings of the person.

    Raises:
        HelmError: It failed.
    """
    command = [str(find_binary("helm")), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    environment["KUBECONFIG"] = str(kubeconfig or "/nonexistent")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode:
        raise HelmError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def template(values: Manifest, *, namespace: str = NAMESPACE, release: str = RELEASE, kinds: Sequence[str] = ()) -> list[Manifest]:
    """The manifests of the chart. `kinds` are kinds that the cluster is said to know, as `GROUP/VERSION/KIND`."""
    settings = [part for kind in kinds for part in ("--api-versions", kind)]
    # JSON is YAML; a value by --set would be guessed at
    text = _template(release, namespace, json.dumps(values), tuple(settings))
    return [manifest for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]


@cache
def _template(release: str, namespace: str, values: str, settings: tuple[str, ...]) -> str:
    command = [str(find_binary("helm")), "template", release, str(CHART), "--namespace", namespace, "--values", "-", *settings]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    done = subprocess.run(command, input=values, env=environment, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def rules(manifests: Sequence[Manifest], kind: str) -> set[tuple[str, str, str]]:
    """What the operator's role of a kind allows: (group, resource, verb)."""
    roles = [manifest for manifest in manifests if manifest["kind"] == kind and "aggregate" not in str(manifest["metadata"]["labels"])]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
