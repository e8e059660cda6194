"""Make the children what they should be: write only what differs, only what is ours.

A child is read as part of the observation; the wish is compared with it (`ownership`), and the API server is
called only where something is to do. So a restart of the operator writes nothing, drift in a field of ours is
undone, and what others own stays.

A child of the same name that is not ours is never taken over: the first apply is without force, and says so. A
PersistentVolumeClaim holds data, so for a claim more is asked: the operator must have created it (`cache_actions.claims`).
"""

import asyncio
import hashlib
import logging
import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api import labels
from vllm_operator.caches.volumes import is_created_by_operator
from vllm_operator.cluster import ownership
from vllm_operator.cluster.client import (
    AUTOSCALER,
    CLAIM,
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    SERVICE,
    ClusterClient,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    Manifest,
    NotFound,
    kind_of,
)
from vllm_operator.cluster.observe import is_controlled_by, is_of_earlier
from vllm_operator.cluster.recent import Recent

log = logging.getLogger(__name__)

PRUNED = (DEPLOYMENT, SERVICE, CLAIM_TEMPLATE)
"""Kinds that are deleted when they are not wished any more. Never a claim: it holds what took hours to build."""
CLEANED = {DEPLOYMENT: "/spec/template/spec/", SERVICE: "/spec/ports/"}
"""Where additions by others are removed. Elsewhere they are somebody's wish: a paused rollout, an address of a load balancer."""
TEMPLATE = "spec/template/"
_FINAL = (Invalid, Forbidden, NotFound)
"""Errors of which the user, not time, is rid: the wish must change, or a permission, or a namespace is gone."""
MAX_REMEMBERED = 20_000
"""Children of which something is remembered; the one that was looked at longest ago is forgotten first."""
_ONLY_IF_ABSENT = {"resourceVersion": "1"}
"""With this in its metadata an apply creates an object and fails on one that exists: no object has this version."""
_WITHOUT_REFERENCES = 2
"""The last version of marshal's format whose bytes depend on nothing but the value."""
SCALER = "kube-controller-manager"
"""Writes `replicas` through the scale subresource on behalf of a HorizontalPodAutoscaler."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A child that could not be applied."""

    kind: str
    name: str
    error: ClusterError

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.error}"


@dataclass(slots=True)
class Applied:
    """What applying did: the children as they are now, what was refused, and whether something is on its way out.

    `waiting` is why a child has to be applied later; None if nothing is open.
    """

    children: list[Manifest] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    not_kept: list[str] = field(default_factory=list)
    """Fields of Pod templates that were applied and that the object does not have so: the first one of each Deployment."""
    written: int = 0
    waiting: str | None = None
    failure: ClusterError | None = None
    """What stopped it: worth another try, and not the fault of one child. What was written so far stays."""


class Applier:
    """Applies the children of one VLLMDeployment after the other."""

    def __init__(self, client: ClusterClient, *, count: Callable[[str, str], None] = lambda verb, kind: None) -> None:
        """`count` is called with the verb and the kind of each write."""
        self._client = client
        self._count = count
        # What an apply did not change: fields that this API server does not know. By uid of the child.
        self._accepted: Recent[tuple[str, str]] = Recent(MAX_REMEMBERED)
        # What others insist on adding to a child. By uid.
        self._tolerated: Recent[tuple[str, ...]] = Recent(MAX_REMEMBERED)
        # Children that were found to be as wished, by uid: what the wish and the child were like then.
        self._settled: Recent[str] = Recent(MAX_REMEMBERED)

    async def apply(self, owner: Manifest, desired_objects: Sequence[Manifest], live: Sequence[Manifest]) -> Applied:
        """Make the children so, as far as it goes: an error that is worth another try ends it, and is in `failure`.

        `live` are the children found by label.
        """
        result = Applied()
        found = {_identity(child): child for child in live}
        for group in _in_order(desired_objects):
            calls = [self._bring(owner, desired, found.get(_identity(desired)), result) for desired in group]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):  # none may go on when this returns
                if isinstance(outcome, ClusterError):
                    result.failure = result.failure or outcome
                elif isinstance(outcome, BaseException):
                    raise outcome
            if result.failure is not None:
                break
        result.refusals.sort(key=lambda refusal: (refusal.kind, refusal.name))  # not by whose answer came first
        if not result.refusals and result.failure is None:
            try:
                await self._prune(owner, desired_objects, live, result)
            except ClusterError as error:
                result.failure = error
        return result

    async def _bring(self, owner: Manifest, desired: Manifest, child: Manifest | None, result: Applied) -> None:
        """Make one child so, and note in the result what became of it."""
        if child is None and desired["kind"] == CLAIM.kind:
            child = await self._find(desired)  # it may be there without our labels
        if child is not None and await self._leaving(child, owner):
            result.waiting = f"{child['kind']} {child['metadata']['name']} of an earlier object of this name is being deleted"
            return
        try:
            if child is not None and child["kind"] == CLAIM.kind and not is_created_by_operator(child):
                raise Conflict("not ours")
            result.children.append(await self._apply_ours(owner, desired, child, result))
        except (Conflict, *_FINAL) as error:
            if isinstance(error, Conflict) and not await self._is_foreign(desired):
                raise
            result.refusals.append(Refusal(desired["kind"], desired["metadata"]["name"], _explain_conflict(desired, error)))
            if child is not None:
                result.children.append(await self._without_owner(desired, child, error, result))

    async def _apply_ours(self, owner: Manifest, desired: Manifest, child: Manifest | None, result: Applied) -> Manifest:
        """Apply one child, also where somebody has changed the labels by which it is found."""
        try:
            now = await self._apply_one(desired, child, result)
        except Conflict:
            live = await self._find(desired) if child is None else None
            if live is None or not is_controlled_by(live, owner):
                raise
            now = await self._apply_one(desired, live, result)
        digest, place = self._accepted.get(now["metadata"].get("uid", "")) or ("", "")
        if digest and place.startswith(TEMPLATE) and kind_of(now) == DEPLOYMENT:
            result.not_kept.append(place.replace("/", "."))
        return now

    async def _apply_one(self, desired: Manifest, child: Manifest | None, result: Applied) -> Manifest:
        if child is None:
            # no force: what exists under this name without our labels is not ours
            fresh = {**desired, "metadata": {**desired["metadata"], **_ONLY_IF_ABSENT}} if desired["kind"] == CLAIM.kind else desired
            created = await self._client.apply(fresh, manager=labels.FIELD_MANAGER, force=False)
            return self._written("apply", created, desired, result)
        desired = await self._without_scaled(desired, child)
        mark = _mark(desired, child)
        uid = child["metadata"].get("uid", "")
        if self._settled.get(uid) == mark:
            return child
        if self._needs_apply(desired, child):
            child = self._written("apply", await self._apply_over(desired, child, result), desired, result)
        if kind_of(desired) in CLEANED:
            child = await self._clean(desired, child, result)
        self._settle(uid, desired, child)
        return child

    async def _without_owner(self, desired: Manifest, child: Manifest, error: ClusterError, result: Applied) -> Manifest:
        """Apply the rest of a claim where the API server refuses its new owner; return the claim as it is then.

        The admission plugin OwnerReferencesPermissionEnforcement lets only those add an owner who may delete the object.
        """
        if not (isinstance(error, Forbidden) and child["kind"] == CLAIM.kind and "ownerReferences" in desired["metadata"]):
            return child
        metadata = {name: value for name, value in desired["metadata"].items() if name != "ownerReferences"}
        try:
            return await self._apply_one({**desired, "metadata": metadata}, child, result)
        except (Conflict, *_FINAL):
            return child  # what is wrong was said

    def _settle(self, uid: str, desired: Manifest, child: Manifest) -> None:
        """Remember that a child is as wished, or as near to it as can be: comparing costs more than all else here."""
        self._settled.put(uid, _mark(desired, child))

    async def scale(self, child: Manifest, replicas: int) -> Manifest:
        """Give a Deployment this many replicas and change nothing else; one that an autoscaler scales is left alone.

        Raises:
            ClusterError: It could not be written.
        """
        desired = await self._without_scaled({"kind": child["kind"], "spec": {"replicas": replicas}}, child)
        if not desired["spec"] or child["spec"].get("replicas") == replicas:
            return child
        metadata = child["metadata"]
        operations: list[Manifest] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {"op": "add", "path": "/spec/replicas", "value": replicas},
        ]
        self._count("patch", child["kind"])
        return await self._client.patch(DEPLOYMENT, metadata["name"], metadata["namespace"], operations, manager=labels.FIELD_MANAGER)

    async def _apply_over(self, desired: Manifest, child: Manifest, result: Applied) -> Manifest:
        """Apply over what is there, even where what others have set forbids to lay the wish beside it.

        An apply merges: a port of theirs with the name of ours, or the parameters of another strategy, stay and
        make the whole invalid. Then what differs is replaced first.
        """
        try:
            return await self._client.apply(desired, manager=labels.FIELD_MANAGER)
        except Invalid as refused:
            metadata = child["metadata"]
            operations = replacements(desired, child)
            if not operations:
                raise
            operations.insert(0, {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]})
            place = (kind_of(child), metadata["name"], metadata.get("namespace"))
            try:
                await self._client.patch(*place, operations, manager=labels.FIELD_MANAGER)
            except Invalid:
                raise refused from None
            self._count("patch", child["kind"])
            result.written += 1
            return await self._client.apply(desired, manager=labels.FIELD_MANAGER)

    def _needs_apply(self, desired: Manifest, child: Manifest) -> bool:
        fields = ownership.owned_fields(child, labels.FIELD_MANAGER)
        if fields is None or ownership.owns_more(fields, desired) or ownership.lost_field(child, desired, labels.FIELD_MANAGER):
            return True
        place = ownership.differs(desired, child)
        if place is None or self._accepted.get(child["metadata"].get("uid", "")) == (_digest(desired), "/".join(place)):
            return False
        log.debug("%s %s differs at %s", desired["kind"], desired["metadata"]["name"], ".".join(place))
        return True

    def _written(self, verb: str, now: Manifest, desired: Manifest, result: Applied) -> Manifest:
        result.written += 1
        self._count(verb, now["kind"])
        place = ownership.differs(desired, now)
        uid = now["metadata"].get("uid", "")
        if place is None:
            self._accepted.drop(uid)
        else:
            # once more would change nothing either
            self._accepted.put(uid, (_digest(desired), "/".join(place)))
            log.warning("%s %s: the API server did not take over %s", now["kind"], now["metadata"]["name"], ".".join(place))
        return now

    async def _clean(self, desired: Manifest, child: Manifest, result: Applied) -> Manifest:
        """Remove what others have added inside of our spec."""
        pointers = _additions(child, desired)
        metadata = child["metadata"]
        uid = metadata.get("uid", "")
        if not pointers or self._tolerated.get(uid) == pointers:
            return child
        log.info("removing %s from %s %s: added by somebody else", ", ".join(pointers), child["kind"], metadata["name"])
        operations: list[Manifest] = [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}]
        operations += [{"op": "remove", "path": pointer} for pointer in pointers]
        namespace = metadata.get("namespace")
        now = await self._client.patch(kind_of(child), metadata["name"], namespace, operations, manager=labels.FIELD_MANAGER)
        left = _additions(now, desired)
        if left:  # an admission webhook insists: do not fight
            self._tolerated.put(uid, left)
        else:
            self._tolerated.drop(uid)
        return self._written("patch", now, desired, result)

    async def _is_foreign(self, desired: Manifest) -> bool:
        """Whether what exists under the name of a wish is not ours."""
        live = await self._find(desired)
        if live is None or live["kind"] == CLAIM.kind:
            return live is not None and not is_created_by_operator(live)
        ours, theirs = desired["metadata"]["labels"], live["metadata"].get("labels") or {}
        return any(theirs.get(name) != ours.get(name) for name in (labels.MANAGED_BY_LABEL, labels.INSTANCE_LABEL))

    async def _find(self, desired: Manifest) -> Manifest | None:
        """What exists under the name of a wish, whatever its labels."""
        try:
            return await self._client.get(kind_of(desired), desired["metadata"]["name"], desired["metadata"].get("namespace"))
        except NotFound:
            return None

    async def _leaving(self, child: Manifest, owner: Manifest) -> bool:
        """Whether a child is on its way out, or belongs to an earlier object of the same name and must go.

        The garbage collector deletes a claim. The operator never does.
        """
        if child["metadata"].get("deletionTimestamp"):
            return True
        if not is_of_earlier(child, owner):
            return False
        if child["kind"] != CLAIM.kind:
            await self._delete(child)
        return True

    async def _prune(self, owner: Manifest, desired_objects: Sequence[Manifest], live: Sequence[Manifest], result: Applied) -> None:
        wanted = {_identity(desired) for desired in desired_objects}
        for child in live:
            metadata = child["metadata"]
            ours = any(ref.get("uid") == owner["metadata"]["uid"] for ref in metadata.get("ownerReferences") or ())
            if ours and kind_of(child) in PRUNED and _identity(child) not in wanted and not metadata.get("deletionTimestamp"):
                log.info("deleting %s %s: not wanted any more", child["kind"], metadata["name"])
                await self._delete(child)
                result.written += 1

    async def _delete(self, child: Manifest) -> None:
        metadata = child["metadata"]
        self._count("delete", child["kind"])
        await self._client.delete(kind_of(child), metadata["name"], metadata.get("namespace"), uid=metadata.get("uid"))

    async def _without_scaled(self, desired: Manifest, child: Manifest) -> Manifest:
        """Leave `replicas` out of the wish where a HorizontalPodAutoscaler sets it on the Deployment itself."""
        replicas = desired.get("spec", {}).get("replicas")
        if desired["kind"] != DEPLOYMENT.kind or replicas is None or not _scaled(child) or not await self._has_autoscaler(child):
            return desired
        return {**desired, "spec": {key: value for key, value in desired["spec"].items() if key != "replicas"}}

    async def _has_autoscaler(self, child: Manifest) -> bool:
        try:
            autoscalers = await self._client.find(AUTOSCALER, child["metadata"].get("namespace"))
        except Forbidden:
            return True  # leave it: who may not look must not judge
        targets = [item.get("spec", {}).get("scaleTargetRef", {}) for item in autoscalers]
        return any((t.get("kind"), t.get("name")) == (DEPLOYMENT.kind, child["metadata"]["name"]) for t in targets)


def _in_order(desired_objects: Sequence[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """What Pods need to be scheduled comes first. A Service does not: API servers make many of them slowly, one by one."""
    first = [desired for desired in desired_objects if desired["kind"] in (CLAIM.kind, CLAIM_TEMPLATE.kind)]
    return first, [desired for desired in desired_objects if desired not in first]


def _scaled(child: Manifest) -> bool:
    for entry in child["metadata"].get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if entry.get("manager") == SCALER and entry.get("subresource") == "scale" and "f:replicas" in fields:
            return True
    return False


def replacements(desired: Manifest, child: Manifest) -> list[Manifest]:
    """JSON patch operations that replace each part of the spec that is not as wished; nothing that others own beside it."""
    operations: list[Manifest] = []
    live = child.get("spec") or {}
    foreign = _additions(child, desired) if kind_of(child) in CLEANED else ()
    for key, value in (desired.get("spec") or {}).items():
        place, wanted, present = f"/spec/{key}", value, live.get(key)
        if key == "template":
            place, wanted, present = "/spec/template/spec", value.get("spec"), (present or {}).get("spec")
        if ownership.differs(wanted, present, ("spec", key)) is not None or any(pointer.startswith(f"{place}/") for pointer in foreign):
            operations.append({"op": "replace" if present is not None else "add", "path": place, "value": wanted})
    return operations


def _additions(child: Manifest, desired: Manifest) -> tuple[str, ...]:
    place = CLEANED[kind_of(child)]
    return tuple(pointer for pointer in ownership.fields_of_others(child, desired, labels.FIELD_MANAGER) if pointer.startswith(place))


def _explain_conflict(desired: Manifest, error: ClusterError) -> ClusterError:
    if not isinstance(error, Conflict):
        return error
    kind, name = desired["kind"], desired["metadata"]["name"]
    if kind == CLAIM.kind:
        return Conflict(f"it exists and was not created by the operator; name it in spec, rename this {labels.KIND}, or remove the {kind}")
    return Conflict(f"a {kind} of this name exists and is not the operator's; rename this {labels.KIND} or remove the {kind} {name}")


def _identity(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _mark(desired: Manifest, child: Manifest) -> str:
    """Changes whenever the wish, or anything that it is compared with, changes; not with the child's status."""
    metadata = child["metadata"]
    version = metadata["generation"] if child["kind"] == DEPLOYMENT.kind else metadata.get("resourceVersion")
    seen = [metadata.get("labels"), metadata.get("annotations"), metadata.get("ownerReferences")]
    return f"{version} {_digest(desired)} {hash(marshal.dumps(seen, _WITHOUT_REFERENCES))}"


def _digest(desired: Manifest) -> str:
    """Changes with the wish. It is taken of every child at every look: marshal takes a tenth of the time of sorted JSON."""
    return hashlib.sha256(marshal.dumps(desired, _WITHOUT_REFERENCES)).hexdigest()
