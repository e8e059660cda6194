"""Reading the build of vLLM in an image: of which image, the Job that does it, and the ControllerRevision that keeps the result.

The Job runs `read-build` (`tools/vllm_build.py`) in the image. It needs no GPU, no token and no network, and its output is untrusted
(`catalog/builds.py`). A table is kept by the digest of its image; without a digest, by the reference of the image until a new plan is
requested. A failure is kept until the spec changes or a new plan is requested.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.reading import Manifest
from vllm_operator.api.resource import Role, VLLMDeployment, metadata_of
from vllm_operator.api.spec import EngineSpec
from vllm_operator.caches import jobs
from vllm_operator.catalog.builds import find_packed, read_packed
from vllm_operator.catalog.entry import EntryError
from vllm_operator.catalog.versions import Versions, VersionTable
from vllm_operator.planning.engine.image import resolve_version
from vllm_operator.planning.engine.overrides import read_overrides
from vllm_operator.planning.pinning import digest_of_spec
from vllm_operator.planning.placement.targets import DEFAULT_TOLERATIONS
from vllm_operator.planning.pod_template import SpecError, check_pod_template, run_as_user, tolerations_of
from vllm_operator.pods.tools import TOOLS_MOUNT, operator_container, tool_command
from vllm_operator.pods.view import PodView

READER = "read-image"
"""Name of the container of the Job."""
DEADLINE_SECONDS, KEPT_SECONDS = 1800, 600
"""Maximum duration of the Job, most of which is the pull of the image, and how long it is kept."""
_INHERITED = ("imagePullSecrets", "nodeSelector")
_USER = 65532
_RESOURCES = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "256Mi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReading:
    """What is known of the build in an image. With neither `table` nor `failure`, it is being read."""

    image: str
    table: VersionTable | None = None
    failure: str = ""
    obstacle: str = ""
    """Why the Job does not run; empty if it runs, or the reason is unknown."""
    job: dict[str, Any] | None = None
    """The Job to create."""
    record: dict[str, Any] | None = None
    """The ControllerRevision to create, which replaces all earlier ones."""

    @property
    def is_over(self) -> bool:
        """Whether a plan can be made."""
        return self.table is not None or bool(self.failure)


def image_to_read(resource: VLLMDeployment, versions: Versions) -> str | None:
    """Return the image whose build is to be read: by default one of which the catalog has no table; None if it is not to be read."""
    engine, image = resource.spec.engine or EngineSpec(), read_overrides(resource.spec).image
    if engine.introspect == "Disabled" or resource.rolled_back_to is not None:
        return None
    version = resolve_version(engine.model_copy(update={"image": image}), versions)
    if isinstance(version, Verdict):
        image = image if version.reason == Reason.VERSION_UNKNOWN else None
    else:
        image = None if version.is_known and engine.introspect is None else version.image
    try:
        check_pod_template(resource.spec.pod_template if image is not None else None)
    except SpecError:
        return None  # it is refused with the plan
    return image


def record_names(resource: VLLMDeployment, image: str) -> tuple[str, str]:
    """Return the names of the ControllerRevisions of the table of an image, and of the failure to read it."""
    asked, (_, is_pinned, digest) = resource.metadata.annotations.get(REPLAN_ANNOTATION), image.partition("@sha256:")
    table, failure = ([digest] if is_pinned else [image, asked]), [image, asked, digest_of_spec(resource.spec)]
    return _name_of_record(resource, table), _name_of_record(resource, failure)


def _name_of_record(resource: VLLMDeployment, about: Sequence[str | None]) -> str:
    return f"{resource.metadata.name}-build-{reading.digest([resource.metadata.uid, about], 10)}"


def find_build_record(resource: VLLMDeployment, image: str, records: Iterable[Manifest]) -> Manifest | None:
    """Return the ControllerRevision about an image among those of the object, possibly without its data; None without one."""
    named = {reading.text(each, "metadata", "name"): each for each in records if is_record_of(resource, each)}
    return next((named[name] for name in record_names(resource, image) if name in named), None)


def is_record_of(resource: VLLMDeployment, manifest: Manifest) -> bool:
    """Return whether a ControllerRevision is about an image of this object."""
    is_controlled = reading.controller_of(manifest).get("uid") == resource.metadata.uid
    return is_controlled and reading.text(manifest, "metadata", "name").startswith(f"{resource.metadata.name}-build-")


def read_build_record(image: str, record: Mapping[str, Any]) -> ImageReading:
    """Return what a ControllerRevision says of an image. It is untrusted."""
    if failure := reading.text(record, "data", "failure"):
        return ImageReading(image=image, failure=failure)
    packed = reading.mapping(record, "data").get("table")
    try:
        return ImageReading(image=image, table=read_packed(packed if isinstance(packed, str) else ""))
    except EntryError as error:
        return ImageReading(image=image, failure=str(error))


def render_reading(resource: VLLMDeployment, image: str, tools_image: str) -> dict[str, Any]:
    """Render the Job. Its name covers what the failure is kept for, so no other Job follows one that failed."""
    template = reading.mapping(resource.spec.pod_template, "spec")
    security = dict(reading.mapping(template, "securityContext"))
    user = run_as_user(resource.spec.pod_template) or (None if security.get("runAsNonRoot") else _USER)  # None: OpenShift chooses it
    container = {
        "name": READER,
        "image": image,
        "command": tool_command("read-build", "/"),
        "resources": copy.deepcopy(_RESOURCES),
        "securityContext": operator_container({}, tools_image, "read-build")["securityContext"] | ({"runAsUser": user} if user else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [dict(TOOLS_MOUNT)],
    }
    fields = {
        "securityContext": security,
        "tolerations": [*tolerations_of(resource.spec.pod_template), *map(dict, DEFAULT_TOLERATIONS)],
        "containers": [container],
    }
    spec = jobs.render_pod_spec(template, tools_image, fields, _INHERITED)
    occasion = record_names(resource, image)[1].rpartition("-")[2]
    return jobs.render_job(resource, occasion, Role.READING, spec, attempts=0, deadline=DEADLINE_SECONDS, kept=KEPT_SECONDS)


def end_of(pod: PodView) -> Mapping[str, Any]:
    """Return how the program in the Pod of the Job has ended; empty if it has not."""
    container = reading.named(pod.manifest, READER, "status", "containerStatuses", key="name")
    return reading.mapping(container, "state", "terminated")


def conclude(resource: VLLMDeployment, image: str, job: Manifest, pod: PodView | None, output: str | None) -> ImageReading:
    """Return what a live Job has found out. `pod` is its Pod; `output` is what that has printed, None if it is unknown."""
    if pod is not None and (ended := end_of(pod)):
        if ended.get("exitCode") != 0:
            return failed(resource, image, reading.text(ended, "message") or jobs.end_without_report(ended))
        if output is None:
            return ImageReading(image=image, obstacle=f"The log of Pod {pod.name} cannot be read")
        try:
            packed = find_packed(output)
            table = read_packed(packed)
        except EntryError as error:
            return failed(resource, image, str(error))
        return ImageReading(image=image, table=table, record=_render_record(resource, image, {"table": packed}))
    for type in ("Failed", "Complete"):
        condition = reading.named(job, type, "status", "conditions")
        if condition.get("status") == "True":
            return failed(resource, image, reading.text(condition, "message") or "the Pod is gone, and with it what it has printed")
    return ImageReading(image=image, obstacle=pod.message if pod is not None else "")


def failed(resource: VLLMDeployment, image: str, why: str) -> ImageReading:
    """Return that an image cannot be read, and why."""
    record = _render_record(resource, image, {"failure": why[: jobs.MAX_TEXT]}, is_failure=True)
    return ImageReading(image=image, failure=why[: jobs.MAX_TEXT], record=record)


def _render_record(resource: VLLMDeployment, image: str, data: Mapping[str, str], *, is_failure: bool = False) -> dict[str, Any]:
    metadata = metadata_of(resource, record_names(resource, image)[is_failure], Role.BUILD)
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": 1, "data": {"image": image, **data}}
