"""Records the plans of VLLMDeployments, and finds the pinned one again.

The Deployment that was rendered from a plan carries it in an annotation, so a new plan costs no write of its own. A ControllerRevision
contains a plan

* when the status is about to name another one: the history,
* whose Deployment is not applied yet, because the rollout is held back,
* that is too large for an annotation, or whose annotation the API server did not keep.

A Deployment does not carry a plan that a ControllerRevision contains. So what an earlier version of the operator wrote stays as it is.

The status names the pinned plan by its revision: a name with a digest of the plan. So a plan that was read once needs not be read again,
and one that somebody has deleted is recorded again from memory.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from vllm_operator.api.conditions import Reason
from vllm_operator.api.labels import PLAN_ANNOTATION, REPLAN_ANNOTATION
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
from vllm_operator.rendering.carried_plan import carried_name, carried_value, carry, read_carried
from vllm_operator.rendering.revision import (
    RevisionError,
    is_revision_of,
    next_number,
    read_revision,
    render_revision,
    revision_name,
    surplus,
    without_observed,
)

log = logging.getLogger(__name__)

MAX_PLANS = 8192
"""Objects whose pinned plan is remembered. Another one is read again at its next reconciliation.
Each takes about 25 KiB."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The name of the revision of a plan, and the manifests to apply. None: only the deprecated field of the status contains the plan."""

    revision: str | None
    manifests: list[Manifest]


@dataclass(frozen=True, slots=True)
class _Known:
    """A plan that was read or made, and the name of its revision.

    `pinned` is the plan that it is for. `value` is the annotation of a Deployment that carries it: None if it is too large for one,
    and empty if that is not known yet. `is_recorded` tells that its ControllerRevision was just created, and may not be seen yet.
    """

    name: str
    plan: Plan
    value: str | None = ""
    pinned: Plan | None = None
    is_recorded: bool = False


class PlanRevisions:
    """The plans of one VLLMDeployment after the other."""

    def __init__(self, client: ClusterClient, *, count: Callable[[str, str], None]) -> None:
        """`count` is called with the verb and the kind of each write."""
        self._client = client
        self._count = count
        self._known: Recent[_Known] = Recent(MAX_PLANS)  # by UID of the VLLMDeployment
        self._replaced: Recent[_Known] = Recent(MAX_PLANS)  # those that the status still names, by UID

    async def read(self, resource: VLLMDeployment, snapshot: Snapshot) -> VLLMDeployment | Verdict:
        """Return the object with the plan that is pinned, if any, or why that plan cannot be used.

        Without a usable plan, an object is planned anew if nothing of it runs, or if a new plan is requested, or if its Deployment carries
        another one: then an operator has ended between the Deployment and the status.

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
            deployment = _own_deployment(snapshot)
            is_requested = summary is not None and summary.replan_token != resource.metadata.annotations.get(REPLAN_ANNOTATION)
            carried = _former_plan(resource, deployment) if deployment is not None and not is_requested else None
            if deployment is not None and not is_requested and carried is None:
                return Verdict(ConditionStatus.FALSE, Reason.REVISION_UNUSABLE, _explain(error))
            log.info("planning anew: %s", error)
            return resource.with_pinned(carried)

    async def pin(self, resource: VLLMDeployment, snapshot: Snapshot, plan: Plan, manifests: list[Manifest]) -> Pin | Verdict:
        """Make sure that a plan is recorded once these manifests are applied; return why it cannot be recorded.

        Raises:
            ClusterError: Try again.
        """
        known, revisions = self._remember(resource, plan), _own(resource, snapshot)
        if known.name in _names(revisions):
            return Pin(known.name, manifests)
        is_deprecated = resource.status.pinned_plan is None and resource.status.plan is not None
        value = None if is_deprecated else self._value(resource, known)
        if value is not None and any(_is_deployment(manifest, resource) for manifest in manifests):
            return Pin(known.name, [_with_plan(it, value) if _is_deployment(it, resource) else it for it in manifests])
        if value is not None and carried_value(_own_deployment(snapshot)) == value:
            return Pin(known.name, manifests)  # the rollout of a remedy or of other caches is held back
        await self.record_former(resource, snapshot, known.name)  # it has the lower number
        refusal = await self._record(resource, known, revisions)
        if refusal is None:
            return Pin(known.name, manifests)
        return Pin(None, manifests) if is_deprecated and plan is resource.pinned else refusal

    async def record_former(self, resource: VLLMDeployment, snapshot: Snapshot, revision: str | None) -> None:
        """Record the plan that the status names if it is about to name another revision. Without it, only the history has a gap.

        Raises:
            ClusterError: Try again.
        """
        named = _named(resource)
        former = self._find_known(resource, named) if named is not None and revision not in (None, named) else None
        revisions = _own(resource, snapshot)
        if former is None or former.is_recorded or former.name in _names(revisions):
            return
        if await self._record(resource, former, revisions) is None and self._replaced.get(resource.metadata.uid) is former:
            self._replaced.put(resource.metadata.uid, replace(former, is_recorded=True))

    async def confirm(
        self, resource: VLLMDeployment, snapshot: Snapshot, manifests: Sequence[Manifest], children: Sequence[Manifest]
    ) -> None:
        """Record the pinned plan if the Deployment was to carry it, and does not: it was refused, or lost the annotation.

        Raises ClusterError.

        Args:
            resource: The VLLMDeployment.
            snapshot: The VLLMDeployment as read.
            manifests: What was applied.
            children: The children as they are now.
        """
        wanted, now = (next((it for it in each if _is_deployment(it, resource)), None) for each in (manifests, children))
        known = self._known.get(resource.metadata.uid)
        if known is not None and now is not None and carried_value(wanted) not in ("", carried_value(now)):
            log.info("recording a plan, because Deployment %s does not carry it after an apply", resource.metadata.name)
            await self._record(resource, known, _own(resource, snapshot))

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
        """The plan that the status names: from memory, from the Deployment, or from its ControllerRevision."""
        known = self._find_known(resource, name)
        if known is not None:
            return known.plan
        uid, deployment = resource.metadata.uid, _own_deployment(snapshot)
        problem = f"Deployment {resource.metadata.name} does not carry the pinned plan"
        if deployment is not None and carried_name(resource, deployment) == name:
            try:
                plan = read_carried(resource, deployment)
            except RevisionError as error:
                problem = str(error)
            else:
                self._known.put(uid, _Known(name, plan, carried_value(deployment)))
                return plan
        try:
            revision = await self._client.get(REVISION, name, resource.metadata.namespace)
        except NotFound:
            raise RevisionError(f"{problem}, and ControllerRevision {name} does not exist") from None
        plan = read_revision(resource, revision)
        self._known.put(uid, _Known(name, plan))
        return plan

    def _find_known(self, resource: VLLMDeployment, name: str) -> _Known | None:
        """A plan in memory by the name of its revision."""
        known, replaced = self._known.get(resource.metadata.uid), self._replaced.get(resource.metadata.uid)
        return next((it for it in (known, replaced) if it is not None and it.name == name), None)

    def _remember(self, resource: VLLMDeployment, plan: Plan) -> _Known:
        """Remember a plan as the one to pin."""
        uid, known, named = resource.metadata.uid, self._known.get(resource.metadata.uid), _named(resource)
        is_named = known is not None and known.name == named
        if is_named:
            self._replaced.drop(uid)
        if known is not None and (known.plan is plan or known.pinned is plan):
            return known
        name = revision_name(resource, plan)
        if known is not None and known.name == name:
            known = replace(known, pinned=plan)
        else:
            if known is not None and is_named:
                self._replaced.put(uid, known)
            known = _Known(name, without_observed(plan), pinned=plan)
        self._known.put(uid, known)
        return known

    def _value(self, resource: VLLMDeployment, known: _Known) -> str | None:
        """The annotation of a Deployment that carries a plan; None if the plan is too large."""
        if known.value != "":
            return known.value
        value = carry(known.name, known.plan)
        self._known.put(resource.metadata.uid, replace(known, value=value))
        return value

    async def _record(self, resource: VLLMDeployment, known: _Known, revisions: Sequence[Manifest]) -> Verdict | None:
        """Write a plan into a ControllerRevision beside these; return why it cannot be written."""
        former = self._replaced.get(resource.metadata.uid)
        is_second = former is not None and former.is_recorded and former.name not in _names(revisions)
        revision = render_revision(resource, known.plan, next_number(revisions) + is_second)
        try:
            await self._client.create(revision)
        except Conflict:
            return await self._check_existing(resource, known.name)
        except (Forbidden, Invalid) as error:
            log.warning("ControllerRevision %s cannot be created: %s", known.name, error)
            return _refused(known.name, str(error))
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


def _named(resource: VLLMDeployment) -> str | None:
    """The name of the plan in the status; None if it names none."""
    return resource.status.pinned_plan.revision if resource.status.pinned_plan is not None else None


def _names(revisions: Sequence[Manifest]) -> set[str]:
    return {revision["metadata"]["name"] for revision in revisions}


def _own_deployment(snapshot: Snapshot) -> Manifest | None:
    """The Deployment that the object controls; None if there is none."""
    deployment = snapshot.child(DEPLOYMENT)
    return deployment if deployment is not None and is_controlled_by(deployment, snapshot.resource) else None


def _is_deployment(manifest: Manifest, resource: VLLMDeployment) -> bool:
    """Whether this is the Deployment of the replicas."""
    return (manifest["kind"], manifest["metadata"]["name"]) == (DEPLOYMENT.kind, resource.metadata.name)


def _with_plan(deployment: Manifest, value: str) -> Manifest:
    """A Deployment that carries a plan."""
    metadata = deployment["metadata"]
    return {**deployment, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), PLAN_ANNOTATION: value}}}


def _former_plan(resource: VLLMDeployment, deployment: Manifest) -> Plan | None:
    """The plan that a Deployment carries although the status names another one; None if it carries none.

    Whoever may edit the Deployment may have written it. So it never stays in force: a new plan keeps of it only where the model runs and
    its weights are, and neither flags nor facts about the model.
    """
    try:
        plan = read_carried(resource, deployment)
    except RevisionError:
        return None
    return plan.model_copy(update={"observed_generation": None, "spec_digest": None, "args": [], "model_facts": [], "memory": None})


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
    message = f"The operator may not {error.verb} {error.resource}, so it cannot read the pinned plan. Allow it in its ClusterRole."
    return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
