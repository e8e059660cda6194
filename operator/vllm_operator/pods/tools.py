"""Delivery of the operator's programs to Pods: an init container copies one file from the operator's image to an emptyDir.

A program that does not need the engine's image runs in the operator's image. The image is part of the plan, so an upgrade of the operator
replaces no Pod.
"""

import copy
from collections.abc import Mapping
from typing import Any

from vllm_operator import __version__

TOOLS_IMAGE = f"ghcr.io/vllm-operator/vllm-operator:{__version__}"
"""The operator's image, unless the settings name another one."""
TOOLS_CONTAINER = "copy-tools"
TOOLS_VOLUME = "operator-tools"
TOOLS_ROOT = "/tools"
TOOLS_MOUNT: Mapping[str, Any] = {"name": TOOLS_VOLUME, "mountPath": TOOLS_ROOT, "readOnly": True}
"""Mount of the containers that run a program in the engine's image."""
CHECK_PROGRAM, CHECK_PERIOD_SECONDS = "check-engine", 15
"""The program of the engine's readiness probe (`tools/check_engine.py`), and its period."""
HANG_PREFIX = "Engine hangs: "
"""Beginning of its description of a hang, in the event of the failed probe and in the termination message."""
_ARCHIVE = "tools.pyz"
_UNPACKED = "__main__.py"
_BYTECODE = "/tmp/.vllm-operator-bytecode"
"""Folder for the bytecode of the probe. Python would compile the programs of an archive each time, which takes 10 ms of CPU."""
_IMAGE_ROOT = "/opt/vllm-operator"
_USER = 65532
"""User of the operator's image."""
_RESOURCES = {"cpu": "250m", "memory": "64Mi"}
"""Requests equal limits, because otherwise the container would prevent the QoS class Guaranteed."""


def tool_command(program: str, *arguments: str, root: str = TOOLS_ROOT) -> list[str]:
    """Return the command that runs a program in isolated mode: variables and the working directory do not affect imports.

    The probe needs no packages, and without them Python starts with less CPU time.
    """
    if program == CHECK_PROGRAM:
        return ["python3", "-I", "-S", "-X", f"pycache_prefix={_BYTECODE}", f"{root}/{_UNPACKED}", program, *arguments]
    return ["python3", "-I", "-B", f"{root}/{_ARCHIVE}", program, *arguments]


def operator_container(spec: Mapping[str, Any], image: str, program: str, *arguments: str) -> dict[str, Any]:
    """Return the image, command and security context of an unprivileged container that runs a program in the operator's image.

    If the user of the Pod `spec` is root, the container runs as the image's user.
    """
    is_root = (spec.get("securityContext") or {}).get("runAsUser") == 0
    return {
        "image": image,
        "command": tool_command(program, *arguments, root=_IMAGE_ROOT),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            **({"runAsUser": _USER} if is_root else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def with_tools(spec: dict[str, Any], image: str) -> dict[str, Any]:
    """Return a Pod spec whose first init container copies the programs to the volume of `TOOLS_MOUNT`, unless it has one of this name."""
    present, volumes = spec.get("initContainers") or [], spec.get("volumes") or []
    container = {
        "name": TOOLS_CONTAINER,
        **operator_container(spec, image, "copy", TOOLS_ROOT),
        "resources": {"limits": dict(_RESOURCES), "requests": dict(_RESOURCES)},
        "volumeMounts": [{"name": TOOLS_VOLUME, "mountPath": TOOLS_ROOT}],
    }
    is_named = any(each.get("name") == TOOLS_CONTAINER for each in present)
    has_volume = any(each.get("name") == TOOLS_VOLUME for each in volumes)
    return {
        **spec,
        "initContainers": [*([] if is_named else [container]), *copy.deepcopy(present)],
        "volumes": [*copy.deepcopy(volumes), *([] if has_volume else [{"name": TOOLS_VOLUME, "emptyDir": {}}])],
    }
