"""The ControllerRevisions of a VLLMDeployment as the command line reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.errors import InputError
from vllm_operator.pods import reading
from vllm_operator.rendering.revision import RevisionError, is_revision_of, number_of, read_revision


@dataclass(frozen=True, slots=True)
class Revision:
    """A ControllerRevision. `plan` is None if its content cannot be read; then `problem` says why."""

    number: int
    name: str
    created: str
    plan: Plan | None
    problem: str = ""


def read_revisions(resource: VLLMDeployment, objects: Sequence[Mapping[str, Any]]) -> list[Revision]:
    """The revisions among these objects that the VLLMDeployment controls, oldest first."""
    found = [_read(resource, entry) for entry in objects if entry.get("kind") == "ControllerRevision" and is_revision_of(resource, entry)]
    return sorted(found, key=lambda revision: (revision.number, revision.created))


def with_pinned_plan(resource: VLLMDeployment, objects: Sequence[Mapping[str, Any]]) -> VLLMDeployment:
    """The object with its pinned plan: from the revision that its status names, or as an earlier version of the operator wrote it.

    Raises:
        InputError: The status names a revision that is not among the objects, or whose content cannot be read.
    """
    status = resource.status
    if status.pinned_plan is not None:
        name = status.pinned_plan.revision
        revision = next((entry for entry in read_revisions(resource, objects) if entry.name == name), None)
        if revision is None:
            raise InputError(f"ControllerRevision {name}, which contains the plan of {resource.metadata.name}, is not there")
        if revision.plan is None:
            raise InputError(revision.problem)
        return resource.with_pinned(revision.plan)
    if status.plan is None:
        return resource
    try:
        return resource.with_pinned(Plan.model_validate(status.plan))
    except ValidationError as error:
        raise InputError(f"status.plan of {resource.metadata.name} is not a plan that this version can read") from error


def _read(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> Revision:
    number, name = number_of(manifest), reading.text(manifest, "metadata", "name")
    created = reading.text(manifest, "metadata", "creationTimestamp")
    try:
        return Revision(number, name, created, read_revision(resource, manifest))
    except RevisionError as error:
        return Revision(number, name, created, None, str(error))
