"""Common parts of the containers around the engine: they use its image and user, but not its GPUs."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

_INHERITED = ("image", "imagePullPolicy", "securityContext")
_NODE_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


def render_init_container(
    engine: Mapping[str, Any],
    name: str,
    command: Sequence[str],
    mounts: Sequence[Mapping[str, Any]],
    env: Sequence[Mapping[str, Any]] = (),
    *,
    reports: bool = False,
) -> dict[str, Any]:
    """Render an init container that can run wherever the engine can.

    Args:
        engine: The engine container, with `spec.podTemplate` merged.
        name: The name.
        command: The command.
        mounts: The volume mounts.
        env: The variables.
        reports: The last lines of its log become its termination message if it fails.
    """
    resources = {
        kind: kept
        for kind in ("limits", "requests")
        if (kept := {name: value for name, value in (engine.get("resources", {}).get(kind) or {}).items() if name in _NODE_RESOURCES})
    }
    return {
        "name": name,
        **{field: copy.deepcopy(engine[field]) for field in _INHERITED if field in engine},
        "command": list(command),
        **({"env": [dict(entry) for entry in env]} if env else {}),
        **({"resources": resources} if resources else {}),
        **({"terminationMessagePolicy": "FallbackToLogsOnError"} if reports else {}),
        "volumeMounts": [dict(copy.deepcopy(mount)) for mount in mounts],
    }
