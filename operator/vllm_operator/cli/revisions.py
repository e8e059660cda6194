"""Read the plans of a VLLMDeployment from ControllerRevisions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import KIND
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.documents import name_of, parse_deployment, read_objects
from vllm_operator.cli.inputs import InputError
from vllm_operator.rendering.revision import RevisionError, is_revision_of, number_of, read_revision

NEWEST = 0
"""Represents the number of the newest revision."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A plan with its number. `plan` is None if its content cannot be read, as `problem` explains. `made` is the creation time."""

    number: int
    name: str
    made: str
    plan: Plan | None
    problem: str = ""


def read_with_revisions(name: str, *, namespace: str, path: str | None) -> tuple[VLLMDeployment, list[Revision]]:
    """Read a VLLMDeployment and its revisions from the cluster, or from a file.

    Raises:
        InputError: The objects do not exist or cannot be read.
    """
    if path is None:
        from vllm_operator.cli import live  # imported only here, because the Kubernetes client is slow to import

        manifest, objects = live.read_with_revisions(namespace, name)
    else:
        objects = read_objects(path)
        found = [entry for entry in objects if entry.get("kind") == KIND and name_of(entry) == name]
        if len(found) != 1:
            raise InputError(f"{path} contains {'several objects' if found else 'no object'} of kind {KIND} with the name {name}")
        manifest = found[0]
    resource = parse_deployment(manifest)
    return resource, read_revisions(resource, objects)


def find_revision(resource: VLLMDeployment, revisions: Sequence[Revision], number: int) -> tuple[Revision, Plan | None]:
    """Return a revision by its number or `NEWEST`, and the plan of the revision before it, if there is one.

    Raises:
        InputError: There is no such revision, or its content cannot be read.
    """
    before: Plan | None = None
    for revision in revisions:
        if revision.number == number or (number == NEWEST and revision is revisions[-1]):
            if revision.plan is None:
                raise InputError(revision.problem)
            return revision, before
        before = revision.plan
    known = ", ".join(str(entry.number) for entry in revisions) or "none"
    raise InputError(f"{resource.metadata.name} has no revision{f' {number}' if number != NEWEST else ''}; it has {known}")


def causes(before: Plan, plan: Plan) -> Iterator[str]:
    """Yield the reasons for a new plan that a comparison with the previous plan shows."""
    if plan.replan_token != before.replan_token:
        yield "A new plan was requested."
    if plan.spec_digest != before.spec_digest:
        yield f"The spec changed (generation {before.observed_generation} to {plan.observed_generation})."
    if plan.catalog_version != before.catalog_version:
        yield f"Made with catalog {plan.catalog_version}, before {before.catalog_version}."
    parts, parts_before = ({part.name: part.value for part in each.cache_key_parts} for each in (plan, before))
    if parts.get("generation") != parts_before.get("generation"):
        yield "The cache directory was damaged and replaced."
    elif plan.cache_key != before.cache_key:
        changed = ", ".join(sorted(name for name in parts.keys() | parts_before.keys() if parts.get(name) != parts_before.get(name)))
        yield f"The cache directory changed because of: {changed or 'the digest of the image'}."


def read_revisions(resource: VLLMDeployment, objects: Sequence[Mapping[str, Any]]) -> list[Revision]:
    """Return the revisions among these objects that the VLLMDeployment controls, oldest first."""
    own = (entry for entry in objects if entry.get("kind") == "ControllerRevision" and is_revision_of(resource, entry))
    return sorted((_read(resource, entry) for entry in own), key=lambda revision: (revision.number, revision.made))


def with_pinned_plan(resource: VLLMDeployment, objects: Sequence[Mapping[str, Any]]) -> VLLMDeployment:
    """Return the object with its pinned plan, from the revision that its status names.

    Raises:
        InputError: The status names a revision that is not in the objects, or whose content cannot be read.
    """
    if resource.status.pinned_plan is None:
        return resource
    name = resource.status.pinned_plan.revision
    revision = next((entry for entry in read_revisions(resource, objects) if entry.name == name), None)
    if revision is None:
        raise InputError(f"ControllerRevision {name}, which contains the plan of {resource.metadata.name}, is missing")
    if revision.plan is None:
        raise InputError(revision.problem)
    return resource.with_pinned(revision.plan)


def _read(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> Revision:
    number, name = number_of(manifest), reading.text(manifest, "metadata", "name")
    made = reading.text(manifest, "metadata", "creationTimestamp")
    try:
        return Revision(number, name, made, read_revision(resource, manifest))
    except RevisionError as error:
        return Revision(number, name, made, None, str(error))
