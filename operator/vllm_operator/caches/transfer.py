"""The Pod through which `kubectl vllm caches` exports and imports a cache directory as one file.

It runs in the engine's image, because only there the tag of an artifact is known, with the engine's user, and mounts only the directory, no
ServiceAccount token and no GPU. It does nothing by itself and ends after an hour: the command runs the program in it (`kubectl exec`). The
program is in a variable, because it is too long for the URL of such a request.
"""

import copy
import json
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.address import template_spec
from vllm_operator.caches.artifacts import load_program, rejected_artifacts, travel_settings
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.publishing import cache_mounts, secret_variables
from vllm_operator.catalog.caches import Caches
from vllm_operator.catalog.paths import CACHE_ROOT
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase

TRANSFER_CONTAINER = "transfer"
PROGRAM_VARIABLE = "TRANSFER_PROGRAM"
LIFETIME_SECONDS = 3600
EXEC = ["sh", "-c", f'exec python3 -I -B -c "${PROGRAM_VARIABLE}"']
"""The command that runs the program in the Pod."""
_WAIT = ["python3", "-I", "-c", "import signal, sys, time; signal.signal(15, lambda *_: sys.exit()); time.sleep(3600)"]
_INHERITED = ("securityContext", "tolerations", "imagePullSecrets", "runtimeClassName", "nodeSelector", "affinity")


def transfer_name(resource: VLLMDeployment, direction: str) -> str:
    """Return the name of the Pod. There is one at a time for each direction."""
    return f"{resource.metadata.name[:40].rstrip('-.')}-caches-{direction}"


def render_transfer(context: CacheContext, caches: Caches, direction: str) -> dict[str, Any]:
    """Render the Pod.

    Args:
        context: The VLLMDeployment with its plan, its live Deployment (as `desired`) and its Pods. Its caches must be on a PVC.
        caches: The caches that travel.
        direction: `export` or `import`.
    """
    assert context.address is not None
    template = template_spec(context.desired)
    engine = reading.named(template, CONTAINER, "containers", key="name")
    is_export = direction == "export"
    variables = secret_variables(context) if is_export else {"env": []}
    variables["env"] = [
        {"name": PROGRAM_VARIABLE, "value": load_program(direction)},
        {"name": f"{direction.upper()}_ARTIFACT", "value": json.dumps(_settings(context, caches, engine), sort_keys=True)},
        *variables["env"],
    ]
    mount = {"name": "claim", "mountPath": CACHE_ROOT, "subPath": context.address.key, **({"readOnly": True} if is_export else {})}
    node = next((view.node for at, view in context.replicas if at == context.address and view.phase is Phase.READY and view.node), None)
    container = {
        "name": TRANSFER_CONTAINER,
        "image": engine["image"],
        **({"imagePullPolicy": engine["imagePullPolicy"]} if "imagePullPolicy" in engine else {}),
        "command": _WAIT,
        **variables,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": copy.deepcopy(dict(engine.get("securityContext") or {})) | {"readOnlyRootFilesystem": True},
        "volumeMounts": [mount, {"name": "temporary", "mountPath": "/tmp"}],
    }
    spec = {
        **{name: copy.deepcopy(template[name]) for name in _INHERITED if name in template},
        **({"nodeName": node} if node else {}),  # a PVC with ReadWriteOnce cannot be mounted on another one
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFETIME_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            {"name": "claim", "persistentVolumeClaim": {"claimName": context.address.claim}},
            {"name": "temporary", "emptyDir": {}},
        ],
    }
    metadata = {
        "name": transfer_name(context.resource, direction),
        "namespace": context.resource.metadata.namespace,
        "labels": {"app.kubernetes.io/managed-by": "kubectl-vllm"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _settings(context: CacheContext, caches: Caches, engine: Any) -> dict[str, Any]:
    plan = context.plan
    return {
        **travel_settings(context.resource, plan, engine),
        "root": CACHE_ROOT,
        "folders": list(caches.folders_of_artifact(plan.engine_version, plan.distribution)),
        "excluded": list(caches.artifact.excluded) if caches.artifact else [],
        "whole": list(caches.artifact.whole) if caches.artifact else [],
        "architecture": plan.architecture or "",
        "mounts": cache_mounts(context, caches),
        "rejected": rejected_artifacts(context.resource),
    }
