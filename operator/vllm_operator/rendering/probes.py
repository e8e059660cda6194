"""Probes of the engine container, and how long a start may take.

`/health` answers only when the engine can serve, so it tells when a start is over, not how far it is:
progress is read from the log. The budget of the startup probe is a ceiling against a start that hangs for
good, not an estimate: it must never end a start that makes progress, because most of what was compiled and
all that was loaded by then is paid for again.
"""

import math
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.spec import VLLMDeploymentSpec

HEALTH_PATH = "/health"
STARTUP_PERIOD_SECONDS = 5
"""Also how late a warm start of half a minute may be noticed."""
BASE_DEADLINE_SECONDS = 3600
"""Eight times the slowest cold start measured (459 s), for slower disks, CPUs and larger models."""
SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND = 100
"""What is assumed of a hub or a file system that is slow but works."""
UNKNOWN_WEIGHTS_SECONDS = 7200
"""What weights of unknown size may take: 700 GiB at the speed above."""
MAX_DEADLINE_SECONDS = 86400

_SUFFIXES: Mapping[str, int] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_SUFFIXES: Mapping[str, int] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def deadline_seconds(spec: VLLMDeploymentSpec) -> int:
    """How long a start may take, in seconds, before the kubelet gives it up.

    `startup.deadlineSeconds` if given. Else an hour for everything that is compiled, plus the weights at
    100 MiB/s: an hour and a half for 200 GiB, three hours where the size of the weights is not known.
    A warm start needs a fraction of it, and is not given less: whether it is warm shows only afterwards.
    """
    if spec.startup and spec.startup.deadline_seconds:
        return spec.startup.deadline_seconds
    size = spec.model.facts.weight_size if spec.model.facts else None
    weights = UNKNOWN_WEIGHTS_SECONDS if size is None else math.ceil(_mebibytes(size) / SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND)
    return min(BASE_DEADLINE_SECONDS + weights, MAX_DEADLINE_SECONDS)


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


def _mebibytes(quantity: str) -> float:
    """Read a quantity that the API server has checked."""
    suffix = quantity.lstrip("0123456789.")
    return float(quantity.removesuffix(suffix)) * {**_SUFFIXES, **_BINARY_SUFFIXES}[suffix] / 2**20
