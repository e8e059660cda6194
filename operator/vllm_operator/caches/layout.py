"""Whether caches are kept on a volume as files, or as one packed file: what is planned, and what Pods report.

A warm start reads thousands of small files. On a local disk this takes less than a second. On a network file system, each file costs
several round trips, so that loading may take longer than compiling. Then one packed file is read instead (`scripts/packed.py`).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_operator.api.operation import Layout, Storage
from vllm_operator.api.plan import CacheMarker, PlannedPacking
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import Distribution
from vllm_operator.caches.activity import ArtifactResult
from vllm_operator.caches.address import UNPACK_CONTAINER
from vllm_operator.caches.artifacts import plan_artifact, read_result
from vllm_operator.caches.volumes import storage_of
from vllm_operator.catalog.caches import Caches
from vllm_operator.pods import reading

MARKER_CONTAINER = "mark-cache"
PACKING_PROGRAM = 1
"""Version of the programs that pack and unpack. They are part of Pod templates, as `FETCH_PROGRAM`."""
SLOW_MICROSECONDS = 2000
"""From here on, Auto packs: 7,700 files then take some ten seconds to read, and a packed file two to unpack (`docs/performance.md`)."""
KEPT_MICROSECONDS = 1000
"""Below this, a measurement is of no interest, and Auto returns to files."""


def plan_forms(resource: VLLMDeployment, version: str | None, distribution: Distribution, caches: Caches) -> dict[str, Any]:
    """Plan in which forms caches are kept: the fields of a plan about the marker, the packed file and the artifact."""
    return {
        "cache_marker": CacheMarker.MEASURING_INIT_CONTAINER,
        "cache_packing": plan_packing(resource, version, distribution, caches),
        "cache_artifact": plan_artifact(resource, version, distribution, caches),
    }


def plan_packing(resource: VLLMDeployment, version: str | None, distribution: Distribution, caches: Caches) -> PlannedPacking | None:
    """Plan how caches are packed; None if they are kept as files."""
    if not _is_packed(resource):
        return None
    return PlannedPacking(
        program=PACKING_PROGRAM,
        folders=list(caches.folders_of_artifact(version, distribution)),
        excluded=list(caches.artifact.excluded) if caches.artifact else [],
        whole=list(caches.artifact.whole) if caches.artifact else [],
    )


def _is_packed(resource: VLLMDeployment) -> bool:
    spec = resource.spec.cache
    layout = (spec and spec.layout) or Layout.AUTO
    if layout is not Layout.AUTO:
        return layout is Layout.PACKED
    if storage_of(spec) is not Storage.SHARED_CLAIM or (spec is not None and spec.artifact is not None):
        return False
    known = resource.status.cache
    measured = (known.file_microseconds if known else None) or 0
    was_packed = known is not None and known.layout == Layout.PACKED.value
    return measured >= (KEPT_MICROSECONDS if was_packed else SLOW_MICROSECONDS)


def read_measurement(pods: Iterable[Mapping[str, Any]]) -> int | None:
    """Return what the init container of the newest Pod measured, in microseconds; None if none has."""
    found = [
        (reading.text(pod, "metadata", "creationTimestamp"), reading.text(pod, "metadata", "name"), number)
        for pod in pods
        if (number := _measurement(pod)) is not None
    ]
    return max(found)[2] if found else None


def _measurement(pod: Mapping[str, Any]) -> int | None:
    container = reading.named(pod, MARKER_CONTAINER, "status", "initContainerStatuses", key="name")
    report = reading.text(container, "state", "terminated", "message")
    if not report:
        return None
    try:
        found = json.loads(report)
    except (ValueError, RecursionError):
        return None
    number = reading.integer(found, "fileMicroseconds") if isinstance(found, Mapping) else None
    return number if number is not None and 0 <= number < 2**40 else None


def read_unpacking(pods: Iterable[Mapping[str, Any]]) -> ArtifactResult | None:
    """Return what the init container of the newest Pod reported that has unpacked caches; None if none has."""
    found = [
        (reading.text(pod, "metadata", "creationTimestamp"), reading.text(pod, "metadata", "name"), result)
        for pod in pods
        if (result := read_result(reading.named(pod, UNPACK_CONTAINER, "status", "initContainerStatuses", key="name"))) is not None
    ]
    return max(found, key=lambda entry: entry[:2])[2] if found else None
