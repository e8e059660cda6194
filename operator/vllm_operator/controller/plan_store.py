"""Store each plan in one immutable ControllerRevision, and read the current plan.

The ControllerRevision is written before the Deployment that is rendered from the plan. The status and an annotation of the Deployment
contain its name, which includes a digest of the plan. So a ControllerRevision with other content is never used, a plan that was read once
need not be read again, and a deleted revision is written again from memory.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from vllm_operator.api import reading
from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import FIELD_MANAGER
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus
from vllm_operator.controller.apply import annotate
from vllm_operator.kube.client import REVISION, ClusterClient, Conflict, Forbidden, Invalid, Manifest, NotFound
from vllm_operator.kube.recent import Recent
from vllm_operator.planning.pinning import is_replan_requested, with_earlier_plan
from vllm_operator.planning.presets import with_preset_in_force
from vllm_operator.rendering.revision import (
    RevisionError,
    applied_revision,
    is_recorded,
    last_served,
    number_of,
    read_planned_spec,
    read_revision,
    render_revision,
)
from vllm_operator.status.knowledge import load_messages

log = logging.getLogger(__name__)

OLD_REVISIONS = 10
"""Revisions to keep in addition to those in use. A Deployment keeps the same number by default."""
MAX_PLANS = 8192
"""Maximum number of plans in memory, about 25 KiB each. Other plans are read again when needed."""


@dataclass(slots=True)
class PlanStore:
    """The plans of all VLLMDeployments. `count` is called with the verb and kind of each write."""

    client: ClusterClient
    count: Callable[[str, str], None]
    _plans: Recent[Plan] = field(default_factory=lambda: Recent(MAX_PLANS))

    async def read(self, resource: VLLMDeployment, deployment: Manifest | None) -> VLLMDeployment | Verdict:
        """Return the object with its current plan if it has one, or a verdict why that plan cannot be used. Raises ClusterError.

        An unusable plan is replaced only if no engine runs, so that there is no `deployment`, or if a new plan is requested.
        """
        current, applied = resource.status.revision, applied_revision(deployment)
        try:
            plan = await self._find(resource, current) if current is not None else None
            if applied and with_preset_in_force(resource, plan) is None:
                # the status was not written since, or the spec was reverted before the plan in between was applied
                other = await self.find(resource, applied)
                plan = other if with_preset_in_force(resource, other) is not None else plan
            return resource.with_pinned(plan) if plan is not None else resource
        except Forbidden as error:
            message = load_messages().say("revision.forbidden", verb=error.verb, resource=error.resource)
            return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
        except RevisionError as error:
            if deployment is not None and not is_replan_requested(resource, resource.status.replan_token):
                return Verdict(ConditionStatus.FALSE, Reason.REVISION_UNUSABLE, load_messages().say("revision.unusable", why=error))
            log.info("making a new plan: %s", error)
            return resource

    async def roll_back(self, resource: VLLMDeployment, name: str, *, by_operator: bool) -> VLLMDeployment | Verdict:
        """Return the object with the plan and the spec of one of its revisions, or a verdict why not. Raises ClusterError."""
        try:
            manifest = await self._read(resource, name)
            plan = read_revision(resource, manifest)
            self._plans.put((resource.metadata.uid, name), plan)
            earlier = with_earlier_plan(resource, plan, read_planned_spec(manifest), number_of(manifest))
            return earlier.model_copy(update={"is_rolled_back_by_operator": by_operator})
        except (RevisionError, ValidationError) as error:
            why = error if isinstance(error, RevisionError) else f"ControllerRevision {name} has a spec of another version of the operator"
            message = load_messages().say("revision.no_way_back", why=why, by_operator=by_operator)
            return Verdict(ConditionStatus.FALSE, Reason.REVISION_UNUSABLE, message)

    async def find(self, resource: VLLMDeployment, name: str) -> Plan | None:
        """Return the plan of one of its revisions; None if there is none that can be read. Raises ClusterError."""
        try:
            return await self._find(resource, name)
        except RevisionError:
            return None

    async def persist(self, resource: VLLMDeployment, revisions: Sequence[Manifest], plan: Plan) -> str | Verdict:
        """Create the ControllerRevision of a plan if it is missing; return its name, or why it cannot be created. Raises ClusterError."""
        uid, existing = resource.metadata.uid, [revision["metadata"]["name"] for revision in revisions]
        # the digest of a plan in memory is known
        name = next((each for each in existing if self._plans.get((uid, each)) is plan), None)
        if name is None:
            revision = render_revision(resource, plan, 1 + max(map(number_of, revisions), default=0))
            name = reading.text(revision, "metadata", "name")
            if name not in existing and (refusal := await self._create(resource, revision)) is not None:
                return refusal
        self._plans.put((uid, name), plan)
        return name

    async def record(self, revision: Manifest, *reached: str, now: datetime) -> None:
        """Record on a revision what it has reached: the time in these annotations, each written once. Raises ClusterError."""
        missing = {name: reading.stamp(now) or "" for name in reached if not is_recorded(revision, name)}
        if missing:
            await self.annotate(revision, missing)

    async def annotate(self, revision: Manifest, annotations: Mapping[str, str]) -> None:
        """Write annotations of a revision, unless it has changed. Raises ClusterError."""
        try:
            await annotate(self.client, revision, annotations, manager=FIELD_MANAGER)
        except (Conflict, NotFound):
            pass  # the next reconciliation reads the revision again
        except Forbidden as error:
            log.warning("cannot record on ControllerRevision %s what became of its plan: %s", revision["metadata"]["name"], error)
        else:
            self.count("patch", REVISION.kind)

    async def prune(self, revisions: Sequence[Manifest], in_use: Collection[str]) -> None:
        """Delete the oldest revisions beyond the history limit, but not those in use or the last that served. Raises ClusterError."""
        last = last_served(revisions)
        old = [revision for revision in revisions if revision["metadata"]["name"] not in in_use and revision is not last]
        old.sort(key=lambda revision: (number_of(revision), reading.text(revision, "metadata", "creationTimestamp")))
        for revision in old[: max(0, len(old) - OLD_REVISIONS)]:
            metadata = revision["metadata"]
            try:
                await self.client.delete(REVISION, metadata["name"], metadata["namespace"], uid=metadata["uid"])
            except Forbidden as error:
                log.warning("ControllerRevision %s cannot be deleted: %s", metadata["name"], error)
                return
            self.count("delete", REVISION.kind)

    async def _find(self, resource: VLLMDeployment, name: str) -> Plan:
        key = (resource.metadata.uid, name)  # a status may name the revision of another object
        plan = self._plans.get(key)
        if plan is None:
            plan = read_revision(resource, await self._read(resource, name))
            self._plans.put(key, plan)
        return plan

    async def _read(self, resource: VLLMDeployment, name: str) -> Manifest:
        try:
            return await self.client.get(REVISION, name, resource.metadata.namespace)
        except NotFound:
            raise RevisionError(f"ControllerRevision {name} does not exist") from None

    async def _create(self, resource: VLLMDeployment, revision: Manifest) -> Verdict | None:
        """Create a ControllerRevision; return why it cannot be created. An existing one, for example without its labels, is checked."""
        name = revision["metadata"]["name"]
        try:
            await self.client.create(revision)
        except Conflict:
            try:
                read_revision(resource, await self.client.get(REVISION, name, resource.metadata.namespace))
            except RevisionError as error:
                return _refused(name, f"{error}. Delete it if nobody needs it")
            return None
        except (Forbidden, Invalid) as error:
            log.warning("ControllerRevision %s cannot be created: %s", name, error)
            return _refused(name, str(error))
        self.count("create", REVISION.kind)
        return None


def _refused(name: str, why: str) -> Verdict:
    message = f"Nothing is changed, because ControllerRevision {name}, which is to contain the plan, cannot be created: {why}."
    return Verdict(ConditionStatus.FALSE, Reason.REVISION_REFUSED, message)
