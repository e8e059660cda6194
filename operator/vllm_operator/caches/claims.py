"""The PersistentVolumeClaims of caches and weights: their names and sizes, who uses them, and who keeps them.

Weights have a separate volume. They do not depend on the GPU or the image, are a hundred times larger than caches, and can be downloaded
again. They share the cache volume if the user chose it (a named PVC, a host path, an emptyDir, a volume of `podTemplate`), or if the model
is not downloaded from the hub.

The operator writes only to PVCs that it created. Labels and annotations do not show that, because users can copy them.
`metadata.managedFields` does. The API server maintains it, and the access modes of a PVC belong to its creator, because they are
immutable.

Of an existing PVC only the size can change, only upwards, and only when it is bound. The API server refuses other changes, and with them
the whole manifest. The operator therefore does not request such changes, and reports them.

A VLLMDeployment can use the PVC of another one. Before its Pods do, it records itself there (`shared.vllm-operator.dev/UID`) and removes
the owner reference of the other one. So the way it names the PVC and the order of creation and deletion do not matter. The VLLMDeployment
that created the PVC sets no owner while the record is valid, whatever `onDelete` says, and removes an invalid record. Both report it.

Kubernetes keeps a PVC that is being deleted while a Pod with a node refers to it, even a finished Pod (controller `pvc-protection`). A Job
keeps its finished Pod until its TTL has passed, and an evicted Pod of a Deployment stays until it is deleted. Only the operator knows that
neither is needed, so it deletes both. A Job that was orphaned when its VLLMDeployment was deleted (`--cascade=orphan`) and its Pods belong
to the user.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.operation import CacheSpec, ClaimVolume, Storage, StorageSpec
from vllm_operator.api.plan import PlannedWeights
from vllm_operator.api.reading import Manifest, controller_of, mapping, read_bytes, sequence
from vllm_operator.api.resource import JOB_PURPOSES, VLLMDeployment
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.caches.address import claims_of
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.directories import read_annotations
from vllm_operator.caches.jobs import has_role
from vllm_operator.catalog.notes import Note, note, say
from vllm_operator.pods.view import instance_of, is_over

CACHE_VOLUME = "cache"
WEIGHTS_VOLUME = "weights"
DEFAULT_HOST_PATH = "/var/cache/vllm-operator"
GIBIBYTE = 2**30
STEP = 10 * GIBIBYTE
"""Sizes of PVCs are multiples of this, so that they do not change with each estimate."""
UNKNOWN_WEIGHTS = 100 * GIBIBYTE
"""Assumed size of weights of unknown size. Holds 45 billion parameters of two bytes."""
_CLAIM = "PersistentVolumeClaim"
_FIXED = {"accessModes": "access mode", "storageClassName": "storage class"}
GRACE = timedelta(minutes=10)
"""How long a record is valid before a Deployment of its VLLMDeployment, which may name the PVC only in a preset, mounts the PVC."""
MAX_USERS = 50
"""Maximum number of records to read from one PVC."""
_SUFFIXES = {"-cache": "cache", "-weights": "weights"}
"""Name suffixes of PVCs that the operator creates, and the spec field of each."""
_SCHEME = "pvc://"
_MAX_DEPTH = 16


def storage_of(spec: StorageSpec | None) -> Storage:
    """Return the kind of storage of a spec."""
    if spec is None:
        return "SharedClaim"
    return spec.storage or ("HostPath" if spec.host_path else "SharedClaim")


def cache_claim_name(resource: VLLMDeployment) -> str:
    """Return the name of the shared PVC of the caches: the one in the spec, else `<name>-cache`."""
    return (resource.spec.cache.claim_name if resource.spec.cache else None) or f"{resource.metadata.name}-cache"


def weights_claim_name(resource: VLLMDeployment) -> str:
    """Return the name of the shared PVC of the weights: the one in the spec, else `<name>-weights`."""
    return (resource.spec.weights.claim_name if resource.spec.weights else None) or f"{resource.metadata.name}-weights"


def shared_claim_names(resource: VLLMDeployment) -> frozenset[str]:
    """Return the shared PVCs of caches and weights that the Pods mount with any plan, unless `podTemplate` mounts other volumes."""
    weights = weights_storage(resource.spec, plan_weights(resource, None))
    names = [cache_claim_name(resource)] if storage_of(resource.spec.cache) == "SharedClaim" else []
    names += [weights_claim_name(resource)] if weights is not None and storage_of(weights) == "SharedClaim" else []
    return frozenset(names)


def weights_storage(spec: VLLMDeploymentSpec, planned: PlannedWeights) -> StorageSpec | None:
    """Return the storage of the weights of a plan; None if they are on the cache volume."""
    if planned.place == "WithCaches":
        return None
    cache = spec.cache or CacheSpec()
    desired: StorageSpec = spec.weights or StorageSpec(storage=cache.storage)
    if desired.claim_name or storage_of(desired) in ("HostPath", "EmptyDir"):
        return desired
    of_caches = cache.volume or ClaimVolume()
    given = desired.volume or ClaimVolume(storage_class_name=of_caches.storage_class_name, access_mode=of_caches.access_mode)
    return desired.model_copy(update={"volume": given.model_copy(update={"size": given.size or planned.volume_size})})


def plan_weights(resource: VLLMDeployment, weight_bytes: int | None) -> PlannedWeights:
    """Decide where to keep the weights of a model. `weight_bytes` is the size of all weight files; None if unknown."""
    spec = resource.spec
    if spec.weights is None and _are_beside_caches(resource):
        return PlannedWeights(place="WithCaches")
    planned = PlannedWeights(place="OwnVolume", size_bytes=weight_bytes)
    desired = weights_storage(spec, planned)
    if desired is None or desired.volume is None:
        return planned
    return planned.model_copy(update={"volume_size": desired.volume.size or _size(weight_bytes)})


def about_unknown_size(resource: VLLMDeployment, planned: PlannedWeights, weight_bytes: int | None) -> list[Note]:
    """Return a note if the size of the PVC of the weights is a guess."""
    given = resource.spec.weights.volume if resource.spec.weights else None
    if planned.volume_size is None or weight_bytes is not None or (given is not None and given.size):
        return []
    return [note("claims.unknown-size", size=planned.volume_size)]


def _are_beside_caches(resource: VLLMDeployment) -> bool:
    spec = resource.spec
    if not spec.model.uri.startswith("hf://"):
        return True  # the weights are on the user's PVC, and the other files are small
    volumes = sequence(mapping(spec.pod_template, "spec").get("volumes"))
    if any(mapping(volume).get("name") == CACHE_VOLUME for volume in volumes):
        return True
    cache = spec.cache
    return cache is not None and bool(cache.claim_name or storage_of(cache) in ("HostPath", "EmptyDir"))


def _size(weight_bytes: int | None) -> str:
    """Return the PVC size for the weights: 1.2 times the weights, for files that a new revision changes, and 10 GiB."""
    needed = UNKNOWN_WEIGHTS if weight_bytes is None else weight_bytes + weight_bytes // 5 + STEP
    return f"{-(-needed // STEP) * STEP // GIBIBYTE}Gi"


def is_claim_of_operator(claim: Mapping[str, Any]) -> bool:
    """Return whether the operator created a PVC, even if it was orphaned since: it alone applied the access modes."""
    entries = reading.objects(claim, "metadata", "managedFields")
    writers = [entry for entry in entries if "f:accessModes" in reading.mapping(entry, "fieldsV1", "f:spec")]
    return bool(writers) and all((entry.get("manager"), entry.get("operation")) == (labels.FIELD_MANAGER, "Apply") for entry in writers)


def unowned_claims(manifests: Sequence[Mapping[str, Any]], context: CacheContext) -> tuple[str, ...]:
    """Return the names of the desired PVCs that exist already and that the operator did not create."""
    names = [str(manifest["metadata"]["name"]) for manifest in manifests if manifest["kind"] == _CLAIM]
    return tuple(name for name in names if (live := context.claims.get(name)) is not None and not is_claim_of_operator(live))


def too_small(claim: Mapping[str, Any] | None, needed: int | None) -> tuple[int, int] | None:
    """Return the size of a PVC and the size that it requests, in bytes, if the size is less than `needed`; None if it is not.

    A file system that the kubelet enlarges when a Pod mounts it counts as large enough.
    """
    requested = read_bytes(reading.text(claim, "spec", "resources", "requests", "storage"))
    size = read_bytes(reading.text(claim, "status", "capacity", "storage")) or requested
    is_almost = reading.named(claim, "FileSystemResizePending", "status", "conditions").get("status") == "True"
    if needed is None or size is None or size >= needed or is_almost:
        return None
    return size, requested or size


def is_short_of_space(manifests: Sequence[Mapping[str, Any]], context: CacheContext) -> bool:
    """Return whether the operator's PVC for the weights is too small for those that a new plan would download there."""
    metadata, name = context.resource.metadata, context.weights_claim_name
    desired = next((it for it in manifests if it["kind"] == _CLAIM and it["metadata"]["name"] == name), None)
    is_new = context.deployment is None or context.is_rollout
    if desired is None or not is_new or metadata.annotations.get(labels.ALLOW_UNSUPPORTED_ANNOTATION) == "true":
        return False
    return too_small(context.claims.get(name or "", desired), context.plan.weights.size_bytes) is not None


def fit_claims(manifests: Sequence[dict[str, Any]], context: CacheContext) -> tuple[list[dict[str, Any]], str | None]:
    """Return the manifests with PVCs that can be applied (those that others use get no owner), and a note about what cannot, if any."""
    result: list[dict[str, Any]] = []
    notes: list[str | None] = []
    for manifest in manifests:
        metadata, name = manifest["metadata"], manifest["metadata"]["name"]
        if manifest["kind"] == _CLAIM and "ownerReferences" in metadata and (users := context.claim_users.get(name)):
            manifest = {**manifest, "metadata": {field: value for field, value in metadata.items() if field != "ownerReferences"}}
            uses = f"VLLMDeployment {users[0]} uses" if len(users) == 1 else f"VLLMDeployments {', '.join(users)} use"
            notes.append(say("claims.used-by-others", uses=uses, name=name))
        if manifest["kind"] == _CLAIM and (live := context.claims.get(name)) is not None:
            resource = context.resource
            given = resource.spec.weights if name == weights_claim_name(resource) else resource.spec.cache
            is_asked = given is not None and given.volume is not None and given.volume.size is not None
            spec, note = _fit(manifest["spec"], live, is_asked=is_asked)
            manifest = {**manifest, "spec": spec}
            notes.append(note)
        result.append(manifest)
    return result, " ".join(note for note in notes if note) or None


def _fit(desired: Mapping[str, Any], live: Mapping[str, Any], *, is_asked: bool) -> tuple[dict[str, Any], str | None]:
    """Return what can be applied of the spec of a PVC, and a note about the rest. A smaller size that nobody asked for needs no note."""
    name, present = reading.text(live, "metadata", "name"), reading.mapping(live, "spec")
    changed = {field: word for field, word in _FIXED.items() if field in desired and desired[field] != present.get(field)}
    spec = {field: present.get(field) if field in changed else value for field, value in desired.items()}
    spec = {field: value for field, value in spec.items() if value is not None}
    size, is_size = desired["resources"]["requests"]["storage"], reading.text(present, "resources", "requests", "storage")
    difference = (read_bytes(size) or 0) - (read_bytes(is_size) or 0) if is_size else 0
    bound = reading.text(live, "status", "phase") == "Bound"
    if difference < 0 or (difference and not bound):
        spec["resources"] = {"requests": {"storage": is_size}}
    if changed:
        return spec, say("claims.fixed", what=" and ".join(changed.values()), name=name)
    if difference < 0:
        return spec, None if not is_asked else f"PersistentVolumeClaim {name} has {is_size} and cannot shrink. It keeps its size."
    if difference and not bound:
        return spec, f"PersistentVolumeClaim {name} is resized to {size} when it is bound."
    return spec, None


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """A VLLMDeployment with a record on a PVC, and the time of the record; None if it cannot be read."""

    uid: str
    name: str
    since: datetime | None

    @property
    def annotation(self) -> str:
        """Name of the annotation with its record."""
        return labels.SHARED_ANNOTATION_PREFIX + self.uid


def lender_of(claim: str) -> str | None:
    """Return the VLLMDeployment that, by the name of a PVC, may have created it; None if the operator creates no PVC of such a name."""
    return next((claim.removesuffix(suffix) for suffix in _SUFFIXES if claim.endswith(suffix)), None) or None


def claims_of_others(pod_spec: Any, name: str) -> dict[str, str]:
    """Return the PVCs of a Pod that, by their names, another VLLMDeployment than `name` may have created, with that VLLMDeployment."""
    lenders = {claim: lender for claim in sorted(claims_of(pod_spec)) if (lender := lender_of(claim)) is not None}
    return {claim: lender for claim, lender in lenders.items() if lender != name}


def usage_by(resource: VLLMDeployment, claim: Mapping[str, Any], now: datetime) -> dict[str, str]:
    """Return the record that a VLLMDeployment uses the PVC of another one; empty if it exists."""
    name = labels.SHARED_ANNOTATION_PREFIX + resource.metadata.uid
    if reading.text(claim, "metadata", "annotations", name).partition("/")[0] == resource.metadata.name:
        return {}
    return {name: f"{resource.metadata.name}/{reading.stamp(now)}"}


def find_other_owners(claim: Mapping[str, Any], uid: str) -> tuple[int, ...]:
    """Return the positions of the owner references of a PVC to VLLMDeployments with another uid."""
    owners = enumerate(reading.objects(claim, "metadata", "ownerReferences"))
    others = ((position, owner) for position, owner in owners if owner.get("uid") != uid and owner.get("kind") == labels.KIND)
    return tuple(position for position, owner in others if reading.text(owner, "apiVersion").partition("/")[0] == labels.GROUP)


def read_users(claim: Mapping[str, Any], uid: str) -> tuple[ClaimUser, ...]:
    """Return the VLLMDeployments with another uid that have recorded themselves on a PVC."""
    others = {user: value.partition("/") for user, value in read_annotations(claim, labels.SHARED_ANNOTATION_PREFIX).items() if user != uid}
    return tuple(ClaimUser(user, name, reading.moment(since)) for user, (name, _, since) in list(others.items())[:MAX_USERS])


def find_orphans(claims: Iterable[dict[str, Any]], resources: Iterable[Manifest]) -> list[dict[str, Any]]:
    """Return the PVCs that the operator created and that belong to none of these VLLMDeployments, and are used by none."""
    existing, uids, named = set[tuple[str, str]](), set[str](), set[tuple[str, str]]()
    for resource in resources:
        namespace = reading.text(resource, "metadata", "namespace")
        existing.add((namespace, reading.text(resource, "metadata", "name")))
        uids.add(reading.text(resource, "metadata", "uid"))
        named |= {(namespace, claim) for claim, _ in named_claims(resource.get("spec"))}
    found = []
    for claim in claims:
        metadata = mapping(claim, "metadata")
        namespace, name = reading.text(metadata, "namespace"), reading.text(metadata, "name")
        is_used = (namespace, name) in named or any(user.uid in uids for user in read_users(claim, ""))
        is_used = is_used or (namespace, reading.text(metadata, "labels", labels.INSTANCE_LABEL)) in existing
        if is_claim_of_operator(claim) and not (is_used or is_terminating(claim) or sequence(metadata.get("ownerReferences"))):
            found.append(claim)
    return found


def requested_bytes(claim: Manifest) -> int:
    """Return the size that a PVC requests, in bytes; 0 if unknown."""
    return read_bytes(reading.text(claim, "spec", "resources", "requests", "storage")) or 0


def used_again(claim: Manifest) -> dict[str, str | None]:
    """Return the removal of the record that a PVC is unused; empty without one."""
    return {labels.UNUSED_ANNOTATION: None} if reading.text(claim, "metadata", "annotations", labels.UNUSED_ANNOTATION) else {}


def is_recent(user: ClaimUser, now: datetime) -> bool:
    """Return whether a record is so recent that the Deployment of its VLLMDeployment may not exist yet."""
    return user.since is not None and now - user.since < GRACE


def named_claims(spec: Any, field: str = "spec", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each PVC that a field of a spec names, with that field, for example `spec.model.uri`."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(spec, Mapping):
        if isinstance(name := spec.get("claimName"), str) and name:
            yield name, f"{field}.claimName"
        for key, value in spec.items():
            yield from named_claims(value, f"{field}.{key}", depth + 1)
    elif isinstance(spec, list):
        for index, value in enumerate(spec):
            yield from named_claims(value, f"{field}[{index}]", depth + 1)
    elif isinstance(spec, str) and spec.startswith(_SCHEME):
        yield spec.removeprefix(_SCHEME).partition("/")[0], field


def may_ask_for_deletion(resource: Mapping[str, Any], claim: str) -> bool:
    """Return whether a VLLMDeployment, or possibly its preset, asks to delete a PVC together with it."""
    field = next((field for suffix, field in _SUFFIXES.items() if claim.endswith(suffix)), "")
    asked = reading.text(resource, "spec", field, "onDelete")
    return asked == "Delete" if asked else bool(reading.mapping(resource, "spec", "presetRef"))


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """A Pod that keeps a PVC, the VLLMDeployment it belongs to (None for an orphaned Job, too), and whether the operator deletes it."""

    pod: str
    instance: str | None
    is_removable: bool


def is_terminating(claim: Mapping[str, Any] | None) -> bool:
    """Return whether a PVC is being deleted."""
    return bool(reading.text(claim, "metadata", "deletionTimestamp"))


def find_holders(claim: str, pods: Iterable[Mapping[str, Any]], orphaned: Collection[str]) -> tuple[ClaimHolder, ...]:
    """Return the Pods that keep a PVC, sorted by name. `pods` are all Pods of its namespace, `orphaned` uids of Jobs without an owner."""
    holders = []
    for pod in _users(claim, pods):
        name, is_orphaned = reading.text(pod, "metadata", "name"), reading.text(controller_of(pod), "uid") in orphaned
        holders.append(ClaimHolder(name, None if is_orphaned else instance_of(pod), not is_orphaned and _is_removable(pod)))
    return tuple(sorted(holders, key=lambda holder: holder.pod))


def find_jobs(claim: str, pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the Jobs whose Pods keep a PVC and look like Jobs of a VLLMDeployment."""
    owners = (controller_of(pod) for pod in _users(claim, pods) if instance_of(pod) is not None)
    return frozenset(reading.text(owner, "name") for owner in owners if owner.get("kind") == "Job")


def _users(claim: str, pods: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (pod for pod in pods if claim in claims_of(pod.get("spec")) and reading.text(pod, "spec", "nodeName"))


@dataclass(frozen=True, slots=True)
class Removal:
    """The Job or Pod to delete so that `claims` are released."""

    is_job: bool
    name: str
    uid: str
    claims: frozenset[str]


def find_removal_candidates(pods: Iterable[Mapping[str, Any]]) -> Iterator[Removal]:
    """Yield the Jobs and Pods that could be deleted to release their PVCs. The caller keeps those whose PVC is being deleted.

    `pods` are the Pods of one VLLMDeployment.
    """
    for pod in pods:
        claims = claims_of(pod.get("spec"))
        if not claims or not _is_removable(pod):
            continue
        owner = controller_of(pod)
        is_job = owner.get("kind") == "Job"
        target: Any = owner if is_job else pod.get("metadata")
        yield Removal(is_job, reading.text(target, "name"), reading.text(target, "uid"), claims)


def _is_removable(pod: Mapping[str, Any]) -> bool:
    return instance_of(pod) is not None and (has_role(pod, *JOB_PURPOSES) or is_over(pod))
