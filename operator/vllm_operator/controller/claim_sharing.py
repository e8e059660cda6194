"""Record on PersistentVolumeClaims which VLLMDeployments share them, so that no claim is deleted while another VLLMDeployment uses it.

`vllm_operator.caches.claims` explains the records.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.claims import (
    ClaimUser,
    describe_kept_owner,
    describe_lender,
    find_other_owners,
    is_created_by_operator,
    is_recent,
    is_terminating,
    may_ask_for_deletion,
    mentions_claim,
    mounts_claim,
    read_users,
    usage_by,
)
from vllm_operator.controller.apply import annotate_claim
from vllm_operator.kube.client import (
    CLAIM,
    DEPLOYMENT,
    VLLM_DEPLOYMENT,
    ClusterClient,
    Forbidden,
    Invalid,
    Kind,
    Manifest,
    NotFound,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sharing:
    """The live PersistentVolumeClaims of a VLLMDeployment, the other users of its own claims, and the state of shared claims to report."""

    claims: Mapping[str, Manifest]
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ClaimSharing:
    """Reads and writes the records of shared claims."""

    def __init__(self, client: ClusterClient, *, count: Callable[[str, str], None], now: Callable[[], datetime]) -> None:
        """Initialize. `count` is called with the verb and kind of each write; `now` is the clock."""
        self._client = client
        self._count = count
        self._now = now

    async def reconcile(
        self, resource: VLLMDeployment, claims: Mapping[str, Manifest], own: Collection[str], others: Mapping[str, str]
    ) -> Sharing:
        """Write the records that must exist before Pods use the claims.

        Args:
            resource: The VLLMDeployment.
            claims: The live claims, by name.
            own: Names of the claims that this VLLMDeployment creates.
            others: Names of claims that other VLLMDeployments may have created, each with the name of that VLLMDeployment.

        Raises:
            Conflict: A claim has changed since it was read.
            ClusterError: The API server failed.
        """
        now = {name: claim for name, claim in claims.items() if is_created_by_operator(claim) and not is_terminating(claim)}
        users, notes = dict[str, tuple[str, ...]](), list[str]()
        for name, claim in now.items():
            if name in own:
                now[name], users[name] = await self._find_users(resource, claim)
            elif name in others:
                now[name] = await self._use(resource, claim)
                notes += await self._describe(resource, now[name], others[name])
        return Sharing({**claims, **now}, users, tuple(notes))

    async def _use(self, resource: VLLMDeployment, claim: Manifest) -> Manifest:
        """Record on another VLLMDeployment's claim that this one uses it, and remove the claim's owner."""
        return await self._write(claim, usage_by(resource, claim, self._now()), find_other_owners(claim, resource.metadata.uid))

    async def _describe(self, resource: VLLMDeployment, claim: Manifest, lender: str) -> list[str]:
        name = claim["metadata"]["name"]
        if find_other_owners(claim, resource.metadata.uid):
            return [describe_kept_owner(name, f"VLLMDeployment {lender}")]
        found = await self._get(VLLM_DEPLOYMENT, lender, resource.metadata.namespace)
        return [describe_lender(name, lender)] if found is not None and may_ask_for_deletion(found, name) else []

    async def _find_users(self, resource: VLLMDeployment, claim: Manifest) -> tuple[Manifest, tuple[str, ...]]:
        """Return the claim without records of former users, and the other VLLMDeployments that use it."""
        recorded = read_users(claim, resource.metadata.uid)
        users = [user for user in recorded if await self._is_valid(user, resource.metadata.namespace, claim["metadata"]["name"])]
        former: dict[str, str | None] = {user.annotation: None for user in recorded if user not in users}
        return await self._write(claim, former), tuple(sorted({user.name for user in users}))

    async def _is_valid(self, user: ClaimUser, namespace: str, claim: str) -> bool:
        found = await self._get(VLLM_DEPLOYMENT, user.name, namespace)
        if found is None or found["metadata"].get("uid") != user.uid:
            return False
        if is_recent(user, self._now()) or mentions_claim(found.get("spec"), claim):
            return True
        return mounts_claim(await self._get(DEPLOYMENT, user.name, namespace), claim)

    async def _write(self, claim: Manifest, record: Mapping[str, str | None], disowned: Collection[int] = ()) -> Manifest:
        if not record and not disowned:
            return claim
        try:
            written = await annotate_claim(self._client, claim, record, disowned=disowned)
        except (Forbidden, Invalid) as error:
            if disowned:  # the API server may allow changes of owners only with the permission to delete
                return await self._write(claim, record)
            log.warning("cannot record who uses PersistentVolumeClaim %s: %s", claim["metadata"]["name"], error)
            return claim
        self._count("patch", CLAIM.kind)
        return written

    async def _get(self, kind: Kind, name: str, namespace: str) -> Manifest | None:
        try:
            return await self._client.get(kind, name, namespace)
        except NotFound:
            return None
