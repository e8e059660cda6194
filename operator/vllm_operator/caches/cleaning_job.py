"""The Job that removes caches which nobody uses from a claim.

It mounts this claim and nothing else, runs as the user of the engine, whose files these are, and on a node that has the
image of the engine already: the image holds Python, so nothing else has to be pulled.
"""

import copy
import hashlib
import json
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from vllm_operator.api.resource import Role, VLLMDeployment, cleaning_prefix, labels_of, metadata_of

CONTAINER = "clean"
ROOT = "/claim"
FREE_PERCENT = 20
"""How much of the volume shall be free after a start found it full; less is filled again by the next start."""
DEADLINE_SECONDS = 900
"""Removing a million files from a network file system takes minutes."""
KEPT_SECONDS = 900
"""How long the result can be read afterwards; longer than the pause between two Jobs, which follows from the finished Pod."""
ATTEMPTS = 2
MOST_RECORDED = 1000
"""Directories that are named to the Job: a variable may hold 128 KiB."""
_INHERITED = ("securityContext", "tolerations", "imagePullSecrets", "runtimeClassName")
_PRINT = "/dev/termination-log"


@cache
def cleaning_script() -> str:
    """The program that runs in the Job."""
    return files("vllm_operator.caches.scripts").joinpath("clean_caches.py").read_text("utf-8")


def cleaning_name(name: str, occasion: str) -> str:
    """Name of the Job for an occasion: equal occasions have one Job."""
    return f"{cleaning_prefix(name)}{hashlib.sha256(occasion.encode()).hexdigest()[:8]}"


def render_cleaning(
    resource: VLLMDeployment,
    template: Mapping[str, Any],
    *,
    claim: str,
    occasion: str,
    node: str | None,
    recorded: Collection[str],
    keep: Collection[str],
    doomed: Collection[str],
    is_full: bool,
) -> dict[str, Any]:
    """Render the Job.

    Args:
        resource: The VLLMDeployment that it works for.
        template: Spec of the Pods of the engine: user, image and tolerations are taken from it.
        claim: The claim to clean.
        occasion: What it is done for; equal occasions have one Job.
        node: The node to run on; None leaves it to the scheduler.
        recorded: Directories that the claim records as the operator's; only these may go.
        keep: Directories in use.
        doomed: Directories that go in any case.
        is_full: Whether room must be made.
    """
    variables = {
        "CLEAN_ROOT": ROOT,
        "CLEAN_RECORDED": json.dumps(sorted(recorded)[:MOST_RECORDED]),
        "CLEAN_KEEP": json.dumps(sorted(keep)),
        "CLEAN_DOOMED": json.dumps(sorted(doomed)),
        "CLEAN_SHARE": str(FREE_PERCENT if is_full else 0),
        "CLEAN_REPORT": _PRINT,
    }
    spec = _pod_spec(template, claim, variables)
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_of(resource, cleaning_name(resource.metadata.name, occasion), Role.CLEANING),
        "spec": {
            "backoffLimit": ATTEMPTS,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels_of(resource, Role.CLEANING)}, "spec": spec},
        },
    }


def _pod_spec(template: Mapping[str, Any], claim: str, variables: Mapping[str, str]) -> dict[str, Any]:
    engine = next(iter(template["containers"]))
    container = {
        "name": CONTAINER,
        "image": engine["image"],
        "command": ["python3", "-c", cleaning_script()],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": copy.deepcopy(dict(engine.get("securityContext") or {})) | {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "claim", "mountPath": ROOT}],
    }
    return {
        **{name: copy.deepcopy(template[name]) for name in _INHERITED if name in template},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
    }
