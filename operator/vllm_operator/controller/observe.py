"""Read everything that a reconciliation decides about: one `Snapshot`.

Each reconciliation reads all of it, regardless of the watch event. The client may read from memory (`object_cache`). Of earlier
reconciliations, memory has only the count of free GPUs for a new plan and the promises of GPUs (`inventory_reader`), and plans, which can
be read again (`plan_store`).

Children are found by label. Tools and webhooks change labels, so the Deployments and the Service are also found by name and owner.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from vllm_operator.api import reading
from vllm_operator.api.conditions import VALID_SPEC, Reason, Verdict
from vllm_operator.api.labels import RAN_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.operation import PresetReference
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment, primer_name, template_spec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.caches.address import cache_address, claims_of, weights_claim
from vllm_operator.caches.claims import (
    ClaimUser,
    Removal,
    find_removal_candidates,
    is_claim_of_operator,
    is_recent,
    is_terminating,
    lender_of,
    named_claims,
    read_users,
    shared_claim_names,
)
from vllm_operator.caches.context import is_primer
from vllm_operator.caches.directories import read_leases
from vllm_operator.caches.race import is_won
from vllm_operator.controller.build_reader import BuildReader
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.log_follower import runs_to_follow
from vllm_operator.controller.log_followers import CATCH_UP_SECONDS, Followers
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.optional_objects import CreatedObjects
from vllm_operator.controller.ownership import find_child, find_workload, is_controlled_by, is_of_another
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.user_data import KnownCatalog
from vllm_operator.hub.client import HubAnswer
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Key, Kind, Manifest, NotFound, NotLeading, children_of
from vllm_operator.planning import pinning
from vllm_operator.planning.outcome import Outcome, not_accepted
from vllm_operator.planning.pinning import Standing, is_in_force
from vllm_operator.planning.presets import missing_definition, missing_preset, with_preset
from vllm_operator.planning.validation import ArtifactTrust, refuse_artifact
from vllm_operator.pods.view import Phase, PodView, instance_of, read_pod
from vllm_operator.rendering.image_reading import ImageReading, is_record_of
from vllm_operator.rendering.revision import applied_revision, find_revision, is_recorded, is_revision_of
from vllm_operator.status.bad_nodes import without_restarted
from vllm_operator.status.knowledge import load_messages
from vllm_operator.status.report import UNREADABLE_SECONDS, describe_invalid_spec

HUB_SECONDS = 30.0
"""Maximum time between two reconciliations of an object that waits for the hub. Usually the hub's answer comes earlier."""
_NO_INVENTORY = Verdict(ConditionStatus.UNKNOWN, Reason.NODES_UNREADABLE, "No plan is made.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An object about which nothing can be decided yet, except which Pods and Jobs must release a PVC."""

    manifest: Manifest
    removals: tuple[Removal, ...]
    invalid: str | None = None
    """Why its spec is invalid."""
    wait_seconds: float | None = None
    """Maximum delay until the next reconciliation. Whoever reads the awaited log or answer of the hub adds the key to the queue."""


@dataclass(frozen=True, kw_only=True)  # not slots: cached_property needs `__dict__`
class Snapshot:
    """All input of a decision."""

    manifest: Manifest
    """The VLLMDeployment as read."""
    resource: VLLMDeployment
    """The same, parsed, with the current plan and with its preset."""
    now: datetime
    children: tuple[Manifest, ...] = ()
    """The objects with its labels, which may have another owner (`ownership`), and its Deployments and Service without these labels."""
    pods: tuple[PodView, ...] = ()
    """The Pods, including those of its primer and Jobs."""
    revisions: tuple[Manifest, ...] = ()
    """The ControllerRevisions with its plans, possibly without their data."""
    removals: tuple[Removal, ...] = ()
    """Jobs of the operator and finished Pods that block the deletion of a PVC."""
    claims: Mapping[str, Manifest] = field(default_factory=dict)
    """The live PVCs that its Pods mount or could mount, by name."""
    missing_claims: Mapping[str, str] = field(default_factory=dict)
    """While a Pod waits for a node, the PVCs that the spec names and that do not exist, with the field that names each."""
    claim_users: Mapping[str, tuple[ClaimUser, ...]] = field(default_factory=dict)
    """For each PVC that an operator created and that is not being deleted, the other VLLMDeployments with a valid record on it."""
    peers: Mapping[str, Manifest] = field(default_factory=dict)
    """Other VLLMDeployments, by name: those that created a PVC in `claims`, or hold a priming lease on one."""
    peer_pods: Mapping[str, tuple[PodView, ...]] = field(default_factory=dict)
    """The Pods of holders of a priming lease, by the name of the VLLMDeployment."""
    unplanned: Outcome | None = None
    """The outcome if no plan can be made or read."""
    inventory: Inventory | Verdict = _NO_INVENTORY
    """The GPUs of the cluster, or why they are unknown."""
    files: HubAnswer = field(default_factory=HubAnswer)
    devices: Inventory | None = None
    """The GPUs, with those that Pods of others use now. None if they are unknown, and unless a rollout may begin, or more replicas are
    wanted on a volume for one node."""
    serving_plan: Plan | None = None
    """The plan of the live Deployment, if another one is measured against it before its rollout."""
    build: ImageReading | None = None
    """The build of vLLM in the image; None if the catalog knows it."""
    build_records: tuple[Manifest, ...] = ()
    """The ControllerRevisions about builds of vLLM in images, possibly without their data."""
    standing: Standing = Standing.NEW
    """Whether the GPU of the plan in force may be chosen again."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.resource.metadata.namespace, self.resource.metadata.name

    @cached_property
    def found_workload(self) -> Manifest | None:
        """The Deployment or LeaderWorkerSet with the name of the VLLMDeployment, which may have another owner."""
        return find_workload(self.children, self.resource.metadata.name)

    @cached_property
    def deployment(self) -> Manifest | None:
        """The same, if this VLLMDeployment controls it and it is not being deleted."""
        return self._own(self.found_workload)

    @cached_property
    def primer(self) -> Manifest | None:
        """The Deployment of the primer, under the same conditions."""
        return self._own(find_child(self.children, kube.DEPLOYMENT, primer_name(self.resource.metadata.name)))

    def _own(self, found: Manifest | None) -> Manifest | None:
        is_own = found is not None and is_controlled_by(found, self.manifest) and not found["metadata"].get("deletionTimestamp")
        return found if is_own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Reads snapshots."""

    client: ClusterClient
    catalog: KnownCatalog
    plans: PlanStore
    created: CreatedObjects
    inventory: InventoryCache
    logs: Followers
    configs: ModelConfigs | None
    trust: ArtifactTrust
    builds: BuildReader
    now: Callable[[], datetime]

    async def observe(self, key: Key) -> Snapshot | Pending | None:
        """Read an object and everything that a decision about it depends on; None if it is gone or being deleted. Raises ClusterError."""
        namespace, name = key
        manifest = await self._get(kube.VLLM_DEPLOYMENT, name, namespace)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            return None
        # Sequentially: almost always from memory, where tasks would take longer than the reads.
        pods = await self._find_pods(namespace, name)
        revisions: Sequence[Manifest] = ()
        with suppress(Forbidden):
            revisions = await self.client.find(kube.REVISION, namespace, labels=children_of(kube.REVISION, name))
        children = await self._find_children(manifest, pods)
        removals, claims = await self._find_removals(namespace, children, pods)
        pending = Pending(manifest=manifest, removals=removals)
        try:
            resource = VLLMDeployment.parse(manifest)
        except ValidationError as error:
            return replace(pending, invalid=describe_invalid_spec(error))
        self._follow_logs(key, resource, pods)
        # A new spec is applied without waiting for a log. Then the report waits.
        if resource.status.observed_generation == resource.metadata.generation and not self.logs.caught_up(key):
            return replace(pending, wait_seconds=CATCH_UP_SECONDS)
        snapshot = Snapshot(
            manifest=manifest,
            resource=resource,
            now=self.now(),
            children=children,
            pods=pods,
            revisions=tuple(item for item in revisions if is_revision_of(resource, item)),
            build_records=tuple(item for item in revisions if is_record_of(resource, item)),
            removals=removals,
        )
        planned = await self._with_planning_input(snapshot)
        if planned is None:
            return replace(pending, wait_seconds=HUB_SECONDS)
        with_gpus = await self._with_gpus(await self._with_serving_plan(await self._with_claims(planned, claims)))
        return with_gpus if with_gpus is not None else replace(pending, wait_seconds=UNREADABLE_SECONDS)

    async def _with_gpus(self, snapshot: Snapshot) -> Snapshot | None:
        """Add the GPUs, and which of them are in use if a rollout may begin; None while the nodes cannot be read for a rollout.

        This is the last read: nothing may be awaited between the list of free GPUs and the decision, or others would be promised the same.
        """
        may_roll_out = _may_roll_out(snapshot)
        needs_devices = may_roll_out or _grows_on_one_node(snapshot)
        inventory = _NO_INVENTORY if snapshot.unplanned is not None else await self._read_inventory(snapshot, fresh=needs_devices)
        resource = snapshot.resource
        if isinstance(inventory, Inventory):
            live = None if snapshot.standing is Standing.NEW else snapshot.deployment  # a new plan replaces the Pods anyway
            resource = without_restarted(resource, inventory, live)
        snapshot = replace(snapshot, resource=resource, inventory=inventory)
        if not needs_devices:
            return snapshot
        if isinstance(inventory, Verdict):
            is_temporary = may_roll_out and inventory.reason == Reason.NODES_UNREADABLE and is_in_force(resource.pinned, resource)
            return None if is_temporary else snapshot  # a rollout must not begin by mistake
        # This lists Pods, and so waits, only if they were not listed for a choice of the GPU.
        used = await self.inventory.count_used(resource, inventory, snapshot.pods, now=snapshot.now, with_promised=may_roll_out)
        return replace(snapshot, devices=used)

    async def _get(self, kind: Kind, name: str, namespace: str) -> Manifest | None:
        try:
            return await self.client.get(kind, name, namespace)
        except NotFound:
            return None

    async def _find_pods(self, namespace: str, name: str) -> tuple[PodView, ...]:
        found = await self.client.find(kube.POD, namespace, labels=children_of(kube.POD, name))
        return tuple(read_pod(pod) for pod in found if instance_of(pod) == name)

    async def _find_children(self, manifest: Manifest, pods: Sequence[PodView]) -> tuple[Manifest, ...]:
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        # These kinds are not watched, or may not be installed, so they are read only if an object of them may exist.
        others = [kind for kind in (kube.CLAIM_TEMPLATE, kube.LEADER_WORKER_SET) if await self.created.may_exist(kind, (namespace, name))]
        found: list[Manifest] = []
        for kind in (kube.DEPLOYMENT, kube.SERVICE, kube.CLAIM, *others):
            with suppress(NotFound):  # the kind is not installed
                found += await self.client.find(kind, namespace, labels=children_of(kind, name))
        children = [child for child in found if not is_of_another(child, name)]
        if not reading.mapping(manifest, "status", "plan"):
            return tuple(children)  # at most the Deployment was applied, a moment ago, and nobody can have changed its labels yet
        wanted = [(kube.LEADER_WORKER_SET if kube.LEADER_WORKER_SET in others else kube.DEPLOYMENT, name), (kube.SERVICE, name)]
        if any(map(is_primer, pods)):
            wanted.append((kube.DEPLOYMENT, primer_name(name)))
        missing = [(kind, child) for kind, child in wanted if find_child(children, kind, child) is None]
        relabeled = await asyncio.gather(*(self._get(kind, child, namespace) for kind, child in missing)) if missing else ()
        return (*children, *(child for child in relabeled if child is not None and is_controlled_by(child, manifest)))

    def _follow_logs(self, key: Key, resource: VLLMDeployment, pods: Sequence[PodView]) -> None:
        startup, crash = resource.status.startup, resource.status.last_crash
        starting = {startup.pod or "", *(pod.name for pod in startup.pods or ())} if startup is not None else set[str]()
        # A Pod may have crashed, and be ready again, since the last reconciliation.
        recorded = (crash.pod, crash.restarts or 0) if crash is not None else None
        crashed = (runs[0] for pod in pods if len(runs := runs_to_follow(pod.manifest)) > 1)
        starting |= {run.pod for run in crashed if (run.pod, run.restarts) != recorded}
        self.logs.sync(key, [pod.manifest for pod in pods], starting)

    async def _with_planning_input(self, snapshot: Snapshot) -> Snapshot | None:
        """Add the current plan, the preset and the hub's answer; None while the hub has not answered."""
        resource = await self._with_rollback(snapshot.resource) or await self.plans.read(snapshot.resource, snapshot.deployment)
        if not isinstance(resource, Verdict) and resource.rolled_back_to is None:
            resource = await self._with_preset(resource)
        if isinstance(resource, Verdict):
            return replace(snapshot, unplanned=Outcome(VALID_SPEC, resource, None))
        revision = find_revision(snapshot.revisions, resource.status.revision)
        if resource.pinned is not None and is_won(resource, revision):
            resource = resource.with_pinned(pinning.reopened(resource.pinned))
        standing = pinning.standing_of(resource, snapshot.pods, ran=is_recorded(revision, RAN_ANNOTATION))
        progress = reading.named(snapshot.deployment, "Progressing", "status", "conditions").get("reason")
        # The reason of the Deployment stays when its Pods are lost later.
        served = is_recorded(revision, SERVED_ANNOTATION) or bool(resource.status.ready_replicas) or progress == "NewReplicaSetAvailable"
        may_move = standing in pinning.NEEDS_ROOM and any(pod.phase is Phase.UNSCHEDULABLE for pod in snapshot.pods)
        resource, files = self._ask_hub(resource, may_move=may_move, served=served)
        if files is None:
            return None
        standing = standing if is_in_force(resource.pinned, resource) else Standing.NEW
        snapshot = replace(snapshot, resource=resource, files=files, standing=standing)
        if (refusal := refuse_artifact(resource, self.trust)) is not None:
            return replace(snapshot, unplanned=not_accepted(refusal))
        build = await self.builds.read(resource, self.catalog.current.versions, snapshot.build_records, snapshot.pods)
        if build is not None and not build.is_over:
            message = load_messages().say("image.reading", image=build.image, why=build.obstacle)
            verdict = Verdict(ConditionStatus.FALSE, Reason.READING_IMAGE, message)
            return replace(snapshot, build=build, unplanned=Outcome(VALID_SPEC, verdict, None))
        return replace(snapshot, build=build)

    async def _with_preset(self, resource: VLLMDeployment) -> VLLMDeployment | Verdict:
        """Merge the preset that an object names into its spec, or return a verdict why that is not possible. Raises ClusterError."""
        reference = resource.spec.preset_ref
        if reference is None:
            return resource
        try:
            found = await self._find_preset(reference, resource.metadata.namespace)
        except ClusterError as error:
            found = Verdict(ConditionStatus.UNKNOWN, Reason.PRESET_INVALID, f"{reference} cannot be read: {error}")
            if isinstance(with_preset(resource, found), Verdict):
                raise  # a new plan needs the preset
        return with_preset(resource, found)

    async def _find_preset(self, reference: PresetReference, namespace: str) -> Manifest | Verdict:
        """Return the spec of a preset, or a verdict if it cannot be read. Raises ClusterError other than NotFound and Forbidden.

        The CRDs may be missing, for example after an upgrade of the operator alone.
        """
        kind = next(each for each in (kube.PRESET, kube.CLUSTER_PRESET) if each.kind == reference.kind)
        try:
            presets = await self.client.find(kind, namespace if kind.namespaced else None)  # the operator may list presets but not get one
        except NotFound:
            return missing_definition(reference)
        except Forbidden as error:
            message = f"The operator may not {error.verb} {error.resource}, so {reference} is unknown. Allow it in its ClusterRole."
            return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
        specs = {preset["metadata"]["name"]: reading.mapping(preset, "spec") for preset in presets}
        return dict(specs[reference.name]) if reference.name in specs else missing_preset(reference, namespace, specs)

    async def _with_serving_plan(self, snapshot: Snapshot) -> Snapshot:
        """Add the plan of the live Deployment, if a new plan is to be measured against it."""
        rollout, name = snapshot.resource.spec.rollout, applied_revision(snapshot.deployment)
        if rollout is None or rollout.gate != "Measure" or not name or snapshot.resource.status.revision in (None, name):
            return snapshot
        return replace(snapshot, serving_plan=await self.plans.find(snapshot.resource, name))

    async def _with_rollback(self, resource: VLLMDeployment) -> VLLMDeployment | Verdict | None:
        """Return the object with the plan and spec of an earlier revision if it is rolled back; None otherwise.

        A rollback counts only while the plan that it replaces would be in force.
        """
        for request in pinning.rollbacks_to_try(resource):
            replaced = await self.plans.find(resource, request.replaced)
            if replaced is None:  # the annotation may be a copy from another object
                continue
            current = await self._with_preset(resource.with_pinned(replaced))
            if not isinstance(current, Verdict) and is_in_force(replaced, current):
                return await self.plans.roll_back(current, request.revision, by_operator=request.by_operator)
        return None

    def _ask_hub(self, resource: VLLMDeployment, *, may_move: bool, served: bool) -> tuple[VLLMDeployment, HubAnswer | None]:
        """Ask the hub about the model, for a new plan, for one that was made without an answer and has not served, or may be replaced.

        Return the object with the plan to keep, and the answer; None if there is none yet.
        """
        plan = resource.pinned
        if self.configs is None:
            return resource, HubAnswer()
        if plan is None or not is_in_force(plan, resource):
            return resource, self.configs.ask(resource)
        is_incomplete = plan.awaits_facts and not served
        if is_incomplete or may_move:
            without = resource.with_pinned(pinning.reopened(plan))
            answer = self.configs.ask(without)
            if answer is not None:
                return without if is_incomplete and answer.config is not None else resource, answer
        return resource, HubAnswer()

    async def _read_inventory(self, snapshot: Snapshot, *, fresh: bool) -> Inventory | Verdict:
        resource, pods, listed = snapshot.resource, snapshot.pods, len(self.catalog.current.instance_types)
        try:
            standing, now = snapshot.standing, snapshot.now
            if fresh:
                inventory = await self.inventory.read(max_age=pinning.NEW_PLAN_SECONDS, limit=pinning.NEW_PLAN_SECONDS)
                if not {pod.node for pod in pods if pod.node}.issubset(inventory.nodes):  # a Pod is on a node that was just added
                    inventory = await self.inventory.read(max_age=0.0, limit=0.0)
            else:
                inventory = await self.inventory.read(max_age=pinning.max_age_seconds(resource, pods, standing))
            return await self.inventory.count_free(resource, inventory, pods, standing, now=now, listed=listed, fresh=fresh)
        except Forbidden as error:
            message = f"The operator may not {error.verb} {error.resource}, so it cannot see the GPUs; allow it in its ClusterRole."
            return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
        except NotLeading:
            raise
        except ClusterError as error:
            message = f"The GPUs of the cluster cannot be read now; the operator tries again. {error}"
            return Verdict(ConditionStatus.UNKNOWN, Reason.NODES_UNREADABLE, message)

    async def _find_removals(
        self, namespace: str, children: Sequence[Manifest], pods: Sequence[PodView]
    ) -> tuple[tuple[Removal, ...], Mapping[str, Manifest]]:
        """Return what blocks the deletion of a PVC, and the PVCs that are known so far, by name."""
        found = list(find_removal_candidates(pod.manifest for pod in pods))
        known = {child["metadata"]["name"]: child for child in children if child["kind"] == kube.CLAIM.kind}
        claims = await self._read_claims(namespace, {name for removal in found for name in removal.claims}, known)
        return tuple(it for it in found if any(is_terminating(claims.get(name)) for name in it.claims)), claims

    async def _read_claims(self, namespace: str, names: Collection[str], known: Mapping[str, Manifest]) -> Mapping[str, Manifest]:
        """Add the PVCs with these names, concurrently: PVCs of a new object, or of a user, are not in memory."""
        missing = sorted(set(names) - set(known))
        found = await asyncio.gather(*(self._get(kube.CLAIM, name, namespace) for name in missing)) if missing else ()
        return {**known, **{name: claim for name, claim in zip(missing, found, strict=True) if claim is not None}}

    async def _with_claims(self, snapshot: Snapshot, known: Mapping[str, Manifest]) -> Snapshot:
        resource, (namespace, own_name) = snapshot.resource, snapshot.key
        names = claims_to_read(resource, snapshot.manifest.get("spec"), snapshot.deployment)
        # A Pod with a missing PVC fits no node. So the other named PVCs are read only while a Pod has no node.
        named = dict(named_claims(resource.spec.to_json())) if any(not pod.node for pod in snapshot.pods) else {}
        claims = await self._read_claims(namespace, names | named.keys(), known)
        missing = {name: field for name, field in named.items() if name not in claims}
        users, peer_pods = dict[str, tuple[ClaimUser, ...]](), dict[str, tuple[PodView, ...]]()
        peers = dict[str, Manifest | None]()
        for name, claim in claims.items():
            for holder in {lease.name for lease in read_leases(claim) if lease.uid != resource.metadata.uid}:
                peers[holder] = await self._get(kube.VLLM_DEPLOYMENT, holder, namespace)
                peer_pods[holder] = await self._find_pods(namespace, holder)
            if is_terminating(claim) or not is_claim_of_operator(claim):
                continue
            recorded = read_users(claim, resource.metadata.uid)
            users[name] = tuple([user for user in recorded if await self._is_valid(user, namespace, name)])
            lender = lender_of(name)
            if lender is not None and lender != own_name and lender not in peers:
                peers[lender] = await self._get(kube.VLLM_DEPLOYMENT, lender, namespace)
        present = {name: peer for name, peer in peers.items() if peer is not None}
        return replace(snapshot, claims=claims, missing_claims=missing, claim_users=users, peers=present, peer_pods=peer_pods)

    async def _is_valid(self, user: ClaimUser, namespace: str, claim: str) -> bool:
        """Return whether the VLLMDeployment of a record exists, and uses the PVC or is about to."""
        found = await self._get(kube.VLLM_DEPLOYMENT, user.name, namespace)
        if found is None or found["metadata"].get("uid") != user.uid:
            return False
        if is_recent(user, self.now()) or claim in dict(named_claims(found.get("spec"))):
            return True
        has_groups = await self.created.may_exist(kube.LEADER_WORKER_SET, (namespace, user.name))
        workload = await self._get(kube.LEADER_WORKER_SET if has_groups else kube.DEPLOYMENT, user.name, namespace)
        return claim in claims_of(template_spec(workload))


def _may_roll_out(snapshot: Snapshot) -> bool:
    """Return whether the live Deployment may get another Pod template. Only the decision shows whether it does."""
    resource, revision, deployment = snapshot.resource, snapshot.resource.status.revision, snapshot.deployment
    if deployment is None or (revision is None and not snapshot.pods):
        return False
    return revision is None or applied_revision(deployment) != revision or not is_in_force(resource.pinned, resource)


def _grows_on_one_node(snapshot: Snapshot) -> bool:
    """Return whether more replicas are wanted, although only one node can mount their volume, and a Pod has mounted it."""
    replicas = reading.integer(snapshot.deployment, "spec", "replicas") or 0
    is_growing = snapshot.deployment is not None and snapshot.resource.spec.replicas > replicas
    is_mounted = any(pod.node for pod in snapshot.pods)
    return is_growing and is_mounted and any(reading.is_one_node(reading.access_modes(claim)) for claim in snapshot.claims.values())


def claims_to_read(resource: VLLMDeployment, written: Any, deployment: Manifest | None) -> set[str]:
    """Return the PVCs of caches and weights, now and after a rollout with any plan, and the mounted PVCs of other VLLMDeployments.

    `resource` has its preset; `written` is its spec without the preset, as read.
    """
    running = template_spec(deployment)
    names = {*shared_claim_names(resource), *claims_of(reading.mapping(resource.spec.pod_template, "spec"))}
    names |= {address.claim} if (address := cache_address(running)) is not None else set()
    names |= {weights} if (weights := weights_claim(running)) is not None else set()
    mentioned = (*named_claims(written), *named_claims(resource.preset.spec if resource.preset is not None else None))
    return names | {name for name, _ in mentioned if lender_of(name) is not None}
