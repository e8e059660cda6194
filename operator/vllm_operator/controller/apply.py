"""Apply the desired children of a VLLMDeployment: write only what differs, and only what the operator owns.

The API server stores with each child what shows whether it is up to date (`managed_fields`), so a restart of the operator writes nothing.
A child that is not up to date is applied (server-side apply), which corrects drift and keeps the fields of other managers. A child that was
found up to date is checked again only after it or its desired manifest has changed.

The operator never takes over an object of the same name that it did not create.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.conditions import Change
from vllm_operator.api.reading import digest
from vllm_operator.api.resource import LEADER_WORKER_SET_KIND, LOG_OF_GROUPS, is_rolling_out, is_workload, rolls, template_field
from vllm_operator.controller.ownership import is_controlled_by, is_created_by_operator, is_of_earlier, may_delete
from vllm_operator.kube import client as kube
from vllm_operator.kube import managed_fields
from vllm_operator.kube.client import ClusterClient, ClusterError, Conflict, Forbidden, Invalid, Manifest, NotFound, Unavailable, kind_of
from vllm_operator.kube.recent import Recent
from vllm_operator.rendering.revision import applied_revision
from vllm_operator.status.knowledge import load_messages
from vllm_operator.text.wording import MESSAGE_LIMIT

log = logging.getLogger(__name__)

CLEANED = {kube.DEPLOYMENT: "/spec/template/spec/", kube.LEADER_WORKER_SET: "/spec/leaderWorkerTemplate/", kube.SERVICE: "/spec/ports/"}
"""Parts of the spec from which additions of other managers are removed. Elsewhere they stay, such as a paused rollout."""
MAX_CHECKED = 20_000
"""Maximum number of children whose last check is cached."""
_FINAL = (Invalid, Forbidden, NotFound)
"""Errors that no retry resolves: the desired state, a permission or the namespace must change."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A child that could not be applied."""

    kind: str
    name: str
    error: ClusterError

    def __str__(self) -> str:
        error, of_groups = self.error, self.kind == LEADER_WORKER_SET_KIND
        if isinstance(error, Conflict):
            return str(error)
        is_silent, is_old = of_groups and isinstance(error, Unavailable), of_groups and not isinstance(error, Forbidden | Unavailable)
        facts = {"lacks_kind": self.lacks_kind, "is_silent": is_silent, "is_old": is_old, "controller_log": LOG_OF_GROUPS}
        return _say("refusal.child", child=f"{self.kind} {self.name}", error=str(error), **facts)

    @property
    def lacks_kind(self) -> bool:
        """Whether the kind is not installed: server-side apply creates a missing object."""
        return self.kind == LEADER_WORKER_SET_KIND and isinstance(self.error, NotFound)


@dataclass(slots=True)
class Applied:
    """The result of applying."""

    children: list[Manifest] = field(default_factory=list)
    """The children as they are now."""
    refusals: list[Refusal] = field(default_factory=list)
    not_kept: list[str] = field(default_factory=list)
    """For each Deployment, the first applied field of its Pod template that is missing or has another value."""
    restored: list[tuple[str, str, Change]] = field(default_factory=list)
    """Kind and name of each child that somebody else had changed, and the first field of it."""
    written: int = 0
    has_new_plan: bool = False
    """The Deployment was created, or changed to another plan. Then its Service and what else is not applied yet follows later."""
    waiting: bool = False
    """A child is being deleted, for example one of an earlier object of this name."""
    failure: ClusterError | None = None
    """The retryable error that ended applying. Earlier writes stay."""


class Applier:
    """Applies the children of VLLMDeployments."""

    def __init__(self, client: ClusterClient, *, count: Callable[[str, str], None] = lambda verb, kind: None) -> None:
        """`count` is called with the verb and the kind of each write."""
        self.client = client
        self._count = count
        self._checked: Recent[tuple[str, str | None]] = Recent(MAX_CHECKED)
        """By uid of a child that is up to date: its mark, and the field of its Pod template that it lacks (see `_mark`)."""

    async def apply(self, owner: Manifest, desired_objects: Sequence[Manifest], live: Sequence[Manifest]) -> Applied:
        """Apply the desired objects, and prune children that are not desired.

        A retryable error ends applying, and is in `failure`. `live` are the children that were found. A Deployment with a new plan ends it
        too: when many objects change at once, each gets its Deployment before any gets the rest.
        """
        result = Applied()
        found = {_identity(child): child for child in live}
        # Prerequisites of scheduling come first. API servers create Services slowly.
        order = {kube.CLAIM.kind: 0, kube.CLAIM_TEMPLATE.kind: 0, kube.DEPLOYMENT.kind: 1, kube.LEADER_WORKER_SET.kind: 1}
        for place in range(3):
            group = [desired for desired in desired_objects if order.get(desired["kind"], 2) == place]
            # A Pod that starts with a PVC that is being deleted would block the deletion.
            ready = [it for it in group if not result.waiting or not is_workload(it) or _identity(it) in found]
            calls = [self._apply_child(owner, desired, found.get(_identity(desired)), result) for desired in ready]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):  # none may continue after the return
                if isinstance(outcome, ClusterError):
                    result.failure = result.failure or outcome
                elif isinstance(outcome, BaseException):
                    raise outcome
            if result.failure is not None or (result.has_new_plan and not result.refusals):
                return result
        result.refusals.sort(key=lambda refusal: (refusal.kind, refusal.name))  # in an order that does not depend on the responses
        if not result.refusals and result.failure is None:
            try:
                await self._prune(owner, desired_objects, live, result)
            except ClusterError as error:
                result.failure = error
        return result

    async def scale(self, child: Manifest, replicas: int) -> Manifest:
        """Set only the replicas of a Deployment, unless a HorizontalPodAutoscaler scales it. Raises ClusterError."""
        if child["spec"].get("replicas") == replicas or await self._is_autoscaled(child):
            return child
        now = await _patch(self.client, child, [{"op": "add", "path": "/spec/replicas", "value": replicas}])
        self._count("patch", child["kind"])
        return now

    async def _apply_child(self, owner: Manifest, desired: Manifest, child: Manifest | None, result: Applied) -> None:
        """Apply one child, and add the outcome to the result. A child that was not found by its labels may exist without them."""
        if child is not None and await self._is_leaving(child, owner):
            result.waiting = True
            return
        try:
            if child is not None and not is_created_by_operator(child, owner):
                raise Conflict("not created by the operator")
            result.children.append(await self._apply_one(desired, child, result))
        except ClusterError as error:
            # a webhook cannot be called, or does not respond before the Lease may end the request
            is_of_webhook = "failed calling webhook" in str(error) or isinstance(error.__cause__, TimeoutError)
            if not isinstance(error, (Conflict, *_FINAL)) and not (desired["kind"] == LEADER_WORKER_SET_KIND and is_of_webhook):
                raise
            if isinstance(error, Conflict):
                live = None
                with suppress(NotFound):  # regardless of its labels
                    live = await self.client.get(kind_of(desired), desired["metadata"]["name"], desired["metadata"].get("namespace"))
                # A PVC may have lost its owner.
                may_adopt = is_created_by_operator if desired["kind"] == kube.CLAIM.kind else is_controlled_by
                if child is None and live is not None and may_adopt(live, owner):
                    return await self._apply_child(owner, desired, live, result)  # once: now there is a child
                if live is None or is_created_by_operator(live, owner):
                    raise
            result.refusals.append(Refusal(*_identity(desired), _explain_conflict(desired, error)))
            if child is not None:
                result.children.append(await self._apply_without_owner(desired, child, error, result))

    async def _apply_one(self, desired: Manifest, child: Manifest | None, result: Applied) -> Manifest:
        checked = None
        if child is not None:
            has_replicas = is_workload(desired) and desired["spec"].get("replicas") is not None
            if has_replicas and await self._is_autoscaled(child):
                desired = {**desired, "spec": {key: value for key, value in desired["spec"].items() if key != "replicas"}}
            # Changed to Recreate and scaled in one write, a rollout never goes on: Kubernetes 1.35 then scales no more than one ReplicaSet.
            if has_replicas and is_rolling_out(child) and rolls(child) and not rolls(desired):
                desired = {**desired, "spec": desired["spec"] | {"strategy": child["spec"]["strategy"]}}
            checked = self._checked.get(child["metadata"].get("uid", ""))
        if child is None or checked is None or checked[0] != _mark(desired, child):
            child = await self._bring_up_to_date(desired, child, result)
            checked = _mark(desired, child), _find_unkept(desired, child)
            self._checked.put(child["metadata"].get("uid", ""), checked)
        if (not_kept := checked[1]) is not None:
            result.not_kept.append(not_kept)
        return child

    async def _bring_up_to_date(self, desired: Manifest, child: Manifest | None, result: Applied) -> Manifest:
        digested = managed_fields.with_digest(desired)
        has_new_plan = applied_revision(desired) not in ("", applied_revision(child))
        if child is None:
            # Without force: an object of this name without the operator's labels belongs to another owner.
            # With a resourceVersion that no object has, the apply creates a PVC, and fails if it exists.
            metadata = digested["metadata"] | ({"resourceVersion": "1"} if desired["kind"] == kube.CLAIM.kind else {})
            child = await self.client.apply({**digested, "metadata": metadata}, manager=labels.FIELD_MANAGER, force=False)
            self._wrote("apply", child, result)
        elif managed_fields.needs_apply(digested, child):
            drift = managed_fields.find_drift(digested, child)
            child = await self._apply_over(digested, child, result)
            self._wrote("apply", child, result)
            result.restored += [(*_identity(desired), drift)] if drift is not None else []
        result.has_new_plan |= has_new_plan
        if kind_of(desired) not in CLEANED or not (pointers := _additions(child, desired)):
            return child
        log.info("removing %s from %s %s: added by others", ", ".join(pointers), child["kind"], child["metadata"]["name"])
        added = managed_fields.describe_change(child, child, tuple(pointers[-1].split("/")[1:]))
        child = await _patch(self.client, child, [{"op": "remove", "path": pointer} for pointer in pointers])
        self._wrote("patch", child, result)
        result.restored.append((*_identity(desired), added))
        return child

    async def _apply_over(self, desired: Manifest, child: Manifest, result: Applied) -> Manifest:
        """Apply an existing child. If merging it with fields of others gives an invalid object, replace the parts of the spec that differ.

        Examples are a port with the name of a desired port, or the parameters of another strategy.
        """
        try:
            return await self.client.apply(desired, manager=labels.FIELD_MANAGER)
        except Invalid as refused:
            operations = _replacements(desired, child)
            if not operations:
                raise
            try:
                self._wrote("patch", await _patch(self.client, child, operations), result)
            except Invalid:
                raise refused from None
            return await self.client.apply(desired, manager=labels.FIELD_MANAGER)

    async def _apply_without_owner(self, desired: Manifest, child: Manifest, error: ClusterError, result: Applied) -> Manifest:
        """Apply the other fields of a PersistentVolumeClaim if the API server refuses to change its owner; return the result.

        The admission plugin OwnerReferencesPermissionEnforcement requires the permission to delete an object for changes of its owners.
        """
        before, wanted = child["metadata"].get("ownerReferences") or [], desired["metadata"].get("ownerReferences") or []
        if not (isinstance(error, Forbidden) and child["kind"] == kube.CLAIM.kind and before != wanted):
            return child
        has_applied = "f:ownerReferences" in (managed_fields.find_applied(child) or {}).get("f:metadata", {})
        ours = [owner for owner in before if owner.get("kind") == labels.KIND] if has_applied else []
        metadata = {name: value for name, value in desired["metadata"].items() if name != "ownerReferences"}
        metadata |= {"ownerReferences": ours} if ours else {}
        try:
            return await self._apply_one({**desired, "metadata": metadata}, child, result)
        except (Conflict, *_FINAL):
            return child  # the first error is reported

    def _wrote(self, verb: str, child: Manifest, result: Applied) -> None:
        result.written += 1
        self._count(verb, child["kind"])

    async def _is_leaving(self, child: Manifest, owner: Manifest) -> bool:
        """Return whether a child is being deleted. Delete one of an earlier object, but a PVC only the garbage collector deletes."""
        if child["metadata"].get("deletionTimestamp"):
            return True
        if not is_of_earlier(child, owner):
            return False
        if child["kind"] != kube.CLAIM.kind:
            await self._delete(child)
        return True

    async def _prune(self, owner: Manifest, desired_objects: Sequence[Manifest], live: Sequence[Manifest], result: Applied) -> None:
        desired = {_identity(manifest) for manifest in desired_objects}
        for child in live:
            is_surplus = _identity(child) not in desired and not child["metadata"].get("deletionTimestamp")
            # never a PersistentVolumeClaim: it holds data
            if is_surplus and kind_of(child) != kube.CLAIM and may_delete(child, owner):
                log.info("deleting %s %s: no longer desired", *_identity(child))
                await self._delete(child)
                result.written += 1

    async def _delete(self, child: Manifest) -> None:
        metadata = child["metadata"]
        self._count("delete", child["kind"])
        await self.client.delete(kind_of(child), metadata["name"], metadata.get("namespace"), uid=metadata.get("uid"))

    async def _is_autoscaled(self, child: Manifest) -> bool:
        """Return whether a HorizontalPodAutoscaler scales the Deployment itself, and not the VLLMDeployment."""
        if not managed_fields.is_scaled(child):
            return False
        try:
            autoscalers = await self.client.find(kube.AUTOSCALER, child["metadata"].get("namespace"))
        except Forbidden:
            return True  # it cannot be excluded
        targets = [reading.mapping(item, "spec", "scaleTargetRef") for item in autoscalers]
        return any((target.get("kind"), target.get("name")) == _identity(child) for target in targets)


async def annotate(
    client: ClusterClient, live: Manifest, changes: Mapping[str, str | None], *, manager: str, disowned: Collection[int] = ()
) -> Manifest:
    """Set annotations of an object, or remove them where the value is None; return the result.

    `disowned` are the positions of owner references to remove. Several VLLMDeployments may share a PVC, and a user may have created it. So
    only these fields are written, and only if the object has not changed since it was read: otherwise, Conflict.
    """
    metadata = live["metadata"]
    present: Mapping[str, str] = metadata.get("annotations") or {}
    changed = {name: value for name, value in changes.items() if value != present.get(name)}
    if not changed and not disowned:
        return live
    operations: list[Manifest] = []
    if changed and "annotations" not in metadata:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for name, value in changed.items():
        path = "/metadata/annotations/" + name.replace("~", "~0").replace("/", "~1")
        operations.append({"op": "remove", "path": path} if value is None else {"op": "add", "path": path, "value": value})
    operations += [{"op": "remove", "path": f"/metadata/ownerReferences/{position}"} for position in sorted(disowned, reverse=True)]
    return await _patch(client, live, operations, manager=manager)


async def _patch(client: ClusterClient, live: Manifest, operations: Sequence[Manifest], *, manager: str = labels.FIELD_MANAGER) -> Manifest:
    """Apply a JSON patch to an object. Raises Conflict if it has changed since it was read."""
    metadata = live["metadata"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    return await client.patch(kind_of(live), metadata["name"], metadata.get("namespace"), [test, *operations], manager=manager)


def _find_unkept(desired: Manifest, child: Manifest) -> str | None:
    """Return the first applied field of a workload's Pod templates that is missing or has another value; None if there is none."""
    if not is_workload(child):
        return None
    part = template_field(desired)
    fields = (managed_fields.find_applied(child) or {}).get("f:spec", {}).get(f"f:{part}", {})
    path = managed_fields.find_unkept(fields, desired["spec"].get(part), child["spec"].get(part))
    if path is None:
        return None
    name = ".".join(("spec", part, *path))
    log.warning("the API server did not keep %s of %s %s", name, *_identity(child))
    return name


def _replacements(desired: Manifest, child: Manifest) -> list[Manifest]:
    """Return JSON patch operations that replace exactly the parts of the spec that differ from the desired ones."""
    operations: list[Manifest] = []
    live = child.get("spec") or {}
    applied: Mapping[str, Any] = (managed_fields.find_applied(child) or {}).get("f:spec", {})
    additions = _additions(child, desired) if kind_of(child) in CLEANED else ()
    for key, value in (desired.get("spec") or {}).items():
        path, wanted, present, fields = f"/spec/{key}", value, live.get(key), applied.get(f"f:{key}")
        if key == "template":
            path, wanted, present, fields = f"{path}/spec", value.get("spec"), (present or {}).get("spec"), (fields or {}).get("f:spec")
        is_same = (
            fields is not None
            and managed_fields.find_difference(fields, wanted) is None
            and managed_fields.find_unkept(fields, wanted, present) is None
        )
        if not is_same or any(pointer.startswith(f"{path}/") for pointer in additions):
            operations.append({"op": "replace" if present is not None else "add", "path": path, "value": wanted})
    return operations


def _additions(child: Manifest, desired: Manifest) -> tuple[str, ...]:
    place = CLEANED[kind_of(child)]
    return tuple(pointer for pointer in managed_fields.find_additions(child, desired) if pointer.startswith(place))


def _explain_conflict(desired: Manifest, error: ClusterError) -> ClusterError:
    if not isinstance(error, Conflict):
        return error
    kind, name = _identity(desired)
    return Conflict(_say("refusal.not_ours", child=f"{kind} {name}", is_claim=kind == kube.CLAIM.kind))


def _say(name: str, **facts: Any) -> str:
    return load_messages().say(name, limit=8 * MESSAGE_LIMIT, **facts)


def _identity(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _mark(desired: Manifest, child: Manifest) -> str:
    """Return a digest of the desired manifest and of what is compared of the child. While it is the same, nothing is compared again."""
    metadata, wanted = child["metadata"], desired["metadata"]
    version = metadata["generation"] if is_workload(child) else metadata.get("resourceVersion")
    labelled = [[(metadata.get(field) or {}).get(name) for name in wanted.get(field) or ()] for field in ("labels", "annotations")]
    applied = (metadata.get("annotations") or {}).get(labels.APPLIED_ANNOTATION)
    read = [desired, labelled, applied, metadata.get("ownerReferences")]
    return f"{version} {digest(read)}"
