"""Reads and writes the ControllerRevisions that contain the plans of a VLLMDeployment.

The status names the revision in force. A revision is written before the status that names it, and before the children that follow
from its plan; a first revision may be written beside them (`may_follow`). An operator that ends in between makes the plan again. If it
is the same, it finds its revision by name.

The name of a revision contains a digest of its plan, so a plan that was read once needs not be read again, and a revision that
somebody has deleted is written again from memory.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import BaseModel, ValidationError

from vllm_operator.api.conditions import Reason
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus
from vllm_operator.cluster.client import (
    DEPLOYMENT,
    REVISION,
    ClusterClient,
    Conflict,
    Forbidden,
    Invalid,
    Manifest,
    NotFound,
)
from vllm_operator.cluster.observe import Snapshot
from vllm_operator.cluster.ownership import is_controlled_by
from vllm_operator.cluster.recent import Recent
from vllm_operator.planning.outcome import Verdict
from vllm_operator.rendering.revision import (
    RevisionError,
    is_revision_of,
    next_number,
    number_of,
    read_revision,
    render_revision,
    revision_name,
    surplus,
    without_observed,
)

log = logging.getLogger(__name__)

MAX_PLANS = 8192
"""Objects whose pinned plan is remembered. Another one is read from its ControllerRevision at its next reconciliation.
Each takes 6 to 25 KiB, the less the more it has in common with others."""

MAX_REPLACED = 512
"""Objects whose plan before the pinned one is remembered until the status names the new one."""

MAX_PARTS = 4096
"""Parts of plans that are kept once. An object has up to 80."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A revision that was read or written, and whether it existed when it was last looked for. `pinned` is the plan that it is for."""

    name: str
    number: int
    plan: Plan
    exists: bool = True
    pinned: Plan | None = None


class PlanRevisions:
    """The ControllerRevisions of one VLLMDeployment after the other."""

    def __init__(self, client: ClusterClient, *, count: Callable[[str, str], None]) -> None:
        """`count` is called with the verb and the kind of each write."""
        self._client = client
        self._count = count
        self._known: Recent[_Known] = Recent(MAX_PLANS)  # by UID of the VLLMDeployment
        self._replaced: Recent[_Known] = Recent(MAX_REPLACED)  # those that the status still names, by UID
        self._parts: dict[object, object] = {}
        self._accepting: set[str] = set()  # namespaces in which the last revision could be created

    async def read(self, resource: VLLMDeployment, snapshot: Snapshot) -> VLLMDeployment | Verdict:
        """Return the object with the plan that is pinned, if any, or why that plan cannot be used.

        Without a usable revision, an object is planned anew if nothing of it runs, or if a new plan is requested.

        Raises:
            ClusterError: Try again.
        """
        summary = resource.status.pinned_plan
        if summary is None and resource.status.plan is None:
            return resource
        try:
            if summary is None:
                return resource.with_pinned(_deprecated_plan(resource))
            return resource.with_pinned(await self._find(resource, snapshot, summary.revision))
        except Forbidden as error:
            return _not_permitted(error)
        except RevisionError as error:
            deployment = snapshot.child(DEPLOYMENT)
            runs = deployment is not None and is_controlled_by(deployment, snapshot.resource)
            is_requested = summary is not None and summary.replan_token != resource.metadata.annotations.get(REPLAN_ANNOTATION)
            if runs and not is_requested:
                return Verdict(ConditionStatus.FALSE, Reason.REVISION_UNUSABLE, _explain(error))
            log.info("planning anew: %s", error)
            return resource

    def may_follow(self, resource: VLLMDeployment, snapshot: Snapshot) -> bool:
        """Whether the revision of a plan may be written after the children that follow from it.

        It may for a first plan, in a namespace where the last revision could be created. The status names the revision, so an operator that
        ends before the status was written plans anew in either order. In all other cases a revision that is refused must keep the plan
        from being applied.
        """
        is_first = resource.pinned is None and resource.status.pinned_plan is None and snapshot.child(DEPLOYMENT) is None
        return is_first and resource.metadata.namespace in self._accepting

    async def pin(self, resource: VLLMDeployment, snapshot: Snapshot, plan: Plan) -> str | Verdict | None:
        """Make sure that a revision contains this plan; return its name, or why it cannot be written.

        None: the revision cannot be written, but the deprecated field of the status contains the plan.

        Raises:
            ClusterError: Try again.
        """
        uid, known = resource.metadata.uid, self._known.get(resource.metadata.uid)
        if known is not None and known.exists and (known.plan is plan or known.pinned is plan):
            return known.name
        name = revision_name(resource, plan)
        if known is not None and known.name == name and known.exists:
            self._known.put(uid, replace(known, pinned=plan))
            return name
        revisions = _own(resource, snapshot)
        number = next((number_of(revision) for revision in revisions if revision["metadata"]["name"] == name), None)
        if number is None:
            number = known.number if known is not None and known.name == name else next_number(revisions)
            refusal = await self._create(resource, render_revision(resource, plan, number))
            if refusal is not None:
                return None if plan is resource.pinned and resource.status.pinned_plan is None else refusal
        if known is not None and known.name != name:
            self._replaced.put(uid, known)
        self._known.put(uid, _Known(name, number, self._with_shared_parts(without_observed(plan)), pinned=plan))
        return name

    async def prune(self, resource: VLLMDeployment, snapshot: Snapshot, in_force: str) -> None:
        """Delete the oldest revisions of a history that has become too long. Raises ClusterError."""
        for revision in surplus(_own(resource, snapshot), in_force):
            metadata = revision["metadata"]
            try:
                await self._client.delete(REVISION, metadata["name"], metadata["namespace"], uid=metadata["uid"])
            except Forbidden as error:
                log.warning("ControllerRevision %s cannot be deleted: %s", metadata["name"], error)
                return
            self._count("delete", REVISION.kind)

    async def _find(self, resource: VLLMDeployment, snapshot: Snapshot, name: str) -> Plan:
        """The plan of the revision that the status names."""
        uid, known = resource.metadata.uid, self._known.get(resource.metadata.uid)
        known = next((it for it in (known, self._replaced.get(uid)) if it is not None and it.name == name), None)
        if known is not None and any(revision["metadata"]["name"] == name for revision in _own(resource, snapshot)):
            return known.plan
        try:
            revision = await self._client.get(REVISION, name, resource.metadata.namespace)
        except NotFound:
            if known is None:
                raise RevisionError(f"ControllerRevision {name}, which contains the pinned plan, does not exist") from None
            self._known.put(uid, _Known(name, known.number, known.plan, exists=False))  # to be written again
            return known.plan
        plan = read_revision(resource, revision)
        known = _Known(name, number_of(revision), known.plan if known is not None else self._with_shared_parts(plan))
        self._known.put(uid, known)
        return known.plan

    def _with_shared_parts(self, plan: Plan) -> Plan:
        """Return the plan with parts that other plans have as well, such as variables: most of its 25 KiB. They never change."""
        if len(self._parts) > MAX_PARTS:
            self._parts.clear()
        shared: dict[str, object] = {}
        for name, value in plan:
            if isinstance(value, list) and all(isinstance(part, BaseModel) for part in value):
                shared[name] = [self._share(part) for part in value]
        return plan.model_copy(update=shared)

    def _share(self, part: object) -> object:
        try:
            return self._parts.setdefault(part, part)
        except TypeError:  # it contains a list
            return part

    async def _create(self, resource: VLLMDeployment, revision: Manifest) -> Verdict | None:
        """Create a revision; return why it could not be created."""
        name = revision["metadata"]["name"]
        try:
            await self._client.create(revision)
        except Conflict:
            return await self._check_existing(resource, name)
        except (Forbidden, Invalid) as error:
            log.warning("ControllerRevision %s cannot be created: %s", name, error)
            self._accepting.discard(resource.metadata.namespace)
            return _refused(name, str(error))
        self._accepting.add(resource.metadata.namespace)
        self._count("create", REVISION.kind)
        return None

    async def _check_existing(self, resource: VLLMDeployment, name: str) -> Verdict | None:
        """Whether what exists under the name is the revision itself, for example without its labels."""
        try:
            read_revision(resource, await self._client.get(REVISION, name, resource.metadata.namespace))
        except RevisionError as error:
            return _refused(name, f"{error}. Delete it if nobody needs it")
        return None


def _own(resource: VLLMDeployment, snapshot: Snapshot) -> list[Manifest]:
    """The revisions that the object controls."""
    return [revision for revision in snapshot.revisions if is_revision_of(resource, revision)]


def _deprecated_plan(resource: VLLMDeployment) -> Plan:
    """The plan that an earlier version of the operator wrote into the status."""
    try:
        return Plan.model_validate(resource.status.plan)
    except ValidationError as error:
        raise RevisionError("status.plan does not contain a plan that this version of the operator can read") from error


def _explain(error: RevisionError) -> str:
    return (
        f"{error}. The Pods keep running, and nothing is changed. To make a new plan, which may restart the Pods, set the annotation "
        f"{REPLAN_ANNOTATION} to any new value."
    )


def _refused(name: str, why: str) -> Verdict:
    message = f"Nothing is changed, because ControllerRevision {name}, which is to contain the plan, cannot be created: {why}."
    return Verdict(ConditionStatus.FALSE, Reason.REVISION_REFUSED, message)


def _not_permitted(error: Forbidden) -> Verdict:
    message = f"The operator may not {error.verb} {error.resource}, so it cannot record plans. Allow it in its ClusterRole."
    return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
