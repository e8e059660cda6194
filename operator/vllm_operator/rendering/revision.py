"""The revision of a plan: its name, and the ControllerRevision that contains it, or not yet (`carried_plan.py`).

The name contains a digest of the object's UID and of the plan. So the same plan has the same revision however often it is made, and
content that does not fit the name is not used.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from vllm_operator.api.base import cut_depth
from vllm_operator.api.labels import KIND
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role, VLLMDeployment, metadata_of
from vllm_operator.pods import reading

DIGEST_LENGTH = 10
OLD_REVISIONS = 10
"""Revisions that are kept beside the one in force. As many as a Deployment keeps by default."""
MAX_NUMBER = 2**53
"""Higher numbers are not written by the operator. They are ignored, because no number could follow the highest one."""

_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")


class RevisionError(Exception):
    """A plan cannot be read where it was recorded. `str()` says why, without a full stop."""


def without_observed(plan: Plan) -> Plan:
    """What a revision contains of a plan: all but what the log of the engine reported, which changes."""
    if all(choice.observed is None for choice in plan.backends):
        return plan
    return plan.model_copy(update={"backends": [choice.model_copy(update={"observed": None}) for choice in plan.backends]})


def content_of(plan: Plan) -> dict[str, Any]:
    """The content of the revision of a plan."""
    return without_observed(plan).to_json()


def revision_name(resource: VLLMDeployment, plan: Plan) -> str:
    """The name of the revision of a plan."""
    return _name(resource, content_of(plan))


def name_of_digest(resource: VLLMDeployment, digest: str) -> str | None:
    """The name of the revision with this digest; None if it is no digest."""
    return f"{resource.metadata.name}-{digest}" if _DIGEST.fullmatch(digest) else None


def render_revision(resource: VLLMDeployment, plan: Plan, number: int) -> dict[str, Any]:
    """The manifest of the revision with this number."""
    content = content_of(plan)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata_of(resource, _name(resource, content), Role.PLAN),
        "revision": number,
        "data": content,
    }


def read_revision(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> Plan:
    """The plan that a revision contains.

    Raises:
        RevisionError: The object does not control it, or its content is not what the operator wrote.
    """
    name = reading.text(manifest, "metadata", "name")
    if not is_revision_of(resource, manifest):
        raise RevisionError(f"ControllerRevision {name} is not controlled by this {KIND}")
    return parse_content(resource, name, manifest.get("data"), f"ControllerRevision {name}")


def parse_content(resource: VLLMDeployment, name: str, content: Any, where: str) -> Plan:
    """The plan of a revision. `where` says where its content was read.

    Raises:
        RevisionError: The content is not what the operator wrote.
    """
    content = cut_depth(content)
    if not isinstance(content, dict) or _name(resource, content) != name:
        raise RevisionError(f"{where} has another content than its name says")
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise RevisionError(f"{where} does not contain a plan that this version of the operator can read") from error


def is_revision_of(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> bool:
    """Whether the object controls a revision, by its UID, and its name is one that the operator gives."""
    name, _, digest = reading.text(manifest, "metadata", "name").rpartition("-")
    return controls(resource, manifest) and name == resource.metadata.name and _DIGEST.fullmatch(digest) is not None


def controls(resource: VLLMDeployment, manifest: Mapping[str, Any]) -> bool:
    """Whether the object, by its UID, is the controlling owner of another one."""
    owners = reading.objects(manifest, "metadata", "ownerReferences")
    return any(owner.get("controller") is True and owner.get("uid") == resource.metadata.uid for owner in owners)


def number_of(manifest: Mapping[str, Any]) -> int:
    """The number of a revision; 0 if it has none that the operator could have written."""
    number = reading.integer(manifest, "revision") or 0
    return number if 0 < number < MAX_NUMBER else 0


def next_number(revisions: Sequence[Mapping[str, Any]]) -> int:
    """The number of the revision after these."""
    return 1 + max(map(number_of, revisions), default=0)


def surplus(revisions: Sequence[Mapping[str, Any]], in_force: str) -> list[Mapping[str, Any]]:
    """The revisions that are beyond the history, oldest first."""
    old = [revision for revision in revisions if reading.text(revision, "metadata", "name") != in_force]
    old.sort(key=lambda revision: (number_of(revision), reading.text(revision, "metadata", "creationTimestamp")))
    return old[: max(0, len(old) - OLD_REVISIONS)]


def _name(resource: VLLMDeployment, content: Mapping[str, Any]) -> str:
    text = json.dumps([resource.metadata.uid, content], sort_keys=True, ensure_ascii=True)
    return f"{resource.metadata.name}-{hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]}"
