"""Probes of the engine container, and how long a start may take.

`/health` answers only when the engine can serve, so it tells when a start is over, not how far it is:
progress is read from the log. The budget of the startup probe is a ceiling against a start that hangs for
good, not an estimate: it must never end a start that makes progress, because most of what was compiled and
all that was loaded by then is paid for again.
"""

import math
from typing import Any

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.engine.deadline import deadline_seconds

HEALTH_PATH = "/health"
STARTUP_PERIOD_SECONDS = 5
"""Also how late a warm start of half a minute may be noticed."""


def render_probes(spec: VLLMDeploymentSpec, port: str) -> dict[str, Any]:
    """Render the three probes of the engine container; `port` is the name of its port."""
    get = {"path": HEALTH_PATH, "port": port}
    return {
        "startupProbe": {
            "httpGet": dict(get),
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(deadline_seconds(spec) / STARTUP_PERIOD_SECONDS),
        },
        "readinessProbe": {"httpGet": dict(get), "periodSeconds": 5, "timeoutSeconds": 10, "failureThreshold": 3},
        # An engine that fails exits by itself. This is for one that hangs, and must not end one that is only
        # busy: it takes ten minutes without a single answer.
        "livenessProbe": {"httpGet": dict(get), "periodSeconds": 30, "timeoutSeconds": 30, "failureThreshold": 20},
    }
