"""Failures of a revision: which of them end it, and what runs instead.

The decision is written to the status, from where the next reconciliation carries it out like a rollback that a user requests
(`planning.pinning.rollbacks_to_try`). It ends when the plan that was given up would not be in force any more, so the spec is tried again
when it changes or when a new plan is requested. While an earlier revision runs, the operator decides nothing further: it never goes back
twice in a row, and never replaces a user's rollback.

Until a revision has served for `spec.rollout.proveSeconds`, these failures of its own Pods end it:
- at once by a crash after it has served, a missed deadline, an image that does not exist, a hang that nobody ends (`onHang: Report`), and a
  crash that no restart can fix
- by a container that cannot be created, after three restarts (`MAX_RESTARTS`) or at the deadline
- by any other crash, when its Pods together have crashed four times

If an earlier revision has served, and `onFailure` is not `Hold`, the operator gives up the revision: `status.rollback.revision` is set.
Otherwise the failure is only reported.

Failures of a node, the hub, storage, a registry or other Pods do not count (`origin` of the signature), nor does a crash for which the
operator is applying a remedy or repairing a cache.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import ROLLED_BACK, TRUE, Reason, Verdict, find_condition, without_link
from vllm_operator.api.labels import SERVED_ANNOTATION
from vllm_operator.api.operation import RolloutSpec
from vllm_operator.api.reading import Manifest
from vllm_operator.api.resource import rolls
from vllm_operator.api.status import RemediationStatus, RollbackStatus
from vllm_operator.caches.rollout import MAX_RESTARTS
from vllm_operator.pods.view import Phase
from vllm_operator.rendering.revision import applied_revision, find_revision, last_served, number_of
from vllm_operator.status.crashes import Crashes, Finding
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.status.progressing import pod_text
from vllm_operator.status.reaction import is_permanent, is_superseded

DEFAULT_PROVE_SECONDS = 600
_AT_ONCE = ("StartupProbeFailed", "LivenessProbeFailed", "EngineHung")
"""Signatures of containers that a probe ended. That takes minutes of failed probes, so one such end is enough."""
_FROM_OUTSIDE = "Terminated"
_NO_IMAGE = re.compile(r"InvalidImageName|not found|manifest unknown|does not exist", re.IGNORECASE)
"""What registries say about an image that does not exist, as container runtimes quote them; not that they cannot be reached."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a revision is given up."""

    why: str
    remedy: str | None = None
    command: str | None = None
    may_pass: bool = True  # another start may succeed


def decide_rollback(
    observed: Observation, crashes: Crashes, remediation: RemediationStatus | None
) -> tuple[RollbackStatus | None, Failure | None]:
    """Return the new `status.rollback`, and the failure for which the operator goes back now.

    `remediation` is the decision about the crashes of the current revision in the same report.
    """
    before, resource = observed.previous.rollback, observed.resource
    if observed.outcome.plan is None and resource.pinned is None:
        return before, None  # the plan cannot be read now
    if resource.is_rolled_back_by_operator and before is not None:
        return _completed(observed, before), None
    revision = find_revision(observed.revisions, observed.revision)
    if resource.rolled_back_to is not None or revision is None or applied_revision(observed.deployment) != observed.revision:
        return None, None
    failure = next(_failures(observed, revision, crashes, remediation), None)
    # the first failure is kept while a Pod fails, so that message, time and event stay the same, until there is a way back
    known = before if before is not None and before.failed == observed.revision and (failure or crashes.in_force) else None
    if failure is None:
        return known, None
    may_go_back = (resource.spec.rollout or RolloutSpec()).on_failure != "Hold"
    target = last_served(observed.revisions, instead_of=revision) if may_go_back else None
    made = RollbackStatus(failed=revision["metadata"]["name"], failed_number=number_of(revision), time=reading.stamp(observed.now) or "")
    if target is None:
        return known or made, None
    instead = {"revision": target["metadata"]["name"], "number": number_of(target), "command": failure.command}
    return made.model_copy(update=instead), failure


def _completed(observed: Observation, before: RollbackStatus) -> RollbackStatus:
    """Add how long it took until all replicas served again."""
    began = reading.moment(before.time)
    is_back = observed.serving >= observed.wanted > 0 and observed.rollout.is_complete
    if before.back_seconds is not None or began is None or not is_back:
        return before
    return before.model_copy(update={"back_seconds": max(0, round((observed.now - began).total_seconds()))})


def _failures(observed: Observation, revision: Manifest, crashes: Crashes, remediation: RemediationStatus | None) -> Iterator[Failure]:
    own = [it for it in crashes.in_force if it.reportable_at is None and _counts(observed, revision, it, remediation)]
    runs = sum(finding.restarts + 1 for finding in own)
    for finding in own:
        if runs > MAX_RESTARTS or _is_final(observed, revision, finding):
            crash = finding.status
            command = remediation.command if remediation is not None and remediation.pod == crash.pod else None
            signature = observed.knowledge.signatures.get(crash.signature)
            yield Failure(crash.cause or "", crash.remedy, command, signature is None or not is_permanent(signature))
    for view in observed.pod_facts:
        if _is_of(revision, view) and not _has_proved_itself(observed, revision, None) and _is_stuck(observed, view):
            yield Failure(pod_text(observed, view))


def _is_of(revision: Manifest, view: PodFacts) -> bool:
    """Return whether a Pod belongs to a revision.

    A new revision may have the Pod template of the one before, so its Deployment keeps older Pods; these do not count.
    """
    since = reading.moment(revision, "metadata", "creationTimestamp")
    return view.is_current and not (since is not None and view.created_at is not None and view.created_at < since)


def _has_proved_itself(observed: Observation, revision: Manifest, at: datetime | None) -> bool:
    served, seconds = _served_at(revision), (observed.resource.spec.rollout or RolloutSpec()).prove_seconds
    prove = timedelta(seconds=DEFAULT_PROVE_SECONDS if seconds is None else seconds)
    return served is not None and (at or observed.now) - served >= prove


def _served_at(revision: Manifest) -> datetime | None:
    return reading.moment(revision, "metadata", "annotations", SERVED_ANNOTATION)


def _counts(observed: Observation, revision: Manifest, finding: Finding, remediation: RemediationStatus | None) -> bool:
    """Return whether a crash is the revision's own, before it has proved itself, and nothing is being done about it."""
    if finding.view.phase is Phase.FAILED or not _is_of(revision, finding.view) or _has_proved_itself(observed, revision, finding.time):
        return False
    signature = observed.knowledge.signatures.get(finding.status.signature)
    is_outside = finding.status.signature == _FROM_OUTSIDE or (signature is not None and signature.origin is not None)
    return not is_outside and not is_superseded(remediation, finding)


def _is_final(observed: Observation, revision: Manifest, finding: Finding) -> bool:
    """Return whether one such crash is enough."""
    name, signature = finding.status.signature, observed.knowledge.signatures.get(finding.status.signature)
    if signature is not None and signature.remedy_action is not None:
        return False  # the operator repairs the caches
    has_served = _served_at(revision) is not None and not finding.during_start
    return has_served or name in _AT_ONCE or (signature is not None and is_permanent(signature))


def _is_stuck(observed: Observation, view: PodFacts) -> bool:
    """Return whether a Pod fails without a crash: there is no image, no container can be created, or it hangs and nobody ends it."""
    plan, since = observed.plan, view.created_at
    if view.phase is Phase.HUNG:
        return plan is not None and plan.on_hang == "Report"
    if view.phase is Phase.IMAGE_PULL_FAILED:
        return view.container != "copy-tools" and _NO_IMAGE.search(f"{view.reason} {view.message}") is not None
    is_late = plan is not None and since is not None and observed.now - since > timedelta(seconds=plan.deadline_seconds)
    return view.phase is Phase.CONTAINER_FAILED and (view.restarts >= MAX_RESTARTS or is_late)


def describe_failed(observed: Observation, rollback: RollbackStatus) -> str:
    """Say why the revision that failed stays."""
    is_held = (observed.resource.spec.rollout or RolloutSpec()).on_failure == "Hold"
    return observed.messages.say("rollback.hold" if is_held else "rollback.first", rollback=rollback, metadata=observed.resource.metadata)


def rolled_back(observed: Observation, rollback: RollbackStatus | None, failure: Failure | None) -> Verdict | None:
    """Judge RolledBack. None unless the operator has given up the revision of the current spec; a user's rollback is `PlanDrifted`.

    `failure` is only known when the operator goes back. Later, that message is kept, and what is known only then is added.
    """
    if rollback is None or rollback.revision is None:
        return None
    before, messages = find_condition(observed.previous.conditions, ROLLED_BACK), observed.messages
    facts: dict[str, Any] = {"rollback": rollback, "metadata": observed.resource.metadata, "stops": not rolls(observed.deployment)}
    if failure is None and before is not None:
        text = without_link(before.message)
    else:
        text = messages.fit("rollback.done", shrink=("why", "remedy"), limit=650, **facts, **asdict(failure or Failure("")))
    for name in ("rollback.changes", "rollback.back"):
        more = messages.say(name, changes=observed.resource.rolled_back_changes, **facts)
        text = text if more in text else text.replace(". ", f". {more} ", 1)
    return Verdict(TRUE, Reason.REVISION_FAILED, text)
