"""The ControllerRevision that contains a plan.

Its name contains a digest of the object's UID and of the plan. So equal plans have the same revision, and content that does not match the
name is rejected.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from vllm_operator.api import reading
from vllm_operator.api.base import cut_depth
from vllm_operator.api.labels import FAILED_ANNOTATION, KIND, PLAN_ANNOTATION, REQUEST_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role, VLLMDeployment, metadata_of
from vllm_operator.planning.pinning import planned_fields

Revision = TypeVar("Revision", bound=Mapping[str, Any])

DIGEST_LENGTH = 10
MAX_NUMBER = 2**53
"""Maximum number of a revision that the operator writes. Higher numbers are ignored, because no number could follow the highest one."""

_SPEC = "spec"
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")


class RevisionError(Exception):
    """A ControllerRevision does not contain the plan. `str()` is the reason, without a full stop."""


def revision_name(resource: VLLMDeployment, plan: Plan) -> str:
    """Return the name of the revision of a plan."""
    return _name(resource, _content(resource, plan))


def render_revision(resource: VLLMDeployment, plan: Plan, number: int) -> dict[str, Any]:
    """Return the manifest of the revision with this number. Its data has the plan, and the fields of the spec that it was made for."""
    content = _content(resource, plan)
    requested = hashlib.sha256(json.dumps([plan.spec_digest, plan.replan_token]).encode()).hexdigest()[:DIGEST_LENGTH]
    metadata = {**metadata_of(resource, _name(resource, content), Role.PLAN), "annotations": {REQUEST_ANNOTATION: requested}}
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": number, "data": content}


def read_revision(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> Plan:
    """Return the plan that a revision contains. Raises RevisionError."""
    name, content = reading.text(manifest, "metadata", "name"), cut_depth(manifest.get("data"))
    if not is_revision_of(resource, manifest):
        raise RevisionError(f"ControllerRevision {name} is not controlled by this {KIND}")
    if not isinstance(content, dict) or _name(resource, content) != name:
        raise RevisionError(f"ControllerRevision {name} has content that does not match the digest in its name")
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise RevisionError(f"ControllerRevision {name} does not contain a plan that this version of the operator can read") from error


def read_planned_spec(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the spec that the plan of a revision was made for, as `read_revision` has checked it."""
    return dict(reading.mapping(manifest, "data", _SPEC))


def is_revision_of(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> bool:
    """Return whether the object controls a revision, by its UID, and the name has the operator's form."""
    name, _, digest = reading.text(manifest, "metadata", "name").rpartition("-")
    is_controlled = reading.controller_of(manifest).get("uid") == resource.metadata.uid
    return is_controlled and name == resource.metadata.name and _DIGEST.fullmatch(digest) is not None


def number_of(manifest: Mapping[str, Any]) -> int:
    """Return the number of a revision; 0 if it has no number that the operator could have written."""
    number = reading.integer(manifest, "revision") or 0
    return number if 0 < number < MAX_NUMBER else 0


def find_revision(revisions: Iterable[dict[str, Any]], name: str | None) -> dict[str, Any] | None:
    """Return the revision with this name; None if it is not among these."""
    return next((each for each in revisions if reading.text(each, "metadata", "name") == name), None)


def is_recorded(revision: Mapping[str, Any] | None, record: str) -> bool:
    """Return whether a revision has this annotation: `RAN_`, `SERVED_` or `FAILED_ANNOTATION`. True if the revision is unknown."""
    return revision is None or bool(reading.text(revision, "metadata", "annotations", record))


def last_served(revisions: Iterable[Revision], *, instead_of: Revision | None = None) -> Revision | None:
    """Return the newest revision that has served and was not given up; None without one.

    `instead_of` does not count, nor do revisions that were made for the same spec and `replan` annotation: they would fail in the same way.
    """
    usable = [each for each in revisions if is_recorded(each, SERVED_ANNOTATION) and not is_recorded(each, FAILED_ANNOTATION)]
    # an unknown request equals none
    others = (each for each in usable if instead_of is None or (each is not instead_of and _request(each) != (_request(instead_of) or "?")))
    return max(others, key=number_of, default=None)


def _request(revision: Mapping[str, Any]) -> str:
    return reading.text(revision, "metadata", "annotations", REQUEST_ANNOTATION)


def applied_revision(deployment: Mapping[str, Any] | None) -> str:
    """Return the name of the revision that a Deployment was rendered from, from its annotation; empty without one."""
    return reading.text(deployment, "metadata", "annotations", PLAN_ANNOTATION)


def with_applied_revision(deployment: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a Deployment with the name of the revision that it was rendered from, in an annotation."""
    metadata = deployment["metadata"]
    return {**deployment, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), PLAN_ANNOTATION: name}}}


def _content(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    content: dict[str, Any] = cut_depth({**plan.to_json(), _SPEC: planned_fields(resource.spec)})
    return content


def _name(resource: VLLMDeployment, content: Mapping[str, Any]) -> str:
    text = json.dumps([resource.metadata.uid, content], sort_keys=True, ensure_ascii=True)
    return f"{resource.metadata.name}-{hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]}"
